"""A tensor of another DLPack producer, as a NumPy array that keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlwrap import _native
from dlwrap._dtypes import DType, numpy_dtype

if TYPE_CHECKING:
    import numpy.typing as npt


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

    def keeping(self, more: object) -> Tensor:
        """Keep another object as well."""
        return self if more is None else self._replace(kept=(self.kept, more))


def take_tensor(capsule: object) -> Tensor:
    """Consume a capsule.

    Raises
    ------
    BufferError
        It is none, was used already, or is of a later major version; its producer still owns the tensor.
    """
    return Tensor(*_native.take_tensor(capsule))


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
            # ml_dtypes have no typestr: bytes, which are viewed as what they are.
            "typestr": dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}",
        }
