"""Exchange tables that are wrong in one function."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import dlwrap
from conformance.broken._structs import Table, Tensor, Versioned, capsule_of, extents, keep
from conformance.broken._variant import Sound, answering, breaks, clearing, over_copy, producer_of, variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.drivers._calls import Driver
    from conformance.producers._subject import Producer

NAME = b"dlpack_exchange_api"
OUT = ctypes.POINTER(ctypes.c_void_p)
SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ALLOCATOR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Tensor), OUT, ctypes.c_void_p, SET_ERROR)
FROM_PY_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, OUT)
TO_PY_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, OUT)
VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
WORK_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, OUT)


def original() -> Table:
    """Find dlwrap's table."""
    address = ctypes.pythonapi.PyCapsule_GetPointer(dlwrap.HostWrappedBuffer.__dlpack_c_exchange_api__, NAME)
    return Table.from_address(address)


def copy_of_table() -> Table:
    """Copy it, to be changed."""
    table = keep(Table())
    ctypes.pointer(table)[0] = original()
    return table


def producer_with(driver: Driver, table: Table, name: bytes = NAME) -> Producer:
    """Make a producer whose type has a table."""
    return producer_of(driver, variant(__dlpack_c_exchange_api__=capsule_of(ctypes.addressof(table), name)))


def replace(driver: Driver, name: str, kind: Any, function: Callable[..., int]) -> Producer:
    """Make a producer whose table has another function, which is given the original one first."""
    table = copy_of_table()
    sound = kind(getattr(table, name))
    other = keep(kind(lambda *arguments: function(sound, *arguments)))
    setattr(table, name, ctypes.cast(other, ctypes.c_void_p).value)
    return producer_with(driver, table)


@breaks("exchange.table")
def make_misnamed(driver: Driver) -> Producer:
    return producer_with(driver, copy_of_table(), b"dltensor")


@breaks("exchange.version")
def make_other_version(driver: Driver) -> Producer:
    table = copy_of_table()
    table.major = 2
    return producer_with(driver, table)


@breaks("exchange.functions")
def make_without_allocator(driver: Driver) -> Producer:
    table = copy_of_table()
    table.allocator = None
    return producer_with(driver, table)


@breaks("exchange.export")
def make_exporting_wrongly(driver: Driver) -> Producer:
    def export(sound: Any, obj: Any, out: Any) -> int:
        result = sound(obj, out)
        if obj.shape == (2, 5):
            Versioned.from_address(out[0]).tensor.shape = extents(5, 2)
        return result

    return replace(driver, "from_py_object", FROM_PY_OBJECT, export)


@breaks("exchange.view")
def make_viewing_wrongly(driver: Driver) -> Producer:
    def view(sound: Any, obj: Any, out: Any) -> int:
        result = sound(obj, out)
        out[0].shape = extents(6, 2)
        return result

    return replace(driver, "view", VIEW, view)


@breaks("exchange.import")
def make_importing_wrongly(driver: Driver) -> Producer:
    def import_(sound: Any, managed: int, out: Any) -> int:
        tensor = Versioned.from_address(managed).tensor
        tensor.shape, tensor.strides = extents(7, 2), extents(2, 1)
        return sound(managed, out)

    return replace(driver, "to_py_object", TO_PY_OBJECT, import_)


@breaks("exchange.allocate")
def make_allocating_wrongly(driver: Driver) -> Producer:
    def allocate(sound: Any, prototype: Any, out: Any, context: Any, set_error: Any) -> int:
        prototype[0].shape = extents(4, 3)
        return sound(prototype, out, context, set_error)

    return replace(driver, "allocator", ALLOCATOR, allocate)


@breaks("exchange.allocate-error")
def make_telling_twice(driver: Driver) -> Producer:
    def allocate(sound: Any, prototype: Any, out: Any, context: Any, set_error: Any) -> int:
        result = sound(prototype, out, context, set_error)
        if result:
            set_error(context, b"RuntimeError", b"again")
        return result

    return replace(driver, "allocator", ALLOCATOR, allocate)


@breaks("exchange.work-stream")
def make_stream_on_cpu(driver: Driver) -> Producer:
    def work_stream(sound: Any, device_type: int, device: int, out: Any) -> int:
        result = sound(device_type, device, out)
        if device_type == 1:
            out[0] = 1
        return result

    return replace(driver, "work_stream", WORK_STREAM, work_stream)


@breaks("exchange.ownership")
def make_not_owning(driver: Driver) -> Producer:
    """Let the array go with the buffer, if it was exported by the table."""
    table = copy_of_table()
    sound = FROM_PY_OBJECT(table.from_py_object)
    exported: set[int] = set()

    def export(obj: Any, out: Any) -> int:
        exported.add(id(obj))
        return sound(obj, out)

    def end(self: Any) -> None:
        if id(self) in exported:
            exported.discard(id(self))
            clearing(self)()

    table.from_py_object = ctypes.cast(keep(FROM_PY_OBJECT(export)), ctypes.c_void_p).value
    capsule = capsule_of(ctypes.addressof(table), NAME)
    kind = answering(lambda buffer, request: Sound.__dlpack__(buffer, **request))
    return producer_of(
        driver,
        type("Broken", (kind,), {"__slots__": (), "__dlpack_c_exchange_api__": capsule, "__del__": end}),
        over_copy(driver),
    )
