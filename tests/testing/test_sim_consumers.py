"""Real libraries run on the simulated driver: cuda.core, numba-cuda, apache-tvm-ffi."""

import ctypes
import gc
import weakref

import numpy as np
import pytest


class Interface:
    """An array as `__cuda_array_interface__` describes it."""

    def __init__(self, array):
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": None,
            "stream": None,
        }


class Tensor(ctypes.Structure):
    """A DLTensor, a DLManagedTensor's two other fields, and room for two extents and strides."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


class Producer:
    """A two-dimensional float32 array as a DLPack producer on the CUDA device 0."""

    def __init__(self, array):
        self.deleted = 0
        self.streams = []
        self._extents = (ctypes.c_int64 * 4)(*array.shape, array.shape[1], 1)
        start = ctypes.addressof(self._extents)
        self._tensor = Tensor(array.ctypes.data, (2, 0), 2, 2, 32, 1, start, start + 16, 0, None)
        self._tensor.deleter = type(self._tensor.deleter)(self._delete)

    def _delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None, **_):
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


@pytest.fixture
def array(cuda, register):
    return register(cuda.host_array((3, 4), np.float32, fill=5))


def test_cuda_core_views_an_array_interface(cuda, array):
    cuda_core = pytest.importorskip("cuda.core")
    utils = pytest.importorskip("cuda.core.utils")
    cuda_core.Device(0).set_current()
    view = utils.StridedMemoryView.from_cuda_array_interface(Interface(array), stream_ptr=-1)
    assert (view.ptr, view.shape, view.device_id) == (array.ctypes.data, (3, 4), 0)
    assert view.is_device_accessible


def test_cuda_core_views_a_dlpack_producer(cuda, array):
    cuda_core = pytest.importorskip("cuda.core")
    utils = pytest.importorskip("cuda.core.utils")
    device = cuda_core.Device(0)
    device.set_current()
    stream = device.create_stream()
    producer = Producer(array)
    view = utils.StridedMemoryView.from_dlpack(producer, stream_ptr=int(stream.handle))
    assert (view.ptr, view.shape, view.strides) == (array.ctypes.data, (3, 4), (4, 1))
    assert producer.streams == [int(stream.handle)]
    del view
    assert producer.deleted == 1


def test_cuda_core_streams_and_events_work(cuda):
    cuda_core = pytest.importorskip("cuda.core")
    device = cuda_core.Device(0)
    device.set_current()
    stream = device.create_stream()
    cuda.hold(int(stream.handle))
    event = stream.record()
    assert not event.is_done
    cuda.let_go(int(stream.handle))
    event.sync()
    stream.sync()
    assert event.is_done


@pytest.fixture
def core_stream(cuda):
    """A cuda.core stream; its graph builders capture into it."""
    cuda_core = pytest.importorskip("cuda.core")
    device = cuda_core.Device(0)
    device.set_current()
    return device.create_stream()


@pytest.fixture
def built(cuda, core_stream, array):
    """A built graph that sets every byte of the array to 7."""
    builder = core_stream.create_graph_builder().begin_building()
    cuda.launch(int(builder.stream.handle), array, write=7)
    return builder.end_building()


def assert_launch_fills(graph, stream, array):
    array[...] = 0
    graph.launch(stream)
    assert array.tobytes() == bytes([7]) * array.nbytes


def test_cuda_core_builds_and_launches_a_graph(cuda, core_stream, built, array):
    graph = built.complete()
    assert (array == 5).all()
    graph.upload(core_stream)
    assert_launch_fills(graph, core_stream, array)
    graph.update(built)
    assert_launch_fills(graph, core_stream, array)


def test_cuda_core_splits_and_joins_a_graph(cuda, core_stream, array):
    core_graph = pytest.importorskip("cuda.core.graph")
    builder = core_stream.create_graph_builder().begin_building()
    left, right = builder.split(2)
    cuda.launch(int(right.stream.handle), array, write=7)
    core_graph.GraphBuilder.join(left, right).end_building()
    assert_launch_fills(builder.complete(), core_stream, array)


def test_cuda_core_embeds_a_graph_in_another(core_stream, built, array):
    outer = core_stream.create_graph_builder().begin_building()
    outer.embed(built)
    built.close()
    graph = outer.end_building().complete()
    outer.close()
    assert_launch_fills(graph, core_stream, array)


def test_cuda_core_keeps_a_callback_until_its_graph_has_ended(cuda, core_stream):
    called = []

    def callback():
        called.append(1)

    ended = weakref.ref(callback)
    builder = core_stream.create_graph_builder().begin_building()
    builder.callback(callback)
    graph = builder.end_building().complete()
    del callback
    builder.close()
    graph.launch(core_stream)
    graph.close()
    assert called == [1]
    cuda.wait_for_destructors()
    gc.collect()
    assert ended() is None
    assert cuda.user_objects_alive == 0


def test_tvm_ffi_imports_a_dlpack_producer(array):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    producer = Producer(array)
    tensor = tvm_ffi.from_dlpack(producer)
    assert tuple(tensor.shape) == (3, 4)
    assert str(tensor.device) == "cuda:0"
    assert producer.deleted == 0
    del tensor
    assert producer.deleted == 1


@pytest.fixture
def numba_cuda(cuda):
    numba_cuda = pytest.importorskip("numba.cuda")
    assert numba_cuda.is_available()
    return numba_cuda


def test_numba_copies_an_array_interface_to_the_host(numba_cuda, array):
    np.testing.assert_array_equal(numba_cuda.as_cuda_array(Interface(array)).copy_to_host(), array)


def test_numba_copies_to_the_device_and_back(numba_cuda):
    source = np.arange(10)
    stream = numba_cuda.stream()
    np.testing.assert_array_equal(numba_cuda.to_device(source).copy_to_host(), source)
    there = numba_cuda.to_device(source, stream=stream)
    np.testing.assert_array_equal(there.copy_to_host(stream=stream), source)
    np.testing.assert_array_equal(there[2:4].copy_to_host(), source[2:4])


def test_numba_streams_and_events_work(numba_cuda):
    stream = numba_cuda.stream()
    event = numba_cuda.event()
    event.record(stream)
    event.wait(stream)
    event.synchronize()
    stream.synchronize()
    assert event.query()
