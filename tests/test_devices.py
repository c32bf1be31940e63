"""What frameworks call a device, wherever a device is asked for."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import dlwrap
import scripts
from dlwrap._devices import find_ordinal
from stand_ins import make_class

# ---- stand-ins: told by the package and the name of the class only ----


Torch = make_class("torch.device")
Cupy = make_class("cupy.cuda.device.Device")
Numba = make_class("numba.cuda.cudadrv.driver.Device")
NumbaManaged = make_class("numba.cuda.cudadrv.devices._DeviceContextManager")
Core = make_class("cuda.core._device.Device")
OldCore = make_class("cuda.core.experimental._device.Device")
Jax = make_class("jaxlib._jax.Device")
OldJax = make_class("jaxlib.xla_extension.Device")
Warp = make_class("warp._src.context.Device")
TvmFfi = make_class("tvm_ffi.core.Device")
Mine = make_class("mine.Device")
Subclass = type("MyDevice", (Cupy,), {"__module__": "mine"})

GIVEN = [
    pytest.param(1, id="int"),
    pytest.param(np.int64(1), id="NumPy integer"),
    pytest.param("cuda:1", id="string"),
    pytest.param((2, 1), id="DLPack"),
    pytest.param(Torch(type="cuda", index=1), id="torch"),
    pytest.param(Cupy(id=1), id="CuPy"),
    pytest.param(Subclass(id=1), id="subclass"),
    pytest.param(Numba(id=1), id="numba"),
    pytest.param(NumbaManaged(id=1), id="numba.cuda.gpus[1]"),
    pytest.param(Core(device_id=1), id="cuda.core"),
    pytest.param(OldCore(device_id=1), id="cuda.core.experimental"),
    pytest.param(Jax(platform="gpu", id=9, local_hardware_id=1), id="JAX, of the second process"),
    pytest.param(OldJax(platform="gpu", id=1, local_hardware_id=1), id="older JAX"),
    pytest.param(Warp(is_cuda=True, ordinal=1), id="Warp"),
    pytest.param(TvmFfi(type="cuda", index=1), id="tvm-ffi"),
]


@pytest.mark.parametrize("given", GIVEN)
def test_a_device_is_found(given):
    assert find_ordinal(given) == 1


@pytest.mark.parametrize("given", GIVEN)
def test_memory_is_wrapped_pinned_and_told_for_it(cuda, given):
    cuda.configure(devices=2)
    with dlwrap.pin(np.zeros(3), device=given) as pinned, dlwrap.wrap(np.zeros(3), device=given) as buffer:
        assert (pinned.device, buffer.device, dlwrap.support(given).device) == (1, 1, 1)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param("cpu", id="string"),
        pytest.param("cuda:", id="no number"),
        pytest.param("cuda:-1", id="negative number"),
        pytest.param("cuda:१", id="another script's digit"),
        pytest.param("", id="empty string"),
        pytest.param((1, 0), id="DLPack, CPU"),
        pytest.param((3, 0), id="DLPack, page-locked memory"),
        pytest.param((2,), id="tuple of one"),
        pytest.param(Torch(type="cpu", index=None), id="torch, CPU"),
        pytest.param(Torch(type="meta", index=None), id="torch, meta"),
        pytest.param(Jax(platform="cpu", id=0, local_hardware_id=0), id="JAX, CPU"),
        pytest.param(Warp(is_cuda=False, ordinal=-1), id="Warp, CPU"),
        pytest.param(TvmFfi(type="cpu", index=0), id="tvm-ffi, CPU"),
    ],
)
def test_what_is_no_cuda_device_is_refused(cuda, given):
    with pytest.raises(
        ValueError, match=r"device must be the CUDA device that uses the memory, got .*: pass 'cuda' or"
    ):
        dlwrap.wrap(np.zeros(3), device=given)


@pytest.mark.parametrize("given", [True, 1.0, b"cuda", [2, 0], Mine(id=1), Cupy, object()])
def test_what_is_no_device_is_refused(cuda, given):
    with pytest.raises(TypeError, match=r"device must be an ordinal, 'cuda', 'cuda:1', .*, got .*: pass its ordinal"):
        dlwrap.wrap(np.zeros(3), device=given)


def test_a_device_that_is_not_there_is_refused(cuda):
    with pytest.raises(ValueError, match=r"device must be in range\(1\), the CUDA devices there are, got 1"):
        dlwrap.wrap(np.zeros(3), device="cuda:1")


def test_cuda_means_the_current_device(cuda):
    assert find_ordinal("cuda") is None
    assert dlwrap.support("cuda").device == 0


@pytest.mark.parametrize(("initialized", "meant"), [(True, 1), (False, None)])
def test_a_torch_device_without_a_number_means_the_one_that_torch_has(monkeypatch, initialized, meant):
    cuda = SimpleNamespace(is_initialized=lambda: initialized, current_device=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert find_ordinal(Torch(type="cuda", index=None)) == meant


# ---- the real ones, in processes of their own: their libraries keep a context per thread ----

REAL = {
    "torch": ("import torch", 'torch.device("cuda:1")'),
    "cuda.core": ("from cuda.core import Device", "Device(1)"),
    "cuda.bindings": ("from cuda.bindings import driver", "driver.CUdevice(1)"),
    "numba_cuda": ("from numba import cuda as numba", "numba.gpus[1]"),
    "tvm_ffi": ("import tvm_ffi", 'tvm_ffi.device("cuda", 1)'),
}


@pytest.mark.parametrize("package", REAL)
def test_a_real_device_is_found(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    imported, made = REAL[package]
    done = scripts.run(f"cuda.configure(devices=2)\n{imported}\nprint(dlwrap.wrap(np.zeros(3), device={made}).device)")
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_the_current_device_of_numba_is_found():
    """It is a weak proxy."""
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("needs numba-cuda")
    done = scripts.run("from numba import cuda as numba\nprint(dlwrap.support(numba.get_current_device()).device)")
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr


def test_a_cpu_device_of_jax_is_refused(cuda):
    jax = pytest.importorskip("jax", reason="needs JAX")
    with pytest.raises(ValueError, match=r"device must be the CUDA device that uses the memory, got .*Cpu"):
        dlwrap.wrap(np.zeros(3), device=jax.devices("cpu")[0])
