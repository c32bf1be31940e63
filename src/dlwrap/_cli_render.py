"""Shows what `_info` and `_demo` found; the only module that imports rich."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dlwrap import DeviceSupport
    from dlwrap._demo import Story
    from dlwrap._doctor import Diagnosis
    from dlwrap._findings import DeviceFacts
    from dlwrap._info import Report

_WIDTH_IN_FILES = 120
_WITHOUT_GPU = "Without a GPU, python -m dlwrap demo runs on the simulated CUDA driver; so can tests: dlwrap.testing."


def show_report(report: Report) -> None:
    """Print devices, versions and consumers."""
    console = _console()
    if report.simulated:
        console.print("The devices below are those of the simulated CUDA driver.")
    for device in report.devices:
        console.print(_device_table(device))
    if report.obstacle is not None:
        console.print(Text(f"No CUDA device: {report.obstacle}", style="bold yellow"))
        for line in (report.advice, _WITHOUT_GPU):
            if line is not None:
                console.print(line)
    console.print()
    console.print(_named("Versions", report.versions))
    console.print()
    console.print(_named("Consumers installed", report.consumers or {"none": "pip install torch, CuPy, JAX, ..."}))


def show_story(story: Story) -> None:
    """Print the timeline and the verdict."""
    console = _console()
    console.print(Text(f"dlwrap demo {story.where}"))
    console.print(Text(f"consumer: {story.consumer}"))
    table = Table(box=None, pad_edge=False)
    table.add_column("seconds", justify="right", style="cyan")
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("seen by")
    for event in story.events:
        table.add_row(f"{event.seconds:.4f}", event.what, event.seen_by)
    console.print(table)
    for violation in story.violations:
        console.print(Text(f"VIOLATED: {violation}", style="bold red"))
    if not story.violations:
        console.print(Text("In order: the array was freed after the GPU was done.", style="green"))


_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def show_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the figures of each device, and the findings with their cures."""
    console = _console()
    for device in diagnosis.facts.devices:
        console.print(_test_table(device))
        console.print()
    for each in diagnosis.findings:
        where = "" if each.device is None else f" (device {each.device})"
        console.print(Text(f"{each.severity}: {each.id}{where}", style=_STYLES[each.severity]))
        console.print(Text(f"  {each.text}"))
        console.print(Text(f"  cure: {each.cure}"))
    failed = sum(each.severity == "error" for each in diagnosis.findings)
    verdict = f"{failed} of these make dlwrap fail." if failed else "dlwrap works here."
    console.print(Text(verdict, style="bold red" if failed else "green"))


def _test_table(device: DeviceFacts) -> Table:
    test = device.test
    rows = {
        "self-test": "failed" if test.failure is not None else "passed" if test.nbytes else "impossible",
        "memory": f"{test.memory}, an array of {test.nbytes / 2**20:.0f} MiB",
    }
    figures = {
        "page-locking it": test.page_lock_gbs,
        "the device reads it": test.read_gbs,
        "the device writes it": test.write_gbs,
        "for comparison, a copy of pageable memory": test.pageable_copy_gbs,
    }
    rows.update({name: f"{value:.1f} GB/s" for name, value in figures.items() if value is not None})
    return _named(f"Device {device.support.device}: {device.support.name}", rows)


def _console() -> Console:
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=_WIDTH_IN_FILES)


def _device_table(device: DeviceSupport) -> Table:
    version = f"{device.driver_version // 1000}.{device.driver_version % 1000 // 10}"
    rows = {
        'memory="auto" means': device.memory or "neither kind is possible",
        "because": device.reason,
        "CUDA of the driver": version,
    }
    rows.update(
        {
            each.name: "yes" if value else "no"
            for each in fields(device)
            if isinstance(value := getattr(device, each.name), bool)
        }
    )
    return _named(f"Device {device.device}: {device.name}", rows)


def _named(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table
