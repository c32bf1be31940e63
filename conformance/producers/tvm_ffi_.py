"""apache-tvm-ffi: a tensor over the host array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tvm_ffi

from conformance.cannot import CannotBeAskedError
from conformance.dtypes import OF_ML_DTYPES
from conformance.producers._blocks import check_native
from conformance.producers._subject import Producer, Subject
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver


def make(driver: Driver) -> Producer:  # noqa: ARG001 -- it needs none
    """Give the producer."""

    def over(array: np.ndarray) -> Subject:
        check_native(array, "tvm-ffi")
        if array.dtype.kind == "c":
            raise CannotBeAskedError("tvm-ffi has no complex types")
        if array.dtype.name in OF_ML_DTYPES:
            raise CannotBeAskedError(f"no host array of {array.dtype.name} can be handed to tvm-ffi")
        if not array.flags.writeable:
            raise CannotBeAskedError("tvm-ffi has no read-only tensors")
        if any(stride % array.itemsize for stride in array.strides):
            raise CannotBeAskedError(f"tvm-ffi has no strides {array.strides} of {array.itemsize}-byte elements")
        return Subject(tvm_ffi.from_dlpack(array), array)

    return Producer("tvm-ffi", Side.CPU, over, ("apache-tvm-ffi",))
