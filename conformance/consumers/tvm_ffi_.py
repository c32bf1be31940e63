"""apache-tvm-ffi: `tvm_ffi.from_dlpack`, by the C exchange API where the producer has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from conformance.consumers._consumer import Consumer, compact_strides, read_by_address, write_by_address
from conformance.dtypes import numpy_type

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class TvmFfi(Consumer):
    """It shows where the elements lie, and computes nothing."""

    lacks = dict.fromkeys(("complex64", "complex128"), "tvm-ffi has no complex types")

    def take(self, offered: object) -> Any:
        """Import it."""
        return tvm_ffi.from_dlpack(offered)

    def address(self, array: Any) -> int:
        """As tvm-ffi says."""
        return array.data_ptr()

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        return tuple(array.strides)

    def dtype(self, array: Any) -> str:
        """Both name them alike."""
        return str(array.dtype)

    def device(self, array: Any) -> tuple[int, int]:
        """As tvm-ffi says."""
        return (2 if array.device.type == "cuda" else 1, array.device.index)

    def read(self, array: Any) -> np.ndarray:
        """Read where it points."""
        return read_by_address(self, self.address(array), *self._layout(array), numpy_type(self.dtype(array)))

    def write(self, array: Any, values: np.ndarray) -> None:
        """Write where it points."""
        write_by_address(self, self.address(array), *self._layout(array), values)

    def tail(self, array: Any) -> np.ndarray:
        """Read where it points."""
        dtype = numpy_type(self.dtype(array))
        (size,), (stride,) = self.shape(array), self.strides(array)
        start = self.address(array) + (size - 4) * stride * dtype.itemsize
        return read_by_address(self, start, (4,), (stride,), dtype)

    def _layout(self, array: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shape = self.shape(array)
        return shape, self.strides(array) or compact_strides(shape)


def make(side: Side, driver: Driver) -> TvmFfi:
    """Give the consumer."""
    return TvmFfi(side, driver)
