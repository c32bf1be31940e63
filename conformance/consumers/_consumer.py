"""What checks ask of a framework, and answers that many share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cannot import CannotBeAskedError
from conformance.drivers._calls import LEGACY, host_bytes
from conformance.results import Side

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conformance.drivers._calls import Driver


class Consumer:
    """A framework that takes what a producer offers into an array of its own.

    Attributes
    ----------
    compact : str
        Why it takes arrays without gaps or repetitions only; empty if it takes strides.
    row_major : str
        Why it takes the last dimension as the fastest only; empty if it takes transposed arrays.
    immutable : str
        Why it cannot write; empty if it can.
    lacks : mapping
        Names of element types that it does not have, with the reason.
    most_dimensions : int
        How many it can have.
    asks_for_host : bool
        Whether it asks a CUDA producer for the view of the CPU by itself.
    """

    compact = ""
    row_major = ""
    immutable = ""
    lacks: Mapping[str, str] = {}
    most_dimensions = 64
    asks_for_host = False

    def __init__(self, side: Side, driver: Driver) -> None:
        self.side = side
        self.driver = driver

    def take(self, offered: object) -> Any:
        """Import it, as a user would."""
        raise NotImplementedError

    def address(self, array: Any) -> int:
        """Give the address of the first element."""
        raise NotImplementedError

    def shape(self, array: Any) -> tuple[int, ...]:
        """Give the elements along each dimension."""
        return tuple(array.shape)

    def strides(self, array: Any) -> tuple[int, ...] | None:  # noqa: ARG002 -- for those that tell
        """Give the strides in elements; None if it does not tell."""
        return None

    def dtype(self, array: Any) -> str:
        """Give NumPy's name of the element type."""
        return str(np.dtype(array.dtype))

    def device(self, array: Any) -> tuple[int, int] | None:  # noqa: ARG002 -- for those that tell
        """Give DLPack's type and number of the device; None if it does not tell."""
        return None

    def readonly(self, array: Any) -> bool | None:  # noqa: ARG002 -- for those that tell
        """Tell whether the framework refuses to write to it; None if it does not say."""
        return None

    def read(self, array: Any) -> np.ndarray:
        """Copy the values."""
        raise NotImplementedError

    def write(self, array: Any, values: np.ndarray) -> None:  # noqa: ARG002 -- for those that can
        """Overwrite all values, in place, and wait until that is done."""
        raise CannotBeAskedError(self.immutable or f"{type(self).__name__} has no way to write")

    def tail(self, array: Any) -> np.ndarray:
        """Copy the last four elements of a one-dimensional array."""
        return self.read(array[-4:])

    def work_stream(self) -> int:
        """Give the stream that it works on."""
        return LEGACY


def reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Count the elements from the lowest to the highest in memory."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True))


def below(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Count the elements in memory before the first one, where strides are negative."""
    if 0 in shape:
        return 0
    return -sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if stride < 0)


def compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Give the strides of a row-major array, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def read_by_address(
    consumer: Consumer, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Read for a framework that only shows where its elements lie."""
    elements, _ = _elements(consumer, pointer, shape, strides, dtype)
    return elements.copy().view(dtype)


def write_by_address(
    consumer: Consumer, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], values: np.ndarray
) -> None:
    """Write for such a framework: the elements, and nothing between them."""
    elements, flat = _elements(consumer, pointer, shape, strides, values.dtype)
    elements[...] = np.ascontiguousarray(values).view(elements.dtype)
    if consumer.side is Side.CUDA:
        consumer.driver.upload(pointer - below(shape, strides) * values.dtype.itemsize, flat)


def _elements(
    consumer: Consumer, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """View the elements, and all bytes between them: in place on the host, as a copy of the GPU's."""
    size = dtype.itemsize
    nbytes, first = reach(shape, strides) * size, below(shape, strides)
    start = pointer - first * size
    flat = consumer.driver.download(start, nbytes) if consumer.side is Side.CUDA else host_bytes(start, nbytes)
    # As plain bytes, because NumPy finds no strides of some types of ml_dtypes.
    plain = flat.view(f"V{size}")[first:]
    return np.lib.stride_tricks.as_strided(plain, shape, [stride * size for stride in strides]), flat
