"""How much memory of Python's a live wrapper takes, and a pending release (tracemalloc)."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np

import dlwrap
from benchmarks._benchmark import Benchmark, Run, lingering
from benchmarks._timing import rounded, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBER = 5000


def _measure(make: Callable[[], object], number: int) -> dict[str, Any]:
    """Give the bytes that Python has more after ``make``, by what is there then of the number."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = make()
        gc.collect()
        nbytes = tracemalloc.get_traced_memory()[0] - before
        del kept
    finally:
        tracemalloc.stop()
    return {"of": "dlwrap", "value": rounded(nbytes / number), "unit": "bytes", "repeats": number}


def memory_in_pin(run: Run) -> dict[str, Any]:
    """Measure wrappers that share a page-locked range."""
    number = run.pick(NUMBER, 200)
    array = np.zeros(1000, np.float32)
    with dlwrap.pin(array), dlwrap.wrap(array):
        return {"memory_in_pin": _measure(lambda: [dlwrap.wrap(array) for _ in range(number)], number)}


def memory_registered(run: Run) -> dict[str, Any]:
    """Measure wrappers that have a page-locked range each."""
    number = run.pick(NUMBER, 200)
    arrays = [np.zeros(16, np.float32) for _ in range(number)]
    with dlwrap.wrap(np.zeros(16, np.float32)):
        return {"memory_registered": _measure(lambda: [dlwrap.wrap(array) for array in arrays], number)}


def memory_pending(run: Run) -> dict[str, Any]:
    """Measure releases that wait for a stream; they share a page-locked range."""
    number = run.pick(NUMBER, 200)
    array = np.zeros(1000, np.float32)

    def release() -> None:
        for _ in range(number):
            dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
        wait_until(lambda: dlwrap.stats().pending >= number)

    with lingering(0), dlwrap.pin(array):
        dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
        dlwrap.reclaim()
        with run.device.busy(array):
            return {"memory_pending": _measure(release, number)}


BENCHMARKS = (
    Benchmark(memory_in_pin, rows=("memory_in_pin",)),
    Benchmark(memory_registered, rows=("memory_registered",)),
    Benchmark(memory_pending, rows=("memory_pending",)),
)
