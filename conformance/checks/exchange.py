"""DLPack's table of C functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance import reference
from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check
from conformance.checks.protocol import assert_same
from conformance.consumers.reference import Taken

if TYPE_CHECKING:
    from conformance.case import Case

NO_CODE = 99  # of an element type


@check("exchange.table")
def check_table(case: Case) -> None:
    kind = type(case.make().offered)
    if not hasattr(kind, "__dlpack_c_exchange_api__"):
        raise CannotBeAskedError(f"{kind.__name__} has no __dlpack_c_exchange_api__")
    api, _ = reference.find_table(kind)
    assert api, f"no capsule named dlpack_exchange_api: {kind.__dlpack_c_exchange_api__!r}"


@check("exchange.version")
def check_version(case: Case) -> None:
    subject = case.make()
    case.table(subject)
    _, table = reference.find_table(type(subject.offered))
    assert table.major == 1, f"major version {table.major}"
    assert table.older_tables >= 0, "the chain of older tables has no end"


@check("exchange.functions")
def check_functions(case: Case) -> None:
    subject = case.make()
    case.table(subject)
    _, table = reference.find_table(type(subject.offered))
    wanted = {
        "managed_tensor_allocator": table.allocator,
        "managed_tensor_from_py_object_no_sync": table.from_py_object,
        "managed_tensor_to_py_object_no_sync": table.to_py_object,
        "current_work_stream": table.current_work_stream,
    }
    missing = [name for name, present in wanted.items() if not present]
    assert not missing, f"NULL: {', '.join(missing)}"


@check("exchange.export")
def check_export(case: Case) -> None:
    subject = case.make(case.array((2, 5)))
    exported = reference.export(case.table(subject), subject.offered)
    capsule = case.ask(subject, max_version=(1, 3))
    try:
        assert_same(exported, reference.look(capsule))
    finally:
        reference.delete(exported)


@check("exchange.view")
def check_view(case: Case) -> None:
    subject = case.make(case.array((2, 6)))
    api = case.table(subject)
    _, table = reference.find_table(type(subject.offered))
    if not table.dltensor_from_py_object:
        raise CannotBeAskedError("dltensor_from_py_object_no_sync is NULL, as the header allows")
    capsule = case.ask(subject, max_version=(1, 3))
    assert_same(reference.view(api, subject.offered), reference.look(capsule))


@check("exchange.import")
def check_import(case: Case) -> None:
    subject = case.make(case.array((2, 7)))
    api = case.table(subject)
    exported = reference.export(api, subject.offered)
    made = reference.import_(api, exported)
    capsule = made.__dlpack__(max_version=(1, 3))
    assert_same(reference.look(capsule), exported)


@check("exchange.allocate")
def check_allocate(case: Case) -> None:
    subject = case.make()
    device = case.look(subject).device
    result, seen, told = reference.allocate(case.table(subject), device, 2, 32, (3, 4))
    assert result == 0, f"refused: {told.kind.decode()}: {told.message.decode()}"
    assert seen.managed, "gave no tensor, and no error"
    try:
        assert seen.shape == (3, 4), f"shape {seen.shape}"
        assert seen.dtype == (2, 32, 1), f"element type {seen.dtype}"
        assert seen.device == device, f"device {seen.device}, not {device}"
        assert seen.data, "no memory"
    finally:
        reference.delete(seen)


@check("exchange.allocate-error")
def check_allocate_error(case: Case) -> None:
    subject = case.make()
    device = case.look(subject).device
    result, seen, told = reference.allocate(case.table(subject), device, NO_CODE, 32, (3, 4))
    assert result != 0, f"an element type of code {NO_CODE} was allocated"
    assert told.errors == 1, f"told {told.errors} errors"
    assert not seen.managed, "gave a tensor all the same"


@check("exchange.work-stream")
def check_work_stream(case: Case) -> None:
    subject = case.make()
    api = case.table(subject)
    result, _ = reference.work_stream(api, case.look(subject).device)
    assert result == 0, f"gave {result} for the producer's own device"
    result, stream = reference.work_stream(api, (reference.CPU, 0))
    assert result == 0, f"gave {result} for the CPU"
    assert stream == 0, f"gave {stream:#x} for the CPU"


@check("exchange.ownership")
def check_ownership(case: Case) -> None:
    subject = case.make()
    values = subject.read()
    taken = Taken.__new__(Taken)
    taken.seen = reference.export(case.table(subject), subject.offered)
    subject.drop()
    case.settle()
    assert subject.alive(), "the memory was given back while the tensor was owned"
    assert np.array_equal(case.read(taken), values), "the values changed"
