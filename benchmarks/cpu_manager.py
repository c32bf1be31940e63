"""What releases cost the threads of dlwrap, and how soon they are done."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, lingering
from benchmarks._device import PORTABLE_DEVICEMAP, address, call
from benchmarks._timing import compare, describe, percentile, race_once, rounded, time_call, wait_until

NBYTES = 65536


def cpu_of_threads() -> int | None:
    """Give the processor time of the threads of dlwrap, in nanoseconds; None if they are no threads of Python."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("dlwrap")]
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident is not None]
    return sum(map(time.clock_gettime_ns, clocks)) if clocks else None


def _measure_load(seconds: float, repeats: int) -> dict[str, Any]:
    """Give the percentage of a core that the threads of dlwrap take while the program sleeps."""
    samples, whole = [], []
    for _ in range(repeats):
        before, process = cpu_of_threads(), time.process_time_ns()
        begin = time.perf_counter_ns()
        time.sleep(seconds)
        elapsed = time.perf_counter_ns() - begin
        after, process = cpu_of_threads(), time.process_time_ns() - process
        whole.append(process / elapsed * 100)
        samples.append(whole[-1] if before is None or after is None else (after - before) / elapsed * 100)
    return {
        "of": "threads of dlwrap",
        **describe(samples, "% of a core"),
        "peers": {"whole process": describe(whole, "% of a core")},
    }


def manager_idle(run: Run) -> dict[str, Any]:
    """Measure the threads while arrays are wrapped and nothing is pending."""
    arrays = [np.zeros(1000, np.float32) for _ in range(10)]
    buffers = [dlwrap.wrap(array) for array in arrays]
    for buffer in buffers:
        buffer.__dlpack__(stream=1, max_version=(1, 0))
    dlwrap.reclaim(SECONDS)
    time.sleep(run.pick(0.5, 0.05))
    return {"manager_idle": _measure_load(run.pick(1, 0.05), run.pick(3, 1))}


def manager_pending(run: Run) -> dict[str, Any]:
    """Measure the threads while releases wait for a busy stream."""
    number = run.pick(1000, 50)
    array = np.zeros(1000, np.float32)
    with lingering(0), dlwrap.pin(array), run.device.busy(array):
        for _ in range(number):
            dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
        wait_until(lambda: dlwrap.stats().pending >= number)
        time.sleep(run.pick(0.5, 0.05))
        return {"manager_pending": {**_measure_load(run.pick(1, 0.05), run.pick(3, 1)), "pending": number}}


def release_latency(run: Run) -> dict[str, Any]:
    """Time from the drop of the last holder until the array is freed, nothing lingering and the GPU idle."""

    def release() -> float:
        array = np.zeros(NBYTES, np.uint8)
        ends: list[int] = []
        freed = threading.Event()

        def note(_: object) -> None:
            ends.append(time.perf_counter_ns())
            freed.set()

        watch = weakref.ref(array, note)
        capsule = dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
        del array
        time.sleep(2e-3)
        begin = time.perf_counter_ns()
        del capsule
        if not freed.wait(SECONDS):
            raise TimeoutError("the array was never freed")
        del watch
        return float(ends[0] - begin)

    array = np.zeros(NBYTES, np.uint8)

    def unregister() -> float:
        call("cuMemHostRegister", address(array), NBYTES, PORTABLE_DEVICEMAP)
        time.sleep(2e-3)
        return time_call(lambda: call("cuMemHostUnregister", address(array)))

    with lingering(0):
        samples = race_once({"dlwrap": release, "bare cuMemHostUnregister": unregister}, run.pick(200, 5))
    row = compare(samples, "us", against="bare cuMemHostUnregister")
    return {"release_latency": {**row, "p99": rounded(percentile(samples["dlwrap"], 99) / 1e3)}}


def release_rate(run: Run) -> dict[str, Any]:
    """Release many wrappers of one page-locked range, dropped while a stream was busy, after it goes on."""
    number = run.pick(100_000, 1000)
    array = np.zeros(1000, np.float32)
    rates, processor = [], []
    for _ in range(run.pick(3, 1)):
        with dlwrap.pin(array), run.device.busy(array) as let_go:
            started = cpu_of_threads()
            for _ in range(number):
                dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
            wait_until(lambda: dlwrap.stats().pending >= number)
            begin = time.perf_counter_ns()
            let_go()
            dlwrap.reclaim(SECONDS)
            rates.append(number / (time.perf_counter_ns() - begin) * 1e9)
            ended = cpu_of_threads()
        if started is not None and ended is not None:
            processor.append((ended - started) / number / 1e3)
    row = {"of": "dlwrap", **describe(rates, "a second"), "number": number}
    if processor:
        row["peers"] = {"processor time of a release, from its drop on": describe(processor, "us")}
    return {"release_rate": row}


BENCHMARKS = (
    Benchmark(manager_idle, rows=("manager_idle",)),
    Benchmark(manager_pending, rows=("manager_pending",)),
    Benchmark(release_latency, rows=("release_latency",)),
    Benchmark(release_rate, rows=("release_rate",)),
)
