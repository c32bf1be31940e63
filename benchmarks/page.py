"""Writes docs/performance.md from the results that are committed.

python benchmarks/page.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    sys.path[0] = str(ROOT)

# Found by the line above.
from benchmarks._results import latest, missing  # noqa: E402
from benchmarks.goals import GOALS, Goal  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
PLOTS = {
    "uses": ("plots/copy-or-wrap.svg", "When wrapping in place wins over copying"),
    "linger": ("plots/releases.svg", "What releases cost the rest of the program, by how long memory lingers"),
    "registering": ("plots/registering.svg", "What wrapping costs, by size"),
    "live_buffers": ("plots/scale.svg", "What wraps, exports and releases cost, by how many there are"),
}


def render(simulated: dict[str, Any] | None, gpu: dict[str, Any] | None) -> str:
    """Give the page for the results on the simulated driver and on a GPU."""
    machines = [each for each in (simulated, gpu) if each is not None]
    lines = [
        "# What dlwrap costs",
        "",
        "Written by `python benchmarks/page.py` from the results in `benchmarks/results`; do not edit.",
        "`python benchmarks/run.py --out FILE.json` measures again: what is compared takes turns in one process.",
        "A figure is the median of its repeats; a ratio that of the ratios of each turn. Bold figures miss the goal.",
        "",
        *(f"- {describe_machine(each)}" for each in machines),
        "",
        "## Goals",
        "",
        f"| what | goal | {' | '.join(column_of(each) for each in machines)} |",
        "|---|---|" + "---|" * len(machines),
        *(
            f"| {goal.what} | {bound_of(goal)} | {' | '.join(cell(goal, each) for each in machines)} |"
            for goal in GOALS
        ),
        "",
        "The simulated driver notes every call, in most of a microsecond: its column does not show what calls cost.",
        "",
        *missed(machines),
        *plots(machines),
        "## Rows, with their peers",
        "",
    ]
    for results in machines:
        lines += [f"### {column_of(results)}", "", *rows(results), ""]
    lines += ["## Curves", "", *curves(machines)]
    return "\n".join(lines).rstrip() + "\n"


def describe_machine(results: dict[str, Any]) -> str:
    hardware, versions = results["hardware"], results["versions"]
    installed = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    driver = "" if hardware["driver"] == "simulated" else f", driver {hardware['driver']}, CUDA {hardware['cuda']}"
    return (
        f"{column_of(results)}: {results['date']}, {hardware['gpu']}{driver}; {hardware['processors']} processors, "
        f"{hardware['processor']}; {installed}"
    )


def column_of(results: dict[str, Any]) -> str:
    return str(results["hardware"]["gpu"]).removeprefix("NVIDIA ")


# ---- goals ----


def bound_of(goal: Goal) -> str:
    if goal.bound == 0:
        return "0"
    return f"{'≥' if goal.at_least else '≤'} {number(goal.bound)} {symbol(goal.unit)}"


def cell(goal: Goal, results: dict[str, Any]) -> str:
    """Give what a goal came to."""
    row = results["rows"].get(goal.row)
    reason = missing(row)
    if row is None or reason is not None:
        return f"- ({escape(reason or '')})"
    text = f"{number(row[goal.figure])} {symbol(goal.unit)}"
    if goal.figure != "value":
        text += f" ({number(row['value'])} {symbol(row['unit'])})"
    return text if goal.is_met(row) else f"**{text}**"


def missed(machines: list[dict[str, Any]]) -> list[str]:
    """List the goals that are missed, by how much, and why."""
    lines = []
    for goal in GOALS:
        misses = [
            f"{column_of(results)} {goal.miss(results['rows'][goal.row])}"
            for results in machines
            if missing(results["rows"].get(goal.row)) is None and not goal.is_met(results["rows"][goal.row])
        ]
        if misses:
            lines.append(f"- {goal.what}: {'; '.join(misses)}{'. ' if goal.limit else ''}{goal.limit}")
    return ["### Goals that are missed", "", *lines, ""] if lines else []


def plots(machines: list[dict[str, Any]]) -> list[str]:
    """Show the plots that there are curves for."""
    lines = []
    for name, (path, title) in PLOTS.items():
        if any(missing(results["curves"].get(name)) is None for results in machines):
            lines += [f"![{title}]({path})", ""]
    return ["## Plots", "", *lines] if lines else []


# ---- rows ----


def rows(results: dict[str, Any]) -> list[str]:
    lines = ["| row | what | median | quartiles | repeats | ratio |", "|---|---|---|---|---|---|"]
    reasons = []
    for name, row in results["rows"].items():
        reason = missing(row)
        if reason is not None:
            reasons.append(f"- {name}: {escape(reason)}")
            continue
        against = f"{number(row['ratio'])} x {escape(row['against'])}" if "ratio" in row else ""
        lines.append(f"| {name} | {figures_of(row['of'], row)} | {against} |")
        lines += [f"| | {figures_of(peer, figures)} | |" for peer, figures in row.get("peers", {}).items()]
    return [*lines, *(["", "Not measured:", "", *reasons] if reasons else [])]


def figures_of(name: str, figures: dict[str, Any]) -> str:
    quartiles = f"{number(figures['low'])} to {number(figures['high'])}" if "low" in figures else ""
    return (
        f"{escape(name)} | {number(figures['value'])} {symbol(figures['unit'])} | {quartiles} | {figures['repeats']:,}"
    )


# ---- curves ----


def curves(machines: list[dict[str, Any]]) -> list[str]:
    lines, reasons = [], []
    for results in machines:
        for name, curve in results["curves"].items():
            title = f"{name.replace('_', ' ')}, {column_of(results)}"
            reason = missing(curve)
            if reason is None:
                lines += [f"### {title}", "", *curve_table(curve), ""]
            else:
                reasons.append(f"- {title}: {escape(reason)}")
    return [*lines, *(["Not measured:", "", *reasons, ""] if reasons else [])]


def curve_table(curve: dict[str, Any]) -> list[str]:
    """Give a curve as a table, a line for each x; where there are many columns, a line for each x and way."""
    headings, lines = table_of(curve)
    unit = f"In {symbol(curve['unit'])}. " if "unit" in curve else ""
    return [
        *([f"{unit}{curve.get('left_out', '')}".strip(), ""] if unit or "left_out" in curve else []),
        f"| {' | '.join(headings)} |",
        "|" + "---|" * len(headings),
        *(f"| {' | '.join(line)} |" for line in lines),
        *[f"\nLeft out: {escape(name)}: {escape(why)}" for name, why in curve.get("failures", {}).items()],
    ]


def table_of(curve: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    x = curve["x"]
    labels = [size(value) if x == "bytes" else number(value) for value in curve[x]]
    columns = {
        name: values
        for name, values in curve.items()
        if name not in (x, "x", "unit", "uses", "left_out", "failures") and values
    }
    if "uses" in curve:  # for each way and x a list by uses
        headings = [x, "way", *(f"{uses} uses" if uses > 1 else "1 use" for uses in curve["uses"])]
        return headings, [
            [label, escape(way), *map(number, values[at])]
            for at, label in enumerate(labels)
            for way, values in columns.items()
        ]
    if any(isinstance(values, dict) for values in columns.values()):  # for each step the ways
        headings = ["way", *(f"{step}, {label}" for label in labels for step in columns)]
        ways = next(iter(columns.values()))
        return headings, [
            [escape(way), *(number(columns[step][way][at]) for at in range(len(labels)) for step in columns)]
            for way in ways
        ]
    headings = [x, *map(escape, columns)]
    return headings, [[label, *(number(values[at]) for values in columns.values())] for at, label in enumerate(labels)]


# ---- text ----


def number(value: float) -> str:
    """Write three or four digits, never an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.5f}".rstrip("0")


def size(nbytes: int) -> str:
    """Write a number of bytes as people say it."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def symbol(unit: str) -> str:
    """Write a unit as people do."""
    return unit.replace("us", "\u00b5s") if unit.startswith("us") else unit


def escape(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(render(latest(gpu=False), latest(gpu=True)))
