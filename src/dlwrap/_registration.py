"""A page-locked range, as the driver knows it, and who uses it."""

from __future__ import annotations

from dlwrap import _native

REGISTERING, LIVE, UNREGISTERING, GONE = _native.REGISTERING, _native.LIVE, _native.UNREGISTERING, _native.GONE


class Registration(_native.Registration):
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
    state : int
        `REGISTERING`, `LIVE`, `UNREGISTERING` or `GONE`: where it is on its way through the driver.
    users : int
        Leases and pins inside; none while it lingers.
    idle_since : float
        When the last user went (`time.monotonic`).
    flush : bool
        Whether somebody waits for it to go.
    when_gone : tuple of callable
        Told when it is gone, or that others use it.
    maker : int
        The thread that registers it (`threading.get_ident`).
    device_start : int or None
        The device's address of `start`.
    other_starts : dict of int to int, or None
        Those of other devices, once they are known.
    """

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    def start_on(self, device: int) -> int | None:
        """Give a device's address of `start`, if it is known."""
        if device == self.device:
            own: int | None = self.device_start
            return own
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
