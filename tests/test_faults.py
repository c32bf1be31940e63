"""No fault of the driver breaks a promise: each call that dlwrap makes fails in turn, with each plausible code.

What dlwrap calls is recorded by running the scenarios once, in an interpreter of their own; so a new driver call is
covered as soon as a scenario makes it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
import scripts
from capsules import take
from cuda_calls import checked, create_context
from dlwrap import _driver, _lifetime, _native
from patience import SECONDS, settle
from stream_objects import SimulatedStream

GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
FOREVER = float("inf")
BRIEFLY = 0.02  # seconds, where the fault says that there is a capture, whose end is waited for

# ---- what can go wrong ----

# dlwrap itself decides on these results, whoever returns them;
DECIDED = (1, 712, 713, 801, 906)
# these stand for all others, which it treats alike: no memory, driver gone, context gone, sticky, passing, unknown;
COMMON = (2, 4, 201, 700, 999, 12345)
# and these a function may return beside, as its manual page says.
BESIDE = {
    "cuInit": (100, 804),
    "cuDeviceGetAttribute": (101,),
    "cuDevicePrimaryCtxRetain": (46, 101),
    "cuCtxPushCurrent": (709,),
    "cuCtxSetCurrent": (709,),
    "cuMemHostRegister": (800, 900, 901),
    "cuMemHostUnregister": (719, 900),
    "cuEventQuery": (400, 709, 719, 900, 907),
    "cuEventRecord": (400, 709, 900, 901),
    "cuStreamIsCapturing": (400, 709, 901),
    "cuStreamGetCaptureInfo": (400, 901),
    "cuGraphRetainUserObject": (400,),
    "cuGetProcAddress": (500,),
}
CAPTURES = 906

# (function, code): a driver that says so tells a lie, because in these scenarios it is not true.
LIES = {
    ("cuMemHostUnregister", 713): "the range is registered; told otherwise, dlwrap frees it, as it must",
}
# Functions that do not fail here.
TRUSTED = {
    "cuUserObjectRelease": "undoes what another fault left half done; if it fails too, nothing can end that hold",
}
# What puts the caller's state back; where it goes on failing, nothing can.
RESTORING = {"cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"}
MOST_CALLS = 4  # of one function in one scenario that are made to fail: beyond are repeated polls

RAISED = {
    "a missing function": lambda: RuntimeError("Function not found"),
    "an unknown result": lambda: ValueError("12345 is not a valid CUresult"),
    "no memory": MemoryError,
}


@dataclass(frozen=True)
class Fault:
    """One call, or that and the next ones, that fail."""

    function: str
    code: int
    nth: int = 1
    times: int = 1

    @property
    def is_lasting(self):
        return self.times > 1

    @property
    def pretends_a_capture(self):
        return self.code == CAPTURES and self.times > MOST_CALLS

    @contextlib.contextmanager
    def planned(self, cuda):
        cuda.fail(self.function, self.code, nth=self.nth, times=self.times)
        yield
        cuda.clear_failures()


@dataclass(frozen=True)
class Exploding:
    """One call, or all from it on, in which the bindings themselves raise."""

    function: str
    raised: str
    nth: int
    times: int

    pretends_a_capture = False

    @property
    def is_lasting(self):
        return self.times > 1

    @contextlib.contextmanager
    def planned(self, cuda):
        real, calls = getattr(driver, self.function), 0

        def explode(*args):
            nonlocal calls
            calls += 1
            if self.nth <= calls < self.nth + self.times:
                raise RAISED[self.raised]()
            return real(*args)

        setattr(driver, self.function, explode)
        yield
        setattr(driver, self.function, real)


# ---- what a user does; each scenario is ready at its first `yield`, and at its second nothing fails any more ----


DOCUMENTED = (dlwrap.DLWrapError, BufferError, RuntimeError, MemoryError)


def attempt(operation, *args, **keywords):
    """What a user calls works, or raises a documented error. It may not hang, so a TimeoutError is a fault."""
    try:
        return operation(*args, **keywords)
    except DOCUMENTED:
        return None


def works(operation, *args):
    """Likewise, but tell which."""
    try:
        operation(*args)
    except DOCUMENTED:
        return False
    return True


def live(cuda, stream, *, recorded=None, **options):
    """Wrap, export, run a kernel, and drop everything while it runs; the kernel ends when the manager knows of it."""
    array = cuda.host_array(64)
    buffer = attempt(dlwrap.wrap, array, **options)
    if buffer is not None and recorded is not None:
        attempt(buffer.record_stream, recorded)
    capsule = buffer and attempt(buffer.__dlpack__, stream=stream, max_version=(1, 0))
    if capsule:
        tensor = take(capsule)
        cuda.hold(stream)
        cuda.launch(stream, array, write=7)
        tensor.delete()
    del array, buffer, capsule
    settle()
    cuda.let_go(stream)


def tracked_stream(cuda, patience):
    stream = SimulatedStream(cuda)
    yield
    live(cuda, stream.ptr, recorded=stream)
    yield


def tracked_stream_alone(cuda, patience):
    stream = SimulatedStream(cuda, blocking=False)
    handle = stream.ptr
    yield
    array = cuda.host_array(64)
    buffer = attempt(dlwrap.wrap, array)
    if buffer and works(buffer.record_stream, stream):
        cuda.hold(handle)
        cuda.launch(handle, array, write=7)
    del array, buffer, stream
    settle()
    cuda.let_go(handle)
    yield


def untracked_stream(cuda, patience):
    stream = cuda.create_stream(blocking=False)
    yield
    live(cuda, stream)
    yield
    cuda.destroy_stream(stream)


def untracked_stream_of_pageable_memory(cuda, patience):
    cuda.configure(pageable=True)
    yield from untracked_stream(cuda, patience)


def legacy_stream(cuda, patience):
    yield
    live(cuda, 1)
    yield


def legacy_stream_of_pageable_memory(cuda, patience):
    cuda.configure(pageable=True)
    yield from legacy_stream(cuda, patience)


def wait_for_the_device(cuda, patience):
    yield
    live(cuda, 1, wait="device")
    yield


def close(cuda, patience):
    yield
    array = cuda.host_array(64)
    buffer = attempt(dlwrap.wrap, array)
    capsule = buffer and attempt(buffer.__dlpack__, stream=1)
    if capsule:
        cuda.launch(1, array)
        take(capsule).delete()
    if buffer:
        with contextlib.suppress(*[TimeoutError] * (patience < SECONDS)):
            attempt(buffer.close, patience)
    yield


def a_pin_with_wraps_inside(cuda, patience):
    yield
    array = cuda.host_array(64)
    pin = attempt(dlwrap.pin, array)
    inside = [attempt(dlwrap.wrap, part) for part in (array[:10], array[20:], array)]
    for buffer in inside:
        if buffer:
            attempt(buffer.record_stream, 1)
    del array, pin, inside, buffer
    yield


def revival(cuda, patience):
    dlwrap.configure(linger_seconds=FOREVER)
    array = cuda.host_array(64)
    yield
    for _ in range(2):
        buffer = attempt(dlwrap.wrap, array)
        del buffer
        settle()
    dlwrap.configure(linger_seconds=0)
    yield


def a_lingering_range_in_the_way(cuda, patience):
    dlwrap.configure(linger_seconds=FOREVER)
    array = cuda.host_array(64)
    yield
    attempt(dlwrap.wrap, array[:10], extent="view")
    settle()
    attempt(dlwrap.wrap, array)
    dlwrap.configure(linger_seconds=0)
    yield


@contextlib.contextmanager
def registered_by_somebody_else(array):
    pointer = array.__array_interface__["data"][0]
    checked(driver.cuMemHostRegister(pointer, array.nbytes, 0))
    yield
    checked(driver.cuMemHostUnregister(pointer))


def adoption(cuda, patience):
    array = cuda.host_array(64)
    with registered_by_somebody_else(array):
        yield
        buffer = attempt(dlwrap.wrap, array[10:])
        if buffer:
            attempt(buffer.record_stream, 1)
        del buffer
        yield


def the_view_instead_of_its_owner(cuda, patience):
    array = cuda.host_array(64)
    with registered_by_somebody_else(array[:10]):
        yield
        attempt(dlwrap.wrap, array[10:20])
        attempt(dlwrap.wrap, array[5:20])
        yield


def use_on_the_host(cuda, patience):
    stream = SimulatedStream(cuda)
    yield
    buffer = attempt(dlwrap.wrap, cuda.host_array(64))
    if buffer:
        attempt(buffer.record_stream, stream)
        attempt(buffer.__dlpack__, stream=-1)
        if patience == SECONDS:  # else it would wait for the capture that the fault pretends
            attempt(buffer.synchronize)
            attempt(np.asarray, buffer)
        attempt(getattr, buffer, "ptr")
        attempt(getattr, buffer, "__cuda_array_interface__")
    del buffer
    yield


def an_export_of_a_copy(cuda, patience):
    yield
    buffer = attempt(dlwrap.wrap, cuda.host_array(64))
    if buffer:
        attempt(buffer.__dlpack__, stream=1, copy=True)
    del buffer
    yield


def several_releases_and_reclaim(cuda, patience):
    stream = SimulatedStream(cuda)
    yield
    for recorded in (1, stream, stream.ptr):
        buffer = attempt(dlwrap.wrap, cuda.host_array(64))
        if buffer:
            attempt(buffer.record_stream, recorded)
        del buffer
    with contextlib.suppress(*[TimeoutError] * (patience < SECONDS)):
        attempt(dlwrap.reclaim, patience)
    yield


def a_second_device(cuda, patience):
    cuda.configure(devices=2, pointer_offset=1 << 40)
    array = cuda.host_array(64)
    yield
    both = [attempt(dlwrap.wrap, array, device=device) for device in (0, 1)]
    for buffer in both:
        if buffer:
            attempt(buffer.__dlpack__, stream=1)
    del both, buffer
    yield


def a_capture(cuda, patience):
    stream = SimulatedStream(cuda, blocking=False)
    cuda.begin_capture(stream.ptr)
    yield
    array = cuda.host_array(64)
    buffer = attempt(dlwrap.wrap, array)
    if buffer:
        attempt(buffer.record_stream, stream)
        attempt(dlwrap.keep_alive, stream, buffer)
    if buffer and attempt(buffer.__dlpack__, stream=stream.ptr):
        cuda.launch(stream.ptr, array)
    del array, buffer
    settle()
    assert cuda.capture_status(stream.ptr) == "active"
    yield
    checked(driver.cuGraphDestroy(driver.CUgraph(cuda.end_capture(stream.ptr))))


def two_buffers_that_a_graph_keeps(cuda, patience):
    graph = checked(driver.cuGraphCreate(0))
    yield
    buffers = [attempt(dlwrap.wrap, cuda.host_array(64)) for _ in range(2)]
    if all(buffers):
        attempt(dlwrap.keep_alive, graph, *buffers)
    del buffers
    yield
    checked(driver.cuGraphDestroy(graph))


def a_graph_that_takes_one_of_two_buffers(cuda, patience):
    graph = checked(driver.cuGraphCreate(0))
    cuda.fail("cuGraphRetainUserObject", 2, nth=2)
    yield
    buffers = [attempt(dlwrap.wrap, cuda.host_array(64)) for _ in range(2)]
    if all(buffers):
        assert attempt(dlwrap.keep_alive, graph, *buffers) is None
    del buffers
    yield
    checked(driver.cuGraphDestroy(graph))


def a_foreign_context(cuda, patience):
    context = create_context()
    yield
    buffer = attempt(dlwrap.wrap, cuda.host_array(64))
    if buffer:
        attempt(buffer.__dlpack__, stream=1)
    del buffer
    yield
    checked(driver.cuCtxDestroy(context))


def support(cuda, patience):
    yield
    attempt(dlwrap.support)
    yield


def a_driver_that_is_not_initialised(cuda, patience):
    for cached in (_driver._module, _driver._primary, _driver.primary_handle, _driver._address):
        cached.cache_clear()
    yield
    live(cuda, 1)
    yield


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        tracked_stream,
        tracked_stream_alone,
        untracked_stream,
        untracked_stream_of_pageable_memory,
        legacy_stream,
        legacy_stream_of_pageable_memory,
        wait_for_the_device,
        close,
        a_pin_with_wraps_inside,
        revival,
        a_lingering_range_in_the_way,
        adoption,
        the_view_instead_of_its_owner,
        use_on_the_host,
        an_export_of_a_copy,
        several_releases_and_reclaim,
        a_second_device,
        a_capture,
        two_buffers_that_a_graph_keeps,
        a_graph_that_takes_one_of_two_buffers,
        a_foreign_context,
        support,
        a_driver_that_is_not_initialised,
    )
}


# ---- how it has to end ----


class World:
    """The simulated driver, with a context and a capture mode on this thread that must stay as they are."""

    def __init__(self, cuda, shown, kept):
        self.cuda = cuda
        self.shown = shown  # errors that had no caller
        self.kept = kept  # what would be kept to the end of the process, but is let go after each run
        self.manager = _lifetime.manager()
        dlwrap.wrap(np.zeros(1)).close(SECONDS)  # starts the threads

    def play(self, scenario, fault=None):
        """Run a scenario with a fault, and say what is wrong then; without one, give the driver's calls too."""
        cuda = self.cuda
        self.begin()
        arrays = cuda.host_arrays_alive
        patience = BRIEFLY if fault and fault.pretends_a_capture else SECONDS
        steps = SCENARIOS[scenario](cuda, patience)
        next(steps)
        cuda.clear_calls()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with fault.planned(cuda) if fault else contextlib.nullcontext():
                next(steps)
                with contextlib.suppress(*[TimeoutError] * (patience < SECONDS)):
                    attempt(dlwrap.reclaim, patience)
            calls = Counter() if fault else Counter(call.function for call in cuda.calls())
            restorable = not (fault and fault.function in RESTORING and fault.is_lasting)
            wrong = self._state_of_caller() if restorable else []
            if not restorable:
                self.begin(keep=True)
            next(steps, None)
            cuda.wait_for_destructors()
            attempt(dlwrap.reclaim, SECONDS)
            if dlwrap.stats().live:
                gc.collect()  # an exception raised while another was handled may be part of a cycle
                attempt(dlwrap.reclaim, SECONDS)
            wrong += self._next_life() + self._books(caught, arrays)
        self.end()
        return wrong, calls

    def begin(self, keep=False):
        if not keep:
            self.cuda.reset(force=True)
            self.cuda.configure()
            self.manager.leaked = 0
            dlwrap.configure(linger_seconds=0)
        while int(checked(driver.cuCtxGetCurrent())):
            checked(driver.cuCtxPopCurrent())
        checked(driver.cuCtxPushCurrent(checked(driver.cuDevicePrimaryCtxRetain(0))))
        checked(driver.cuThreadExchangeStreamCaptureMode(THREAD_LOCAL))

    def end(self):
        """Put away what the faults of this run left on purpose."""
        pins = self.manager.pins
        for registration in pins.table.overlapping(0, 2**64 - 1):
            pins._remove(registration)
        for registration in self.cuda.registrations:
            checked(driver.cuMemHostUnregister(registration.start))
        self.kept.clear()
        self.manager.kept.clear()  # the same, for reports
        checked(driver.cuCtxPopCurrent())
        checked(driver.cuThreadExchangeStreamCaptureMode(GLOBAL))

    def _state_of_caller(self):
        wrong = []
        mode = checked(driver.cuThreadExchangeStreamCaptureMode(THREAD_LOCAL))
        if mode != THREAD_LOCAL:
            wrong.append(f"the caller's capture mode is {mode.name}")
        # Above the primary context there may be one of the scenario's own.
        depth = 0
        contexts = []
        while int(checked(driver.cuCtxGetCurrent())):
            contexts.append(checked(driver.cuCtxPopCurrent()))
            depth += 1
        for context in reversed(contexts):
            checked(driver.cuCtxPushCurrent(context))
        expected = 2 if any(int(context) != int(contexts[-1]) for context in contexts) else 1
        if depth != expected:
            wrong.append(f"the caller's stack of contexts has {depth}")
        return wrong

    def _books(self, caught, arrays_before):
        """Say where what is kept, and what was told of it, disagree."""
        wrong = [f"nobody caught {error!r}" for error in self.shown]
        self.shown.clear()
        wrong += [f"{thread.name} has died" for thread in self.manager.threads if not thread.is_alive()]
        now, registered = dlwrap.stats(), len(self.cuda.registrations)
        if (now.live, now.exports, now.graphs, now.pending, now.lingering) != (0, 0, 0, 0, 0):
            wrong.append(f"something is still lent: {now}")
        told = [str(each.message) for each in caught]
        if len(told) != (now.leaked > 0) or any("dlwrap keeps memory" not in each for each in told):
            wrong.append(f"{now.leaked} leaks, but the warnings were {told}")
        # Fewer than before, where an earlier one was part of a cycle.
        arrays = max(0, self.cuda.host_arrays_alive - arrays_before)
        if now.leaked == 0 and (registered, now.pinned_bytes, arrays) != (0, 0, 0):
            wrong.append(f"not counted: {registered} registrations, {now.pinned_bytes} bytes, {arrays} arrays are kept")
        if registered > now.leaked:
            wrong.append(f"{registered} registrations are left by {now.leaked} leaks")
        return wrong

    def _next_life(self):
        """Say why the next ordinary use does not work."""
        leaked = dlwrap.stats().leaked
        try:
            array = self.cuda.host_array(64)
            with dlwrap.wrap(array) as buffer:
                take(buffer.__dlpack__(stream=1)).delete()
            if self.cuda.registrations:  # perhaps the page of a device-wide wait, which the next one puts right
                again = dlwrap.wrap(array)
                take(again.__dlpack__(stream=2)).delete()
                again.close(SECONDS)
        except Exception as error:  # noqa: BLE001 -- any error is what is looked for
            return [f"the next use fails: {error!r}"]
        return [] if dlwrap.stats().leaked == leaked else ["the next use is kept"]


@pytest.fixture
def world(cuda, leaks, monkeypatch):
    shown, kept = [], []
    monkeypatch.setattr(_native, "leak", kept.append)
    monkeypatch.setattr("sys.unraisablehook", lambda report: shown.append(report.exc_value))
    made = World(cuda, shown, kept)
    yield made
    cuda.reset(force=True)
    if cuda.host_arrays_alive:
        gc.collect()
    assert cuda.host_arrays_alive == 0


# ---- recording ----


def record():
    """Print what each scenario calls; run in an interpreter of its own."""
    import dlwrap.testing

    world = World(dlwrap.testing.activate(), [], [])
    found = {}
    for scenario in SCENARIOS:
        wrong, calls = world.play(scenario)
        assert wrong == [], (scenario, wrong)
        found[scenario] = calls
    sys.stdout.write(json.dumps(found))


@functools.cache
def recorded():
    """What each scenario calls, and how often."""
    done = scripts.run("import test_faults; test_faults.record()", prologue="")
    assert scripts.outcome(done) == (0, "")
    return json.loads(done.stdout)


def pytest_generate_tests(metafunc):
    if {"scenario", "function"} <= set(metafunc.fixturenames):
        cases = [
            pytest.param(scenario, function, min(count, MOST_CALLS), id=f"{function}-{scenario}")
            for scenario, counts in recorded().items()
            for function, count in counts.items()
            if function not in TRUSTED
        ]
        metafunc.parametrize(("scenario", "function", "count"), cases)


# ---- the tests ----


def faults_of(function, count):
    """The first call with each code, every later one with the commonest, and these also again and again."""
    for code in (*DECIDED, *COMMON, *BESIDE.get(function, ())):
        if (function, code) not in LIES:
            yield Fault(function, code)
    for code in COMMON:
        yield from (Fault(function, code, nth) for nth in range(2, count + 1))
        yield Fault(function, code, times=1 << 40)
    for code in (700, 12345):
        yield Fault(function, code, times=5)
    yield Fault(function, CAPTURES, times=1 << 40)


def test_the_promises_hold_when_a_call_fails(world, scenario, function, count):
    broken = {}
    for fault in faults_of(function, count):
        wrong, _ = world.play(scenario, fault)
        if wrong:
            broken[fault] = wrong
    assert broken == {}


def test_the_promises_hold_when_the_bindings_raise(world, scenario, function, count):
    broken = {}
    for raised in RAISED:
        for nth, times in [(nth, 1) for nth in range(1, count + 1)] + [(1, 1 << 40)]:
            fault = Exploding(function, raised, nth, times)
            wrong, _ = world.play(scenario, fault)
            if wrong:
                broken[fault] = wrong
    assert broken == {}


FUNCTIONS = sorted(set(re.findall(r'"(cu[A-Z]\w+)"', Path(_driver.__file__).read_text())))


# Only the doctor calls these, which lends nothing that is not wrapped; its failures are in test_doctor.py.
SELF_TEST = {"cuMemAlloc", "cuMemFree", "cuMemcpy", "cuMemsetD8", "cuStreamSynchronize"}


def test_every_driver_function_is_in_some_scenario():
    called = {function for counts in recorded().values() for function in counts}
    assert [function for function in FUNCTIONS if function not in called | SELF_TEST] == []


# ---- a driver that is gone for good ----

GONE = (4, 201, 700, 709, 719)


@dataclass(frozen=True)
class Gone:
    """Every call fails from now on."""

    code: int

    is_lasting = True
    pretends_a_capture = False
    function = "cuCtxPopCurrent"  # among others: the caller's state cannot be put back

    @contextlib.contextmanager
    def planned(self, cuda):
        for function in FUNCTIONS:
            cuda.fail(function, self.code, times=1 << 40)
        yield
        cuda.clear_failures()


@pytest.mark.parametrize("code", GONE)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_promises_hold_when_every_call_fails(world, scenario, code):
    wrong, _ = world.play(scenario, Gone(code))
    assert wrong == []


@pytest.fixture
def gone_later(world):
    """What is kept for ever is put away at the end."""
    world.begin()
    yield
    world.end()


def in_use(cuda, stream):
    """A buffer with a kernel that runs on it."""
    array = cuda.host_array(64)
    buffer = dlwrap.wrap(array)
    take(buffer.__dlpack__(stream=stream, max_version=(1, 0))).delete()
    cuda.hold(stream)
    cuda.launch(stream, array, write=7)
    return buffer


@pytest.mark.parametrize("code", GONE)
def test_a_release_that_is_pending_when_the_driver_goes_is_kept_and_counted(gone_later, cuda, code):
    for _ in range(3):
        in_use(cuda, 1)
    settle()
    with pytest.warns(dlwrap.DLWrapWarning) as caught, Gone(code).planned(cuda):
        attempt(dlwrap.reclaim, SECONDS)
    cuda.let_go(1)
    assert (dlwrap.stats().pending, dlwrap.stats().leaked, len(caught)) == (0, 3, 1)
    assert len(cuda.registrations) == 3


@pytest.mark.parametrize("code", GONE)
def test_close_says_that_the_memory_is_kept_when_the_driver_is_gone(gone_later, cuda, code):
    buffer = in_use(cuda, 1)
    with Gone(code).planned(cuda):
        with (
            pytest.warns(dlwrap.DLWrapWarning),
            pytest.raises(dlwrap.DLWrapError, match=r"close\(\): memory is kept") as caught,
        ):
            buffer.close(SECONDS)
        cuda.let_go(1)
    assert caught.value.__cause__.code == code
    assert (buffer.closed, dlwrap.stats().leaked) == (True, 1)


@pytest.mark.parametrize("code", GONE)
def test_a_range_that_lingers_when_the_driver_goes_is_kept_and_counted(gone_later, cuda, code):
    dlwrap.configure(linger_seconds=FOREVER)
    dlwrap.wrap(cuda.host_array(64))
    settle()
    with (
        Gone(code).planned(cuda),
        pytest.warns(dlwrap.DLWrapWarning),
        pytest.raises(dlwrap.DLWrapError, match="memory is kept"),
    ):
        dlwrap.reclaim(SECONDS)
    assert (dlwrap.stats().lingering, dlwrap.stats().leaked) == (0, 1)


# ---- and the end of the program ----

BEFORE = """
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
def go():
    for function in {functions}: cuda.fail(function, {code}, times=1 << 40)
def attempt(operation, *arguments):
    try:
        operation(*arguments)
    except dlwrap.DLWrapError as error:
        print(type(error).__name__)
"""
ENDINGS = {
    "a buffer alive": ("go()", "", 0),
    "a buffer just dropped": ("go(); del buffer", "", None),
    "a release pending": (
        "cuda.hold(1); cuda.launch(1, buffer.array); del buffer\n"
        "while not dlwrap.stats().pending: time.sleep(0.001)\ngo()",
        "",
        None,
    ),
    "a range that lingers": (
        "dlwrap.configure(linger_seconds=3600); del buffer\n"
        "while not dlwrap.stats().lingering: time.sleep(0.001)\ngo()",
        "",
        0,
    ),
    "a close that failed": ("go(); attempt(buffer.close, 20)", "DLWrapError\n", 1),
    "a wrap that failed": ("go(); attempt(dlwrap.wrap, array())", "CudaError\n", 0),
    "a wrap in an exit hook": ("go(); atexit.register(attempt, dlwrap.wrap, array())", "CudaError\n", 0),
}
WARNING = re.compile(r".*: DLWrapWarning: dlwrap keeps memory, .*\n  .*\n")


@pytest.mark.parametrize("code", [4, 719])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_well_after_the_driver_is_gone_with(ending, code):
    action, printed, warned = ENDINGS[ending]
    done = scripts.run(BEFORE.format(functions=FUNCTIONS, code=code) + action)
    said = WARNING.findall(done.stderr)
    # Whether a release comes to its end before the program does is left to chance.
    assert (done.returncode, done.stdout, "".join(said)) == (0, printed, done.stderr)
    assert len(said) in ({0, 1} if warned is None else {warned})


def test_threads_that_cannot_be_relaxed_are_not_started_until_they_can():
    done = scripts.run("""
for nth in (1, 2):
    cuda.fail("cuThreadExchangeStreamCaptureMode", 999, nth=nth)
    try:
        dlwrap.wrap(array())
    except dlwrap.CudaError as error:
        print(error.call, cuda.registrations)
    dlwrap.reclaim(20)
    cuda.clear_failures()
dlwrap.wrap(array()).close(20)
print(sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("dlwrap")))
""")
    assert scripts.outcome(done) == (0, "")
    assert done.stdout == (2 * "cuThreadExchangeStreamCaptureMode []\n" + "['dlwrap-lifetime', 'dlwrap-sweeper']\n")
