"""Captured graphs own what was exported into them, until they, their clones and their executables are gone."""

from __future__ import annotations

import gc
import time

import _cuda
import numpy as np
import pytest
from _cuda import CAPTURE_MODES
from _latch import Latch
from _subject import COUNT, assert_gone, assert_kept_until_done

import dlwrap


class Stream:
    """Tells its handle, and keeps nothing alive."""

    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return (0, self._handle)


def export(buffer, stream):
    buffer.__dlpack__(stream=stream, max_version=(1, 0))


def record(buffer, stream):
    buffer.record_stream(stream)


def keep(buffer, stream):
    dlwrap.keep_alive(Stream(stream), buffer)


WAYS = [export, record, keep]


def capture(stream, act, mode="global"):
    """Capture what `act` does; give the graph."""
    with _cuda.Capture(stream, mode) as captured:
        act()
    return captured.graph


def capture_use(subject, stream, worker, give, mode="global"):
    """Capture a kernel that uses the subject; only the graph owns it then."""

    def use():
        buffer = dlwrap.wrap(subject.take())
        give(buffer, stream)
        if isinstance(worker, Latch):
            worker.launch(stream, buffer.ptr, COUNT)
        else:
            worker.add(stream, buffer.ptr, COUNT, 1)

    return capture(stream, use, mode)


def assert_owned(subject):
    dlwrap.reclaim(timeout=20)
    assert subject.alive
    assert (dlwrap.stats().live, dlwrap.stats().graphs, dlwrap.stats().pending) == (1, 1, 0)


@pytest.mark.parametrize("mode", CAPTURE_MODES)
@pytest.mark.parametrize("give", WAYS)
def test_graph_owns_the_array_until_it_is_destroyed(stream, subject, kernels, give, mode):
    graph = capture_use(subject, stream, kernels, give, mode)
    assert_owned(subject)
    _cuda.call("cuGraphDestroy", graph)
    assert_gone(subject)


@pytest.mark.parametrize("give", WAYS)
def test_executable_owns_the_array_until_its_launch_has_finished(stream, subject, latch, give):
    graph = capture_use(subject, stream, latch, give)
    executable = _cuda.call("cuGraphInstantiate", graph, 0)
    _cuda.call("cuGraphDestroy", graph)
    assert_owned(subject)
    _cuda.call("cuGraphLaunch", executable, stream)
    latch.wait_until_started()
    _cuda.call("cuGraphExecDestroy", executable)
    time.sleep(0.3)
    assert_owned(subject)
    assert latch.holds
    latch.open()
    latch.wait()
    assert latch.sum == subject.sum
    assert_gone(subject)


@pytest.mark.parametrize("give", WAYS)
def test_clone_owns_the_array_after_its_graph(stream, subject, kernels, give):
    graph = capture_use(subject, stream, kernels, give)
    clone = _cuda.call("cuGraphClone", graph)
    _cuda.call("cuGraphDestroy", graph)
    time.sleep(0.1)
    dlwrap.reclaim(timeout=20)
    assert subject.alive
    _cuda.call("cuGraphDestroy", clone)
    assert_gone(subject)


def test_graph_that_contains_the_graph_owns_the_array(stream, subject, kernels):
    graph = capture_use(subject, stream, kernels, export)
    whole = _cuda.call("cuGraphCreate", 0)
    _cuda.call("cuGraphAddChildGraphNode", whole, None, 0, graph)
    _cuda.call("cuGraphDestroy", graph)
    executable = _cuda.call("cuGraphInstantiate", whole, 0)
    _cuda.call("cuGraphDestroy", whole)
    time.sleep(0.1)
    dlwrap.reclaim(timeout=20)
    assert subject.alive
    _cuda.call("cuGraphExecDestroy", executable)
    assert_gone(subject)


def test_updated_executable_owns_what_its_new_graph_owns(stream, subject, kernels):
    other = np.zeros(COUNT, np.float32)

    def use_other():
        buffer = dlwrap.wrap(other)
        export(buffer, stream)
        kernels.add(stream, buffer.ptr, COUNT, 1)

    old = capture_use(subject, stream, kernels, export)
    new = capture(stream, use_other)
    executable = _cuda.call("cuGraphInstantiate", old, 0)
    _cuda.call("cuGraphDestroy", old)
    time.sleep(0.1)
    dlwrap.reclaim(timeout=20)
    assert subject.alive
    _cuda.call("cuGraphExecUpdate", executable, new)
    _cuda.call("cuGraphDestroy", new)
    deadline = time.monotonic() + 20
    while subject.alive and time.monotonic() < deadline:
        dlwrap.reclaim(timeout=20)
    assert not subject.alive
    assert (dlwrap.stats().live, dlwrap.stats().graphs) == (1, 1)
    _cuda.call("cuGraphExecDestroy", executable)


def test_invalidated_capture_lets_the_array_go(stream, subject):
    _cuda.call("cuStreamBeginCapture", stream, _cuda.capture_mode("global"))
    buffer = dlwrap.wrap(subject.take())
    export(buffer, stream)
    assert dlwrap.stats().graphs == 1
    assert _cuda.code("cuStreamQuery", stream)
    assert _cuda.code("cuStreamEndCapture", stream)
    del buffer
    assert_gone(subject)


def test_capture_whose_stream_is_destroyed_lets_the_array_go(subject):
    stream = _cuda.create_stream()
    _cuda.call("cuStreamBeginCapture", stream, _cuda.capture_mode("relaxed"))
    buffer = dlwrap.wrap(subject.take())
    export(buffer, stream)
    assert dlwrap.stats().graphs == 1
    _cuda.code("cuStreamDestroy", stream)
    del buffer
    assert_gone(subject)


def test_capture_owns_each_buffer_once(stream, subject):
    def use():
        buffer = dlwrap.wrap(subject.take())
        for give in 3 * WAYS:
            give(buffer, stream)

    graph = capture(stream, use)
    assert_owned(subject)
    _cuda.call("cuGraphDestroy", graph)
    assert_gone(subject)


def test_buffer_imported_before_the_capture_is_not_owned_but_for_keep_alive(stream, subject, latch):
    buffer = dlwrap.wrap(subject.take())
    pointer = buffer.ptr
    graph = capture(stream, lambda: latch.launch(stream, pointer, COUNT))
    assert dlwrap.stats().graphs == 0
    dlwrap.keep_alive(int(graph), buffer)
    del buffer
    assert_owned(subject)
    executable = _cuda.call("cuGraphInstantiate", graph, 0)
    _cuda.call("cuGraphLaunch", executable, stream)
    latch.wait_until_started()
    _cuda.call("cuGraphDestroy", graph)
    _cuda.call("cuGraphExecDestroy", executable)
    assert_kept_until_done(subject, latch)


def test_executable_made_before_keep_alive_may_still_run_when_its_graph_goes(stream, subject, latch):
    buffer = dlwrap.wrap(subject.take())
    pointer = buffer.ptr
    graph = capture(stream, lambda: latch.launch(stream, pointer, COUNT))
    executable = _cuda.call("cuGraphInstantiate", graph, 0)
    dlwrap.keep_alive(graph, buffer)
    del buffer
    _cuda.call("cuGraphLaunch", executable, stream)
    latch.wait_until_started()
    _cuda.call("cuGraphExecDestroy", executable)
    _cuda.call("cuGraphDestroy", graph)
    assert_kept_until_done(subject, latch)


def test_per_thread_stream_captures_too(subject):
    def use():
        export(dlwrap.wrap(subject.take()), _cuda.PER_THREAD_STREAM)

    graph = capture(_cuda.PER_THREAD_STREAM, use)
    assert_owned(subject)
    _cuda.call("cuGraphDestroy", graph)
    assert_gone(subject)


# ---- frameworks ----


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_torch_graph_owns_a_temporary_tensor(torch, subject, mode):
    result = torch.zeros(COUNT, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        torch.mul(torch.from_dlpack(dlwrap.wrap(subject.take())), 2, out=result)
    assert_owned(subject)
    for _ in range(3):
        result.zero_()
        graph.replay()
        assert float(result.sum(dtype=torch.float64)) == 2 * subject.sum
    assert_owned(subject)
    graph.reset()
    assert_gone(subject)


@pytest.mark.parametrize("instantiated", [False, True], ids=["before it is instantiated", "after"])
def test_kept_torch_graph_owns_a_buffer(torch, subject, instantiated):
    result = torch.zeros(COUNT, device="cuda")
    buffer = dlwrap.wrap(subject.take())
    tensor = torch.from_dlpack(buffer)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        torch.mul(tensor, 2, out=result)
    if instantiated:
        graph.instantiate()
    dlwrap.keep_alive(graph, buffer)
    del buffer, tensor
    assert_owned(subject)
    graph.replay()
    assert float(result.sum(dtype=torch.float64)) == 2 * subject.sum
    graph.reset()
    assert_gone(subject)


def test_torch_graph_that_is_not_kept_is_refused_with_the_cure(torch):
    buffer = dlwrap.wrap(np.zeros(8, np.float32))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(8, device="cuda").add_(1)
    with pytest.raises(TypeError, match="keep_graph=True"):
        dlwrap.keep_alive(graph, buffer)
    graph.reset()


def test_torch_stream_under_capture(torch, subject):
    buffer = dlwrap.wrap(subject.take())
    tensor = torch.from_dlpack(buffer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
        dlwrap.keep_alive(torch.cuda.current_stream(), buffer)
    del buffer, tensor
    assert_owned(subject)
    graph.reset()
    assert_gone(subject)


def test_cupy_graph_owns_a_temporary_array(cupy, subject):
    result = cupy.zeros(COUNT, cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.multiply(result, 2, out=result)
    with stream:
        stream.begin_capture()
        cupy.multiply(cupy.from_dlpack(dlwrap.wrap(subject.take())), 2, out=result)
        graph = stream.end_capture()
    assert_owned(subject)
    graph.launch(stream)
    stream.synchronize()
    assert float(result.sum(dtype=cupy.float64)) == 2 * subject.sum
    del graph
    gc.collect()
    assert_gone(subject)


def test_cupy_graph_is_given_a_buffer_or_says_how(cupy, subject, fact):
    buffer = dlwrap.wrap(subject.take())
    array = cupy.from_dlpack(buffer)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        cupy.add(array, 1, out=array)
        stream.begin_capture()
        cupy.add(array, 1, out=array)
        graph = stream.end_capture()
    stream.synchronize()
    keeps = bool(getattr(graph, "graph", 0))
    fact(f"a CuPy graph keeps its CUgraph: {keeps}")
    if keeps:
        dlwrap.keep_alive(graph, buffer)
        del buffer, array
        assert_owned(subject)
    else:
        with pytest.raises((TypeError, ValueError), match="during the capture"):
            dlwrap.keep_alive(graph, buffer)
        del buffer, array
    del graph
    gc.collect()
    assert_gone(subject)


def test_cuda_core_builder_under_capture_and_after(cuda_core, subject):
    device = cuda_core.Device(0)
    device.set_current()
    other = np.zeros(8, np.float32)
    builder = device.create_graph_builder().begin_building()
    dlwrap.keep_alive(builder, dlwrap.wrap(subject.take()))
    builder.end_building()
    dlwrap.keep_alive(builder, dlwrap.wrap(other))
    assert dlwrap.stats().graphs == 2
    graph = builder.complete()
    with pytest.raises(TypeError, match="executable graph"):
        dlwrap.keep_alive(graph, dlwrap.wrap(other))
    builder.close()
    time.sleep(0.1)
    dlwrap.reclaim(timeout=20)
    assert subject.alive
    graph.close()
    del graph, builder
    gc.collect()
    assert_gone(subject)
