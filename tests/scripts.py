"""Runs short programs, each in an interpreter of its own, on the simulated driver."""

from __future__ import annotations

import os
import subprocess
import sys

TIMEOUT = 60  # seconds, for what takes one or two; beyond that the program hangs

# What every program begins with; `array()` is watched memory, whose early end aborts the program with a line on stderr.
PROLOGUE = """
import atexit, gc, os, signal, sys, threading, time
import numpy as np
import dlwrap
import dlwrap.testing

cuda = dlwrap.testing.activate()
dlwrap.configure(linger_seconds=0)

def array(fill=1, shape=1024):
    return cuda.host_array(shape, np.float32, fill)
"""


def run(
    code: str,
    *options: str,
    first: str = "",
    prologue: str = PROLOGUE,
    timeout: float = TIMEOUT,
    measured: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `first`, the prologue and `code` as one program, with options for the interpreter.

    One that coverage cannot measure, because its own code fails there, says `measured=False`.
    """
    names = [name for name in os.environ if measured or not name.startswith("COVERAGE_PROCESS")]
    path = f"import sys\nsys.path[:0] = {sys.path!r}\n"
    # Modules of the tests, such as `capsules`, are found; a program that hangs raises TimeoutExpired.
    return subprocess.run(
        [sys.executable, *options, "-c", path + first + prologue + code],
        capture_output=True,
        text=True,
        env={name: os.environ[name] for name in names},
        timeout=timeout,
        check=False,
    )


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    """Give the exit status and stderr: (0, "") is a quiet end, without a warning or an abort of the simulator."""
    return done.returncode, done.stderr
