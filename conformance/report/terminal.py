"""The report in the terminal: one line for each consumer, then everything unexpected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from conformance.report.wording import (
    SYMBOLS,
    counted,
    date_of,
    differing,
    groups_of,
    machine_of,
    verdicts,
    with_outcome,
)
from conformance.results import Outcome

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from rich.console import Console

    from conformance.results import Report

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.KNOWN_FAULT: "yellow",
    Outcome.NOT_APPLICABLE: "dim",
    Outcome.NOT_RUN: "blue",
}


def show(report: Report, console: Console) -> None:
    """Print the summary of a report."""
    console.print(Text(f"{report.producer}, {report.driver}, {date_of(report)}", style="bold"))
    console.print(Text(machine_of(report), style="dim"))
    console.print(_consumers(report))
    for line in _not_run(report):
        console.print(line)
    for outcome, heading in (
        (Outcome.KNOWN_FAULT, "Known faults"),
        (Outcome.FAIL, "Unexpected"),
    ):
        results = with_outcome(report, outcome)
        if results:
            console.print(f"\n[{STYLES[outcome]}]{heading}: {len(results)}[/]")
        for result in results:
            where = f"[bold]{escape(result.rule)}[/], {escape(result.consumer)}"
            console.print(f"  [{STYLES[outcome]}]{SYMBOLS[outcome]}[/] {where}")
            if result.reason:
                console.print(Text(f"    {result.reason}"))
    verdict = "[green]Nothing unexpected[/]" if report.passed else "[bold red]Not as expected[/]"
    console.print(f"\n{verdict}: {len(report.rules)} rules, {len(report.consumers)} consumers, {_sum(report.count())}")


def show_side_by_side(reports: Sequence[Report], console: Console) -> None:
    """Print what came of each group of rules with each producer, and the rules in which they differ."""
    table = Table(title="Rules, by the worst outcome at any consumer", title_justify="left")
    table.add_column("group")
    for report in reports:
        table.add_column(report.producer)
    for group, rules in groups_of(reports[0]).items():
        table.add_row(group, *(_counts(verdicts(report, rules)) for report in reports))
    table.add_section()
    table.add_row("all", *(_counts(verdicts(report, report.rules)) for report in reports), style="bold")
    console.print(table)
    for rule in differing(reports):
        outcomes = ", ".join(f"{report.producer} {report.verdict(rule.id)}" for report in reports)
        console.print(f"  [bold]{escape(rule.id)}[/] {escape(outcomes)}")


def _consumers(report: Report) -> Table:
    """Give a table that fits 80 columns: the outcomes are named by their symbols."""
    table = Table(caption=_legend(), caption_justify="left")
    table.add_column("consumer", no_wrap=True)
    table.add_column("version", no_wrap=True)
    for outcome, symbol in SYMBOLS.items():
        table.add_column(Text(symbol, style=STYLES[outcome]), justify="right", no_wrap=True)
    for consumer in report.consumers:
        counts = report.count(consumer.label)
        figures = [Text(str(counts[outcome] or ""), style=STYLES[outcome]) for outcome in SYMBOLS]
        table.add_row(Text(consumer.label), Text(consumer.version), *figures)
    return table


def _legend() -> Text:
    return Text("  ").join(Text(f"{symbol} {outcome}", style=STYLES[outcome]) for outcome, symbol in SYMBOLS.items())


def _not_run(report: Report) -> list[Text]:
    """Say which consumers did not run, by reason."""
    by_reason: dict[str, list[str]] = {}
    for consumer in report.consumers:
        if consumer.reason:
            by_reason.setdefault(consumer.reason, []).append(consumer.label)
    return [Text(f"Not run, {reason}: {', '.join(labels)}", style="dim") for reason, labels in by_reason.items()]


def _counts(counts: Counter[Outcome]) -> Text:
    text = Text()
    for outcome, number in counted(counts):
        text.append(f"{SYMBOLS[outcome]} {number}  ", style=STYLES[outcome])
    return text


def _sum(counts: Counter[Outcome]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in counted(counts))
