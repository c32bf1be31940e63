"""Host memory -> what can be exported of it: pointer, shape, strides, DLPack type, owner; refuses the rest.

Needs NumPy, and the native part to read its common arrays; never touches the memory, and has no side effect but the
hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlwrap import _native
from dlwrap._dtypes import DType, dlpack_type, plain_dtypes
from dlwrap._owner import EMPTY, Span, address, extent, find_owner
from dlwrap._reinterpret import reinterpret
from dlwrap._sources import open_source

if TYPE_CHECKING:
    from dlwrap._owner import Array

__all__ = ["DType", "HostLayout", "Span", "check_unmoved", "describe"]


class HostLayout(_native.Layout):
    """A host array as DLPack sees it, and the memory it lies in; never changed.

    Attributes
    ----------
    array : ndarray
        The array as given, or a NumPy view of the buffer given.
    pointer, stop : int
        Address of the first element, and behind the highest; 0 if there is none.
    shape : tuple of int
        Elements along each dimension.
    strides : tuple of int
        In elements. A dimension of fewer than two elements, and every dimension of an array without
        elements, has the stride that it would have in a C-contiguous array.
    dtype : DType
        DLPack's name of the element type.
    itemsize, nbytes : int
        Bytes of one element and of all of them; repeated elements of a broadcast array count each time.
    readonly : bool
        Whether NumPy refuses to write to the array.
    owner_start, owner_stop : int
        The memory of the object that owns the data, as far as it is known; contains the array's own bytes, and equals
        them where the memory is a mapped file.
    owner : ndarray
        The last array of the base chain, or the array itself.
    owner_pointer, owner_nbytes : int
        Address of its first element, and its bytes.
    writable_memory : bool
        False only where a write would fault: the pages are mapped read-only.
    file_backed : bool
        Whether the memory is a mapped file on a disk; False for shared memory.
    hold : object
        Keeps the memory mapped and in place; drop the layout to let go.
    """

    __slots__ = ()

    @property
    def span(self) -> Span:
        """From the first byte of the lowest to the last byte of the highest element."""
        return Span(self.pointer, self.stop)

    @property
    def owner_span(self) -> Span:
        """From `owner_start` to `owner_stop`."""
        return Span(self.owner_start, self.owner_stop)

    def __repr__(self) -> str:
        return f"<HostLayout shape={self.shape} strides={self.strides} dtype={self.dtype} pointer={self.pointer:#x}>"


def describe(obj: object, dtype: object = None, shape: object = None) -> HostLayout:
    """Describe what has host memory, see `open_source`, and take hold of it.

    With a ``dtype`` or a ``shape`` its bytes are read as such elements, see `reinterpret`.

    Raises
    ------
    BufferError
        The array cannot be exported through DLPack; the message says what can.
    TypeError
        The object has no host memory to share.
    ValueError
        The object's memory was given back already, or is not what the dtype and shape take.
    """
    if dtype is None and shape is None:
        layout: HostLayout | None = _native.read_array(obj)
        if layout is not None:
            return layout
    array, given = open_source(obj)
    _refuse_mask(array)
    if dtype is not None or shape is not None:
        array = reinterpret(array, dtype, shape)
    return _look_closely(array, given)


def _refuse_mask(array: Array) -> None:
    # The exact type first: numpy.ma is imported when it is first asked for.
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise BufferError(f"cannot export a {type(array).__name__}: DLPack has no masks; wrap a.data or a.filled()")


def _look_closely(array: Array, given: object) -> HostLayout:
    dtype = dlpack_type(array.dtype)
    shape, itemsize, nbytes = array.shape, array.itemsize, array.nbytes
    strides = _compact_strides(shape)
    if nbytes == 0:
        pointer, span = 0, EMPTY
    else:
        pointer = address(array)
        if array.flags.c_contiguous:
            span = Span(pointer, pointer + nbytes)
        else:
            strides = _element_strides(array, strides)
            span = extent(array, pointer)
        _check_alignment(array, pointer)
    hold, owner, owner_span, writable_memory, file_backed = find_owner(array, given, span)
    return HostLayout(
        array,
        shape,
        strides,
        dtype,
        itemsize,
        nbytes,
        not array.flags.writeable,
        pointer,
        span.stop,
        owner_span.start,
        owner_span.stop,
        owner,
        pointer if owner is array else address(owner),
        owner.nbytes,
        writable_memory,
        file_backed,
        hold,
    )


def check_unmoved(layout: HostLayout) -> None:
    """Check that the array and its owner are where, and as long as, they were when they were described.

    Raises
    ------
    BufferError
        One of them was moved or resized in place, so that the pointer may dangle.
    """
    for array, pointer, nbytes in (
        (layout.array, layout.pointer, layout.nbytes),
        (layout.owner, layout.owner_pointer, layout.owner_nbytes),
    ):
        if array.nbytes != nbytes or (nbytes and address(array) != pointer):
            raise BufferError(
                f"cannot export memory that has moved: {nbytes} bytes at {pointer:#x} are now {array.nbytes} "
                f"bytes at {address(array):#x}, as after ndarray.resize(refcheck=False); wrap the array again"
            )


_probe = np.zeros((3, 5), np.int16)[1:, ::2]
_native.learn_arrays(
    HostLayout,
    _probe,
    address(_probe),
    _probe.shape,
    _probe.strides,
    _probe.base,
    _probe.dtype,
    _probe.flags.num,
    plain_dtypes(),
)


def _compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _element_strides(array: Array, compact: tuple[int, ...]) -> tuple[int, ...]:
    """Return NumPy's strides in elements, and the compact ones where they are never used."""
    itemsize, cure = array.itemsize, "wrap numpy.ascontiguousarray(a)"
    used = [stride for size, stride in zip(array.shape, array.strides, strict=True) if size > 1]
    if min(used) < 0:
        raise BufferError(f"cannot export strides {array.strides}: torch aborts on negative strides; {cure}")
    if any(stride % itemsize for stride in used):
        raise BufferError(f"cannot export strides {array.strides}: DLPack counts elements of {itemsize} bytes; {cure}")
    return tuple(
        stride // itemsize if size > 1 else step
        for size, stride, step in zip(array.shape, array.strides, compact, strict=True)
    )


def _check_alignment(array: Array, pointer: int) -> None:
    # By the size, not by NumPy's smaller alignment of complex types: a GPU loads an element whole, or faults.
    if pointer % array.itemsize:
        raise BufferError(
            f"cannot export address {pointer:#x}: a GPU faults on misaligned {array.itemsize}-byte elements; "
            "wrap a.copy()"
        )
