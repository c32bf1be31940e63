"""What the driver does, undocumented, that dlwrap's design relies on; asked of the driver itself, not through dlwrap.

A fact that the design needs is asserted. One that was never settled is measured: printed and recorded as a FACT.
"""

from __future__ import annotations

import textwrap
import threading
import time

import _cuda
import numpy as np
import pytest
from _cuda import (
    CAPTURE_MODES,
    HOST_MEMORY_ALREADY_REGISTERED,
    HOST_MEMORY_NOT_REGISTERED,
    INVALID_VALUE,
    LEGACY_STREAM,
    PER_THREAD_STREAM,
    STREAM_CAPTURE_UNSUPPORTED,
    Capture,
    Thread,
    call,
    code,
)
from _script import start_script


def in_primary_context(function):
    with _cuda.current():
        return function()


def barrier():
    """Register and unregister a page of our own, as dlwrap waits for a device."""
    with _cuda.relaxed(), _cuda.registered(_cuda.page_of_our_own()):
        pass


def waits_for(*latches):
    """Tell whether the barrier returned only after all kernels had finished; opens the latches meanwhile, in order."""
    begun = threading.Event()

    def wait():
        with _cuda.current():
            begun.set()
            barrier()
            return all(latch.finished for latch in latches)

    waiting = Thread(wait)
    assert begun.wait(10)
    for latch in latches:
        waiting.goes_on()
        assert latch.holds
        latch.open()
    return waiting.result()


# ---- calls that dlwrap makes with the GIL held ----


def test_what_the_driver_keeps_is_told_while_it_waits_elsewhere(stream, latch, fact):
    # Unregistering waits for the kernel meanwhile, and blocks launches.
    attribute = _cuda.bindings().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
    calls = [("cuCtxGetCurrent",), ("cuCtxGetDevice",), ("cuDeviceGetAttribute", attribute, 0)]
    latch.launch(stream)
    latch.wait_until_started()
    waiting = Thread(lambda: in_primary_context(barrier))
    waiting.goes_on()
    longest = 0.0
    for each in calls * 1000:
        began = time.perf_counter()
        call(*each)
        longest = max(longest, time.perf_counter() - began)
    assert latch.holds
    latch.open()
    waiting.result()
    names = ", ".join(each[0] for each in calls[:3])
    fact(f"{len(calls) * 1000} calls of {names} beside a blocked unregister: {longest * 1e6:.0f} us at most")
    assert longest < 0.05


# ---- the device-wide wait ----


@pytest.mark.parametrize("flags", [_cuda.BLOCKING, _cuda.NON_BLOCKING], ids=["blocking", "non-blocking"])
def test_unregistering_waits_for_a_stream(latch, flags):
    stream = _cuda.create_stream(flags)
    latch.launch(stream)
    latch.wait_until_started()
    assert waits_for(latch)
    call("cuStreamDestroy", stream)


@pytest.mark.parametrize("flags", [_cuda.BLOCKING, _cuda.NON_BLOCKING], ids=["blocking", "non-blocking"])
def test_unregistering_waits_for_a_destroyed_stream(latch, flags):
    stream = _cuda.create_stream(flags)
    latch.launch(stream)
    latch.wait_until_started()
    call("cuStreamDestroy", stream)
    assert waits_for(latch)


def test_unregistering_waits_for_the_legacy_stream(latch):
    latch.launch(LEGACY_STREAM)
    latch.wait_until_started()
    assert waits_for(latch)


def test_unregistering_waits_for_what_is_queued_behind_a_running_kernel(stream, new_latch):
    first, second = new_latch(), new_latch()
    first.launch(stream)
    second.launch(stream)
    first.wait_until_started()
    assert waits_for(first, second)


def test_unregistering_waits_for_the_per_thread_stream_of_another_thread(latch):
    launched, over = threading.Event(), threading.Event()

    def use():
        with _cuda.current():
            latch.launch(PER_THREAD_STREAM)
            launched.set()
            over.wait(40)

    thread = Thread(use)
    assert launched.wait(10)
    latch.wait_until_started()
    try:
        assert waits_for(latch)
    finally:
        over.set()
        thread.result()


def test_unregistering_and_a_stream_of_a_second_context(kernels, new_latch, fact):
    def measure():
        context = _cuda.create_context()
        try:
            stream = _cuda.create_stream()
            kernels.warm_up(stream, context)
            latch = new_latch(context=context)
            latch.launch(stream)
            latch.wait_until_started()
            waited = waits_for(latch)
            latch.wait()
            call("cuStreamDestroy", stream)
            return waited
        finally:
            call("cuCtxDestroy", context)

    waited = Thread(measure).result()
    fact(f"unregistering in the primary context waits for a stream of a second context: {waited}")


def test_the_handle_of_a_destroyed_context_must_not_be_touched(fact):
    """In a program of its own, because it may well end it."""
    code = """
        import sys
        import _cuda
        _cuda.call("cuInit", 0)
        _cuda.call("cuCtxSetCurrent", _cuda.primary_context())
        for _ in range(20):
            dead = _cuda.create_context()
            _cuda.call("cuCtxDestroy", dead)
            sys.stdout.write(f"push {_cuda.code('cuCtxPushCurrent', dead)}, ")
            sys.stdout.write(f"pop {_cuda.code('cuCtxPopCurrent')}, ")
            sys.stdout.flush()
    """
    done = start_script(code)
    fact(f"pushing and popping a destroyed context 20 times: status {done.returncode}, results {done.stdout[:60]}...")


def test_unregistering_and_a_stream_of_a_green_context(kernels, new_latch, fact):
    with _cuda.green_context() as (context, stream):
        kernels.warm_up(stream, context)
        latch = new_latch(context=context)
        latch.launch(stream)
        latch.wait_until_started()
        waited = waits_for(latch)
        latch.wait()
    fact(f"unregistering in the primary context waits for a stream of a green context: {waited}")


def test_context_of_a_stream_of_a_green_context(fact):
    with _cuda.green_context() as (context, stream):
        result, found = _cuda.bindings().cuStreamGetCtx(stream)
    names = {int(_cuda.primary_context()): "the primary context", int(context): "the green context's own"}
    answer = names.get(int(found), "yet another") if int(result) == 0 else f"the error {result.name}"
    fact(f"cuStreamGetCtx of a green context's stream gives {answer}")


@pytest.mark.parametrize("how", ["cuMemHostRegister", "cuMemHostUnregister"])
def test_launches_of_other_threads(kernels, stream, new_latch, fact, how):
    """Registering lets them through while a kernel runs; unregistering is said to hold them up."""
    latch, second_stream, page = new_latch(), _cuda.create_stream(), _cuda.page_of_our_own()
    calls = {
        "cuMemHostRegister": (_cuda.address(page), page.nbytes, _cuda.PORTABLE_DEVICEMAP),
        "cuMemHostUnregister": (_cuda.address(page),),
    }
    if how == "cuMemHostUnregister":
        call("cuMemHostRegister", *calls["cuMemHostRegister"])
    latch.launch(stream)
    latch.wait_until_started()
    acting = Thread(lambda: in_primary_context(lambda: call(how, *calls[how])))
    waits = acting.goes_on()
    launching = Thread(lambda: kernels.add(second_stream, 0, 0, 0.0))
    held_up = launching.goes_on()
    assert latch.holds
    latch.open()
    launching.result()
    acting.result()
    if how == "cuMemHostRegister":
        call("cuMemHostUnregister", *calls["cuMemHostUnregister"])
    call("cuStreamDestroy", second_stream)
    fact(f"{how} beside a running kernel waits: {waits}, holds up a launch of another thread: {held_up}")
    assert waits == (how == "cuMemHostUnregister")
    assert not (how == "cuMemHostRegister" and held_up)


# ---- stream captures ----


@pytest.mark.parametrize("mode", CAPTURE_MODES)
@pytest.mark.parametrize("thread", ["another", "its own"])
def test_relaxed_barrier_breaks_no_capture(kernels, stream, mode, thread):
    with Capture(stream, mode) as capture:
        kernels.add(stream, 0, 0, 0.0)
        if thread == "another":
            Thread(lambda: in_primary_context(barrier)).result()
        else:
            barrier()
    capture.replay()


@pytest.mark.parametrize("mode", CAPTURE_MODES)
@pytest.mark.parametrize("thread", ["another", "its own"])
def test_context_of_a_capturing_stream_can_be_asked_for(kernels, stream, mode, thread):
    def ask():
        with _cuda.relaxed():
            return int(call("cuStreamGetCtx", stream))

    with Capture(stream, mode) as capture:
        kernels.add(stream, 0, 0, 0.0)
        found = Thread(lambda: in_primary_context(ask)).result() if thread == "another" else ask()
    capture.replay()
    assert found == int(_cuda.primary_context())


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_event_recorded_on_a_capturing_stream_and_never_asked_does_no_harm(kernels, stream, mode):
    def record():
        with _cuda.relaxed():
            event = call("cuEventCreate", 2)
            call("cuEventRecord", event, stream)
            call("cuEventDestroy", event)

    with Capture(stream, mode) as capture:
        kernels.add(stream, 0, 0, 0.0)
        Thread(lambda: in_primary_context(record)).result()
        kernels.add(stream, 0, 0, 0.0)
    capture.replay()


def test_barrier_of_a_thread_that_is_not_relaxed_breaks_a_global_capture(kernels, stream):
    """The reason why dlwrap's threads are relaxed, and why it exchanges the mode in wrap()."""

    def careless():
        page = _cuda.page_of_our_own()
        result = code("cuMemHostRegister", _cuda.address(page), page.nbytes, _cuda.PORTABLE_DEVICEMAP)
        if result == 0:
            call("cuMemHostUnregister", _cuda.address(page))
        return result

    def capture():
        with Capture(stream, "global"):
            kernels.add(stream, 0, 0, 0.0)
            results.append(Thread(lambda: in_primary_context(careless)).result())

    results = []
    with pytest.raises(AssertionError, match="the capture was broken"):
        capture()
    assert results == [STREAM_CAPTURE_UNSUPPORTED]


# ---- page-locked ranges ----


@pytest.mark.parametrize("offset", [0, 4, 1000, 4092])
def test_registered_memory_tells_its_range_at_every_pointer(offset):
    array = np.zeros(4096, np.uint8)
    with _cuda.registered(array):
        start = _cuda.address(array)
        assert _cuda.pointer_attribute("RANGE_START_ADDR", start + offset) == start
        assert _cuda.pointer_attribute("RANGE_SIZE", start + offset) == array.nbytes
        first = int(call("cuMemHostGetDevicePointer", start, 0))
        assert int(call("cuMemHostGetDevicePointer", start + offset, 0)) == first + offset


@pytest.mark.parametrize("offset", [0, 4, 1000, 4092])
def test_allocated_memory_tells_its_range_at_every_pointer(offset):
    nbytes = 4096
    start = int(call("cuMemHostAlloc", nbytes, _cuda.PORTABLE_DEVICEMAP))
    try:
        assert _cuda.pointer_attribute("RANGE_START_ADDR", start + offset) == start
        assert _cuda.pointer_attribute("RANGE_SIZE", start + offset) >= nbytes
        first = int(call("cuMemHostGetDevicePointer", start, 0))
        assert int(call("cuMemHostGetDevicePointer", start + offset, 0)) == first + offset
    finally:
        call("cuMemFreeHost", start)


def test_pageable_memory_has_no_range():
    array = np.zeros(4096, np.uint8)
    attribute = _cuda.bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
    assert code("cuPointerGetAttribute", attribute, _cuda.address(array)) == INVALID_VALUE


@pytest.mark.parametrize(
    ("start", "stop"),
    [(100, 200), (120, 180), (50, 300), (50, 150), (199, 201)],
    ids=["same", "inside", "around", "across the start", "the last byte"],
)
def test_overlapping_registration_is_refused(start, stop):
    array = np.zeros(4096, np.uint8)
    with _cuda.registered(array[100:200]):
        result = code("cuMemHostRegister", _cuda.address(array) + start, stop - start, _cuda.PORTABLE_DEVICEMAP)
    assert result == HOST_MEMORY_ALREADY_REGISTERED


def test_neighbours_on_one_page_can_both_be_registered():
    array = np.zeros(4096, np.uint8)
    with _cuda.registered(array[101:200]), _cuda.registered(array[200:300]):
        assert _cuda.pointer_attribute("RANGE_SIZE", _cuda.address(array) + 150) == 99
        assert _cuda.pointer_attribute("RANGE_SIZE", _cuda.address(array) + 250) == 100


def test_registering_allocated_memory_is_refused():
    start = int(call("cuMemHostAlloc", 4096, _cuda.PORTABLE_DEVICEMAP))
    try:
        result = code("cuMemHostRegister", start, 4096, _cuda.PORTABLE_DEVICEMAP)
        assert result in {HOST_MEMORY_ALREADY_REGISTERED, INVALID_VALUE}
    finally:
        call("cuMemFreeHost", start)


def test_unregistering_needs_the_exact_start():
    array = np.zeros(4096, np.uint8)
    with _cuda.registered(array):
        assert code("cuMemHostUnregister", _cuda.address(array) + 64) == INVALID_VALUE


def test_unregistering_what_was_never_registered_is_refused():
    array = np.zeros(4096, np.uint8)
    assert code("cuMemHostUnregister", _cuda.address(array)) == HOST_MEMORY_NOT_REGISTERED


def test_copy_across_two_registrations_is_refused():
    """The reason why the memory that owns the data is page-locked, not the slice."""
    array = np.zeros(4096, np.uint8)
    device = call("cuMemAlloc", array.nbytes)
    with _cuda.registered(array[:2048]):
        crossing = code("cuMemcpyHtoD", device, _cuda.address(array), 4096)
        inside = code("cuMemcpyHtoD", device, _cuda.address(array), 2048)
    call("cuMemFree", device)
    assert (crossing, inside) == (INVALID_VALUE, 0)


# ---- captured graphs; in programs of their own, because a driver that does not refuse may end them ----

GRAPH_PROLOGUE = """
    import ctypes
    import _cuda
    _cuda.call("cuInit", 0)
    _cuda.call("cuCtxSetCurrent", _cuda.primary_context())
    stream, joined = _cuda.create_stream(), _cuda.create_stream()
    event, memory = _cuda.call("cuEventCreate", 0), _cuda.call("cuMemAlloc", 64)
    def begin():
        _cuda.call("cuStreamBeginCapture", stream, _cuda.capture_mode("relaxed"))
    def end():
        result, graph = _cuda.bindings().cuStreamEndCapture(stream)
        return int(result)
"""

QUESTIONS = {
    "cuGraphReleaseUserObject of more references than the graph has": """
        destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _argument: None)
        address = ctypes.cast(destructor, ctypes.c_void_p).value
        user_object = _cuda.call("cuUserObjectCreate", 0, _cuda.bindings().CUhostFn(address), 1, 1)
        graph = _cuda.call("cuGraphCreate", 0)
        _cuda.call("cuGraphRetainUserObject", graph, user_object, 1, 0)
        print("result", _cuda.code("cuGraphReleaseUserObject", graph, user_object, 2))
    """,
    "cuGraphDestroy of the graph of an open capture": """
        begin()
        graph = _cuda.call("cuStreamGetCaptureInfo", stream)[2]
        print("result", _cuda.code("cuGraphDestroy", graph), "and the capture ends with", end())
    """,
    "destroying a stream that has joined a capture back": """
        begin()
        _cuda.call("cuEventRecord", event, stream)
        _cuda.call("cuStreamWaitEvent", joined, event, 0)
        _cuda.call("cuEventRecord", event, joined)
        _cuda.call("cuStreamWaitEvent", stream, event, 0)
        print("result", _cuda.code("cuStreamDestroy", joined), "and the capture ends with", end())
    """,
    "destroying a stream whose captured work has not joined back": """
        begin()
        _cuda.call("cuEventRecord", event, stream)
        _cuda.call("cuStreamWaitEvent", joined, event, 0)
        _cuda.call("cuMemsetD8Async", memory, 0, 64, joined)
        print("result", _cuda.code("cuStreamDestroy", joined), "and the capture ends with", end())
    """,
    "cuStreamIsCapturing and cuStreamGetCaptureInfo of the legacy stream beside a capture of a blocking one": """
        stream = _cuda.create_stream(_cuda.BLOCKING)
        begin()
        asked = [_cuda.code(name, 1) for name in ("cuStreamIsCapturing", "cuStreamGetCaptureInfo")]
        print("results", asked, "and the capture ends with", end())
    """,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_the_driver_answers_about_graphs(fact, question):
    done = start_script(textwrap.dedent(GRAPH_PROLOGUE) + textwrap.dedent(QUESTIONS[question]))
    answer = done.stdout.strip() or (done.stderr.strip().splitlines() or ["nothing"])[-1]
    fact(f"{question}: {answer}" + (f", and the program ends with {done.returncode}" if done.returncode else ""))


# ---- waiting for the legacy stream without touching it ----

NOT_READY = 600


def wait_for(event):
    """Give what the event's query says in the end."""
    deadline = time.monotonic() + 20
    while (result := code("cuEventQuery", event)) == NOT_READY and time.monotonic() < deadline:
        time.sleep(1e-4)
    return result


def record_on_a_stream_of_our_own():
    """Record an event on a blocking stream that is made for it and destroyed at once."""
    event, ours = call("cuEventCreate", 3), _cuda.create_stream(_cuda.BLOCKING)
    call("cuEventRecord", event, ours)
    call("cuStreamDestroy", ours)
    return event


def test_event_on_a_new_blocking_stream_comes_after_the_legacy_stream(latch):
    latch.launch(LEGACY_STREAM)
    latch.wait_until_started()
    event = record_on_a_stream_of_our_own()
    assert code("cuEventQuery", event) == NOT_READY
    time.sleep(0.2)
    assert code("cuEventQuery", event) == NOT_READY
    assert latch.holds
    latch.open()
    assert wait_for(event) == 0
    assert latch.finished
    call("cuEventDestroy", event)


def test_event_on_a_new_blocking_stream_comes_after_what_is_queued_on_the_legacy_stream(kernels, new_latch):
    first, second = new_latch(), new_latch()
    first.launch(LEGACY_STREAM)
    second.launch(LEGACY_STREAM)
    first.wait_until_started()
    event = record_on_a_stream_of_our_own()
    first.open()
    second.wait_until_started()
    time.sleep(0.1)
    assert code("cuEventQuery", event) == NOT_READY
    second.open()
    assert wait_for(event) == 0
    assert second.finished
    call("cuEventDestroy", event)


def test_event_on_a_new_blocking_stream_does_not_wait_for_other_streams(new_latch):
    for flags in (_cuda.BLOCKING, _cuda.NON_BLOCKING):
        latch, stream = new_latch(), _cuda.create_stream(flags)
        latch.launch(stream)
        latch.wait_until_started()
        event = record_on_a_stream_of_our_own()
        assert wait_for(event) == 0
        assert latch.holds
        latch.open()
        latch.wait()
        call("cuEventDestroy", event)
        call("cuStreamDestroy", stream)


@pytest.mark.parametrize("mode", CAPTURE_MODES)
@pytest.mark.parametrize("flags", [_cuda.BLOCKING, _cuda.NON_BLOCKING], ids=["blocking", "non-blocking"])
def test_event_on_a_new_blocking_stream_beside_a_capture(kernels, latch, mode, flags):
    captured = _cuda.create_stream(flags)
    latch.launch(LEGACY_STREAM)
    latch.wait_until_started()

    def record_and_wait():
        with _cuda.current(), _cuda.relaxed():
            event = record_on_a_stream_of_our_own()
            first = code("cuEventQuery", event)
            latch.open()
            answers = first, wait_for(event), latch.finished
            call("cuEventDestroy", event)
            return answers

    with Capture(captured, mode) as capture:
        kernels.add(captured, 0, 0, 0.0)
        assert Thread(record_and_wait).result() == (NOT_READY, 0, True)
        kernels.add(captured, 0, 0, 0.0)
    capture.replay()
    call("cuStreamDestroy", captured)


def test_how_many_streams_can_be_made_beside_a_running_kernel(latch, fact):
    """In vain for one stream for each event: making many waits for the device."""
    latch.launch(LEGACY_STREAM)
    latch.wait_until_started()

    def make():
        events = 0
        while latch.holds and events < 200:
            call("cuEventDestroy", record_on_a_stream_of_our_own())
            events += 1
        return events

    making = Thread(lambda: in_primary_context(make))
    waits = making.goes_on(3)
    latch.open()
    fact(f"making and destroying 200 streams beside a running kernel waits for it: {waits}")
    making.result()


@pytest.mark.parametrize("flags", [2, 3], ids=["no timing", "blocking sync, no timing"])
def test_how_many_events_a_stream_takes_beside_a_running_kernel(latch, stream, fact, flags):
    """Why dlwrap's events are without blocking sync: recording must never wait for the program's work."""
    latch.launch(stream)
    latch.wait_until_started()
    recorded = []

    def record():
        while latch.holds and len(recorded) < 2000:
            recorded.append(call("cuEventCreate", flags))
            call("cuEventRecord", recorded[-1], stream)

    recording = Thread(lambda: in_primary_context(record))
    waits = recording.goes_on(2)
    fact(f"events with flags {flags} behind a running kernel: {len(recorded)}, and the next waits for it: {waits}")
    latch.open()
    recording.result()
    latch.wait()
    for event in recorded:
        call("cuEventDestroy", event)
    assert waits == (flags == 3)


def test_streams_and_the_id_of_a_primary_context_that_is_reset(fact):
    """In a program of its own, because a dead stream may end it."""
    code = """
        import _cuda
        _cuda.call("cuInit", 0)
        context = _cuda.primary_context()
        _cuda.call("cuCtxSetCurrent", context)
        before, stream = int(_cuda.call("cuCtxGetId", context)), _cuda.create_stream(_cuda.BLOCKING)
        print("reset", _cuda.code("cuDevicePrimaryCtxReset", 0), flush=True)
        print("current", _cuda.code("cuCtxSetCurrent", context), flush=True)
        print("id", _cuda.code("cuCtxGetId", context), flush=True)
        result, after = _cuda.bindings().cuCtxGetId(context)
        print("another id", int(after) != before, flush=True)
        result, event = _cuda.bindings().cuEventCreate(3)
        print("event", int(result), flush=True)
        print("record on the stream of before", _cuda.code("cuEventRecord", event, stream), flush=True)
    """
    done = start_script(code)
    answers = ", ".join(done.stdout.split("\n")[:-1])
    fact(f"a primary context that is reset: {answers}; the program ends with {done.returncode}")


@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_asking_for_an_event_of_a_capture_that_has_ended_breaks_no_other_capture(kernels, stream, mode):
    event = call("cuEventCreate", 3)

    def ask():
        with _cuda.current(), _cuda.relaxed():
            return code("cuEventQuery", event)

    with Capture(stream, mode) as first:
        kernels.add(stream, 0, 0, 0.0)
        call("cuEventRecord", event, stream)
    assert Thread(ask).result() == INVALID_VALUE
    with Capture(stream, mode) as second:
        kernels.add(stream, 0, 0, 0.0)
        assert Thread(ask).result() == INVALID_VALUE
        kernels.add(stream, 0, 0, 0.0)
    first.replay()
    second.replay()
    call("cuEventDestroy", event)
