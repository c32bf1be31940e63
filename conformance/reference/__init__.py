"""The strict reference consumer in C, as Python calls it."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import dlwrap
from conformance.building import build
from conformance.cannot import CannotBeAskedError

LEGACY, VERSIONED, VIEW = 0, 1, 2
CPU, CUDA = 1, 2
READ_ONLY, IS_COPIED, SUBBYTE_PADDED = 1, 2, 4
MOST_DIMENSIONS = 64
_MISSING = -99

_SOURCE = Path(__file__).with_name("reference.c")
_HEADER = Path(dlwrap.__file__).with_name("_dlpack.h")  # tests/test_abi.py compares it with the published one


class Seen(ctypes.Structure):
    """Every field of a tensor, as it was found; as in reference.c."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("managed", ctypes.c_void_p),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("destructor", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("lanes", ctypes.c_int32),
        ("has_shape", ctypes.c_int32),
        ("has_strides", ctypes.c_int32),
        ("_shape", ctypes.c_int64 * MOST_DIMENSIONS),
        ("_strides", ctypes.c_int64 * MOST_DIMENSIONS),
        ("byte_offset", ctypes.c_uint64),
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return tuple(self._shape[: self.ndim])

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(self._strides[: self.ndim])

    @property
    def device(self) -> tuple[int, int]:
        """Type and number."""
        return (self.device_type, self.device_id)

    @property
    def dtype(self) -> tuple[int, int, int]:
        """Code, bits and lanes."""
        return (self.code, self.bits, self.lanes)

    @property
    def first(self) -> int:
        """The address of the first element."""
        return (self.data or 0) + self.byte_offset


class Table(ctypes.Structure):
    """DLPack's exchange table, as it was found; as in reference.c."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older_tables", ctypes.c_int32),
        ("allocator", ctypes.c_int32),
        ("from_py_object", ctypes.c_int32),
        ("to_py_object", ctypes.c_int32),
        ("dltensor_from_py_object", ctypes.c_int32),
        ("current_work_stream", ctypes.c_int32),
    )


class Told(ctypes.Structure):
    """The errors that an allocator told; as in reference.c."""

    _fields_ = (("errors", ctypes.c_int32), ("kind", ctypes.c_char * 64), ("message", ctypes.c_char * 256))


class Library:
    """The compiled consumer: `held` functions hold the interpreter's lock, `free` ones do not."""

    def __init__(self, path: Path) -> None:
        self.held = ctypes.PyDLL(str(path))
        self.free = ctypes.CDLL(str(path))
        pointer, i32 = ctypes.c_void_p, ctypes.c_int32
        seen = ctypes.POINTER(Seen)
        for name in ("reference_look", "reference_take"):
            getattr(self.held, name).argtypes = [ctypes.py_object, seen]
        self.held.reference_drop_with_error.argtypes = [ctypes.py_object, ctypes.py_object]
        for name in ("reference_delete", "reference_delete_on_foreign_thread", "reference_delete_at_end"):
            getattr(self.free, name).argtypes = [pointer, i32]
        self.held.reference_delete_within.argtypes = [pointer, i32, ctypes.c_int]
        for name in ("reference_gather", "reference_scatter"):
            getattr(self.free, name).argtypes = [seen, pointer, ctypes.c_size_t, pointer]
        self.held.reference_find_table.argtypes = [ctypes.py_object, ctypes.POINTER(Table)]
        self.held.reference_find_table.restype = pointer
        for name in ("reference_export", "reference_view"):
            getattr(self.held, name).argtypes = [pointer, ctypes.py_object, seen]
        self.held.reference_import.argtypes = [pointer, pointer, ctypes.POINTER(pointer)]
        self.free.reference_allocate.argtypes = [
            pointer,
            *[ctypes.c_int] * 5,
            ctypes.POINTER(ctypes.c_int64),
            seen,
            ctypes.POINTER(Told),
        ]
        self.held.reference_work_stream.argtypes = [pointer, i32, i32, ctypes.POINTER(pointer)]


@functools.cache
def library() -> Library:
    """Build it at first use."""
    command = [
        os.environ.get("CC", "cc"),
        "-std=c11",
        "-Werror=implicit",
        "-O2",
        "-shared",
        "-fPIC",
        "-pthread",
        f"-I{_HEADER.parent}",
    ]
    return Library(build([_SOURCE], command, ".so", watched=[_HEADER]))


def look(capsule: object) -> Seen:
    """Read a capsule that nobody consumed, and leave it so."""
    seen = Seen()
    assert library().held.reference_look(capsule, ctypes.byref(seen)) == 0, (
        f"not an unconsumed DLPack capsule: {capsule!r}"
    )
    return seen


def take(capsule: object) -> Seen:
    """Consume a capsule: a call of `delete` is owed from now on."""
    seen = Seen()
    assert library().held.reference_take(capsule, ctypes.byref(seen)) == 0, (
        f"not an unconsumed DLPack capsule: {capsule!r}"
    )
    return seen


def drop_with_error(capsules: list[object]) -> bool:
    """Empty a list that alone keeps a capsule, while a KeyError is set; tell whether it is set still."""
    return library().held.reference_drop_with_error(capsules, KeyError) == 1


def delete(seen: Seen) -> None:
    """Call the deleter without the interpreter's lock, as most consumers do."""
    library().free.reference_delete(seen.managed, seen.kind)


def delete_on_foreign_thread(seen: Seen) -> None:
    """Call the deleter on a thread that Python never saw."""
    assert library().free.reference_delete_on_foreign_thread(seen.managed, seen.kind) == 0, "no thread could be made"


def delete_within(seen: Seen, seconds: float) -> bool:
    """Call the deleter on a foreign thread while this one keeps the interpreter's lock; tell whether it returned."""
    return library().held.reference_delete_within(seen.managed, seen.kind, int(1000 * seconds)) == 1


def delete_at_end(seen: Seen) -> None:
    """Call the deleter when the process ends, after the interpreter is gone."""
    assert library().free.reference_delete_at_end(seen.managed, seen.kind) == 0, "atexit() failed"


def find_table(kind: type) -> tuple[int, Table]:
    """Look the exchange table up on a type; 0 and an empty table if the attribute is no such capsule."""
    table = Table()
    capsule = kind.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    return library().held.reference_find_table(capsule, ctypes.byref(table)) or 0, table


def present(result: int) -> int:
    """Give a function's answer on, unless the table has no such function."""
    if result == _MISSING:
        raise CannotBeAskedError("its table lacks the function: see exchange.functions")
    return result


def export(api: int, obj: object) -> Seen:
    """Export by the table; raises what the producer raises."""
    seen = Seen()
    result = present(library().held.reference_export(api, obj, ctypes.byref(seen)))
    assert result == 0, f"managed_tensor_from_py_object_no_sync gave {result} and raised nothing"
    return seen


def view(api: int, obj: object) -> Seen:
    """Look by the table, owning nothing."""
    seen = Seen()
    result = library().held.reference_view(api, obj, ctypes.byref(seen))
    assert result == 0, f"dltensor_from_py_object_no_sync gave {result} and raised nothing"
    return seen


def import_(api: int, seen: Seen) -> Any:
    """Make an object of an exported tensor, which it steals."""
    out = ctypes.c_void_p()
    result = present(library().held.reference_import(api, seen.managed, ctypes.byref(out)))
    assert result == 0, f"managed_tensor_to_py_object_no_sync gave {result} and raised nothing"
    assert out.value, "managed_tensor_to_py_object_no_sync gave no object"
    made = ctypes.cast(out, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(made))
    return made


def allocate(api: int, device: tuple[int, int], code: int, bits: int, shape: tuple[int, ...]) -> tuple[int, Seen, Told]:
    """Ask the table for a new tensor; give its answer, the tensor and the errors told."""
    seen, told = Seen(), Told()
    extents = (ctypes.c_int64 * len(shape))(*shape)
    result = library().free.reference_allocate(
        api, *device, code, bits, len(shape), extents, ctypes.byref(seen), ctypes.byref(told)
    )
    return present(result), seen, told


def work_stream(api: int, device: tuple[int, int]) -> tuple[int, int]:
    """Ask the table for the stream to work on; give its answer and the handle."""
    out = ctypes.c_void_p()
    result = library().held.reference_work_stream(api, *device, ctypes.byref(out))
    return present(result), out.value or 0
