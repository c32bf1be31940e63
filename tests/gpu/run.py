"""Run the GPU tests and write what came of them: results.json and results.md.

python tests/gpu/run.py --out benchmarks/results/2026-01-31-h200 [pytest arguments]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

# Modules of the tests, found by the line above.
from junit import count, read_tests  # noqa: E402
from machine import describe_machine  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the GPU tests and write results.json and results.md.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    arguments, rest = parser.parse_known_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", str(HERE), f"--junitxml={report}", *rest]
        status = subprocess.run(command, check=False).returncode
        tests = read_tests(report)
    results = {**describe_machine(), "counts": count(tests), "facts": facts_of(tests), "tests": tests}
    (arguments.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.out / "results.md").write_text(as_markdown(results))
    return status


def facts_of(tests: list[dict[str, Any]]) -> list[str]:
    return [fact for test in tests for fact in test.get("facts", [])]


def as_markdown(results: dict[str, Any]) -> str:
    counts = ", ".join(f"{number} {outcome}" for outcome, number in results["counts"].items())
    versions = ", ".join(f"{name} {version or '-'}" for name, version in results["versions"].items())
    lines = [
        "# dlwrap's tests on a GPU",
        "",
        f"{results['date']}, {results['gpu']}, driver {results['driver']}, CUDA {results['cuda']}; {results['memory']}",
        "",
        versions,
        "",
        f"**{counts}**, {sum(test['seconds'] for test in results['tests']):.0f} s",
        "",
        *(f"- FACT: {fact}" for fact in results["facts"]),
        "",
        "| test | outcome | seconds |",
        "|---|---|---|",
        *(f"| `{test['id'].replace('|', ' ')}` | {test['outcome']} | {test['seconds']} |" for test in results["tests"]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
