"""Arrays that nobody may write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance import reference
from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check
from conformance.checks.protocol import NAMES

if TYPE_CHECKING:
    from conformance.case import Case


def read_only(case: Case) -> np.ndarray:
    array = case.plain()
    array.flags.writeable = False
    return array


def need_writable(case: Case) -> None:
    reason = case.producer.immutable or case.consumer.immutable
    if reason:
        raise CannotBeAskedError(reason)


@check("readonly.flag")
def check_flag(case: Case) -> None:
    flags = case.look_versioned(case.make(read_only(case))).flags
    assert flags & reference.READ_ONLY, f"flags {flags:#x}"


@check("readonly.flag-clear")
def check_flag_clear(case: Case) -> None:
    need_writable(case)
    flags = case.look_versioned(case.make()).flags
    assert not flags & reference.READ_ONLY, f"flags {flags:#x}"


@check("readonly.legacy")
def check_legacy(case: Case) -> None:
    subject = case.make(read_only(case))
    try:
        seen = case.look(subject)
    except BufferError:
        return
    raise AssertionError(f"given in a capsule named {NAMES[seen.kind]}")


@check("readonly.opt-in", promise=True)
def check_opt_in(case: Case) -> None:
    found = case.look(case.make(read_only(case), readonly=False))
    assert found.kind == reference.LEGACY, f"a capsule named {NAMES[found.kind]}"


@check("readonly.respected", every=True)
def check_respected(case: Case) -> None:
    case.take(case.make())  # what is refused below is refused for being read-only
    subject = case.make(read_only(case))
    try:
        taken = case.take(subject)
    except CannotBeAskedError:
        raise
    except Exception:  # noqa: BLE001 -- each framework has its own way to refuse
        return
    marked = case.consumer.readonly(taken)
    if marked is None:
        values = subject.read()
        try:
            case.consumer.write(taken, values)
        except CannotBeAskedError:
            raise
        except Exception:  # noqa: BLE001 -- as above
            return
        raise AssertionError("it writes to read-only memory, and does not mark it")
    assert marked, "it says that read-only memory is writable"


@check("readonly.writable", every=True)
def check_writable(case: Case) -> None:
    need_writable(case)
    marked = case.consumer.readonly(case.take(case.make()))
    if marked is None:
        raise CannotBeAskedError("it does not tell whether memory is writable")
    assert not marked, "it says that writable memory is read-only"
