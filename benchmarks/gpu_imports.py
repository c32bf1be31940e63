"""What it costs GPU frameworks to import a wrapped array, beside importing each other's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, framework, torch_with_cuda
from benchmarks._timing import Statement, compare, race, working

ELEMENTS = 1000
MOST_RELEASES = 1000


def torch_import(run: Run) -> dict[str, Any]:
    """Import into torch and drop the tensor."""
    torch, cupy = torch_with_cuda(), framework("cupy")
    array = np.zeros(ELEMENTS, np.float32)
    with dlwrap.pin(array):
        names = {
            "take": torch.from_dlpack,
            "as_tensor": torch.as_tensor,
            "wrap": dlwrap.wrap,
            "array": array,
            "buffer": dlwrap.wrap(array),
            "on_cupy": cupy.zeros(ELEMENTS, cupy.float32),
        }
        # Reading the CUDA array interface makes the release of that buffer wait for the device.
        by_interface = {**names, "buffer": dlwrap.wrap(array)}
        contestants = {
            "from_dlpack(buffer)": Statement("take(buffer)", names),
            "from_dlpack(CuPy array)": Statement("take(on_cupy)", names),
        }
        others = {
            "from_dlpack(NumPy array)": Statement("take(array)", names),
            "as_tensor(buffer), by the CUDA array interface": Statement(
                "as_tensor(buffer, device='cuda')", by_interface
            ),
            "from_dlpack(wrap(array)) inside pin, and the release": Statement(
                "take(wrap(array))", names, MOST_RELEASES, lambda: dlwrap.reclaim(SECONDS)
            ),
        }
        samples = race({**contestants, **working(others)}, run.pick(25, 3), run.pick(0.02, 0.001))
        return {"torch_import": compare(samples, "us", against="from_dlpack(CuPy array)")}


def cupy_import(run: Run) -> dict[str, Any]:
    """Import into CuPy and drop the array."""
    torch, cupy = torch_with_cuda(), framework("cupy")
    array = np.zeros(ELEMENTS, np.float32)
    with dlwrap.pin(array):
        names = {
            "take": cupy.from_dlpack,
            "buffer": dlwrap.wrap(array),
            "on_torch": torch.zeros(ELEMENTS, device="cuda"),
            "on_cupy": cupy.zeros(ELEMENTS, cupy.float32),
        }
        contestants = {
            "from_dlpack(buffer)": Statement("take(buffer)", names),
            "from_dlpack(torch tensor)": Statement("take(on_torch)", names),
            "from_dlpack(CuPy array)": Statement("take(on_cupy)", names),
        }
        samples = race(contestants, run.pick(25, 3), run.pick(0.02, 0.001))
        return {"cupy_import": compare(samples, "us", against="from_dlpack(torch tensor)")}


def numba_import(run: Run) -> dict[str, Any]:
    """Import into numba by the CUDA array interface and drop the array."""
    cuda, cupy = framework("numba.cuda"), framework("cupy")
    array = np.zeros(ELEMENTS, np.float32)
    with dlwrap.pin(array):
        names = {
            "take": cuda.as_cuda_array,
            "buffer": dlwrap.wrap(array),
            "on_cupy": cupy.zeros(ELEMENTS, cupy.float32),
        }
        contestants = {
            "as_cuda_array(buffer)": Statement("take(buffer)", names),
            "as_cuda_array(CuPy array)": Statement("take(on_cupy)", names),
        }
        samples = race(contestants, run.pick(25, 3), run.pick(0.02, 0.001))
        return {"numba_import": compare(samples, "us", against="as_cuda_array(CuPy array)")}


BENCHMARKS = (
    Benchmark(torch_import, rows=("torch_import",), needs_gpu=True),
    Benchmark(cupy_import, rows=("cupy_import",), needs_gpu=True),
    Benchmark(numba_import, rows=("numba_import",), needs_gpu=True),
)
