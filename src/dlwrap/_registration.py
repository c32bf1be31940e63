"""A page-locked range, as the driver knows it, and who uses it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlwrap._owner import Span

    WhenGone = Callable[[Exception | None], None]


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
    device : int
        The device in whose context it is registered.
    hold : object
        Keeps the memory until it is unregistered: a missed unregister poisons the address for its next owner.
    adopted : bool
        Whether somebody else registered the memory; then dlwrap never unregisters it.
    results : list
        What the driver returned when it was asked to register; see `_driver.succeeded`.
    users : set of User
        Leases and pins inside; none while it lingers.
    idle_since : float
        When the last user went (`time.monotonic`).
    flush : bool
        Whether somebody waits for it to go.
    maker : int
        The thread that registers it (`threading.get_ident`).
    device_starts : dict of int to int
        For each device the device's address of `start`.
    """

    start: int
    stop: int
    read_only: bool
    device: int
    hold: object = None
    adopted: bool = False
    state: State = State.REGISTERING
    results: list[Any] = field(default_factory=list)
    users: set[User] = field(default_factory=set)
    idle_since: float = 0.0
    flush: bool = False
    maker: int = field(default_factory=threading.get_ident)
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


class User(Protocol):
    """Whoever uses page-locked memory: `PinTable.acquire` sets its `pin`, and `PinTable.release` clears it."""

    pin: Registration | None
