"""The registrations that nobody uses any more, and when each has to go.

Knows nothing of the driver and takes no lock: its owner, the `PinTable`, has one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dlwrap._registration import Registration

# Until `dlwrap.configure` says otherwise.
LINGER_SECONDS = 2.0
LINGER_BYTES = 256 * 2**20

# Unregistering stalls every launch of the process once, however many go: those that have half their time behind them go
# along with one whose time is over.
_ALONG = 0.5


class Lingering:
    """Registrations without a user, the longest unused first; each is in here once.

    One that is used again may stay in here until somebody looks: wraps come without a call of this.

    Attributes
    ----------
    seconds : float
        How long one may stay.
    limit : float
        How many bytes may stay in all.
    """

    def __init__(self) -> None:
        self.seconds = LINGER_SECONDS
        self.limit: float = LINGER_BYTES
        self._staying: dict[int, Registration] = {}
        self._flushed: dict[int, Registration] = {}
        self._at_most = 0  # bytes that stay; where it is too much, they are counted

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Registration]:
        return (found for found in [*self._staying.values(), *self._flushed.values()] if not found.users)

    @property
    def nbytes(self) -> int:
        """Bytes of all; may be asked without the lock."""
        return sum(found.nbytes for found in self)

    def add(self, registration: Registration) -> None:
        """Let one stay, or, if it is to be flushed, go at once."""
        self.discard(registration)
        if registration.flush:
            self._flushed[registration.start] = registration
        else:
            self._at_most += registration.nbytes
            self._staying[registration.start] = registration

    def discard(self, registration: Registration) -> None:
        """Take one out, if it is in."""
        self._flushed.pop(registration.start, None)
        if self._staying.pop(registration.start, None) is not None:
            self._at_most -= registration.nbytes

    def flush(self, registration: Registration) -> None:
        """Have one go at once, now if it is in, else when it is added."""
        if registration.start in self._staying:
            self._flushed[registration.start] = registration  # first, so that an interrupt loses nothing
            self._staying.pop(registration.start, None)
            self._at_most -= registration.nbytes
        registration.flush = True

    def find_due(self, now: float) -> tuple[list[Registration], float]:
        """Give those that have to go, which stay in, and the seconds until the next will have to."""
        due, pause = [found for found in self._flushed.values() if not found.users], math.inf
        if self._at_most > self.limit:
            self._staying = {start: found for start, found in self._staying.items() if not found.users}
            self._at_most = sum(found.nbytes for found in self._staying.values())
        excess = self._at_most - self.limit
        share = 1.0
        used = []
        for found in self._staying.values():
            if found.start in self._flushed:
                continue
            if found.users:
                used.append(found)
                continue
            unused = now - found.idle_since
            if excess <= 0 and unused < share * self.seconds:
                pause = self.seconds - unused
                break
            share = _ALONG if unused >= self.seconds else share
            excess -= found.nbytes
            due.append(found)
        for found in used:
            self.discard(found)
        return due, pause
