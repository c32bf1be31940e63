"""`empty` and `zeros`: NumPy arrays whose memory is page-locked from the first, for as long as a view of it lives.

An array has a `Birth` as its base, which has the `Pin`; the pin's lease has the memory. So the memory outlives the
array until the lifetime manager has had it unregistered, and nothing waits where the array is dropped.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dlwrap import _native
from dlwrap._buffer import pin
from dlwrap._dtypes import as_dtype, dlpack_type, typestr
from dlwrap._lifetime import manager
from dlwrap._reinterpret import extents_of
from dlwrap._support import choose_device

if TYPE_CHECKING:
    import numpy.typing as npt

    from dlwrap._buffer import Pin
    from dlwrap._devices import DeviceLike

_HUGE_FROM = 4 * 2**20  # as NumPy does: below, half of a huge page might be for nothing
_ORDERS = ("C", "F")
_LARGEST = 2**63 - 1


class Birth:
    """The base of an array over memory that was made here: shows NumPy the memory, and keeps it or its pin.

    The native part knows this type: wraps of arrays over it need no closer look.
    """

    __slots__ = ("__array_interface__", "_kept")

    def __init__(self, kept: Pin | mmap.mmap, interface: dict[str, Any]) -> None:
        self._kept = kept
        self.__array_interface__ = interface


_native.learn_births(Birth)


def empty(
    shape: int | tuple[int, ...],
    dtype: npt.DTypeLike = float,
    *,
    order: Literal["C", "F"] = "C",
    device: DeviceLike | None = None,
) -> npt.NDArray[Any]:
    """Make a NumPy array that is page-locked from the first, so that wraps of it or of its slices cost next to nothing.

    Its memory begins on a page of its own. It stays page-locked as long as the array, a view of it or anything that
    was made of a wrap lives, and is unregistered and freed then, after it has lingered as `configure` says. Where the
    device reads pageable memory nothing is locked. Copies, and what NumPy computes of it, are ordinary arrays.

    Parameters
    ----------
    shape : int or tuple of int
        Elements along each dimension.
    dtype : dtype_like
        Any that `wrap` takes, also of ml_dtypes, torch and JAX.
    order : {"C", "F"}
        Whether the last or the first dimension is contiguous.
    device : int, str or device object, optional
        As for `wrap`.

    Returns
    -------
    ndarray
        Writable, with undefined contents.

    Raises
    ------
    BufferError
        No GPU framework takes such elements.
    CudaError
        No driver, no device, or the driver refused to page-lock the memory.
    MemoryError
        There is not so much memory.
    TypeError, ValueError
        An argument is wrong.
    RuntimeError
        In a forked child, or while the interpreter exits.
    """
    kind = _check_dtype(dtype)
    extents = _check_shape(shape)
    if order not in _ORDERS:
        raise ValueError(f"order must be 'C' or 'F', got {order!r}")
    nbytes = math.prod(extents) * kind.itemsize
    if nbytes > _LARGEST:
        raise ValueError(f"shape {extents} of {kind.itemsize}-byte elements is larger than the address space")
    manager().check_usable("page-lock memory")
    ordinal = choose_device(device)
    if nbytes == 0:
        return np.empty(extents, kind, order)
    memory = _map(nbytes)
    data = (np.frombuffer(memory, np.uint8).ctypes.data, False)
    raw = np.asarray(Birth(memory, {"version": 3, "data": data, "shape": (nbytes,), "typestr": "|u1"}))
    pinned = pin(raw, device=ordinal)
    interface = {
        "version": 3,
        "data": data,
        "shape": extents,
        "strides": _strides(extents, kind.itemsize, order),
        "typestr": typestr(kind),
    }
    array = np.asarray(Birth(pinned, interface))
    return array if array.dtype == kind else array.view(kind)


def zeros(
    shape: int | tuple[int, ...],
    dtype: npt.DTypeLike = float,
    *,
    order: Literal["C", "F"] = "C",
    device: DeviceLike | None = None,
) -> npt.NDArray[Any]:
    """Make an array of zeros that is page-locked from the first; everything else as `empty`."""
    return empty(shape, dtype, order=order, device=device)  # the kernel gives new pages as zeros


def _check_dtype(dtype: object) -> np.dtype[Any]:
    kind = as_dtype(dtype)
    try:
        dlpack_type(kind)
    except BufferError as error:
        raise BufferError(
            f"cannot make an array of dtype {kind} for GPU frameworks, none of which takes it; make one of bytes, "
            "dtype=numpy.uint8, and view it, or use numpy.empty"
        ) from error
    return kind


def _check_shape(shape: object) -> tuple[int, ...]:
    extents = extents_of(shape)
    if min(extents, default=0) < 0:
        raise ValueError(f"shape must have extents of at least 0, got {extents}")
    return extents


def _map(nbytes: int) -> mmap.mmap:
    """Map fresh memory, as private to the process as any array's."""
    try:
        mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot map {nbytes} bytes: {error.strerror}") from error
    if nbytes >= _HUGE_FROM:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _strides(extents: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...] | None:
    if order == "C":
        return None
    strides, step = [], itemsize
    for size in extents:
        strides.append(step)
        step *= size
    return tuple(strides)


for _public in (empty, zeros):
    _public.__module__ = "dlwrap"
