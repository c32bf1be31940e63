"""What DLPack's C exchange API asks for besides exports: new tensors, and Python objects for tensors.

A function written in C that is called with `HostWrappedBuffer`s allocates its results like its arguments, and gives
back what they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlwrap import _native
from dlwrap._buffer import HostWrappedBuffer, wrap
from dlwrap._dtypes import DType, numpy_dtype
from dlwrap._lifetime import manager
from dlwrap._streams import find_work_stream

_CPU, _CUDA = 1, 2


def allocate(device: tuple[int, int], dtype: tuple[int, int, int], shape: tuple[int, ...]) -> HostWrappedBuffer:
    """Wrap a new host array, whose contents are undefined.

    Raises
    ------
    BufferError
        It is wanted on another kind of device than CUDA, or of a type that NumPy lacks.
    """
    if device[0] != _CUDA:
        raise BufferError(f"dlwrap allocates for DLPack's device type {_CUDA}, CUDA, got {device[0]}")
    return wrap(np.empty(shape, numpy_dtype(DType(*dtype))), device=device[1])


def import_tensor(  # noqa: PLR0917 -- called from C
    kept: object,
    device: tuple[int, int],
    dtype: tuple[int, int, int],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    pointer: int,
    readonly: bool,
) -> HostWrappedBuffer:
    """Wrap the host memory of a tensor, which lives as long as ``kept``.

    Raises
    ------
    BufferError
        It is not host memory, as far as dlwrap knows, or cannot be wrapped.
    """
    kind = numpy_dtype(DType(*dtype))
    address: int | None = pointer
    if device[0] == _CUDA:
        extent = kind.itemsize * (math.prod(shape) if strides is None else _extent(shape, strides))
        address = manager().pins.find_host_address(pointer, extent, device[1])
    if device[0] not in {_CPU, _CUDA} or address is None:
        raise BufferError(
            f"cannot make a HostWrappedBuffer of a tensor on device {device}: it is not in host memory that dlwrap has "
            "page-locked; import it with torch.from_dlpack or cupy.from_dlpack"
        )
    array = np.asarray(_Memory(kept, kind, shape, strides, address, readonly=readonly)).view(kind)
    return wrap(array, device=device[1] if device[0] == _CUDA else None)


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Count the elements from the first to the last, gaps included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


class _Memory:
    """Shows NumPy some memory, and keeps what keeps it."""

    def __init__(
        self,
        kept: object,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        address: int,
        *,
        readonly: bool,
    ) -> None:
        self._kept = kept
        self.__array_interface__ = {
            "version": 3,
            "data": (address, readonly),
            "shape": shape,
            "strides": None if strides is None else tuple(stride * dtype.itemsize for stride in strides),
            # ml_dtypes have no typestr: bytes, which are viewed as what they are.
            "typestr": dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}",
        }


_native.serve_exchange(allocate, import_tensor, find_work_stream)
