"""What releases cost the rest of the program: a loop of 1 ms kernels, 20 in flight, beside 50 releases a second.

An unregister waits until the device is idle, and holds up every launch meanwhile. Lingering puts it off, in the
hope of sparing it, for which memory stays page-locked: the curve shows that trade.
"""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, lingering
from benchmarks._device import BLOCKING_SYNC_NO_TIMING, NON_BLOCKING, PORTABLE_DEVICEMAP, address, call, kernels
from benchmarks._timing import describe, percentile, rounded
from dlwrap._lingering import LINGER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

KERNEL_SECONDS = 1e-3
IN_FLIGHT = 20
RELEASES_A_SECOND = 50
NBYTES = 2**20
LINGERING = (0, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)

NOTHING = "no releases"
FRESH = "50 fresh arrays wrapped, exported and released a second"
SAME = "the same array wrapped, exported and released 50 times a second"
REGISTERED = "50 fresh arrays registered a second by a bare call, unregistered afterwards"
BARE = "50 fresh arrays registered and unregistered a second by bare calls"


@dataclass
class Course:
    """What a loop of kernels did.

    Attributes
    ----------
    launches : list of int
        The nanoseconds of each call that launches.
    seconds : float
        Until the last kernel had ended.
    """

    launches: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Kernels a second."""
        return len(self.launches) / self.seconds

    @property
    def p99(self) -> float:
        """Microseconds within which 99 % of the launches were done."""
        return percentile(list(map(float, self.launches)), 99) / 1e3


class Loop:
    """Launches kernels on a stream of its own, a bounded number ahead."""

    def __init__(self) -> None:
        self._stream = call("cuStreamCreate", NON_BLOCKING)
        self._events = [call("cuEventCreate", BLOCKING_SYNC_NO_TIMING) for _ in range(IN_FLIGHT)]
        self._launch = kernels().spin(KERNEL_SECONDS)

    def run(self, seconds: float) -> Course:
        """Launch for so long, then wait for what is in flight."""
        course = Course()
        stream, launch, clock = self._stream, self._launch, time.perf_counter_ns
        begin = clock()
        end = begin + round(seconds * 1e9)
        while True:
            event = self._events[len(course.launches) % IN_FLIGHT]
            call("cuEventSynchronize", event)  # returns at once where it was not recorded yet
            before = clock()
            if before >= end:
                break
            launch(stream)
            course.launches.append(clock() - before)
            call("cuEventRecord", event, stream)
        call("cuStreamSynchronize", stream)
        course.seconds = (clock() - begin) / 1e9
        return course


class Releases(threading.Thread):
    """Does something at a steady rate beside the loop, and looks how many bytes linger."""

    def __init__(self, act: Callable[[np.ndarray], None], array: np.ndarray | None = None) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._array = array
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self.held: list[int] = []

    def __enter__(self) -> Releases:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(SECONDS)
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        """Act until stopped, or until something fails."""
        try:
            # A thread begins without a context; dlwrap needs none, the bare calls do.
            call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", 0))
            due = time.monotonic()
            while not self._stopping.is_set():
                self._act(np.ones(NBYTES, np.uint8) if self._array is None else self._array)
                self.held.append(dlwrap.stats().lingering_bytes)
                due += 1 / RELEASES_A_SECOND
                self._stopping.wait(max(0.0, due - time.monotonic()))
        except Exception as error:  # noqa: BLE001 -- raised again by __exit__
            self._error = error


def do_nothing(array: np.ndarray) -> None:
    """Be what the other acts are compared with: the array is made and dropped all the same."""


def wrap_and_release(array: np.ndarray) -> None:
    """Wrap, export, and drop both at once."""
    dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))


class Registering:
    """Does by a bare call what a wrap cannot do without, and puts the rest off."""

    def __init__(self) -> None:
        self._registered: list[np.ndarray] = []

    def __call__(self, array: np.ndarray) -> None:
        """Register, and keep the array."""
        call("cuMemHostRegister", address(array), array.nbytes, PORTABLE_DEVICEMAP)
        self._registered.append(array)

    def undo(self) -> None:
        """Unregister all."""
        while self._registered:
            call("cuMemHostUnregister", address(self._registered[-1]))
            self._registered.pop()


def register_and_unregister(array: np.ndarray) -> None:
    """Do by bare calls what a release at once comes to."""
    call("cuMemHostRegister", address(array), array.nbytes, PORTABLE_DEVICEMAP)
    call("cuMemHostUnregister", address(array))


def releases(run: Run) -> dict[str, Any]:
    """Run the loop beside releases, with dlwrap as it is configured by default."""
    loop = Loop()
    warm_up, seconds = _course_of(LINGER_SECONDS, run)
    same, registering = np.ones(NBYTES, np.uint8), Registering()
    acts: dict[str, tuple[Callable[[np.ndarray], None], np.ndarray | None]] = {
        NOTHING: (do_nothing, None),
        FRESH: (wrap_and_release, None),
        SAME: (wrap_and_release, same),
        REGISTERED: (registering, None),
        BARE: (register_and_unregister, None),
    }
    courses: dict[str, list[Course]] = {name: [] for name in acts}
    for _ in range(run.pick(3, 1)):
        for name, (act, array) in acts.items():
            lingers = act is wrap_and_release
            courses[name].append(_run_beside(loop, Releases(act, array), warm_up if lingers else 0.1, seconds)[0])
            dlwrap.reclaim(SECONDS)
            registering.undo()
    lost = {name: _lost(courses[name], courses[NOTHING]) for name in (FRESH, SAME, REGISTERED, BARE)}
    p99 = {name: [course.p99 for course in courses[name]] for name in acts}
    throughput = {
        "of": FRESH,
        **describe(lost[FRESH], "% lost"),
        "peers": {name: describe(lost[name], "% lost") for name in (SAME, REGISTERED, BARE)},
        "kernels_a_second": rounded(describe([course.rate for course in courses[NOTHING]], "")["value"]),
    }
    latency = {
        "of": FRESH,
        **describe(p99[FRESH], "us, p99"),
        "peers": {name: describe(p99[name], "us, p99") for name in (NOTHING, SAME, REGISTERED, BARE)},
        "against": NOTHING,
        "ratio": _ratio_of_p99(courses[FRESH], courses[NOTHING]),
    }
    return {"loop_throughput": throughput, "loop_launch": latency}


def linger(run: Run) -> dict[str, Any]:
    """Run the loop beside releases of fresh arrays, by how long their memory may linger."""
    loop = Loop()
    curve: dict[str, Any] = {"x": "linger seconds", "linger seconds": list(run.pick(LINGERING, (0, 0.05)))}
    figures: dict[str, list[float]] = {
        "throughput lost, %": [],
        "p99 launch, us": [],
        "p99 launch without releases, us": [],
        "p99 launch, ratio": [],
        "longest launch, ms": [],
        "held, MiB": [],
    }
    for linger_seconds in curve["linger seconds"]:
        quiet, _ = _run_beside(loop, Releases(do_nothing), 0.1, run.pick(2, 0.1))
        with lingering(linger_seconds):
            busy, held = _run_beside(loop, Releases(wrap_and_release), *_course_of(linger_seconds, run))
        point = (
            _lost([busy], [quiet])[0],
            busy.p99,
            quiet.p99,
            busy.p99 / quiet.p99,
            max(busy.launches) / 1e6,
            sum(held) / max(1, len(held)) / 2**20,
        )
        for values, value in zip(figures.values(), point, strict=True):
            values.append(rounded(value))
    return {"linger": {**curve, **figures}}


def _course_of(linger_seconds: float, run: Run) -> tuple[float, float]:
    """Give the seconds of the warm-up, in which nothing is unregistered yet, and of a course of several sweeps."""
    return run.pick((0.1 + linger_seconds, max(2.0, 2 * linger_seconds)), (0.05, 0.1))


def _run_beside(loop: Loop, others: Releases, warm_up: float, seconds: float) -> tuple[Course, list[int]]:
    """Run the loop beside a thread; give its course and the bytes held, both without the warm-up."""
    gc.collect()
    gc.disable()
    try:
        with others:
            loop.run(warm_up)
            skipped = len(others.held)
            course = loop.run(seconds)
            return course, others.held[skipped:]
    finally:
        gc.enable()


def _lost(courses: list[Course], quiet: list[Course]) -> list[float]:
    """Give the percentages of throughput that are lost."""
    return [100 * (1 - course.rate / other.rate) for course, other in zip(courses, quiet, strict=True)]


def _ratio_of_p99(courses: list[Course], quiet: list[Course]) -> float:
    """Compare all launches together: a single course has too few beyond its p99."""
    together, others = ([float(ns) for course in each for ns in course.launches] for each in (courses, quiet))
    return rounded(percentile(together, 99) / percentile(others, 99))


BENCHMARKS = (
    Benchmark(releases, rows=("loop_throughput", "loop_launch"), needs_gpu=True),
    Benchmark(linger, curves=("linger",), needs_gpu=True),
)
