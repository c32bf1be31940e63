"""A driver call that takes long delays nobody but those who need that very call, and what must come after it.

Calls are held at their entry (`cuda.pause`), as if they took seconds. Three things cannot be helped, and the tests say
so where they meet them: whoever makes the same call waits at the same gate; one thread does all the unregistering,
because the driver does one after the other; and while the thread is held that waits for events, no release goes on.
"""

from __future__ import annotations

import contextlib
import operator
import re
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import dlwrap
from capsules import take
from cuda_calls import QUICK, checked
from dlwrap import _driver, _lifetime
from locks import LOCKS
from patience import SECONDS, eventually
from stream_objects import SimulatedStream


class Thread(threading.Thread):
    """Runs a function; `result` waits for it, and gives or raises what came of it."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self._call = lambda: function(*arguments)
        self._value = self._error = None
        self.start()

    def run(self):
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 -- raised again where the result is asked for
            self._error = error

    def result(self):
        self.join(SECONDS)
        assert not self.is_alive(), "the thread hangs"
        if self._error is not None:
            raise self._error
        value, self._value = self._value, None
        return value


def wait_until(condition):
    """Wait for what another thread does soon."""
    assert eventually(condition), "it never happened"


@contextlib.contextmanager
def held(cuda, function, threads=1):
    """Hold a function's calls until the block ends; gives what waits until so many threads are held."""
    cuda.pause(function)
    try:
        yield lambda: cuda.wait_until_paused(function, threads)
    finally:
        cuda.resume(function)


# ---- no lock is held across any driver call ----

DRIVER_FUNCTIONS = sorted(set(re.findall(r'"(cu[A-Z]\w+)"', Path(_driver.__file__).read_text())))


def forget_what_is_cached():
    """Let the next call ask the driver again."""
    for cached in (_driver._module, _driver._primary, _driver.primary_handle, _driver._address):
        cached.cache_clear()
    vars(_driver).get("_after_legacy", {}).clear()


def export(cuda, stream, **options):
    buffer = dlwrap.wrap(cuda.host_array(64), **options)
    take(buffer.__dlpack__(stream=stream)).delete()
    return buffer


def register_and_close(cuda):
    dlwrap.wrap(cuda.host_array(64)).close(SECONDS)


def register_and_drop(cuda):
    dlwrap.wrap(cuda.host_array(64))
    dlwrap.reclaim(SECONDS)


def share_a_pin(cuda):
    array = cuda.host_array(64)
    with dlwrap.pin(array):
        dlwrap.wrap(array[8:]).close(SECONDS)


def wrap_for_a_device(cuda):
    dlwrap.wrap(cuda.host_array(64), device=0).close(SECONDS)


def release_after_an_event(cuda):
    export(cuda, stream=1)
    dlwrap.reclaim(SECONDS)


def release_after_the_events_of_an_owned_stream(cuda):
    buffer = dlwrap.wrap(cuda.host_array(64))
    buffer.record_stream(SimulatedStream(cuda, blocking=False))
    buffer.close(SECONDS)


def release_after_a_wait_for_the_device(cuda):
    export(cuda, stream=2)
    dlwrap.reclaim(SECONDS)


def synchronize(cuda):
    buffer = dlwrap.wrap(cuda.host_array(64), wait="device")
    buffer.record_stream(1)
    buffer.synchronize()
    buffer.close(SECONDS)


def adopt(cuda):
    array = cuda.host_array(64)
    with _driver.primary_context(0):
        _driver.register(array.ctypes.data, array.nbytes)
        dlwrap.wrap(array).close(SECONDS)
        _driver.unregister(array.ctypes.data)


def fail_to_record(cuda):
    cuda.fail("cuEventRecord", 400)
    release_after_an_event(cuda)
    cuda.clear_failures()


def read_the_pointer(cuda):
    with _driver.primary_context(0):
        operator.attrgetter("ptr", "__cuda_array_interface__")(dlwrap.wrap(cuda.host_array(64)))


def export_beside_another_context(cuda):
    stream = cuda.create_stream()
    export(cuda, stream=stream).close(SECONDS)
    cuda.destroy_stream(stream)
    buffer = dlwrap.wrap(cuda.host_array(64))
    stranger = checked(_context_of_a_stranger())
    with contextlib.suppress(BufferError):
        buffer.__dlpack__(stream=1)
    checked(_driver._module().cuCtxPopCurrent())
    checked(_driver._module().cuCtxDestroy(stranger))


def _context_of_a_stranger():
    driver = _driver._module()
    try:
        return driver.cuCtxCreate(None, 0, 0)
    except TypeError:  # cuda-bindings 12
        return driver.cuCtxCreate(0, 0)


def export_during_a_capture(cuda):
    stream = cuda.create_stream()
    cuda.begin_capture(stream, "relaxed")
    buffer = export(cuda, stream=stream)
    checked(_driver._module().cuGraphDestroy(cuda.end_capture(stream)))
    wait_until(lambda: dlwrap.stats().graphs == 0)
    buffer.close(SECONDS)
    cuda.destroy_stream(stream)


def fail_to_keep_alive(cuda):
    stream, buffers = SimulatedStream(cuda, blocking=False), [dlwrap.wrap(cuda.host_array(64)) for _ in range(2)]
    cuda.begin_capture(stream.ptr, "relaxed")
    cuda.fail("cuGraphRetainUserObject", 1, nth=2)
    with pytest.raises(dlwrap.CudaError):
        dlwrap.keep_alive(stream, *buffers)
    cuda.clear_failures()
    checked(_driver._module().cuGraphDestroy(cuda.end_capture(stream.ptr)))
    wait_until(lambda: dlwrap.stats().graphs == 0)


def ask_for_support(cuda):
    dlwrap.support()


def copy_as_the_self_test_does(cuda):
    array = cuda.host_array(64, np.uint8)
    with _driver.primary_context(0):
        scratch = _driver.allocate(64)
        _driver.fill(scratch, 9, 64)
        _driver.copy(array.ctypes.data, scratch, 64)
        _driver.free(scratch)
    assert (array == 9).all()


OPERATIONS = {
    function.__name__: function
    for function in (
        register_and_close,
        register_and_drop,
        share_a_pin,
        wrap_for_a_device,
        release_after_an_event,
        release_after_the_events_of_an_owned_stream,
        release_after_a_wait_for_the_device,
        synchronize,
        adopt,
        fail_to_record,
        read_the_pointer,
        export_beside_another_context,
        export_during_a_capture,
        fail_to_keep_alive,
        ask_for_support,
        copy_as_the_self_test_does,
    )
}


@pytest.fixture
def recorded(cuda):
    """Which driver functions each operation calls, and which a wrap calls."""
    return {name: record(cuda, operation) for name, operation in OPERATIONS.items()}


def record(cuda, operation):
    dlwrap.reclaim(SECONDS)
    forget_what_is_cached()
    cuda.clear_calls()
    operation(cuda)
    dlwrap.reclaim(SECONDS)
    return {call.function for call in cuda.calls()}


def names_of_held_locks():
    """Try each lock, from a thread that has none."""

    def find():
        manager = _lifetime.manager()
        locks = {name: operator.attrgetter(path)(manager) for name, path in LOCKS.items()}
        return [name for name, lock in locks.items() if not _try(lock)]

    return Thread(find).result()


def _try(lock):
    # A thread that only looks something up has it for a moment.
    free = lock.acquire(timeout=0.5)
    if free:
        lock.release()
    return free


def reaches(cuda, function, thread):
    """Whether the thread has made that call, or has ended."""
    return not thread.is_alive() or any(call.thread_id == thread.native_id for call in cuda.calls(function))


def test_a_lock_that_another_thread_has_is_found():
    manager = _lifetime.manager()
    for name, path in LOCKS.items():
        with operator.attrgetter(path)(manager):
            assert name in names_of_held_locks()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_gil_is_free_in_every_driver_call_of(cuda, operation):
    dlwrap.support()  # the bindings hold it while they look up all functions, once
    cuda.clear_calls()
    OPERATIONS[operation](cuda)
    calls = cuda.calls()
    assert len(calls) > 3
    assert {call.function for call in calls if call.gil_held} <= QUICK


@pytest.mark.parametrize("function", DRIVER_FUNCTIONS)
def test_nothing_of_dlwrap_is_locked_during(cuda, function, recorded):
    concerned = [name for name, calls in recorded.items() if function in calls]
    assert concerned, "no operation above makes this call: add one"
    for name in concerned:
        parent = cuda.host_array(256)
        with dlwrap.pin(parent):
            released = dlwrap.wrap(parent[64:])
            dlwrap.reclaim(SECONDS)
            forget_what_is_cached()
            with held(cuda, function) as wait_until_held:
                slow = Thread(OPERATIONS[name], cuda)
                wait_until_held()
                assert names_of_held_locks() == [], f"in {name}"
                assert dlwrap.stats().live >= 2
                dlwrap.configure(linger_seconds=0)
                del released
                others = [Thread(dlwrap.wrap, parent[:32]), Thread(dlwrap.wrap, cuda.host_array(64))]
                for other in others:
                    # It is done, or waits for the same call itself: nothing else holds it up.
                    wait_until(lambda other=other: reaches(cuda, function, other))
            slow.result()
            for other in others:
                other.result().close(SECONDS)


# ---- waiting ----


def test_making_the_stream_that_comes_after_the_legacy_one_holds_up_no_release_on_others(cuda):
    parent = cuda.host_array(64)
    with dlwrap.pin(parent):
        _driver._after_legacy.clear()
        on_legacy, on_another = dlwrap.wrap(parent[:32]), dlwrap.wrap(parent[32:])
        on_legacy.record_stream(1)
        on_another.record_stream(SimulatedStream(cuda, blocking=False))
        with held(cuda, "cuStreamCreate") as wait_until_held:
            closing = Thread(on_legacy.close, SECONDS)
            wait_until_held()
            on_another.close(SECONDS)
            assert closing.is_alive()
        closing.result()


# ---- registering ----


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuMemHostGetDevicePointer"])
def test_while_memory_is_registered_python_runs_and_others_wrap_and_release(cuda, function):
    # What others wrap meanwhile is registered already, or they would need the same call.
    pinned = cuda.host_array(64)
    with dlwrap.pin(pinned):
        elsewhere = dlwrap.wrap(cuda.host_array(64))
        elsewhere.record_stream(1)
        with held(cuda, function) as wait_until_held:
            slow = Thread(dlwrap.wrap, cuda.host_array(64))
            wait_until_held()
            dlwrap.wrap(pinned).close(SECONDS)
            elsewhere.close(SECONDS)
            assert slow.is_alive()
        slow.result().close(SECONDS)


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuMemHostGetDevicePointer"])
def test_a_wrap_of_memory_that_another_thread_registers_waits_for_that_and_shares_it(cuda, function):
    array, pinned = cuda.host_array(64), cuda.host_array(64)
    with dlwrap.pin(pinned):
        cuda.clear_calls()
        with held(cuda, function) as wait_until_held:
            first = Thread(dlwrap.wrap, array)
            wait_until_held()
            second = Thread(dlwrap.wrap, array[8:])
            wait_until(lambda: waits_in(second, "_wait_for_change"))
            dlwrap.wrap(pinned).close(SECONDS)
            assert cuda.waiting(function) == 1
        buffers = [thread.result() for thread in (first, second)]
        assert cuda.count("cuMemHostRegister") == 1
        for buffer in buffers:
            buffer.close(SECONDS)


def test_a_wrap_that_waited_for_a_registration_that_fails_makes_its_own(cuda):
    array = cuda.host_array(64)
    cuda.fail("cuMemHostRegister", 999)
    with held(cuda, "cuMemHostRegister") as wait_until_held:
        first = Thread(dlwrap.wrap, array)
        wait_until_held()
        second = Thread(dlwrap.wrap, array)
        wait_until(lambda: waits_in(second, "_wait_for_change"))
    with pytest.raises(dlwrap.CudaError):
        first.result()
    second.result().close(SECONDS)


# ---- unregistering ----


@contextlib.contextmanager
def blocked_unregister(cuda, **options):
    """Have dlwrap unregister an array until the block ends; gives the array."""
    array = cuda.host_array(64)
    with held(cuda, "cuMemHostUnregister") as wait_until_held:
        dlwrap.wrap(array, **options)
        wait_until_held()
        yield array


@pytest.fixture
def unregistering(cuda):
    """An array that dlwrap is unregistering, for as long as the test runs or until it resumes."""
    with blocked_unregister(cuda) as array:
        yield array


class Kept:
    """An array whose end can be seen."""

    def __init__(self, array):
        self.array = array
        self._alive = weakref.ref(array)

    def give(self):
        array, self.array = self.array, None
        return array

    @property
    def alive(self):
        return self._alive() is not None


@pytest.mark.parametrize("stream", [None, 1], ids=["never used", "after an event"])
def test_a_blocked_unregister_delays_no_release_inside_another_registration(cuda, stream):
    parent = cuda.host_array(64)
    with dlwrap.pin(parent), blocked_unregister(cuda):
        view = Kept(parent[8:])
        buffer = dlwrap.wrap(view.give())
        if stream is not None:
            take(buffer.__dlpack__(stream=stream)).delete()
        del buffer
        wait_until(lambda: not view.alive)


@pytest.mark.parametrize("stream", [None, 1], ids=["never used", "after an event"])
def test_a_blocked_unregister_delays_no_release_of_pageable_memory(cuda, stream):
    cuda.configure(pageable=True)
    with blocked_unregister(cuda, memory="pinned"):
        array = Kept(cuda.host_array(64))
        buffer = dlwrap.wrap(array.give())
        if stream is not None:
            take(buffer.__dlpack__(stream=stream)).delete()
        buffer.close(SECONDS)
        del buffer
        wait_until(lambda: not array.alive)


@pytest.mark.parametrize("stream", [None, 1], ids=["never used", "after an event"])
def test_a_blocked_unregister_delays_no_release_of_adopted_memory(cuda, stream):
    owner = cuda.host_array(64)
    with _driver.primary_context(0):
        _driver.register(owner.ctypes.data, owner.nbytes)
    with blocked_unregister(cuda):
        view = Kept(owner[8:])
        buffer = dlwrap.wrap(view.give())
        if stream is not None:
            take(buffer.__dlpack__(stream=stream)).delete()
        buffer.close(SECONDS)
        del buffer
        wait_until(lambda: not view.alive)
    with _driver.primary_context(0):
        _driver.unregister(owner.ctypes.data)


def test_while_memory_is_unregistered_other_memory_is_wrapped_exported_and_synchronized(cuda, unregistering):
    array = cuda.host_array(64)
    buffer = dlwrap.wrap(array)
    take(buffer.__dlpack__(stream=1)).delete()
    buffer.synchronize()
    np.asarray(buffer)[:] = 3
    assert array[0] == 3


def test_a_wrap_of_memory_that_is_unregistered_waits_for_that_and_registers_again(cuda, unregistering):
    cuda.clear_calls()
    again = Thread(dlwrap.wrap, unregistering)
    wait_until(lambda: waits_in(again, "_wait_for_change"))
    Thread(dlwrap.wrap, cuda.host_array(64)).result()
    assert again.is_alive()
    cuda.resume("cuMemHostUnregister")
    again.result().close(SECONDS)
    assert cuda.count("cuMemHostRegister") == 2


@pytest.mark.parametrize("wait", [lambda: dlwrap.reclaim(0), lambda: dlwrap.reclaim(0.05)], ids=["0 s", "0.05 s"])
def test_reclaim_with_a_timeout_gives_up_on_a_blocked_unregister_and_may_be_called_again(cuda, unregistering, wait):
    for _ in range(2):
        with pytest.raises(TimeoutError):
            wait()
    cuda.resume("cuMemHostUnregister")
    dlwrap.reclaim(SECONDS)
    assert cuda.registrations == []


@pytest.mark.parametrize("function", ["cuMemHostUnregister", "cuEventCreate", "cuEventRecord", "cuEventQuery"])
def test_close_with_a_timeout_gives_up_on_a_stuck_call_and_may_be_called_again(cuda, function):
    buffer = export(cuda, stream=1)
    with held(cuda, function) as wait_until_held:
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"close\(\)"):
                buffer.close(0.05)
        wait_until_held()
        assert buffer.closed
    buffer.close(SECONDS)
    assert cuda.registrations == []


def test_one_close_that_gave_up_takes_nothing_from_another_that_waits(cuda):
    buffer = export(cuda, stream=1)
    with held(cuda, "cuMemHostUnregister") as wait_until_held:
        patient = Thread(buffer.close, SECONDS)
        wait_until_held()
        with pytest.raises(TimeoutError):
            buffer.close(0)
    patient.result()


# ---- the thread that waits for events ----

WHILE_WAITING = ["cuEventCreate", "cuStreamIsCapturing", "cuEventRecord", "cuEventQuery", "cuEventDestroy"]


@pytest.mark.parametrize("function", WHILE_WAITING)
def test_while_an_event_call_takes_long_others_wrap_export_and_drop(cuda, function):
    # Their release has to wait: the thread that would begin it is the one that is held.
    with held(cuda, function) as wait_until_held:
        export(cuda, stream=1)
        wait_until_held()
        buffers = Thread(lambda: [export(cuda, stream=1) for _ in range(20)]).result()
        buffers.clear()
        assert cuda.waiting(function) == 1
    dlwrap.reclaim(SECONDS)
    assert cuda.registrations == []


@pytest.mark.parametrize("function", WHILE_WAITING)
def test_while_an_event_call_takes_long_what_is_due_is_unregistered(cuda, function):
    dlwrap.configure(linger_seconds=float("inf"))
    dlwrap.wrap(cuda.host_array(64))
    wait_until(lambda: dlwrap.stats().lingering)
    with held(cuda, function) as wait_until_held:
        used = export(cuda, stream=1)
        del used
        wait_until_held()
        dlwrap.configure(linger_seconds=0)
        wait_until(lambda: dlwrap.stats().lingering == 0 and len(cuda.registrations) == 1)
    dlwrap.reclaim(SECONDS)


def test_a_device_that_is_never_idle_delays_no_release_after_an_event(cuda):
    busy, other = cuda.create_stream(blocking=False), cuda.host_array(64)
    parent = cuda.host_array(64)
    with dlwrap.pin(parent), dlwrap.pin(other):
        cuda.hold(busy)
        cuda.launch(busy, other)
        stuck = export(cuda, stream=2)
        del stuck
        wait_until(lambda: cuda.count("cuMemHostUnregister"))
        used = Kept(parent[8:])
        buffer = dlwrap.wrap(used.give())
        take(buffer.__dlpack__(stream=1)).delete()
        buffer.close(SECONDS)
        del buffer
        wait_until(lambda: not used.alive)
        cuda.let_go(busy)
    cuda.destroy_stream(busy)


# ---- an interrupt ----


def waits_in(thread, function):
    """Whether the thread blocks in a lock of Python's, called by a function of dlwrap."""

    def names():
        frame = sys._current_frames().get(thread.ident)
        position = [] if frame is None else [frame.f_lasti]
        while frame is not None:
            position.append(frame.f_code.co_name)
            frame = frame.f_back
        return position

    before = names()
    time.sleep(5e-3)  # a thread that blocks is at the same place still
    return function in before and "wait" in before and before == names()


def interrupt_when(condition, then=lambda: None):
    """Have another thread send this one a SIGINT, as Ctrl-C does."""
    main = threading.main_thread()

    def send():
        wait_until(condition)
        signal.pthread_kill(main.ident, signal.SIGINT)
        then()

    return Thread(send)


@contextlib.contextmanager
def interrupted_in(function):
    """Interrupt the block while dlwrap's function waits; a block that is not interrupted fails."""
    begun = time.monotonic()
    sender = interrupt_when(lambda: waits_in(threading.main_thread(), function))
    with pytest.raises(KeyboardInterrupt):
        yield
    assert time.monotonic() - begun < SECONDS
    sender.result()


@pytest.fixture
def in_use(cuda):
    """A buffer that the GPU uses; the end of the test lets it go."""
    buffer = export(cuda, stream=1)
    cuda.hold(1)
    cuda.launch(1, buffer.array)
    yield buffer
    cuda.let_go(1)


@pytest.mark.parametrize("timeout", [None, 3600])
def test_an_interrupt_ends_close_which_may_be_called_again(cuda, in_use, timeout):
    with interrupted_in("close"):
        in_use.close(timeout)
    assert in_use.closed
    cuda.let_go(1)
    in_use.close(SECONDS)
    assert cuda.registrations == []


@pytest.mark.parametrize("timeout", [None, 3600])
def test_an_interrupt_ends_reclaim_which_may_be_called_again(cuda, timeout):
    array = cuda.host_array(64)
    buffer = dlwrap.wrap(array)
    buffer.record_stream(1)
    cuda.hold(1)
    cuda.launch(1, array)
    del buffer
    with interrupted_in("reclaim"):
        dlwrap.reclaim(timeout)
    assert dlwrap.stats().pending == 1
    cuda.let_go(1)
    dlwrap.reclaim(SECONDS)
    assert cuda.registrations == []


@pytest.mark.parametrize("use", ["synchronize", "__array__", "a CPU view"])
def test_an_interrupt_ends_a_wait_for_the_work_and_the_buffer_stays_usable(cuda, in_use, use):
    calls = {
        "synchronize": in_use.synchronize,
        "__array__": in_use.__array__,
        "a CPU view": lambda: in_use.__dlpack__(dl_device=(1, 0)),
    }
    with interrupted_in("synchronize"):
        calls[use]()
    assert in_use.exports == 0
    cuda.let_go(1)
    calls[use]()
    in_use.close(SECONDS)


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuMemHostUnregister"])
def test_an_interrupt_ends_a_wrap_that_waits_for_another_thread(cuda, function):
    array = cuda.host_array(64)
    with held(cuda, function) as wait_until_held:
        other = Thread(lambda: dlwrap.wrap(array).close(SECONDS))
        wait_until_held()
        with interrupted_in("_wait_for_change"):
            dlwrap.wrap(array)
    other.result()
    dlwrap.wrap(array).close(SECONDS)
    assert cuda.registrations == []


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuMemHostGetDevicePointer"])
def test_an_interrupt_during_a_registration_leaves_nothing_page_locked(cuda, function):
    # Python sees the signal when the call returns: the memory is page-locked by then, and nobody knows its wrapper.
    array = cuda.host_array(64)
    cuda.pause(function)
    sender = interrupt_when(lambda: cuda.waiting(function), then=lambda: cuda.resume(function))
    with pytest.raises(KeyboardInterrupt):
        dlwrap.wrap(array)
    sender.result()
    dlwrap.reclaim(SECONDS)
    assert cuda.registrations == []
    dlwrap.wrap(array).close(SECONDS)


def test_an_interrupt_of_a_failing_registration_leaves_what_somebody_else_page_locked(cuda):
    array = cuda.host_array(64)
    with _driver.primary_context(0):
        _driver.register(array.ctypes.data, array.nbytes)
    cuda.pause("cuMemHostRegister")
    sender = interrupt_when(lambda: cuda.waiting("cuMemHostRegister"), then=lambda: cuda.resume("cuMemHostRegister"))
    with pytest.raises(KeyboardInterrupt):
        dlwrap.wrap(array)
    sender.result()
    assert len(cuda.registrations) == 1
    with _driver.primary_context(0):
        _driver.unregister(array.ctypes.data)
