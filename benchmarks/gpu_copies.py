"""Using an array in place, beside copying it to the device first: once, and several times, by size."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, torch_with_cuda
from benchmarks._timing import compare, describe, race_once, ratio, rounded, time_call

if TYPE_CHECKING:
    from collections.abc import Callable

KIB, MIB = 2**10, 2**20
READ_ONCE = 256 * MIB
SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
USES = (1, 2, 4, 8, 16)

IN_PLACE = "in place"
IN_PIN = "in place, inside pin"
PAGEABLE_COPY = "torch.from_numpy(a).cuda()"
PINNED_COPY = "pin_memory(), to(non_blocking)"


class Ways:
    """Ways to sum an array up on the GPU several times, from host memory to host number.

    torch keeps the memory of its copies, on the device and page-locked on the host, for the next ones: after the
    first turn they allocate nothing. What is used in place is page-locked and unregistered each time, but for the
    pin, whose cost is left out.
    """

    def __init__(self, torch: Any, nbytes: int) -> None:
        self._torch = torch
        self._array = np.ones(nbytes // 4, np.float32)

    def in_place(self, uses: int) -> float:
        """Wrap, sum, and wait for the release."""

        def use() -> None:
            self._sum(self._torch.from_dlpack(dlwrap.wrap(self._array)), uses)
            dlwrap.reclaim(SECONDS)

        dlwrap.reclaim(SECONDS)
        return time_call(use)

    def in_pin(self, uses: int) -> float:
        """Wrap, sum and drop; the release goes on beside the program."""
        with dlwrap.pin(self._array):
            taken = time_call(lambda: self._sum(self._torch.from_dlpack(dlwrap.wrap(self._array)), uses))
            dlwrap.reclaim(SECONDS)
        return taken

    def pageable_copy(self, uses: int) -> float:
        """Copy, sum and drop."""
        dlwrap.reclaim(SECONDS)
        return time_call(lambda: self._sum(self._torch.from_numpy(self._array).cuda(), uses))

    def pinned_copy(self, uses: int) -> float:
        """Copy into page-locked memory, from there to the device, sum and drop."""

        def use() -> None:
            pinned = self._torch.from_numpy(self._array).pin_memory()
            self._sum(pinned.to("cuda", non_blocking=True), uses)

        dlwrap.reclaim(SECONDS)
        return time_call(use)

    def _sum(self, tensor: Any, uses: int) -> None:
        for _ in range(uses):
            total = tensor.sum()
        if abs(total.item() / tensor.numel() - 1) > 1e-3:
            raise AssertionError(f"{tensor.numel()} ones sum up to {total.item()}")

    def contestants(self, uses: int) -> dict[str, Callable[[], float]]:
        """Give all of them, each to be called in turns."""
        ways = {
            IN_PLACE: self.in_place,
            IN_PIN: self.in_pin,
            PAGEABLE_COPY: self.pageable_copy,
            PINNED_COPY: self.pinned_copy,
        }
        return {name: functools.partial(way, uses) for name, way in ways.items()}


def read_once(run: Run) -> dict[str, Any]:
    """Sum 256 MiB up once."""
    ways = Ways(torch_with_cuda(), run.pick(READ_ONCE, MIB))
    samples = _race(ways, 1, run.pick(9, 2))
    cold = {name: samples[name] for name in (IN_PLACE, PAGEABLE_COPY, PINNED_COPY)}
    pinned = {name: samples[name] for name in (IN_PIN, PAGEABLE_COPY, PINNED_COPY)}
    return {
        "read_once": {**compare(cold, "ms", PAGEABLE_COPY), "speedup": ratio(samples[PAGEABLE_COPY], cold[IN_PLACE])},
        "read_once_in_pin": {
            **compare(pinned, "ms", PAGEABLE_COPY),
            "speedup": ratio(samples[PAGEABLE_COPY], pinned[IN_PIN]),
        },
    }


def _race(ways: Ways, uses: int, repeats: int) -> dict[str, list[float]]:
    contestants = ways.contestants(uses)
    race_once(contestants, 1)  # warms up, and lets torch allocate
    return race_once(contestants, repeats)


def zero_copy_rate(run: Run) -> dict[str, Any]:
    """Sum a wrapped array up, beside the DMA of as many bytes of page-locked memory; timed by CUDA events."""
    torch = torch_with_cuda()
    nbytes = run.pick(READ_ONCE, MIB)
    array = np.ones(nbytes // 4, np.float32)
    pinned = torch.from_numpy(array).pin_memory()
    on_device = torch.empty(nbytes // 4, dtype=torch.float32, device="cuda")

    def rate(function: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        function()
        end.record()
        end.synchronize()
        return nbytes / (begin.elapsed_time(end) * 1e-3) / 1e9

    def measure(tensor: Any) -> dict[str, list[float]]:
        contestants = {
            "sum of a wrapped array": lambda: rate(tensor.sum),
            "DMA from page-locked memory": lambda: rate(lambda: on_device.copy_(pinned, non_blocking=True)),
            "copy_ of a wrapped array to the device": lambda: rate(lambda: on_device.copy_(tensor)),
        }
        race_once(contestants, 2)
        return race_once(contestants, run.pick(31, 3))

    with dlwrap.pin(array):
        samples = measure(torch.from_dlpack(dlwrap.wrap(array)))
        dlwrap.reclaim(SECONDS)
    subject, peer, other = samples
    return {
        "zero_copy_rate": {
            "of": subject,
            **describe(samples[subject], "GB/s"),
            "peers": {name: describe(samples[name], "GB/s") for name in (peer, other)},
            "against": peer,
            "ratio": ratio(samples[subject], samples[peer]),
        }
    }


def uses(run: Run) -> dict[str, Any]:
    """Sum arrays of all sizes up once and several times."""
    torch = torch_with_cuda()
    sizes, numbers = run.pick(SIZES, SIZES[:2]), run.pick(USES, USES[:2])
    curve: dict[str, Any] = {"x": "bytes", "unit": "us", "bytes": list(sizes), "uses": list(numbers)}
    for nbytes in sizes:
        ways = Ways(torch, nbytes)
        by_uses = [_race(ways, number, run.pick(_repeats(nbytes), 1)) for number in numbers]
        for name in by_uses[0]:
            medians = [rounded(describe(samples[name], "ns")["value"] / 1e3) for samples in by_uses]
            curve.setdefault(name, []).append(medians)
    torch.cuda.empty_cache()
    return {"uses": curve}


def _repeats(nbytes: int) -> int:
    if nbytes <= MIB:
        return 21
    return 7 if nbytes <= 64 * MIB else 3


BENCHMARKS = (
    Benchmark(read_once, rows=("read_once", "read_once_in_pin"), needs_gpu=True),
    Benchmark(zero_copy_rate, rows=("zero_copy_rate",), needs_gpu=True),
    Benchmark(uses, curves=("uses",), needs_gpu=True),
)
