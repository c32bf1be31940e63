"""A kernel that holds a stream until the host says so: tests wait for nothing but what they themselves let go.

Through cuda.bindings and NVRTC only, so that scripts can use it without any framework.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
from _cuda import LEGACY_STREAM, PORTABLE_DEVICEMAP, bindings, call, current

LONGEST_SECONDS = 20.0  # then a latch opens by itself, so that a broken test can't hang the GPU
_CELLS = 4096
_WORDS = 8
_STARTED, _OPENED, _FINISHED, _SUM = range(4)
_BY_HOST, _BY_ITSELF = 1, 2

_SOURCE = r"""
__device__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// cell: started, opened, finished, sum. Waits for opened; then sums up what is there and overwrites it.
extern "C" __global__ void wait_then_fill(volatile long long *cell, volatile float *data, long long count,
                                          float value, unsigned long long limit) {
    __shared__ double sum;
    __shared__ long long opened;
    if (threadIdx.x == 0) {
        sum = 0;
        cell[0] = 1;
        __threadfence_system();
        unsigned long long begin = nanoseconds();
        while (!(opened = cell[1]) && nanoseconds() - begin < limit) {
            __nanosleep(2000);
        }
    }
    __syncthreads();
    double mine = 0;
    for (long long i = threadIdx.x; i < count; i += blockDim.x) {
        mine += data[i];
        data[i] = value;
    }
    atomicAdd(&sum, mine);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        ((volatile double *)cell)[3] = sum;
        __threadfence_system();
        cell[2] = opened ? 1 : 2;
    }
}

extern "C" __global__ void add(volatile float *data, long long count, float value) {
    for (long long i = threadIdx.x; i < count; i += blockDim.x) {
        data[i] = data[i] + value;
    }
}
"""


class Kernels:
    """The compiled kernels, warm, and the page-locked cells that latches are opened by."""

    def __init__(self) -> None:
        with current():
            library = call("cuLibraryLoadData", _compile(), [], [], 0, [], [], 0)
            self._wait_then_fill = call("cuLibraryGetKernel", library, b"wait_then_fill")
            self._add = call("cuLibraryGetKernel", library, b"add")
            # Never freed: cuMemFreeHost would wait for the device.
            nbytes = 8 * _WORDS * _CELLS
            host = int(call("cuMemHostAlloc", nbytes, PORTABLE_DEVICEMAP))
            self._device_cells = int(call("cuMemHostGetDevicePointer", host, 0))
        self._cells = np.frombuffer((ctypes.c_char * nbytes).from_address(host), np.int64).reshape(_CELLS, _WORDS)
        self._cells[:] = 0
        self._used = 0
        self.warm_up()

    def warm_up(self, stream: int = LEGACY_STREAM, context: Any = None) -> None:
        """Launch once, because a kernel's first launch in a context may wait for the device."""
        latch = self.new_latch(context=context)
        latch.open()
        latch.launch(stream)
        self.add(stream, 0, 0, 0.0, context=context)
        latch.wait()

    def new_latch(self, seconds: float = LONGEST_SECONDS, context: Any = None) -> Latch:
        cell, device_cell = self._cells[self._used], self._device_cells + 8 * _WORDS * self._used
        self._used += 1
        return Latch(self._wait_then_fill, cell, device_cell, seconds, context)

    def add(self, stream: int, pointer: int, count: int, value: float, context: Any = None) -> None:
        """Add a value to float32 elements."""
        types = (ctypes.c_void_p, ctypes.c_longlong, ctypes.c_float)
        _launch(self._add, stream, (pointer, count, value), types, context)


class Latch:
    """One launch of the waiting kernel, and the host's side of it."""

    def __init__(self, kernel: Any, cell: np.ndarray, device_cell: int, seconds: float, context: Any) -> None:
        self._kernel = kernel
        self._cell = cell
        self._device_cell = device_cell
        self._nanoseconds = int(seconds * 1e9)
        self._context = context
        self._launched = False

    def launch(self, stream: int, pointer: int = 0, count: int = 0, value: float = -1.0) -> None:
        """Hold a stream; after the latch opens, sum ``count`` float32 elements up and overwrite them with ``value``."""
        types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_float, ctypes.c_ulonglong)
        values = (self._device_cell, pointer, count, value, self._nanoseconds)
        _launch(self._kernel, stream, values, types, self._context)
        self._launched = True

    def open(self) -> None:
        self._cell[_OPENED] = 1

    @property
    def holds(self) -> bool:
        """Whether the host has not opened it, and the kernel has not given up."""
        return self._launched and self._cell[_OPENED] == 0 and self._cell[_FINISHED] == 0

    @property
    def finished(self) -> bool:
        """Whether the kernel has done its work."""
        return bool(self._cell[_FINISHED])

    @property
    def sum(self) -> float:
        """The sum of the elements, as the kernel read them after the latch opened."""
        return float(self._cell.view(np.float64)[_SUM])

    def wait_until_started(self) -> None:
        self._wait_for(_STARTED)

    def wait(self) -> None:
        """Wait for the kernel; fails if the latch opened by itself, because something had waited for it."""
        self._wait_for(_FINISHED)
        assert self._cell[_FINISHED] == _BY_HOST, "the latch opened by itself: a call of the test waited for the GPU"

    def close_down(self) -> None:
        """Open it and wait, if it was launched at all."""
        self.open()
        if self._launched:
            self.wait()

    def _wait_for(self, word: int) -> None:
        deadline = time.monotonic() + self._nanoseconds / 1e9 + 10
        while not self._cell[word]:
            assert time.monotonic() < deadline, "the kernel never got that far"
            time.sleep(100e-6)


def _launch(kernel: Any, stream: int, values: tuple[Any, ...], types: tuple[Any, ...], context: Any) -> None:
    driver = bindings()
    function, handle = driver.CUfunction(int(kernel)), driver.CUstream(stream)
    with current(context):
        call("cuLaunchKernel", function, 1, 1, 1, 256, 1, 1, 0, handle, (values, types), 0)


def _compile() -> np.ndarray:
    """Compile the kernels for device 0."""
    from cuda.bindings import nvrtc

    def nvrtc_call(name: str, *args: Any) -> Any:
        result, *values = getattr(nvrtc, name)(*args)
        assert int(result) == 0, f"{name} returned {result!r}"
        return values[0] if values else None

    attributes = bindings().CUdevice_attribute
    major = call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0)
    minor = call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0)
    program = nvrtc_call("nvrtcCreateProgram", _SOURCE.encode(), b"latch.cu", 0, [], [])
    nvrtc_call("nvrtcCompileProgram", program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()])
    image = bytearray(nvrtc_call("nvrtcGetCUBINSize", program))
    nvrtc_call("nvrtcGetCUBIN", program, image)
    return np.frombuffer(image, np.uint8)
