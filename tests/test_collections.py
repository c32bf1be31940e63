"""A garbage collection may run finalisers anywhere: inside a capture, inside dlwrap, on dlwrap's own threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import dlwrap
from capsules import take
from dlwrap import _lifetime
from patience import SECONDS, settle
from scripts import outcome, run
from stream_objects import SimulatedStream

KINDS = {"pinned": {}, "pageable": {"pageable": True}}


@pytest.fixture(autouse=True)
def collected_by_hand():
    """Collect only where a test says so."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=KINDS)
def kind(request, cuda):
    cuda.configure(**KINDS[request.param])
    return request.param


@pytest.fixture
def shown(monkeypatch):
    """What finalisers raised."""
    errors = []  # not the errors themselves, which keep frames alive
    monkeypatch.setattr("sys.unraisablehook", lambda each: errors.append((each.exc_type, str(each.exc_value))))
    return errors


class Finalised:
    """Runs an action when it is collected."""

    def __init__(self, action):
        self.action, self.itself = action, self

    def __del__(self):
        self.action()


def in_a_cycle(*things):
    """Leave things to the next collection."""
    cycle = [*things]
    cycle.append(cycle)


def on_this_thread(function):
    function()


def on_another_thread(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()


# ---- inside a capture ----


def use_nothing(buffer, stream):
    """Leave the buffer unused."""


def use_on_the_legacy_stream(buffer, stream):
    take(buffer.__dlpack__(stream=1)).delete()


def use_on_an_untold_stream(buffer, stream):
    take(buffer.__dlpack__()).delete()


def use_on_the_capturing_stream(buffer, stream):
    buffer.record_stream(stream)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("collect_on", [on_this_thread, on_another_thread])
@pytest.mark.parametrize(
    "use", [use_nothing, use_on_the_legacy_stream, use_on_an_untold_stream, use_on_the_capturing_stream]
)
def test_a_collection_during_a_capture_leaves_it_valid_and_releases_afterwards(
    cuda, kind, use, collect_on, blocking, mode
):
    stream, array = SimulatedStream(cuda, blocking=blocking), cuda.host_array(8)
    alive, buffer = weakref.ref(array), dlwrap.wrap(array)
    use(buffer, stream)
    in_a_cycle(buffer)
    del array, buffer
    cuda.begin_capture(stream.ptr, mode)
    collect_on(gc.collect)
    settle()
    assert cuda.capture_status(stream.ptr) == "active"
    if use is use_on_the_capturing_stream:
        assert alive() is not None  # nothing can be recorded there before the capture ends
    assert cuda.end_capture(stream.ptr)
    dlwrap.reclaim(SECONDS)
    assert alive() is None


@pytest.mark.parametrize("collect_on", [on_this_thread, on_another_thread])
@pytest.mark.parametrize("versioned", [None, (1, 0)], ids=["legacy", "versioned"])
def test_a_capsule_collected_during_a_capture_leaves_it_valid(cuda, kind, collect_on, versioned):
    stream = cuda.create_stream()
    buffer = dlwrap.wrap(cuda.host_array(8))
    in_a_cycle(buffer.__dlpack__(stream=1, max_version=versioned), buffer)
    del buffer
    cuda.begin_capture(stream, "global")
    collect_on(gc.collect)
    settle()
    assert dlwrap.stats().exports == 0
    assert cuda.capture_status(stream) == "active"
    assert cuda.end_capture(stream)
    cuda.destroy_stream(stream)


@pytest.mark.parametrize("collect_on", [on_this_thread, on_another_thread])
def test_a_finaliser_may_wrap_export_and_close_during_a_capture(cuda, kind, collect_on, shown):
    stream, closed = cuda.create_stream(), []

    def use():
        with dlwrap.wrap(cuda.host_array(8)) as buffer:
            take(buffer.__dlpack__(stream=2)).delete()
        dlwrap.reclaim(SECONDS)
        closed.append(buffer.closed)

    in_a_cycle(Finalised(use))
    cuda.begin_capture(stream, "global")
    collect_on(gc.collect)
    assert (closed, shown) == ([True], [])
    assert cuda.capture_status(stream) == "active"
    assert cuda.end_capture(stream)
    cuda.destroy_stream(stream)


def test_a_deleter_that_a_collection_calls_releases(cuda, kind):
    array = cuda.host_array(8)
    alive, buffer = weakref.ref(array), dlwrap.wrap(array)
    in_a_cycle(Finalised(take(buffer.__dlpack__(stream=1)).delete))
    del array, buffer
    settle()
    assert alive() is not None
    gc.collect()
    dlwrap.reclaim(SECONDS)
    assert alive() is None


# ---- on dlwrap's own threads, where arrays are dropped ----


class Owner:
    """The owner of an array's memory, with a finaliser."""

    def __init__(self, array, action):
        self.array, self.action = array, action
        self.__array_interface__ = array.__array_interface__

    def __del__(self):
        self.action()


def array_with_a_del(cuda, action):
    return np.asarray(Owner(cuda.host_array(8), action))


def array_with_a_finalize(cuda, action):
    array = cuda.host_array(8)
    weakref.finalize(array, action)
    return array


def array_in_a_cycle(cuda, action):
    """The array is dropped on dlwrap's thread, and a collection on that thread then runs the finaliser."""
    array = cuda.host_array(8)
    weakref.finalize(array, lambda: (in_a_cycle(Finalised(action)), gc.collect()))
    return array


@pytest.fixture(params=[array_with_a_del, array_with_a_finalize, array_in_a_cycle])
def dropped_with(request, cuda, kind, shown):
    """Run an action in the finaliser of an array that dlwrap drops; give what it raised, after all is done."""

    def drop(action):
        threads = []

        def finalise():
            threads.append(threading.current_thread().name)
            action()

        buffer = dlwrap.wrap(request.param(cuda, finalise))
        take(buffer.__dlpack__(stream=1)).delete()
        del buffer
        for _ in range(2):  # the second is for what the finaliser dropped
            dlwrap.reclaim(SECONDS)
        assert threads == ["dlwrap-sweeper" if kind == "pinned" else "dlwrap-lifetime"]
        return shown

    return drop


def test_a_finaliser_on_dlwraps_thread_may_wrap_and_drop(cuda, dropped_with):
    array = cuda.host_array(64)
    alive = weakref.ref(array)

    def wrap_and_drop():
        nonlocal array
        take(dlwrap.wrap(array).__dlpack__(stream=1)).delete()
        in_a_cycle(dlwrap.wrap(array))
        array = None

    assert dropped_with(wrap_and_drop) == []
    gc.collect()
    dlwrap.reclaim(SECONDS)
    assert alive() is None


def test_a_finaliser_on_dlwraps_thread_may_drop_the_last_tensor_of_another(cuda, dropped_with):
    buffers = [dlwrap.wrap(cuda.host_array(8))]
    tensor = take(buffers[0].__dlpack__(stream=1))
    assert dropped_with(lambda: (tensor.delete(), buffers.clear())) == []
    assert dlwrap.stats().live == 0


@pytest.mark.parametrize(
    ("call", "what"),
    [
        pytest.param(lambda buffer: buffer.close(), "close()", id="close"),
        pytest.param(lambda buffer: buffer.synchronize(), "synchronize()", id="synchronize"),
        pytest.param(lambda buffer: dlwrap.reclaim(), "reclaim()", id="reclaim"),
    ],
)
def test_a_finaliser_on_dlwraps_thread_that_would_wait_for_it_is_refused(cuda, dropped_with, call, what):
    buffer = dlwrap.wrap(cuda.host_array(8))
    take(buffer.__dlpack__(stream=1)).delete()
    shown = dropped_with(lambda: call(buffer))
    assert shown == [(RuntimeError, f"cannot wait for {what} in a finaliser that runs on dlwrap's own thread")]


# ---- inside dlwrap ----

PACKAGE = str(Path(dlwrap.__file__).parent)
REFUSALS = {
    RuntimeError: ("cannot wait for ", "cannot wrap "),
    BufferError: ("a live wrap or pin of dlwrap has page-locked",),  # what the finaliser wraps may be in the way
}


class Collections:
    """A trace function that collects objects with finalisers before lines of dlwrap that were not tried yet."""

    MOST, DISTANCE = 8, 10  # lines per run, and between them

    def __init__(self, tried, finalise):
        self.tried, self.finalise = tried, finalise
        self.places = []
        self._skip = 0

    def __call__(self, frame, event, arg):
        path = frame.f_code.co_filename
        return self.before_line if path.startswith(PACKAGE) and "testing" not in path else None

    def before_line(self, frame, event, arg):
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if event == "line" and place not in self.tried and len(self.places) < self.MOST:
            self._skip -= 1
            if self._skip < 0:
                self._skip = self.DISTANCE
                self.places.append(place)
                self.tried.add(place)
                in_a_cycle(Finalised(self.finalise))
                gc.collect(0)
        return self.before_line


class Program:
    """What a thread of the program does while the collections come, and what the finalisers do."""

    def __init__(self, cuda):
        self.array = cuda.host_array(64)
        self.others = [dlwrap.wrap(cuda.host_array(8)) for _ in range(Collections.MOST)]
        for other in self.others:
            take(other.__dlpack__(stream=1)).delete()

    def use_everything(self):
        """Wrap what lingers, wrap over what lingers, export, synchronize, close, drop, pin, reclaim."""
        dlwrap.configure(linger_seconds=float("inf"))
        dlwrap.wrap(self.array[8:16], extent="view")
        settle()
        take(dlwrap.wrap(self.array).__dlpack__(stream=1)).delete()
        settle()
        with dlwrap.wrap(self.array) as buffer, dlwrap.pin(self.array):
            take(buffer.__dlpack__()).delete()
            buffer.record_stream(1)
            buffer.synchronize()
        dlwrap.configure(linger_seconds=0)
        take(dlwrap.wrap(self.array).__dlpack__()).delete()
        dlwrap.reclaim(SECONDS)

    # what finalisers do

    def wrap(self):
        dlwrap.wrap(self.array)

    def close(self):
        self.others.pop().close(SECONDS)

    def reclaim(self):
        dlwrap.reclaim(SECONDS)

    def drop_and_configure(self):
        self.others.pop()
        dlwrap.configure(linger_seconds=0)
        assert dlwrap.stats().leaked == 0


_traced_before = {}


def set_trace(trace):
    """Trace this thread, or give it back to what traced it before, such as the measurement of coverage."""
    thread = threading.get_ident()
    if trace is not None:
        _traced_before[thread] = sys.gettrace()
        sys.settrace(trace)
    elif thread in _traced_before:
        sys.settrace(_traced_before.pop(thread))


def trace_this_thread(trace):
    set_trace(trace)


def trace_the_managers_thread(trace):
    traced = threading.Event()
    _lifetime.manager()._request(lambda: (set_trace(trace), traced.set()))
    assert traced.wait(SECONDS)


def trace_the_sweepers_thread(trace):
    traced = threading.Event()
    sweeper = _lifetime.manager()._sweeper
    look = sweeper._wait_for_devices

    def look_traced():
        del sweeper._wait_for_devices
        set_trace(trace)
        traced.set()
        return look()

    sweeper._wait_for_devices = look_traced
    sweeper.request()
    assert traced.wait(SECONDS)


def note_errors(action, program, errors):
    try:
        action(program)
    except (RuntimeError, BufferError) as error:
        if not any(type(error) is kind and text in str(error) for kind, texts in REFUSALS.items() for text in texts):
            errors.append(error)


def collect_before_lines(cuda, trace_a_thread, action, tried):
    """Use dlwrap, with collections before lines that were not tried yet; give the lines, and what outlived it."""
    errors = []
    program = Program(cuda)
    trace = Collections(tried, lambda: note_errors(action, program, errors))

    def use():
        trace_a_thread(trace)
        try:
            note_errors(Program.use_everything, program, errors)
        finally:
            for _ in range(2):  # the second comes when the frames that the first found have ended
                trace_a_thread(None)
            settle()

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"hangs after collections before {trace.places}"
    assert errors == [], f"collections before {trace.places}"
    return trace.places, weakref.ref(program.array)


@pytest.mark.parametrize("trace", [trace_this_thread, trace_the_managers_thread, trace_the_sweepers_thread])
@pytest.mark.parametrize("action", [Program.wrap, Program.close, Program.reclaim, Program.drop_and_configure])
def test_a_collection_may_come_before_any_line_of_dlwrap(cuda, shown, trace, action):
    tried, places = set(), None
    while places != []:
        places, alive = collect_before_lines(cuda, trace, action, tried)
        gc.collect(1)
        dlwrap.reclaim(SECONDS)
        assert alive() is None, f"the array is kept after collections before {places}"
        assert cuda.registrations == [], f"memory is page-locked after collections before {places}"
        assert dlwrap.stats().pinned_bytes == 0, f"miscounted after collections before {places}"
    assert len(tried) > 20
    assert shown == []


def test_a_collection_while_the_threads_start_starts_no_others():
    """The first wrap; a finaliser that wraps comes while the first thread starts."""
    done = run(
        """
from test_collections import in_a_cycle, Finalised
start = threading.Thread.start

def collect_and_start(thread):
    threading.Thread.start = start
    in_a_cycle(Finalised(wrap))
    gc.collect()
    thread.start()

def wrap():
    try:
        dlwrap.wrap(array())
    except RuntimeError as error:
        print(error)

threading.Thread.start = collect_and_start
dlwrap.wrap(array()).close(10)
dlwrap.reclaim(10)
print(sorted(each.name for each in threading.enumerate()), cuda.registrations)
"""
    )
    assert outcome(done) == (0, "")
    assert done.stdout.splitlines()[-1] == "['MainThread', 'dlwrap-lifetime', 'dlwrap-sweeper'] []"
