"""Python threads, and foreign threads without Python, use every way into dlwrap and out of it at random.

They share a few arrays, whose slices overlap, and a few streams, which are held, let go, destroyed and made again
meanwhile. The arrays are watched: memory that is freed or unregistered too early ends the process with one line.
Every byte of an array has one value for its whole life, also the bytes that simulated kernels write, so that a late
write into memory that was given to a later array shows.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import dlwrap
import dlwrap.testing
from capsules import take
from patience import SECONDS
from soak._report import Outcome, report
from stream_objects import pose_as_cupy

THREADS = 16
FOREIGN_THREADS = 4
PARENTS = 3
STREAMS = 4
NBYTES = 1 << 14
MOST_HELD = 4  # wraps per thread
PHASES = {"pinned": {}, "pageable": {"pageable": True}}

# What the program may be told, by the start of the message; everything else is a fault.
EXPECTED = {
    "overlap": (BufferError, "cannot page-lock bytes", "a live wrap or pin of dlwrap has page-locked"),
    "importers alive": (BufferError, "cannot close:", "still alive; drop the tensors and arrays made from it"),
}
# Where another thread may have closed the buffer meanwhile.
EXPECTED_IF_SHARED = {
    **EXPECTED,
    "closed, no export": (BufferError, "cannot export a closed HostWrappedBuffer", "wrap the array again"),
    "closed": (ValueError, "this HostWrappedBuffer is closed", "wrap the array again"),
}


@pose_as_cupy
class Stream:
    """Poses as a CuPy stream: holding it keeps the handle alive, and the handle dies with it."""

    # Taken by whoever holds a destroyed stream: letting its number go lets every stream of that number go.
    numbers = threading.Lock()

    def __init__(self, cuda, *, blocking):
        with self.numbers:
            self._cuda, self.ptr = cuda, cuda.create_stream(blocking=blocking)

    def __cuda_stream__(self):
        return (0, self.ptr)

    def __del__(self):
        self._cuda.destroy_stream(self.ptr)


class ForeignThreads:
    """Threads that Python knows nothing of, which drop what they are given."""

    def __init__(self, count, seed):
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "foreign.so")
            source = Path(__file__).with_name("foreign.c")
            compiler = os.environ.get("CC", "cc").split()
            subprocess.run([*compiler, "-shared", "-fPIC", "-O1", "-pthread", "-o", made, source], check=True)
            self._library = ctypes.CDLL(made)
        self._library.foreign_give.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t, ctypes.c_ubyte]
        self._library.foreign_give.restype = ctypes.c_bool
        self._library.foreign_stop.restype = self._library.foreign_wrong.restype = ctypes.c_long
        assert self._library.foreign_start(count, seed & 0x7FFFFFFF) == count

    def give(self, imported, nbytes, value):
        """Have them drop a tensor of so many bytes of that value; False if they have too many."""
        data = imported.tensor.data
        return self._library.foreign_give(imported.address, imported.managed.deleter, data, nbytes, value)

    def stop(self):
        """Wait until all is dropped; give how many tensors that were, and how many had wrong bytes."""
        return self._library.foreign_stop(), self._library.foreign_wrong()


class Tensor:
    """An import, and the streams that its user may launch on."""

    def __init__(self, imported, streams):
        self.imported, self.streams = imported, streams


class Held:
    """A wrap, and what was made of it."""

    def __init__(self, array, value, buffer):
        self.array, self.value, self.buffer = array, value, buffer
        self.tensors = []


class Arena:
    """What all threads share, and what came of it."""

    def __init__(self, cuda, foreign, *, pinned):
        self.cuda, self.foreign, self.pinned = cuda, foreign, pinned
        self.stop = threading.Event()
        self.faults = []
        self._values = iter(range(1 << 62))
        self.parents = [self.new_array() for _ in range(PARENTS)]
        self.streams = [Stream(cuda, blocking=i % 2 == 0) for i in range(STREAMS)]
        self.board = [None] * 2  # wraps that threads use together

    def new_array(self, nbytes=NBYTES):
        """Give a watched array and the value of its bytes, which the arrays before it at its address had not."""
        value = next(self._values) % 251 + 1
        return self.cuda.host_array(nbytes, np.uint8, value), value

    def fault(self, what):
        """Note what broke a promise, and end the run."""
        self.faults.append(what)
        self.stop.set()


class Worker:
    """One thread of the program."""

    def __init__(self, arena, seed):
        self.arena, self.cuda = arena, arena.cuda
        self.random = random.Random(seed)
        self.held = []
        self.counts = Counter()

    def run(self):
        """Do random things until told to stop, then let everything go."""
        actions, weights = zip(*ACTIONS.items(), strict=True)
        while not self.arena.stop.is_set():
            action = self.random.choices(actions, weights)[0]
            with self._expecting(action.__name__, EXPECTED):
                action(self)
                self.counts[action.__name__] += 1
        for held in self.held:
            for tensor in held.tensors:
                tensor.imported.delete()
        self.held.clear()

    @contextlib.contextmanager
    def _expecting(self, action, expected):
        """Count what may be refused, and note every other error as a fault."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- every error is looked at
            for name, (kind, begin, end) in expected.items():
                if type(error) is kind and str(error).startswith(begin) and end in str(error):
                    self.counts[f"refused: {name}"] += 1
                    return
            trace = "".join(traceback.format_exception(error))
            self.arena.fault(f"{action} raised {type(error).__name__}: {error}\n{trace}")

    # ---- choosing ----

    def _pick(self):
        return self.random.choice(self.held) if self.held else None

    def _pick_tensor(self):
        held = self._pick()
        return (held, self.random.choice(held.tensors)) if held is not None and held.tensors else (None, None)

    def _slice(self, parent):
        """Give the array, or a part of it that overlaps others."""
        if self.random.random() < 0.4:
            return parent
        start = self.random.randrange(0, len(parent), len(parent) // 8)
        return parent[start : start + self.random.choice([1, len(parent) // 8, len(parent) // 2])]

    # ---- ways in ----

    def wrap(self):
        """Wrap an array or a part of it."""
        if len(self.held) == MOST_HELD:
            self.drop()
        array, value = self.random.choice(self.arena.parents)
        array = self._slice(array)
        extent = self.random.choices(["owner", "view"], [9, 1])[0]
        wait = self.random.choices(["streams", "device"], [9, 1])[0]
        self.held.append(Held(array, value, dlwrap.wrap(array, extent=extent, wait=wait)))

    def export(self):
        """Import it in one of the forms, on one of the streams; keep the tensor, or drop it in one of the ways."""
        if (held := self._pick()) is None:
            return
        told, streams = self._choose_stream(held.buffer)
        version = self.random.choice([None, (1, 0), (1, 3)])
        capsule = held.buffer.__dlpack__(stream=getattr(told, "ptr", told), max_version=version)
        del told  # from here on nobody may keep the stream: it may be destroyed at any time
        if self.random.random() < 0.2:
            return  # nobody takes it
        tensor = Tensor(take(capsule, clear_destructor=self.random.random() < 0.3), streams)
        if tensor.imported.tensor.data != held.array.ctypes.data:
            self.arena.fault(f"a tensor at {tensor.imported.tensor.data:#x} of {held.array.ctypes.data:#x}")
        held.tensors.append(tensor)

    def _choose_stream(self, buffer):
        """Give what to tell, and the streams that are then waited for; None stands for every stream."""
        match self.random.randrange(6):
            case 0:
                return 1, [1]
            case 1:
                return 2, None
            case 2:
                return self.random.choice([None, -1]), None
            case 3:
                return self.random.choice(self.arena.streams), None
            case _:
                stream = self.random.choice(self.arena.streams)
                buffer.record_stream(stream)
                return 1, [1, stream]

    def view_on_the_host(self):
        """Import it on the CPU, after the work that was submitted before."""
        if (held := self._pick()) is None:
            return
        held.buffer.record_stream(1)
        self.cuda.launch(1, held.array, write=held.value)
        copy = self.random.choice([None, True])
        tensor = take(held.buffer.__dlpack__(dl_device=(1, 0), max_version=(1, 0), copy=copy))
        if not (tensor.as_array(np.uint8) == held.value).all():
            self.arena.fault("a CPU view has other bytes than its array")
        tensor.delete()

    def export_a_copy(self):
        """Import a page-locked copy."""
        if (held := self._pick()) is None:
            return
        tensor = take(held.buffer.__dlpack__(stream=1, max_version=(1, 0), copy=True))
        if tensor.tensor.data == held.array.ctypes.data:
            self.arena.fault("a copy is no copy")
        self.cuda.launch(1, (tensor.tensor.data, held.array.nbytes))
        tensor.delete()

    def read_pointer(self):
        """Read the pointer and launch on any stream."""
        if (held := self._pick()) is not None:
            self._launch(held, None)

    def pin(self):
        """Pin a part, wrap inside, and let go."""
        array, value = self.random.choice(self.arena.parents)
        with dlwrap.pin(array):
            part = self._slice(array)
            buffer = dlwrap.wrap(part)
            self._check(Held(part, value, buffer))

    # ---- work ----

    def launch(self):
        """Launch a kernel on a tensor, on a stream that its release has to wait for."""
        held, tensor = self._pick_tensor()
        if tensor is not None:
            self._launch(held, tensor.streams)

    def _launch(self, held, streams):
        if streams is None:
            streams = [1, 2, *self.arena.streams]
            pointer = held.buffer.ptr
        else:
            pointer = held.array.ctypes.data
        stream = self.random.choice(streams)
        write = self.random.choice([None, held.value])
        self.cuda.launch(getattr(stream, "ptr", stream), (pointer, held.array.nbytes), write=write)

    def launch_on_the_per_thread_stream(self):
        """Keep the thread's own stream busy while the tensor is dropped; only this thread can let it go."""
        if (held := self._pick()) is None:
            return
        tensor = take(held.buffer.__dlpack__(stream=2))
        self.cuda.hold(2)
        try:
            self.cuda.launch(2, held.array, write=held.value)
            tensor.delete()
        finally:
            self.cuda.let_go(2)

    def synchronize(self):
        """Wait for the work."""
        if (held := self._pick()) is not None:
            held.buffer.synchronize()

    # ---- ways out ----

    def drop_tensor(self):
        """Drop a tensor here, or give it to a thread without Python."""
        held, tensor = self._pick_tensor()
        if tensor is None:
            return
        held.tensors.remove(tensor)
        if self.random.random() < 0.3 or not self.arena.foreign.give(tensor.imported, held.array.nbytes, held.value):
            tensor.imported.delete()

    def drop(self):
        """Drop a wrap and all its tensors, in either order, some of it as part of a reference cycle."""
        if (held := self._pick()) is None:
            return
        self.held.remove(held)
        if self.random.random() < 0.2:
            cycle = [held.buffer]
            cycle.append(cycle)
        if self.random.random() < 0.5:
            held.buffer = None
        for tensor in held.tensors:
            if not self.arena.foreign.give(tensor.imported, held.array.nbytes, held.value):
                tensor.imported.delete()

    def close(self):
        """Close a wrap; with tensors alive that is refused, and the wrap goes on."""
        if (held := self._pick()) is None:
            return
        held.buffer.close(SECONDS)
        self.held.remove(held)
        if not held.buffer.closed or held.tensors:
            self.arena.fault(f"a buffer was closed with {len(held.tensors)} tensors alive")

    def reclaim(self):
        """Wait for all that was released."""
        dlwrap.reclaim(SECONDS)

    def configure(self):
        """Change how long, and how much, lingers."""
        seconds = self.random.choice([0, 0.001, 0.01, float("inf")])
        dlwrap.configure(linger_seconds=seconds, linger_bytes=self.random.choice([0, NBYTES, 1 << 28]))

    def collect(self):
        """Collect garbage."""
        gc.collect(self.random.choices([0, 1, 2], [8, 4, 1])[0])

    # ---- what threads share ----

    def use_shared(self):
        """Make, export, close or drop a wrap that other threads use at the same time."""
        board = self.arena.board
        place = self.random.randrange(len(board))
        buffer = board[place]
        if buffer is None:
            board[place] = dlwrap.wrap(self.arena.parents[place % PARENTS][0])
            return
        with self._expecting("use_shared", EXPECTED_IF_SHARED):
            match self.random.randrange(4):
                case 0:
                    take(buffer.__dlpack__(stream=1, max_version=(1, 0))).delete()
                case 1:
                    buffer.record_stream(self.random.choice(self.arena.streams))
                case 2:
                    buffer.close(SECONDS)
                    board[place] = None
                case _:
                    board[place] = None

    def replace_array(self):
        """Let go of a shared array and make another, perhaps at the same address."""
        self.arena.parents[self.random.randrange(PARENTS)] = self.arena.new_array()

    def replace_stream(self):
        """Let go of a stream, whose work goes on, and make another, perhaps with the same handle."""
        blocking = self.random.random() < 0.5
        self.arena.streams[self.random.randrange(STREAMS)] = Stream(self.cuda, blocking=blocking)

    # ---- promises ----

    def check(self):
        """Look at a wrap that is alive."""
        if (held := self._pick()) is not None:
            self._check(held)

    def _check(self, held):
        if self.arena.pinned and not any(self._is_locked(held.array) for _ in range(100)):
            self.arena.fault(f"wrapped memory {held.array.ctypes.data:#x} is not page-locked")
        if held.buffer.exports < len(held.tensors):  # foreign threads may have more
            self.arena.fault(f"{len(held.tensors)} tensors are alive, and the buffer counts {held.buffer.exports}")
        if not (held.array == held.value).all():
            self.arena.fault("a wrapped array has other bytes than were ever written to it")
        if dlwrap.stats().leaked:
            self.arena.fault("memory was leaked")

    def _is_locked(self, array):
        """Look for the array among what is page-locked; the list may be short while other threads page-lock more."""
        start, stop = array.ctypes.data, array.ctypes.data + array.nbytes
        return any(each.start <= start and stop <= each.start + each.nbytes for each in self.cuda.registrations)

    def drop_everything_with_work_pending(self):
        """See that an array outlives wrapper and tensor while its own stream is held, also a destroyed one."""
        array, value = self.arena.new_array(64)
        alive = weakref.ref(array)
        buffer, stream = dlwrap.wrap(array), Stream(self.cuda, blocking=False)
        handle = stream.ptr
        tracked = self.random.random() < 0.5
        if tracked:
            buffer.record_stream(stream)
        tensor = take(buffer.__dlpack__(stream=1 if tracked else handle))
        destroyed = not tracked and self.random.random() < 0.5
        with Stream.numbers if destroyed else contextlib.nullcontext():
            self.cuda.hold(handle)
            self.cuda.launch(handle, array, write=value)
            if destroyed:
                del stream
            del array, buffer
            tensor.delete()
            if self.cuda.pending(handle) == 0:
                self.arena.fault("the simulated kernel ran on a held stream")
            if alive() is None:
                self.arena.fault("an array was dropped with work pending on it")
            self.cuda.let_go(handle)


# How often each thing is done, relatively.
ACTIONS = {
    Worker.wrap: 20,
    Worker.export: 30,
    Worker.view_on_the_host: 2,
    Worker.export_a_copy: 2,
    Worker.read_pointer: 2,
    Worker.pin: 3,
    Worker.launch: 30,
    Worker.launch_on_the_per_thread_stream: 4,
    Worker.synchronize: 1,
    Worker.drop_tensor: 25,
    Worker.drop: 12,
    Worker.close: 3,
    Worker.reclaim: 1,
    Worker.configure: 1,
    Worker.collect: 2,
    Worker.use_shared: 6,
    Worker.replace_array: 2,
    Worker.replace_stream: 4,
    Worker.check: 8,
    Worker.drop_everything_with_work_pending: 4,
}


def hold_streams(arena, seed):
    """Hold the streams in turns, so that releases are really pending."""
    chance = random.Random(seed)
    while not arena.stop.is_set():
        streams = chance.sample([1, *arena.streams], chance.randrange(1, STREAMS))
        handles = [getattr(stream, "ptr", stream) for stream in streams]
        for handle in handles:
            arena.cuda.hold(handle)
        arena.stop.wait(chance.random() * 0.004)
        for handle in handles:
            arena.cuda.let_go(handle)
        del streams
        arena.stop.wait(chance.random() * 0.002)


@contextlib.contextmanager
def shown_errors_are_faults(arena):
    """Turn what threads and finalisers would show, and every warning, into faults."""
    hooks = sys.unraisablehook, threading.excepthook

    def note(shown):
        error = shown.exc_value
        arena.fault("shown: " + "".join(traceback.format_exception(error) if error else [repr(shown)]))

    sys.unraisablehook = threading.excepthook = note
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
    finally:
        sys.unraisablehook, threading.excepthook = hooks
    arena.faults += [f"warned: {each.message}" for each in warned]


def run_phase(cuda, seed, seconds, *, pinned):
    """Run one memory kind; give the counts and the faults."""
    foreign = ForeignThreads(FOREIGN_THREADS, seed)
    arena = Arena(cuda, foreign, pinned=pinned)
    workers = [Worker(arena, f"{seed}-{i}") for i in range(THREADS)]
    bodies = [worker.run for worker in workers] + [lambda: hold_streams(arena, f"{seed}-holder")]
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    with shown_errors_are_faults(arena):
        for thread in threads:
            thread.start()
        arena.stop.wait(seconds)
        if not arena.faults and not all(thread.is_alive() for thread in threads):
            arena.faults.append("a thread ended before it was told to")
        arena.stop.set()
        deadline = time.monotonic() + 3 * SECONDS
        for thread in threads:
            thread.join(max(0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            faulthandler.dump_traceback(all_threads=True)
            arena.faults.append("a thread hangs; its stack is on stderr")
            return Counter(), arena.faults
        counts = sum((worker.counts for worker in workers), Counter())
        del workers, bodies, threads
        counts["dropped by foreign threads"], wrong = foreign.stop()
        if wrong:
            arena.faults.append(f"{wrong} tensors had other bytes than were ever written, in foreign threads")
        check_nothing_left(arena)
    return counts, arena.faults


def check_nothing_left(arena):
    """Drop what is shared, and look for anything that is still there."""
    cuda, faults = arena.cuda, arena.faults
    arena.board.clear()
    gc.collect()
    try:
        dlwrap.reclaim(SECONDS)
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is a fault
        faults.append(f"the last reclaim() raised {type(error).__name__}: {error}")
    left = dlwrap.stats()
    if any(dataclasses.astuple(left)):
        faults.append(f"at the end something is left: {left}")
    if cuda.pending() or cuda.registrations:
        faults.append(f"at the end {cuda.pending()} operations are pending, and {cuda.registrations} page-locked")
    if cuda.host_arrays_alive != len(arena.parents):
        faults.append(f"at the end {cuda.host_arrays_alive} arrays are alive, not {len(arena.parents)}")
    arena.parents.clear()
    arena.streams.clear()


def soak(seed, seconds):
    """Run every memory kind for an equal time."""
    outcome = Outcome(rounds=0)
    for name, settings in PHASES.items():
        counts, faults = Counter(), []
        try:
            with dlwrap.testing.simulated_cuda(**settings) as cuda:
                counts, faults = run_phase(cuda, seed, seconds / len(PHASES), pinned=name == "pinned")
        except AssertionError as left:
            faults.append(str(left))
        outcome.rounds += sum(counts[action.__name__] for action in ACTIONS)
        outcome.faults += [f"{name} memory, seed {seed}: {fault}" for fault in faults]
        outcome.figures[name] = dict(sorted(counts.items()))
        dlwrap.configure()
        if faults:
            break
    return outcome


def main():
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, help="where to write the result as JSON")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    dlwrap.testing.activate()
    parameters = {"seed": options.seed, "seconds": options.seconds}
    return report("threads", parameters, lambda: soak(options.seed, options.seconds), options.out)


if __name__ == "__main__":
    sys.exit(main())
