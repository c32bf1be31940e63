"""numba-cuda: `numba.cuda.as_cuda_array`, by the CUDA array interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba.cuda
import numpy as np

from conformance.cannot import CannotBeAskedError
from conformance.consumers._consumer import Consumer
from conformance.dtypes import OF_ML_DTYPES

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class NumbaCuda(Consumer):
    """It speaks no DLPack, and copies compact arrays only."""

    lacks = dict.fromkeys(OF_ML_DTYPES, "the CUDA array interface has no name for it")

    def take(self, offered: object) -> Any:
        """Import it."""
        if not hasattr(offered, "__cuda_array_interface__"):
            raise CannotBeAskedError("numba-cuda reads the CUDA array interface, which this producer does not have")
        return numba.cuda.as_cuda_array(offered)

    def address(self, array: Any) -> int:
        """As numba says."""
        return array.device_ctypes_pointer.value or 0

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        return tuple(stride // array.dtype.itemsize for stride in array.strides)

    def read(self, array: Any) -> np.ndarray:
        """Copy."""
        return array.copy_to_host()

    def write(self, array: Any, values: np.ndarray) -> None:
        """In place, as far as numba copies."""
        if not (array.is_c_contiguous() or array.is_f_contiguous()):
            raise CannotBeAskedError("numba-cuda copies to compact arrays only")
        array.copy_to_device(np.ascontiguousarray(values))
        numba.cuda.synchronize()


def make(side: Side, driver: Driver) -> NumbaCuda:
    """Give the consumer."""
    numba.cuda.current_context()
    return NumbaCuda(side, driver)
