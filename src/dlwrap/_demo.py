"""The main job as a timeline: what happens to one array, observed and not assumed; shows nothing.

What is observed: the array's own finaliser, `dlwrap.stats`, and the consumer's answer whether its work still runs.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import dlwrap
from dlwrap._cli_stages import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlwrap._cli_stages import Stage

MADE = "array made"
WRAPPED = "wrapped"
EXPORTED = "exported"
LAUNCHED = "kernel launched"
DROPPED = "array dropped by the program"
CONSUMER_GONE = "consumer gone"
STILL_BUSY = "GPU still busy"
DONE = "GPU done"
LINGERED = "lingered"
UNREGISTERED = "unregistered"
FREED = "array freed"

_LOOK_SECONDS = 0.2  # how long the busy GPU is looked at
_PATIENCE_SECONDS = 30.0
_STEP_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the timeline: when (seconds from the start), what, and by what it was seen."""

    seconds: float
    what: str
    seen_by: str


@dataclass(frozen=True, slots=True)
class Story:
    """What was seen, in the order in which it was seen, and what of it must not happen."""

    where: str
    consumer: str
    events: tuple[Event, ...]
    violations: tuple[str, ...]


def play(stage: Stage) -> Story:
    """Send one array to the stage's consumer and watch until the array is freed."""
    watch = _Watch(stage)
    memory = watch.send_array()
    watch.drop_consumer()
    if not watch.freed:
        stage.let_finish()
        watch.until(lambda: watch.freed, _PATIENCE_SECONDS)
    expected = [MADE, WRAPPED, EXPORTED, LAUNCHED, DROPPED, CONSUMER_GONE, STILL_BUSY, DONE]
    expected += [UNREGISTERED, FREED] if memory == "pinned" else [FREED]
    # Not expected: a busy machine may not look while the memory lingers.
    seen = [event.what for event in watch.events if event.what != LINGERED]
    violations = check_order(seen, expected)
    wrong = None if violations else stage.check_result()
    return Story(stage.where, stage.consumer, tuple(watch.events), (*violations, *([wrong] if wrong else [])))


def check_order(seen: Sequence[str], expected: Sequence[str]) -> tuple[str, ...]:
    """Say what is missing, and what came too early."""
    present = [what for what in expected if what in seen]
    missing = [f"never seen: {what}" for what in expected if what not in seen]
    early = [
        f"too early: {later}, before: {earlier}"
        for earlier, later in itertools.pairwise(present)
        if seen.index(later) < seen.index(earlier)
    ]
    return (*early, *missing)


class _Watch:
    """Notes what is seen for the first time; the array's finaliser looks too, on whichever thread it runs."""

    def __init__(self, stage: Stage) -> None:
        self.events: list[Event] = []
        self.freed = False
        self._stage = stage
        self._launched = False
        self._pinned = 0
        self._start = time.perf_counter()
        # Reentrant: the finaliser may run inside.
        self._lock = threading.RLock()

    def send_array(self) -> str:
        """Wrap, export, launch, and forget the array; give the memory kind."""
        array = np.ones(ELEMENTS, dtype=np.float32)
        weakref.finalize(array, self._note_freed).atexit = False
        self._note(MADE, f"{array.nbytes >> 20} MiB of {array.dtype} ones")
        buffer = dlwrap.wrap(array)
        self._pinned = dlwrap.stats().pinned_bytes
        how = f"page-locked: stats().pinned_bytes = {self._pinned}" if self._pinned else "pageable memory, as it is"
        self._note(WRAPPED, how)
        self._stage.take(buffer)
        self._note(EXPORTED, f"stats().exports = {dlwrap.stats().exports}")
        self._stage.launch()
        self._launched = True
        if self._stage.is_busy():
            self._note(LAUNCHED, "the consumer says: not done")
        memory = buffer.memory
        del array, buffer
        if not self.freed:
            self._note(DROPPED, "no array or wrapper in the program; the finaliser has not run")
        return memory

    def drop_consumer(self) -> None:
        """Delete what was imported, and look whether the array outlives it while the work runs."""
        self._stage.drop()
        self.until(lambda: self.freed or dlwrap.stats().pending > 0, _PATIENCE_SECONDS)
        counted = dlwrap.stats()
        if counted.exports == 0:
            self._note(CONSUMER_GONE, f"stats().exports = 0, pending = {counted.pending}")
        self.until(lambda: self.freed or not self._stage.is_busy(), _LOOK_SECONDS)
        with self._lock:
            if self._stage.is_busy() and not self.freed:
                self._note(STILL_BUSY, "the consumer says: not done; the finaliser has not run")

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Look until the condition holds, or time is up."""
        deadline = time.perf_counter() + seconds
        while not condition() and time.perf_counter() < deadline:
            self._look()
            time.sleep(_STEP_SECONDS)

    def _look(self) -> None:
        with self._lock:
            # Before the question to the device: what the counts say then already happened.
            counted = dlwrap.stats()
            if self._launched and not self._stage.is_busy():
                self._note(DONE, "the consumer says: done")
            if counted.lingering:
                self._note(LINGERED, "released, still page-locked: the next wrap could use it again")
            if counted.pinned_bytes == 0 and self._pinned:
                self._note(UNREGISTERED, "stats().pinned_bytes = 0")

    def _note_freed(self) -> None:
        with self._lock:
            self._look()
            busy = self._launched and self._stage.is_busy()
            self._note(FREED, "its finaliser ran" + (" WHILE THE GPU WAS BUSY" if busy else ""))
            self.freed = True

    def _note(self, what: str, seen_by: str) -> None:
        with self._lock:
            if not self._saw(what):
                self.events.append(Event(time.perf_counter() - self._start, what, seen_by))

    def _saw(self, what: str) -> bool:
        return any(event.what == what for event in self.events)
