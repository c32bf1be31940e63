"""Reads what pytest wrote with --junitxml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from pathlib import Path


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
