"""How soon the GPU can use a host array, and how soon that is undone, by every way there is."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, framework, torch_with_cuda
from benchmarks._device import PORTABLE_DEVICEMAP, address, call
from benchmarks._timing import describe, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Way = Callable[[np.ndarray], contextlib.AbstractContextManager[Any]]

KIB, MIB = 2**10, 2**20
SIZES = (4 * KIB, MIB, 64 * MIB)
IN_PIN = "dlwrap.wrap inside dlwrap.pin"


def ways() -> dict[str, Way]:
    """Give every way, as a context inside which the GPU can use the array."""
    torch, cupy, cuda = torch_with_cuda(), framework("cupy"), framework("numba.cuda")
    return {**_by_dlwrap(torch), **_in_place(torch, cupy, cuda), **_by_copy(torch, cupy, cuda)}


def _by_dlwrap(torch: Any) -> dict[str, Way]:
    @contextlib.contextmanager
    def wrapped(array: np.ndarray) -> Iterator[Any]:
        yield torch.from_dlpack(dlwrap.wrap(array))
        dlwrap.reclaim(SECONDS)

    @contextlib.contextmanager
    def wrapped_in_pin(array: np.ndarray) -> Iterator[Any]:
        yield torch.from_dlpack(dlwrap.wrap(array))

    return {"dlwrap.wrap": wrapped, IN_PIN: wrapped_in_pin}


def _in_place(torch: Any, cupy: Any, cuda: Any) -> dict[str, Way]:
    @contextlib.contextmanager
    def bare(array: np.ndarray) -> Iterator[Any]:
        call("cuMemHostRegister", address(array), array.nbytes, PORTABLE_DEVICEMAP)
        yield call("cuMemHostGetDevicePointer", address(array), 0)
        call("cuMemHostUnregister", address(array))

    @contextlib.contextmanager
    def cupy_registered(array: np.ndarray) -> Iterator[Any]:
        cupy.cuda.runtime.hostRegister(address(array), array.nbytes, PORTABLE_DEVICEMAP)
        memory = cupy.cuda.UnownedMemory(address(array), array.nbytes, array, device_id=0)
        yield torch.from_dlpack(
            cupy.ndarray(array.shape, array.dtype, memptr=cupy.cuda.MemoryPointer(memory, 0)),
        )
        cupy.cuda.runtime.hostUnregister(address(array))

    @contextlib.contextmanager
    def numba_mapped(array: np.ndarray) -> Iterator[Any]:
        with cuda.mapped(array) as view:
            yield view
        del view
        _let_numba_free(cuda)

    return {
        "bare cuMemHostRegister": bare,
        "CuPy hostRegister, UnownedMemory, from_dlpack": cupy_registered,
        "numba cuda.mapped": numba_mapped,
    }


def _by_copy(torch: Any, cupy: Any, cuda: Any) -> dict[str, Way]:
    cudart = torch.cuda.cudart()

    def check(result: Any) -> None:
        if int(result):
            raise RuntimeError(f"the CUDA runtime returned {result!r}")

    @contextlib.contextmanager
    def torch_pageable(array: np.ndarray) -> Iterator[Any]:
        yield torch.from_numpy(array).cuda()

    @contextlib.contextmanager
    def torch_pinned(array: np.ndarray) -> Iterator[Any]:
        copied = torch.from_numpy(array).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        yield copied

    @contextlib.contextmanager
    def torch_registered(array: np.ndarray) -> Iterator[Any]:
        check(cudart.cudaHostRegister(address(array), array.nbytes, 0))
        copied = torch.from_numpy(array).to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        yield copied
        check(cudart.cudaHostUnregister(address(array)))

    @contextlib.contextmanager
    def cupy_copy(array: np.ndarray) -> Iterator[Any]:
        copied = cupy.asarray(array)
        cupy.cuda.Device().synchronize()
        yield copied

    @contextlib.contextmanager
    def numba_pinned(array: np.ndarray) -> Iterator[Any]:
        with cuda.pinned(array):
            copied = cuda.to_device(array)
            cuda.synchronize()
            yield copied
        del copied
        _let_numba_free(cuda)

    return {
        "torch.from_numpy(a).cuda()": torch_pageable,
        "pin_memory(), to(non_blocking)": torch_pinned,
        "torch cudart().cudaHostRegister, to(non_blocking)": torch_registered,
        "numba cuda.pinned, to_device": numba_pinned,
        "cupy.asarray": cupy_copy,
    }


def _let_numba_free(cuda: Any) -> None:
    """Unregister and free now what numba would some time later."""
    cuda.current_context().memory_manager.deallocations.clear()


def peers(run: Run) -> dict[str, Any]:
    """Take turns through all ways; one that fails is left out from then on, and named."""
    sizes, remaining = run.pick(SIZES, SIZES[:1]), ways()
    ready: dict[str, list[float]] = {name: [] for name in remaining}
    given_back: dict[str, list[float]] = {name: [] for name in remaining}
    failures: dict[str, str] = {}
    for nbytes in sizes:
        # Each has an array of its own, so that what a failed one leaves page-locked harms no other.
        arrays = {name: np.ones(nbytes // 4, np.float32) for name in remaining}
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in remaining}
        with _pinned(arrays[IN_PIN]):
            for _ in range(run.pick(50 if nbytes <= MIB else 10, 2) + 1):
                for name in list(remaining):
                    try:
                        samples[name].append(_time_both(remaining[name], arrays[name]))
                    except Exception as error:  # noqa: BLE001 -- another library's; the others go on
                        failures[name] = f"{type(error).__name__}: {error}"
                        del remaining[name]
            dlwrap.reclaim(SECONDS)
        for name in remaining:
            first, second = zip(*samples[name][1:], strict=True)
            ready[name].append(rounded(describe(list(first), "us")["value"]))
            given_back[name].append(rounded(describe(list(second), "us")["value"]))
    figures: dict[str, Any] = {"x": "bytes", "unit": "us", "bytes": list(sizes)}
    figures["ready"] = {name: ready[name] for name in remaining}
    figures["given back"] = {name: given_back[name] for name in remaining}
    return {"peers": {**figures, "failures": failures}}


@contextlib.contextmanager
def _pinned(array: np.ndarray) -> Iterator[None]:
    pin = dlwrap.pin(array)
    try:
        yield
    finally:
        pin.close(SECONDS)


def _time_both(way: Way, array: np.ndarray) -> tuple[float, float]:
    """Give the microseconds until the GPU can use the array, and those of the end of that."""
    context = way(array)
    begin = time.perf_counter_ns()
    made = context.__enter__()
    ready = time.perf_counter_ns()
    del made
    context.__exit__(None, None, None)
    ended = time.perf_counter_ns()
    return (ready - begin) / 1e3, (ended - ready) / 1e3


BENCHMARKS = (Benchmark(peers, curves=("peers",), needs_gpu=True),)
