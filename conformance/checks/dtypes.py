"""Element types, one rule for each that NumPy and most frameworks have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check
from conformance.dtypes import CODES, FLOAT8

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.case import Case

NAMED = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)


def check_of(name: str) -> Callable[[Case], None]:
    def check_dtype(case: Case) -> None:
        if name in case.consumer.lacks:
            raise CannotBeAskedError(case.consumer.lacks[name])
        subject = case.make(case.array((7,), name))
        taken = case.take(subject)
        found = case.consumer.dtype(taken)
        assert found == name, f"arrived as {found}"
        values = np.asarray(case.consumer.read(taken))
        assert values.tobytes() == subject.read().tobytes(), f"other bytes: {values.tolist()}"

    return check_dtype


for _name in NAMED:
    check(f"dtypes.{_name}", every=True)(check_of(_name))


@check("dtypes.float8-others")
def check_float8_others(case: Case) -> None:
    asked = 0
    for name in FLOAT8:
        if name in NAMED:
            continue
        try:
            subject = case.make(case.array((7,), name))
        except CannotBeAskedError:
            continue
        found = case.look(subject, max_version=(1, 3)).dtype
        assert found == (*CODES[name], 1), f"{name} has code, bits and lanes {found}, not {(*CODES[name], 1)}"
        asked += 1
    if not asked:
        raise CannotBeAskedError(f"{case.producer.name} has none of them")


@check("dtypes.lanes")
def check_lanes(case: Case) -> None:
    for name in ("float32", "complex64", "int8"):
        try:
            subject = case.make(case.array((7,), name))
        except CannotBeAskedError:
            continue
        for request in ({}, {"max_version": (1, 3)}):
            lanes = case.look(subject, **request).lanes
            assert lanes == 1, f"{name} has {lanes} lanes"


@check("dtypes.byte-order")
def check_byte_order(case: Case) -> None:
    assert_not_exported(case, case.array((4,), "int32").view(np.dtype("int32").newbyteorder()))


@check("dtypes.no-numbers")
def check_no_numbers(case: Case) -> None:
    record = np.dtype([("x", "i4"), ("y", "f4")])
    arrays = (
        np.zeros(3, "U4"),
        np.zeros(3, "datetime64[s]"),
        case.array((8,), "int32").view(record),
        np.zeros(3, object),
    )
    asked = 0
    for array in arrays:
        try:
            assert_not_exported(case, array)
        except CannotBeAskedError:
            continue
        asked += 1
    if not asked:
        raise CannotBeAskedError(f"{case.producer.name} has no arrays of such types")


def assert_not_exported(case: Case, array: np.ndarray) -> None:
    """Assert that a BufferError comes at making or at exporting."""
    try:
        subject = case.make(array)
        case.ask(subject, max_version=(1, 3))
    except BufferError:
        return
    except CannotBeAskedError:
        raise
    except Exception as error:
        raise AssertionError(f"{array.dtype} is refused with {type(error).__name__}, not BufferError") from error
    raise AssertionError(f"{array.dtype} is exported")
