"""What wrapping costs when the memory must be page-locked for it, beside the bare driver calls, by size."""

from __future__ import annotations

import time
import traceback
from typing import Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, lingering
from benchmarks._device import PORTABLE_DEVICEMAP, address, call
from benchmarks._timing import SkipBenchmark, describe, ratio, rounded

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = [64, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB, 4 * GIB, 16 * GIB]
LARGEST_SIMULATED = 16 * MIB  # the simulated driver's calls cost the same for every size
STEPS = ("bare register", "bare unregister", "wrap", "close")

_measured: dict[int, dict[str, list[float]]] = {}


def measure_all(run: Run) -> dict[int, dict[str, list[float]]]:
    """Give the nanoseconds of each step for each size; they are measured once for all that is made of them."""
    if not _measured:
        simulated = run.device.simulated is not None
        largest = run.pick(LARGEST_SIMULATED if simulated else SIZES[-1], MIB)
        block = np.empty(largest, np.uint8)
        sizes = [nbytes for nbytes in SIZES if nbytes <= largest]
        with lingering(0):
            for before, nbytes in zip([0, *sizes], sizes, strict=False):
                block[before : nbytes : 4 * KIB] = 1  # pages have to be there: making them is no part of page-locking
                try:
                    _measured[nbytes] = _measure(block[:nbytes], run.pick(_repeats(nbytes), 3))
                except (RuntimeError, MemoryError):
                    if nbytes <= MIB:
                        raise
                    traceback.print_exc()  # too much for this machine: the smaller ones stand
                    break
    return _measured


def _repeats(nbytes: int) -> int:
    if nbytes <= MIB:
        return 200
    if nbytes <= 64 * MIB:
        return 31
    return 10 if nbytes <= GIB else 6


def _measure(array: np.ndarray, repeats: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in STEPS}
    for turn in range(repeats + 1):
        both = (_page_lock, _wrap) if turn % 2 else (_wrap, _page_lock)  # who comes after whom makes a difference
        taken = {name: nanoseconds for measure in both for name, nanoseconds in measure(array).items()}
        if turn > 0:  # the first warms up
            for name, nanoseconds in taken.items():
                samples[name].append(nanoseconds)
    return samples


def _page_lock(array: np.ndarray) -> dict[str, float]:
    """Do what a wrap cannot do without: two driver calls."""
    begin = time.perf_counter_ns()
    call("cuMemHostRegister", address(array), array.nbytes, PORTABLE_DEVICEMAP)
    call("cuMemHostGetDevicePointer", address(array), 0)
    registered = time.perf_counter_ns()
    call("cuMemHostUnregister", address(array))
    return {"bare register": registered - begin, "bare unregister": time.perf_counter_ns() - registered}


def _wrap(array: np.ndarray) -> dict[str, float]:
    begin = time.perf_counter_ns()
    buffer = dlwrap.wrap(array, extent="view")
    wrapped = time.perf_counter_ns()
    buffer.close(SECONDS)
    return {"wrap": wrapped - begin, "close": time.perf_counter_ns() - wrapped}


def cold_wrap(run: Run) -> dict[str, Any]:
    """Wrap and close arrays that are not page-locked; make the curve of all sizes, and the worst case below 1 MiB."""
    measured = measure_all(run)
    extra = {
        nbytes: [(wrap - bare) / 1e3 for wrap, bare in zip(samples["wrap"], samples["bare register"], strict=True)]
        for nbytes, samples in measured.items()
    }
    worst = max((nbytes for nbytes in extra if nbytes < MIB), key=lambda nbytes: describe(extra[nbytes], "us")["value"])
    curve: dict[str, Any] = {"x": "bytes", "unit": "us", "bytes": list(measured)}
    for name in STEPS:
        curve[name] = [describe(samples[name], "ns")["value"] / 1e3 for samples in measured.values()]
    curve["ratio"] = [ratio(samples["wrap"], samples["bare register"]) for samples in measured.values()]
    row = {"of": "wrap, beyond the bare calls", **describe(extra[worst], "us"), "bytes": worst}
    row["peers"] = {
        "wrap": describe([sample / 1e3 for sample in measured[worst]["wrap"]], "us"),
        "bare cuMemHostRegister, GetDevicePointer": describe(
            [sample / 1e3 for sample in measured[worst]["bare register"]], "us"
        ),
    }
    return {"cold_wrap_small": row, "registering": curve}


def cold_wrap_large(run: Run) -> dict[str, Any]:
    """Give the worst ratio from 1 MiB on."""
    if run.device.simulated is not None:
        raise SkipBenchmark("the simulated driver page-locks in no time")
    measured = {nbytes: samples for nbytes, samples in measure_all(run).items() if nbytes >= MIB}
    ratios = {nbytes: ratio(samples["wrap"], samples["bare register"]) for nbytes, samples in measured.items()}
    worst = max(ratios, key=lambda nbytes: ratios[nbytes])
    return {
        "cold_wrap_large": {
            "of": "wrap",
            **describe([sample / 1e3 for sample in measured[worst]["wrap"]], "us"),
            "peers": {
                "bare cuMemHostRegister, GetDevicePointer": describe(
                    [sample / 1e3 for sample in measured[worst]["bare register"]], "us"
                )
            },
            "against": "bare cuMemHostRegister, GetDevicePointer",
            "ratio": rounded(ratios[worst]),
            "bytes": worst,
        }
    }


BENCHMARKS = (
    Benchmark(cold_wrap, rows=("cold_wrap_small",), curves=("registering",)),
    Benchmark(cold_wrap_large, rows=("cold_wrap_large",)),
)
