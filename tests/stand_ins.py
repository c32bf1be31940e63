"""What stands for objects of frameworks that are not there, and what watches memory."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np


def make_class(path: str, base: type = SimpleNamespace) -> type:
    """Make a class that has the package and the name of another."""
    module, _, name = path.rpartition(".")
    return type(name, (base,), {"__module__": module, "__qualname__": name})


class Imported:
    """What a framework makes of a buffer: it knows the device's address, and exports that again."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __dlpack__(self, **asked: Any) -> object:
        return self._buffer.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._buffer.__dlpack_device__()


def memory_of(array: np.ndarray) -> weakref.ref[Any]:
    """Watch the object that unmaps the memory of `cuda.host_array`."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return weakref.ref(owner)
