"""A page-locked range, as the driver knows it, and who uses it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

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
    results : list, or None
        What the driver returned when it was asked to register, until that is done; see `_driver.succeeded`.
    users : collection of User
        Leases and pins inside; none while it lingers. A set only from the second on, because most ranges have one.
    idle_since : float
        When the last user went (`time.monotonic`).
    flush : bool
        Whether somebody waits for it to go.
    maker : int
        The thread that registers it (`threading.get_ident`).
    device_start : int or None
        The device's address of `start`.
    other_starts : dict of int to int, or None
        Those of other devices, once they are known.
    """

    start: int
    stop: int
    read_only: bool
    device: int
    hold: object = None
    adopted: bool = False
    state: State = State.REGISTERING
    results: Any = field(default_factory=list)
    users: tuple[()] | tuple[User] | set[User] = ()
    idle_since: float = 0.0
    flush: bool = False
    maker: int = field(default_factory=threading.get_ident)
    device_start: int | None = None
    other_starts: dict[int, int] | None = None
    when_gone: tuple[WhenGone, ...] = ()

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    def start_on(self, device: int) -> int | None:
        """Give a device's address of `start`, if it is known."""
        if device == self.device:
            return self.device_start
        return None if self.other_starts is None else self.other_starts.get(device)

    def learn_start(self, device: int, start: int) -> None:
        """Learn a device's address of `start`."""
        if device == self.device:
            self.device_start = start
        else:
            self.other_starts = {**(self.other_starts or {}), device: start}

    def device_pointer(self, pointer: int, device: int) -> int:
        """Give the device's address of a host address inside."""
        start = self.start_on(device)
        if start is None:
            raise LookupError(f"the address on device {device} is not known yet")
        return start + pointer - self.start

    def add_user(self, user: User) -> None:
        """Add a user, once."""
        if isinstance(self.users, set):
            self.users.add(user)
        elif user not in self.users:
            self.users = {*self.users, user} if self.users else (user,)

    def drop_user(self, user: User) -> None:
        """Drop a user, if it is one."""
        if isinstance(self.users, set):
            self.users.discard(user)
        elif user in self.users:
            self.users = ()


class User(Protocol):
    """Whoever uses page-locked memory: `PinTable.acquire` sets its `pin`, and `PinTable.release` clears it."""

    pin: Registration | None
