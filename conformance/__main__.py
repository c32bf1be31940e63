"""The command: ``python -m conformance``."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance import drivers
from conformance.cannot import UnavailableError
from conformance.contract import RULES
from conformance.run import Progress, choose_consumers, choose_rules, rules_for, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.results import Report

WRITERS = {"markdown": ".md", "page": ".html"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 if every outcome is the expected one."""
    options = parse(arguments)
    if options.list:
        list_rules()
        return 0
    try:
        choose_consumers(options.consumer)
        choose_rules(options.rule)
        driver = drivers.choose(options.driver)
        reports = [run_one(producer, driver, options) for producer in options.producer or ["dlwrap"]]
    except (ValueError, UnavailableError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    for report in reports:
        show(report)
    if options.report is not None:
        for report in reports:
            write(report, options.report, *(other for other in reports if report is reports[0] and other is not report))
    return 0 if all(report.passed for report in reports) else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance",
        description="Tell, rule by rule and framework by framework, whether a host array that a producer hands over "
        "arrives right. The exit status is 0 only if every outcome is the expected one.",
    )
    parser.add_argument(
        "--producer",
        action="append",
        metavar="NAME",
        help="dlwrap (the default), numpy, torch, cupy, jax, cuda.core, tvm-ffi, or module:function, which is given a "
        "NumPy array and gives an object over its memory; may be repeated",
    )
    parser.add_argument(
        "--consumer", action="append", metavar="NAME", help="only these, such as torch or 'torch (CUDA)'"
    )
    parser.add_argument("--rule", action="append", metavar="ID", help="only these rules or groups, such as 'data.*'")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write JSON, Markdown and an HTML page there")
    parser.add_argument(
        "--driver", choices=("auto", "real", "simulated"), default="auto", help="by default as there is one"
    )
    parser.add_argument("--list", action="store_true", help="print the contract, and run nothing")
    return parser.parse_args(arguments)


def list_rules() -> None:
    """Print the contract."""
    group = ""
    for rule in RULES:
        if rule.group != group:
            group = rule.group
            print(f"\n{group}")
        print(f"  {rule.id}\n    {rule.sentence}\n    Source: {rule.source}.\n    Check: {rule.check}")


def run_one(producer: str, driver: str, options: argparse.Namespace) -> Report:
    """Run the suite for one producer, with a progress bar if rich is there."""
    rules = choose_rules(options.rule)
    total = sum(len(rules_for(entry, rules)) for entry in choose_consumers(options.consumer))
    with progress_bar(producer, total) as progress:
        return run(producer, driver, consumers=options.consumer, rules=options.rule, progress=progress)


@contextmanager
def progress_bar(producer: str, total: int) -> Iterator[Progress]:
    """Show how far it is."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        yield lambda consumer, rule: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(producer, total=total)
        yield lambda consumer, rule: bar.update(task, advance=1, description=f"{producer} → {consumer}")


def show(report: Report) -> None:
    """Show the summary in the terminal."""
    terminal = writer("terminal")
    if terminal is not None:
        from rich.console import Console

        terminal.show(report, Console())
        return
    print(f"{report.producer}, {report.driver}")
    for consumer in report.consumers:
        counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(report.count(consumer.label).items()))
        print(f"  {consumer.label} {consumer.version}: {counts}")
    for result in report.results:
        if result.outcome == "fail":
            print(f"  FAIL {result.rule} at {result.consumer}: {result.reason}")


def write(report: Report, folder: Path, *others: Report) -> None:
    """Write the report in every form, named by its producer; with the others beside it, if there are any."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]", "-", report.producer)
    report.write(folder / f"{stem}.json")
    for name, suffix in WRITERS.items():
        form = writer(name)
        if form is not None:
            (folder / f"{stem}{suffix}").write_text(form.render(report, *others), encoding="utf-8")


def writer(name: str) -> Any:
    """Find a writer of reports; None where it, or what it needs, is not installed."""
    try:
        return importlib.import_module(f"conformance.report.{name}")
    except ImportError:
        return None


if __name__ == "__main__":
    sys.exit(main())
