"""A captured graph owns what its work uses, until it, its clones and its executables are gone."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
from capsules import take
from cuda_calls import checked
from dlwrap import _driver, _lifetime
from patience import SECONDS, eventually, settle
from stream_objects import OwnedStream, UnknownStream

MODES = ("global", "thread_local", "relaxed")


class Subject:
    """An array that is wrapped, and whether it is still there."""

    def __init__(self, cuda):
        array = cuda.host_array(64)
        self._alive = weakref.ref(array)
        self.buffer = dlwrap.wrap(array)
        self.span = (array.ctypes.data, array.nbytes)

    @property
    def alive(self):
        return self._alive() is not None

    def export_and_drop(self, stream):
        """Import into a tensor that dies at once, as a temporary in a captured function does."""
        take(self.buffer.__dlpack__(stream=stream, max_version=(1, 0))).delete()

    def is_gone(self):
        return eventually(lambda: dlwrap.reclaim(SECONDS) or not self.alive)


@pytest.fixture(params=["pinned", "pageable"])
def device(request, cuda):
    """Each memory kind in turn."""
    cuda.configure(pageable=request.param == "pageable")
    return cuda


@pytest.fixture
def subject(device):
    subject = Subject(device)
    yield subject
    subject.buffer = None


@pytest.fixture
def stream(device):
    return device.create_stream(blocking=False)


def export(subject, stream):
    subject.export_and_drop(stream)


def record_handle(subject, stream):
    subject.buffer.record_stream(stream)


def record_object(subject, stream):
    subject.buffer.record_stream(OwnedStream(stream))


def record_unknown_object(subject, stream):
    subject.buffer.record_stream(UnknownStream(stream))


def keep_by_object(subject, stream):
    dlwrap.keep_alive(UnknownStream(stream), subject.buffer)


def keep_by_bindings(subject, stream):
    dlwrap.keep_alive(driver.CUstream(stream), subject.buffer)


WAYS = [export, record_handle, record_object, record_unknown_object, keep_by_object, keep_by_bindings]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def give(request):
    """Each way by which a graph under capture becomes an owner."""
    return request.param


def capture(cuda, stream, act, mode="global"):
    """Capture what `act` does; give the graph."""
    cuda.begin_capture(stream, mode)
    act()
    assert cuda.capture_status(stream) == "active"
    return cuda.end_capture(stream)


@pytest.mark.parametrize("mode", MODES)
def test_the_graph_keeps_the_array_until_it_is_destroyed(device, subject, stream, give, mode):
    graph = capture(device, stream, lambda: give(subject, stream), mode)
    subject.buffer = None
    dlwrap.reclaim(SECONDS)
    assert subject.alive
    assert (dlwrap.stats().live, dlwrap.stats().graphs) == (1, 1)
    device.destroy_graph(graph)
    assert subject.is_gone()
    assert (dlwrap.stats().live, dlwrap.stats().graphs) == (0, 0)


def test_an_executable_keeps_the_array_after_its_graph(device, subject, stream, give):
    graph = capture(device, stream, lambda: give(subject, stream))
    executable = device.instantiate(graph)
    device.destroy_graph(graph)
    subject.buffer = None
    dlwrap.reclaim(SECONDS)
    assert subject.alive
    device.destroy_exec(executable)
    assert subject.is_gone()


def test_a_clone_keeps_the_array_after_its_graph(device, subject, stream, give):
    graph = capture(device, stream, lambda: give(subject, stream))
    clone = device.clone_graph(graph)
    device.destroy_graph(graph)
    subject.buffer = None
    dlwrap.reclaim(SECONDS)
    assert subject.alive
    device.destroy_graph(clone)
    assert subject.is_gone()


def test_a_launch_in_flight_keeps_the_array_after_its_executable(device, subject, stream, give):
    def use():
        give(subject, stream)
        device.launch(stream, subject.span, write=7)

    graph = capture(device, stream, use)
    executable = device.instantiate(graph)
    other = device.create_stream(blocking=False)
    device.hold(other)
    device.launch_exec(executable, other)
    device.destroy_exec(executable)
    device.destroy_graph(graph)
    subject.buffer = None
    settle()
    assert subject.alive
    device.let_go(other)
    assert subject.is_gone()


def test_launches_write_to_the_array_after_everything_else_was_dropped(device, stream):
    array = np.zeros(64, np.uint8)

    def use():
        buffer = dlwrap.wrap(array)
        take(buffer.__dlpack__(stream=stream, max_version=(1, 0))).delete()
        device.launch(stream, (buffer.ptr, 64), write=7)

    graph = capture(device, stream, use)
    executable = device.instantiate(graph)
    dlwrap.reclaim(SECONDS)
    device.launch_exec(executable, stream)
    assert array.tolist() == [7] * 64
    device.destroy_exec(executable)
    device.destroy_graph(graph)


def test_an_invalidated_capture_lets_the_array_go(device, subject, stream, give):
    device.begin_capture(stream)
    give(subject, stream)
    driver.cuStreamQuery(stream)
    assert device.capture_status(stream) == "invalidated"
    with pytest.raises(RuntimeError, match="901"):
        device.end_capture(stream)
    subject.buffer = None
    assert subject.is_gone()


def test_an_abandoned_capture_lets_the_array_go(device, subject, stream):
    device.begin_capture(stream)
    subject.export_and_drop(stream)
    device.destroy_stream(stream)
    subject.buffer = None
    assert subject.is_gone()


def test_nothing_is_owned_by_a_capture_that_is_invalid_already(device, subject, stream):
    device.begin_capture(stream)
    driver.cuStreamQuery(stream)
    subject.export_and_drop(stream)
    subject.buffer.record_stream(stream)
    assert dlwrap.stats().graphs == 0
    with pytest.raises(RuntimeError, match="901"):
        device.end_capture(stream)


def test_a_capture_owns_each_buffer_once_however_often_it_is_exported(device, stream):
    subjects = [Subject(device), Subject(device)]

    def use():
        for subject in 3 * subjects:
            for way in WAYS:
                way(subject, stream)

    graph = capture(device, stream, use)
    assert (device.count("cuUserObjectCreate"), dlwrap.stats().graphs) == (2, 2)
    device.destroy_graph(graph)


def test_streams_that_joined_the_capture_belong_to_it(device, subject, stream):
    joined = device.create_stream(blocking=False)
    with _driver.primary_context(0):
        event = _driver.create_event()

    def use():
        subject.export_and_drop(stream)
        checked(driver.cuEventRecord(event, stream))
        checked(driver.cuStreamWaitEvent(joined, event, 0))
        subject.export_and_drop(joined)
        checked(driver.cuEventRecord(event, joined))
        checked(driver.cuStreamWaitEvent(stream, event, 0))

    graph = capture(device, stream, use)
    assert dlwrap.stats().graphs == 1
    device.destroy_graph(graph)
    _driver.destroy_event(event)


def test_every_capture_becomes_an_owner_of_its_own(device, subject, stream):
    graphs = [capture(device, stream, lambda: subject.export_and_drop(stream)) for _ in range(40)]
    assert dlwrap.stats().graphs == 40
    subject.buffer = None
    for graph in graphs:
        dlwrap.reclaim(SECONDS)
        assert subject.alive
        device.destroy_graph(graph)
    assert subject.is_gone()


def test_the_per_thread_stream_captures_too(device, subject):
    graph = capture(device, 2, lambda: subject.export_and_drop(2))
    subject.buffer = None
    dlwrap.reclaim(SECONDS)
    assert subject.alive
    device.destroy_graph(graph)
    assert subject.is_gone()


@pytest.mark.parametrize("stream_told", [None, -1, 1])
def test_a_capture_on_another_stream_than_the_one_told_owns_nothing(device, subject, stream, stream_told):
    graph = capture(device, stream, lambda: subject.export_and_drop(stream_told))
    assert dlwrap.stats().graphs == 0
    device.destroy_graph(graph)


def test_a_stream_that_does_not_capture_makes_no_owner(device, subject, stream):
    subject.export_and_drop(stream)
    subject.buffer.record_stream(stream)
    assert dlwrap.stats().graphs == 0
    assert device.count("cuUserObjectCreate") == 0


def test_a_buffer_imported_before_the_capture_is_not_owned(device, subject, stream):
    tensor = take(subject.buffer.__dlpack__(stream=stream, max_version=(1, 0)))
    graph = capture(device, stream, lambda: device.launch(stream, subject.span))
    tensor.delete()
    subject.buffer = None
    assert subject.is_gone()
    device.destroy_graph(graph)


def test_keep_alive_is_the_remedy_for_a_buffer_imported_before_the_capture(device, subject, stream):
    tensor = take(subject.buffer.__dlpack__(stream=stream, max_version=(1, 0)))
    graph = capture(device, stream, lambda: device.launch(stream, subject.span))
    dlwrap.keep_alive(graph, subject.buffer)
    tensor.delete()
    subject.buffer = None
    dlwrap.reclaim(SECONDS)
    assert subject.alive
    device.destroy_graph(graph)
    assert subject.is_gone()


# ---- other holders ----


def test_close_says_that_a_graph_still_owns_the_buffer(device, subject, stream):
    graph = capture(device, stream, lambda: subject.export_and_drop(stream))
    with pytest.raises(BufferError, match="cannot close: 1 captured graph of this HostWrappedBuffer still alive"):
        subject.buffer.close(SECONDS)
    tensors = [take(subject.buffer.__dlpack__(stream=1)) for _ in range(2)]
    assert subject.buffer.exports == 2
    with pytest.raises(BufferError, match="cannot close: 2 importers and 1 captured graph of this"):
        subject.buffer.close(SECONDS)
    for tensor in tensors:
        tensor.delete()
    device.destroy_graph(graph)
    assert eventually(lambda: dlwrap.stats().graphs == 0)
    subject.buffer.close(SECONDS)
    subject.buffer = None
    assert not subject.alive


def test_a_destructor_that_the_driver_runs_late_only_delays_the_release(device, subject, stream):
    graph = capture(device, stream, lambda: subject.export_and_drop(stream))
    subject.buffer = None
    device.hold_destructors()
    device.destroy_graph(graph)
    dlwrap.reclaim(SECONDS)
    assert subject.alive
    device.let_destructors_go()
    assert subject.is_gone()


def test_the_release_after_the_graph_still_waits_for_the_streams(device, subject, stream):
    owned = OwnedStream(stream)
    subject.buffer.record_stream(owned)
    graph = capture(device, stream, lambda: subject.export_and_drop(stream))
    device.hold(stream)
    device.launch(stream, subject.span)
    subject.buffer = None
    device.destroy_graph(graph)
    settle()
    assert subject.alive
    device.let_go(stream)
    assert subject.is_gone()


def test_an_executable_made_before_keep_alive_may_still_run_when_its_graph_goes(device, subject, stream):
    # As CuPy's graphs and torch's do, the executable goes with its graph, its last launch in flight.
    graph = capture(device, stream, lambda: device.launch(stream, subject.span, write=7))
    executable = device.instantiate(graph)
    dlwrap.keep_alive(graph, subject.buffer)
    subject.buffer = None
    device.hold(stream)
    device.launch_exec(executable, stream)
    device.destroy_exec(executable)
    device.destroy_graph(graph)
    settle()
    assert subject.alive
    device.let_go(stream)
    assert subject.is_gone()


def test_many_threads_can_give_the_same_buffer_to_captures_of_their_own(device):
    subject = Subject(device)
    graphs, failures = [], []

    def run():
        try:
            stream = device.create_stream(blocking=False)
            for _ in range(50):
                device.begin_capture(stream, "thread_local")
                subject.export_and_drop(stream)
                graphs.append(device.end_capture(stream))
        except BaseException as error:  # noqa: BLE001 -- shown below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []
    assert dlwrap.stats().graphs == 200
    subject.buffer = None
    for graph in graphs:
        device.destroy_graph(graph)
    assert subject.is_gone()


# ---- what keep_alive takes ----


class TorchGraph:
    """Poses as a torch.cuda.CUDAGraph, with or without ``keep_graph``."""

    def __init__(self, graph):
        self._graph = graph

    def raw_cuda_graph(self):
        if self._graph is None:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with ..."
            )
        return self._graph


class CupyGraph:
    """Poses as a cupy.cuda.graph.Graph."""

    def __init__(self, graph, executable=1):
        self.graph, self.graphExec = graph, executable


class CoreGraph:
    """Poses as a cuda.core GraphDefinition, or Graph, which is an executable."""

    def __init__(self, handle):
        self.handle = handle


class CoreBuilder:
    """Poses as a cuda.core GraphBuilder that has ended its capture."""

    is_building = False

    def __init__(self, graph):
        self.graph_definition = CoreGraph(driver.CUgraph(graph))


GRAPHS = {
    "integer": int,
    "NumPy integer": np.uint64,
    "cuda.bindings": driver.CUgraph,
    "torch": TorchGraph,
    "CuPy": CupyGraph,
    "cuda.core definition": lambda graph: CoreGraph(driver.CUgraph(graph)),
    "cuda.core builder": CoreBuilder,
}


@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_keep_alive_takes_the_graphs_of_every_framework(device, subject, stream, make):
    graph = capture(device, stream, lambda: None)
    dlwrap.keep_alive(make(graph), subject.buffer)
    subject.buffer = None
    dlwrap.reclaim(SECONDS)
    assert subject.alive
    device.destroy_graph(graph)
    assert subject.is_gone()


def test_keep_alive_takes_several_buffers(device, stream):
    subjects = [Subject(device) for _ in range(3)]
    graph = capture(device, stream, lambda: None)
    dlwrap.keep_alive(graph, *(subject.buffer for subject in subjects))
    for subject in subjects:
        subject.buffer = None
    dlwrap.reclaim(SECONDS)
    assert all(subject.alive for subject in subjects)
    device.destroy_graph(graph)
    assert all(subject.is_gone() for subject in subjects)


REFUSED = {
    "nothing to keep": (lambda cuda, buffer: (123,), TypeError, "at least one HostWrappedBuffer"),
    "an array": (lambda cuda, buffer: (123, np.zeros(1)), TypeError, "needs HostWrappedBuffers, got ndarray"),
    "an array among buffers": (lambda cuda, buffer: (123, buffer, np.zeros(1)), TypeError, "got ndarray"),
    "no graph": (lambda cuda, buffer: ("graph", buffer), TypeError, "needs a CUDA graph or a stream .* got str"),
    "a bool": (lambda cuda, buffer: (True, buffer), TypeError, "got bool"),
    "None": (lambda cuda, buffer: (None, buffer), TypeError, "got NoneType"),
    "graph 0": (lambda cuda, buffer: (0, buffer), ValueError, "live graph, got one with handle 0"),
    "a CUgraph that is 0": (lambda cuda, buffer: (driver.CUgraph(0), buffer), ValueError, "handle 0"),
    "a CuPy graph without its graph": (lambda cuda, buffer: (CupyGraph(0), buffer), ValueError, "handle 0"),
    "a torch graph that is not kept": (lambda cuda, buffer: (TorchGraph(None), buffer), TypeError, "keep_graph=True"),
    "an executable": (lambda cuda, buffer: (driver.CUgraphExec(1), buffer), TypeError, "executable graph"),
    "a cuda.core Graph": (lambda cuda, buffer: (CoreGraph(driver.CUgraphExec(1)), buffer), TypeError, "executable"),
    "a stream that does not capture": (
        lambda cuda, buffer: (UnknownStream(cuda.create_stream()), buffer),
        ValueError,
        r"stream 0x[0-9a-f]+ has none: .* HostWrappedBuffer.record_stream",
    ),
    "the legacy stream": (lambda cuda, buffer: (UnknownStream(1), buffer), ValueError, "stream 0x1 has none"),
    "the default stream": (lambda cuda, buffer: (UnknownStream(0), buffer), ValueError, "stream 0x0 has none"),
    "a stream object without a handle": (
        lambda cuda, buffer: (UnknownStream("x"), buffer),
        TypeError,
        r"\(0, handle\)",
    ),
}


@pytest.mark.parametrize(("arguments", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_keep_alive_refuses_everything_else_with_the_cure(cuda, arguments, error, text):
    buffer = dlwrap.wrap(np.zeros(4))
    with pytest.raises(error, match=text):
        dlwrap.keep_alive(*arguments(cuda, buffer))
    assert cuda.count("cuUserObjectCreate") == 0


def test_keep_alive_refuses_a_closed_buffer_before_anything_is_kept(device, subject, stream):
    graph = capture(device, stream, lambda: None)
    closed = dlwrap.wrap(np.zeros(4))
    closed.close(SECONDS)
    with pytest.raises(ValueError, match="this HostWrappedBuffer is closed: wrap the array again"):
        dlwrap.keep_alive(graph, subject.buffer, closed)
    assert dlwrap.stats().graphs == 0
    device.destroy_graph(graph)


# ---- refusals of the driver ----

FUNCTIONS = ["cuUserObjectCreate", "cuGraphRetainUserObject"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_export_fails_and_leaves_nothing_where_the_driver_refuses_the_owner(device, subject, stream, function):
    device.begin_capture(stream)
    device.fail(function, 2)
    with pytest.raises(dlwrap.CudaError, match=r"\(2\) from cuGraphRetainUserObject"):
        subject.buffer.__dlpack__(stream=stream, max_version=(1, 0))
    assert subject.buffer.exports == 0
    assert eventually(lambda: dlwrap.stats().graphs == 0)
    subject.export_and_drop(stream)  # the next one works
    assert dlwrap.stats().graphs == 1
    device.destroy_graph(device.end_capture(stream))
    subject.buffer = None
    assert subject.is_gone()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("captured", [False, True], ids=["graph", "capture"])
def test_keep_alive_keeps_all_buffers_or_none(device, stream, function, captured):
    subjects = [Subject(device) for _ in range(3)]
    device.begin_capture(stream)
    graph = UnknownStream(stream) if captured else device.end_capture(stream)
    device.fail(function, 2, nth=3)
    with pytest.raises(dlwrap.CudaError):
        dlwrap.keep_alive(graph, *(subject.buffer for subject in subjects))
    assert eventually(lambda: dlwrap.stats().graphs == 0)
    dlwrap.keep_alive(graph, *(subject.buffer for subject in subjects))
    assert dlwrap.stats().graphs == 3
    device.destroy_graph(device.end_capture(stream) if captured else graph)


def test_a_driver_without_user_objects_refuses_exports_into_captures(cuda, monkeypatch):
    buffer = dlwrap.wrap(np.zeros(4))
    monkeypatch.setattr("dlwrap._driver._address", refuse_to_find)
    stream = cuda.create_stream()
    cuda.begin_capture(stream)
    with pytest.raises(dlwrap.CudaError, match="this driver has no cuUserObjectCreate"):
        buffer.__dlpack__(stream=stream)
    monkeypatch.undo()
    cuda.destroy_graph(cuda.end_capture(stream))


def refuse_to_find(name):
    raise dlwrap.CudaError(500, "CUDA_ERROR_NOT_FOUND", f"this driver has no {name}", "cuGetProcAddress")


def test_keep_alive_and_its_failures_leave_context_and_captures_as_they_were(device, subject, stream):
    other = device.create_stream(blocking=False)
    device.begin_capture(other, "global")
    before = checked(driver.cuCtxGetCurrent())
    device.begin_capture(stream, "global")
    device.fail("cuUserObjectCreate", 2)
    with pytest.raises(dlwrap.CudaError):
        dlwrap.keep_alive(UnknownStream(stream), subject.buffer)
    dlwrap.keep_alive(UnknownStream(stream), subject.buffer)
    assert int(checked(driver.cuCtxGetCurrent())) == int(before)
    assert device.capture_status(stream) == device.capture_status(other) == "active"
    device.destroy_graph(device.end_capture(stream))
    device.destroy_graph(device.end_capture(other))


def test_a_graph_that_goes_during_a_collection_is_harmless(device, subject, stream):
    class Graph:
        def __init__(self):
            self.graph = capture(device, stream, lambda: subject.export_and_drop(stream))
            self.itself = self

        def __del__(self):
            device.destroy_graph(self.graph)

    Graph()
    subject.buffer = None
    gc.collect()
    assert subject.is_gone()


def test_the_manager_forgets_captures_that_are_long_over(device, subject, stream):
    for _ in range(3 * _lifetime._CAPTURES_REMEMBERED):
        device.destroy_graph(capture(device, stream, lambda: subject.export_and_drop(stream)))
    assert len(subject.buffer._lease.captures) == _lifetime._CAPTURES_REMEMBERED
