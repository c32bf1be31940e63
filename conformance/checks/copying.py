"""The keyword copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance import reference
from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check
from conformance.consumers.reference import Taken

if TYPE_CHECKING:
    from conformance.case import Case
    from conformance.producers._subject import Subject


@check("copy.default")
def check_default(case: Case) -> None:
    assert_shared(case, None)


@check("copy.false")
def check_false(case: Case) -> None:
    assert_shared(case, False)


def assert_shared(case: Case, copy: bool | None) -> None:
    subject = case.make()
    capsule = case.ask(subject, copy=copy, max_version=(1, 3))
    found, expected = reference.look(capsule).first, subject.address(case.side)
    assert found == expected, f"copy={copy} gave memory at {found:#x}, not {expected:#x}"


@check("copy.true")
def check_true(case: Case) -> None:
    subject = case.make()
    capsule = case.ask(subject, copy=True, max_version=(1, 3))
    assert reference.look(capsule).first != subject.address(case.side), "copy=True gave the array's own memory"


def need_copies(case: Case, subject: Subject) -> None:
    """Go on only if the producer makes copies at all; that it has to, is a rule of its own."""
    try:
        case.ask(subject, copy=True, max_version=(1, 3))
    except BufferError as error:
        raise CannotBeAskedError(f"it refuses copy=True ({error}): see copy.true") from error


@check("copy.values")
def check_values(case: Case) -> None:
    subject = case.make()
    need_copies(case, subject)
    taken = Taken(case.ask(subject, copy=True, max_version=(1, 3)))
    read = np.asarray(case.read(taken))
    assert read.tobytes() == subject.read().tobytes(), f"the copy holds {read[:6].tolist()}..."


@check("copy.flag")
def check_flag(case: Case) -> None:
    subject = case.make()
    need_copies(case, subject)
    flags = case.look_versioned(subject, copy=True).flags
    assert flags & reference.IS_COPIED, f"flags {flags:#x}"


@check("copy.flag-clear")
def check_flag_clear(case: Case) -> None:
    flags = case.look_versioned(case.make(), copy=None).flags
    assert not flags & reference.IS_COPIED, f"flags {flags:#x}"
