"""How long `import dlwrap` takes after `import numpy`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from benchmarks._benchmark import Benchmark, Run
from benchmarks._timing import describe

_CODE = """
import sys, time
import numpy
begin = time.perf_counter_ns()
import dlwrap
print((time.perf_counter_ns() - begin) / 1e6)
"""


def importing(run: Run) -> dict[str, Any]:
    """Import in interpreters of their own; the first, which may have to compile, does not count."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _CODE]
    _, *samples = [
        float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        for _ in range(run.pick(21, 3))
    ]
    return {"import": {"of": "dlwrap", **describe(samples, "ms")}}


BENCHMARKS = (Benchmark(importing, rows=("import",)),)
