"""One producer and one consumer in a process of their own, which answers rule by rule.

``python -m conformance.worker NAMES``, the names as JSON. It reads identifiers of rules, a line each, and writes one
line of JSON for each; the line ``producer NAME`` goes on with another producer. Whatever the frameworks print goes to
stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from typing import Any

from conformance.cannot import CannotBeAskedError, UnavailableError
from conformance.results import Outcome

LONGEST_REASON = 300


def main() -> None:
    """Answer until stdin ends."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    try:
        from conformance.joining import change_producer, join

        case = join(**json.loads(sys.argv[1]))
    except UnavailableError as error:
        print(json.dumps({"unavailable": shorten(str(error))}), file=channel)
        return
    from conformance import producers

    print(
        json.dumps(
            {
                "producer_version": producers.version(case.producer),
                "driver": case.driver.name,
                "hardware": case.driver.describe(),
                "side": case.side.value,
            }
        ),
        file=channel,
    )
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "producer":
            case = change_producer(case, rest)
            continue
        outcome, reason = judge(case, word)
        print(json.dumps({"outcome": outcome.value, "reason": shorten(reason)}), file=channel)


def judge(case: Any, rule: str) -> tuple[Outcome, str]:
    """Check one rule; whatever a check raises is its outcome, and never the end of the run."""
    from conformance.checks import CHECKS, why_not_asked

    check = CHECKS[rule]
    reason = why_not_asked(check, case.producer, case.side)
    if reason:
        return Outcome.NOT_APPLICABLE, reason
    try:
        case.driver.reset()
        check.function(case)
    except CannotBeAskedError as error:
        return Outcome.NOT_APPLICABLE, str(error)
    except AssertionError as error:
        return Outcome.FAIL, str(error) or "an assertion failed"
    except Exception as error:  # noqa: BLE001 -- each framework raises its own
        return Outcome.FAIL, f"{type(error).__name__}: {error}"
    return Outcome.PASS, ""


def shorten(text: str) -> str:
    """Keep a reason to one line, without the folders of this machine."""
    line = re.sub(r"(?<![\w.])(/[\w.+~-]+)+/(?=[\w.+-]+)", "", " ".join(text.split()))
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 3]}..."


if __name__ == "__main__":
    main()
