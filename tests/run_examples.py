"""Run the examples, each in a process of its own, and write down what they print.

python tests/run_examples.py --out examples/output         # without a GPU
python tests/run_examples.py --out examples/output-gpu     # with one; also writes machine.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import dlwrap

EXAMPLES = Path(__file__).parents[1] / "examples"
PATHS = sorted(EXAMPLES.glob("[!_]*.py"))
SKIPPED = 77  # what an example ends with that cannot run here, after a line with the reason
LONGEST_SECONDS = 100


@dataclass(frozen=True)
class Outcome:
    """How an example ended, and what it said."""

    status: int
    printed: str
    errors: str

    @property
    def reason(self) -> str:
        """Why it was skipped: the last line that it printed."""
        return (self.printed.strip().splitlines() or [""])[-1]


def run_example(path: Path) -> Outcome:
    """Run an example with the dlwrap that runs here."""
    paths = [str(Path(dlwrap.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # No coverage: some start processes of their own, and all are about what is tested elsewhere.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**kept, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the outputs")
    parser.add_argument("names", nargs="*", help="examples, without .py; all by default")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed, notes, on_gpu = [], {}, False
    for path in [path for path in PATHS if not arguments.names or path.stem in arguments.names]:
        found = run_example(path)
        print(path.name, found.status, found.reason, flush=True)
        if found.status == 0:
            on_gpu = on_gpu or not found.printed.startswith("no GPU")
            (arguments.out / f"{path.stem}.txt").write_text(found.printed)
            notes[path.stem] = "ran"
        else:
            failed += [path.stem] if found.status != SKIPPED else []
            notes[path.stem] = found.reason if found.status == SKIPPED else found.errors[-2000:]
            print(found.errors, file=sys.stderr)
    if on_gpu:
        from machine import describe_machine  # asks the driver

        (arguments.out / "machine.json").write_text(
            json.dumps({**describe_machine(), "examples": notes}, indent=2) + "\n"
        )
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
