"""What every long run reports, and how its result is kept."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from machine import describe_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Outcome:
    """What came of a long run.

    Attributes
    ----------
    rounds : int
        How often the thing under test was done.
    faults : list of str
        What broke a promise, in words; empty when every promise held.
    figures : dict
        Further numbers that the reader needs, by a name that carries the unit.
    """

    rounds: int
    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def report(name: str, parameters: dict[str, Any], run: Callable[[], Outcome], out: Path | None) -> int:
    """Run, print, write `out` as JSON if given, and give the exit status: 0 only without faults and with rounds."""
    began = time.monotonic()
    outcome = run()
    result = {
        "name": name,
        **describe_machine(),
        "parameters": parameters,
        "seconds": round(time.monotonic() - began, 1),
        **asdict(outcome),
    }
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
    return 0 if outcome.rounds > 0 and not outcome.faults else 1
