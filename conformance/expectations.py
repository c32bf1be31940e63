"""Known faults: which consumer, or which other producer, breaks which rule, in which versions, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.results import Outcome, Report, Result

ANYBODY = "*"
FILE = Path(__file__).with_name("expectations.json")


@dataclass(frozen=True)
class Fault:
    """One known fault.

    Attributes
    ----------
    producer, consumer, rule : str
        Where it was seen; the consumer by label. The producer is "*" for a fault of a consumer that shows whoever
        hands the array over.
    of : str
        Whose fault it is: "consumer" or "producer". The versions are its own.
    versions : str
        In which versions it was seen, such as ">=2.11,<2.14".
    reason : str
        What goes wrong.
    driver : str
        "simulated" or "real" if it was seen there alone; else empty.
    """

    producer: str
    consumer: str
    rule: str
    of: str
    versions: str
    reason: str
    driver: str = ""

    def covers(self, version: str) -> bool:
        """Tell whether it was seen in a version."""
        try:
            return SpecifierSet(self.versions).contains(Version(version).public, prereleases=True)
        except InvalidVersion:
            return False


class Expectations:
    """Looks known faults up."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = {(fault.producer, fault.consumer, fault.rule): fault for fault in faults}

    def find(self, producer: tuple[str, str], consumer: tuple[str, str], rule: str, driver: str) -> Fault | None:
        """Find the fault that is known of these, producer and consumer each a name and a version."""
        for name in (producer[0], ANYBODY):
            fault = self._faults.get((name, consumer[0], rule))
            if fault is None or fault.driver not in ("", driver):
                continue
            if fault.covers(producer[1] if fault.of == "producer" else consumer[1]):
                return fault
        return None

    @property
    def faults(self) -> list[Fault]:
        """All of them."""
        return list(self._faults.values())


def read(path: Path = FILE) -> Expectations:
    """Read the committed file."""
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return Expectations([Fault(**entry) for entry in entries])


def settle(outcome: Outcome, reason: str, fault: Fault | None) -> tuple[Outcome, str]:
    """Turn what was found into what is reported: a known fault, or a failure where one no longer shows."""
    if fault is None:
        return outcome, reason
    if outcome is Outcome.FAIL:
        return Outcome.KNOWN_FAULT, f"{fault.reason} [{reason}]"
    if outcome is Outcome.PASS:
        return Outcome.FAIL, f"passes, though expectations.json knows a fault ({fault.reason}): take that entry out"
    return outcome, reason


def settle_again(report: Report, faults: Expectations) -> Report:
    """Look the failures of a report up, among faults that became known after it was made."""
    versions = {consumer.label: consumer.version for consumer in report.consumers}
    producer = report.producer, report.versions.get(report.producer, "")
    driver = "simulated" if report.driver.startswith("simulated") else "real"

    def settled(result: Result) -> Result:
        if result.outcome is not Outcome.FAIL:
            return result
        fault = faults.find(producer, (result.consumer, versions[result.consumer]), result.rule, driver)
        outcome, reason = settle(result.outcome, result.reason, fault)
        return replace(result, outcome=outcome, reason=reason)

    return replace(report, results=tuple(map(settled, report.results)))
