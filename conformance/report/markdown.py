"""The report as Markdown: the summary first, then a table for each group of rules, with the reasons as footnotes."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.report.wording import (
    MEANINGS,
    SYMBOLS,
    consumers_in,
    counted,
    date_of,
    differing,
    groups_of,
    machine_of,
    verdicts,
    with_outcome,
    worst_reason,
)
from conformance.results import Consumer, Outcome, Report, Rule


def render(report: Report, *others: Report) -> str:
    """Give the report; with those of other producers, the first is told in full and compared with them."""
    notes = _Footnotes()
    lines = [f"# Conformance of {_escape(report.producer)}", "", *_summary(report), ""]
    if others:
        lines += ["## Producers side by side", "", *side_by_side([report, *others]), ""]
    for outcome, heading in ((Outcome.FAIL, "Unexpected"), (Outcome.KNOWN_FAULT, "Known faults")):
        results = with_outcome(report, outcome)
        if results:
            lines += [f"## {heading}", ""]
            lines += [f"- `{each.rule}`, {each.consumer}: {_escape(each.reason)}" for each in results]
            lines += [""]
    lines += [
        "## Rules",
        "",
        " · ".join(f"{SYMBOLS[outcome]} {outcome}: {MEANINGS[outcome]}" for outcome in SYMBOLS),
        "",
    ]
    for group, rules in groups_of(report).items():
        lines += [f"### {group}", "", *_group(report, rules, notes), ""]
    return "\n".join([*lines, *notes.lines]).rstrip() + "\n"


def side_by_side(reports: Sequence[Report]) -> list[str]:
    """Give, for each group of rules, what came of it with each producer; and the rules in which they differ."""
    heading = " | ".join(_escape(report.producer) for report in reports)
    lines = groups_side_by_side(reports)
    rules = differing(reports)
    if rules:
        lines += ["", f"Rules in which they differ: {len(rules)}.", "", f"| rule | {heading} |"]
        lines += ["|---|" + "---|" * len(reports)]
        lines += [f"| `{rule.id}` | {' | '.join(_verdict(report, rule) for report in reports)} |" for rule in rules]
    return lines


def groups_side_by_side(reports: Sequence[Report]) -> list[str]:
    """Give, for each group of rules, what came of it with each producer."""
    heading = " | ".join(_escape(report.producer) for report in reports)
    lines = [f"| group | {heading} |", "|---|" + "---|" * len(reports)]
    for group, rules in groups_of(reports[0]).items():
        lines.append(f"| {group} | {' | '.join(_counts(report, rules) for report in reports)} |")
    lines.append(f"| **all** | {' | '.join(_counts(report, report.rules) for report in reports)} |")
    return lines


def _summary(report: Report) -> list[str]:
    counts = ", ".join(f"{number} {outcome}" for outcome, number in counted(report.count()))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return [
        f"**{'Nothing unexpected' if report.passed else 'Not as expected'}**: {len(report.rules)} rules, {counts}.",
        "",
        f"- {date_of(report)}, {_escape(report.driver)}; {_escape(machine_of(report))}",
        f"- {_escape(versions)}",
        "",
        f"| consumer | version | {' | '.join(f'{symbol} {outcome}' for outcome, symbol in SYMBOLS.items())} | |",
        "|---|---|" + "--:|" * len(SYMBOLS) + "---|",
        *(_consumer(report, consumer) for consumer in report.consumers),
    ]


def _consumer(report: Report, consumer: Consumer) -> str:
    counts = report.count(consumer.label)
    figures = " | ".join(str(counts[outcome] or "") for outcome in SYMBOLS)
    return f"| {consumer.label} | {_escape(consumer.version)} | {figures} | {_escape(consumer.reason)} |"


def _counts(report: Report, rules: Sequence[Rule]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in counted(verdicts(report, rules)))


def _verdict(report: Report, rule: Rule) -> str:
    outcome = report.verdict(rule.id)
    reason = "" if outcome is Outcome.PASS else worst_reason(report, rule)
    return f"{SYMBOLS[outcome]} {outcome}" + (f"<br>{_escape(reason)}" if reason else "")


def _group(report: Report, rules: Sequence[Rule], notes: _Footnotes) -> list[str]:
    """Give a group's table; consumers that did not run are in the summary alone."""
    consumers = [consumer for consumer in consumers_in(report, rules) if not consumer.reason]
    lines = [
        f"| rule | demands | source | {' | '.join(consumer.label for consumer in consumers)} |",
        "|---|---|---|" + ":-:|" * len(consumers),
    ]
    for rule in rules:
        cells = [_cell(report, rule, consumer, notes) for consumer in consumers]
        about = " | ".join(map(_escape, (rule.sentence, rule.source)))
        lines.append(f"| `{rule.id}` | {about} | {' | '.join(cells)} |")
    return lines


def _cell(report: Report, rule: Rule, consumer: Consumer, notes: _Footnotes) -> str:
    result = report.find(rule.id, consumer.label)
    if result is None:
        return ""
    return SYMBOLS[result.outcome] + (notes.refer(result.reason) if result.reason else "")


class _Footnotes:
    """The reasons, each told once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def refer(self, reason: str) -> str:
        return f"[^{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"

    @property
    def lines(self) -> list[str]:
        return [f"[^{number}]: {_escape(reason)}" for reason, number in self._numbers.items()]


def _escape(text: str) -> str:
    """Keep a text on one line, in one cell, and free of markup."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
