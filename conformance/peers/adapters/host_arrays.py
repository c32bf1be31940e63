"""For tests that hand NumPy arrays over: `numpy` makes arrays that dlwrap exports as CPU views."""

from __future__ import annotations

from types import ModuleType

from conformance.peers.exports import HostArray
from conformance.peers.namespace_of import Namespace


def while_importing() -> dict[str, ModuleType]:
    return {"numpy": Namespace("numpy", HostArray)}
