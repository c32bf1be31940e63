"""Programs that end in a certain state: ``python -m conformance.ends PRODUCER:CONSUMER:DRIVER SCENARIO``."""

from __future__ import annotations

import builtins
import json
import os
import sys
from typing import TYPE_CHECKING

from conformance import reference
from conformance.drivers._calls import PER_THREAD
from conformance.joining import join

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.case import Case


def alive(case: Case) -> None:
    """Keep the framework's array where nothing drops it before the interpreter does."""
    builtins.kept = case.take(case.make())  # type: ignore[attr-defined]


def deleter_after_python(case: Case) -> None:
    """Have C call the deleter when the process ends."""
    subject = case.make()
    reference.delete_at_end(reference.take(case.ask(subject, max_version=(1, 0))))


def never_deleted(case: Case) -> None:
    """Forget a legacy tensor."""
    subject = case.make()
    reference.take(case.ask(subject))


def pending_work(case: Case) -> None:
    """Leave work on the GPU behind."""
    subject = case.make()
    capsule = case.ask(subject, stream=PER_THREAD, max_version=(1, 3))
    seen = reference.take(capsule)
    case.driver.busy(PER_THREAD, subject.address(case.side), 64)
    reference.delete(seen)


def fork(case: Case) -> None:
    """Drop a buffer in a forked child, and wrap there; the parent ends as the child did."""
    subject, array = case.make(), case.plain()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            subject.drop()
            case.make(array)
        except RuntimeError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if status:
        print(f"the child ended with status {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
        sys.exit(1)


SCENARIOS: dict[str, Callable[[Case], None]] = {
    "alive": alive,
    "deleter-after-python": deleter_after_python,
    "never-deleted": never_deleted,
    "pending-work": pending_work,
    "fork": fork,
}


def main() -> None:
    """Bring the scenario about, and end."""
    who, scenario = sys.argv[1:]
    case = join(**json.loads(who))
    SCENARIOS[scenario](case)


if __name__ == "__main__":
    main()
