"""cuda.core: `StridedMemoryView.from_dlpack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.core import Device
from cuda.core.utils import StridedMemoryView

from conformance.consumers._consumer import Consumer, compact_strides, read_by_address, write_by_address
from conformance.dtypes import FLOAT8

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class CudaCore(Consumer):
    """A view that shows where the elements lie."""

    lacks = dict.fromkeys(FLOAT8, "cuda.core's StridedMemoryView has no float8")

    def take(self, offered: object) -> Any:
        """Import it, on no particular stream."""
        return StridedMemoryView.from_dlpack(offered, stream_ptr=-1)

    def address(self, array: Any) -> int:
        """As the view says."""
        return array.ptr

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements; None means compact."""
        return compact_strides(self.shape(array)) if array.strides is None else tuple(array.strides)

    def device(self, array: Any) -> tuple[int, int]:
        """As the view says."""
        return (2 if array.is_device_accessible else 1, array.device_id)

    def readonly(self, array: Any) -> bool:
        """As the view says."""
        return array.readonly

    def read(self, array: Any) -> np.ndarray:
        """Read where it points."""
        return read_by_address(self, array.ptr, self.shape(array), self.strides(array), np.dtype(array.dtype))

    def write(self, array: Any, values: np.ndarray) -> None:
        """Write where it points."""
        write_by_address(self, array.ptr, self.shape(array), self.strides(array), values)

    def tail(self, array: Any) -> np.ndarray:
        """Read where it points."""
        dtype = np.dtype(array.dtype)
        (size,), (stride,) = self.shape(array), self.strides(array)
        return read_by_address(self, array.ptr + (size - 4) * stride * dtype.itemsize, (4,), (stride,), dtype)


def make(side: Side, driver: Driver) -> CudaCore:
    """Give the consumer."""
    Device(0).set_current()
    return CudaCore(side, driver)
