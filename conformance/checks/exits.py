"""The end of a program, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from conformance.checks._check import check
from conformance.processes import environment

if TYPE_CHECKING:
    from conformance.case import Case

LIMIT = 60  # seconds, imports included
FAILURES = re.compile(r"Traceback|Exception ignored|Fatal Python error|terminate called|Segmentation|Aborted", re.I)


def assert_ends_well(case: Case, scenario: str) -> None:
    """Run a scenario of `conformance.ends`; it has to end by itself, and quietly."""
    command = [sys.executable, "-m", "conformance.ends", case.spelling, scenario]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment())
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"it had not ended after {LIMIT} s") from error
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    said = lines[-1] if lines else ""
    assert done.returncode == 0, f"status {done.returncode}: {said}"
    failed = [line for line in lines if FAILURES.search(line)]
    assert not failed, f"it said: {failed[0]} ... {said}"


@check("exit.alive", every=True)
def check_alive(case: Case) -> None:
    assert_ends_well(case, "alive")


@check("exit.deleter-after-python")
def check_deleter_after_python(case: Case) -> None:
    assert_ends_well(case, "deleter-after-python")


@check("exit.never-deleted")
def check_never_deleted(case: Case) -> None:
    assert_ends_well(case, "never-deleted")


@check("exit.pending-work", promise=True, cuda=True)
def check_pending_work(case: Case) -> None:
    assert_ends_well(case, "pending-work")


@check("exit.fork", promise=True)
def check_fork(case: Case) -> None:
    assert_ends_well(case, "fork")
