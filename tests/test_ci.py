"""CI runs its jobs side by side: what one says stays together, a failure ends all, and nothing keeps running."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "jobs.py"
SECONDS = 30  # only a failing test waits that long


@pytest.fixture
def ci(tmp_path):
    """Start CI with other jobs: a dict of name to (shell command, names of those before it)."""
    started = []

    def start(jobs, lanes=2):
        table = [(name, ("sh", "-c", command), after) for name, (command, after) in jobs.items()]
        program = (
            f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import jobs; from pathlib import Path;"
            f"jobs.JOBS = tuple(jobs.Job(*row) for row in {table!r}); jobs.LOGS = Path({str(tmp_path / 'logs')!r});"
            f"sys.argv = ['jobs', '--lanes', '{lanes}']; sys.exit(jobs.main())"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def comes(path):
    deadline = time.monotonic() + SECONDS
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.01)
    return path.read_text()


def is_alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def test_what_a_job_says_is_printed_in_one_piece(ci):
    speak = "for i in 1 2 3; do echo {0}$i; sleep 0.02; echo {0}err$i >&2; done"
    process = ci({"a": (speak.format("a"), ()), "b": (speak.format("b"), ())})
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    for name in "ab":
        assert "".join(f"{name}{i}\n{name}err{i}\n" for i in (1, 2, 3)) in said


def test_a_job_begins_when_those_before_it_have_passed(ci, tmp_path):
    process = ci(
        {
            "last": (f"cat {tmp_path}/first", ("first",)),
            "first": (f"sleep 0.1; echo made > {tmp_path}/first", ()),
        }
    )
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert "made" in said


def test_no_more_jobs_run_at_a_time_than_there_are_lanes(ci, tmp_path):
    alone = f"mkdir {tmp_path}/held && sleep 0.05 && rmdir {tmp_path}/held"
    process = ci(dict.fromkeys("abc", (alone, ())), lanes=1)
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said


def test_a_failure_ends_the_other_jobs_and_what_they_started_in_sessions_of_their_own(ci, tmp_path):
    process = ci(
        {
            "long": (f"setsid sh -c 'echo $$ > {tmp_path}/pid; sleep 600' & wait", ()),
            "failing": (f"while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done; echo the reason; exit 3", ()),
            "never": ("echo it ran", ("failing",)),
        }
    )
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "failing: FAILED (3)\nthe reason" in said
    assert "it ran" not in said
    assert "All passed" not in said
    assert not is_alive(comes(tmp_path / "pid"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_job(ci, tmp_path, number):
    process = ci({"long": (f"echo $$ > {tmp_path}/pid; sleep 600", ())})
    pid = comes(tmp_path / "pid")
    process.send_signal(number)
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number, said
    assert not is_alive(pid)


def test_every_job_runs_a_script_that_is_there_after_jobs_that_are():
    spec = importlib.util.spec_from_file_location("ci_jobs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    names = {job.name for job in module.JOBS}
    assert [job.name for job in module.JOBS if not os.access(ROOT / job.command[0], os.X_OK)] == []
    assert {name for job in module.JOBS for name in job.after} <= names


def test_no_script_hands_out_dev_null_as_a_file_to_write():
    # A tool that writes a new file and renames it replaces the device, where it may.
    scripts = [path for path in [ROOT / "run", *(ROOT / ".ci").iterdir()] if path.is_file()]
    lines = [f"{path.name}: {line}" for path in scripts for line in path.read_text().splitlines()]
    redirected = re.compile(r"(<|>) ?/dev/null")
    assert [line for line in lines if "/dev/null" in redirected.sub("", line)] == []


def test_coverage_of_c_is_counted_atomically():
    # Threads that race on a counter lose counts; gcov subtracts them from others to below zero, and gcovr ends.
    texts = [(ROOT / name).read_text() for name in (".ci/coverage", "CONTRIBUTING.md")]
    flags = [re.findall(r'DLWRAP_CFLAGS="([^"]*--coverage[^"]*)"', text) for text in texts]
    assert [len(found) for found in flags] == [1, 1]
    assert [found for found in flags if "-fprofile-update=atomic" not in found[0].split()] == []
