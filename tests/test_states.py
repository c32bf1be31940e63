"""Anything that a program may do, in any order, against the model: no byte is given back too early, none is kept."""

from __future__ import annotations

import math
import re
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import dlwrap
import dlwrap.testing
from _model import LEGACY, PER_THREAD, Graph, Lease, Memory, Model, Stream
from capsules import Imported, look, take
from cuda_calls import checked
from dlwrap import _driver, _lifetime
from dlwrap._waits import Wait
from patience import SECONDS, eventually, settle
from stream_objects import pose_as_cupy

MARKERS = 1 << 12  # more than one example can submit
SHAPE = (4, 6)
PARTS = {
    "all": np.s_[...],
    "rows": np.s_[1:3],
    "other rows": np.s_[2:],
    "columns": np.s_[:, 1:4],
    "every other row": np.s_[::2],
    "one element": np.s_[3, 5:],
    "nothing": np.s_[2:2],
}
SEVERAL = 4  # of each kind of thing at a time


class Watched:
    """What owns an array's memory: tells when it is dropped. The bytes stay, so that a fault is seen, not suffered."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.__array_interface__ = {"version": 3, "shape": SHAPE, "typestr": "<f4", "data": (memory.start, False)}

    def __del__(self) -> None:
        self._memory.freed = True


# Held while a stream is destroyed, and while it is used because it is not: its last owner may be a thread of dlwrap.
destroying = threading.RLock()


@pose_as_cupy
class OwnedStream:
    """Poses as a CuPy stream: whoever holds it keeps the handle alive."""

    def __init__(self, cuda: dlwrap.testing.SimulatedDriver, stream: Stream) -> None:
        self._cuda, self._stream = cuda, stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._stream.handle)

    def __del__(self) -> None:
        with destroying:
            self._stream.is_destroyed = True
            self._cuda.destroy_stream(self._stream.handle)


@dataclass(eq=False)
class Consumer:
    """Somebody who took a capsule, or still has it unconsumed."""

    lease: Lease
    capsule: Any
    imported: Imported | None


def attempt(call: Any, *refusals: type[BaseException]) -> tuple[Any, str | None]:
    """Give the result, and why it was refused."""
    try:
        return call(), None
    except refusals as refusal:
        return None, f"{type(refusal).__name__}: {refusal}"


picks = st.integers(0, 11)


class States(RuleBasedStateMachine):
    """Does to dlwrap and to the model the same, and compares."""

    steps = 0  # of all examples

    def __init__(self) -> None:
        super().__init__()
        self.cuda = dlwrap.testing.activate()
        self.cuda.reset(force=True)
        self.graveyard: list[Any] = []
        self.consumers: list[Consumer] = []
        self.husks: list[Any] = []  # capsules whose deleter was called already
        self.before = dlwrap.stats()
        self.current: Any = None  # CuPy's current stream
        self.cupy_before = sys.modules.get("cupy")
        sys.modules["cupy"] = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda device: self.current))

    @initialize(
        pageable=st.booleans(),
        offset=st.sampled_from([0, 1 << 24]),
        devices=st.integers(1, 2),
        own=st.sampled_from([True, True, False]),
    )
    def begin(self, pageable: bool, offset: int, devices: int, own: bool) -> None:
        # Without `strict` the simulated driver waits in an unregister that comes too early, as a real one does.
        self.cuda.configure(pageable=pageable, pointer_offset=0 if pageable else offset, devices=devices, strict=False)
        dlwrap.configure(linger_seconds=0)
        _lifetime.manager().start()
        self.pageable, self.offset, self.devices = pageable, 0 if pageable else offset, devices
        self.model = Model(np.zeros(MARKERS, np.uint8))
        with _driver.primary_context(0):
            _driver.register(self.model.markers.ctypes.data, MARKERS)
        self.legacy = [Stream(LEGACY, device) for device in range(devices)]
        self.model.streams += [*self.legacy, Stream(PER_THREAD, 0)]
        self.new_memory()
        self.new_stream(device=0, blocking=True, owned=own)

    # ---- memory and streams ----

    @rule()
    def new_memory(self) -> None:
        if len(self._arrays()) >= SEVERAL:
            return
        # From NumPy's own heap, so that ranges of different arrays share pages.
        raw = np.zeros(SHAPE, np.float32)
        self.graveyard.append(raw)
        memory = Memory(raw.ctypes.data, raw.ctypes.data + raw.nbytes)
        memory.array = np.asarray(Watched(memory))
        self.model.memories.append(memory)

    @rule(device=st.integers(0, 1), blocking=st.booleans(), owned=st.sampled_from([True, True, False]))
    def new_stream(self, device: int, blocking: bool, owned: bool) -> None:
        if len(self._ordinary()) >= SEVERAL:
            return
        device %= self.devices
        handle = self.cuda.create_stream(blocking=blocking, device=device)
        stream = Stream(handle, device, blocking)
        if owned:
            stream.is_owned, stream.owner = True, OwnedStream(self.cuda, stream)
        self.model.streams.append(stream)

    @rule(pick=picks)
    def destroy_stream(self, pick: int) -> None:
        stream = self._pick(self._ordinary(capture=False), pick)
        if stream is not None:
            self._destroy_stream(stream)

    def _destroy_stream(self, stream: Stream) -> None:
        stream.is_usable = False
        if not stream.is_owned:
            self.cuda.destroy_stream(stream.handle)
        stream.owner = None

    @rule(pick=picks)
    def hold(self, pick: int) -> None:
        """Let a long kernel run that uses none of the arrays."""
        stream = self._pick([stream for stream in self._free_streams() if stream.capture is None], pick)
        self.cuda.hold(stream.handle)
        stream.held = True
        self._mark(self.model.submit(stream))

    @rule(pick=picks)
    def let_go(self, pick: int) -> None:
        stream = self._pick([stream for stream in self.model.streams if stream.held], pick)
        if stream is not None:
            self._let_go(stream.handle)

    # ---- wrappers ----

    @rule(
        pick=picks,
        part=st.sampled_from([*PARTS]),
        memory=st.sampled_from(["auto", "pinned"]),
        extent=st.sampled_from(["owner", "view"]),
        wait=st.sampled_from(4 * ["streams"] + ["device"]),
        readonly=st.sampled_from([None, True]),
        device=st.integers(0, 1),
    )
    def wrap_an_array(
        self, pick: int, part: str, memory: str, extent: str, wait: str, readonly: bool | None, device: int
    ) -> None:
        self.wrap(pick, part, memory, extent, wait, readonly, device)

    def wrap(
        self, pick: int, part: str, memory: str, extent: str, wait: str, readonly: bool | None, device: int
    ) -> Lease | None:
        options = {"memory": memory, "extent": extent, "wait": wait, "readonly": readonly}
        lease = self._lend(dlwrap.wrap, pick, part, device, locked=memory == "pinned" or not self.pageable, **options)
        if lease is not None:
            lease.device_wide = wait == "device"
        return lease

    @rule(pick=picks, part=st.sampled_from([*PARTS]), extent=st.sampled_from(["owner", "view"]))
    def pin(self, pick: int, part: str, extent: str) -> None:
        self._lend(dlwrap.pin, pick, part, 0, locked=not self.pageable, extent=extent)

    def _lend(
        self, lend: Any, pick: int, part: str, device: int, *, locked: bool, extent: str, **options: Any
    ) -> Lease | None:
        if not self._arrays():
            self.new_memory()
        if len(self.model.live) >= 2 * SEVERAL:
            return None
        memory = self._pick(self._arrays(), pick)
        view, device = memory.array[PARTS[part]], device % self.devices
        start = view.ctypes.data if view.size else 0
        reach = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
        stop = start + reach + view.itemsize if view.size else 0
        lease = Lease(memory, start, stop, device)
        locked = locked and view.size > 0
        wanted = (memory.start, memory.stop) if extent == "owner" else (start, stop)
        near = [found for found in self._registered() if found[0] < memory.stop and memory.start < found[1]]
        crossing = [found for found in near if overlap(found, (start, stop)) and not covers(found, (start, stop))]
        used = {user.registered for user in self.model.users()}

        def call() -> Any:
            return attempt(lambda: lend(view, device=device, extent=extent, **options), BufferError)

        # A range that is on its way out has to be waited for, and unregistering waits for the device.
        may_wait = locked and self.model.unfinished() and any(found not in used for found in near)
        handle, refusal = self._while_letting_go(call) if may_wait else call()
        if refusal is not None:
            in_the_way = locked and crossing
            assert in_the_way, f"nothing is in the way of {part!r}, but it was refused: {refusal}"
            return None
        assert not (locked and any(found in used for found in crossing)), f"{part!r} was wrapped across a live range"
        lease.handle = handle
        self.model.live.append(lease)
        if locked:
            lease.registered = next(filter(lambda found: covers(found, (start, stop)), self._registered()), None)
            assert lease.registered is not None, f"{part!r} is not page-locked after {lend.__name__}"
            overlapping = any(overlap(found, wanted) for found in near)
            assert overlapping or lease.registered == wanted, (
                f"{lend.__name__} locked other bytes than those of the {extent}"
            )
        return lease

    @rule(pick=picks, patient=st.booleans())
    def close(self, pick: int, patient: bool) -> None:
        lease = self._pick(self._handles(), pick)
        if lease is None:
            return
        holders = [number for number in (lease.exports, len(lease.graphs)) if number]
        blocked = any(map(self.model.is_blocked_by_capture, lease.streams))
        timeout = SECONDS if patient and not blocked and not self.model.unfinished() else 0
        _, refusal = attempt(lambda: lease.handle.close(timeout), BufferError, TimeoutError)
        if holders:
            counted = re.findall(r"(\d+) (?:importer|captured graph)", str(refusal))
            assert counted == [str(number) for number in holders], f"closed beside {holders} other holders: {refusal}"
            return
        assert refusal is None or (timeout == 0 and refusal.startswith("TimeoutError")), refusal
        lease.handle = None
        self.model.release_unless_held(lease)
        if refusal is not None:
            return
        shared = {other.registered for other in [*self.model.live, *self.model.pending] if other is not lease}
        gone = lease.registered in shared or lease.registered not in self._registered()
        assert gone, "close() ended, and the memory is still page-locked"
        self._settle()
        assert not self.model.must_wait(lease), "close() ended before the work that it waits for"
        self.model.pending = [other for other in self.model.pending if other is not lease]

    @rule(patient=st.booleans())
    def reclaim(self, patient: bool) -> None:
        timeout = SECONDS if patient and self.model.is_idle() else 0
        _, refusal = attempt(lambda: dlwrap.reclaim(timeout), TimeoutError)
        self._settle()
        if refusal is None:
            assert not any(map(self.model.must_wait, self.model.pending)), "reclaim() ended before the work had"
            self.model.forget_pending()
            self._assert_nothing_is_kept()
        else:
            assert timeout == 0, refusal

    @rule(seconds=st.sampled_from([0, math.inf]), nbytes=st.sampled_from([100, 2**20]))
    def linger(self, seconds: float, nbytes: int) -> None:
        dlwrap.configure(linger_seconds=seconds, linger_bytes=nbytes)

    # ---- consumers ----

    @rule(
        pick=picks,
        stream=st.sampled_from([None, -1, *(3 * [LEGACY]), PER_THREAD, *range(10, 16)]),
        version=st.sampled_from([None, (1, 0), (1, 3)]),
        current=st.booleans(),
        consumed=st.booleans(),
    )
    def export(
        self, pick: int, stream: int | None, version: tuple[int, int] | None, current: bool, consumed: bool
    ) -> None:
        lease = self._some_wrapper(pick)
        if lease is not None:
            self._export(lease, stream, version=version, current=current, consumed=consumed)

    @rule(
        pick=picks,
        part=st.sampled_from(["all", "rows", "columns"]),
        stream=st.sampled_from([None, LEGACY, PER_THREAD, *range(10, 16)]),
        current=st.booleans(),
        device=st.integers(0, 1),
        destroy=st.booleans(),
        second=st.sampled_from([None, LEGACY, *range(10, 16)]),
    )
    def use_and_forget(
        self,
        pick: int,
        part: str,
        stream: int | None,
        current: bool,
        device: int,
        destroy: bool,
        second: int | None,
    ) -> None:
        """Do as `f(dlwrap.wrap(a))` does, whose kernel still runs when all is dropped."""
        lease = self.wrap(pick, part, "auto", "owner", "streams", None, device)
        if lease is not None:
            self._export(lease, stream, version=(1, 0), current=current, consumed=True)
            if second is not None:
                self._export(lease, second, version=(1, 0), current=current, consumed=True)
            uses = [(used, on) for used, on in self._uses() if used is lease]
            if uses:
                self._launch(*uses[pick % len(uses)], held=True)
            used = self._told_stream(lease, stream)
            if destroy and used is not None and used.capture is None:
                self._destroy_stream(used)
            self._drop_all_holders(lease)

    def _told_stream(self, lease: Lease, stream: int | None) -> Stream | None:
        if stream is None or stream <= PER_THREAD:
            return None
        return self._pick(self._ordinary(device=lease.device), stream)

    def _export(
        self, lease: Lease, stream: int | None, *, version: tuple[int, int] | None, current: bool, consumed: bool
    ) -> None:
        told = self._told_stream(lease, stream)
        handle = stream if told is None else told.handle
        if told is None and stream is not None and stream > PER_THREAD:
            return
        if len(self.consumers) >= 2 * SEVERAL:
            return
        owner = told.owner if told is not None and current else None
        request = {"stream": handle, "max_version": version}
        self.current = owner
        capsule, refusal = attempt(lambda: lease.handle.__dlpack__(**request), BufferError)
        self.current = None
        if lease.handle.readonly and version is None:
            assert "cannot export read-only memory in a legacy capsule" in str(refusal)
            return
        assert refusal is None, refusal
        self._told(lease, self.legacy[lease.device] if stream == LEGACY else told if owner is not None else None, told)
        self._consume(lease, capsule, consumed, on_host=False)

    @rule(pick=picks, consumed=st.booleans())
    def export_to_the_host(self, pick: int, consumed: bool) -> None:
        lease = self._some_wrapper(pick)
        if lease is None:
            return
        captured = any(stream.capture is not None for stream in lease.streams)
        if len(self.consumers) >= 2 * SEVERAL or (self.model.unfinished() and not captured):
            return
        request = {"dl_device": (1, 0), "max_version": (1, 0)}
        capsule, refusal = attempt(lambda: lease.handle.__dlpack__(**request), BufferError)
        # The legacy stream, too, cannot be waited for while a blocking stream is captured.
        if captured or (refusal is not None and any(map(self.model.is_blocked_by_capture, lease.streams))):
            assert "is being captured" in str(refusal)
            return
        assert refusal is None, refusal
        self._consume(lease, capsule, consumed, on_host=True)

    @rule(pick=picks)
    def export_a_copy(self, pick: int) -> None:
        lease = self._some_wrapper(pick)
        if lease is None:
            return
        captured = any(map(self.model.is_blocked_by_capture, lease.streams))
        if len(self.consumers) >= 2 * SEVERAL or self.model.unfinished() or captured:
            return
        capsule = lease.handle.__dlpack__(stream=LEGACY, max_version=(1, 0), copy=True)
        tensor = look(capsule)
        offset = self.offset if lease.registered else 0
        start = (tensor.tensor.data or offset) - offset
        nbytes = 4 * math.prod(tensor.shape)
        copied = Lease(Memory(start, start + nbytes, freed=None), start, start + nbytes, lease.device)
        copied.registered = (start, start + nbytes) if lease.registered else None
        copied.streams.add(self.legacy[lease.device])
        self.model.memories.append(copied.memory)
        self.model.live.append(copied)
        self._consume(copied, capsule, consumed=True, on_host=False)

    def _consume(self, lease: Lease, capsule: Any, consumed: bool, *, on_host: bool) -> None:
        seen = look(capsule)
        offset = 0 if on_host or lease.registered is None else self.offset
        expected = lease.start + offset if lease.stop > lease.start else 0
        assert (seen.tensor.data or 0) == expected, "an export has another address than the array"
        assert seen.device == ((1, 0) if on_host else (2, lease.device)), "an export names another device"
        lease.exports += 1
        lease.pointer = lease.pointer if on_host else expected
        self.consumers.append(Consumer(lease, None if consumed else capsule, take(capsule) if consumed else None))

    @rule(pick=st.integers(0, 60), twice=st.booleans(), on_thread=st.booleans())
    def drop(self, pick: int, twice: bool, on_thread: bool) -> None:
        """Let go of an array, a wrapper, a pin, or what a consumer made of it."""
        match self._pick([*self.consumers, *self._handles(), *self._arrays(), *self.husks], pick):
            case Consumer() as consumer:
                self._drop_consumer(consumer, twice, on_thread)
            case Lease() as lease:
                self._drop_wrapper(lease)
            case Memory() as memory:
                memory.array = None
            case husk:
                self.husks = [other for other in self.husks if other is not husk]

    @rule(pick=picks)
    def drop_all_holders(self, pick: int) -> None:
        """Forget what was made of one array, rather while the GPU still uses it."""
        busy = [lease for work in self.model.unfinished() for lease in work.leases if lease in self.model.live]
        lease = self._pick(busy or self.model.live, pick)
        if lease is not None:
            self._drop_all_holders(lease)

    def _drop_all_holders(self, lease: Lease) -> None:
        for consumer in [consumer for consumer in self.consumers if consumer.lease is lease]:
            self._drop_consumer(consumer, twice=False, on_thread=False)
        if lease.handle is not None:
            self._drop_wrapper(lease)

    def _drop_wrapper(self, lease: Lease) -> None:
        lease.handle = None
        self.model.release_unless_held(lease)

    def _drop_consumer(self, consumer: Consumer, twice: bool, on_thread: bool) -> None:
        self.consumers.remove(consumer)

        def delete() -> None:
            consumer.capsule = None
            if consumer.imported is not None:
                consumer.imported.delete()
                if twice:
                    consumer.imported.delete()

        if on_thread:
            thread = threading.Thread(target=delete)
            thread.start()
            thread.join(SECONDS)
        else:
            delete()
        self._end_export(consumer.lease)

    @rule(pick=picks)
    def call_the_deleter_of_a_capsule(self, pick: int) -> None:
        # As a consumer does that forgets to rename it.
        consumer = self._pick([consumer for consumer in self.consumers if consumer.capsule is not None], pick)
        if consumer is None:
            return
        self.consumers.remove(consumer)
        look(consumer.capsule).delete()
        self.husks.append(consumer.capsule)
        self._end_export(consumer.lease)

    def _end_export(self, lease: Lease) -> None:
        lease.exports -= 1
        self.model.release_unless_held(lease)

    # ---- work ----

    @rule(pick=picks, which=picks, as_object=st.booleans())
    def tell_a_stream_or_read_the_pointer(self, pick: int, which: int, as_object: bool) -> None:
        lease = self._some_wrapper(pick)
        if lease is None:
            return
        stream = self._pick([self.legacy[lease.device], *self._ordinary(device=lease.device), None], which)
        if stream is None:
            lease.pointer = lease.handle.ptr
            self.model.tell(lease, None)
            return
        by_object = as_object and stream.owner is not None
        lease.handle.record_stream(stream.owner if by_object else stream.handle)
        self._told(lease, stream if by_object or not stream.is_ordinary else None, stream)

    @rule(pick=st.integers(0, 60), held=st.booleans())
    def launch(self, pick: int, held: bool) -> None:
        lease, stream = self._pick(self._uses(), pick) or (None, None)
        if lease is not None:
            self._launch(lease, stream, held=held)

    def _launch(self, lease: Lease, stream: Stream, *, held: bool) -> None:
        if held and stream.capture is None:
            self.cuda.hold(stream.handle)
            stream.held = True
        self.cuda.launch(stream.handle, (lease.pointer, lease.stop - lease.start))
        if stream.capture is not None:
            stream.capture.leases.add(lease)
        else:
            self._mark(self.model.submit(stream, (lease,)))

    def _told(self, lease: Lease, tracked: Stream | None, stream: Stream | None) -> None:
        self.model.tell(lease, tracked)
        if stream is not None and stream.capture is not None:
            self._give_to_capture(lease, stream.capture)

    def _give_to_capture(self, lease: Lease, capture: Graph) -> None:
        if capture not in lease.graphs:
            lease.graphs.append(capture)

    def _uses(self) -> list[tuple[Lease, Stream]]:
        """Pair what a program may launch work on with where."""
        streams = self._free_streams()
        leases = [lease for lease in self.model.live if lease.pointer]
        return [(lease, stream) for lease in leases for stream in streams if lease.may_be_used_on(stream)]

    def _free_streams(self) -> list[Stream]:
        """List the streams that a program may launch on, this thread being one of device 0."""
        return [
            stream
            for stream in self.model.streams
            if stream.is_usable
            and (stream.is_ordinary or stream.device == 0)
            and (stream.capture is not None or not self.model.is_blocked_by_capture(stream))
        ]

    # ---- captures and graphs ----

    @rule(pick=picks, mode=st.sampled_from(["global", "thread_local", "relaxed"]))
    def begin_capture(self, pick: int, mode: Any) -> None:
        stream = self._pick(self._ordinary(capture=False), pick)
        if stream is None:
            return
        self.cuda.begin_capture(stream.handle, mode)
        stream.capture = Graph()

    @rule(pick=picks)
    def end_capture(self, pick: int) -> None:
        stream = self._pick(self._ordinary(capture=True), pick)
        if stream is None:
            return
        graph, stream.capture = stream.capture, None
        graph.handle = self.cuda.end_capture(stream.handle)
        self.model.graphs.append(graph)

    @rule(pick=picks)
    def launch_graph(self, pick: int) -> None:
        graph, stream = self._pick(self._launches(), pick) or (None, None)
        if graph is None:
            return
        self.cuda.launch_graph(graph.handle, stream.handle)
        self._mark(self.model.submit(stream, tuple(graph.leases), graph))

    @rule(pick=picks)
    def destroy_graph(self, pick: int) -> None:
        graph = self._pick(self._idle_graphs(), pick)
        if graph is None:
            return
        self.model.graphs.remove(graph)
        checked(driver.cuGraphDestroy(driver.CUgraph(graph.handle)))
        self.cuda.wait_for_destructors()
        for lease in [lease for lease in self.model.live if graph in lease.graphs]:
            lease.graphs = [other for other in lease.graphs if other is not graph]
            self.model.release_unless_held(lease)

    @rule(pick=picks, which=picks)
    def keep_alive(self, pick: int, which: int) -> None:
        lease = self._some_wrapper(pick)
        captures = [stream for stream in self._ordinary(capture=True) if stream.owner is not None]
        owner = self._pick([*captures, *self.model.graphs], which)
        match owner if lease is not None else None:
            case Stream():
                dlwrap.keep_alive(owner.owner, lease.handle)
                self._give_to_capture(lease, owner.capture)
            case Graph():
                dlwrap.keep_alive(owner.handle, lease.handle)
                lease.graphs.append(owner)
                self.model.tell(lease, None)

    def _launches(self) -> list[tuple[Graph, Stream]]:
        """Pair the graphs whose memory is alive with the streams that all its releases will wait for."""
        return [
            (graph, stream)
            for graph in self.model.graphs
            for stream in self._ordinary(capture=False)
            if graph.leases and all(lease in self.model.live and lease.may_be_used_on(stream) for lease in graph.leases)
        ]

    def _idle_graphs(self) -> list[Graph]:
        running = {work.graph for work in self.model.unfinished()}
        return [graph for graph in self.model.graphs if graph not in running]

    # ---- what must hold after every step ----

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        States.steps += 1
        self._settle()
        self._assert_what_is_used_is_kept()
        self._assert_counts()
        for stream in self.model.streams:
            if stream.capture is not None:
                assert self.cuda.capture_status(stream.handle) == "active", "a capture was broken"
        self.model.forget_done()

    def _settle(self) -> None:
        """Let dlwrap record its events, and put work of our own behind each, which tells when the event is done."""
        recording = [
            (lease, stream)
            for lease in self.model.pending
            for stream in lease.unrecorded
            # Until dlwrap has made the stream for them, events on the legacy stream are recorded at any time.
            if stream.handle != LEGACY or _driver.stream_after_legacy(stream.device) is not None
        ]
        settle()
        for lease, stream in recording:
            if self.model.is_blocked_by_capture(stream):
                continue
            lease.unrecorded.remove(stream)
            with destroying:
                if not stream.is_destroyed:
                    lease.probes.append(self._mark(self.model.submit(stream)))
        due = self.model.pending or set(self._registered()) != self._ranges_in_use()
        if due and self.model.is_idle():
            sweep()
            self.model.forget_pending()

    def _assert_what_is_used_is_kept(self) -> None:
        # In this order, because a range is unregistered before its memory is dropped.
        freed = [memory for memory in self.model.memories if memory.freed]
        registered = self._registered()
        for memory in freed:
            assert not self.model.in_use(memory), "memory was dropped while somebody may touch it"
            inside = [found for found in registered if overlap(found, (memory.start, memory.stop))]
            assert not inside, "memory was dropped while it is page-locked"
        for lease in self.model.users():
            if lease.registered is not None:
                around = [found for found in registered if overlap(found, (lease.start, lease.stop))]
                assert around == [lease.registered], f"bytes in use lie in the ranges {around}, not in their own one"
            for stream in lease.streams:
                assert not stream.is_destroyed, "a stream that has to be waited for was destroyed"

    def _assert_counts(self) -> None:
        must = sum(map(self.model.must_wait, self.model.pending))
        may = sum(map(self.model.may_wait, self.model.pending))
        now = dlwrap.stats()
        assert now.leaked == self.before.leaked, "memory was leaked"
        assert now.live - self.before.live == len(self.model.live), "stats().live counts other leases than the model"
        assert now.exports - self.before.exports == len(self.consumers), "stats().exports counts other exports"
        graphs = sum(len(lease.graphs) for lease in self.model.live)
        assert now.graphs - self.before.graphs == graphs, "stats().graphs counts other holds of graphs than the model"
        assert now.pending >= must, f"{must} releases have to wait for the GPU, but only {now.pending} are pending"
        assert now.pending <= may, f"{may} releases may wait for the GPU, but {now.pending} are pending"
        for lease in self._wrappers():
            assert lease.handle.exports == lease.exports, "a buffer counts other exports than the model"

    def _assert_nothing_is_kept(self) -> None:
        now = dlwrap.stats()
        assert (now.pending, now.lingering) == (0, 0), "reclaim() ended, and something is pending or lingers"
        used = self._ranges_in_use()
        assert set(self._registered()) == used, "reclaim() ended, and other ranges than those in use are page-locked"
        assert now.pinned_bytes == sum(stop - start for start, stop in used), "stats().pinned_bytes is wrong"
        for memory in self.model.memories:
            assert memory.freed is None or memory.freed or self.model.in_use(memory), "memory is kept that nobody uses"
        tracked = {stream for lease in self.model.live for stream in lease.streams}
        for stream in self.model.streams:
            unused = stream.is_owned and stream.owner is None and stream not in tracked
            # A thread of dlwrap may be about to return from the function that ended the last wait for it.
            assert not unused or eventually(lambda stream=stream: stream.is_destroyed), (
                "a stream object is kept that nobody needs"
            )

    # ---- the end ----

    def teardown(self) -> None:
        try:
            if hasattr(self, "model"):
                self._end(failed=sys.exc_info()[0] is not None)
        finally:
            sys.modules.pop("cupy", None)
            if self.cupy_before is not None:
                sys.modules["cupy"] = self.cupy_before
            dlwrap.configure()

    def _end(self, *, failed: bool) -> None:
        for stream in self.model.streams:
            if stream.capture is not None:
                self.end_capture(self._ordinary(capture=True).index(stream))
        self._let_go_all()
        while self.model.graphs:
            self.destroy_graph(0)
        self.husks.clear()
        while self.consumers:
            self._drop_consumer(self.consumers[0], twice=False, on_thread=False)
        for lease in self._handles():
            self._drop_wrapper(lease)
        for memory in self.model.memories:
            memory.array = None
        if failed:
            with suppress(TimeoutError, dlwrap.DLWrapError):
                dlwrap.reclaim(1)
        else:
            self._settle()
            self._let_go_all()
            dlwrap.reclaim(SECONDS)
            self.model.forget_pending()
            assert not self.model.pending, "the GPU is idle, and the model says that something is pending"
            self._assert_counts()
            self._assert_nothing_is_kept()
        for stream in self.model.streams:
            stream.owner = None
            if stream.is_usable and stream.is_ordinary and not stream.is_owned:
                self.cuda.destroy_stream(stream.handle)
        with _driver.primary_context(0):
            _driver.unregister(self.model.markers.ctypes.data)
        self.cuda.reset(force=failed)

    # ---- helpers ----

    def _pick(self, things: list[Any], pick: int) -> Any:
        return things[pick % len(things)] if things else None

    def _some_wrapper(self, pick: int) -> Lease | None:
        """Pick a wrapper; make one if there is none."""
        if not self._wrappers():
            self.wrap(pick, "all", "auto", "owner", "streams", None, 0)
        return self._pick(self._wrappers(), pick)

    def _arrays(self) -> list[Memory]:
        return [memory for memory in self.model.memories if memory.array is not None]

    def _handles(self) -> list[Lease]:
        return [lease for lease in self.model.live if lease.handle is not None]

    def _wrappers(self) -> list[Lease]:
        return [lease for lease in self._handles() if isinstance(lease.handle, dlwrap.HostWrappedBuffer)]

    def _ordinary(self, *, device: int | None = None, capture: bool | None = None) -> list[Stream]:
        return [
            stream
            for stream in self.model.streams
            if stream.is_ordinary
            and stream.is_usable
            and device in (None, stream.device)
            and capture in (None, stream.capture is not None)
        ]

    def _ranges_in_use(self) -> set[tuple[int, int]]:
        return {lease.registered for lease in self.model.live if lease.registered is not None}

    def _registered(self) -> list[tuple[int, int]]:
        """List what is page-locked of our arrays: neither the markers nor dlwrap's own page."""
        found = [(each.start, each.start + each.nbytes) for each in self.cuda.registrations]
        ours = [(memory.start, memory.stop) for memory in self.model.memories]
        return [span for span in found if any(overlap(span, memory) for memory in ours)]

    def _mark(self, work: Any) -> Any:
        marker = self.model.markers[work.marker : work.marker + 1]
        if work.stream.is_ordinary:
            self.cuda.launch(work.stream.handle, marker, write=1)
        else:
            with _driver.primary_context(work.stream.device):
                self.cuda.launch(work.stream.handle, marker, write=1)
        return work

    def _let_go(self, handle: int) -> None:
        self.cuda.let_go(handle)
        for stream in self.model.streams:
            stream.held = stream.held and stream.handle != handle

    def _let_go_all(self) -> None:
        for handle in {stream.handle for stream in self.model.streams}:
            self._let_go(handle)

    def _while_letting_go(self, call: Any) -> Any:
        """Call on another thread what may wait for the GPU, and let the GPU go on meanwhile."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(call()))
        thread.start()
        self._let_go_all()
        thread.join(SECONDS)
        assert results, "a call did not end although the GPU is idle"
        return results.pop()


def sweep() -> None:
    """Let dlwrap make all driver calls that wait for the GPU, which is idle."""
    manager = _lifetime.manager()
    for _ in range(3):  # the first ends waits, the second unregisters what they held, the third comes after that
        done = threading.Event()
        wait = Wait(0, (), lambda _, done=done: done.set(), device_wide=True, urgent=True)
        manager._request(lambda wait=wait: manager._events.add(wait))
        assert done.wait(SECONDS), "a wait for the device does not end although the GPU is idle"


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def covers(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[0] and other[1] <= one[1]


def check(examples: int, steps: int, states: type[States] = States) -> None:
    """Run so many programs of so many steps; the first that breaks a promise is made short and raised."""
    run_state_machine_as_test(
        states,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[*HealthCheck],
        ),
    )


@pytest.mark.timeout(500)  # a failing program is made short, which takes minutes
def test_memory_is_kept_as_long_as_it_is_used_and_no_longer_whatever_a_program_does(cuda):
    before = States.steps
    check(examples=150, steps=30)
    assert States.steps - before > 1000
