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

    from conformance.results import Consumer, Report

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
    table = Table()
    for heading in ("consumer", "version"):
        table.add_column(heading, no_wrap=True)
    for outcome, symbol in SYMBOLS.items():
        table.add_column(f"{symbol} {outcome}", justify="right", no_wrap=True)
    table.add_column("")
    for consumer in report.consumers:
        table.add_row(*_line(report, consumer))
    return table


def _line(report: Report, consumer: Consumer) -> list[Text]:
    counts = report.count(consumer.label)
    return [
        Text(consumer.label),
        Text(consumer.version),
        *(Text(str(counts[outcome] or ""), style=STYLES[outcome]) for outcome in SYMBOLS),
        Text(consumer.reason, style="dim"),
    ]


def _counts(counts: Counter[Outcome]) -> Text:
    text = Text()
    for outcome, number in counted(counts):
        text.append(f"{SYMBOLS[outcome]} {number}  ", style=STYLES[outcome])
    return text


def _sum(counts: Counter[Outcome]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in counted(counts))
