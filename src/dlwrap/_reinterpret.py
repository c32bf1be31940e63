"""The same memory, read as other elements."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from dlwrap._dtypes import as_dtype

if TYPE_CHECKING:
    from dlwrap._owner import Array


def reinterpret(array: Array, dtype: object, shape: object) -> Array:
    """Read the bytes of a C-contiguous array as elements of another dtype and shape.

    Parameters
    ----------
    array : ndarray
        Any dtype without Python objects.
    dtype : dtype_like or None
        None keeps it.
    shape : int, tuple of int or None
        One of them may be -1; None is one dimension of all elements where ``dtype`` is given.

    Raises
    ------
    BufferError
        The memory is not contiguous, or has Python objects in it.
    TypeError, ValueError
        They are no dtype or shape, or the bytes do not fill them.
    """
    if not array.flags.c_contiguous:
        raise BufferError(
            f"cannot reinterpret strides {array.strides}: dtype= and shape= need C-contiguous memory; "
            "wrap numpy.ascontiguousarray(a)"
        )
    if array.dtype.hasobject:
        raise BufferError(f"cannot reinterpret dtype {array.dtype}: its elements are pointers to Python objects")
    kind = array.dtype if dtype is None else as_dtype(dtype)
    if kind.itemsize == 0 or kind.hasobject:
        raise ValueError(f"dtype must have elements of a fixed size, got {kind!r}")
    extents = _fill((-1,) if shape is None else extents_of(shape), array.nbytes, kind.itemsize)
    return array.reshape(-1).view(np.uint8).view(kind).reshape(extents)


def extents_of(shape: object) -> tuple[int, ...]:
    """Give a shape as a tuple of integers, whatever their signs.

    Raises
    ------
    TypeError
        It is neither an integer nor a tuple or list of integers.
    """
    try:
        return tuple(map(operator.index, shape)) if isinstance(shape, tuple | list) else (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"shape must be an integer or a tuple of integers, got {shape!r}") from None


def _fill(extents: tuple[int, ...], nbytes: int, itemsize: int) -> tuple[int, ...]:
    """Put in the extent that was left open; refuse what the bytes do not fill."""
    if min(extents, default=0) < -1 or extents.count(-1) > 1:
        raise ValueError(f"shape must have extents of at least 0, of which one may be -1, got {extents}")
    elements, rest = divmod(nbytes, itemsize)
    known = math.prod(size for size in extents if size >= 0)
    if rest == 0 and -1 in extents and known and elements % known == 0:
        return tuple(elements // known if size == -1 else size for size in extents)
    if rest == 0 and known == elements and -1 not in extents:
        return extents
    raise ValueError(
        f"cannot read {nbytes} bytes as shape {extents} of {itemsize}-byte elements: the bytes have to fill them; "
        "wrap a slice of the memory that does"
    )
