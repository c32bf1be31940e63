"""The random programs of tests/test_states.py, many more of them: `python tests/soak/states.py --examples 20000`."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from hypothesis import seed as seeded

from soak._report import Outcome, report
from test_states import States, check


def run(seed: int, examples: int, steps: int) -> Outcome:
    """Run programs of so many steps; the outcome's rounds are the steps made, and stop at the first fault."""
    before = States.steps
    faults = []
    try:
        check(examples, steps, seeded(seed)(type("States", (States,), {})))
    except BaseException as error:  # noqa: BLE001 -- hypothesis groups what it found
        faults = describe(error)
    return Outcome(States.steps - before, faults, {"programs": examples, "steps_of_a_program": steps})


def describe(error: BaseException) -> list[str]:
    """Give each fault with the program that shows it."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    found = getattr(error, "exceptions", [error])
    return ["\n".join([f"{type(each).__name__}: {each}", *getattr(each, "__notes__", [])]) for each in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    parameters = {"seed": given.seed, "examples": given.examples, "steps": given.steps}
    print(f"seed {given.seed}", flush=True)
    return report("states", parameters, lambda: run(given.seed, given.examples, given.steps), given.out)


if __name__ == "__main__":
    sys.exit(main())
