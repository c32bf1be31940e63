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
from dlwrap._imported import Tensor, as_array
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


def import_tensor(*parts: Any) -> HostWrappedBuffer:
    """Wrap the host memory of a `Tensor`, whose parts the native part tells.

    Raises
    ------
    BufferError
        It is not host memory, as far as dlwrap knows, or cannot be wrapped.
    """
    tensor = Tensor(*parts)
    kind, ordinal = tensor.device
    address: int | None = tensor.address
    if kind == _CUDA:
        itemsize = numpy_dtype(DType(*tensor.dtype)).itemsize
        address = manager().pins.find_host_address(tensor.address, itemsize * _extent(tensor), ordinal)
    if kind not in {_CPU, _CUDA} or address is None:
        raise BufferError(
            f"cannot make a HostWrappedBuffer of a tensor on device {tensor.device}: it is not in host memory that "
            "dlwrap has page-locked; import it with torch.from_dlpack or cupy.from_dlpack"
        )
    return wrap(as_array(tensor._replace(address=address)), device=ordinal if kind == _CUDA else None)


def _extent(tensor: Tensor) -> int:
    """Count the elements from the first to the last, gaps included."""
    if tensor.strides is None or 0 in tensor.shape:
        return math.prod(tensor.shape)
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))


_native.serve_exchange(allocate, import_tensor, find_work_stream)
