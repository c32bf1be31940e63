"""cuda.core: a `Buffer` over the host array, which it keeps; bytes in one dimension are all that it exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from cuda.core import Buffer

from conformance.cannot import CannotBeAskedError
from conformance.memory import address
from conformance.producers._subject import Producer, Subject
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver


def make(driver: Driver) -> Producer:  # noqa: ARG001 -- cuda.core finds its own
    """Give the producer."""

    def over(array: np.ndarray) -> Subject:
        if array.dtype != np.int8:
            raise CannotBeAskedError(f"cuda.core's buffers are exported as int8 alone, not as {array.dtype}")
        if array.ndim != 1 or not array.flags.c_contiguous:
            raise CannotBeAskedError("cuda.core's buffers have one dimension and no strides")
        if not array.flags.writeable:
            raise CannotBeAskedError("cuda.core has no read-only buffers over host memory")
        return Subject(Buffer.from_handle(address(array), array.nbytes, owner=array), array)

    return Producer("cuda.core", Side.CPU, over, ("cuda-core",))
