"""For tests that hand NumPy arrays over, on a GPU: `numpy` makes arrays that dlwrap exports as CUDA memory."""

from __future__ import annotations

from types import ModuleType

from conformance.peers.exports import DeviceArray
from conformance.peers.namespace_of import Namespace


def while_importing() -> dict[str, ModuleType]:
    return {"numpy": Namespace("numpy", DeviceArray)}
