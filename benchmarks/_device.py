"""The CUDA driver under the benchmarks, real or simulated: bare calls, and how to keep its legacy stream busy."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import dlwrap.testing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEGACY_STREAM = 1
NON_BLOCKING = 1  # of cuStreamCreate
PORTABLE_DEVICEMAP = 3  # of cuMemHostRegister and cuMemHostAlloc
BLOCKING_SYNC_NO_TIMING = 3  # of cuEventCreate
LONGEST_HOLD_SECONDS = 60.0  # then a held stream goes on by itself, so that no mistake can hang the GPU

_PROBE = """
from cuda.bindings import driver
initialised, = driver.cuInit(0)
failed, count = driver.cuDeviceGetCount() if int(initialised) == 0 else (1, 0)
raise SystemExit(0 if int(failed) == 0 and count > 0 else 1)
"""


def has_gpu() -> bool:
    """Tell whether there is a real device, without loading a driver into this process."""
    return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False).returncode == 0


@functools.cache
def bindings() -> Any:
    """Import the driver's bindings, after the simulated driver, if any, is loaded."""
    from cuda.bindings import driver  # noqa: PLC0415 -- its import may load a driver

    return driver


def call(name: str, *arguments: Any) -> Any:
    """Make a driver call that must succeed; give what it returns beside its result."""
    result, *values = getattr(bindings(), name)(*arguments)
    if int(result):
        raise RuntimeError(f"{name} returned {result!r}")
    return values[0] if len(values) == 1 else tuple(values)


def address(array: np.ndarray) -> int:
    """Give the address of an array's first element."""
    return array.__array_interface__["data"][0]


@dataclass(frozen=True)
class Device:
    """Device 0, its primary context current.

    Attributes
    ----------
    simulated : SimulatedDriver or None
        Controls the simulated driver, where that is loaded.
    """

    simulated: dlwrap.testing.SimulatedDriver | None

    @contextlib.contextmanager
    def busy(self, array: np.ndarray) -> Iterator[Callable[[], None]]:
        """Keep the legacy default stream busy; gives what ends that, at the latest at the end.

        Parameters
        ----------
        array : ndarray
            Page-locked memory that the simulated work uses.
        """
        let_go = self._hold(array)
        try:
            yield let_go
        finally:
            let_go()

    def _hold(self, array: np.ndarray) -> Callable[[], None]:
        if self.simulated is None:
            return kernels().hold(LEGACY_STREAM)
        self.simulated.hold(LEGACY_STREAM)
        self.simulated.launch(LEGACY_STREAM, array)
        return functools.partial(self.simulated.let_go, LEGACY_STREAM)

    def forget_calls(self) -> None:
        """Empty the log of the simulated driver, which grows with every call."""
        if self.simulated is not None:
            self.simulated.clear_calls()


def open_device(*, simulated: bool) -> Device:
    """Load the driver and make the primary context current on this thread."""
    device = Device(dlwrap.testing.activate() if simulated else None)
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", 0))
    return device


_SOURCE = r"""
__device__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

extern "C" __global__ void spin(unsigned long long duration) {
    unsigned long long begin = nanoseconds();
    while (nanoseconds() - begin < duration) {
    }
}

extern "C" __global__ void hold(volatile int *open, unsigned long long longest) {
    unsigned long long begin = nanoseconds();
    while (!*open && nanoseconds() - begin < longest) {
        __nanosleep(2000);
    }
}
"""


class Launch:
    """A kernel with its arguments, ready to be launched again and again by one thread."""

    def __init__(self, kernel: Any, *arguments: Any) -> None:
        self._kernel = kernel
        self._values = arguments  # numbers of ctypes, which the driver reads at every launch
        self._pointers = np.array([ctypes.addressof(value) for value in arguments], np.uint64)
        self._parameters = address(self._pointers)

    def __call__(self, stream: Any) -> None:
        """Launch one thread on a stream."""
        call("cuLaunchKernel", self._kernel, 1, 1, 1, 1, 1, 1, 0, stream, self._parameters, 0)


class Kernels:
    """Compiled for device 0; the first launch of each has been made, since that may wait for the device."""

    def __init__(self) -> None:
        library = call("cuLibraryLoadData", _compile(), [], [], 0, [], [], 0)
        self._spin, self._hold = (
            bindings().CUfunction(int(call("cuLibraryGetKernel", library, name))) for name in (b"spin", b"hold")
        )
        # Never freed: cuMemFreeHost would wait for the device.
        self._cells = int(call("cuMemHostAlloc", 4096, PORTABLE_DEVICEMAP))
        self._device_cells = int(call("cuMemHostGetDevicePointer", self._cells, 0))
        self._used = 0
        stream = bindings().CUstream(LEGACY_STREAM)
        self.spin(1e-6)(stream)
        self.hold(LEGACY_STREAM)()
        call("cuStreamSynchronize", stream)

    def spin(self, seconds: float) -> Launch:
        """Give a kernel that takes so long."""
        return Launch(self._spin, ctypes.c_uint64(round(seconds * 1e9)))

    def hold(self, stream: int) -> Callable[[], None]:
        """Keep a stream busy until what this gives is called."""
        offset = self._used % 1024 * 4
        self._used += 1
        cell = ctypes.c_int.from_address(self._cells + offset)
        cell.value = 0
        limit = ctypes.c_uint64(round(LONGEST_HOLD_SECONDS * 1e9))
        Launch(self._hold, ctypes.c_uint64(self._device_cells + offset), limit)(bindings().CUstream(stream))

        def let_go() -> None:
            cell.value = 1

        return let_go


@functools.cache
def kernels() -> Kernels:
    """Give the kernels, compiled at the first call."""
    return Kernels()


def _compile() -> np.ndarray:
    from cuda.bindings import nvrtc  # noqa: PLC0415 -- only where there is a GPU

    def compiler(name: str, *arguments: Any) -> Any:
        result, *values = getattr(nvrtc, name)(*arguments)
        if int(result):
            raise RuntimeError(f"{name} returned {result!r}")
        return values[0] if values else None

    attribute = bindings().CUdevice_attribute
    major = call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0)
    minor = call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0)
    program = compiler("nvrtcCreateProgram", _SOURCE.encode(), b"benchmarks.cu", 0, [], [])
    compiler("nvrtcCompileProgram", program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()])
    image = bytearray(compiler("nvrtcGetCUBINSize", program))
    compiler("nvrtcGetCUBIN", program, image)
    return np.frombuffer(image, np.uint8)
