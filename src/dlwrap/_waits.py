"""Waiting for the GPU without blocking: events recorded on tracked streams, and polled.

Used by the lifetime manager's thread alone. What cannot be tracked is handed on to whoever waits device-wide.
"""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from dlwrap import _driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlwrap._streams import TrackedStream

_SHORTEST_PAUSE = 50e-6
_LONGEST_PAUSE = 5e-3
FOREVER = -1.0


class Wait:
    """Work on a device that has to end before something else may happen.

    Attributes
    ----------
    device : int
        The device that works.
    streams : tuple of TrackedStream
        Wait for what has been submitted to these.
    device_wide : bool
        Wait for everything that has been submitted to the device.
    finish : callable
        Called once, by the manager's thread, with None or with the error that leaves the end unknown.
    urgent : bool
        Whether a thread of the program waits for it.
    """

    # No dataclasses in this file: making one takes a tenth of what importing dlwrap may take.
    __slots__ = ("_failure", "_parts", "device", "device_wide", "finish", "streams", "urgent")

    def __init__(
        self,
        device: int,
        streams: tuple[TrackedStream, ...],
        finish: Callable[[Exception | None], None],
        *,
        device_wide: bool,
        urgent: bool,
    ) -> None:
        self.device = device
        self.streams = streams
        self.device_wide = device_wide
        self.finish = finish
        self.urgent = urgent
        self._parts = 0
        self._failure: Exception | None = None

    def begin(self) -> None:
        """Count the parts that have to end."""
        self._parts = len(self.streams) + self.device_wide
        if self._parts == 0:
            self.finish(None)

    def end_part(self, failure: Exception | None) -> None:
        """Note that one part ended."""
        self._parts -= 1
        self._failure = self._failure or failure
        if self._parts == 0:
            self.finish(self._failure)


class _Recording:
    """An event on a stream, for all the waits that were there when it was recorded."""

    __slots__ = ("event", "waits")

    def __init__(self, event: Any, waits: list[Wait]) -> None:
        self.event = event
        self.waits = waits


class _Queue:
    """What waits for one stream: not recorded yet, and recorded in order."""

    __slots__ = ("recordings", "stream", "unrecorded")

    def __init__(self, stream: TrackedStream) -> None:
        self.stream = stream
        self.unrecorded: list[Wait] = []
        self.recordings: deque[_Recording] = deque()


class EventWaits:
    """Records and polls one event per stream and batch.

    Parameters
    ----------
    wait_for_device : callable
        Takes a wait whose device must be waited for as a whole, and calls its `Wait.end_part` later.
    make_stream : callable
        Takes a device, makes its `stream_after_legacy` on a thread that may block, and calls what it is given then.
    """

    def __init__(
        self,
        wait_for_device: Callable[[Wait], None],
        make_stream: Callable[[int, Callable[[Exception | None], None]], None],
    ) -> None:
        self._wait_for_device = wait_for_device
        self._make_stream = make_stream
        self._making: set[int] = set()
        self._queues: dict[tuple[int, int], _Queue] = {}
        self._pause = _SHORTEST_PAUSE

    def add(self, wait: Wait) -> None:
        """Begin a wait; the next `advance` records its events."""
        self._pause = _SHORTEST_PAUSE
        wait.begin()
        for stream in wait.streams:
            key = (stream.device, stream.handle)
            self._queues.setdefault(key, _Queue(stream)).unrecorded.append(wait)
        if wait.device_wide:
            self._wait_for_device(wait)

    def advance(self) -> None:
        """Record what can be recorded, and end what the GPU has finished."""
        for key, queue in list(self._queues.items()):
            if queue.unrecorded:
                self._record(queue)
            while queue.recordings and self._poll(queue.recordings[0]):
                queue.recordings.popleft()
                self._pause = _SHORTEST_PAUSE
            if not queue.unrecorded and not queue.recordings:
                del self._queues[key]

    def next_pause(self) -> float:
        """Give the seconds until `advance` should be called again; negative for never."""
        if not self._queues:
            return FOREVER
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE)
        return pause

    def _record(self, queue: _Queue) -> None:
        """Record one event for all; nothing changes while the stream captures."""
        waits, queue.unrecorded = queue.unrecorded, []
        event, recorded = None, False
        try:
            _driver.use_primary_context(queue.stream.device)
            target = self._find_stream_to_record_on(queue.stream)
            if target is not None:
                event = _driver.create_event()
                recorded = _driver.record_unless_capturing(event, target)
        except Exception:  # noqa: BLE001 -- whatever failed, the device can still be waited for as a whole
            for wait in waits:
                self._wait_for_device(wait)
        else:
            if recorded:
                queue.recordings.append(_Recording(event, waits))
            else:
                queue.unrecorded = waits
        if event is not None and not recorded:
            _destroy(event)

    def _find_stream_to_record_on(self, stream: TrackedStream) -> int | None:
        """Find a stream on which an event comes after what is on this one; None while it is being made.

        Recording on the legacy stream itself would break the capture of a blocking stream that begins at that moment,
        and be a barrier between the program's blocking streams.
        """
        if stream.handle != _driver.LEGACY_STREAM:
            return stream.handle
        found = _driver.stream_after_legacy(stream.device)
        if found is None and stream.device not in self._making:
            self._making.add(stream.device)
            self._make_stream(stream.device, partial(self._end_making, stream))
        return found

    def _end_making(self, legacy: TrackedStream, failure: Exception | None) -> None:
        """Go on recording, or wait for the whole device where there is nothing to record on."""
        self._making.discard(legacy.device)
        queue = self._queues.get((legacy.device, legacy.handle))
        if failure is not None and queue is not None:
            waits, queue.unrecorded = queue.unrecorded, []
            for wait in waits:
                self._wait_for_device(wait)

    def _poll(self, recording: _Recording) -> bool:
        """End the waits of an event that is done."""
        try:
            if not _driver.is_event_done(recording.event):
                return False
            end: Callable[[Wait], None] = _end_well
        except Exception:  # noqa: BLE001 -- the event tells nothing: it may be one of a capture that came and went
            end = self._wait_for_device
        _destroy(recording.event)
        for wait in recording.waits:
            end(wait)
        return True


def _end_well(wait: Wait) -> None:
    wait.end_part(None)


def _destroy(event: Any) -> None:
    """Destroy an event if the driver lets it; nobody needs it any more."""
    with contextlib.suppress(Exception):
        _driver.destroy_event(event)
