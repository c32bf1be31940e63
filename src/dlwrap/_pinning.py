"""Which host ranges are page-locked, how often, and by whom: one table for the process.

Ranges are exact bytes, as the driver counts them, and never overlap. A registration that nobody uses any more
lingers, because unregistering stalls every launch of the process; whoever runs `PinTable.unregister` decides
when. No lock is held across a driver call, and memory is let go outside the lock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from dlwrap import _driver, _native, _watch
from dlwrap._errors import CudaError
from dlwrap._lingering import Lingering
from dlwrap._populate import populate
from dlwrap._registration import LIVE, REGISTERING, Registration
from dlwrap._threads import guard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlwrap._layout import HostLayout, Span
    from dlwrap._populate import Progress

    WhenGone = Callable[[Exception | None], None]
    Seen = dict[Registration, tuple[int, int]]  # state and users

_ALL_ADDRESSES = 2**64 - 1

_WHILE_REGISTERING = "in a finaliser that a collection runs while this thread page-locks part of the same memory"


class PinTable:
    """The process's registrations, by address.

    Parameters
    ----------
    request_sweep : callable
        Called, without a lock, when a registration may have become due for `unregister`.
    run_soon : callable
        Has a thread of dlwrap call something, without a lock.
    note_leak : callable
        Told, without a lock, why a range stays registered and its memory is kept.
    check_may_wait : callable
        Raises where this thread must not wait for a sweep: a finaliser may run on the one that sweeps.
    """

    def __init__(
        self,
        request_sweep: Callable[[], None],
        run_soon: Callable[[Callable[[], None]], None],
        note_leak: Callable[[Exception, Registration], None],
        check_may_wait: Callable[[str], None],
    ) -> None:
        self.lingering = Lingering()
        self.table = _native.Registrations()
        self._request_sweep = request_sweep
        self._run_soon = run_soon
        self._note_leak = note_leak
        self._check_may_wait = check_may_wait
        self._leaving: set[Registration] = set()  # until their memory is dropped
        self._waiting: set[int] = set()  # threads that wait for a change
        # Reentrant: a collection inside may run a finaliser that wraps or closes. Taken as a lock: an interrupt inside
        # a condition's own `with` would leave it taken.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)

    @property
    def pinned_bytes(self) -> int:
        """Bytes that are page-locked by dlwrap."""
        return self.table.locked

    # ---- taking ----

    def acquire(
        self, user: _native.Loan, layout: HostLayout, device: int, extent: str, progress: Progress | None = None
    ) -> None:
        """Find or make a registration around the layout's bytes, with this user; tell the progress of making one.

        Whatever it raises, interrupts included, and however far it came: `release` undoes it.

        Raises
        ------
        BufferError
            Part of the memory is page-locked in another range, so that no single registration can cover it.
        CudaError
            The driver refused.
        RuntimeError
            It would have to wait, on a thread that must not.
        """
        wanted: Span | None = None
        while not self._share(user, layout, device):
            wanted = wanted or (layout.owner_span if extent == "owner" else layout.span)
            made, blocking = self._claim(user, layout, device, wanted)
            if made is not None:
                if self._register(user, made, layout, progress):
                    return
                wanted = layout.span
            elif blocking:
                wanted = self._make_way(list(blocking), layout.span, wanted)
                self._check_may_wait("page-locked memory that is in the way")
                self._wait_for_change(blocking)

    def _share(self, user: _native.Loan, layout: HostLayout, device: int) -> bool:
        """Become a user of a live registration around the layout's bytes, if there is one."""
        found = self.table.share(user, layout.pointer, layout.stop, layout.writable_memory)
        if found is None:
            return False
        with self.lock:
            self.lingering.discard(found)
        if found.users == 1:
            _watch.tell("revive", found.nbytes, found.device)
        if found.when_gone:
            self._run_soon(partial(self._tell_revived, found))
        if found.start_on(device) is None:
            with _driver.relaxed(), _driver.primary_context(device):
                found.learn_start(device, _driver.device_pointer(found.start))
        return True

    def _claim(
        self, user: _native.Loan, layout: HostLayout, device: int, wanted: Span
    ) -> tuple[Registration | None, Seen]:
        """Put a new registration into the table, or give those that are in the way, as they are now."""
        made: Registration | None = None
        blocking: Seen = {}
        with self.lock:
            if self.table.find(layout.pointer, layout.stop, layout.writable_memory) is None:
                made = Registration(wanted.start, wanted.stop, not layout.writable_memory, device, layout.hold)
                made.origin = user.origin
                blocking = {other: (other.state, other.users) for other in self.table.claim(user, made)}
        if any(other.maker == threading.get_ident() and other.state == REGISTERING for other in blocking):
            raise RuntimeError(f"cannot wrap {_WHILE_REGISTERING}")
        return None if blocking else made, blocking

    def _tell_revived(self, registration: Registration) -> None:
        """Tell those who wait for it to go that others use it now, as `release` would have told them."""
        with self.lock:
            told: tuple[WhenGone, ...] = ()
            if registration.users:
                told, registration.when_gone = registration.when_gone, told
        for callback in told:
            callback(None)

    def _make_way(self, blocking: list[Registration], span: Span, wanted: Span) -> Span:
        """Have what lingers there unregistered; give the bytes to try next."""
        with self.lock:
            used = [found for found in blocking if found.state == LIVE and found.users]
            for found in blocking:
                self.lingering.flush(found)
        self._request_sweep()
        if not used:
            return wanted
        in_the_way = [found for found in used if found.start < span.stop and span.start < found.stop]
        if in_the_way:
            raise _overlap_error(span, "a live wrap or pin of dlwrap", (in_the_way[0].start, in_the_way[0].stop))
        return span

    def _wait_for_change(self, seen: Seen) -> None:
        this = threading.get_ident()
        try:
            self._waiting.add(this)
            with self.lock:
                self._changed.wait_for(
                    lambda: (
                        any((found.state, found.users) != state for found, state in seen.items())
                        or any(users and state == LIVE for state, users in seen.values())
                    )
                )
        finally:
            self._waiting.discard(this)

    def _register(self, user: _native.Loan, made: Registration, layout: HostLayout, progress: Progress | None) -> bool:
        """Register a range that is in the table already, or adopt another; False if the span alone should be tried."""
        # Pages of a file are not made the process's own: the driver refuses shared ones, after they were written to.
        populate(made.start, made.stop, writable=not (made.read_only or layout.file_backed), progress=progress)
        span = _watch.begin("page-lock", made.nbytes)
        try:
            _driver.page_lock(self.table, made)
        except CudaError as error:
            if made.state == LIVE:
                self._release_and_wait(user)
            if error.call == "cuMemHostGetDevicePointer":
                raise _explain_refusal(error, made) from error
            if error.call != "cuMemHostRegister" or error.code == _driver.NO_DRIVER:
                raise
            self.release(user)
            return self._adopt(user, error, made, layout)
        finally:
            if span is not None:
                span.end()
        self._tell_change()
        if span is not None:
            _watch.tell("page-lock", made.nbytes, made.device, ", in", span.seconds)
        if progress is not None:
            progress(made.nbytes, made.nbytes)
        return True

    def _tell_change(self) -> None:
        if self._waiting:
            with self.lock:
                self._changed.notify_all()

    def _adopt(self, user: _native.Loan, error: CudaError, refused: Registration, layout: HostLayout) -> bool:
        """Use memory that somebody else registered, where that covers the array; False to try the span alone."""
        if error.code not in {_driver.HOST_MEMORY_ALREADY_REGISTERED, _driver.INVALID_VALUE}:
            raise _explain_refusal(error, refused) from error
        span, device = layout.span, refused.device
        with _driver.relaxed(), _driver.primary_context(device):
            known = _driver.known_range(span.start)
            if known is not None and known[0] <= span.start and span.stop <= known[1]:
                # Not in the table: it is theirs, and it may vanish or change at any time.
                theirs = Registration(
                    span.start,
                    span.stop,
                    refused.read_only,
                    device,
                    adopted=True,
                    device_start=_driver.device_pointer(span.start),
                )
                self.table.use(user, theirs)
                return True
            known = known or _driver.known_range(span.stop - 1)
        if error.code == _driver.INVALID_VALUE:
            raise _explain_refusal(error, refused) from error
        if (refused.start, refused.stop) != (span.start, span.stop):
            return False
        raise _overlap_error(span, "somebody else", known) from error

    # ---- giving back ----

    def release(self, user: _native.Loan, *, flush: bool = False, then: WhenGone | None = None) -> None:
        """Undo `acquire`, be it done or interrupted; without a pin there is nothing to undo.

        Parameters
        ----------
        user : Loan
            What was given to `acquire`.
        flush : bool
            Unregister at once if nobody else uses it.
        then : callable, optional
            Called without a lock: at once if others go on using the range, else after it is unregistered.
        """
        if _native.leave_to_others(user):
            self._tell_change()
            if then is not None:
                then(None)
            return
        with self.lock:
            pin = user.pin
            idle = pin.state == LIVE and pin.users == 1 and not pin.adopted
            if pin.state == REGISTERING:
                self._remove(pin)
            elif idle:
                if then is not None:
                    pin.when_gone += (then,)
                pin.idle_since = time.monotonic()
                pin.flush = flush or bool(pin.when_gone)
                self.lingering.add(pin)
            _native.leave(user)  # last, so that an interrupted release can be repeated
        self._tell_change()
        if idle:
            if pin.users:  # a wrap came in between
                self._tell_revived(pin)
            self._request_sweep()
            if not pin.flush:
                _watch.tell("linger", pin.nbytes, pin.device)
        elif then is not None:
            then(None)

    def _release_and_wait(self, user: _native.Loan) -> None:
        """Release, and wait until it is unregistered or used by others, unless that would be for this thread itself."""
        gone = threading.Event()
        self.release(user, then=lambda _failure: gone.set())
        with contextlib.suppress(RuntimeError):
            self._check_may_wait("page-locked memory to be unregistered")
            gone.wait()

    def due(self, now: float) -> tuple[list[Registration], float]:
        """Take what must be unregistered now; also give the seconds until the next will be due."""
        with self.lock:
            due, pause = self.lingering.find_due(now)
            due = [found for found in due if self.table.begin_unregister(found)]
            for found in due:
                self._leaving.add(found)
                self.lingering.discard(found)
            return due, pause

    def unregister(self, leaving: list[Registration]) -> None:
        """Unregister some of what `due` gave, of one device, and let the memory go; blocks until the device is idle.

        Where the driver refuses, the memory is kept, because it may still be page-locked.
        """
        nbytes, device = sum(found.nbytes for found in leaving), leaving[0].device
        span = _watch.begin("unregister", nbytes)
        failures = _unregister(leaving)
        if span is not None:
            span.end()
            _watch.tell(
                "unregister", nbytes, device, f", {len(leaving)} range{'s' * (len(leaving) > 1)}, in", span.seconds
            )
        for registration, failure in zip(leaving, failures, strict=True):
            guard(self._let_go, registration, failure)

    def _let_go(self, registration: Registration, failure: Exception | None) -> None:
        if failure is not None:
            _native.leak(registration.hold)
            self._note_leak(failure, registration)
        self._remove(registration)
        # Not in the table any more: a finaliser that runs here may wrap memory at the same address.
        registration.hold = None
        with self.lock:
            self._leaving.remove(registration)
        for callback in registration.when_gone:
            callback(failure)

    def flush(self, then: WhenGone) -> int:
        """Make every lingering registration due; ``then`` is called once for each, when it is gone.

        Returns how many that are, those that are on their way included.
        """
        with self.lock:
            leaving = [*self.lingering, *self._leaving]
            for found in leaving:
                self.lingering.flush(found)
                found.when_gone += (then,)
        for found in leaving:
            if found.users:  # a wrap came in between
                self._tell_revived(found)
        self._request_sweep()
        return len(leaving)

    def find_host_address(self, pointer: int, nbytes: int, device: int) -> int | None:
        """Give the host's address of page-locked bytes that a device has at an address."""
        # Where it is the same address, as nearly always, that is quick.
        everywhere = ((pointer, pointer + max(nbytes, 1)), (0, _ALL_ADDRESSES))
        for found in (found for span in everywhere for found in self.table.overlapping(*span)):
            start = found.start_on(device) if found.state == LIVE else None
            if start is not None and start <= pointer and pointer + nbytes <= start + found.nbytes:
                return int(found.start + pointer - start)
        return None

    def _remove(self, registration: Registration) -> None:
        with self.lock:
            self.table.remove(registration)
            self._changed.notify_all()


def _unregister(leaving: list[Registration]) -> Sequence[Exception | None]:
    """Have the driver unregister; give the errors after which the memory may still be page-locked."""
    try:
        _driver.use_primary_context(leaving[0].device)
        failures = _driver.unregister_all(tuple(found.start for found in leaving))
    except Exception as error:  # noqa: BLE001 -- what the bindings raise by themselves
        return [error] * len(leaving)
    # What is not registered any more needs no unregistering.
    gone = _driver.HOST_MEMORY_NOT_REGISTERED
    return [None if failure is None or failure.code == gone else failure for failure in failures]


def _overlap_error(span: Span, owner: str, locked: tuple[int, int] | None) -> BufferError:
    what = "part of it" if locked is None else f"{locked[0]:#x} to {locked[1]:#x}"
    return BufferError(
        f"cannot page-lock bytes {span.start:#x} to {span.stop:#x}: {owner} has page-locked {what}, "
        "and copies fail across two ranges; wrap or dlwrap.pin() the array that owns all of it first"
    )


_MOST_AT_ONCE = 512 * 2**30

_CURES = {
    _driver.INVALID_VALUE: "the driver cannot page-lock this kind of memory, such as a shared writable mapping of a "
    "file on a disk; map the file with mode 'c' or 'r', or wrap a copy",
    _driver.OUT_OF_MEMORY: "no more memory can be page-locked; look at `ulimit -l`, close other wraps, or wrap less",
    _driver.NOT_SUPPORTED: "this device or driver cannot page-lock it; see dlwrap.support(), or wrap a copy",
}


def _explain_refusal(error: CudaError, refused: Registration) -> CudaError:
    """Say what could not be page-locked, and the cure."""
    cures = _CURES if error.call == "cuMemHostRegister" else {}
    cure = cures.get(error.code, f"{error.explanation}; wrap a copy")
    if cures and refused.nbytes >= _MOST_AT_ONCE:
        cure = "drivers from r580 on page-lock less than 512 GiB in one range; wrap its parts, with extent='view'"
    explanation = f"cannot page-lock {refused.nbytes} bytes at {refused.start:#x}: {cure}"
    return CudaError(error.code, error.name, explanation, error.call)
