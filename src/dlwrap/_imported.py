"""A tensor of another DLPack producer, as a NumPy array that keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlwrap import _native
from dlwrap._dtypes import DType, numpy_dtype, typestr
from dlwrap._owner import storage_of

if TYPE_CHECKING:
    import numpy.typing as npt

NEWEST = (1, 3)  # the version of DLPack that producers are asked for


class Tensor(NamedTuple):
    """What DLPack says of a tensor.

    Attributes
    ----------
    kept : object
        Calls the producer's deleter when it is dropped.
    device : (int, int)
        DLPack's device type, and the ordinal.
    dtype : (int, int, int)
        Code, bits and lanes.
    shape : tuple of int
        Elements along each dimension.
    strides : tuple of int or None
        In elements; None for a C-contiguous tensor.
    address : int
        Of the first element, with ``byte_offset``.
    readonly : bool
        What its flags say; True where it has none.
    """

    kept: object
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    address: int
    readonly: bool


def take_tensor(capsule: object, producer: object) -> Tensor:
    """Consume a capsule of a producer, and keep what it alone would not keep: the storage of a torch tensor.

    Raises
    ------
    BufferError
        It is none, was used already, or is of a later major version; its producer still owns the tensor.
    """
    tensor, storage = Tensor(*_native.take_tensor(capsule)), storage_of(producer)
    return tensor if storage is None else tensor._replace(kept=(tensor.kept, storage))


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """Give the array over a tensor in host memory; the last view of it drops what keeps the tensor.

    Raises
    ------
    BufferError
        NumPy has no dtype for it.
    """
    dtype = numpy_dtype(DType(*tensor.dtype))
    if 0 in tensor.shape:
        empty = np.empty(tensor.shape, dtype)
        empty.flags.writeable = not tensor.readonly
        return empty
    return np.asarray(_Memory(tensor, dtype)).view(dtype)


class _Memory:
    """Shows NumPy the memory of a tensor, and keeps the tensor."""

    def __init__(self, tensor: Tensor, dtype: np.dtype[Any]) -> None:
        self._kept = tensor.kept
        strides = tensor.strides
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.address, tensor.readonly),
            "shape": tensor.shape,
            "strides": None if strides is None else tuple(stride * dtype.itemsize for stride in strides),
            "typestr": typestr(dtype),
        }
