"""What every form of the report says in the same words: outcomes, their symbols, and what is unexpected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from conformance.results import Consumer, Outcome, Report, Result, Rule

SYMBOLS = {
    Outcome.PASS: "✓",
    Outcome.FAIL: "✗",
    Outcome.KNOWN_FAULT: "!",
    Outcome.NOT_APPLICABLE: "\N{EN DASH}",
    Outcome.NOT_RUN: "○",
}
MEANINGS = {
    Outcome.PASS: "the rule holds",
    Outcome.FAIL: "not as expected: the rule is broken, or holds although a fault is on record",
    Outcome.KNOWN_FAULT: "the rule is broken, by a fault that is on record with its versions",
    Outcome.NOT_APPLICABLE: "the rule cannot be asked here",
    Outcome.NOT_RUN: "the rule could be asked, but not on this machine",
}


def groups_of(report: Report) -> dict[str, list[Rule]]:
    """Give the rules by group, in the contract's order."""
    groups: dict[str, list[Rule]] = {}
    for rule in report.rules:
        groups.setdefault(rule.group, []).append(rule)
    return groups


def consumers_in(report: Report, rules: Sequence[Rule]) -> list[Consumer]:
    """Give the consumers of which any of these rules was asked."""
    asked = {result.consumer for result in report.results if result.rule in {rule.id for rule in rules}}
    return [consumer for consumer in report.consumers if consumer.label in asked]


def with_outcome(report: Report, outcome: Outcome) -> list[Result]:
    """Give the results of one outcome, in the contract's order."""
    order = {rule.id: place for place, rule in enumerate(report.rules)}
    found = [result for result in report.results if result.outcome is outcome]
    return sorted(found, key=lambda result: order.get(result.rule, len(order)))


def verdicts(report: Report, rules: Sequence[Rule]) -> Counter[Outcome]:
    """Count what came of each of these rules, whoever was asked: the worst outcome counts."""
    return Counter(report.verdict(rule.id) for rule in rules)


def worst_reason(report: Report, rule: Rule) -> str:
    """Say who had the worst outcome of a rule, and why."""
    verdict = report.verdict(rule.id)
    worst = [result for result in report.results if result.rule == rule.id and result.outcome is verdict]
    return "; ".join(f"{result.consumer}: {result.reason}" for result in worst if result.reason)


def differing(reports: Sequence[Report]) -> list[Rule]:
    """Give the rules that did not come to the same with each producer."""
    return [rule for rule in reports[0].rules if len({report.verdict(rule.id) for report in reports}) > 1]


def counted(counts: Counter[Outcome]) -> list[tuple[Outcome, int]]:
    """Give the outcomes that there are, in the usual order, with their numbers."""
    return [(outcome, counts[outcome]) for outcome in SYMBOLS if counts[outcome]]


def machine_of(report: Report) -> str:
    """Say what the suite ran on, but for a GPU that there is not."""
    parts = (f"{value} {name}" if isinstance(value, int) else str(value) for name, value in report.hardware.items())
    return ", ".join(part for part in parts if part != report.driver and not part.startswith("none"))


def date_of(report: Report) -> str:
    """Give the date for people: 2026-12-02 09:18 UTC."""
    day, _, time = report.date.partition("T")
    return f"{day} {time[:5]} UTC" if time else day
