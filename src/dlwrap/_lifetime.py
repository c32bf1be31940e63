"""The lifetime manager: which memory is lent out, and its way back: wait, unregister, drop.

One thread takes the keys of released leases from the native list, waits for the GPU by events, and drops what is
done; the `Sweeper`'s thread makes the calls that block. Nothing here runs on a releasing thread.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from dlwrap import _driver, _native, _watch
from dlwrap._errors import DLWrapError, DLWrapWarning
from dlwrap._pinning import PinTable
from dlwrap._streams import legacy_stream
from dlwrap._sweeper import Sweeper
from dlwrap._threads import guard, report
from dlwrap._waits import EventWaits, Wait

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

    from dlwrap._registration import Registration
    from dlwrap._streams import TrackedStream

_EXIT_SECONDS = 0.5  # how long the end of the program may wait for each thread
_CAPTURES_REMEMBERED = 16  # of each lease; captures that are open at a time are fewer

# What the native part notes of the streams that use the memory; see _lease.h.
USED_ON_LEGACY, USED_ANYWHERE, USED_AS_NOTED = _native.USED_ON_LEGACY, _native.USED_ANYWHERE, _native.USED_AS_NOTED

_INSIDE = "in a finaliser that a collection runs inside dlwrap"
_WHY_KEPT = "because it cannot be proved that the GPU is done with it"


class Completion:
    """Lets a thread of the program wait until a number of things have been reported done.

    Parameters
    ----------
    lock : RLock
        One for all, so that `LifetimeManager.is_inside` can ask whether the thread holds it.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._left = 1
        self._failure: Exception | None = None
        self._changed = threading.Condition(lock)

    def expect(self, number: int) -> None:
        """Expect more (or, negative, fewer) reports."""
        with self._changed:
            self._left += number
            self._changed.notify_all()

    def report(self, failure: Exception | None) -> None:
        """Report one thing done, or that its end cannot be known."""
        with self._changed:
            self._failure = self._failure or failure
            self.expect(-1)

    def wait(self, timeout: float | None, what: str, consequence: str = f"memory is kept, {_WHY_KEPT}") -> None:
        """Wait for all reports.

        Raises
        ------
        TimeoutError
            After ``timeout`` seconds.
        DLWrapError
            One of the things failed.
        """
        _manager.check_may_wait(what)
        with self._changed:
            seconds = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
            if not self._changed.wait_for(lambda: self._left <= 0, seconds):
                raise TimeoutError(f"{what}: not done after {timeout} s; it goes on in the background")
            if self._failure is not None:
                raise DLWrapError(f"{what}: {consequence}") from self._failure


class Lease(_native.Loan):
    """Memory that is lent out until its last holder is gone and the GPU is done.

    Attributes
    ----------
    device : int
        The device that may use it.
    hold : object
        Keeps the host memory alive.
    pin : Registration or None
        The page-locked range that it uses.
    device_wide : bool
        Whether the release has to wait for the whole device.
    streams : dict of int to TrackedStream
        The streams that the release has to wait for, by handle.
    captures : tuple of int
        The latest captures whose graph owns the memory already; one that was forgotten owns it twice, which is no harm.
    closed : Completion or None
        Reported when everything is given back; there once somebody closes.
    """

    __slots__ = ()

    def device_pointer(self, pointer: int) -> int:
        """Give the device's address of a host address inside."""
        return pointer if self.pin is None else self.pin.device_pointer(pointer, self.device)

    def note(self, stream: TrackedStream | None) -> None:
        """Note a stream that may use the memory; None where it cannot be tracked."""
        if stream is None:
            self.device_wide = True
        else:
            self.streams[stream.handle] = stream

    def note_uses(self, uses: int) -> None:
        """Note what the native part has noted."""
        if uses & USED_ON_LEGACY:
            self.note(legacy_stream(self.device))
        if uses & USED_ANYWHERE:
            self.note(None)

    def note_capture(self, capture: int) -> None:
        """Note a capture whose graph owns the memory."""
        self.captures = (*self.captures, capture)[-_CAPTURES_REMEMBERED:]

    def forget_capture(self, capture: int) -> None:
        """Undo `note_capture`."""
        self.captures = tuple(noted for noted in self.captures if noted != capture)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        lent = self.lent
        return 0 if lent is None else lent[0]

    @property
    def was_used(self) -> bool:
        """Whether there is any work to wait for."""
        return self.device_wide or bool(self.streams)

    def wait(self, finish: Callable[[Exception | None], None], *, urgent: bool) -> Wait:
        """Describe the work to wait for, as noted so far."""
        return Wait(self.device, tuple(self.streams.values()), finish, device_wide=self.device_wide, urgent=urgent)


def lease_of(exporter: _native.Exporter) -> Lease:
    """Give what stands behind an exporter."""
    lease: Lease = exporter._lease  # noqa: SLF001 -- hidden from users only
    return lease


class Batch:
    """Leases that wait for the same work, together.

    Attributes
    ----------
    leases : list of Lease
        Those of them that are not released yet.
    wait : Wait
        What they wait for.
    when_released : list of callable
        Told what came of it, once for all.
    span : Span or None
        The wait, where somebody watches.
    """

    __slots__ = ("leases", "span", "wait", "when_released")

    def __init__(self, first: Lease, finish: Callable[[Batch, Exception | None], None], *, urgent: bool) -> None:
        self.leases: list[Lease] = []
        self.when_released: list[Callable[[Exception | None], None]] = []
        self.wait = first.wait(partial(finish, self), urgent=urgent)
        self.span = _watch.begin("wait", 0)


class LifetimeManager:
    """Takes leases back, one process-wide instance; see the module."""

    def __init__(self) -> None:
        self.pins = PinTable(self._request_sweep, self._request, self._note_leak, self.check_may_wait)
        self.leaked = 0
        self.kept: list[Lease | Registration] = []  # what leaked, for reports
        self.threads: tuple[threading.Thread, ...] = ()
        self.refusal: str | None = None  # why nothing can be lent any more
        self.is_forked = False
        self.foreign_exports = 0  # of the process that this one was forked from
        self.foreign_graphs = 0
        self._sweeper = Sweeper(self.pins, self._report_part)
        self._events = EventWaits(self._sweeper.submit, self._make_stream)
        self._bodies = {"dlwrap-sweeper": self._sweeper.run, "dlwrap-lifetime": self._run}
        self._leases_before = _native.leases()  # those of the process that this one was forked from
        self._taken_back = 0
        self._pending: dict[Batch, None] = {}  # in the order of their release
        self._requests: deque[Callable[[], None]] = deque()
        # Reentrant: a collection inside may run a finaliser that wraps or closes.
        self._lock = threading.RLock()
        self._completions = threading.RLock()
        self._stopping = False

    # ---- called by the program's threads ----

    @property
    def is_usable(self) -> bool:
        """Whether anything can be lent, so that the driver may be called."""
        return self.refusal is None

    def check_usable(self, action: str) -> None:
        """Refuse to lend anything that would not be taken back.

        Raises
        ------
        RuntimeError
            In a forked child, and after the interpreter began to exit.
        """
        if self.refusal is not None:
            raise RuntimeError(f"cannot {action} {self.refusal}")
        if self.is_inside():
            raise RuntimeError(f"cannot {action} {_INSIDE}")

    def check_may_wait(self, what: str) -> None:
        """Refuse to wait where that would be for this thread itself.

        Raises
        ------
        RuntimeError
            On the manager's own threads, where finalisers of dropped arrays run, and inside dlwrap.
        """
        if self.is_inside():
            raise RuntimeError(f"cannot wait for {what} {_INSIDE}")
        if threading.current_thread() in self.threads:
            raise RuntimeError(f"cannot wait for {what} in a finaliser that runs on dlwrap's own thread")

    def is_inside(self) -> bool:
        """Tell whether this thread holds a lock of dlwrap: only a finaliser that a collection runs there finds that."""
        return bool(
            self._lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 -- as Condition does, here and below
            or self.pins.lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001
            or self._sweeper.lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001
            or self._completions._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001
        )

    def start(self) -> None:
        """Start the threads, once; never from a release.

        Raises
        ------
        CudaError
            The driver cannot keep them from breaking captures.
        """
        if self._is_started:
            return
        _watch.attach_logger()
        from queue import SimpleQueue  # noqa: PLC0415 -- a program that only imports dlwrap does not need it

        for name, body in self._bodies.items():
            if not self._has(name):
                begun: SimpleQueue[Exception | None] = SimpleQueue()
                threading.Thread(target=self._serve, args=(body, begun), name=name, daemon=True).start()
                failure = begun.get()
                if failure is not None:
                    raise failure

    @property
    def _is_started(self) -> bool:
        return len(self.threads) == len(self._bodies)

    def _has(self, name: str) -> bool:
        return any(thread.name == name for thread in self.threads)

    def _serve(self, body: Callable[[], None], begun: SimpleQueue[Exception | None]) -> None:
        """Be one of the threads, unless there is one: a start that was interrupted may have been repeated."""
        this = threading.current_thread()
        try:
            _driver.relax_thread()
            with self._lock:
                is_needed = not self._has(this.name)
                self.threads += (this,) * is_needed
        except Exception as error:  # noqa: BLE001 -- raised by whoever waits for the start
            begun.put(error)
            return
        begun.put(None)
        if is_needed:
            body()

    def close(self, exporter: _native.Exporter, timeout: float | None) -> None:
        """Give up the wrapper's hold, and wait until everything is given back.

        Raises
        ------
        BufferError
            Importers are alive.
        TimeoutError, DLWrapError
            As `Completion.wait`.
        ValueError
            ``timeout`` is negative or NaN.
        """
        _check_timeout(timeout)
        if not self.is_usable:
            _native.give_up(exporter)
            return
        lease = lease_of(exporter)
        with self._lock:
            closed = lease.closed = lease.closed or Completion(self._completions)
        if holders := _native.give_up(exporter):
            raise BufferError(_explain_holders(holders, _native.graphs_of(exporter)))
        closed.wait(timeout, "close()")

    def synchronize(self, exporter: _native.Exporter) -> None:
        """Wait for the work noted on a lease.

        Raises
        ------
        RuntimeError
            One of its streams captures, so that it has no end to wait for.
        DLWrapError
            As `Completion.wait`.
        """
        lease = lease_of(exporter)
        lease.note_uses(_native.uses_of(exporter))
        if not self.is_usable or not lease.was_used:
            return
        self._wait_on_host(lease.device, lease.streams, lease.wait, "synchronize()")

    def wait_for(self, device: int, stream: TrackedStream | None, what: str) -> None:
        """Wait for the work submitted so far to a stream, or to the whole device.

        Raises
        ------
        RuntimeError
            The stream captures, so that it has no end to wait for; or in a forked child.
        CudaError, DLWrapError
            As `start` and `Completion.wait`.
        """
        self.check_usable(what)
        self.start()
        streams = {} if stream is None else {stream.handle: stream}
        begin = partial(Wait, device, tuple(streams.values()), device_wide=stream is None)
        self._wait_on_host(device, streams, begin, what)

    def _wait_on_host(
        self, device: int, streams: dict[int, TrackedStream], begin: Callable[..., Wait], what: str
    ) -> None:
        """Have the wait that `begin` makes done, and this thread wait for it, unless a stream captures."""
        with _driver.primary_context(device):
            own = [handle for handle in list(streams) if handle != _driver.LEGACY_STREAM]
            capturing = [handle for handle in own if _driver.is_capturing(handle)]
        if capturing:
            raise RuntimeError(
                f"cannot wait for stream {capturing[0]:#x}: it is being captured; call again after the capture ends"
            )
        done = Completion(self._completions)
        self._request(lambda: self._events.add(begin(finish=done.report, urgent=True)))
        done.wait(None, what, "the GPU failed, so that nobody knows whether its work has ended")

    def reclaim(self, timeout: float | None) -> None:
        """Wait until everything handed over so far is released and unregistered.

        Raises
        ------
        TimeoutError, DLWrapError
            As `Completion.wait`.
        ValueError
            ``timeout`` is negative or NaN.
        """
        _check_timeout(timeout)
        if not self._is_started or not self.is_usable:
            return
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        released = Completion(self._completions)
        self._request(lambda: self._hurry(released))
        released.wait(timeout, "reclaim()")
        unregistered = Completion(self._completions)
        unregistered.expect(self.pins.flush(unregistered.report) - 1)
        left = None if timeout is None else max(0.0, deadline - time.monotonic())
        unregistered.wait(left, "reclaim()")

    def set_linger(self, seconds: float, nbytes: float) -> None:
        """Set how long, and how much, may stay page-locked without a user."""
        self.pins.lingering.seconds, self.pins.lingering.limit = seconds, nbytes
        self._request_sweep()

    def count_live(self) -> int:
        """Count the leases with holders."""
        return max(0, _native.leases() - self._leases_before - self._taken_back)

    def count_pending(self) -> int:
        """Count the leases that wait for the GPU."""
        return sum(len(batch.leases) for batch in list(self._pending))

    # ---- called by either thread ----

    def _request(self, action: Callable[[], None]) -> None:
        """Have the manager's thread do something after it has taken what was released before."""
        # On one line, so that no interrupt can come between.
        self._requests.append(action) or _native.wake()  # type: ignore[func-returns-value]

    def _request_sweep(self) -> None:
        self._sweeper.request()

    def _report_part(self, wait: Wait, failure: Exception | None) -> None:
        self._request(lambda: wait.end_part(failure))

    def _make_stream(self, device: int, end: Callable[[Exception | None], None]) -> None:
        self._sweeper.make_stream_after_legacy(device, lambda failure: self._request(lambda: end(failure)))

    def _note_leak(self, failure: Exception, kept: Lease | Registration) -> None:
        """Count memory that is kept, and warn of the first."""
        self.leaked += 1
        self.kept.append(kept)
        _watch.tell_leak(kept.nbytes, kept.device, str(failure))
        if self.leaked > 1 or self._stopping:
            return
        try:
            made = (
                ""
                if kept.origin is None
                else f"; made by:\n{_watch.format_frames(_watch.summarise(kept.origin.frames))}"
            )
            warnings.warn(f"dlwrap keeps memory, {_WHY_KEPT}: {failure}{made}", DLWrapWarning, stacklevel=2)
        except Exception as error:  # noqa: BLE001 -- warnings may be errors, but no error may end the release
            report(error, self)

    # ---- the manager's thread ----

    def _run(self) -> None:
        """Take leases back until stopped; the body of a thread whose capture mode is RELAXED."""
        while not self._stopping:
            guard(lambda: self._take_released(self._events.next_pause()))
            while self._requests:
                guard(self._requests.popleft())
            guard(self._events.advance)

    def _take_released(self, seconds: float) -> None:
        """Begin the release of every lease whose last holder went, within so many seconds."""
        _watch.poll_logger()
        batches: dict[object, Batch] = {}
        for lease, uses in _native.wait(seconds):
            guard(self._begin_release, lease, uses, batches)
        for batch in batches.values():
            guard(self._events.add, batch.wait)

    def _begin_release(self, lease: Lease, uses: int, batches: dict[object, Batch]) -> None:
        """Have the lease wait together with those that wait for the same."""
        try:
            lease.note_uses(uses)
            urgent = lease.closed is not None
            same = (lease.device, lease.device_wide, urgent, *lease.streams)
            batch = batches.get(same)
            if batch is None:
                batch = batches[same] = Batch(lease, self._end_releases, urgent=urgent)
                self._pending[batch] = None
            batch.leases.append(lease)
        except BaseException:
            _native.leak(lease)
            raise
        finally:
            self._taken_back += 1

    def _end_releases(self, batch: Batch, failure: Exception | None) -> None:
        """Release what waited together, the first first."""
        waited = None if batch.span is None else batch.span.seconds
        if batch.span is not None:
            batch.span.end()
        del self._pending[batch], batch.wait  # which refers to the batch: its streams would wait for the collector
        for lease in batch.leases:
            guard(self._finish_release, lease, failure)
            if waited is not None and failure is None:
                detail = f", {_watch.KINDS[lease.kind]}, after a wait of"
                guard(_watch.tell, "release", lease.nbytes, lease.device, detail, waited)
        for tell in batch.when_released:
            tell(failure)

    def _finish_release(self, lease: Lease, failure: Exception | None) -> None:
        """Unregister and drop, or keep for ever."""
        closed = lease.closed
        if failure is None:
            # The registration keeps the memory until it is unregistered.
            lease.hold = None
            lease.streams.clear()
            self.pins.release(lease, flush=closed is not None, then=None if closed is None else closed.report)
            return
        _native.leak(lease)
        self._note_leak(failure, lease)
        if closed is not None:
            closed.report(failure)

    def _hurry(self, released: Completion) -> None:
        """Report to ``released`` once for every batch pending now, and once for this."""
        self._take_released(0)
        for batch in self._pending:
            batch.wait.urgent = True
            released.expect(1)
            batch.when_released.append(released.report)
        self._request_sweep()
        released.report(None)

    # ---- the end ----

    def stop(self) -> None:
        """Stop before finalisation: from here on everything only leaks, on purpose."""
        if not self.is_usable:
            return
        self.refusal = "any more: the interpreter is exiting"
        _native.stop_wraps()
        self._stopping = True
        if not self.threads:
            return
        _native.leak(self)
        _native.wake()
        self._sweeper.stop()
        for thread in self.threads:
            thread.join(_EXIT_SECONDS)
        _watch.stop_logs()

    def abandon(self) -> LifetimeManager:
        """Give a manager for a forked child, where nothing may touch CUDA once the parent has initialised it.

        This one is kept as it was: threads that the child does not have may have its locks.
        """
        _native.leak(self)
        successor = LifetimeManager()
        if not _driver.is_initialised() and self.is_usable:
            successor.pins.lingering.seconds = self.pins.lingering.seconds
            successor.pins.lingering.limit = self.pins.lingering.limit
            return successor
        successor.refusal = "in a forked child: CUDA does not survive fork(); start children by spawn"
        successor.is_forked = True
        successor.foreign_exports = _native.live_exports()
        successor.foreign_graphs = _native.live_graphs()
        return successor


def _explain_holders(holders: int, graphs: int) -> str:
    importers = max(0, holders - graphs)
    alive = [
        f"{number} {noun}{'s' * (number > 1)}"
        for number, noun in ((importers, "importer"), (graphs, "captured graph"))
        if number
    ]
    return (
        f"cannot close: {' and '.join(alive)} of this HostWrappedBuffer still alive; drop the tensors and arrays made "
        "from it, and the graphs that captured its use, first"
    )


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and (math.isnan(timeout) or timeout < 0):
        raise ValueError(f"timeout must be None or at least 0 seconds, got {timeout}")


_manager = LifetimeManager()


def manager() -> LifetimeManager:
    """Give the process's lifetime manager."""
    return _manager


def _must_not_wait() -> bool:
    return _manager.is_inside() or threading.current_thread() in _manager.threads


_watch.defer_logs_where(_must_not_wait)


def _follow_fork() -> None:
    global _manager  # noqa: PLW0603 -- one per process, and a fork makes a process
    _manager = _manager.abandon()


def _stop_at_exit() -> None:
    _manager.stop()


os.register_at_fork(after_in_child=_follow_fork)
# Registered before anything can be wrapped, so that it runs after the exit hooks that still use wrapped memory.
atexit.register(_stop_at_exit)
