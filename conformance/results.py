"""What a run of the suite comes to: outcomes, results and the report, to and from JSON. Nothing here runs anything."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

REFERENCE = "reference"  # the consumer that judges the rules asked of the producer alone


class Outcome(str, Enum):
    """What came of one rule at one consumer.

    An unexpected pass, where a fault is known, is a `FAIL` whose reason says so: the expectation has to go.
    """

    PASS = "pass"
    FAIL = "fail"
    KNOWN_FAULT = "known fault"  # failed, as the committed expectation says
    NOT_APPLICABLE = "n/a"  # this rule cannot be asked here; the reason says why
    NOT_RUN = "not run"  # it could be asked, but not on this machine; the reason says why

    def __str__(self) -> str:
        return self.value


class Side(str, Enum):
    """Which view of the memory a consumer was given."""

    CPU = "CPU view"
    CUDA = "CUDA"
    BOTH = "both"  # the reference consumer

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Rule:
    """One line of the contract, in words.

    Attributes
    ----------
    id : str
        ``group.what``, such as "protocol.stream-zero".
    group : str
        One of the groups of the contract, such as "protocol".
    sentence : str
        What is demanded.
    source : str
        Where it is demanded: a section of the DLPack header, the array API standard, the CUDA manual, or
        "dlwrap promise".
    check : str
        How it is checked.
    """

    id: str
    group: str
    sentence: str
    source: str
    check: str


@dataclass(frozen=True)
class Consumer:
    """A framework, as it took part.

    Attributes
    ----------
    name, version : str
        Such as "torch", "2.13.0+cpu"; the version is empty where the framework is absent.
    side : Side
        Which view it was given.
    reason : str
        Why it did not run; empty if it did.
    """

    name: str
    version: str
    side: Side
    reason: str = ""

    @property
    def label(self) -> str:
        """The name that results give it: "torch (CPU view)", or "reference"."""
        return self.name if self.side is Side.BOTH else f"{self.name} ({self.side})"


@dataclass(frozen=True)
class Result:
    """What came of one rule at one consumer, named by its label; the reason is empty for a pass."""

    rule: str
    consumer: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """One run of the suite over one producer."""

    date: str
    driver: str
    producer: str
    hardware: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    results: tuple[Result, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every outcome is the expected one."""
        return all(result.outcome is not Outcome.FAIL for result in self.results)

    def count(self, consumer: str | None = None) -> Counter[Outcome]:
        """Count the outcomes, of one consumer (by label) or of all."""
        return Counter(result.outcome for result in self.results if consumer in (None, result.consumer))

    def find(self, rule: str, consumer: str) -> Result | None:
        """Give the result of a rule at a consumer (by label); None where the two have nothing to do with each other."""
        return self._index().get((rule, consumer))

    def verdict(self, rule: str) -> Outcome:
        """Give the worst outcome of a rule over all consumers, by which producers are compared."""
        outcomes = {result.outcome for result in self.results if result.rule == rule}
        worst_first = (Outcome.FAIL, Outcome.KNOWN_FAULT, Outcome.PASS, Outcome.NOT_APPLICABLE, Outcome.NOT_RUN)
        return next((outcome for outcome in worst_first if outcome in outcomes), Outcome.NOT_RUN)

    def to_json(self) -> dict[str, Any]:
        """Give plain dictionaries, lists and strings."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """Read what `to_json` gives."""
        return cls(
            date=data["date"],
            driver=data["driver"],
            producer=data["producer"],
            hardware=data["hardware"],
            versions=data["versions"],
            rules=tuple(Rule(**rule) for rule in data["rules"]),
            consumers=tuple(Consumer(**{**each, "side": Side(each["side"])}) for each in data["consumers"]),
            results=tuple(Result(**{**each, "outcome": Outcome(each["outcome"])}) for each in data["results"]),
        )

    def write(self, path: Path) -> None:
        """Write the report as a JSON file."""
        path.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read a JSON file that `write` wrote."""
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    def _index(self) -> dict[tuple[str, str], Result]:
        return {(result.rule, result.consumer): result for result in self.results}
