"""Every test that needs no GPU, and how many of each file passed.

python tests/soak/suite.py --out FILE.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import dlwrap.testing
from junit import count, read_tests
from soak._report import Outcome, report

TESTS = Path(__file__).parents[1]


def run(arguments: list[str]) -> Outcome:
    """Run pytest; a file's name in the result is that of its module."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "junit.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", f"--junitxml={found}", *arguments], cwd=TESTS.parent, check=False
        )
        tests = read_tests(found)
    files: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for test in tests:
        files[test["id"].partition("::")[0]].append(test)
    outcome = Outcome(count(tests)["passed"])
    outcome.faults += [test["id"] for test in tests if test["outcome"] in {"failed", "error"}]
    outcome.figures = {**count(tests), "files": {name: count(each) for name, each in sorted(files.items())}}
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments, rest = parser.parse_known_args()
    dlwrap.testing.activate()  # what the tests run on, and so the report names
    return report("suite", {"pytest": rest}, lambda: run(rest or [str(TESTS)]), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
