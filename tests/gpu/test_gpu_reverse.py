"""`host_view` of what real frameworks have: managed memory, page-locked memory, tensors over wrapped arrays."""

from __future__ import annotations

import ctypes
import gc

import _cuda
import ml_dtypes
import numpy as np
import pytest
from _cuda import Thread, call, pointer_attribute
from _subject import COUNT

import dlwrap

VALUES = np.arange(COUNT, dtype=np.float32) % 251


@pytest.fixture
def managed():
    """Managed memory of the driver's, by its address."""
    address = int(call("cuMemAllocManaged", VALUES.nbytes, 1))
    yield address
    call("cuMemFree", address)


# ---- what the simulated driver has to answer likewise ----


def test_fact_managed_memory_has_one_address_for_host_and_device(managed, fact):
    inside = managed + 64
    assert pointer_attribute("IS_MANAGED", inside) == 1
    assert pointer_attribute("DEVICE_POINTER", inside) == inside
    assert pointer_attribute("HOST_POINTER", inside) == inside
    assert pointer_attribute("DEVICE_ORDINAL", inside) == 0
    fact(f"managed memory has CU_POINTER_ATTRIBUTE_MEMORY_TYPE {pointer_attribute('MEMORY_TYPE', inside)}")


def test_fact_registered_memory_is_not_managed_and_tells_its_host_address():
    array = VALUES.copy()
    with _cuda.registered(array):
        inside = _cuda.device_address(array) + 64
        assert pointer_attribute("IS_MANAGED", inside) == 0
        assert pointer_attribute("MEMORY_TYPE", inside) == 1
        assert pointer_attribute("HOST_POINTER", inside) == _cuda.address(array) + 64


def test_fact_device_memory_has_no_host_address():
    address = int(call("cuMemAlloc", 64))
    attribute = _cuda.bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER
    assert _cuda.code("cuPointerGetAttribute", attribute, address) == _cuda.INVALID_VALUE
    assert pointer_attribute("MEMORY_TYPE", address) == 2
    call("cuMemFree", address)


# ---- torch ----


def test_a_torch_tensor_over_a_wrapped_array_is_seen_where_the_array_is(torch):
    array = VALUES.copy()
    tensor = torch.from_dlpack(dlwrap.wrap(array))
    tensor.mul_(2)
    view = dlwrap.host_view(tensor)  # waits
    np.testing.assert_array_equal(view, VALUES * 2)
    assert np.shares_memory(view, array)
    assert _cuda.address(dlwrap.host_view(tensor[100:])) == _cuda.address(array[100:])


def test_the_view_keeps_the_wrapped_array_after_the_tensor_is_gone(torch):
    tensor = torch.from_dlpack(dlwrap.wrap(VALUES.copy()))
    view = dlwrap.host_view(tensor)
    del tensor
    gc.collect()
    dlwrap.reclaim(timeout=20)
    assert dlwrap.stats().live == 1
    np.testing.assert_array_equal(view, VALUES)


def test_swapping_the_tensors_data_takes_nothing_from_the_view(torch):
    tensor = torch.from_dlpack(dlwrap.wrap(VALUES.copy()))
    view = dlwrap.host_view(tensor)
    tensor.data = torch.ones(3, device="cuda")
    dlwrap.reclaim(timeout=20)
    np.testing.assert_array_equal(view, VALUES)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_torchs_small_floats_come_as_ml_dtypes_has_them(torch, dtype):
    array = np.arange(16).astype(getattr(ml_dtypes, dtype))
    view = dlwrap.host_view(torch.from_dlpack(dlwrap.wrap(array)))
    np.testing.assert_array_equal(view, array)


def test_torchs_page_locked_tensors_are_viewed(torch):
    tensor = torch.arange(8.0).pin_memory()
    view = dlwrap.host_view(tensor)
    assert (view.tolist(), _cuda.address(view)) == (list(range(8)), tensor.data_ptr())


def test_device_memory_of_torch_is_refused_with_the_cure(torch):
    with pytest.raises(BufferError, match=r"in the memory of device 0, which the host cannot read; use x\.cpu\(\)"):
        dlwrap.host_view(torch.ones(8, device="cuda"))
    with pytest.raises(BufferError, match="detach"):
        dlwrap.host_view(torch.ones(8, device="cuda", requires_grad=True))


def test_work_on_any_stream_is_waited_for(torch, latch, stream):
    tensor = torch.from_dlpack(dlwrap.wrap(VALUES.copy()))
    latch.launch(stream, tensor.data_ptr(), COUNT, value=9)
    reader = Thread(lambda: dlwrap.host_view(tensor).copy())
    assert reader.goes_on()
    assert latch.holds
    latch.open()
    np.testing.assert_array_equal(reader.result(), np.full(COUNT, 9, np.float32))


@pytest.mark.parametrize("mode", _cuda.CAPTURE_MODES)
def test_a_capture_elsewhere_stays_valid(torch, stream, mode):
    tensor = torch.from_dlpack(dlwrap.wrap(VALUES.copy()))
    with _cuda.Capture(stream, mode) as capture:
        dlwrap.host_view(tensor)
    call("cuGraphDestroy", capture.graph)


# ---- CuPy ----


@pytest.fixture
def managed_array(cupy):
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        return cupy.arange(COUNT, dtype=cupy.float32)


def test_cupys_managed_memory_is_viewed_and_kept(cupy, managed_array):
    managed_array += 1
    view = dlwrap.host_view(managed_array)
    assert _cuda.address(view) == managed_array.data.ptr
    del managed_array
    np.testing.assert_array_equal(view, np.arange(1, COUNT + 1, dtype=np.float32))
    view[0] = 50
    assert view[0] == 50


def test_the_view_of_a_strided_array_has_its_strides(cupy, managed_array):
    view = dlwrap.host_view(managed_array.reshape(-1, 16)[::2, 3:7])
    assert view.strides == (128, 4)
    np.testing.assert_array_equal(view, np.arange(COUNT, dtype=np.float32).reshape(-1, 16)[::2, 3:7])


@pytest.mark.parametrize("blocking", [True, False])
def test_work_on_cupys_current_stream_is_waited_for(cupy, managed_array, latch, blocking):
    stream = cupy.cuda.Stream(non_blocking=not blocking)
    latch.launch(stream.ptr, managed_array.data.ptr, COUNT, value=9)

    def look():
        with stream:
            return dlwrap.host_view(managed_array).copy()

    reader = Thread(look)
    assert reader.goes_on()
    assert latch.holds
    latch.open()
    np.testing.assert_array_equal(reader.result(), np.full(COUNT, 9, np.float32))


def test_cupys_page_locked_arrays_are_viewed(cupy):
    import cupyx

    array = cupyx.empty_pinned(8, np.float32)
    array[:] = range(8)
    assert dlwrap.host_view(array).tolist() == list(range(8))


def test_device_memory_of_cupy_is_refused_with_the_cure(cupy):
    with pytest.raises(BufferError, match=r"use cupy\.asnumpy\(x\)"):
        dlwrap.host_view(cupy.ones(8))


def test_a_cupy_array_over_a_wrapped_array_is_seen_where_the_array_is(cupy):
    array = VALUES.copy()
    on_gpu = cupy.from_dlpack(dlwrap.wrap(array))
    on_gpu += 1
    view = dlwrap.host_view(on_gpu)
    assert np.shares_memory(view, array)
    np.testing.assert_array_equal(view, VALUES + 1)


# ---- numba, JAX ----


@pytest.mark.parametrize("make", ["managed_array", "mapped_array"])
def test_numbas_host_arrays_are_viewed_after_a_kernel(numba_cuda, make):
    array = getattr(numba_cuda, make)(COUNT, np.float32)
    array[:] = VALUES

    @numba_cuda.jit
    def add_one(x):
        i = numba_cuda.grid(1)
        if i < x.size:
            x[i] += 1

    add_one[(COUNT + 255) // 256, 256](array)
    view = dlwrap.host_view(array)
    del array
    np.testing.assert_array_equal(view, VALUES + 1)


def test_device_memory_of_numba_is_refused_with_the_cure(numba_cuda):
    with pytest.raises(BufferError, match=r"use x\.copy_to_host\(\)"):
        dlwrap.host_view(numba_cuda.to_device(VALUES))


def test_device_memory_of_jax_is_refused_with_the_cure(jax):
    with pytest.raises(BufferError, match=r"use numpy\.asarray\(x\)|a copy of your framework"):
        dlwrap.host_view(jax.device_put(VALUES, jax.devices("cuda")[0]))


# ---- the driver's own ----


def test_managed_memory_of_the_driver_is_written_by_both_sides(managed, latch):
    host = np.ctypeslib.as_array((ctypes.c_float * COUNT).from_address(managed))
    host[:] = VALUES

    class Managed:
        __cuda_array_interface__ = {  # noqa: RUF012
            "version": 3,
            "shape": (COUNT,),
            "typestr": "<f4",
            "data": (managed, False),
            "stream": None,
        }

    latch.open()
    latch.launch(_cuda.LEGACY_STREAM, managed, COUNT, value=4)
    np.testing.assert_array_equal(dlwrap.host_view(Managed()), np.full(COUNT, 4, np.float32))
    latch.wait()
    assert latch.sum == float(VALUES.sum(dtype=np.float64))
