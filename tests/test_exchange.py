"""DLPack's C exchange API, as a consumer in C uses it."""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import dlwrap
from capsules import DLTensor, Versioned, look, take
from dlwrap import _native
from exchange_api import CPU, CUDA, Api, SetError, WorkStream, delete, export, import_, table, view, work_stream
from patience import SECONDS, eventually, settle
from stream_objects import OwnedStream

FLOAT32 = (2, 32, 1)


def allocate(shape=(2, 3), dtype=FLOAT32, device=(CUDA, 0)):
    """Give the tensor, or the (kind, message) of the error."""
    errors, out = [], ctypes.c_void_p()
    extents = (ctypes.c_int64 * len(shape))(*shape)
    prototype = DLTensor(None, *device, len(shape), *dtype, extents, None, 0)
    tell = SetError(lambda _context, kind, message: errors.append((kind.decode(), message.decode())))
    code = table().allocate(ctypes.byref(prototype), ctypes.byref(out), None, tell)
    assert (code == 0, out.value is not None) == (not errors, not errors)
    return errors[0] if errors else Versioned.from_address(out.value)


@pytest.fixture(autouse=True)
def unsettled():
    """Nobody's current stream is known from an earlier test."""
    _native.settle_work_stream(None, 0, -1)
    yield
    _native.settle_work_stream(None, 0, -1)


@pytest.fixture
def modules(monkeypatch):
    """Let other frameworks be imported, or not."""
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda **given: [monkeypatch.setitem(sys.modules, name, module) for name, module in given.items()]


def torch_with(stream, *, initialized=True, cuda="13.0", api=None):
    return SimpleNamespace(
        cuda=SimpleNamespace(current_stream=lambda device: stream, is_initialized=lambda: initialized),
        version=SimpleNamespace(cuda=cuda, hip=None),
        Tensor=SimpleNamespace(__dlpack_c_exchange_api__=api),
    )


def torch_in_c(stream, calls):
    """A torch whose table tells its current stream in C; every question is noted."""

    @WorkStream
    def tell(device_type, device, out):
        calls.append((device_type, device))
        out[0] = stream.ptr
        return 0

    api = Api(work_stream=tell)
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    module = torch_with(stream, api=capsule(ctypes.addressof(api), b"dlpack_exchange_api", None))
    module.kept = (api, tell)
    return module


# ---- the table ----


def test_the_table_is_of_dlpack_1_3_and_complete():
    found = table()
    assert (found.major, found.minor, found.prev_api) == (1, 3, None)
    assert all((found.allocate, found.export, found.import_, found.view, found.work_stream))


def test_an_object_of_another_type_is_refused(cuda):
    with pytest.raises(TypeError):
        export(np.zeros(3))
    with pytest.raises(TypeError):
        view(np.zeros(3))


# ---- exports ----


@pytest.fixture(params=["by Python", "in C"])
def ready(request, cuda, modules):
    """Exports are served by either part."""
    if request.param == "in C":
        work_stream()  # settles that there is no framework to ask


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("array", [np.zeros((2, 3), np.float32), np.zeros((4, 6), np.int16)[:, ::2], np.zeros((0, 3))])
def test_an_export_says_what_a_capsule_says(ready, array, readonly):
    buffer = dlwrap.wrap(array, readonly=readonly)
    tensor, capsule = export(buffer), buffer.__dlpack__(max_version=(1, 3))
    same = look(capsule)
    ours = tensor.dl_tensor
    assert (tensor.major, tensor.minor, tensor.flags) == (1, 3, int(readonly))
    assert (ours.data, ours.device_type, ours.device_id) == (same.tensor.data, CUDA, 0)
    assert ((ours.code, ours.bits, ours.lanes), ours.byte_offset) == (same.dtype, 0)
    assert (tuple(ours.shape[: ours.ndim]), tuple(ours.strides[: ours.ndim])) == (same.shape, same.strides)
    delete(tensor)


def test_an_export_keeps_the_array_until_it_is_deleted(ready, cuda):
    array = cuda.host_array(8, np.float32)
    alive, buffer = weakref.ref(array), dlwrap.wrap(array)
    tensor = export(buffer)
    assert buffer.exports == 1
    del buffer, array
    settle()
    assert alive() is not None
    delete(tensor)
    dlwrap.reclaim(SECONDS)
    assert alive() is None


@pytest.mark.parametrize("use", ["export", "view"])
def test_a_release_waits_for_work_on_any_stream(ready, cuda, use):
    # The consumer drops its tensor right after an asynchronous launch, on a stream that nobody has told us.
    array = cuda.host_array(8, np.float32)
    alive, buffer = weakref.ref(array), dlwrap.wrap(array)
    stream = cuda.create_stream(blocking=False)
    cuda.hold(stream)
    if use == "export":
        tensor = export(buffer)
        cuda.launch(stream, array)
        delete(tensor)
    else:
        view(buffer)
        cuda.launch(stream, array)
    del buffer, array
    settle()
    assert (dlwrap.stats().pending, alive() is None) == (1, False)
    cuda.let_go(stream)
    dlwrap.reclaim(SECONDS)
    assert alive() is None
    cuda.destroy_stream(stream)


def test_a_view_counts_as_no_export_and_shows_the_array(ready):
    array = np.zeros((2, 3), np.float32)
    buffer = dlwrap.wrap(array)
    seen = view(buffer)
    assert (seen.data, tuple(seen.shape[:2]), buffer.exports) == (buffer.ptr, (2, 3), 0)
    buffer.close(SECONDS)


@pytest.mark.parametrize("ask", [export, view])
def test_a_closed_buffer_is_refused(ready, ask):
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.close(SECONDS)
    with pytest.raises(BufferError, match="closed"):
        ask(buffer)


@pytest.mark.parametrize("ask", [export, view])
def test_memory_that_has_moved_is_refused(ready, ask):
    array = np.zeros(3)
    buffer = dlwrap.wrap(array, memory="pinned")
    array.resize(300_000, refcheck=False)
    with pytest.raises(BufferError, match="moved"):
        ask(buffer)
    assert buffer.exports == 0


# ---- the stream to work on, and captures ----


def test_the_host_has_no_stream(cuda):
    assert work_stream(CPU) == 0


def test_without_a_framework_it_is_the_legacy_default_stream(cuda, modules):
    assert [work_stream(), work_stream()] == [0, 0]


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_it_is_the_current_stream_of_a_framework(cuda, modules, framework):
    stream = OwnedStream(77)
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda device: stream))
    modules(**{framework: torch_with(stream) if framework == "torch" else cupy})
    assert [work_stream(), work_stream()] == [77, 77]


def test_a_torch_that_is_ready_is_asked_in_c(cuda, modules):
    calls = []
    modules(torch=torch_in_c(OwnedStream(77), calls))
    assert (work_stream(), calls) == (77, [])
    assert (work_stream(), calls) == (77, [(CUDA, 0)])


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(SimpleNamespace(), id="half imported"),
        pytest.param(torch_with(OwnedStream(77), initialized=False), id="not initialised"),
        pytest.param(torch_with(None, cuda=None, initialized=False), id="built for CPUs"),
    ],
)
def test_a_torch_that_does_not_use_the_gpu_has_no_stream(cuda, modules, module):
    modules(torch=module)
    assert [work_stream(), work_stream()] == [0, 0]


def test_a_framework_that_is_imported_later_is_asked(cuda, modules):
    assert work_stream() == 0
    modules(torch=torch_with(OwnedStream(77)))
    assert work_stream() == 77


@pytest.mark.parametrize("asked", ["by Python", "in C"])
@pytest.mark.parametrize("ask", [lambda buffer: delete(export(buffer)), view], ids=["export", "view"])
def test_a_graph_that_captures_on_the_current_stream_owns_the_array(cuda, modules, asked, ask):
    array = cuda.host_array(8, np.float32)
    alive, buffer = weakref.ref(array), dlwrap.wrap(array)
    stream = cuda.create_stream()
    modules(torch=torch_in_c(OwnedStream(stream), []))
    if asked == "in C":
        work_stream()
    cuda.begin_capture(stream)
    ask(buffer)
    graph = cuda.end_capture(stream)
    assert dlwrap.stats().graphs == 1
    del buffer, array
    settle()
    assert alive() is not None
    cuda.destroy_graph(graph)
    assert eventually(lambda: dlwrap.stats().graphs == 0)
    dlwrap.reclaim(SECONDS)
    assert alive() is None
    cuda.destroy_stream(stream)


# ---- new tensors ----


def test_a_new_tensor_is_wrapped_host_memory(cuda):
    tensor = allocate()
    found = tensor.dl_tensor
    assert (found.device_type, found.device_id, (found.code, found.bits, found.lanes)) == (CUDA, 0, FLOAT32)
    assert (tuple(found.shape[:2]), tuple(found.strides[:2])) == ((2, 3), (3, 1))
    assert (dlwrap.stats().live, dlwrap.stats().pinned_bytes) == (1, 24)
    delete(tensor)
    dlwrap.reclaim(SECONDS)
    assert dlwrap.stats().pinned_bytes == 0


def test_a_new_tensor_may_be_asked_for_by_a_foreign_thread(cuda):
    made = []
    asking = threading.Thread(target=lambda: made.append(allocate()))
    asking.start()
    asking.join(SECONDS)
    delete(made[0])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"dtype": (2, 4, 1)}, "no dtype"),
        ({"dtype": (2, 32, 4)}, "no dtype"),
        ({"device": (CPU, 0)}, "CUDA"),
        ({"device": (CUDA, 7)}, "range"),
        ({"shape": (-1,)}, "negative"),
    ],
)
def test_a_tensor_that_cannot_be_made_is_an_error_for_the_consumer(cuda, wanted, message):
    kind, told = allocate(**wanted)
    assert kind in {"BufferError", "ValueError"}
    assert message in told
    assert dlwrap.stats().live == 0


# ---- tensors that come back ----


def test_a_tensor_of_ours_comes_back_as_a_buffer_over_the_same_memory(cuda):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = dlwrap.wrap(array)
    again = import_(export(buffer))
    assert (again.array.tolist(), again.ptr, again.shape) == (array.tolist(), buffer.ptr, (2, 3))
    assert dlwrap.stats().pinned_bytes == array.nbytes
    del buffer, array
    settle()
    assert again.array[1, 2] == 5  # it keeps the first
    again.close(SECONDS)


@pytest.mark.parametrize("given", [np.arange(12.0).reshape(3, 4)[:, 1:], np.array(7, np.int16), np.zeros((0, 2))])
def test_a_tensor_on_the_host_comes_back_as_a_buffer(cuda, given):
    whole = dlwrap.wrap(given)
    tensor = Versioned.from_address(take(whole.__dlpack__(max_version=(1, 3), dl_device=(1, 0))).address)
    made = import_(tensor)
    assert (made.array.tolist(), made.dtype, made.readonly) == (given.tolist(), given.dtype, False)
    made.close(SECONDS)
    dlwrap.reclaim(SECONDS)
    assert eventually(lambda: whole.exports == 0)


def test_a_read_only_tensor_comes_back_read_only(cuda):
    buffer = dlwrap.wrap(np.zeros(3), readonly=True)
    assert import_(export(buffer)).readonly


def test_device_memory_is_refused_and_left_to_the_consumer(cuda):
    buffer = dlwrap.wrap(np.zeros(3))
    tensor = export(buffer)
    address, tensor.dl_tensor.data = tensor.dl_tensor.data, 0x7000_0000
    with pytest.raises(BufferError, match="not in host memory"):
        import_(tensor)
    tensor.dl_tensor.data = address
    assert buffer.exports == 1
    delete(tensor)


# ---- a real consumer ----


@pytest.fixture
def tvm_ffi():
    return pytest.importorskip("tvm_ffi")


def test_tvm_ffi_exchanges_buffers_in_c(cuda, tvm_ffi, monkeypatch):
    asked = []
    monkeypatch.setattr(dlwrap.HostWrappedBuffer, "__dlpack__", lambda self, **options: asked.append(options))
    array = np.arange(6, dtype=np.float32)
    buffer = dlwrap.wrap(array)
    tensor = tvm_ffi.from_dlpack(buffer)
    assert (tuple(tensor.shape), buffer.exports, asked) == ((6,), 1, [])


def test_a_function_of_tvm_ffi_takes_and_gives_buffers(cuda, tvm_ffi):
    array = np.arange(6, dtype=np.float32)
    given = dlwrap.wrap(array)
    back = tvm_ffi.convert(lambda tensor: tensor)(given)
    assert isinstance(back, dlwrap.HostWrappedBuffer)
    assert back.ptr == given.ptr
    back.array[0] = 8
    assert array[0] == 8
    del back, given
    assert eventually(lambda: dlwrap.stats().live == 0)  # the first goes when the second is dropped
