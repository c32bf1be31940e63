"""The memory below an array: who owns it, how far it reaches, what it is, and a hold on it.

Reads addresses and the process's map only, never the memory itself. Imports nothing of dlwrap.
"""

from __future__ import annotations

import array as stdlib_array
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


@dataclass(slots=True)  # not frozen, which takes long to make
class Span:
    """Addresses in bytes, from `start` up to but not including `stop`."""

    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    def overlaps(self, other: Span) -> bool:
        """Whether a byte belongs to both."""
        return self.start < other.stop and other.start < self.stop

    def hull(self, other: Span) -> Span:
        """Return the smallest span that contains both."""
        return Span(min(self.start, other.start), max(self.stop, other.stop))


EMPTY = Span(0, 0)


@dataclass(slots=True, eq=False)
class Hold:
    """Keeps an array's memory mapped and in place for as long as somebody refers to it.

    Attributes
    ----------
    given : object
        What the user passed: a `SharedMemory` unmaps itself when it is collected.
    array : ndarray
        The view of it, which may keep a tensor of another DLPack producer.
    export : memoryview or None
        A live export of the owner, which makes `mmap.close` and `bytearray.append` raise `BufferError`. An
        `ndarray` over a buffer often keeps only a reference, and that allows both. None where the owner is an
        `ndarray`, or has no buffer protocol.
    """

    given: object
    array: Array
    export: memoryview | None


# The memory's own descriptor, because a subclass may show something else.
_interface = vars(np.ndarray)["__array_interface__"].__get__

# The object that numpy.lib.stride_tricks puts between a view and its array.
_StrideTricks: Any = type(np.lib.stride_tricks.as_strided(np.empty(1)).base)


def address(array: Array) -> int:
    """Return the address of the first element."""
    return int(_interface(array)["data"][0])


def extent(array: Array, pointer: int) -> Span:
    """Return the bytes between the lowest and the highest element, whatever the signs of the strides."""
    if array.size == 0:
        return EMPTY
    low = high = pointer
    for size, stride in zip(array.shape, array.strides, strict=True):
        reach = (size - 1) * stride
        low += min(reach, 0)
        high += max(reach, 0)
    return Span(low, high + array.itemsize)


def find_owner(array: Array, given: object, span: Span) -> tuple[Hold, Array, Span, bool, bool]:
    """Find the owner of an array's memory and take hold of it.

    Parameters
    ----------
    array : ndarray
        The view.
    given : object
        The object it was made from, or the array itself.
    span : Span
        The bytes that it touches.

    Returns
    -------
    hold, owner, owner_span, writable_memory, file_backed
        As in `HostLayout`.

    Raises
    ------
    ValueError
        The memory was given back already: a closed mmap, a released memoryview.
    """
    base, owner_span = array, _with(span, _storage_extent(given))
    export: memoryview | None = None
    owner: Any = array
    link: Any = array.base
    while link is not None:
        owner, reach = link, EMPTY
        if isinstance(link, np.ndarray):
            base = link
            reach = extent(base, address(base))
            link = link.base
        elif isinstance(link, _StrideTricks):
            link = link.base
        else:
            exported = _export(link)
            if exported is not None:
                export, reach = exported, _export_extent(exported)
            else:
                reach = _storage_extent(link)
            link = link.obj if isinstance(link, memoryview) else None
        owner_span = _with(owner_span, reach)

    hold = Hold(given, array, export)

    owned = base.flags.owndata
    on_heap = owned if owner is base else isinstance(owner, (bytes, bytearray, stdlib_array.array))
    writable = array.flags.writeable
    if on_heap or span == EMPTY or (export is None and writable):
        return hold, base, owner_span, True, False
    pages_writable, file_backed = _mapping(span, writable)
    return hold, base, span if file_backed else owner_span, pages_writable, file_backed


def _with(span: Span, reach: Span) -> Span:
    return span.hull(reach) if reach.overlaps(span) else span


def _export(owner: Any) -> memoryview | None:
    try:
        return memoryview(owner)
    except (TypeError, BufferError):
        return None
    except ValueError as error:
        raise ValueError(
            f"cannot wrap an array over a released {type(owner).__name__} ({error}): its memory may be gone; "
            "wrap before release() or close()"
        ) from error


def _export_extent(export: memoryview) -> Span:
    # Without understanding its format NumPy reads a buffer only if it is C-contiguous.
    if not export.c_contiguous or export.nbytes == 0:
        return EMPTY
    start = address(np.frombuffer(export, dtype=np.uint8))
    return Span(start, start + export.nbytes)


def storage_of(obj: Any) -> Any:
    """Return the storage of a torch tensor, None of anything else.

    The tensor alone, or what DLPack keeps of it, does not keep the memory: ``t.data = x`` gives it another storage.
    """
    torch = sys.modules.get("torch")
    return None if torch is None or not isinstance(obj, torch.Tensor) else obj.untyped_storage()


def _storage_extent(owner: Any) -> Span:
    storage = storage_of(owner)
    return EMPTY if storage is None else Span(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


# Files that are memory: they have no disk behind them, and as a whole they are page-locked like any other.
_MEMORY_FILES = (b"/dev/shm/", b"/dev/zero", b"/dev/hugepages/", b"/memfd:", b"/anon_hugepage", b"/SYSV")


def _mapping(span: Span, writable: bool) -> tuple[bool, bool]:
    """Return whether the pages of a span are writable, and whether there is a file on a disk behind them.

    Where ``/proc`` cannot be read the answer is the careful one: what `writable` says, and a file.
    """
    pages_writable, file_backed = True, False
    try:
        with open("/proc/self/maps", "rb") as maps:
            for line in maps:
                start, _, rest = line.partition(b"-")
                if int(start, 16) >= span.stop:
                    break
                stop, permissions, _offset, _device, _inode, *path = rest.split(maxsplit=5)
                if int(stop, 16) > span.start:
                    pages_writable &= b"w" in permissions
                    file_backed |= bool(path) and _is_file(path[0])
    except OSError:
        return writable, True
    return pages_writable, file_backed


def _is_file(path: bytes) -> bool:
    return path.startswith(b"/") and not path.startswith(_MEMORY_FILES)
