"""How costs grow with the number of live and pending buffers, of threads and of streams."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, framework
from benchmarks._timing import describe, rounded, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEVELS = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
BATCH = 1000
THREADS = (1, 2, 4, 8, 16)
STREAMS = (1, 2, 4, 8, 16, 32, 64)
# Of one curve; what comes beyond is left out, and the curve says so. A GPU is lent for minutes.
LONGEST_SECONDS, LONGEST_SECONDS_SIMULATED = 25.0, 150.0
PATIENCE = 300


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector of cycles out: what it costs grows with all objects of the program."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _each(number: int, act: Callable[[], object]) -> float:
    """Do something so many times; give the microseconds of one."""
    begin = time.perf_counter_ns()
    for _ in range(number):
        act()
    return (time.perf_counter_ns() - begin) / number / 1e3


class _Curve:
    """Figures by level, until the time is over."""

    def __init__(self, run: Run, x: str, levels: tuple[int, ...]) -> None:
        self.figures: dict[str, Any] = {"x": x, "unit": "us", x: []}
        self._x = x
        self._levels = levels
        longest = LONGEST_SECONDS if run.device.simulated is None else LONGEST_SECONDS_SIMULATED
        self._deadline = time.monotonic() + longest

    def __iter__(self) -> Iterator[int]:
        """Give the levels that should be done in time, judged by the one before."""
        taken, before = 0.0, self._levels[0]
        for level in self._levels:
            begin = time.monotonic()
            if begin + taken * level / before > self._deadline:
                self.figures["left_out"] = f"{level:,} {self._x} and more are left out: they would take too long."
                return
            self.figures[self._x].append(level)
            yield level
            taken, before = time.monotonic() - begin, level

    def add(self, **figures: float) -> None:
        """Add to the present level."""
        for name, value in figures.items():
            self.figures.setdefault(name.replace("_", " "), []).append(rounded(value))


def live_buffers(run: Run) -> dict[str, Any]:
    """Wrap, export and release some more while so many are alive; all share a page-locked range."""
    array = np.zeros(1000, np.float32)
    curve = _Curve(run, "live", run.pick(LEVELS, LEVELS[:3]))
    alive: list[Any] = []
    some: list[Any] = []
    with dlwrap.pin(array), _no_collection():
        for level in curve:
            while len(alive) < level:
                alive.append(dlwrap.wrap(array))
            wrap = _each(BATCH, lambda: some.append(dlwrap.wrap(array)))
            buffers = iter(some)
            capsules: list[Any] = []
            export = _each(
                BATCH,
                lambda: capsules.append(next(buffers).__dlpack__(stream=1, max_version=(1, 0))),  # noqa: B023
            )
            drop, release = _let_go(some, capsules)
            curve.add(wrap=wrap, export=export, drop=drop, drop_and_release=release)
            run.device.forget_calls()
        alive.clear()
        dlwrap.reclaim(PATIENCE)
    return {"live_buffers": curve.figures}


def _let_go(buffers: list[Any], capsules: list[Any]) -> tuple[float, float]:
    """Drop them; give the microseconds that takes the caller for each, and those until each is released."""
    number = len(buffers)
    begin = time.perf_counter_ns()
    capsules.clear()
    buffers.clear()
    dropped = time.perf_counter_ns()
    dlwrap.reclaim(PATIENCE)
    return (dropped - begin) / number / 1e3, (time.perf_counter_ns() - begin) / number / 1e3


def pending_releases(run: Run) -> dict[str, Any]:
    """Wrap, export and drop some more while so many wait for a busy stream, and release them all in the end."""
    array = np.zeros(1000, np.float32)
    curve = _Curve(run, "pending", run.pick(LEVELS, LEVELS[:3]))
    kept: list[Any] = []

    def begin_release() -> None:
        dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))

    def keep_capsule() -> None:
        kept.append(dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0)))

    with dlwrap.pin(array), _no_collection():
        for level in curve:
            total = level + BATCH
            with run.device.busy(array) as let_go:
                _each(level, begin_release)
                wait_until(lambda: dlwrap.stats().pending >= level, PATIENCE)  # noqa: B023
                wrap_and_export = _each(BATCH, keep_capsule)
                begin = time.perf_counter_ns()
                kept.clear()
                drop = (time.perf_counter_ns() - begin) / BATCH / 1e3
                wait_until(lambda: dlwrap.stats().pending >= total, PATIENCE)  # noqa: B023
                begin = time.perf_counter_ns()
                let_go()
                dlwrap.reclaim(PATIENCE)
                release = (time.perf_counter_ns() - begin) / total / 1e3
            curve.add(wrap_and_export=wrap_and_export, drop=drop, release_of_all=release)
            run.device.forget_calls()
    return {"pending_releases": curve.figures}


def threads(run: Run) -> dict[str, Any]:
    """Wrap, export and drop on several threads at a time, each an array of its own."""
    total = run.pick(8000, 160)
    levels = run.pick(THREADS, THREADS[:2])
    arrays = [np.zeros(1000, np.float32) for _ in range(levels[-1])]
    curve = _Curve(run, "threads", levels)
    with contextlib.ExitStack() as pins, _no_collection():
        for array in arrays:
            pins.enter_context(dlwrap.pin(array))
        for level in curve:
            samples = []
            for _ in range(run.pick(5, 1)):
                samples.append(_on_threads(arrays[:level], total // level) / total / 1e3)
                dlwrap.reclaim(PATIENCE)
            figures = describe(samples, "us")
            curve.add(wrap_export_and_drop=figures["value"], low=figures["low"], high=figures["high"])
            run.device.forget_calls()
    return {"threads": curve.figures}


def _on_threads(arrays: list[np.ndarray], rounds: int) -> float:
    """Give the nanoseconds that it takes all threads together."""
    ready = threading.Barrier(len(arrays) + 1)

    def work(array: np.ndarray) -> None:
        ready.wait()
        for _ in range(rounds):
            dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))

    workers = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = time.perf_counter_ns()
    for worker in workers:
        worker.join()
    return float(time.perf_counter_ns() - begin)


def streams(run: Run) -> dict[str, Any]:
    """Record several tracked streams on a buffer, and release it: one event for each stream."""
    cuda = framework("numba.cuda")
    levels = run.pick(STREAMS, STREAMS[:2])
    made = [cuda.stream() for _ in range(levels[-1])]
    array = np.zeros(1000, np.float32)
    curve = _Curve(run, "streams", levels)
    with dlwrap.pin(array), _no_collection():
        for level in curve:
            recordings, releases = [], []
            for _ in range(run.pick(50, 3)):
                buffer = dlwrap.wrap(array)
                begin = time.perf_counter_ns()
                for stream in made[:level]:
                    buffer.record_stream(stream)
                recordings.append((time.perf_counter_ns() - begin) / level / 1e3)
                begin = time.perf_counter_ns()
                del buffer
                dlwrap.reclaim(SECONDS)
                releases.append((time.perf_counter_ns() - begin) / 1e3)
            record, release = describe(recordings, "us")["value"], describe(releases, "us")["value"]
            curve.add(record_stream=record, drop_and_release=release)
    return {"streams": curve.figures}


BENCHMARKS = (
    Benchmark(streams, curves=("streams",)),
    Benchmark(threads, curves=("threads",)),
    Benchmark(live_buffers, curves=("live_buffers",)),
    Benchmark(pending_releases, curves=("pending_releases",)),
)
