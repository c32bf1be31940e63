"""Millions of wraps, exports and drops: whether memory stays flat, and nothing stays page-locked or lent.

python tests/soak/memory.py --cycles 10000000 --out FILE.json              on the simulated driver
python tests/soak/memory.py --gpu --cycles 500000 --out FILE.json
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import dlwrap
import dlwrap.testing
from soak._report import Outcome, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 60  # for what should take milliseconds
SAMPLES = 100
LONGEST_BACKLOG = 1000  # releases that may wait for the manager's thread: their memory is no leak
ALLOWED_GROWTH = 4 * 2**20  # bytes, of the process: what its allocators may keep


def resident() -> int:
    """Give the bytes of memory that the process has resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ---- one cycle of each way ----


def lingering(cuda: Any, array: np.ndarray) -> None:
    dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))


def legacy_capsule(cuda: Any, array: np.ndarray) -> None:
    dlwrap.wrap(array).__dlpack__(stream=1)


def two_exports(cuda: Any, array: np.ndarray) -> None:
    buffer = dlwrap.wrap(array)
    buffer.__dlpack__(stream=1, max_version=(1, 0))
    buffer.__dlpack__(stream=1, max_version=(1, 0))


def view_on_the_host(cuda: Any, array: np.ndarray) -> None:
    np.from_dlpack(dlwrap.wrap(array), device="cpu")


def never_exported(cuda: Any, array: np.ndarray) -> None:
    dlwrap.wrap(array)


def closed(cuda: Any, array: np.ndarray) -> None:
    buffer = dlwrap.wrap(array)
    buffer.__dlpack__(stream=1, max_version=(1, 0))
    buffer.close(SECONDS)


def captured(cuda: Any, array: np.ndarray) -> None:
    stream = cuda.create_stream(blocking=False)
    cuda.begin_capture(stream)
    dlwrap.wrap(array).__dlpack__(stream=stream, max_version=(1, 0))
    cuda.destroy_graph(cuda.end_capture(stream))
    cuda.destroy_stream(stream)


# Each way, the share of the cycles, and whether the array is pinned meanwhile.
WAYS: list[tuple[Callable[[Any, np.ndarray], None], float, bool]] = [
    (lingering, 0.30, False),
    (legacy_capsule, 0.20, True),
    (two_exports, 0.15, True),
    (view_on_the_host, 0.10, False),
    (never_exported, 0.23, False),
    (closed, 0.01, True),
    (captured, 0.01, False),
]


def run_cycles(cuda: Any, cycles: int, outcome: Outcome) -> None:
    """Run every way its share of the cycles, and compare the memory of its end with that after its first tenth."""
    array = np.zeros(1024, np.float32)
    growths: dict[str, int] = {}
    for way, share, pinned in WAYS:
        if way is captured and cuda is None:
            continue  # the soak of captures does that on a GPU
        total = max(SAMPLES, round(share * cycles))
        with dlwrap.pin(array) if pinned else contextlib.nullcontext():
            samples = list(sample(cuda, way, array, total))
        first, last = samples[SAMPLES // 10], max(samples[-SAMPLES // 10 :])
        growths[way.__name__] = last - first
        if last - first > ALLOWED_GROWTH:
            outcome.faults.append(f"{way.__name__}: {last - first} bytes more after {total} cycles")
        outcome.rounds += total
        check_nothing_left(way.__name__, outcome)
    outcome.figures["growth_bytes"] = growths


def sample(cuda: Any, way: Callable[[Any, np.ndarray], None], array: np.ndarray, total: int) -> Iterator[int]:
    """Run the cycles in equal parts; give the resident memory after each."""
    for _ in range(SAMPLES):
        for done in range(total // SAMPLES):
            way(cuda, array)
            if done % LONGEST_BACKLOG == 0:
                dlwrap.reclaim(SECONDS)
        dlwrap.reclaim(SECONDS)
        if cuda is not None:
            cuda.clear_calls()  # the simulated driver's own log
        yield resident()


# ---- many at a time ----


def run_crowd(name: str, make: Callable[[], list[Any]], outcome: Outcome) -> None:
    """Hold many things at a time, and let them go."""
    before = resident()
    crowd = make()
    outcome.figures[f"{name}_bytes_each"] = round((resident() - before) / len(crowd))
    outcome.figures[f"{name}"] = len(crowd)
    live = dlwrap.stats()
    if (live.live, live.exports) != ((1, len(crowd)) if name == "unconsumed_capsules" else (len(crowd), 0)):
        outcome.faults.append(f"{name}: {live}")
    crowd.clear()
    check_nothing_left(name, outcome)


def capsules_of_one_buffer(number: int) -> list[Any]:
    buffer = dlwrap.wrap(np.zeros(1024, np.float32))
    return [buffer.__dlpack__(stream=1, max_version=(1, 0)) for _ in range(number)]


def wrappers_of_one_array(number: int) -> list[Any]:
    array = np.zeros(1024, np.float32)
    return [dlwrap.wrap(array) for _ in range(number)]


def wrappers_of_arrays_of_their_own(number: int) -> list[Any]:
    return [dlwrap.wrap(np.zeros(16, np.float32)) for _ in range(number)]


def check_nothing_left(name: str, outcome: Outcome) -> None:
    gc.collect()
    dlwrap.reclaim(SECONDS)
    if any(vars_of(left := dlwrap.stats())):
        outcome.faults.append(f"{name}: left {left}")


def vars_of(stats: dlwrap.Stats) -> list[int]:
    return [getattr(stats, name) for name in stats.__slots__]


def run(cuda: Any, cycles: int, crowd: int) -> Outcome:
    """Run everything, on the simulated driver, or on the GPU where that is None."""
    outcome = Outcome(0)
    run_cycles(cuda, cycles, outcome)
    run_crowd("unconsumed_capsules", lambda: capsules_of_one_buffer(crowd), outcome)
    run_crowd("wrappers_of_one_array", lambda: wrappers_of_one_array(crowd), outcome)
    run_crowd("wrappers_of_arrays_of_their_own", lambda: wrappers_of_arrays_of_their_own(crowd), outcome)
    if cuda is not None and cuda.registrations:
        outcome.faults.append(f"still registered: {cuda.registrations[:3]}")
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000_000)
    parser.add_argument("--crowd", type=int, default=100_000)
    parser.add_argument("--gpu", action="store_true", help="use the real driver")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parameters = {"cycles": arguments.cycles, "crowd": arguments.crowd}
    cuda = None if arguments.gpu else dlwrap.testing.activate()
    return report("memory", parameters, lambda: run(cuda, arguments.cycles, arguments.crowd), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
