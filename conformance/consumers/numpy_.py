"""NumPy: `numpy.from_dlpack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.consumers._consumer import Consumer
from conformance.dtypes import OF_ML_DTYPES
from conformance.reference import CPU

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class NumPy(Consumer):
    """From NumPy 2.1 on it asks for the view of the CPU by itself."""

    lacks = dict.fromkeys(OF_ML_DTYPES, "NumPy's from_dlpack knows its own element types only")
    asks_for_host = np.lib.NumpyVersion(np.__version__) >= "2.1.0"

    def take(self, offered: object) -> np.ndarray:
        """Import it."""
        on_host = offered.__dlpack_device__()[0] == CPU  # type: ignore[attr-defined]
        return np.from_dlpack(offered) if on_host else np.from_dlpack(offered, device="cpu")

    def address(self, array: np.ndarray) -> int:
        """As NumPy says."""
        return array.ctypes.data

    def strides(self, array: np.ndarray) -> tuple[int, ...]:
        """In elements."""
        return tuple(stride // array.itemsize for stride in array.strides)

    def device(self, array: Any) -> tuple[int, int]:  # noqa: ARG002
        """NumPy has one."""
        return (1, 0)

    def readonly(self, array: np.ndarray) -> bool:
        """As NumPy says."""
        return not array.flags.writeable

    def read(self, array: np.ndarray) -> np.ndarray:
        """Copy."""
        return array.copy()

    def write(self, array: np.ndarray, values: np.ndarray) -> None:
        """In place."""
        array[...] = values


def make(side: Side, driver: Driver) -> NumPy:
    """Give the consumer."""
    return NumPy(side, driver)
