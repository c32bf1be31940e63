"""CuPy: an array in device memory with the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from conformance.cannot import CannotBeAskedError, UnavailableError
from conformance.producers._blocks import block_of, check_native
from conformance.producers._subject import Producer, Subject
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver


class OnGpu(Subject):
    """An array of CuPy's; the end of its memory cannot be watched."""

    def __init__(self, array: Any) -> None:
        self.offered = array

    @property
    def array(self) -> np.ndarray:
        """There is none."""
        raise CannotBeAskedError("CuPy's array lies in device memory, not in the host array")

    def address(self, side: Side) -> int:  # noqa: ARG002
        """As CuPy says."""
        return self.offered.data.ptr

    def read(self) -> np.ndarray:
        """Copy from the GPU."""
        return self.offered.copy().get()

    def write(self, values: np.ndarray) -> None:
        """Copy to the GPU."""
        self.offered[...] = cupy.asarray(np.ascontiguousarray(values))
        cupy.cuda.get_current_stream().synchronize()

    def drop(self) -> None:
        """Let go of the array."""
        self.offered = None

    def alive(self) -> bool:
        """Nobody can tell."""
        raise CannotBeAskedError("the end of CuPy's device memory cannot be watched")


def make(driver: Driver) -> Producer:  # noqa: ARG001 -- CuPy finds its own
    """Give the producer."""
    if not cupy.cuda.is_available():
        raise UnavailableError(f"cupy {cupy.__version__} sees no GPU")

    def upload(array: np.ndarray) -> OnGpu:
        check_native(array, "CuPy")
        if not array.flags.writeable:
            raise CannotBeAskedError("CuPy has no read-only arrays")
        try:
            cupy.empty(1, array.dtype)
        except (TypeError, ValueError) as error:
            raise CannotBeAskedError(f"CuPy has no {array.dtype.name}: {error}") from error
        block, strides = block_of(array)
        flat = cupy.asarray(block) if block.size else cupy.empty(1, array.dtype).view(cupy.uint8)
        steps = tuple(stride * array.itemsize for stride in strides)
        return OnGpu(cupy.ndarray(array.shape, array.dtype, flat.data, steps))

    packages = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
    return Producer("cupy", Side.CUDA, upload, packages, in_place=False)
