"""A capture may begin and end at any driver call that dlwrap makes: it stays valid, and nothing is kept for ever."""

from __future__ import annotations

import contextlib
import random
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
from cuda_calls import QUICK, checked
from dlwrap.testing import SimulationError
from patience import SECONDS, eventually, settle
from soak._captures_world import MODES, OwnedStream, framework, using
from soak.captures import soak

if TYPE_CHECKING:
    from collections.abc import Callable

LEGACY = 1
PORTABLE_DEVICEMAP = 3
ROUNDS = 150


def test_no_adversarial_round_breaks_a_promise(cuda):
    seed = random.randrange(1 << 31)
    outcome = soak(ROUNDS, seed, simulator=cuda)
    assert outcome.faults == [], f"seed {seed}"
    assert outcome.rounds == ROUNDS
    inside = outcome.figures["begun and ended within an open capture"]
    assert {"closes", "exports", "pins", "reclaims", "releases", "wraps"} <= inside.keys()


# ---- one operation at a time, stopped at each driver call that it makes, on whichever thread ----


@contextlib.contextmanager
def primary_context():
    checked(driver.cuCtxPushCurrent(checked(driver.cuDevicePrimaryCtxRetain(0))))
    try:
        yield
    finally:
        driver.cuCtxPopCurrent()


class Scene:
    """An array, what dlwrap made of it, and the stream that it is used on."""

    def __init__(self, cuda, used):
        self.used = used
        self.array = cuda.host_array(64, np.uint8)
        self.buffer = self.kept = None
        self._alive = weakref.ref(self.array)
        self._pointer = self.array.ctypes.data
        self._is_locked_elsewhere = False

    @property
    def alive(self):
        return self._alive() is not None

    # What comes before the operation.

    def lock_elsewhere(self):
        with primary_context():
            checked(driver.cuMemHostRegister(self._pointer, self.array.nbytes, PORTABLE_DEVICEMAP))
        self._is_locked_elsewhere = True

    def wrap_and_use(self):
        self.wrap()
        self.record_stream()

    def wrap_and_use_anywhere(self):
        self.wrap()
        assert self.buffer.ptr

    def wrap_and_linger(self):
        dlwrap.configure(linger_seconds=float("inf"))
        self.wrap()
        self.drop()
        settle()
        assert dlwrap.stats().lingering == 1

    def nothing(self):
        pass

    # Operations.

    def wrap(self):
        self.buffer = dlwrap.wrap(self.array)

    def pin_and_unpin(self):
        dlwrap.pin(self.array).close(SECONDS)

    def record_stream(self):
        self.buffer.record_stream(self.used)

    def export(self):
        stream = self.used
        with using(None if stream == LEGACY else stream):
            self.kept = self.buffer.__dlpack__(stream=stream if stream == LEGACY else stream.handle)

    def copy(self):
        self.kept = self.buffer.__dlpack__(copy=True)

    def synchronize(self):
        with contextlib.suppress(RuntimeError):  # the stream may be captured
            self.buffer.synchronize()

    def drop(self):
        self.array = self.buffer = self.kept = None

    def close(self):
        self.array = None
        self.buffer.close(SECONDS)

    def reclaim(self):
        self.drop()
        dlwrap.reclaim(SECONDS)

    def flush(self):
        dlwrap.configure(linger_seconds=0)
        dlwrap.reclaim(SECONDS)

    # The end.

    def end(self):
        """Let go what the operation left, and check that nothing is kept."""
        self.unlock()
        self.drop()
        dlwrap.configure(linger_seconds=0)
        # What a graph owned the driver lets go a moment after the graph's end.
        assert eventually(lambda: dlwrap.reclaim(SECONDS) or not self.alive or dlwrap.stats().leaked)
        assert dlwrap.stats().leaked == 0

    def unlock(self):
        """Undo `lock_elsewhere`."""
        if self._is_locked_elsewhere:
            self._is_locked_elsewhere = False
            self.buffer = self.kept = None
            dlwrap.reclaim(SECONDS)
            with primary_context():
                checked(driver.cuMemHostUnregister(self._pointer))


@dataclass(frozen=True)
class Operation:
    """What one thread of the program does, and what it does before that.

    Attributes
    ----------
    waits : bool
        Whether it ends only after the work on the scene's stream.
    asks : int
        How often it asks whether the stream is captured before it begins to wait.
    """

    before: Callable[[Scene], None]
    act: Callable[[Scene], None]
    waits: bool = False
    asks: int = 0

    def may_wait(self, calls, stop):
        """Tell whether a capture that begins at that call may keep it from ending."""
        questions = [number for number, call in enumerate(calls) if call == "cuStreamIsCapturing"]
        return self.waits and stop <= questions[-1] and all(stop > number for number in questions[: self.asks])


WITH_STREAM = {
    "a release": Operation(Scene.wrap_and_use, Scene.drop, waits=True),
    "a close": Operation(Scene.wrap_and_use, Scene.close, waits=True),
    "a reclaim": Operation(Scene.wrap_and_use, Scene.reclaim, waits=True),
    "a wait on the host": Operation(Scene.wrap_and_use, Scene.synchronize, waits=True, asks=1),
    "an export": Operation(Scene.wrap, Scene.export),
    "record_stream": Operation(Scene.wrap, Scene.record_stream),
}
WITHOUT_STREAM = {
    "a wrap": Operation(Scene.nothing, Scene.wrap),
    "a wrap of memory that others page-locked": Operation(Scene.lock_elsewhere, Scene.wrap),
    "a pin": Operation(Scene.nothing, Scene.pin_and_unpin),
    "a copy": Operation(Scene.wrap, Scene.copy),
    "a release without use": Operation(Scene.wrap, Scene.drop),
    "a device-wide release": Operation(Scene.wrap_and_use_anywhere, Scene.drop),
    "an unregistering": Operation(Scene.wrap_and_linger, Scene.flush),
}
OPERATIONS = WITH_STREAM | WITHOUT_STREAM

# Which stream the array is used on, beside the one that is captured.
THE_SAME, ANOTHER, LEGACY_BESIDE_BLOCKING = "the same stream", "another stream", "legacy beside a blocking stream"
CASES = [(name, relation) for name in WITH_STREAM for relation in (THE_SAME, ANOTHER, LEGACY_BESIDE_BLOCKING)]
CASES += [(name, ANOTHER) for name in WITHOUT_STREAM]


class Stage:
    """One operation again and again, beside a capture that writes to memory of its own."""

    def __init__(self, cuda, operation, relation, mode):
        self._cuda = cuda
        self._operation = OPERATIONS[operation]
        self._mode = mode
        blocking = relation == LEGACY_BESIDE_BLOCKING
        self._capturing = OwnedStream(cuda.create_stream(blocking=blocking), blocking=blocking)
        another = OwnedStream(cuda.create_stream(blocking=False), blocking=False)
        self._used = {THE_SAME: self._capturing, ANOTHER: another}.get(relation, LEGACY)
        self._relation = relation
        self._target = cuda.host_array(64, np.uint8)
        self._keeper = dlwrap.wrap(self._target)
        self._caller = ThreadPoolExecutor(1)
        self._scene = Scene(cuda, self._used)
        self._acting = None
        self._paused = set()

    def close(self):
        """Let everything go, also where a test stopped half-way."""
        self.open_gates()
        with contextlib.suppress(SimulationError):
            self._cuda.end_capture(self._capturing.handle)
        self._caller.shutdown()
        self._scene.unlock()
        self._scene = self._acting = self._target = self._keeper = None
        dlwrap.reclaim(SECONDS)
        for stream in {self._capturing.handle, getattr(self._used, "handle", self._capturing.handle)}:
            self._cuda.destroy_stream(stream)

    # ---- the operation ----

    def set_up(self):
        self._scene = Scene(self._cuda, self._used)
        self._operation.before(self._scene)
        self._cuda.clear_calls()

    def act(self):
        self._acting = self._caller.submit(self._operation.act, self._scene)

    def finish(self):
        """Wait for the end of the operation and of the releases that it began."""
        self._acting.result(SECONDS)
        dlwrap.reclaim(SECONDS)

    @property
    def goes_on(self):
        """Whether the operation, or the release that it began, has not ended."""
        return self._scene.alive and (self._operation.act is Scene.drop or not self._acting.done())

    def calls(self):
        """List what was called since `set_up`, but for calls with the GIL held, beside which nobody else can go on."""
        return [call.function for call in self._cuda.calls() if call.function not in QUICK]

    def record(self):
        """List the driver calls of the whole operation; of the second time, when everything is loaded."""
        for _ in range(2):
            self.set_up()
            self.act()
            self.finish()
            calls = self.calls()
            self._scene.end()
        return calls

    def record_in_capture(self):
        """List likewise what is called while the capture is open; of what is repeated until its end, the first."""
        self.set_up()
        self.begin()
        self.act()
        if self.may_wait(["cuStreamIsCapturing"], 0):
            settle()
        else:
            self.finish()
        calls = self.calls()
        self.end()
        self.finish()
        self.run_graph()
        tries = [number for number, call in enumerate(calls) if call == "cuEventCreate"]
        return calls[: tries[1]] if len(tries) > 1 else calls

    def records_on_legacy(self, call):
        """Whether the call is the one that has a test of its own."""
        return self._relation == LEGACY_BESIDE_BLOCKING and call == "cuEventRecord"

    @property
    def makes_only_quick_calls(self):
        """Whether nothing more is asked than in which context the legacy default stream is meant."""
        return self._relation == LEGACY_BESIDE_BLOCKING and not self._operation.waits

    def may_wait(self, calls, stop):
        return self._relation != ANOTHER and self._operation.may_wait(calls, stop)

    @property
    def must_wait(self):
        """Whether an operation that may wait must do so: of what is captured nobody can know the end."""
        return self._relation == THE_SAME

    # ---- gates ----

    def act_until(self, calls, stop):
        """Let the operation go on until it is about to make the call of that number."""
        wanted = calls[stop]
        self._pause(wanted)
        self.act()
        for number in range(stop):
            if calls[number] == wanted != calls[number + 1]:
                self._cuda.wait_until_paused(wanted)
                self.step(wanted, [calls[number + 1]])
                self._pause(wanted)
                self._cuda.resume(calls[number + 1])
        self._cuda.wait_until_paused(wanted)

    def step(self, call, following):
        """Let the call that is held go on, to whichever of the following ones comes next."""
        self._pause(*following)
        self._cuda.resume(call)
        assert eventually(lambda: any(map(self._cuda.waiting, following)))

    def _pause(self, *calls):
        for call in calls:
            self._cuda.pause(call)
        self._paused.update(calls)

    def open_gates(self):
        while self._paused:
            self._cuda.resume(self._paused.pop())

    # ---- the capture ----

    def begin(self):
        self._target[:] = 0
        self._cuda.begin_capture(self._capturing.handle, self._mode)
        self._cuda.launch(self._capturing.handle, self._target, write=7)

    def end(self):
        """End the capture, which must be valid."""
        assert self._cuda.capture_status(self._capturing.handle) == "active", self.calls()
        self._graph = self._cuda.end_capture(self._capturing.handle)

    def run_graph(self):
        """Run what was captured, compare, and let everything go."""
        self._cuda.launch_graph(self._graph, self._capturing.handle)
        assert (self._target == 7).all()
        checked(driver.cuGraphDestroy(self._graph))
        self._scene.end()


@pytest.fixture
def stage(cuda, operation, relation, mode):
    with framework():
        stage = Stage(cuda, operation, relation, mode)
        yield stage
        stage.close()


def stops(stage, calls):
    """Give the numbers of the calls; of equal calls in succession only the first can be held."""
    return [
        number
        for number, call in enumerate(calls)
        if (number == 0 or calls[number - 1] != call) and not stage.records_on_legacy(call)
    ]


def begin_at(stage, calls, stop):
    """Begin a capture right before that call, and end it when the operation got as far as it can."""
    stage.set_up()
    stage.act_until(calls, stop)
    stage.begin()
    stage.open_gates()
    if stage.may_wait(calls, stop):
        settle()
        assert stage.goes_on or not stage.must_wait, f"ended within a capture that began at {stop} of {calls}"
    else:
        stage.finish()
    stage.end()
    stage.finish()
    stage.run_graph()


for_each_case = pytest.mark.parametrize(("operation", "relation"), CASES)
for_each_mode = pytest.mark.parametrize("mode", MODES)


@for_each_mode
@for_each_case
def test_a_capture_may_begin_at_any_call(stage):
    calls = stage.record()
    assert calls or stage.makes_only_quick_calls
    for stop in stops(stage, calls):
        begin_at(stage, calls, stop)


@for_each_mode
@pytest.mark.parametrize(
    ("operation", "relation"),
    [(name, LEGACY_BESIDE_BLOCKING) for name, operation in WITH_STREAM.items() if operation.waits],
)
def test_a_capture_may_begin_when_an_event_is_about_to_be_recorded_for_the_legacy_stream(stage):
    calls = stage.record()
    begin_at(stage, calls, calls.index("cuEventRecord"))


@for_each_mode
@for_each_case
def test_a_capture_may_end_at_any_call(stage):
    stage.record()
    calls = stage.record_in_capture()
    for stop in stops(stage, calls):
        stage.set_up()
        stage.begin()
        stage.act_until(calls, stop)
        stage.end()
        stage.open_gates()
        stage.finish()
        stage.run_graph()


@for_each_mode
@for_each_case
def test_a_capture_may_begin_at_any_call_and_end_at_the_next(stage):
    calls = stage.record()
    known = {*calls, *stage.record_in_capture()}
    for stop in stops(stage, calls)[:-1]:
        stage.set_up()
        stage.act_until(calls, stop)
        stage.begin()
        stage.step(calls[stop], known - {calls[stop]})
        stage.end()
        stage.open_gates()
        stage.finish()
        stage.run_graph()
