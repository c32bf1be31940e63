"""The bytes of a strided array, for producers that need them in memory of their own."""

from __future__ import annotations

import numpy as np

from conformance.cannot import CannotBeAskedError
from conformance.consumers._consumer import reach
from conformance.drivers._calls import host_bytes
from conformance.memory import address


def block_of(array: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Copy the bytes from the first to the last element; give them and the strides in elements."""
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        raise CannotBeAskedError("its memory is filled by the suite, which knows no such strides")
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return host_bytes(address(array), reach(array.shape, strides) * array.itemsize).copy(), strides


def check_native(array: np.ndarray, what: str) -> None:
    """Refuse what this producer has no arrays of."""
    if not array.dtype.isnative or array.dtype.kind not in "biufcV" or array.dtype.names:
        raise CannotBeAskedError(f"{what} has no arrays of {array.dtype}")
