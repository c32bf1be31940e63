"""What the soak of captures has to answer for: arrays that must go, and not too early, and faults."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MOST_FAULTS = 40  # then the run ends


@dataclass(slots=True, eq=False)
class Watched:
    """An array that was wrapped.

    Attributes
    ----------
    how : str
        How it was used, for messages.
    waits_for : bool
        Whether its release cannot end while the round's capture is open.
    dropped_in : int
        The round in whose open capture the last holder went; 0 if none was open.
    ref : weakref.ref
        Tells the ledger when the array goes.
    """

    how: str
    waits_for: bool = False
    dropped_in: int = 0
    ref: weakref.ref[np.ndarray] | None = None


class Ledger:
    """Counts, by several threads at once.

    Attributes
    ----------
    open_round : int
        The round whose capture is open for certain: set after its begin, cleared before its end.
    inside : Counter
        What began and ended within one open capture, by name.
    """

    def __init__(self) -> None:
        self.open_round = 0
        self.faults: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.released = 0
        self._inside: list[Counter[str]] = []
        self._released_inside: list[int] = []
        self._watched: set[Watched] = set()

    def counter(self) -> Counter[str]:
        """Give a thread a counter of its own for what it does within an open capture."""
        self._inside.append(Counter())
        return self._inside[-1]

    @property
    def inside(self) -> Counter[str]:
        return sum(self._inside, Counter()) + Counter(releases=len(self._released_inside))

    @property
    def is_over(self) -> bool:
        return len(self.faults) >= MOST_FAULTS

    def fault(self, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        self.faults.append(f"{kind}: {text}")

    def watch(self, array: np.ndarray, how: str) -> Watched:
        watched = Watched(how)
        watched.ref = weakref.ref(array, partial(self._note_gone, watched))
        self._watched.add(watched)
        return watched

    def count_watched(self) -> int:
        """Count the arrays that are still there."""
        return len(self._watched)

    def dropping(self, watched: Watched) -> None:
        """Note that the last holder goes now."""
        watched.dropped_in = self.open_round

    def _note_gone(self, watched: Watched, _: object) -> None:
        """Note that the array was dropped; runs in the thread that drops it."""
        open_round = self.open_round
        self._watched.discard(watched)
        self.released += 1
        if watched.dropped_in == 0 or watched.dropped_in != open_round:
            return
        self._released_inside.append(open_round)
        if watched.waits_for:
            self.fault("released too early", f"round {open_round}: {watched.how}, before the capture ended")

    def check_all_gone(self, when: str) -> None:
        """Note a fault for each array that is still there, and forget it."""
        for watched in list(self._watched):
            self._watched.discard(watched)
            self.fault("array not released", f"{when}: {watched.how}")
