"""Runs short programs as `scripts.run` does, but each in a child of an interpreter that has imported all of it already.

That takes a tenth of the time. The child goes on as the main thread of a program of its own, and ends by itself:
with exit hooks, finalisation and exit status. Nothing in the parent has called a driver before.

With FRESH_INTERPRETERS=1 in the environment every program gets an interpreter of its own after all.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import scripts

FRESH = bool(os.environ.get("FRESH_INTERPRETERS"))

BINDINGS = "\nfrom cuda.bindings import driver as _\n"

# The hook runs after dlwrap's own, which is registered later; a program defines `early_hook` to have one.
# Whoever started the tests may have had signals ignored, as nohup and a shell's background do.
FIRST = """
import atexit, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(ignored, signal.SIG_DFL)
atexit.register(lambda: globals().get("early_hook", lambda: None)())
"""

# File descriptor 0 brings the programs and 1 takes the outcomes; children get others.
SERVE = """
import json, select, warnings

assert not cuda.calls(), "a child of a process that has used CUDA cannot use it"

def _serve():
    outcomes = os.fdopen(os.dup(1), "w")
    programs = os.fdopen(os.dup(0))
    for line in programs:
        program = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from Python 3.12 on for the threads of NumPy's BLAS
            child = os.fork()
        if child == 0:
            for target, path in enumerate(("/dev/null", program["out"], program["err"])):
                opened = os.open(path, os.O_RDWR)
                os.dup2(opened, target)
                os.close(opened)
            programs.close()
            outcomes.close()
            return program["code"]
        ended = os.pidfd_open(child)
        hangs = not select.select([ended], [], [], program["timeout"])[0]
        if hangs:
            os.kill(child, signal.SIGKILL)
        os.close(ended)
        print(json.dumps([hangs, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]), file=outcomes, flush=True)
    os._exit(0)

_code = _serve()
del _serve, json, select, warnings
exec(compile(_code, "<program>", "exec"))
"""


class _Server:
    """An interpreter, started with options, that has imported modules."""

    def __init__(self, options: tuple[str, ...], imports: str) -> None:
        path = f"import sys\nsys.path[:0] = {sys.path!r}\n"
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", path + FIRST + scripts.PROLOGUE + imports + BINDINGS + SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.stop)

    def stop(self) -> None:
        with self._process:
            self._process.kill()

    def run(self, code: str, timeout: float) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            out.touch()
            err.touch()
            program = {"code": code, "out": str(out), "err": str(err), "timeout": timeout}
            print(json.dumps(program), file=self._process.stdin, flush=True)
            hangs, status = json.loads(self._process.stdout.readline())
            if hangs:
                raise subprocess.TimeoutExpired(code, timeout, out.read_text(), err.read_text())
            return subprocess.CompletedProcess(code, status, out.read_text(), err.read_text())


_server = functools.cache(_Server)


def run(
    code: str, *options: str, imports: str = "", timeout: float = scripts.TIMEOUT
) -> subprocess.CompletedProcess[str]:
    """Run the prologue, `imports` and `code` as one program, with options for the interpreter."""
    if FRESH:
        return scripts.run(imports + "\n" + code, *options, first=FIRST, timeout=timeout)
    try:
        return _server(options, imports).run(code, timeout)
    except BaseException:
        _server.cache_clear()  # it may still have an outcome to tell
        raise
