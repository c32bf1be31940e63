"""Programs of their own, for what happens at their end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import dlwrap

HERE = Path(__file__).parent


def run_script(code: str, timeout: float = 60) -> str:
    """Run a program that must end with status 0 and say nothing on stderr; give what it printed."""
    done = start_script(code, timeout)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}\nstatus {done.returncode}"
    return done.stdout


def start_script(code: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program that may end as it will."""
    paths = [str(Path(dlwrap.__file__).parents[1]), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
