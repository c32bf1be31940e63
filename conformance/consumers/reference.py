"""The strict reference consumer, as one consumer among others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance import reference
from conformance.consumers._consumer import Consumer, below, reach
from conformance.drivers._calls import LEGACY, host_bytes
from conformance.dtypes import NAMES, numpy_type

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class Taken:
    """A consumed capsule, whose deleter is called when this goes."""

    def __init__(self, capsule: object) -> None:
        self.seen = reference.take(capsule)

    def __del__(self) -> None:
        if hasattr(self, "seen"):
            reference.delete(self.seen)


class Reference(Consumer):
    """Asks for the newest capsule, on the legacy default stream."""

    def take(self, offered: object) -> Taken:
        """Import it."""
        on_cuda = offered.__dlpack_device__()[0] == reference.CUDA  # type: ignore[attr-defined]
        told = {"stream": LEGACY} if on_cuda else {}
        return Taken(offered.__dlpack__(max_version=(1, 3), **told))  # type: ignore[attr-defined]

    def address(self, array: Taken) -> int:
        """Give data and byte_offset together."""
        return array.seen.first

    def shape(self, array: Taken) -> tuple[int, ...]:
        """As seen."""
        return array.seen.shape

    def strides(self, array: Taken) -> tuple[int, ...]:
        """As seen."""
        return array.seen.strides

    def dtype(self, array: Taken) -> str:
        """Name what was seen."""
        code, bits, _ = array.seen.dtype
        return NAMES.get((code, bits), f"code {code}, {bits} bits")

    def device(self, array: Taken) -> tuple[int, int]:
        """As seen."""
        return array.seen.device

    def readonly(self, array: Taken) -> bool:
        """As flagged."""
        return bool(array.seen.flags & reference.READ_ONLY)

    def read(self, array: Taken) -> np.ndarray:
        """Follow shape and strides, in C."""
        seen, dtype = array.seen, self._type(array)
        out = np.empty(seen.shape, dtype)
        skipped, block = self._memory(seen, dtype)
        first = block.ctypes.data + skipped * dtype.itemsize
        reference.library().free.reference_gather(seen, first, dtype.itemsize, out.ctypes.data)
        return out

    def write(self, array: Taken, values: np.ndarray) -> None:
        """Follow shape and strides, in C."""
        seen, dtype = array.seen, self._type(array)
        skipped, block = self._memory(seen, dtype)
        flat = np.ascontiguousarray(values, dtype)
        first = block.ctypes.data + skipped * dtype.itemsize
        reference.library().free.reference_scatter(seen, first, dtype.itemsize, flat.ctypes.data)
        if seen.device_type != reference.CPU:
            self.driver.upload(seen.first - skipped * dtype.itemsize, block)

    def tail(self, array: Taken) -> np.ndarray:
        """Read the last elements alone."""
        seen, dtype = array.seen, self._type(array)
        (size,), (stride,) = seen.shape, seen.strides
        start = seen.first + (size - 4) * stride * dtype.itemsize
        nbytes = (3 * stride + 1) * dtype.itemsize
        on_host = seen.device_type == reference.CPU
        block = host_bytes(start, nbytes) if on_host else self.driver.download(start, nbytes)
        return block.view(dtype)[::stride].copy()

    def _type(self, array: Taken) -> np.dtype:
        name = self.dtype(array)
        assert not name.startswith("code"), f"no element type of DLPack 1.3 has {name}"
        return numpy_type(name)

    def _memory(self, seen: reference.Seen, dtype: np.dtype) -> tuple[int, np.ndarray]:
        """Give the elements below the first one, and the bytes of all: the memory itself, or a copy from the GPU."""
        nbytes, skipped = reach(seen.shape, seen.strides) * dtype.itemsize, below(seen.shape, seen.strides)
        start = seen.first - skipped * dtype.itemsize
        on_host = seen.device_type == reference.CPU
        return skipped, host_bytes(start, nbytes) if on_host else self.driver.download(start, nbytes)


def make(side: Side, driver: Driver) -> Reference:
    """Build the C part, and give the consumer."""
    reference.library()
    return Reference(side, driver)
