"""Shapes and strides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check

if TYPE_CHECKING:
    from conformance.case import Case

LARGE = 2**31 + 8


def assert_arrives(case: Case, array: np.ndarray) -> None:
    """Assert that shape, strides as far as they matter, and values are the array's."""
    subject = case.make(array)
    assert_taken(case, array, subject.read(), case.take(subject))


def assert_taken(case: Case, array: np.ndarray, values: np.ndarray, taken: object) -> None:
    """Assert it of what was taken."""
    shape, strides = case.consumer.shape(taken), case.consumer.strides(taken)
    assert shape == array.shape, f"shape {shape}, not {array.shape}"
    if strides is not None and array.size:
        wanted = [stride // array.itemsize for size, stride in zip(shape, array.strides, strict=True) if size > 1]
        found = [stride for size, stride in zip(shape, strides, strict=True) if size > 1]
        assert found == wanted, f"strides {found} where there is more than one element, not {wanted}"
    read = np.asarray(case.consumer.read(taken))
    assert read.shape == array.shape, f"read as shape {read.shape}"
    assert np.ascontiguousarray(read).tobytes() == np.ascontiguousarray(values).tobytes(), (
        f"other values: {read.ravel()[:8].tolist()}..."
    )


def need_gaps(case: Case) -> None:
    if case.consumer.compact:
        raise CannotBeAskedError(case.consumer.compact)


def need_other_orders(case: Case) -> None:
    if case.consumer.row_major:
        raise CannotBeAskedError(case.consumer.row_major)


@check("shapes.zero-d", every=True)
def check_zero_d(case: Case) -> None:
    assert_arrives(case, case.array(()))


@check("shapes.empty", every=True)
def check_empty(case: Case) -> None:
    assert_arrives(case, case.array((3, 0, 2)))


@check("shapes.empty-pointer")
def check_empty_pointer(case: Case) -> None:
    subject = case.make(case.array((3, 0, 2)))
    for request in ({}, {"max_version": (1, 3)}):
        data = case.look(subject, **request).data
        assert not data, f"data is {data:#x}"


@check("shapes.size-one", every=True)
def check_size_one(case: Case) -> None:
    assert_arrives(case, case.array((1, 5, 1)))


@check("shapes.row-major", every=True)
def check_row_major(case: Case) -> None:
    assert_arrives(case, case.array((3, 4)))


@check("shapes.column-major", every=True)
def check_column_major(case: Case) -> None:
    need_other_orders(case)
    assert_arrives(case, case.array((4, 3)).T)


@check("shapes.transposed", every=True)
def check_transposed(case: Case) -> None:
    need_other_orders(case)
    assert_arrives(case, case.array((2, 3, 4)).transpose(2, 0, 1))


@check("shapes.strided", every=True)
def check_strided(case: Case) -> None:
    need_gaps(case)
    assert_arrives(case, case.array((8, 12))[::2, ::3])


@check("shapes.offset", every=True)
def check_offset(case: Case) -> None:
    need_gaps(case)
    assert_arrives(case, case.array((8, 12))[2:6, 4:8])


@check("shapes.broadcast", every=True)
def check_broadcast(case: Case) -> None:
    need_gaps(case)
    assert_arrives(case, np.lib.stride_tricks.as_strided(case.array((4,)), (3, 4), (0, 4)))


@check("shapes.many-dimensions", every=True)
def check_many_dimensions(case: Case) -> None:
    if case.consumer.most_dimensions < 6:
        raise CannotBeAskedError(f"it has {case.consumer.most_dimensions} dimensions at most")
    assert_arrives(case, case.array((2, 1, 3, 1, 2, 2)))


@check("shapes.reversed", every=True)
def check_reversed(case: Case) -> None:
    array = case.array((5,))[::-1]
    need_gaps(case)
    try:
        subject = case.make(array)
        case.ask(subject, max_version=(1, 3))
    except BufferError:
        return
    try:
        taken = case.take(subject)
    except Exception as error:
        if "stride" not in str(error):
            raise
        raise CannotBeAskedError(f"it refuses negative strides: {error}") from error
    assert_taken(case, array, subject.read(), taken)


@check("shapes.odd-strides")
def check_odd_strides(case: Case) -> None:
    records = case.array((24,), "uint8").view(np.dtype([("x", "<i4"), ("y", "u2")], align=False))
    try:
        subject = case.make(records["x"])
        case.ask(subject, max_version=(1, 3))
    except BufferError:
        return
    raise AssertionError(f"strides of {records['x'].strides} bytes between 4-byte elements are exported")


@check("shapes.misaligned", promise=True)
def check_misaligned(case: Case) -> None:
    try:
        subject = case.make(case.array((17,), "uint8")[1:].view("float32"))
        case.ask(subject, max_version=(1, 3))
    except BufferError:
        return
    raise AssertionError("float32 at an odd address is exported")


@check("shapes.large", every=True)
def check_large(case: Case) -> None:
    if case.producer.in_place is False:
        raise CannotBeAskedError(f"{case.producer.name} would copy it")
    array = case.zeros(LARGE)
    if case.producer.name == "cuda.core":
        array = array.view("int8")
    array[-4:] = (1, 2, 3, 4)
    taken = case.take(case.make(array))
    assert case.consumer.shape(taken) == (LARGE,), f"shape {case.consumer.shape(taken)}"
    assert np.asarray(case.consumer.tail(taken)).tolist() == [1, 2, 3, 4], "the last four elements are others"
