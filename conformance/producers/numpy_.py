"""NumPy: the array itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.cannot import CannotBeAskedError
from conformance.dtypes import OF_ML_DTYPES
from conformance.producers._subject import Producer, Subject
from conformance.results import Side

if TYPE_CHECKING:
    import numpy as np

    from conformance.drivers._calls import Driver


def make(driver: Driver) -> Producer:  # noqa: ARG001 -- it needs none
    """Give the producer."""

    def offer(array: np.ndarray) -> Subject:
        if array.dtype.name in OF_ML_DTYPES:
            raise CannotBeAskedError(f"{array.dtype.name} is a type of ml_dtypes, which NumPy does not export")
        return Subject(array, array)

    return Producer("numpy", Side.CPU, offer, ("numpy",))
