"""Times what is to be compared in turns, in one process, and sums the samples up.

pyperf and pytest-benchmark finish one benchmark before they begin the next, so that a ratio of two would be one of
two moments, with another clock speed and other neighbours. Here the contestants take turns, and a ratio is the
median of the ratios of each turn. `timeit` makes the inner loop, with the collector of cycles off.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
import timeit
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


class SkipBenchmark(Exception):  # noqa: N818 -- no error
    """The machine cannot run the benchmark; the reason is recorded in place of the figures."""


@dataclass(frozen=True)
class Statement:
    """Something short to be timed in a loop.

    Attributes
    ----------
    code : str
        Python.
    names : dict
        What it refers to.
    most : int
        How often it may run in a loop, where it keeps what it makes.
    afterwards : callable
        What undoes a loop; it is not timed.
    """

    code: str
    names: dict[str, Any]
    most: int = 1_000_000
    afterwards: Callable[[], object] = field(default=lambda: None)


def race(contestants: dict[str, Statement], repeats: int, seconds: float = 0.01) -> dict[str, list[float]]:
    """Time each statement in turns.

    Parameters
    ----------
    contestants : dict of str to Statement
        What takes turns.
    repeats : int
        Turns of each.
    seconds : float
        How long each loop should take, roughly.

    Returns
    -------
    dict of str to list of float
        Nanoseconds of one execution, for each turn.
    """
    loops = {name: _calibrate(statement, seconds) for name, statement in contestants.items()}
    return race_once({name: loop.sample for name, loop in loops.items()}, repeats)


def working(contestants: dict[str, Statement]) -> dict[str, Statement]:
    """Try each once, and leave out what fails: for peers without which the comparison still says something."""
    found = {}
    for name, statement in contestants.items():
        try:
            timeit.timeit(statement.code, globals=statement.names, number=1)
        except Exception as error:  # noqa: BLE001 -- of another library
            print(f"left out: {name}: {type(error).__name__}: {error}")
        else:
            found[name] = statement
        statement.afterwards()
    return found


def race_once(contestants: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Let contestants that time themselves, in nanoseconds, take turns; who begins changes with every turn."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(repeats):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            samples[name].append(contestants[name]())
    return samples


def time_call(function: Callable[[], object]) -> float:
    """Time one call, in nanoseconds; what it returns is dropped within the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        begin = time.perf_counter_ns()
        function()
        return float(time.perf_counter_ns() - begin)
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class _Loop:
    statement: Statement
    timer: timeit.Timer
    number: int

    def sample(self) -> float:
        nanoseconds = self.timer.timeit(self.number) * 1e9 / self.number
        self.statement.afterwards()
        return nanoseconds


def _calibrate(statement: Statement, seconds: float) -> _Loop:
    """Find how many executions take about so long; this also warms up."""
    timer = timeit.Timer(statement.code, globals=statement.names)
    number = 1
    while True:
        taken = timer.timeit(number)
        statement.afterwards()
        if taken >= seconds / 4 or number >= statement.most:
            break
        number = min(4 * number, statement.most)
    number = round(number * seconds / max(taken, 1e-9))
    return _Loop(statement, timer, max(1, min(number, statement.most)))


def summarise(samples: list[float], unit: str) -> dict[str, Any]:
    """Give median and quartiles of samples in nanoseconds, in another unit."""
    return describe([sample / NANOSECONDS[unit] for sample in samples], unit)


def describe(samples: list[float], unit: str) -> dict[str, Any]:
    """Give median and quartiles of samples that are in the unit already."""
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    return {
        "value": rounded(statistics.median(samples)),
        "low": rounded(low),
        "high": rounded(high),
        "repeats": len(samples),
        "unit": unit,
    }


def compare(samples: dict[str, list[float]], unit: str, against: str | None = None) -> dict[str, Any]:
    """Make a row of a race: the first contestant is the subject, the others are its peers.

    With ``against``, ``ratio`` is how many times as long as that peer the subject takes.
    """
    subject, *peers = samples
    row = {"of": subject, **summarise(samples[subject], unit)}
    if peers:
        row["peers"] = {name: summarise(samples[name], unit) for name in peers}
    if against is not None:
        row["against"] = against
        row["ratio"] = ratio(samples[subject], samples[against])
    return row


def ratio(numerators: list[float], denominators: list[float]) -> float:
    """Give the median of the ratios of each turn."""
    return rounded(statistics.median(map(_divide, numerators, denominators)))


def _divide(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.inf


def percentile(samples: list[float], percent: float) -> float:
    """Give the smallest sample that so many percent do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * percent / 100) - 1)]


def rounded(number: float) -> float:
    """Keep four digits: no more are reproducible."""
    if number == 0 or not math.isfinite(number):
        return number
    return round(number, 3 - math.floor(math.log10(abs(number))))


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that comes soon.

    Raises
    ------
    TimeoutError
        It does not.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still not so after {seconds} s")
        time.sleep(2e-4)
