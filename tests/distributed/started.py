"""The processes that tests start: what they inherit, which there are, and whether they have ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """Give the environment for processes of others that import what the tests import; coverage leaves them alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def descendants(pid: int | None = None) -> set[int]:
    """List the children of a process, by default of this one, with their children.

    Without the resource tracker of multiprocessing, which ends with its program.
    """
    found: set[int] = set()
    for listed in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        try:
            children = [int(child) for child in listed.read_text().split()]
        except OSError:
            continue  # the thread has ended meanwhile
        for child in children:
            if "resource_tracker" not in "".join(running({child})):
                found |= {child} | descendants(child)
    return found


def running(pids: set[int]) -> list[str]:
    """Give the command lines of those that have not ended; a zombie has."""
    found = []
    for pid in sorted(pids):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state != "Z":
            found.append(f"{pid} {command[:200]}")
    return found
