"""Arrays whose memory is watched by the simulated driver; imports nothing of the driver but its library."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import numpy.typing as npt


class HostMemory:
    """Memory of its own mapping, unmapped when the last array over it dies.

    Freeing it while it is page-locked, or while simulated work on it is pending, aborts the process.
    """

    def __init__(self, library: ctypes.CDLL, nbytes: int, offset: int) -> None:
        self._mapped = max(nbytes + offset, 1)
        self._count = ctypes.c_size_t()
        self._start: int | None = library.dlwrap_sim_host_allocate(self._mapped, ctypes.byref(self._count))
        if self._start is None:
            raise MemoryError(f"cannot map {self._mapped} bytes")
        self._free = library.dlwrap_sim_host_free
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self._start + offset, False),
        }

    def __del__(self) -> None:
        if getattr(self, "_start", None) is not None:
            self._free(self._start, self._mapped, self._count)


def host_array(
    library: ctypes.CDLL,
    shape: int | tuple[int, ...],
    dtype: npt.DTypeLike,
    fill: Any,
    offset: int,
) -> npt.NDArray[Any]:
    """Make an array over watched memory that begins `offset` bytes after a page boundary."""
    itemtype = np.dtype(dtype)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = HostMemory(library, math.prod(extents) * itemtype.itemsize, offset)
    array: npt.NDArray[Any] = np.asarray(memory).view(itemtype).reshape(extents)
    array[...] = fill
    return array
