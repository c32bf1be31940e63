"""Runs the suite for one producer: every rule, every consumer, into a `Report`."""

from __future__ import annotations

import datetime
import fnmatch
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conformance import consumers as known
from conformance import expectations
from conformance.cannot import UnavailableError
from conformance.checks import CHECKS
from conformance.consumers import Entry
from conformance.contract import RULES
from conformance.pool import Worker
from conformance.results import Consumer, Outcome, Report, Result, Rule, Side

Progress = Callable[[str, str], None]  # told consumer and rule, after each check

_VERSIONS = ("dlwrap", "numpy", "cuda-bindings", "ml_dtypes")


def run(
    producer: str,
    driver: str,
    *,
    consumers: list[str] | None = None,
    rules: list[str] | None = None,
    progress: Progress = lambda consumer, rule: None,
    known_faults: expectations.Expectations | None = None,
) -> Report:
    """Run it.

    Parameters
    ----------
    producer : str
        As `conformance.producers.load` takes it.
    driver : str
        "real" or "simulated".
    consumers, rules : list of str, optional
        Which take part: names or labels, identifiers or groups, with ``*``; by default all.
    progress : callable
        Told the label of the consumer and the identifier of the rule after each check.
    known_faults : Expectations, optional
        By default the committed ones.

    Raises
    ------
    UnavailableError
        The producer cannot run here.
    """
    entries = choose_consumers(consumers)
    chosen = choose_rules(rules)
    faults = expectations.read() if known_faults is None else known_faults
    facts = describe_producer(producer, driver)
    shared = {"rules": chosen, "facts": facts, "faults": faults, "progress": progress}
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as threads:
        runs = [threads.submit(run_consumer, producer, entry, driver, **shared) for entry in entries]
        done = [each.result() for each in runs]
    return Report(
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        driver=facts["driver"],
        producer=producer,
        hardware={**facts["hardware"], "machine": platform.machine(), "processors": os.cpu_count()},
        versions=versions_of(entries),
        rules=chosen,
        consumers=tuple(consumer for consumer, _ in done),
        results=tuple(result for _, results in done for result in results),
    )


def describe_producer(producer: str, driver: str) -> dict[str, Any]:
    """Ask a process what producer and driver are."""
    with Worker({"producer": producer, "consumer": "reference", "driver": driver}) as worker:
        worker.start()
        return worker.facts


def run_consumer(
    producer: str,
    entry: Entry,
    driver: str,
    *,
    rules: tuple[Rule, ...],
    facts: dict[str, Any],
    faults: expectations.Expectations,
    progress: Progress,
) -> tuple[Consumer, list[Result]]:
    """Run the rules that concern one consumer."""
    asked = rules_for(entry, rules)
    reason = known.obstacle(entry, simulated=driver == "simulated")
    with Worker({"producer": producer, "consumer": entry.label, "driver": driver}) as worker:
        if not reason:
            try:
                worker.start()
            except UnavailableError as error:
                reason = str(error)
        results = []
        for rule in asked:
            if reason:
                outcome, why = Outcome.NOT_RUN, reason
            else:
                found = worker.ask(rule.id)
                who = (producer, facts["producer_version"]), (entry.label, entry.version)
                outcome, why = expectations.settle(*found, faults.find(*who, rule.id, driver))
            results.append(Result(rule.id, entry.label, outcome, why))
            progress(entry.label, rule.id)
    return Consumer(entry.name, entry.version, entry.side, reason), results


def rules_for(entry: Entry, rules: tuple[Rule, ...]) -> list[Rule]:
    """Give the rules that are asked at a consumer: all at the reference, else those asked of every one."""
    return [rule for rule in rules if entry.side is Side.BOTH or CHECKS[rule.id].every]


def pairs() -> Iterator[tuple[str, str]]:
    """Give every rule and the consumer it is asked at, by identifier and label."""
    for entry in known.ENTRIES:
        for rule in rules_for(entry, RULES):
            yield rule.id, entry.label


def choose_consumers(wanted: list[str] | None) -> list[Entry]:
    """Find consumers by name or label.

    Raises
    ------
    ValueError
        There is none.
    """
    entries = [entry for entry in known.ENTRIES if not wanted or _matches(wanted, entry.name, entry.label)]
    if not entries:
        raise ValueError(f"no consumer {wanted}: {', '.join(known.BY_LABEL)}")
    return entries


def choose_rules(wanted: list[str] | None) -> tuple[Rule, ...]:
    """Find rules by identifier or group.

    Raises
    ------
    ValueError
        There is none.
    """
    rules = tuple(rule for rule in RULES if not wanted or _matches(wanted, rule.id, rule.group))
    if not rules:
        raise ValueError(f"no rule {wanted}: see --list")
    return rules


def _matches(wanted: list[str], *names: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in wanted)


def versions_of(entries: list[Entry]) -> dict[str, str]:
    """Give the versions of all that takes part, as far as it is installed."""
    versions = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    versions.update({entry.name: entry.version for entry in entries if entry.version and entry.side is not Side.BOTH})
    return versions
