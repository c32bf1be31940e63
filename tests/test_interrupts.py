"""An interrupt, or a lack of memory, at any line of dlwrap leaves nothing behind.

Each operation runs again and again, with an exception raised at its first line inside dlwrap, at its second, and so on,
until it runs through.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
from cuda_calls import checked
from dlwrap import _driver
from patience import SECONDS, eventually
from scripts import outcome, run
from stand_ins import Imported
from stream_objects import SimulatedStream

FILES = {str(path) for path in Path(dlwrap.__file__).parent.glob("*.py")}
FOREVER = float("inf")
THREAD_LOCAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
MOST_LINES = 2000  # of one operation; more means that it never runs through


SERVED_IN_C = {"export", "export a legacy capsule"}


@functools.cache
def untouchable(code):
    """The offsets at which only a trace function raises, and skips what `with` promises; no interrupt comes there.

    Where a `with` block is left: interrupts come before, at the end of its last call, or after. And the next turn of a
    comprehension that Python 3.12 and 3.13 run inside the function: interrupts do reach the `with` from there.
    """
    instructions = list(dis.get_instructions(code))
    names = [each.opname for each in instructions]
    offsets = set()
    for at, name in enumerate(names):
        arguments = [each.argval for each in instructions[at : at + 3]]
        is_call = any("CALL" in each for each in names[at + 3 : at + 5])
        if name == "LOAD_CONST" and is_call and (arguments == [None] * 3 or names[at + 1 : at + 3] == ["DUP_TOP"] * 2):
            first = at
            while names[first - 1] in {"SWAP", "ROT_TWO", "POP_BLOCK", "NOP"}:  # the value of a `return` inside
                first -= 1
            offsets |= {each.offset for each in instructions[first : at + 1]}
        if name == "FOR_ITER" and names[at - 2] in {"BUILD_LIST", "BUILD_SET", "BUILD_MAP"} and names[at - 1] == "SWAP":
            turn = instructions[at].offset
            offsets |= {turn} | {each.offset for each in instructions if "JUMP" in each.opname and each.argval == turn}
    return offsets


def interrupted(operation, line, error, files=FILES):
    """Run the operation, and raise the error at its n-th line inside these files; tell where, or None: it had fewer."""
    left, where = line, None

    def trace(frame, event, argument):
        nonlocal left, where
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and frame.f_lasti not in untouchable(frame.f_code):
            left -= 1
            if left == 0:
                where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        operation()
    except (error, BufferError, dlwrap.DLWrapError):
        # A step that failed may be reported by another error, or be done without.
        if where is None:
            raise
    finally:
        sys.settrace(before)
    # Where a trace function raises in an `except` clause, the thread goes on as if it still handled that exception.
    handled = sys.exc_info()[1]
    while handled is not None:
        handled.__traceback__, handled = None, handled.__context__
    return where


def every_line(check, error):
    """Interrupt what `check` gives at each of its lines in turn."""
    line = 1
    while check(line, error):
        line += 1
        assert line < MOST_LINES
    return line - 1


class Scene:
    """What an operation may need; everything in it is dropped afterwards."""

    def __init__(self, cuda):
        self.cuda = cuda
        self.parent = cuda.host_array(1000)
        self.array = self.parent[:500]
        self.stream = SimulatedStream(cuda, blocking=False)
        self.given = []
        self.foreign = None  # where somebody else registered memory
        self.captures = False

    def keep(self, made):
        self.given.append(made)
        return made

    def end(self):
        """Give up what is not dlwrap's."""
        if self.foreign is not None:
            with _driver.primary_context(0):
                checked(driver.cuMemHostUnregister(self.foreign))
        if self.captures:
            checked(driver.cuGraphDestroy(driver.CUgraph(self.cuda.end_capture(self.stream.ptr))))


def uninitialised(scene):
    _driver._module.cache_clear()
    _driver._primary.cache_clear()
    _driver.primary_handle.cache_clear()


def wrapped(scene):
    scene.buffer = dlwrap.wrap(scene.parent)


def used(scene):
    wrapped(scene)
    scene.buffer.record_stream(1)
    scene.buffer.record_stream(scene.stream)


def pinned(scene):
    scene.pin = dlwrap.pin(scene.parent)


def lingering(scene):
    dlwrap.configure(linger_seconds=FOREVER)
    dlwrap.wrap(scene.parent)
    while not dlwrap.stats().lingering:
        pass


def lingering_slice(scene):
    dlwrap.configure(linger_seconds=FOREVER)
    dlwrap.wrap(scene.array, extent="view")
    while not dlwrap.stats().lingering:
        pass


def registered_by_somebody_else(scene):
    register_by_somebody_else(scene, scene.parent)


def registered_in_part(scene):
    register_by_somebody_else(scene, scene.array)


def register_by_somebody_else(scene, array):
    scene.foreign = array.__array_interface__["data"][0]
    with _driver.primary_context(0):
        checked(driver.cuMemHostRegister(scene.foreign, array.nbytes, 0))


def nothing(scene):
    pass


def capturing(scene):
    wrapped(scene)
    scene.cuda.begin_capture(scene.stream.ptr)
    scene.captures = True


def dropped(scene):
    used(scene)
    del scene.buffer


WRAP = {
    "wrap": (nothing, lambda scene: scene.keep(dlwrap.wrap(scene.parent))),
    "wrap a view": (nothing, lambda scene: scene.keep(dlwrap.wrap(scene.array, extent="view"))),
    "wrap again": (wrapped, lambda scene: scene.keep(dlwrap.wrap(scene.array))),
    "wrap inside a pin": (pinned, lambda scene: scene.keep(dlwrap.wrap(scene.array))),
    "wrap for another device": (wrapped, lambda scene: scene.keep(dlwrap.wrap(scene.parent, device=1))),
    "wrap what lingers": (lingering, lambda scene: scene.keep(dlwrap.wrap(scene.parent))),
    "wrap what a lingering range is in the way of": (
        lingering_slice,
        lambda scene: scene.keep(dlwrap.wrap(scene.parent)),
    ),
    "wrap what somebody else registered": (
        registered_by_somebody_else,
        lambda scene: scene.keep(dlwrap.wrap(scene.parent)),
    ),
    "wrap beside what somebody else registered": (
        registered_in_part,
        lambda scene: scene.keep(dlwrap.wrap(scene.parent[600:])),
    ),
    "wrap before the driver is initialised": (
        uninitialised,
        lambda scene: scene.keep(dlwrap.wrap(scene.parent)),
    ),
    "pin": (nothing, lambda scene: scene.keep(dlwrap.pin(scene.parent))),
    "make an array that is born page-locked": (nothing, lambda scene: scene.keep(dlwrap.zeros((3, 4), order="F"))),
}
USE = {
    "export": (wrapped, lambda scene: scene.keep(scene.buffer.__dlpack__(stream=1, max_version=(1, 0)))),
    "export a legacy capsule": (wrapped, lambda scene: scene.keep(scene.buffer.__dlpack__())),
    "export to a stream": (wrapped, lambda scene: scene.keep(scene.buffer.__dlpack__(stream=scene.stream.ptr))),
    "export a copy": (wrapped, lambda scene: scene.keep(scene.buffer.__dlpack__(stream=1, copy=True))),
    "export to the host": (used, lambda scene: scene.keep(np.from_dlpack(scene.buffer, device="cpu"))),
    "export a copy to the host": (
        used,
        lambda scene: scene.keep(scene.buffer.__dlpack__(dl_device=(1, 0), copy=True, max_version=(1, 0))),
    ),
    "the array": (used, lambda scene: scene.keep(np.asarray(scene.buffer))),
    "a view on the host": (used, lambda scene: scene.keep(dlwrap.host_view(scene.buffer))),
    "a view of what a framework made": (used, lambda scene: scene.keep(dlwrap.host_view(Imported(scene.buffer)))),
    "the pointer": (wrapped, lambda scene: (scene.buffer.ptr, scene.buffer.__cuda_array_interface__)),
    "record_stream": (wrapped, lambda scene: scene.buffer.record_stream(scene.stream)),
    "export to a capturing stream": (
        capturing,
        lambda scene: scene.keep(scene.buffer.__dlpack__(stream=scene.stream.ptr)),
    ),
    "keep_alive": (capturing, lambda scene: dlwrap.keep_alive(scene.stream, scene.buffer)),
    "synchronize": (used, lambda scene: scene.buffer.synchronize()),
    "close": (used, lambda scene: scene.buffer.close(SECONDS)),
    "close a pin": (pinned, lambda scene: scene.pin.close(SECONDS)),
    "reclaim": (dropped, lambda scene: dlwrap.reclaim(SECONDS)),
    "reclaim what lingers": (lingering, lambda scene: dlwrap.reclaim(SECONDS)),
    "support": (nothing, lambda scene: dlwrap.support()),
    "stats": (wrapped, lambda scene: dlwrap.stats()),
    "configure": (lingering, lambda scene: dlwrap.configure(linger_seconds=0)),
}
OPERATIONS = WRAP | USE


@contextlib.contextmanager
def own_choice(cuda):
    """Give this thread a current context and a capture mode of its own choice."""
    cuda.configure(devices=2)
    _driver.device_count()
    checked(driver.cuCtxPushCurrent(checked(driver.cuDevicePrimaryCtxRetain(0))))
    checked(driver.cuThreadExchangeStreamCaptureMode(THREAD_LOCAL))
    yield
    checked(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    checked(driver.cuCtxPopCurrent())


@pytest.fixture
def caller():
    """A thread for this test alone, because exceptions that a trace function raises may be left in it as handled."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def elsewhere():
    """Another thread: a lock that the caller left taken would be in its way."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def left_behind(cuda):
    """What is still lent, page-locked or kept after everything was dropped."""
    eventually(lambda: dlwrap.stats().graphs == 0)  # the driver tells of the end of a graph on a thread of its own
    dlwrap.reclaim(SECONDS)
    if cuda.host_arrays_alive:
        gc.collect()  # an exception raised while another was handled may be part of a cycle
        dlwrap.reclaim(SECONDS)
    counts = {name: getattr(dlwrap.stats(), name) for name in dlwrap.Stats.__slots__}
    counts |= {"registrations": len(cuda.registrations), "arrays": cuda.host_arrays_alive}
    return {name: count for name, count in counts.items() if count}


def state_of_caller():
    mode = checked(driver.cuThreadExchangeStreamCaptureMode(THREAD_LOCAL))
    context = checked(driver.cuCtxPopCurrent())
    below = int(checked(driver.cuCtxGetCurrent()))
    checked(driver.cuCtxPushCurrent(context))
    return (mode, int(context) == int(_driver._primary(0)), below)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_exception_at_any_line_leaves_nothing_of(name, error, cuda, caller, leaks, elsewhere):
    prepare, operate = OPERATIONS[name]

    def go_on():
        left = left_behind(cuda)
        dlwrap.wrap(np.zeros(10)).close(SECONDS)
        return left, cuda.registrations

    def check(line, error):
        scene = Scene(cuda)
        prepare(scene)
        where = interrupted(functools.partial(operate, scene), line, error)
        dlwrap.configure(linger_seconds=0)
        scene.end()
        del scene
        assert (where, *elsewhere.submit(go_on).result(SECONDS)) == (where, {}, [])
        assert (where, *state_of_caller()) == (where, THREAD_LOCAL, True, 0)
        return where

    def check_every_line():
        with own_choice(cuda):
            return every_line(check, error)

    lines = caller.submit(check_every_line).result()
    assert lines == 0 if name in SERVED_IN_C else lines > 5


FIRST_WRAP = """
import test_interrupts
from dlwrap import _lifetime

def first_wrap(line):
    where = test_interrupts.interrupted(lambda: dlwrap.wrap(array()), line, KeyboardInterrupt, {_lifetime.__file__})
    dlwrap.wrap(array()).close(20)
    dlwrap.reclaim(20)
    threads = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("dlwrap"))
    gc.collect()
    left = (cuda.registrations, cuda.host_arrays_alive, dlwrap.stats().live, threads)
    expected = ([], 0, 0, ["dlwrap-lifetime", "dlwrap-sweeper"])
    if left != expected:
        print(line, where, left, flush=True)
    return 0 if where is None else 2 if left == expected else 1

line, status = 1, 2
while status == 2:
    child = os.fork()  # before the first wrap dlwrap can be used on both sides
    if not child:
        os._exit(first_wrap(line))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    line += 1
print(status, line > 20)
"""


def test_an_interrupt_at_any_line_of_the_first_wrap_leaves_the_next_one_two_threads():
    done = run(FIRST_WRAP)
    assert (*outcome(done), done.stdout) == (0, "", "0 True\n")
