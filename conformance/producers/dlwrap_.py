"""dlwrap: `dlwrap.wrap(a)`, page-locked or pageable as the device is."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import dlwrap
from conformance.memory import address
from conformance.producers._subject import Producer, Subject
from conformance.results import Side

if TYPE_CHECKING:
    import numpy as np

    from conformance.drivers._calls import Driver


class Wrapped(Subject):
    """A wrapped buffer; the device may see the array at an address of its own."""

    def __init__(self, offered: Any, array: np.ndarray, driver: Driver) -> None:
        super().__init__(offered, array)
        self._driver = driver

    def address(self, side: Side) -> int:
        """Ask the driver, not dlwrap, what a kernel has to be given."""
        host = address(self.array)
        if side is Side.CPU or not self.array.nbytes or self.offered.memory != "pinned":
            return host
        return int(self._driver.call("cuMemHostGetDevicePointer", host, 0))


def settle(timeout: float) -> None:
    """Wait for the releases under way."""
    gc.collect()
    with contextlib.suppress(TimeoutError):
        dlwrap.reclaim(timeout)


def make(driver: Driver) -> Producer:
    """Give the producer; what is released is unregistered at once."""
    dlwrap.configure(linger_seconds=0)

    def wrap(array: np.ndarray, **options: Any) -> Wrapped:
        return Wrapped(dlwrap.wrap(array, **options), array, driver)

    return Producer("dlwrap", Side.CUDA, wrap, ("dlwrap",), promises=True, serves_host=True, settle=settle)
