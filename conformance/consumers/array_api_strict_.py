"""array-api-strict: the array API standard to the letter, over NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import array_api_strict as strict
import numpy as np

from conformance.consumers._consumer import Consumer
from conformance.dtypes import OF_ML_DTYPES

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class ArrayApiStrict(Consumer):
    """Strict about what an array can be asked; it exports what it imported, which tells where that is."""

    lacks = {
        **dict.fromkeys(OF_ML_DTYPES, "array-api-strict has the types of the array API standard only"),
        "float16": "the array API standard has no float16",
    }

    def take(self, offered: object) -> Any:
        """Import it."""
        return strict.from_dlpack(offered)

    def address(self, array: Any) -> int:
        """As its export says."""
        return self._inside(array).ctypes.data

    def dtype(self, array: Any) -> str:
        """Both name them alike."""
        return str(self._inside(array).dtype)

    def device(self, array: Any) -> tuple[int, int]:
        """As its export says."""
        return tuple(map(int, array.__dlpack_device__()))  # type: ignore[return-value]

    def read(self, array: Any) -> np.ndarray:
        """By its export."""
        return self._inside(array).copy()

    def write(self, array: Any, values: np.ndarray) -> None:
        """In place."""
        array[...] = strict.asarray(np.ascontiguousarray(values))

    def readonly(self, array: Any) -> bool | None:
        """Try to write, since it does not say."""
        try:
            array[...] = strict.asarray(self._inside(array).copy())
        except (ValueError, TypeError, BufferError):
            return True
        return False

    def _inside(self, array: Any) -> np.ndarray:
        return np.from_dlpack(array)


def make(side: Side, driver: Driver) -> ArrayApiStrict:
    """Give the consumer."""
    return ArrayApiStrict(side, driver)
