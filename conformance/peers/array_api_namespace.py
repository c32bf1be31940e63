"""The namespace that the array API tests are given: NumPy's, with arrays that dlwrap exports."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.peers.exports import HostArray
from conformance.peers.namespace_of import Namespace

__version__ = np.__version__
_namespace = Namespace(__name__, HostArray)


def __getattr__(name: str) -> Any:
    return getattr(_namespace, name)
