"""What a wrap costs where no memory has to be page-locked for it: that of a device call is in cpu_registering."""

from __future__ import annotations

from typing import Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, lingering
from benchmarks._timing import SkipBenchmark, Statement, compare, race, wait_until
from dlwrap import _native

PAGEABLE_MEMORY_ACCESS = 88  # CUdevice_attribute
MOST_KEPT = 1000  # wrappers or capsules alive at a time
LINGERING = 256


def _keeping(code: str, array: np.ndarray, most: int = MOST_KEPT) -> Statement:
    """Time something whose result is kept: dropping it is the manager's work, not the caller's."""
    kept: list[Any] = []

    def drop() -> None:
        kept.clear()
        dlwrap.reclaim(SECONDS)

    return Statement(f"keep({code})", {"keep": kept.append, "wrap": dlwrap.wrap, "array": array}, most, drop)


EXPORT = "wrap(array).__dlpack__(stream=1, max_version=(1, 0))"


def warm_wrap(run: Run) -> dict[str, Any]:
    """Wrap and export an array that `dlwrap.pin` has page-locked."""
    array = np.zeros(1000, np.float32)
    with dlwrap.pin(array):
        contestants = {
            "wrap and export": _keeping(EXPORT, array),
            "wrap": _keeping("wrap(array)", array),
            "wrap and export, and the release": Statement(EXPORT, {"wrap": dlwrap.wrap, "array": array}, MOST_KEPT),
        }
        return {"warm_wrap": compare(race(contestants, run.pick(25, 3), run.pick(0.02, 0.001)), "us")}


def revived_wrap(run: Run) -> dict[str, Any]:
    """Wrap and export arrays that are page-locked because the last use was a moment ago."""
    arrays = [np.zeros(1024, np.float32) for _ in range(run.pick(LINGERING, 16))]
    kept: list[Any] = []

    def let_linger() -> None:
        kept.clear()
        wait_until(lambda: dlwrap.stats().lingering == len(arrays))

    code = f"for array in arrays: keep({EXPORT})"
    names = {"keep": kept.append, "wrap": dlwrap.wrap, "arrays": arrays}
    with lingering(1000):
        kept += [dlwrap.wrap(array) for array in arrays]
        let_linger()
        samples = race({"wrap and export": Statement(code, names, 1, let_linger)}, run.pick(25, 3))
    samples = {name: [sample / len(arrays) for sample in taken] for name, taken in samples.items()}
    return {"revived_wrap": compare(samples, "us")}


def pageable_wrap(run: Run) -> dict[str, Any]:
    """Wrap an array on a device that reads pageable memory: nothing is page-locked."""
    simulated = run.device.simulated
    if simulated is not None:
        simulated.configure(pageable=True)
    elif dlwrap.support(0).memory != "pageable":
        raise SkipBenchmark("this device does not read pageable memory")
    array = np.zeros(1000, np.float32)
    try:
        contestants = {
            "wrap": _keeping("wrap(array, memory='pageable')", array),
            "wrap and export": _keeping(EXPORT, array),
        }
        if simulated is not None:
            ask = {"ask": _native.attribute, "number": PAGEABLE_MEMORY_ACCESS}
            contestants["two calls of the simulated driver, as many as a wrap makes"] = Statement(
                "ask(number, 0); ask(number, 0)", ask
            )
        return {"pageable_wrap": compare(race(contestants, run.pick(25, 3), run.pick(0.02, 0.001)), "us")}
    finally:
        dlwrap.reclaim(SECONDS)
        if simulated is not None:
            simulated.configure()


BENCHMARKS = (
    Benchmark(warm_wrap, rows=("warm_wrap",)),
    Benchmark(revived_wrap, rows=("revived_wrap",)),
    Benchmark(pageable_wrap, rows=("pageable_wrap",)),
)
