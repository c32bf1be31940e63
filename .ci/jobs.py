"""Run the jobs of CI side by side: each with its own log, the first failure ends all, nothing keeps running.

python .ci/jobs.py [--lanes N] [job ...]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
LOGS = ROOT / ".venv-ci" / "logs"
PATIENCE_SECONDS = 10  # what a job has to end itself after SIGTERM
MOST_LANES = 4  # tests that wait for threads have bounds, so the machine must not be overcommitted
PR_SET_CHILD_SUBREAPER = 36
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Job:
    """A command, and the jobs that must have succeeded before it begins."""

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()


# Those that take longest, or that others wait for, come first.
JOBS = (
    # The job "docs" runs those that are left out where more of what they need is installed.
    Job("tests", ("./run", "test", "--ignore=tests/test_docs.py", "--ignore=tests/test_examples.py")),
    Job("install", (".ci/install",)),
    Job("coverage", (".ci/coverage",), after=("install",)),
    Job("thread-sanitizer", (".ci/sanitize", "thread")),
    Job("mutations", (".ci/mutations",), after=("install",)),
    Job("conformance", (".ci/conformance",), after=("install",)),
    Job("address-sanitizer", (".ci/sanitize", "address"), after=("thread-sanitizer",)),  # they share an environment
    Job("wheels", (".ci/wheels",)),
    Job("docs", (".ci/docs",), after=("install",)),
    Job("distributed", (".ci/distributed",)),
    Job("types", (".ci/types",)),
    Job("bindings-12", (".ci/bindings-12",)),
)


@dataclass
class Running:
    """A job that was started."""

    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    begun: float


def run(jobs: Sequence[Job], lanes: int, logs: Path) -> int:
    """Run all jobs, at most `lanes` at a time; give 0, or 1 as soon as one has failed."""
    # What a job leaves behind becomes a child of this process, so that it can be found and ended.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    logs.mkdir(parents=True, exist_ok=True)
    waiting, done, times = list(jobs), set[str](), list[str]()
    running: dict[int, Running] = {}
    began = time.monotonic()
    try:
        while waiting or running:
            while len(running) < lanes and (ready := next((job for job in waiting if done >= set(job.after)), None)):
                waiting.remove(ready)
                started = start(ready, logs / f"{ready.name}.log")
                running[started.process.pid] = started
            pid, status, used = os.wait4(-1, 0)
            if (ended := running.pop(pid, None)) is None:
                continue  # what a job had left behind
            end_group(pid)
            code = os.waitstatus_to_exitcode(status)
            ended.process.returncode = code
            seconds = time.monotonic() - ended.begun
            times.append(f"{ended.job.name:20} {seconds:7.0f} s, CPU {used.ru_utime + used.ru_stime:5.0f} s")
            tell(ended, code)
            if code != 0:
                return 1
            done.add(ended.job.name)
    finally:
        stop(running.values())
    print("\n=== All passed ===", *times, f"{'together':20} {time.monotonic() - began:7.0f} s", sep="\n", flush=True)
    return 0


def start(job: Job, log: Path) -> Running:
    """Start a job in a session, and so a process group, of its own."""
    print(f"--- {job.name}: begun", flush=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            job.command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(job, process, log, time.monotonic())


def tell(ended: Running, code: int) -> None:
    """Print all that a job has said, in one piece."""
    print(f"\n--- {ended.job.name}: {'passed' if code == 0 else f'FAILED ({code})'}", flush=True)
    sys.stdout.buffer.write(ended.log.read_bytes())
    print(f"--- {ended.job.name}: end", flush=True)


def stop(running: Iterable[Running]) -> None:
    """End jobs and whatever any job has started, also in a group of its own."""
    running = list(running)
    for each in running:
        print(f"--- {each.job.name}: stopped; what it said is in {each.log}", flush=True)
        os.killpg(each.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(each.process.poll() is None for each in running) and time.monotonic() < deadline:
        time.sleep(0.01)
    for each in running:
        end_group(each.process.pid)
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in map(int, children):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # its children are ours now


def end_group(group: int) -> None:
    """Kill what a job has left in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def chosen(names: Sequence[str]) -> list[Job]:
    """Give the jobs of these names and those that they need, or all."""
    table = {job.name: job for job in JOBS}
    if unknown := set(names) - set(table):
        raise SystemExit(f"no such job: {', '.join(sorted(unknown))}; there are {', '.join(table)}")
    wanted = set(names or table)
    while more := {name for job in JOBS if job.name in wanted for name in job.after} - wanted:
        wanted |= more
    return [job for job in JOBS if job.name in wanted]


def end(number: int, _frame: object) -> NoReturn:
    """End by way of `finally`, where the jobs are stopped, which no second signal may cut short."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="job", help="what to run, beside what it needs; all by default")
    parser.add_argument("--lanes", type=int, default=min(os.cpu_count() or 1, MOST_LANES), help="jobs at a time")
    parser.add_argument("--list", action="store_true", help="only name the jobs")
    arguments = parser.parse_args()
    jobs = chosen(arguments.names)
    if arguments.list:
        print(*(job.name for job in jobs), sep="\n")
        return 0
    for number in SIGNALS:
        signal.signal(number, end)
    return run(jobs, arguments.lanes, LOGS)


if __name__ == "__main__":
    sys.exit(main())
