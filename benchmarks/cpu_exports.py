"""What an export costs, beside NumPy's and CuPy's own."""

from __future__ import annotations

from typing import Any

import numpy as np

import dlwrap
from benchmarks._benchmark import Benchmark, Run, framework
from benchmarks._timing import SkipBenchmark, Statement, compare, race, working

ELEMENTS = 1000


def export(run: Run) -> dict[str, Any]:
    """Export a versioned capsule and drop it."""
    array = np.zeros(ELEMENTS, np.float32)
    with dlwrap.pin(array):
        names = {"buffer": dlwrap.wrap(array), "array": array}
        # On a buffer of its own: after an export on a stream the CPU view waits for that stream.
        untouched = {"buffer": dlwrap.wrap(array)}
        contestants = {
            "dlwrap": Statement("buffer.__dlpack__(stream=1, max_version=(1, 0))", names),
            "NumPy": Statement("array.__dlpack__(max_version=(1, 0))", names),
            "dlwrap, no stream told": Statement("buffer.__dlpack__(stream=-1, max_version=(1, 0))", names),
            "dlwrap, legacy capsule": Statement("buffer.__dlpack__(stream=1)", names),
            "dlwrap, CPU view": Statement("buffer.__dlpack__(dl_device=(1, 0), max_version=(1, 0))", untouched),
            **_cupy(run),
        }
        return {"export": compare(race(contestants, run.pick(25, 3), run.pick(0.02, 0.001)), "ns", against="NumPy")}


def _cupy(run: Run) -> dict[str, Statement]:
    """Give CuPy's export as a peer, where CuPy has a device."""
    if run.device.simulated is not None:
        return {}
    try:
        cupy = framework("cupy")
    except SkipBenchmark:
        return {}
    names = {"array": cupy.zeros(ELEMENTS, cupy.float32)}
    return working({"CuPy": Statement("array.__dlpack__(stream=1, max_version=(1, 0))", names)})


def cpu_view(run: Run) -> dict[str, Any]:
    """Import a CPU view into NumPy and drop it."""
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        raise SkipBenchmark("numpy.from_dlpack has no device argument before NumPy 2.1")
    array = np.zeros(ELEMENTS, np.float32)
    with dlwrap.pin(array):
        names = {"buffer": dlwrap.wrap(array), "array": array, "take": np.from_dlpack}
        contestants = {
            "dlwrap": Statement("take(buffer, device='cpu')", names),
            "NumPy": Statement("take(array)", names),
            "NumPy, device='cpu'": Statement("take(array, device='cpu')", names),
        }
        return {"cpu_view": compare(race(contestants, run.pick(25, 3), run.pick(0.02, 0.001)), "ns", against="NumPy")}


BENCHMARKS = (Benchmark(export, rows=("export",)), Benchmark(cpu_view, rows=("cpu_view",)))
