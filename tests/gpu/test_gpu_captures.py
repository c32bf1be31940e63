"""No stream capture is ever broken by wrapping, exporting, releasing or closing, in any mode, on any thread."""

from __future__ import annotations

import contextlib
import threading

import _cuda
import numpy as np
import pytest
from _cuda import CAPTURE_MODES, Capture, Thread
from _subject import COUNT, assert_gone

import dlwrap


def wrap_and_drop():
    dlwrap.wrap(np.zeros(64, np.float32))


def wrap_and_close():
    dlwrap.wrap(np.zeros(64, np.float32)).close(timeout=20)


def wrap_without_page_locking_anew():
    array = np.zeros(64, np.float32)
    with dlwrap.pin(array):
        dlwrap.wrap(array[8:16]).close(timeout=20)


def export_on_the_legacy_stream_and_close():
    buffer = dlwrap.wrap(np.zeros(64, np.float32))
    buffer.__dlpack__(stream=1, max_version=(1, 0))
    buffer.close(timeout=20)


def export_on_the_per_thread_stream_and_close():
    buffer = dlwrap.wrap(np.zeros(64, np.float32))
    buffer.__dlpack__(stream=2, max_version=(1, 0))
    buffer.close(timeout=20)


def export_on_no_stream_and_reclaim():
    dlwrap.wrap(np.zeros(64, np.float32)).__dlpack__(max_version=(1, 0))
    dlwrap.reclaim(timeout=20)


def export_and_wait_on_the_host():
    buffer = dlwrap.wrap(np.zeros(64, np.float32))
    buffer.__dlpack__(stream=1, max_version=(1, 0))
    buffer.synchronize()
    np.from_dlpack(buffer, device="cpu")
    buffer.close(timeout=20)


def be_refused():
    array = np.zeros(64, np.float32)
    with _cuda.relaxed(), _cuda.current(), _cuda.registered(array[:32]), pytest.raises(BufferError):
        dlwrap.wrap(array[16:48], extent="view")


ACTIONS = [
    wrap_and_drop,
    wrap_and_close,
    wrap_without_page_locking_anew,
    export_on_the_legacy_stream_and_close,
    export_on_the_per_thread_stream_and_close,
    export_on_no_stream_and_reclaim,
    export_and_wait_on_the_host,
    be_refused,
]


class Counter:
    """Page-locked memory for the graph's own kernels, of which dlwrap knows nothing."""

    def __init__(self, kernels):
        self.array = np.zeros(32, np.float32)
        self._kernels = kernels
        self._address = 0

    @contextlib.contextmanager
    def registered(self):
        with _cuda.registered(self.array):
            self._address = _cuda.device_address(self.array)
            yield self

    def add(self, stream, value=1):
        self._kernels.add(stream, self._address, self.array.size, value)

    def assert_is(self, value):
        np.testing.assert_array_equal(self.array, np.full(32, value, np.float32))


@pytest.fixture
def counter(kernels):
    with Counter(kernels).registered() as counter:
        yield counter


@pytest.mark.parametrize("mode", CAPTURE_MODES)
@pytest.mark.parametrize("act", ACTIONS)
def test_capture_survives_what_another_thread_does(stream, counter, act, mode):
    act()  # what is loaded at the first use is loaded
    with Capture(stream, mode) as capture:
        counter.add(stream)
        Thread(act).result()
        counter.add(stream)
    capture.replay(times=3)
    counter.assert_is(6)


@pytest.mark.parametrize("mode", CAPTURE_MODES)
@pytest.mark.parametrize("act", ACTIONS)
def test_capture_survives_what_its_own_thread_does(stream, counter, act, mode):
    act()
    with Capture(stream, mode) as capture:
        counter.add(stream)
        act()
        counter.add(stream)
    capture.replay(times=3)
    counter.assert_is(6)


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_capture_of_a_blocking_stream_survives_a_release_on_the_legacy_stream(counter, mode):
    blocking = _cuda.create_stream(_cuda.BLOCKING)
    buffer = dlwrap.wrap(np.zeros(64, np.float32))
    with Capture(blocking, mode) as capture:
        counter.add(blocking)
        buffer.__dlpack__(stream=1, max_version=(1, 0))
        buffer.close(timeout=20)  # anything done to the legacy stream itself would break the capture
        counter.add(blocking)
    capture.replay()
    _cuda.call("cuStreamDestroy", blocking)
    counter.assert_is(2)


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_capture_survives_a_release_that_is_pending_already(torch, stream, counter, subject, latch, mode):
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        tensor = torch.from_dlpack(dlwrap.wrap(subject.take()))
    latch.launch(other.cuda_stream, tensor.data_ptr(), COUNT)
    del tensor
    subject.assert_held_by(latch)
    with Capture(stream, mode) as capture:
        counter.add(stream)
        assert latch.holds
        subject.assert_released_after(latch)
        counter.add(stream)
    capture.replay()
    counter.assert_is(2)


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_many_captures_beside_many_releases(torch, stream, counter, mode):
    side = torch.cuda.Stream()
    started, stop = threading.Event(), threading.Event()

    def release_again_and_again():
        while not stop.is_set():
            for _ in range(20):
                with torch.cuda.stream(side):
                    torch.from_dlpack(dlwrap.wrap(np.zeros(64, np.float32)))
                dlwrap.wrap(np.zeros(64, np.float32)).__dlpack__(max_version=(1, 0))
            dlwrap.reclaim(timeout=20)
            started.set()

    thread = Thread(release_again_and_again)
    try:
        assert started.wait(20)
        for _ in range(200):
            with Capture(stream, mode) as capture:
                counter.add(stream)
                counter.add(stream, -1)
            capture.replay()
    finally:
        stop.set()
    thread.result()
    counter.assert_is(0)


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_tensor_that_a_torch_graph_reads_sees_what_the_host_writes(torch, mode):
    array = np.ones(64, np.float32)
    tensor = torch.from_dlpack(dlwrap.wrap(array))
    result = torch.zeros(64, device="cuda")
    torch.mul(tensor, 2, out=result)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        torch.mul(tensor, 2, out=result)
    for value in (3, 5):
        array[:] = value
        graph.replay()
        torch.cuda.synchronize()
        np.testing.assert_array_equal(result.cpu().numpy(), np.full(64, 2 * value, np.float32))
    graph.reset()


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_tensor_dropped_in_the_capture_that_used_it_is_kept_until_the_graph_goes(torch, subject, mode):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        tensor = torch.from_dlpack(dlwrap.wrap(subject.take()))
        tensor.add_(1)
        del tensor
        dlwrap.reclaim(timeout=20)
        assert subject.alive  # the graph owns it now
    assert subject.alive
    graph.reset()
    assert_gone(subject)


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_tensor_wrapped_before_and_dropped_in_the_capture(torch, subject, mode):
    side = torch.cuda.Stream()
    buffer = dlwrap.wrap(subject.take())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode=mode):
        tensor = torch.from_dlpack(buffer)
        tensor.add_(1)
        del tensor, buffer
        dlwrap.reclaim(timeout=20)
        assert subject.alive  # the graph owns it now
    graph.reset()
    assert_gone(subject)
