"""What the doctor says of what was found: facts in, findings out; asks nobody and shows nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlwrap import DeviceSupport

Severity = Literal["error", "warning", "info"]

_OLDEST_BINDINGS, _FIRST_UNKNOWN_BINDINGS = (12, 9, 1), (14,)
_HMM_KERNEL, _HMM_DRIVER = (6, 1, 24), (535,)  # NVIDIA open kernel modules, "HMM"
_OLDEST_CUDA = 12000  # of the functions that dlwrap asks the driver for
_EXCLUSIVE, _PROHIBITED = 3, 2  # CUcomputemode
_LITTLE_MEMORY = 2**30
_SLOW_PAGE_LOCK = 4.0  # GB/s; 31 on an H200
_SLOW_COPY = 6.0  # GB/s; PCIe 3 with 16 lanes gives 12

_NO_DEVICE = {
    "NO_DRIVER": (
        "no-driver",
        "install the NVIDIA driver, until nvidia-smi lists the GPU; give a container the GPU (docker run --gpus all)",
    ),
    "NO_BINDINGS": ("no-bindings", "pip install cuda-bindings"),
    "CUDA_ERROR_NO_DEVICE": ("no-device", "look at CUDA_VISIBLE_DEVICES, and at what nvidia-smi lists"),
}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What the self-test of a device measured.

    Attributes
    ----------
    memory : str
        The memory kind.
    nbytes : int
        Bytes of the array.
    page_lock_gbs, read_gbs, write_gbs, pageable_copy_gbs : float or None
        10**9 bytes per second: page-locking it; the device reading from it, and writing to it; a copy of memory that is
        not page-locked, for comparison.
    failure : str or None
        What went wrong; then the figures are None.
    failure_name : str or None
        The driver's name for it.
    """

    memory: str
    nbytes: int
    page_lock_gbs: float | None = None
    read_gbs: float | None = None
    write_gbs: float | None = None
    pageable_copy_gbs: float | None = None
    failure: str | None = None
    failure_name: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device, how processes may share it (CUcomputemode), and its self-test."""

    support: DeviceSupport
    compute_mode: int
    test: SelfTest


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found on the machine; sizes in bytes, None where something is unlimited or unknown.

    Attributes
    ----------
    obstacle, obstacle_name : str or None
        Why no device can be used.
    open_modules : bool or None
        Whether the driver's kernel modules are the open ones.
    """

    devices: tuple[DeviceFacts, ...] = ()
    obstacle: str | None = None
    obstacle_name: str | None = None
    simulated: bool = False
    machine: str = "x86_64"
    kernel: str = ""
    is_wsl: bool = False
    is_container: bool = False
    kernel_driver: str | None = None
    open_modules: bool | None = None
    memlock: int | None = None
    memory_limit: int | None = None
    memory_available: int | None = None
    python: tuple[int, int] = (3, 14)
    bindings: str | None = None
    start_method: str = "spawn"
    transparent_hugepages: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that fails ("error"), is slow or in the way ("warning"), or is good to know ("info").

    Attributes
    ----------
    id : str
        Its name, which stays the same.
    device : int or None
        The device that it is about; None for the machine.
    text, cure : str
        What was found, and what to do.
    """

    id: str
    severity: Severity
    device: int | None
    text: str
    cure: str


def find(facts: Facts) -> tuple[Finding, ...]:
    """Say what is impossible, slow, or good to know, the worst first."""
    found = [*_of_software(facts), *_of_machine(facts)]
    for device in facts.devices:
        found += _of_device(device, facts)
    order = ("error", "warning", "info")
    return tuple(sorted(found, key=lambda each: order.index(each.severity)))


def _of_software(facts: Facts) -> Iterator[Finding]:
    if facts.obstacle is not None:
        name, cure = _NO_DEVICE.get(facts.obstacle_name or "", ("no-cuda", "see whether nvidia-smi works"))
        yield Finding(name, "error", None, facts.obstacle, cure)
    if facts.simulated:
        text = "the devices are those of the simulated CUDA driver: its figures say nothing of a GPU"
        yield Finding("simulated", "info", None, text, "run it without --simulated on a machine with a GPU")
    if facts.bindings is not None:
        version = _numbers(facts.bindings)
        if version < _OLDEST_BINDINGS:
            text = f"cuda-bindings {facts.bindings} is older than 12.9.1: each of its calls holds up all Python threads"
            yield Finding("bindings-old", "error", None, text, "pip install -U 'cuda-bindings>=12.9.1,<14'")
        elif version >= _FIRST_UNKNOWN_BINDINGS:
            text = f"cuda-bindings {facts.bindings} is newer than what dlwrap was tested with"
            yield Finding("bindings-new", "warning", None, text, "pip install 'cuda-bindings>=12.9.1,<14'")
    if facts.start_method == "fork" and facts.python < (3, 14):
        text = "multiprocessing starts children by fork here: in a forked child nothing of dlwrap or CUDA works"
        cure = "multiprocessing.set_start_method('spawn'); torch's DataLoader: multiprocessing_context='spawn'"
        yield Finding("fork", "info", None, text, cure)


def _of_machine(facts: Facts) -> Iterator[Finding]:
    if facts.is_wsl:
        text = "this is WSL2: only part of the memory can be page-locked, and devices do not read pageable memory"
        yield Finding("wsl", "warning", None, text, "raise `memory=` in .wslconfig; wrap less at a time")
    if facts.memory_available is not None and facts.memory_available < _LITTLE_MEMORY:
        text = f"only {_size(facts.memory_available)} of memory are available; page-locked memory cannot be swapped out"
        yield Finding("memory-low", "warning", None, text, "end other programs, or raise the container's limit")
    if facts.memory_limit is not None:
        text = (
            f"this process may use {_size(facts.memory_limit)} (cgroup); page-locked memory counts, and never shrinks"
        )
        cure = "give the container more memory where page-locking fails or processes are killed (docker run --memory)"
        yield Finding("memory-limit", "info", None, text, cure)


def _of_device(device: DeviceFacts, facts: Facts) -> Iterator[Finding]:
    number, support = device.support.device, device.support
    if support.driver_version < _OLDEST_CUDA:
        text = f"the driver is for CUDA {support.driver_version // 1000}, and dlwrap needs 12.0"
        yield Finding("driver-old", "error", number, text, "install a newer NVIDIA driver, 525 at least")
    if device.compute_mode == _PROHIBITED:
        yield Finding(
            "mode-prohibited", "error", number, "its compute mode lets no process use it", "nvidia-smi -c DEFAULT"
        )
    elif device.compute_mode == _EXCLUSIVE:
        text = "its compute mode lets one process use it at a time: workers beside this one get no context"
        yield Finding("mode-exclusive", "warning", number, text, "nvidia-smi -c DEFAULT")
    if support.memory is None:
        text = "it can neither read pageable memory nor page-lock memory: wrapping is impossible"
        yield Finding("no-memory-kind", "error", number, text, "copy the data; see `python -m dlwrap info`")
        return
    if not support.pageable_memory_access:
        text = "it cannot read pageable memory (HMM is off): memory has to be page-locked before its first use"
        yield Finding("hmm-off", "info", number, text, _cure_of_hmm(facts))
        yield from _of_page_locking(device)
    yield from _of_self_test(device, facts)


def _cure_of_hmm(facts: Facts) -> str:
    """Name the conditions of HMM that do not hold here."""
    missing = []
    if facts.is_wsl:
        missing.append("Linux without WSL")
    if facts.machine not in {"x86_64", "AMD64"}:
        missing.append(f"an x86-64 machine (this is {facts.machine})")
    if facts.open_modules is not True:
        missing.append("the driver's open kernel modules" + (" (cannot tell)" if facts.open_modules is None else ""))
    if _numbers(facts.kernel) < _HMM_KERNEL:
        missing.append(f"Linux 6.1.24 or newer (this is {facts.kernel or 'unknown'})")
    if facts.kernel_driver is not None and _numbers(facts.kernel_driver) < _HMM_DRIVER:
        missing.append(f"driver 535 or newer (this is {facts.kernel_driver})")
    if missing:
        return "HMM needs " + ", ".join(missing) + "; without it, dlwrap.pin() keeps memory page-locked"
    return (
        "what HMM needs of kernel and driver is there: look whether nvidia_uvm was loaded with uvm_disable_hmm=1, or a "
        "virtual machine or confidential computing forbids it; without it, dlwrap.pin() keeps memory page-locked"
    )


def _of_page_locking(device: DeviceFacts) -> Iterator[Finding]:
    number = device.support.device
    if not device.support.read_only_host_register:
        text = "memory that the process cannot write cannot be page-locked: files mapped with mode 'r', bytes in them"
        yield Finding("read-only-register", "warning", number, text, "map files with mode 'c' (copy on write)")
    text = "a writable shared mapping of a file on a disk (numpy.memmap modes 'r+' and 'w+') cannot be page-locked"
    cure = "map with mode 'c' or 'r'; /dev/shm and SharedMemory are fine"
    yield Finding("file-mappings", "info", number, text, cure)


def _of_self_test(device: DeviceFacts, facts: Facts) -> Iterator[Finding]:
    number, test = device.support.device, device.test
    if test.failure is not None:
        cure = "see the message; `python -m dlwrap info` shows what the device can do"
        if test.failure_name == "CUDA_ERROR_OUT_OF_MEMORY":
            limit = "" if facts.memlock is None else f"; this process may lock {_size(facts.memlock)}"
            cure = f"raise the limit of locked memory (ulimit -l unlimited; docker run --ulimit memlock=-1){limit}"
        yield Finding("self-test-failed", "error", number, test.failure, cure)
        return
    if test.memory == "pinned" and facts.memlock is not None and facts.memlock < test.nbytes:
        text = (
            f"RLIMIT_MEMLOCK is {_size(facts.memlock)}, and {_size(test.nbytes)} were page-locked all the same: this "
            "driver does not count it"
        )
        cure = "nothing, as long as page-locking works; ulimit -l unlimited, or docker run --ulimit memlock=-1, if not"
        yield Finding("memlock", "info", number, text, cure)
    if facts.simulated:
        return
    if test.page_lock_gbs is not None and test.page_lock_gbs < _SLOW_PAGE_LOCK:
        text = f"page-locking runs at {test.page_lock_gbs:.1f} GB/s only, where 10 to 30 are usual"
        cure = "keep arrays page-locked with dlwrap.pin(); write to new memory once before; look for a loaded machine"
        yield Finding("slow-page-lock", "warning", number, text, cure)
    if test.read_gbs is not None and test.read_gbs < _SLOW_COPY:
        text = f"the device reads host memory at {test.read_gbs:.1f} GB/s only, where PCIe 3 with 16 lanes gives 12"
        cure = "look at `nvidia-smi -q -d PERFORMANCE` and the PCIe link width; bind the process to the GPU's NUMA node"
        yield Finding("slow-link", "warning", number, text, cure)


def _numbers(version: str) -> tuple[int, ...]:
    """Give the leading numbers of a version."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(each) for each in match.group().split(".")) if match else ()


def _size(nbytes: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 2**power:
            return f"{nbytes / 2**power:.1f} {unit}"
    return f"{nbytes} bytes"
