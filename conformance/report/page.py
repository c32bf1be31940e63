"""The report as one HTML page that refers to nothing outside; it can be read without JavaScript, which only filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

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
from conformance.results import Consumer, Outcome, Report, Result, Rule, Side

_HERE = Path(__file__).parent
_CLASSES = {
    Outcome.PASS: "pass",
    Outcome.FAIL: "fail",
    Outcome.KNOWN_FAULT: "known",
    Outcome.NOT_APPLICABLE: "na",
    Outcome.NOT_RUN: "unrun",
}
_SIDES = {Side.CPU: "cpu", Side.CUDA: "cuda", Side.BOTH: "both"}


def render(report: Report, *others: Report) -> str:
    """Give the page; with the reports of other producers, the first is told in full and compared with them."""
    title = f"Conformance of {report.producer}"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{(_HERE / 'page.css').read_text(encoding='utf-8')}</style>",
            "</head>\n<body>",
            _header(report, title),
            "<main>",
            _list_of(report, Outcome.FAIL, "Unexpected"),
            _list_of(report, Outcome.KNOWN_FAULT, "Known faults"),
            _side_by_side([report, *others]) if others else "",
            _consumers(report),
            _matrix(report),
            "</main>",
            f"<script>\n{(_HERE / 'page.js').read_text(encoding='utf-8')}</script>",
            "</body>\n</html>\n",
        ]
    )


# ---- summary ----


def _header(report: Report, title: str) -> str:
    verdict, look = ("Nothing unexpected", "pass") if report.passed else ("Not as expected", "fail")
    versions = "".join(f"<li>{escape(name)} {escape(version)}</li>" for name, version in report.versions.items())
    return (
        f"<header>\n<h1>{escape(title)}</h1>\n"
        f'<p class="verdict {look}">{SYMBOLS[Outcome.PASS if report.passed else Outcome.FAIL]} {verdict}</p>\n'
        f"<p>{len(report.rules)} rules, {len(report.consumers)} consumers. {_chips(report.count())}</p>\n"
        f"<p>{escape(report.driver)}; {escape(machine_of(report))}; "
        f'<time datetime="{escape(report.date)}">{escape(date_of(report))}</time></p>\n'
        f'<details><summary>Versions</summary><ul class="versions">{versions}</ul></details>\n'
        f"<details><summary>What the symbols mean</summary><ul>{_legend()}</ul></details>\n</header>"
    )


def _legend() -> str:
    return "".join(f"<li>{_chip(outcome)} {escape(meaning)}</li>" for outcome, meaning in MEANINGS.items())


def _chips(counts: Counter[Outcome]) -> str:
    return " ".join(_chip(outcome, number) for outcome, number in counted(counts))


def _chip(outcome: Outcome, number: int | None = None) -> str:
    figure = "" if number is None else f"{number} "
    return f'<span class="chip {_CLASSES[outcome]}">{_symbol(outcome)} {figure}{outcome}</span>'


def _symbol(outcome: Outcome) -> str:
    return f'<span aria-hidden="true">{SYMBOLS[outcome]}</span>'


def _list_of(report: Report, outcome: Outcome, heading: str) -> str:
    results = with_outcome(report, outcome)
    if not results:
        return ""
    lines = "".join(
        f"<li>{_chip(outcome)} <code>{escape(each.rule)}</code>, {escape(each.consumer)}: {escape(each.reason)}</li>"
        for each in results
    )
    is_open = " open" if outcome is Outcome.FAIL else ""
    return (
        f"<section><details{is_open}><summary><h2>{heading}: {len(results)}</h2></summary>"
        f'<ul class="results">{lines}</ul></details></section>'
    )


def _consumers(report: Report) -> str:
    heads = "".join(f'<th scope="col">{_symbol(outcome)} {outcome}</th>' for outcome in SYMBOLS)
    rows = "".join(_consumer(report, consumer) for consumer in report.consumers)
    return (
        "<section><details open><summary><h2>Consumers</h2></summary>\n"
        '<div class="scroll" tabindex="0" role="region" aria-label="Consumers"><table class="figures">'
        f'<thead><tr><th scope="col">consumer</th><th scope="col" class="text">version</th>{heads}'
        f'<th scope="col" class="text">remark</th></tr></thead><tbody>{rows}</tbody></table></div></details></section>'
    )


def _consumer(report: Report, consumer: Consumer) -> str:
    counts = report.count(consumer.label)
    figures = "".join(
        f'<td class="{_CLASSES[outcome] if counts[outcome] else ""}">{counts[outcome] or ""}</td>'
        for outcome in SYMBOLS
    )
    return (
        f'<tr data-side="{_SIDES[consumer.side]}"><th scope="row">{escape(consumer.label)}</th>'
        f'<td class="text">{escape(consumer.version)}</td>{figures}'
        f'<td class="text">{escape(consumer.reason)}</td></tr>\n'
    )


# ---- producers side by side ----


def _side_by_side(reports: Sequence[Report]) -> str:
    heads = "".join(f'<th scope="col" class="text">{escape(report.producer)}</th>' for report in reports)
    rows = [
        f'<tr><th scope="row">{escape(group)}</th>{_verdicts(reports, [rule.id for rule in rules])}</tr>'
        for group, rules in groups_of(reports[0]).items()
    ]
    rows.append(f'<tr class="sum"><th scope="row">all</th>{_verdicts(reports, None)}</tr>')
    return (
        "<section><details open><summary><h2>Producers side by side</h2></summary>\n"
        "<p>Each rule counts once, by its worst outcome at any consumer.</p>\n"
        '<div class="scroll" tabindex="0" role="region" aria-label="Producers side by side"><table class="figures">'
        f'<thead><tr><th scope="col">group</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f"{_differences(reports, heads)}</details></section>"
    )


def _verdicts(reports: Sequence[Report], identifiers: list[str] | None) -> str:
    cells = []
    for report in reports:
        rules = [rule for rule in report.rules if identifiers is None or rule.id in identifiers]
        cells.append(f'<td class="text">{_chips(verdicts(report, rules))}</td>')
    return "".join(cells)


def _differences(reports: Sequence[Report], heads: str) -> str:
    rules = differing(reports)
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(rule.id)}</code><p>{escape(rule.sentence)}</p></th>'
        f"{''.join(_difference(report, rule) for report in reports)}</tr>\n"
        for rule in rules
    )
    return (
        f"<details><summary>Rules in which they differ: {len(rules)}</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Rules in which producers differ">'
        f'<table class="figures differences"><thead><tr><th scope="col">rule</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _difference(report: Report, rule: Rule) -> str:
    outcome = report.verdict(rule.id)
    reason = "" if outcome is Outcome.PASS else worst_reason(report, rule)
    return f'<td class="text">{_chip(outcome)}<p>{escape(reason)}</p></td>'


# ---- the matrix ----


def _matrix(report: Report) -> str:
    groups = groups_of(report)
    return (
        '<section id="matrix">\n<h2>Rules and consumers</h2>\n'
        f"{_filters(list(groups))}\n"
        f"{''.join(_group(report, group, rules) for group, rules in groups.items())}"
        '<p id="nothing" hidden>No rule fits these filters.</p></section>'
    )


def _filters(groups: list[str]) -> str:
    """Give the controls, which only JavaScript shows."""
    outcomes = "".join(
        _box("outcome", _CLASSES[outcome], f"{_symbol(outcome)} {outcome}", _CLASSES[outcome]) for outcome in SYMBOLS
    )
    sides = "".join(
        _box("side", _SIDES[side], name, "")
        for side, name in ((Side.BOTH, "reference"), (Side.CPU, str(Side.CPU)), (Side.CUDA, str(Side.CUDA)))
    )
    names = "".join(f'<option value="{escape(group)}">{escape(group)}</option>' for group in groups)
    return (
        '<form id="filters" hidden aria-label="Filters">'
        f"<fieldset><legend>Rules with</legend>{outcomes}</fieldset>"
        f"<fieldset><legend>Consumers</legend>{sides}</fieldset>"
        '<fieldset><legend>Group</legend><select name="group" aria-label="Group">'
        f'<option value="">all groups</option>{names}</select> '
        '<button type="button" id="fold">Fold all</button></fieldset>'
        '<p id="shown" role="status"></p></form>'
    )


def _box(name: str, value: str, label: str, look: str) -> str:
    return f'<label class="chip {look}"><input type="checkbox" name="{name}" value="{value}" checked> {label}</label> '


def _group(report: Report, group: str, rules: Sequence[Rule]) -> str:
    consumers = consumers_in(report, rules)
    results = [report.find(rule.id, consumer.label) for rule in rules for consumer in consumers]
    counts = Counter(result.outcome for result in results if result is not None)
    heads = "".join(_column_head(consumer) for consumer in consumers)
    rows = "".join(_row(report, rule, consumers) for rule in rules)
    return (
        f'<details class="group" id="group-{escape(group)}" data-group="{escape(group)}" open>'
        f"<summary><h3>{escape(group)}</h3> "
        f'<span class="size">{len(rules)} {"rule" if len(rules) == 1 else "rules"}</span> {_chips(counts)}</summary>\n'
        '<table class="matrix" role="table">'
        f'<caption class="unseen">Rules of the group {escape(group)}, by consumer</caption>'
        '<thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col" class="rule">rule</th>'
        f'{heads}</tr></thead><tbody role="rowgroup">{rows}</tbody></table></details>\n'
    )


def _column_head(consumer: Consumer) -> str:
    absent = ' class="absent"' if consumer.reason else ""
    note = f'<span class="unseen"> (not run: {escape(consumer.reason)})</span>' if consumer.reason else ""
    title = f' title="{escape(f"{consumer.label} {consumer.version} {consumer.reason}".strip())}"'
    return (
        f'<th role="columnheader" scope="col" data-side="{_SIDES[consumer.side]}"{absent}{title}>'
        f"<span>{escape(consumer.name)}{_view_of(consumer)}{note}</span></th>"
    )


def _view_of(consumer: Consumer) -> str:
    return "" if consumer.side is Side.BOTH else f" <small>{escape(consumer.side)}</small>"


def _row(report: Report, rule: Rule, consumers: Sequence[Consumer]) -> str:
    cells = "".join(_cell(rule, each, report.find(rule.id, each.label)) for each in consumers)
    return (
        f'<tr role="row"><th role="rowheader" scope="row" class="rule">{escape(rule.sentence)}'
        f"<details><summary><code>{escape(rule.id)}</code> <small>{escape(rule.source)}</small></summary>"
        f"<p>Check: {escape(rule.check)}</p></details></th>{cells}</tr>\n"
    )


def _cell(rule: Rule, consumer: Consumer, result: Result | None) -> str:
    side = f'data-side="{_SIDES[consumer.side]}"'
    if result is None:
        return f'<td role="cell" {side} class="none"><span class="unseen">not asked</span></td>'
    look = f'class="{_CLASSES[result.outcome]}{" absent" if consumer.reason else ""}"'
    name = f'<span class="who">{escape(consumer.name)}{_view_of(consumer)}</span>'
    outcome = f'{_symbol(result.outcome)}<span class="unseen">{result.outcome}</span>{name}'
    if not result.reason or consumer.reason:  # a consumer that did not run says why in its column's head
        return f'<td role="cell" {side} {look}>{outcome}</td>'
    tip = f"tip-{rule.id}-{consumer.label}".replace(" ", "-").replace("(", "").replace(")", "")
    return (
        f'<td role="cell" {side} {look}><button type="button" aria-describedby="{escape(tip)}">{outcome}</button>'
        f'<span class="tip" role="tooltip" id="{escape(tip)}">{_chip(result.outcome)} <code>{escape(rule.id)}</code>, '
        f"{escape(consumer.label)}: {escape(result.reason)}</span></td>"
    )
