"""The reverse direction: NumPy views of what a GPU framework has, where the host can read it."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver as cu

import dlwrap
from dlwrap import _driver
from patience import SECONDS
from producer import Producer, plain
from stand_ins import Imported

CPU, CUDA, CUDA_HOST, MANAGED, ROCM = 1, 2, 3, 13, 10


class Array:
    """An array of a GPU framework that has only ``__cuda_array_interface__``."""

    def __init__(self, pointer, shape=(3, 4), typestr="<f4", *, strides=None, readonly=False, **more):
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            "data": (pointer, readonly),
            **more,
        }


class Tensor:
    """A tensor of a GPU framework that has only DLPack, over memory of the driver's."""

    def __init__(self, pointer, device_type=CUDA, nbytes=48, **said):
        memory = (ctypes.c_float * (nbytes // 4)).from_address(pointer)
        self.producer = Producer(
            np.ctypeslib.as_array(memory).reshape(said.pop("shape", (3, 4))), device=(device_type, 0), **said
        )

    def __dlpack__(self, **asked):
        return self.producer.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.producer.__dlpack_device__()


@contextlib.contextmanager
def allocated(function, *arguments):
    """Memory of the driver's, by its address."""
    with _driver.primary_context(0):
        code, address = getattr(cu, function)(*arguments)
    assert code == 0
    yield int(address)
    with _driver.primary_context(0):
        assert (cu.cuMemFreeHost if "Host" in function else cu.cuMemFree)(address) == (0,)


KINDS = {"managed": ("cuMemAllocManaged", 48, 1), "page-locked": ("cuMemHostAlloc", 48, 2)}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def pointer(cuda, request):
    with allocated(*request.param) as address:
        host = np.ctypeslib.as_array((ctypes.c_float * 12).from_address(address))
        host[:] = range(12)
        yield address


VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


# ---- what they show ----


@pytest.mark.parametrize("make", [Array, Tensor])
def test_a_view_shows_the_memory_and_copies_nothing(pointer, make):
    view = dlwrap.host_view(make(pointer))
    np.testing.assert_array_equal(view, VALUES)
    assert (type(view), view.ctypes.data, view.flags.writeable) == (np.ndarray, pointer, True)
    view[0, 0] = 50
    assert dlwrap.host_view(make(pointer))[0, 0] == 50


def test_registered_memory_of_anybody_is_shown_where_the_host_has_it(cuda):
    cuda.configure(pointer_offset=4096)
    array = VALUES.copy()
    with dlwrap.wrap(array) as buffer:
        for of_framework in (Array(buffer.ptr), buffer):
            view = dlwrap.host_view(of_framework)
            assert view.ctypes.data == array.ctypes.data
            np.testing.assert_array_equal(view, VALUES)
            del view


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"strides": (16, 8), "shape": (3, 2)}, VALUES[:, ::2]),
        ({"typestr": "<i2", "shape": (24,)}, VALUES.view(np.int16).reshape(-1)),
        ({"shape": ()}, VALUES[0, 0]),
        ({"shape": (3, 0)}, VALUES[:, :0]),
        ({"typestr": "|V4", "descr": [("re", "<f2"), ("im", "<f2")]}, VALUES.view([("re", "<f2"), ("im", "<f2")])),
    ],
    ids=["strides", "dtype", "scalar", "empty", "records"],
)
def test_shape_strides_and_dtype_are_those_of_the_interface(pointer, said, expected):
    view = dlwrap.host_view(Array(pointer, **said))
    assert (view.shape, view.dtype) == (expected.shape, expected.dtype)
    assert view.tobytes() == expected.tobytes()


@pytest.mark.parametrize("version", [(1, 1), None], ids=["versioned", "legacy"])
def test_a_tensor_of_bfloat16_comes_as_ml_dtypes_has_it(cuda, version):
    with allocated(*KINDS["managed"]) as address:
        values = np.arange(24).astype(ml_dtypes.bfloat16)
        ctypes.memmove(address, values.ctypes.data, 48)
        bits = np.ctypeslib.as_array((ctypes.c_uint16 * 24).from_address(address))
        tensor = Producer(bits, dtype=(4, 16, 1), device=(MANAGED, 0), version=version)
        np.testing.assert_array_equal(dlwrap.host_view(tensor), values)


def test_a_host_wrapped_buffer_gives_its_own_view(cuda):
    buffer = dlwrap.wrap(VALUES.copy())
    view = dlwrap.host_view(buffer)
    np.testing.assert_array_equal(view, VALUES)
    assert buffer.exports == 1
    with pytest.raises(BufferError, match="1 importer"):
        buffer.close()
    del view
    buffer.close(SECONDS)


def test_a_tensor_of_the_cpu_is_shown_without_the_driver(cuda):
    producer = plain()
    cuda.clear_calls()
    np.testing.assert_array_equal(dlwrap.host_view(producer), VALUES)
    assert cuda.calls() == []


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4)])
def test_a_view_is_read_only_where_its_owner_says_so(pointer, readonly, shape):
    assert dlwrap.host_view(Array(pointer, shape, readonly=readonly)).flags.writeable is not readonly
    tensor = Tensor(pointer, flags=int(readonly))
    assert dlwrap.host_view(tensor).flags.writeable is not readonly


# ---- what they keep ----


def test_a_view_keeps_the_object(pointer):
    array = Array(pointer)
    owner, view = weakref.ref(array), dlwrap.host_view(array)[1:]
    del array
    assert owner() is not None
    del view
    assert owner() is None


@pytest.mark.parametrize("device_type", [CUDA, CUDA_HOST, MANAGED])
def test_a_view_keeps_the_tensor_and_calls_its_deleter_once(pointer, device_type):
    tensor = Tensor(pointer, device_type)
    view = dlwrap.host_view(tensor)
    part = view[1:]
    del view
    assert tensor.producer.deleted == 0
    del part
    assert (tensor.producer.deleted, tensor.producer.dropped) == (1, 0)


def test_a_view_of_a_consumers_tensor_keeps_the_wrapped_memory(cuda):
    view = dlwrap.host_view(Imported(dlwrap.wrap(cuda.host_array((3, 4), fill=2))))
    dlwrap.reclaim(SECONDS)
    assert (cuda.host_arrays_alive, len(cuda.registrations)) == (1, 1)
    np.testing.assert_array_equal(view, np.full((3, 4), 2.0))
    del view
    dlwrap.reclaim(SECONDS)
    assert (cuda.host_arrays_alive, cuda.registrations) == (0, [])


# ---- what they wait for ----


def in_background(obj):
    """Ask for a view on another thread; give the thread and what it got."""
    got = []
    thread = threading.Thread(target=lambda: got.append(dlwrap.host_view(obj).copy()))
    thread.start()
    return thread, got


SAYING = {
    "no stream": lambda pointer, stream: Array(pointer, stream=None),
    "the legacy stream": lambda pointer, stream: Array(pointer, stream=1),
    "a stream of unknown owner": lambda pointer, stream: Array(pointer, stream=stream),
    "nothing, by DLPack": lambda pointer, stream: Tensor(pointer),
}


@pytest.mark.parametrize("make", SAYING.values(), ids=SAYING)
def test_the_work_so_far_is_waited_for(cuda, pointer, make):
    stream = cuda.create_stream(blocking=make is not SAYING["the legacy stream"])
    used = 1 if make is SAYING["the legacy stream"] else stream
    cuda.hold(used)
    cuda.launch(used, (int(cu_device_pointer(pointer)), 48), write=0)
    thread, got = in_background(make(pointer, stream))
    thread.join(0.05)
    assert thread.is_alive()
    cuda.let_go(used)
    thread.join(SECONDS)
    assert not got[0].any()
    cuda.destroy_stream(stream)


def cu_device_pointer(pointer):
    with _driver.primary_context(0):
        return cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pointer)[1]


def test_the_producer_adds_nothing_to_a_stream(pointer):
    tensor = Tensor(pointer)
    dlwrap.host_view(tensor)
    assert tensor.producer.asked == [{"max_version": (1, 3), "stream": -1}]


def test_of_page_locked_tensors_of_the_cpu_no_stream_is_asked(pointer):
    tensor = Tensor(pointer, device_type=CUDA_HOST)
    dlwrap.host_view(tensor)
    assert tensor.producer.asked == [{"max_version": (1, 3)}]


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_elsewhere_stays_valid(cuda, pointer, mode):
    stream = cuda.create_stream(blocking=False)
    cuda.begin_capture(stream, mode)
    dlwrap.host_view(Array(pointer))
    assert cuda.capture_status(stream) == "active"
    cuda.destroy_graph(cuda.end_capture(stream))
    cuda.destroy_stream(stream)


def test_the_current_context_stays_as_it_was(cuda, pointer):
    before = int(cu.cuCtxGetCurrent()[1])
    dlwrap.host_view(Array(pointer))
    assert int(cu.cuCtxGetCurrent()[1]) == before


def test_a_failed_wait_is_told(cuda, pointer):
    cuda.fail("cuMemHostUnregister", 700, times=10)
    with pytest.raises(dlwrap.DLWrapError, match=r"host_view\(\): the GPU failed"):
        dlwrap.host_view(Array(pointer))
    cuda.reset(force=True)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("module", "cure"), [("torch", r"x\.cpu\(\)"), ("cupy._core", r"cupy\.asnumpy\(x\)"), ("of.yours", "a copy of")]
)
def test_device_memory_is_refused_with_the_cure(cuda, monkeypatch, module, cure):
    for make in (Array, Tensor):
        monkeypatch.setattr(make, "__module__", module)
    with allocated("cuMemAlloc", 48) as address:
        for make in (Array, lambda pointer: OnDevice(pointer, module)):
            with pytest.raises(BufferError, match=f"in the memory of device 0, which the host cannot read; use {cure}"):
                dlwrap.host_view(make(address))


def OnDevice(pointer, module):  # noqa: N802 -- stands for a class
    """A tensor in device memory; its producer is asked for no data."""
    made = type("Tensor", (Tensor,), {"__module__": module, "__init__": lambda self: None})()
    made.producer = plain(device=(CUDA, 0))
    tensor = made.producer

    def export(**asked):
        array, tensor._array = tensor._array, _At(tensor._array, pointer)
        capsule = tensor.__dlpack__(**asked)
        tensor._array = array
        return capsule

    made.__class__.__dlpack__ = lambda self, **asked: export(**asked)
    return made


class _At:
    """An array that says that it is elsewhere."""

    def __init__(self, array, pointer):
        self._array = array
        self.ctypes = type("Address", (), {"data": pointer})

    def __getattr__(self, name):
        return getattr(self._array, name)


def test_pageable_memory_is_refused_because_the_driver_knows_nothing_of_it(cuda):
    cuda.configure(pageable=True)
    array = VALUES.copy()
    with pytest.raises(BufferError, match=r"knows nothing of its memory at .* use a itself, after a synchronize"):
        dlwrap.host_view(Imported(dlwrap.wrap(array)))


def test_managed_memory_is_refused_where_the_host_must_not_touch_it_while_the_device_works(cuda):
    cuda.configure(concurrent_managed=False)
    with allocated(*KINDS["managed"]) as address, pytest.raises(BufferError, match="CONCURRENT_MANAGED_ACCESS = 0"):
        dlwrap.host_view(Array(address))


class NoDevice:
    def __dlpack__(self, **asked):
        raise AssertionError

    def __dlpack_device__(self):
        raise ValueError("Unknown device type meta")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda pointer: [1, 2], TypeError, "neither __cuda_array_interface__ nor DLPack"),
        (lambda pointer: plain(device=(ROCM, 0)), TypeError, "DLPack's device type 10, which is not CUDA's"),
        (lambda pointer: NoDevice(), BufferError, "cannot be exported .Unknown device type meta"),
        (lambda pointer: Array(pointer, mask=Array(pointer)), BufferError, "with a mask"),
        (lambda pointer: Array(pointer, typestr="<q9"), BufferError, "NumPy has no dtype '<q9'"),
        (lambda pointer: Array(pointer, stream=0), ValueError, "stream must not be 0"),
        (lambda pointer: Tensor(pointer, dtype=(2, 32, 4)), BufferError, "no vectors of 4 lanes"),
        (lambda pointer: Tensor(pointer, version=(9, 0)), BufferError, "cannot read a tensor of DLPack 9"),
        (lambda pointer: Tensor(pointer, dtype=(3, 64, 1)), BufferError, "NumPy has no dtype"),
    ],
)
def test_what_cannot_be_viewed_is_refused_and_not_kept(pointer, make, error, message):
    with pytest.raises(error, match=message):
        dlwrap.host_view(make(pointer))
    assert dlwrap.stats().live == 0


def test_torch_tensors_that_need_a_gradient_are_refused_with_torchs_words(cuda):
    torch = pytest.importorskip("torch", reason="needs torch")
    with pytest.raises(BufferError, match="detach"):
        dlwrap.host_view(torch.ones(3, requires_grad=True))
    np.testing.assert_array_equal(dlwrap.host_view(torch.ones(3)), np.ones(3))


@pytest.mark.parametrize("make", ["managed_array", "mapped_array"])
def test_numbas_host_arrays_are_viewed(cuda, make):
    numba_cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    array = getattr(numba_cuda, make)(12, np.float32)
    array[:] = range(12)
    pointer, view = array.ctypes.data, dlwrap.host_view(array)
    del array
    assert view.ctypes.data == pointer
    np.testing.assert_array_equal(view, np.arange(12))
