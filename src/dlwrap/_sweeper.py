"""The thread that makes the driver calls that block: device-wide waits, unregistering, and making a stream.

They wait for the whole device, and most stall its launches, so they share a thread and nothing else has to wait for
them.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from dlwrap import _driver
from dlwrap._barrier import wait_for_device
from dlwrap._threads import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlwrap._pinning import PinTable
    from dlwrap._waits import Wait

# Device-wide waits stall the program's launches, so releases that nobody waits for are batched this long.
_PAUSE_BETWEEN_DEVICE_WAITS = 0.02
_PAUSE_AFTER_A_FAULT = 1.0
# Unregistered without letting launches in between: of many launches that would each be held up for a moment, as a
# whole for longer, one is held up, for some milliseconds.
_TOGETHER = 64


class Sweeper:
    """Waits for devices and unregisters what is due.

    Parameters
    ----------
    pins : PinTable
        Whose registrations to unregister.
    end_part : callable
        Told, on this thread, the outcome of each device-wide wait.
    """

    def __init__(
        self,
        pins: PinTable,
        end_part: Callable[[Wait, Exception | None], None],
    ) -> None:
        self._pins = pins
        self._end_part = end_part
        self._waits: list[Wait] = []
        self._streams_to_make: deque[tuple[int, Callable[[Exception | None], None]]] = deque()
        self._not_before = -math.inf
        self._requested = False
        self._stopping = False
        # Taken as a lock: an interrupt inside a condition's own `with` would leave it taken.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)

    def submit(self, wait: Wait) -> None:
        """Have the wait's device waited for."""
        with self.lock:
            self._waits.append(wait)
        self.request()

    def make_stream_after_legacy(self, device: int, end: Callable[[Exception | None], None]) -> None:
        """Have the stream made; ``end`` is told, on this object's thread, what came of it."""
        with self.lock:
            self._streams_to_make.append((device, end))
        self.request()

    def request(self) -> None:
        """Look again at what is due."""
        with self.lock:
            self._requested = True
            self._changed.notify()

    def stop(self) -> None:
        """End `run` after the driver call it may be in."""
        with self.lock:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Sweep until stopped; the body of a thread whose capture mode is RELAXED."""
        pause = math.inf
        while self._sleep(min(pause, threading.TIMEOUT_MAX)):
            pause = self._sweep()

    def _sleep(self, pause: float) -> bool:
        with self.lock:
            self._changed.wait_for(lambda: self._requested or self._stopping, pause)
            self._requested = False
            return not self._stopping

    def _sweep(self) -> float:
        """Do what is due; give the seconds until more will be."""
        pauses: list[float] = []
        guard(self._make_streams)
        guard(lambda: pauses.append(self._wait_for_devices()))
        guard(lambda: pauses.append(self._unregister_due()))
        return min(pauses) if len(pauses) == 2 else _PAUSE_AFTER_A_FAULT

    def _make_streams(self) -> None:
        while self._streams_to_make:
            device, end = self._streams_to_make.popleft()
            failure: Exception | None = None
            try:
                _driver.make_stream_after_legacy(device)
            except Exception as error:  # noqa: BLE001 -- as below
                failure = error
            end(failure)

    def _wait_for_devices(self) -> float:
        """Serve every wait submitted so far with one wait per device; give the seconds to the next."""
        with self.lock:
            left = self._not_before - time.monotonic()
            if not self._waits:
                return math.inf
            if left > 0 and not any(wait.urgent for wait in self._waits):
                return left
            waits, self._waits = self._waits, []
        for device in {wait.device for wait in waits}:
            failure: Exception | None = None
            try:
                wait_for_device(device)
            except Exception as error:  # noqa: BLE001 -- also what the bindings raise by themselves
                failure = error
            for wait in waits:
                if wait.device == device:
                    self._end_part(wait, failure)
        self._not_before = time.monotonic() + _PAUSE_BETWEEN_DEVICE_WAITS
        return math.inf

    def _unregister_due(self) -> float:
        due, pause = self._pins.due(time.monotonic())
        for device in {registration.device for registration in due}:
            leaving = [registration for registration in due if registration.device == device]
            for first in range(0, len(leaving), _TOGETHER):
                guard(self._pins.unregister, leaving[first : first + _TOGETHER])
        return pause
