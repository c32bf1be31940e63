"""What C consumers pay: exports through the exchange API of DLPack 1.3, and deleters, each called from C."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import dlwrap
from benchmarks._benchmark import SECONDS, Benchmark, Run, framework
from benchmarks._timing import SkipBenchmark, compare, describe, percentile, race_once, rounded

SOURCE = Path(__file__).with_name("native_calls.c")
CAPSULE = b"dltensor_versioned"
USED_CAPSULE = b"used_dltensor_versioned"  # must outlive the capsules
EXCHANGE = b"dlpack_exchange_api"
MAJOR = 1

_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


@functools.cache
def native() -> ctypes.PyDLL:
    """Compile and load native_calls.c.

    Raises
    ------
    SkipBenchmark
        There is no compiler.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if compiler is None:
        raise SkipBenchmark("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "native_calls.so"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
        library = ctypes.PyDLL(str(path))
    timed = {
        "time_exports": [ctypes.c_void_p, ctypes.py_object, ctypes.c_int64],
        "time_views": [ctypes.c_void_p, ctypes.py_object, ctypes.c_int64],
        "time_deleters": [ctypes.c_void_p, ctypes.c_int64],
    }
    for name, arguments in timed.items():
        function = getattr(library, name)
        function.restype, function.argtypes = ctypes.c_int64, arguments
    for name in ("exchange_major", "exchange_has_view"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    return library


# ---- the exchange API ----


def find_exchange_api(kind: type) -> int:
    """Give the address of a type's table.

    Raises
    ------
    SkipBenchmark
        The type has none that this can use.
    """
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        raise SkipBenchmark("no exchange API")
    table = _python.PyCapsule_GetPointer(capsule, EXCHANGE)
    if native().exchange_major(table) != MAJOR:
        raise SkipBenchmark(f"exchange API of another major version than {MAJOR}")
    return table


def exchange_export(run: Run) -> dict[str, Any]:
    """Export by managed_tensor_from_py_object_no_sync, and call the deleter."""
    return {"exchange_export": _time_exchange(run, native().time_exports)}


def exchange_view(run: Run) -> dict[str, Any]:
    """Look at the tensor by dltensor_from_py_object_no_sync."""
    table = find_exchange_api(dlwrap.HostWrappedBuffer)
    if not native().exchange_has_view(table):
        raise SkipBenchmark("the exchange API has no dltensor_from_py_object_no_sync")
    return {"exchange_view": _time_exchange(run, native().time_views)}


def _time_exchange(run: Run, function: Any) -> dict[str, Any]:
    table = find_exchange_api(dlwrap.HostWrappedBuffer)
    rounds = run.pick(20_000, 1000)
    array = np.zeros(1000, np.float32)

    def sample(table: int, subject: object) -> float:
        return function(table, subject, rounds) / rounds

    with dlwrap.pin(array):
        contestants = {"dlwrap": functools.partial(sample, table, dlwrap.wrap(array))}
        try:
            torch = framework("torch")
            if torch.cuda.is_available():
                torch.cuda.init()  # until then nobody can ask torch in C for its current stream
            peer = find_exchange_api(torch.Tensor)
            contestants["torch, a CPU tensor"] = functools.partial(sample, peer, torch.zeros(1000))
        except SkipBenchmark:
            pass
        return compare(race_once(contestants, run.pick(25, 3)), "ns")


# ---- deleters ----


def take_last_holder(array: np.ndarray) -> int:
    """Wrap, export, and take the capsule over as a consumer does: its deleter drops the last holder."""
    capsule = dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
    tensor: int = _python.PyCapsule_GetPointer(capsule, CAPSULE)
    _python.PyCapsule_SetName(capsule, USED_CAPSULE)
    return tensor


def _delete(tensors: list[int]) -> float:
    """Call the deleters in one go; give the nanoseconds in all."""
    pointers = (ctypes.c_void_p * len(tensors))(*tensors)
    return float(native().time_deleters(pointers, len(tensors)))


def deleter_awake(run: Run) -> dict[str, Any]:
    """Delete while the manager has been woken already: it gets the GIL only after the last of them."""
    number = run.pick(2000, 50)
    array = np.zeros(1000, np.float32)

    def sample() -> float:
        first, *others = [take_last_holder(array) for _ in range(number + 1)]
        pointers = (ctypes.c_void_p * number)(*others)
        _delete([first])
        nanoseconds = native().time_deleters(pointers, number) / number
        dlwrap.reclaim(SECONDS)
        return nanoseconds

    with dlwrap.pin(array):
        return {"deleter_awake": compare(race_once({"deleter": sample}, run.pick(25, 3)), "ns")}


def deleter_asleep(run: Run) -> dict[str, Any]:
    """Delete while the manager sleeps, so that it is woken."""
    array = np.zeros(1000, np.float32)
    samples = []
    with dlwrap.pin(array):
        clock = min(_delete([]) for _ in range(100))
        for _ in range(run.pick(300, 5)):
            tensor = take_last_holder(array)
            time.sleep(3e-3)  # nothing is pending, so the manager sleeps until it is called
            samples.append((_delete([tensor]) - clock) / 1e3)
    row = {"of": "deleter", **describe(samples, "us"), "p99": rounded(percentile(samples, 99))}
    return {"deleter_asleep": row}


BENCHMARKS = (
    Benchmark(exchange_export, rows=("exchange_export",)),
    Benchmark(exchange_view, rows=("exchange_view",)),
    Benchmark(deleter_awake, rows=("deleter_awake",)),
    Benchmark(deleter_asleep, rows=("deleter_asleep",)),
)
