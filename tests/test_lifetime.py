"""Wait, unregister, drop: what a release waits for, and in which order it gives back."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

import dlwrap
from capsules import take
from dlwrap import _driver, _lifetime
from patience import SECONDS, eventually, settle
from stream_objects import SimulatedStream

KINDS = {
    "pinned": {},
    "pageable": {"pageable": True},
    "host page tables": {"pageable": True, "host_page_tables": True},
}


@pytest.fixture(params=KINDS)
def kind(request, cuda):
    """Each memory kind in turn; the simulated driver aborts where memory goes before the work on it."""
    cuda.configure(**KINDS[request.param])
    return "pinned" if request.param == "pinned" else "pageable"


class Scene:
    """An array that is wrapped and imported, with work pending on it."""

    def __init__(self, cuda, stream, **options):
        self.cuda = cuda
        self.array = cuda.host_array((8, 8))
        self.nbytes = self.array.nbytes
        self._alive = weakref.ref(self.array)
        self.buffer = dlwrap.wrap(self.array, **options)
        self.tensor = None if stream is None else take(self.buffer.__dlpack__(stream=stream, max_version=(1, 0)))

    @property
    def alive(self):
        return self._alive() is not None

    def drop(self, *names):
        for name in names:
            if name == "tensor":
                self.tensor.delete()
            setattr(self, name, None)

    def drop_all(self):
        self.drop("array", "buffer", "tensor")


ORDERS = [
    ("buffer", "array", "tensor"),
    ("array", "buffer", "tensor"),
    ("tensor", "buffer", "array"),
    ("array", "tensor", "buffer"),
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_array_lives_until_the_gpu_is_done_whatever_is_dropped_first(cuda, kind, order):
    scene = Scene(cuda, stream=1)
    cuda.hold(1)
    cuda.launch(1, scene.array, write=7)
    scene.drop(*order)
    settle()
    assert scene.alive
    assert dlwrap.stats().pending == 1
    cuda.let_go(1)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive


@pytest.mark.parametrize("last", ["array", "buffer", "tensor"])
def test_each_holder_alone_keeps_the_array(cuda, kind, last):
    scene = Scene(cuda, stream=1)
    scene.drop(*({"array", "buffer", "tensor"} - {last}))
    dlwrap.reclaim(SECONDS)
    assert scene.alive
    scene.drop(last)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive


@pytest.mark.parametrize("stream", [None, -1, 2], ids=["not told", "told none", "per-thread default"])
def test_work_on_an_untracked_stream_is_waited_for_device_wide(cuda, kind, stream):
    scene = Scene(cuda, stream=1)
    extra = take(scene.buffer.__dlpack__(stream=stream))
    unknown = cuda.create_stream(blocking=False)
    cuda.hold(unknown)
    cuda.launch(unknown, scene.array, write=7)
    extra.delete()
    scene.drop_all()
    settle()
    assert scene.alive
    cuda.let_go(unknown)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive
    cuda.destroy_stream(unknown)


def test_a_raw_handle_may_be_destroyed_meanwhile(cuda, kind):
    # Touching the dead handle would abort the process.
    raw = cuda.create_stream(blocking=False)
    scene = Scene(cuda, stream=raw)
    cuda.hold(raw)
    cuda.launch(raw, scene.array, write=7)
    cuda.destroy_stream(raw)
    scene.drop_all()
    settle()
    assert scene.alive
    cuda.let_go(raw)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive


def test_a_recorded_stream_object_is_kept_until_it_has_been_waited_for(cuda, kind):
    stream = SimulatedStream(cuda)
    handle, scene = stream.ptr, Scene(cuda, stream=None)
    scene.buffer.record_stream(stream)
    cuda.hold(handle)
    cuda.launch(handle, scene.array, write=7)
    del stream
    cuda.clear_calls()
    scene.drop("array", "buffer")
    settle()
    assert scene.alive
    cuda.let_go(handle)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive
    assert cuda.count("cuMemHostRegister") == 0  # no device-wide wait was needed


def test_all_of_several_streams_are_waited_for(cuda, kind):
    streams = [SimulatedStream(cuda, blocking=False) for _ in range(3)]
    scene = Scene(cuda, stream=None)
    for stream in streams:
        scene.buffer.record_stream(stream)
        cuda.hold(stream.ptr)
        cuda.launch(stream.ptr, scene.array)
    scene.drop("array", "buffer")
    for stream in streams:
        settle()
        assert scene.alive
        cuda.let_go(stream.ptr)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive


def test_a_release_does_not_wait_for_streams_that_were_not_recorded(cuda, kind):
    used, busy = SimulatedStream(cuda, blocking=False), SimulatedStream(cuda, blocking=False)
    other = cuda.host_array(4)
    with dlwrap.pin(other):
        cuda.hold(busy.ptr)
        cuda.launch(busy.ptr, other)
        dlwrap.configure(linger_seconds=float("inf"))  # unregistering waits for the device
        scene = Scene(cuda, stream=None)
        scene.buffer.record_stream(used)
        scene.drop("array", "buffer")
        released = threading.Event()
        manager = _lifetime.manager()
        while not released.is_set():
            manager._request(lambda: manager.count_pending() or released.set())
            released.wait(0.01)
        cuda.let_go(busy.ptr)


def test_wait_device_waits_for_everything(cuda, kind):
    busy = cuda.create_stream(blocking=False)
    scene = Scene(cuda, stream=1, wait="device")
    cuda.hold(busy)
    cuda.launch(busy, scene.array, write=7)
    scene.drop_all()
    settle()
    assert scene.alive
    cuda.let_go(busy)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive
    cuda.destroy_stream(busy)


def test_a_buffer_that_was_never_exported_is_released_without_waiting(cuda, kind):
    cuda.hold(1)
    other = cuda.host_array(4)
    with dlwrap.pin(other):
        cuda.launch(1, other)
        dlwrap.configure(linger_seconds=float("inf"))
        scene = Scene(cuda, stream=None)
        scene.drop("array", "buffer")
        settle()
        assert dlwrap.stats().pending == 0
        cuda.let_go(1)


def test_waiting_comes_before_unregistering_and_that_before_dropping(cuda):
    scene = Scene(cuda, stream=1)
    cuda.hold(1)
    cuda.launch(1, scene.array, write=7)
    cuda.pause("cuMemHostUnregister")
    scene.drop_all()
    settle()
    assert cuda.waiting("cuMemHostUnregister") == 0
    cuda.let_go(1)
    cuda.wait_until_paused("cuMemHostUnregister")
    assert scene.alive
    assert len(cuda.registrations) == 1
    cuda.resume("cuMemHostUnregister")
    dlwrap.reclaim(SECONDS)
    assert not scene.alive
    order = [call.function for call in cuda.calls()]
    assert order.index("cuEventRecord") < order.index("cuEventQuery") < order.index("cuMemHostUnregister")


def test_only_the_managers_own_thread_records_and_it_records_an_event_only(cuda):
    scene = Scene(cuda, stream=1)
    cuda.launch(1, scene.array)
    cuda.clear_calls()
    scene.drop_all()
    dlwrap.reclaim(SECONDS)
    assert {call.thread_name for call in cuda.calls("cuEventRecord")} == {"dlwrap-lifetime"}
    submitting = {"cuEventRecord", "cuLaunchHostFunc", "cuStreamWaitEvent", "cuMemcpyAsync", "cuLaunchKernel"}
    assert {call.function for call in cuda.calls()} & submitting == {"cuEventRecord"}


def test_one_event_serves_all_releases_of_a_stream_that_come_together(cuda):
    cuda.configure(pageable=True)
    scenes = [Scene(cuda, stream=1) for _ in range(50)]
    cuda.clear_calls()
    cuda.pause("cuEventCreate")
    scenes[0].drop_all()
    cuda.wait_until_paused("cuEventCreate")
    for scene in scenes[1:]:
        scene.drop_all()
    cuda.resume("cuEventCreate")
    dlwrap.reclaim(SECONDS)
    assert cuda.count("cuEventRecord") == 2
    assert not any(scene.alive for scene in scenes)


def test_any_number_of_releases_can_come_one_by_one_behind_a_busy_stream(cuda):
    """A driver takes 56 events with blocking sync behind a running kernel; the next would wait for it."""
    array = cuda.host_array(64)
    with dlwrap.pin(array):
        cuda.hold(1)
        cuda.launch(1, array)
        for number in range(1, 101):
            take(dlwrap.wrap(array).__dlpack__(stream=1)).delete()
            assert eventually(lambda number=number: cuda.count("cuEventRecord") == number)
        assert dlwrap.stats().pending == 100
        cuda.let_go(1)
        dlwrap.reclaim(SECONDS)
        assert dlwrap.stats().pending == 0


def test_one_device_wide_wait_serves_all_releases_that_came_before_it_began(cuda):
    cuda.configure(pageable=True)
    scenes = [Scene(cuda, stream=2) for _ in range(50)]
    cuda.clear_calls()
    cuda.pause("cuMemHostRegister")
    scenes[0].drop_all()
    cuda.wait_until_paused("cuMemHostRegister")
    for scene in scenes[1:]:
        scene.drop_all()
    settle()
    cuda.resume("cuMemHostRegister")
    dlwrap.reclaim(SECONDS)
    assert cuda.count("cuMemHostRegister") == 2
    assert not any(scene.alive for scene in scenes)


def test_events_are_destroyed(cuda):
    for _ in range(20):
        Scene(cuda, stream=1).drop_all()
    dlwrap.reclaim(SECONDS)
    assert cuda.count("cuEventDestroy") == cuda.count("cuEventCreate") > 0


# ---- captures ----


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_on_the_stream_delays_the_release_and_stays_valid(cuda, kind, mode):
    stream = SimulatedStream(cuda)
    scene = Scene(cuda, stream=None)
    scene.buffer.record_stream(stream)
    cuda.begin_capture(stream.ptr, mode)
    cuda.launch(stream.ptr, scene.array, write=3)
    scene.drop("array", "buffer")
    settle()
    assert scene.alive
    assert cuda.capture_status(stream.ptr) == "active"
    assert cuda.end_capture(stream.ptr)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive


def test_no_event_is_recorded_on_a_capturing_stream(cuda, kind):
    scene, stream = Scene(cuda, stream=None), SimulatedStream(cuda, blocking=False)
    scene.buffer.record_stream(stream)
    cuda.begin_capture(stream.ptr)
    scene.drop("array", "buffer")
    settle()
    assert cuda.count("cuStreamIsCapturing") > 0
    assert cuda.count("cuEventRecord") == 0
    cuda.end_capture(stream.ptr)
    dlwrap.reclaim(SECONDS)
    assert cuda.count("cuEventRecord") == 1


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_wrap_export_release_and_close_leave_a_capture_of_another_thread_valid(cuda, kind, mode):
    stream = cuda.create_stream(blocking=False)
    cuda.begin_capture(stream, mode)

    def use():
        for told in (1, 2, -1, None):
            buffer = dlwrap.wrap(np.arange(10.0))
            take(buffer.__dlpack__(stream=told)).delete()
            buffer.close(SECONDS)
        dlwrap.reclaim(SECONDS)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(SECONDS)
    assert cuda.capture_status(stream) == "active"
    assert cuda.end_capture(stream)
    cuda.destroy_stream(stream)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_wrap_export_and_close_leave_a_capture_of_the_same_thread_valid(cuda, kind, mode):
    stream = cuda.create_stream(blocking=False)
    cuda.begin_capture(stream, mode)
    with dlwrap.wrap(np.arange(10.0)) as buffer:
        take(buffer.__dlpack__(stream=None)).delete()
        take(buffer.__dlpack__(stream=1)).delete()
    assert cuda.capture_status(stream) == "active"
    assert cuda.end_capture(stream)
    cuda.destroy_stream(stream)


def test_a_release_on_the_legacy_stream_leaves_the_capture_of_a_blocking_stream_valid(cuda, kind):
    # Anything done to the legacy stream itself would invalidate it.
    stream = cuda.create_stream(blocking=True)
    scene = Scene(cuda, stream=1)
    cuda.begin_capture(stream)
    scene.drop_all()
    dlwrap.reclaim(SECONDS)
    assert not scene.alive
    assert cuda.capture_status(stream) == "active"
    assert cuda.end_capture(stream)
    cuda.destroy_stream(stream)


def test_a_capture_that_begins_at_once_after_the_event_was_recorded_does_no_harm(cuda, kind):
    stream = SimulatedStream(cuda)
    scene = Scene(cuda, stream=None)
    scene.buffer.record_stream(stream)
    cuda.hold(stream.ptr)
    cuda.launch(stream.ptr, scene.array)
    scene.drop("array", "buffer")
    settle()
    cuda.begin_capture(stream.ptr)
    settle()
    cuda.let_go(stream.ptr)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive
    assert cuda.end_capture(stream.ptr)


# ---- close ----


def test_close_waits_for_the_gpu_and_unregisters(cuda, kind):
    scene = Scene(cuda, stream=1)
    cuda.hold(1)
    cuda.launch(1, scene.array, write=9)
    scene.drop("tensor")
    with pytest.raises(TimeoutError, match=r"close\(\): not done after 0.05 s; it goes on in the background"):
        scene.buffer.close(0.05)
    assert scene.buffer.closed
    threading.Timer(0.05, cuda.let_go, [1]).start()
    scene.buffer.close(SECONDS)
    assert cuda.registrations == []
    assert scene.array[0, 0].tobytes() == bytes([9] * 4)


def test_after_close_the_array_can_be_wrapped_again_at_once(cuda, kind):
    array = cuda.host_array(100)
    for _ in range(200):
        buffer = dlwrap.wrap(array)
        take(buffer.__dlpack__(stream=1)).delete()
        buffer.close(SECONDS)
        assert cuda.registrations == []


def test_close_does_not_linger(cuda):
    dlwrap.configure(linger_seconds=float("inf"))
    array = cuda.host_array(100)
    dlwrap.wrap(array).close(SECONDS)
    assert cuda.registrations == []


def test_closing_from_two_threads_ends_for_both(cuda):
    scene = Scene(cuda, stream=None)
    cuda.pause("cuMemHostUnregister")
    threads = [threading.Thread(target=scene.buffer.close, args=[SECONDS]) for _ in range(2)]
    for thread in threads:
        thread.start()
    cuda.wait_until_paused("cuMemHostUnregister")
    cuda.resume("cuMemHostUnregister")
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads)


def test_a_close_refused_for_its_importers_can_be_repeated(cuda, kind):
    scene = Scene(cuda, stream=1)
    with pytest.raises(BufferError, match="cannot close: 1 importer of this HostWrappedBuffer still alive"):
        scene.buffer.close()
    assert not scene.buffer.closed
    scene.drop("tensor")
    scene.buffer.close(SECONDS)


# ---- many at once ----


def test_the_array_may_be_wrapped_again_while_its_release_is_pending(cuda, kind):
    array = cuda.host_array(100)
    buffers = [dlwrap.wrap(array) for _ in range(3)]
    cuda.hold(1)
    cuda.launch(1, array)
    while buffers:
        take(buffers.pop().__dlpack__(stream=1)).delete()
    settle()
    assert dlwrap.stats().pending == 3
    assert cuda.count("cuMemHostRegister") == (kind == "pinned")
    again = dlwrap.wrap(array)
    cuda.let_go(1)
    dlwrap.reclaim(SECONDS)
    assert len(cuda.registrations) == (kind == "pinned")
    again.close(SECONDS)


def test_a_blocked_unregister_does_not_delay_releases_that_need_none(cuda):
    shared = cuda.host_array(100)
    with dlwrap.pin(shared):
        cuda.pause("cuMemHostUnregister")
        Scene(cuda, stream=None).drop("array", "buffer")
        cuda.wait_until_paused("cuMemHostUnregister")
        take(dlwrap.wrap(shared).__dlpack__(stream=1)).delete()
        manager, done = _lifetime.manager(), threading.Event()
        while not done.is_set():
            manager._request(lambda: manager.count_pending() or manager.count_live() > 1 or done.set())
            done.wait(0.01)
        cuda.resume("cuMemHostUnregister")


def test_dropping_the_array_may_run_code_that_wraps_but_cannot_wait(cuda, kind):
    seen = []

    class Owner:
        def __init__(self):
            self.array = np.zeros(64)
            self.__array_interface__ = self.array.__array_interface__

        def __del__(self):
            buffer = dlwrap.wrap(np.zeros(8))
            try:
                buffer.close()
            except RuntimeError as error:
                seen.append(str(error))

    buffer = dlwrap.wrap(np.asarray(Owner()))
    del buffer
    dlwrap.reclaim(SECONDS)
    assert seen == ["cannot wait for close() in a finaliser that runs on dlwrap's own thread"]


# ---- what cannot be proved is kept ----


@pytest.fixture
def leaked(leaks):
    """Counts leaks, and frees in the end what the simulated GPU never used."""
    yield leaks
    pins = _lifetime.manager().pins
    for registration in pins.table.overlapping(0, 2**64 - 1):
        with _driver.primary_context(0):
            _driver.unregister(registration.start)
        pins._remove(registration)


@pytest.mark.parametrize("code", [700, 719, 4, 12345])
def test_memory_is_kept_and_warned_of_when_the_end_of_the_work_is_unknown(cuda, kind, code, leaked):
    scene = Scene(cuda, stream=1)
    for function in ("cuEventQuery", "cuMemHostRegister"):  # neither the stream nor the device can be waited for
        cuda.fail(function, code, times=1000)
    scene.drop("array", "tensor")
    with (
        pytest.warns(dlwrap.DLWrapWarning, match="dlwrap keeps memory, because it cannot be proved"),
        pytest.raises(dlwrap.DLWrapError, match=r"close\(\): memory is kept") as caught,
    ):
        scene.buffer.close(SECONDS)
    assert caught.value.__cause__.code == code
    scene.drop("buffer")
    assert scene.alive
    assert leaked() == 1


@pytest.mark.parametrize("function", ["cuCtxGetId", "cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuEventQuery"])
def test_a_stream_that_cannot_be_recorded_or_asked_is_waited_for_device_wide(cuda, kind, function):
    scene = Scene(cuda, stream=1)
    _driver._after_legacy.clear()
    cuda.hold(1)
    cuda.launch(1, scene.array)
    cuda.fail(function, 400)
    scene.drop_all()
    settle()
    assert scene.alive
    cuda.let_go(1)
    dlwrap.reclaim(SECONDS)
    assert not scene.alive


def test_a_failing_unregister_keeps_the_memory_and_close_says_so(cuda, leaked):
    array = cuda.host_array(10)
    alive = weakref.ref(array)
    cuda.fail("cuMemHostUnregister", 999)
    with (
        pytest.warns(dlwrap.DLWrapWarning),
        pytest.raises(dlwrap.DLWrapError, match=r"close\(\): memory is kept") as caught,
    ):
        dlwrap.wrap(array).close(SECONDS)
    assert caught.value.__cause__.code == 999
    del array
    assert alive() is not None
    start = cuda.registrations[0].start
    with _driver.primary_context(0):
        _driver.unregister(start)


def test_memory_that_somebody_else_unregistered_is_not_kept(cuda, leaks):
    array = cuda.host_array(10)
    buffer = dlwrap.wrap(array)
    with _driver.primary_context(0):
        _driver.unregister(cuda.registrations[0].start)
    buffer.close(SECONDS)
    assert leaks() == 0
