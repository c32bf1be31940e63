"""Workers: each consumer in a process of its own, so that one that aborts ends no more than its own check."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from typing import Any

from conformance.cannot import UnavailableError
from conformance.processes import environment
from conformance.results import Outcome
from conformance.worker import shorten

STARTING = 180.0  # seconds to import a framework, and to build what has to be built
CHECKING = 90.0  # seconds for one check


class Worker:
    """Asks a worker process, and starts another where one has died.

    Parameters
    ----------
    names : dict
        Of producer, consumer and driver, and the patience, as `conformance.joining.join` takes them.

    Attributes
    ----------
    facts : dict
        What the process said of itself when it was ready.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._process: subprocess.Popen[str] | None = None
        self.facts: dict[str, Any] = {}

    def start(self) -> None:
        """Start the process.

        Raises
        ------
        UnavailableError
            It cannot run here.
        """
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 -- closed in _kill
        self._process = subprocess.Popen(
            [sys.executable, "-m", "conformance.worker", json.dumps(self._names)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            env=environment(),
            start_new_session=True,
        )
        said = self._hear(STARTING)
        if said is None:
            raise UnavailableError(f"its process {self._end()}")
        if "unavailable" in said:
            self.stop()
            raise UnavailableError(said["unavailable"])
        self.facts = said

    def change_producer(self, producer: str) -> None:
        """Go on with another producer, in the same process if it lives."""
        self._names = {**self._names, "producer": producer}
        if self._process is not None and self._process.stdin is not None:
            print(f"producer {producer}", file=self._process.stdin)

    def ask(self, rule: str) -> tuple[Outcome, str]:
        """Have a rule checked."""
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            print(rule, file=self._process.stdin)
            said = self._hear(CHECKING)
        except BrokenPipeError:
            said = None
        if said is None:
            return Outcome.FAIL, f"the process {self._end()}"
        return Outcome(said["outcome"]), said["reason"]

    def stop(self) -> None:
        """End the process; its own end is judged by the rules of the group exit, in others."""
        if self._process is not None:
            self._kill()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _hear(self, seconds: float) -> dict[str, Any] | None:
        """Read one line; None if none comes."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else ""
        return json.loads(line) if line.endswith("\n") else None

    def _end(self) -> str:
        """Say how the process died, or kill it if it hangs."""
        assert self._process is not None
        try:
            status = self._process.wait(2)
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            how = "hung, and was ended"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        self._kill()
        uncaught = [line for line in lines if line.startswith("what()")]
        return f"{how}: {shorten((uncaught or lines or ['it said nothing'])[-1])}"

    def _kill(self) -> None:
        """Kill the process and what it started, which share a session of their own."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        self._process = None
