"""What every test on a GPU starts from, and the frameworks that it may ask for."""

from __future__ import annotations

import dataclasses
import gc
import os
import runpy
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _cuda
import pytest
from _latch import Kernels, Latch
from _subject import Subject

import dlwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
CLEAN = dlwrap.Stats(live=0, exports=0, graphs=0, pinned_bytes=0, pending=0, lingering=0, lingering_bytes=0, leaked=0)

# JAX would take most of the GPU's memory, and numba warns of every small launch.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")

# What numba-cuda needs of newer NumPys, here and in every process that a test starts.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "mend"), os.environ.get("PYTHONPATH")]))
runpy.run_path(str(HERE / "mend" / "sitecustomize.py"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is in this folder; without ``-m gpu`` not even the driver is asked, other tests may simulate it."""
    asked_for = "gpu" in config.getoption("markexpr")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            if not asked_for:
                item.add_marker(pytest.mark.skip(reason="select GPU tests with -m gpu"))


@pytest.fixture(scope="session")
def real_device() -> dlwrap.DeviceSupport:
    if "_simcuda" in Path("/proc/self/maps").read_text():
        pytest.skip("the simulated driver is loaded")
    try:
        return dlwrap.support(0)
    except dlwrap.CudaError as error:
        pytest.skip(f"no CUDA device: {error}")


@pytest.fixture(autouse=True)
def nothing_left(real_device: dlwrap.DeviceSupport) -> Iterator[None]:
    """Nothing is pending and nothing registered, before and after each test; takes the place of the fixture above."""
    _cuda.call("cuCtxSetCurrent", _cuda.primary_context())
    leaked = dlwrap.stats().leaked
    assert _settle() == dataclasses.replace(CLEAN, leaked=leaked)
    yield
    assert _settle() == dataclasses.replace(CLEAN, leaked=leaked)


def _settle() -> dlwrap.Stats:
    """Drop what is droppable; JAX calls its deleters a moment later, on threads of its own."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)  # pytest keeps the frames of the last failure there
    deadline = time.monotonic() + 10
    while True:
        dlwrap.reclaim(timeout=30)
        found = dlwrap.stats()
        if dataclasses.replace(found, leaked=0) == CLEAN or time.monotonic() > deadline:
            return found
        gc.collect()  # not before: with all frameworks loaded it takes longer than most tests
        time.sleep(1e-3)


@pytest.fixture
def fact(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Tell what was measured."""

    def tell(text: str) -> None:
        request.node.user_properties.append(("fact", text))
        print(f"FACT: {text}")

    return tell


# ---- work that the test lets go ----


@pytest.fixture(scope="session")
def kernels(real_device: dlwrap.DeviceSupport) -> Kernels:
    return Kernels()


@pytest.fixture
def new_latch(kernels: Kernels, nothing_left: None) -> Iterator[Callable[..., Latch]]:
    """Make latches; the end of the test opens them all."""
    latches: list[Latch] = []

    def make(**options: Any) -> Latch:
        latches.append(kernels.new_latch(**options))
        return latches[-1]

    yield make
    for latch in latches:
        latch.open()
    for latch in latches:
        latch.close_down()


@pytest.fixture
def latch(new_latch: Callable[..., Latch]) -> Latch:
    return new_latch()


@pytest.fixture
def stream(nothing_left: None) -> Iterator[int]:
    """A non-blocking stream, by its handle."""
    handle = _cuda.create_stream()
    yield handle
    _cuda.call("cuStreamSynchronize", handle)
    _cuda.call("cuStreamDestroy", handle)


@pytest.fixture(params=["registered by dlwrap", "registered by somebody else"])
def subject(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Subject]:
    """An array whose end can be seen; where it is somebody else's memory, no unregistering hides an early release."""
    if request.param == "registered by dlwrap":
        yield Subject()
        return
    owner = Subject.make_array()
    with _cuda.registered(owner):
        yield Subject(owner)
        dlwrap.reclaim(timeout=30)


# ---- frameworks ----


@pytest.fixture(scope="session")
def torch(real_device: dlwrap.DeviceSupport) -> Any:
    torch = _import("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    one = torch.ones(1, device="cuda")
    one.add_(1).clone().cpu()
    torch.cuda.synchronize()
    return torch


@pytest.fixture(scope="session")
def cupy(real_device: dlwrap.DeviceSupport) -> Any:
    cupy = _import("cupy")
    one = cupy.ones(1, cupy.float32)
    one += 1
    one.copy().get()
    return cupy


@pytest.fixture(scope="session")
def jax(real_device: dlwrap.DeviceSupport) -> Any:
    jax = _import("jax")
    _import("jax.dlpack")
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        pytest.skip(f"JAX has no CUDA: {error}")
    return jax


@pytest.fixture(scope="session")
def numba_cuda(real_device: dlwrap.DeviceSupport) -> Any:
    cuda = _import("numba.cuda")
    if not cuda.is_available():
        pytest.skip("numba has no CUDA")
    return cuda


@pytest.fixture(scope="session")
def cuda_core(real_device: dlwrap.DeviceSupport) -> Any:
    core = _import("cuda.core")
    _import("cuda.core.utils")
    return core


def _import(name: str) -> Any:
    """Import a framework, whose import may warn of what is none of our business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)
