"""Which host ranges are page-locked, how often, and by whom: one table for the process.

Ranges are exact bytes, as the driver counts them, and never overlap. A registration that nobody uses any more
lingers, because unregistering stalls every launch of the process; whoever runs `PinTable.unregister` decides
when. No lock is held across a driver call, and memory is let go outside the lock.
"""

from __future__ import annotations

import bisect
import math
import threading
import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from dlwrap import _driver, _native
from dlwrap._errors import CudaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlwrap._layout import HostLayout, Span

    WhenGone = Callable[[CudaError | None], None]

# Until `dlwrap.configure` says otherwise.
LINGER_SECONDS = 0.1
LINGER_BYTES = 256 * 2**20


class State(Enum):
    """Where a registration is on its way through the driver."""

    REGISTERING = auto()
    LIVE = auto()
    UNREGISTERING = auto()
    GONE = auto()


@dataclass(slots=True, eq=False)
class Registration:
    """One page-locked range, shared by every lease inside it.

    Attributes
    ----------
    start, stop : int
        The bytes that are page-locked.
    read_only : bool
        Whether the device may only read.
    hold : object
        Keeps the memory until it is unregistered: a missed unregister poisons the address for its next owner.
    adopted : bool
        Whether somebody else registered the memory; then dlwrap never unregisters it.
    users : int
        Leases and pins inside; none while it lingers.
    idle_since : float
        When the last user went (`time.monotonic`).
    flush : bool
        Whether somebody waits for it to go.
    device_starts : dict of int to int
        For each device the device's address of `start`.
    """

    start: int
    stop: int
    read_only: bool
    hold: object = None
    adopted: bool = False
    state: State = State.REGISTERING
    users: int = 1
    idle_since: float = 0.0
    flush: bool = False
    device_starts: dict[int, int] = field(default_factory=dict)
    when_gone: list[WhenGone] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    def covers(self, span: Span) -> bool:
        """Whether every byte of the span is inside."""
        return self.start <= span.start and span.stop <= self.stop

    def device_pointer(self, pointer: int, device: int) -> int:
        """Give the device's address of a host address inside."""
        return self.device_starts[device] + pointer - self.start


class PinTable:
    """The process's registrations, by address.

    Parameters
    ----------
    request_sweep : callable
        Called, without a lock, when a registration may have become due for `unregister`.
    note_leak : callable
        Told, without a lock, why a range stays registered and its memory is kept.
    check_may_wait : callable
        Raises where this thread must not wait for a sweep: a finaliser may run on the one that sweeps.
    """

    def __init__(
        self,
        request_sweep: Callable[[], None],
        note_leak: Callable[[CudaError], None],
        check_may_wait: Callable[[str], None],
    ) -> None:
        self.linger_seconds = LINGER_SECONDS
        self.linger_bytes: float = LINGER_BYTES
        self.pinned_bytes = 0
        self._request_sweep = request_sweep
        self._note_leak = note_leak
        self._check_may_wait = check_may_wait
        self._starts: list[int] = []
        self._by_start: dict[int, Registration] = {}
        self._lingering: dict[int, Registration] = {}  # the longest unused first
        self._leaving: list[Registration] = []  # until their memory is dropped
        # Reentrant: a collection inside may run a finaliser that wraps or closes.
        self._changed = threading.Condition(threading.RLock())

    # ---- taking ----

    def acquire(self, layout: HostLayout, device: int, extent: str) -> Registration:
        """Find or make a registration around the layout's bytes, and become one of its users.

        Raises
        ------
        BufferError
            Part of the memory is page-locked in another range, so that no single registration can cover it.
        CudaError
            The driver refused.
        RuntimeError
            It would have to wait, on a thread that must not.
        """
        read_only = not layout.writable_memory
        wanted = layout.owner_span if extent == "owner" else layout.span
        while True:
            with self._changed:
                found = self._use(layout.span, read_only)
                blocking = [] if found else self._overlapping(wanted)
                if found is None and not blocking:
                    found = Registration(wanted.start, wanted.stop, read_only, layout.hold)
                    self._insert(found)
                seen = [(other, other.state, other.users) for other in blocking]
            if found is None:
                wanted = self._make_way(blocking, layout.span, wanted)
                self._check_may_wait("page-locked memory that is in the way")
                self._wait_for_change(seen)
            elif found.state is State.LIVE:
                self._tell_revived(found)
                return self._with_device(found, device)
            elif (made := self._register(found, layout, device)) is not None:
                return made
            else:
                wanted = layout.span

    def _use(self, span: Span, read_only: bool) -> Registration | None:
        """Become a user of a live registration that covers the span."""
        for found in self._overlapping(span):
            if found.state is State.LIVE and found.covers(span) and (read_only or not found.read_only):
                found.users += 1
                self._lingering.pop(found.start, None)
                return found
        return None

    def _tell_revived(self, registration: Registration) -> None:
        """Tell those who wait for it to go that others use it now, as `release` would have told them."""
        with self._changed:
            told, registration.when_gone = registration.when_gone, []
        for callback in told:
            callback(None)

    def _make_way(self, blocking: list[Registration], span: Span, wanted: Span) -> Span:
        """Have what lingers there unregistered; give the bytes to try next."""
        with self._changed:
            used = [found for found in blocking if found.state is State.LIVE and found.users]
            for found in blocking:
                found.flush = True
        self._request_sweep()
        if not used:
            return wanted
        in_the_way = [found for found in used if found.start < span.stop and span.start < found.stop]
        if in_the_way:
            raise _overlap_error(span, "a live wrap or pin of dlwrap", (in_the_way[0].start, in_the_way[0].stop))
        return span

    def _wait_for_change(self, seen: list[tuple[Registration, State, int]]) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    any((found.state, found.users) != (state, users) for found, state, users in seen)
                    or any(users and state is State.LIVE for _, state, users in seen)
                )
            )

    def _register(self, made: Registration, layout: HostLayout, device: int) -> Registration | None:
        """Register a range that is in the table already; None if the span alone should be tried."""
        try:
            with _driver.relaxed(), _driver.primary_context(device):
                _driver.register(made.start, made.nbytes, read_only=made.read_only)
                self._find_device_start(made, device)
        except CudaError as error:
            self._remove(made)
            return self._adopt(error, made, layout, device)
        except BaseException:
            self._remove(made)
            raise
        with self._changed:
            made.state = State.LIVE
            self.pinned_bytes += made.nbytes
            self._changed.notify_all()
        return made

    def _find_device_start(self, made: Registration, device: int) -> None:
        """Ask for the device's address of a fresh registration, or undo it."""
        try:
            made.device_starts[device] = _driver.device_pointer(made.start)
        except BaseException:
            try:
                _driver.unregister(made.start)
            except CudaError as error:
                self._keep(made, error)
            raise

    def _adopt(self, error: CudaError, refused: Registration, layout: HostLayout, device: int) -> Registration | None:
        """Use memory that somebody else registered, where that covers the array; None to try the span alone."""
        if error.code not in {_driver.HOST_MEMORY_ALREADY_REGISTERED, _driver.INVALID_VALUE}:
            raise _explain_refusal(error, refused) from error
        span = layout.span
        with _driver.relaxed(), _driver.primary_context(device):
            known = _driver.known_range(span.start)
            if known is not None and known[0] <= span.start and span.stop <= known[1]:
                # Not in the table: it is theirs, and it may vanish or change at any time.
                starts = {device: _driver.device_pointer(span.start)}
                return Registration(
                    span.start,
                    span.stop,
                    refused.read_only,
                    adopted=True,
                    state=State.LIVE,
                    device_starts=starts,
                )
            known = known or _driver.known_range(span.stop - 1)
        if error.code == _driver.INVALID_VALUE:
            raise _explain_refusal(error, refused) from error
        if (refused.start, refused.stop) != (span.start, span.stop):
            return None
        raise _overlap_error(span, "somebody else", known) from error

    def _with_device(self, registration: Registration, device: int) -> Registration:
        """Make sure that the device's address is known."""
        if device not in registration.device_starts:
            try:
                with _driver.relaxed(), _driver.primary_context(device):
                    registration.device_starts[device] = _driver.device_pointer(registration.start)
            except BaseException:
                self.release(registration)
                raise
        return registration

    # ---- giving back ----

    def release(self, registration: Registration, *, flush: bool = False, then: WhenGone | None = None) -> None:
        """Stop being a user.

        Parameters
        ----------
        registration : Registration
            What `acquire` returned.
        flush : bool
            Unregister at once if nobody else uses it.
        then : callable, optional
            Called without a lock: at once if others go on using the range, else after it is unregistered.
        """
        with self._changed:
            registration.users -= 1
            idle = registration.users == 0 and not registration.adopted
            if idle:
                registration.idle_since = time.monotonic()
                registration.flush = flush
                self._lingering[registration.start] = registration
                if then is not None:
                    registration.when_gone.append(then)
            self._changed.notify_all()
        if idle:
            self._request_sweep()
        elif then is not None:
            then(None)

    def due(self, now: float) -> tuple[list[Registration], float]:
        """Take what must be unregistered now; also give the seconds until the next will be due."""
        with self._changed:
            excess = sum(found.nbytes for found in self._lingering.values() if not found.flush) - self.linger_bytes
            due, pause = [], math.inf
            for found in list(self._lingering.values()):
                left = found.idle_since + self.linger_seconds - now
                if found.flush or left <= 0 or excess > 0:
                    excess -= 0 if found.flush else found.nbytes
                    found.state = State.UNREGISTERING
                    del self._lingering[found.start]
                    due.append(found)
                else:
                    pause = min(pause, left)
            self._leaving += due
            return due, pause

    def unregister(self, registration: Registration) -> None:
        """Unregister what `due` gave, and let its memory go; blocks until the device is idle.

        If the driver refuses, the memory is kept, because it may still be page-locked.
        """
        failure = None
        try:
            with _driver.primary_context(next(iter(registration.device_starts))):
                _driver.unregister(registration.start)
        except CudaError as error:
            if error.code != _driver.HOST_MEMORY_NOT_REGISTERED:
                failure = error
                self._keep(registration, error)
        with self._changed:
            self.pinned_bytes -= registration.nbytes
            self._remove(registration)
        # Not in the table any more: a finaliser that runs here may wrap memory at the same address.
        registration.hold = None
        with self._changed:
            self._leaving.remove(registration)
        for callback in registration.when_gone:
            callback(failure)

    def _keep(self, registration: Registration, why: CudaError) -> None:
        _native.leak(registration.hold)
        self._note_leak(why)

    def flush(self, then: WhenGone) -> int:
        """Make every lingering registration due; ``then`` is called once for each, when it is gone.

        Returns how many that are, those that are on their way included.
        """
        with self._changed:
            leaving = [*self._lingering.values(), *self._leaving]
            for found in leaving:
                found.flush = True
                found.when_gone.append(then)
        self._request_sweep()
        return len(leaving)

    # ---- looking ----

    def lingering(self) -> tuple[int, int]:
        """Count the registrations that nobody uses, and their bytes."""
        with self._changed:
            return len(self._lingering), sum(found.nbytes for found in self._lingering.values())

    # ---- the table itself ----

    def _overlapping(self, span: Span) -> list[Registration]:
        """Find the registrations that share a byte with the span, by address."""
        first = bisect.bisect_right(self._starts, span.start)
        if first and self._by_start[self._starts[first - 1]].stop > span.start:
            first -= 1
        last = bisect.bisect_left(self._starts, span.stop)
        return [self._by_start[start] for start in self._starts[first:last]]

    def _insert(self, registration: Registration) -> None:
        bisect.insort(self._starts, registration.start)
        self._by_start[registration.start] = registration

    def _remove(self, registration: Registration) -> None:
        with self._changed:
            del self._starts[bisect.bisect_left(self._starts, registration.start)]
            del self._by_start[registration.start]
            registration.state = State.GONE
            self._changed.notify_all()


def _overlap_error(span: Span, owner: str, locked: tuple[int, int] | None) -> BufferError:
    what = "part of it" if locked is None else f"{locked[0]:#x} to {locked[1]:#x}"
    return BufferError(
        f"cannot page-lock bytes {span.start:#x} to {span.stop:#x}: {owner} has page-locked {what}, "
        "and copies fail across two ranges; wrap or dlwrap.pin() the array that owns all of it first"
    )


_CURES = {
    _driver.INVALID_VALUE: "the driver cannot page-lock this kind of memory, such as a shared writable mapping of a "
    "file on a disk; map the file with mode 'c' or 'r', or wrap a copy",
    _driver.OUT_OF_MEMORY: "no more memory can be page-locked; look at `ulimit -l`, close other wraps, or wrap less",
    _driver.NOT_SUPPORTED: "this device or driver cannot page-lock it; see dlwrap.support(), or wrap a copy",
}


def _explain_refusal(error: CudaError, refused: Registration) -> CudaError:
    """Say what could not be page-locked, and the cure."""
    if error.code == _driver.NO_DRIVER:
        return error
    cure = _CURES.get(error.code, f"{error.explanation}; wrap a copy")
    explanation = f"cannot page-lock {refused.nbytes} bytes at {refused.start:#x}: {cure}"
    return CudaError(error.code, error.name, explanation, error.call)
