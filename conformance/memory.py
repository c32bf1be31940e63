"""Arrays over memory whose end can be watched, aligned to pages so that no framework has a reason to copy it."""

from __future__ import annotations

import math
import mmap
import weakref
from typing import Any

import numpy as np


class PlainMemory:
    """Anonymous memory, where no simulated driver watches; unmapped when the last array over it dies."""

    def __init__(self, nbytes: int) -> None:
        self._mapping = mmap.mmap(-1, max(nbytes, 1))
        flat = np.frombuffer(self._mapping, np.uint8, nbytes)
        self.__array_interface__ = {**flat.__array_interface__, "data": (flat.__array_interface__["data"][0], False)}


def plain_bytes(nbytes: int) -> np.ndarray:
    """Make zeros that take up memory only where they are touched."""
    return np.asarray(PlainMemory(nbytes))


def shaped(flat: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """View bytes as an array."""
    return flat.view(dtype).reshape(shape)


def nbytes_of(shape: tuple[int, ...], dtype: Any) -> int:
    """Count the bytes of an array."""
    return math.prod(shape) * np.dtype(dtype).itemsize


def numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Give values that every type tells apart as well as it can: none of them is lost in float8 or bool."""
    dtype = np.dtype(dtype)
    counted = np.arange(math.prod(shape), dtype=np.float32) % 7
    if dtype.kind == "b":
        counted = counted % 2
    if dtype.name.startswith("float8_e8m0"):
        counted = 2**counted
    return counted.astype(dtype).reshape(shape)


def watch(array: np.ndarray) -> weakref.ref[Any]:
    """Watch the object that gives the array's memory back."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return weakref.ref(owner)


def address(array: np.ndarray) -> int:
    """Give the address of the first element."""
    return array.__array_interface__["data"][0]
