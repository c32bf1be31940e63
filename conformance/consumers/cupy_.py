"""CuPy: `cupy.from_dlpack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from conformance.cannot import UnavailableError
from conformance.consumers._consumer import Consumer
from conformance.dtypes import OF_ML_DTYPES

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class Cupy(Consumer):
    """On the GPU only."""

    lacks = dict.fromkeys(OF_ML_DTYPES, "CuPy's from_dlpack has no types of ml_dtypes")

    def take(self, offered: object) -> Any:
        """Import it."""
        return cupy.from_dlpack(offered)

    def address(self, array: Any) -> int:
        """As CuPy says."""
        return array.data.ptr

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        return tuple(stride // array.itemsize for stride in array.strides)

    def device(self, array: Any) -> tuple[int, int]:
        """As CuPy says."""
        return (2, array.device.id)

    def read(self, array: Any) -> np.ndarray:
        """Copy by a kernel, then to the host."""
        return array.copy().get()

    def write(self, array: Any, values: np.ndarray) -> None:
        """In place."""
        array[...] = cupy.asarray(np.ascontiguousarray(values))
        cupy.cuda.get_current_stream().synchronize()


def make(side: Side, driver: Driver) -> Cupy:
    """Give the consumer."""
    if not cupy.cuda.is_available():
        raise UnavailableError(f"cupy {cupy.__version__} sees no GPU")
    return Cupy(side, driver)
