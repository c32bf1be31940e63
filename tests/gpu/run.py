"""Run the GPU tests and write what came of them: results.json and results.md.

python tests/gpu/run.py --out benchmarks/results/2026-01-31-h200 [pytest arguments]
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dlwrap

HERE = Path(__file__).parent
PACKAGES = {
    "numpy": ["numpy"],
    "cuda-bindings": ["cuda-bindings"],
    "torch": ["torch"],
    "cupy": ["cupy-cuda13x", "cupy-cuda12x", "cupy"],
    "jax": ["jax"],
    "numba-cuda": ["numba-cuda"],
    "cuda-core": ["cuda-core"],
}


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


def describe_machine() -> dict[str, Any]:
    """Name what the tests ran on."""
    support = dlwrap.support(0)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": support.name,
        "memory": f"{support.memory}: {support.reason}",
        "driver": re.findall(r"\d{3,}\.[\d.]+", driver.read_text())[0] if driver.exists() else "unknown",
        "cuda": f"{support.driver_version // 1000}.{support.driver_version % 1000 // 10}",
        "versions": {
            "python": platform.python_version(),
            "dlwrap": dlwrap.__version__,
            **{name: version_of(candidates) for name, candidates in PACKAGES.items()},
        },
    }


def version_of(candidates: list[str]) -> str | None:
    for name in candidates:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def read_tests(report: Path) -> list[dict[str, Any]]:
    """Read pytest's JUnit report; empty if pytest did not get that far."""
    if not report.exists():
        return []
    return [read_test(case) for case in ElementTree.parse(report).iter("testcase")]


def read_test(case: ElementTree.Element) -> dict[str, Any]:
    test: dict[str, Any] = {
        "id": f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}",
        "outcome": "passed",
        "seconds": round(float(case.get("time", 0)), 3),
    }
    for tag, outcome in (("skipped", "skipped"), ("failure", "failed"), ("error", "error")):
        element = case.find(tag)
        if element is not None:
            test["outcome"] = outcome
            test["message"] = (element.get("message") or "").strip()
    facts = [item.get("value") for item in case.iter("property") if item.get("name") == "fact"]
    return {**test, "facts": facts} if facts else test


def count(tests: list[dict[str, Any]]) -> dict[str, int]:
    outcomes = [test["outcome"] for test in tests]
    return {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "error", "skipped")}


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
