"""Who calls the deleter, when, and on which thread."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from conformance import reference
from conformance.checks._check import check
from conformance.consumers.reference import Taken

if TYPE_CHECKING:
    from conformance.case import Case
    from conformance.producers._subject import Subject


def assert_kept(case: Case, subject: Subject, values: np.ndarray, taken: Taken) -> None:
    """Assert that a tensor's memory is there, with its values."""
    case.settle()
    assert subject.alive(), "the memory was given back while a tensor needed it"
    assert np.asarray(case.read(taken)).tobytes() == values.tobytes(), "the values changed"


@check("ownership.legacy-deleter")
def check_legacy_deleter(case: Case) -> None:
    subject = case.make(case.plain((21,)))
    subject.alive()
    seen = reference.take(case.ask(subject))
    subject.drop()
    reference.delete(seen)
    assert case.is_released(subject), f"the array is kept {case.patience:g} s after the deleter was called"


@check("ownership.unconsumed")
def check_unconsumed(case: Case) -> None:
    for request in ({}, {"max_version": (1, 3)}):
        for looks in (False, True):
            subject = case.make()
            subject.alive()
            capsule = case.ask(subject, **request)
            if looks:
                reference.look(capsule)  # and then fails
            del capsule
            subject.drop()
            assert case.is_released(subject), (
                f"asked with {request}: the array is kept {case.patience:g} s after the capsule's end"
            )


@check("ownership.consumed-capsule")
def check_consumed_capsule(case: Case) -> None:
    for request in ({}, {"max_version": (1, 3)}):
        subject = case.make(case.plain((23,)))
        values, capsule = subject.read(), case.ask(subject, **request)
        taken = Taken(capsule)
        subject.drop()
        del capsule
        assert_kept(case, subject, values, taken)


@check("ownership.several")
def check_several(case: Case) -> None:
    subject = case.make(case.plain((24,)))
    values = subject.read()
    taken = [Taken(case.ask(subject, max_version=(1, 3))) for _ in range(3)]
    subject.drop()
    del taken[:2]
    assert_kept(case, subject, values, taken[0])


@check("ownership.foreign-thread")
def check_foreign_thread(case: Case) -> None:
    subject = case.make()
    subject.alive()
    seen = reference.take(case.ask(subject, max_version=(1, 3)))
    subject.drop()
    reference.delete_on_foreign_thread(seen)
    assert case.is_released(subject), f"the array is kept {case.patience:g} s after the deleter was called"


@check("ownership.without-gil", promise=True)
def check_without_gil(case: Case) -> None:
    subject = case.make()
    seen = reference.take(case.ask(subject, max_version=(1, 3)))
    subject.drop()
    assert reference.delete_within(seen, 1.0), "the deleter had not returned after a second"


@check("ownership.refused")
def check_refused(case: Case) -> None:
    subject = case.make()
    subject.alive()
    with contextlib.suppress(Exception):  # which kind it is, is another rule's affair
        case.ask(subject, dl_device=(2, 99))
    subject.drop()
    assert case.is_released(subject), f"the array is kept {case.patience:g} s after the refusal"


@check("ownership.pending-error")
def check_pending_error(case: Case) -> None:
    subject = case.make()
    for request in ({}, {"max_version": (1, 3)}):
        assert reference.drop_with_error([case.ask(subject, **request)]), (
            f"asked with {request}: the error was gone after the capsule's end"
        )
