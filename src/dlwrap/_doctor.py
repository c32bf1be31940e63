"""Examines the machine and tests each device shortly; shows nothing, and imports no consumer.

The self-test wraps an array, has the device read and write it by copies on the legacy default stream, drops it, and
looks whether everything was given back.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import resource
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import dlwrap
from dlwrap import _driver, _info, testing
from dlwrap._findings import DeviceFacts, Facts, Finding, SelfTest, find

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[tuple[int], np.dtype[np.uint8]]

_BYTES, _BYTES_SIMULATED = 64 * 2**20, 2**20
_REPEATS = 3
_SECONDS = 60.0  # how long a release may take
_UNLIMITED = 2**60


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, and what it means."""

    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing fails."""
        return not any(each.severity == "error" for each in self.findings)


def examine() -> Diagnosis:
    """Look at the machine, and test each device."""
    found = _info.collect()
    devices = tuple(_examine_device(each) for each in found.devices)
    version = found.versions["cuda-bindings"]
    driver = _read("/proc/driver/nvidia/version")
    facts = Facts(
        devices=devices,
        obstacle=found.obstacle,
        obstacle_name=found.obstacle_name,
        simulated=found.simulated,
        machine=platform.machine(),
        kernel=platform.release(),
        is_wsl="microsoft" in _read("/proc/version").lower(),
        is_container=os.path.exists("/.dockerenv") or "container" in os.environ,
        kernel_driver=_kernel_driver(driver),
        open_modules=_has_open_modules(driver),
        memlock=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        memory_limit=_memory_limit(),
        memory_available=_memory_available(_read("/proc/meminfo")),
        python=sys.version_info[:2],
        bindings=None if version == "not installed" else version,
        start_method=multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        transparent_hugepages=_chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled")),
    )
    return Diagnosis(facts, find(facts))


def _examine_device(support: dlwrap.DeviceSupport) -> DeviceFacts:
    mode = _driver.attribute(support.device, "COMPUTE_MODE")
    nbytes = _BYTES_SIMULATED if testing.active() else _BYTES
    if support.memory is None:
        return DeviceFacts(support, mode, SelfTest("none", 0))
    try:
        return DeviceFacts(support, mode, _test(support.device, support.memory, nbytes))
    except (dlwrap.DLWrapError, BufferError, TimeoutError, _FailureError) as error:
        name = getattr(error, "name", None)
        return DeviceFacts(support, mode, SelfTest(support.memory, nbytes, failure=str(error), failure_name=name))


class _FailureError(Exception):
    """The device did something else than it should."""


def _test(device: int, memory: str, nbytes: int) -> SelfTest:
    array: Array = np.full(nbytes, 7, np.uint8)
    plain: Array = np.full(nbytes, 5, np.uint8)
    with _driver.primary_context(device):
        scratch = _driver.allocate(nbytes)
        try:
            dlwrap.wrap(np.zeros(1), device=device).close(_SECONDS)  # the first wrap starts threads
            begun = time.perf_counter()
            buffer = dlwrap.wrap(array, device=device)
            page_lock = nbytes / max(time.perf_counter() - begun, 1e-9) / 1e9 if memory == "pinned" else None
            capsule = buffer.__dlpack__(stream=1, max_version=(1, 0))
            pointer = buffer.ptr
            write = _copy_speed(pointer, scratch, nbytes, before=lambda: _driver.fill(scratch, 9, nbytes))
            if not (array == 9).all():
                raise _FailureError("the array does not hold what the device wrote there")
            array[:] = 11
            read = _copy_speed(scratch, pointer, nbytes)
            copied: Array = np.zeros(nbytes, np.uint8)
            _copy_speed(int(copied.__array_interface__["data"][0]), scratch, nbytes)
            if not (copied == 11).all():
                raise _FailureError("the device did not read what the array holds")
            pageable = _copy_speed(scratch, int(plain.__array_interface__["data"][0]), nbytes)
        finally:
            _driver.free(scratch)
    gone = weakref.ref(array)
    del array, buffer, capsule
    dlwrap.reclaim(_SECONDS)
    gc.collect()
    left = dlwrap.stats()
    if gone() is not None or left.live or left.pending or left.pinned_bytes:
        raise _FailureError(f"not everything was given back: {left}")
    return SelfTest(memory, nbytes, page_lock, read, write, pageable)


def _copy_speed(target: int, source: int, nbytes: int, before: Callable[[], None] = lambda: None) -> float:
    """Copy some times, and give the best in 10**9 bytes per second."""
    before()
    best = 0.0
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        _driver.copy(target, source, nbytes)
        best = max(best, nbytes / max(time.perf_counter() - begun, 1e-9) / 1e9)
    return best


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kernel_driver(text: str) -> str | None:
    """Find the driver's version in /proc/driver/nvidia/version."""
    first = text.partition("\n")[0].split()
    return next((word for word in first if word[:1].isdigit() and word.count(".") >= 1 and word != first[0]), None)


def _has_open_modules(text: str) -> bool | None:
    return "Open Kernel Module" in text if text else None


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY or not 0 <= value < _UNLIMITED else value


def _memory_limit() -> int | None:
    """Give the limit of the control group, in the layouts of cgroup 2 and 1 as containers see them."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path).strip()
        if text.isdecimal():
            return _limit(int(text))
    return None


def _memory_available(text: str) -> int | None:
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _chosen(text: str) -> str | None:
    """Give the word in brackets."""
    inside = text.partition("[")[2].partition("]")[0]
    return inside or None
