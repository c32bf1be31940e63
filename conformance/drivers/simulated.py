"""The simulated CUDA driver that comes with dlwrap."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import dlwrap
import dlwrap.testing
from conformance.drivers._calls import Calls

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


OFFSET = 2**20


class SimulatedDriver(Calls):
    """Work waits in held streams; memory that ends under pending work aborts the process."""

    name = "simulated driver"
    simulated = True

    def __init__(self) -> None:
        self._driver = dlwrap.testing.activate()
        super().__init__()

    def describe(self) -> dict[str, Any]:
        """Name the hardware."""
        return {"gpu": "none: the simulated CUDA driver of dlwrap"}

    def reset(self) -> None:
        """Begin a check with nothing held, pending or captured."""
        gc.collect()
        with contextlib.suppress(TimeoutError):
            dlwrap.reclaim(1)
        self._driver.reset(force=True)
        # The device's address of page-locked memory is another one than the host's, as on some boards.
        self._driver.configure(pointer_offset=OFFSET)
        self.set_context(self.primary)

    def memory(self, nbytes: int) -> np.ndarray:
        """Make watched bytes."""
        return self._driver.host_array(nbytes, "uint8")

    def busy(self, stream: int, pointer: int, nbytes: int) -> Callable[[], None]:
        """Hold the stream and launch a kernel there."""
        self._driver.hold(stream)
        self._driver.launch(stream, (pointer, nbytes), write=7)
        return lambda: self._driver.let_go(stream)

    def use_pageable_memory(self) -> bool:
        """Let the device read ordinary memory, so that no unregistering waits where dlwrap should have waited."""
        self._driver.reset(force=True)
        self._driver.configure(pageable=True)
        return True

    def launches_of_others(self, work: Callable[[], None]) -> list[str]:
        """Name the driver calls that submit something to a stream, and were made while `work` ran."""
        self._driver.clear_calls()
        work()
        submits = ("Launch", "Memcpy", "Memset", "Async", "AddCallback", "WaitEvent")
        return [call.function for call in self._driver.calls() if any(part in call.function for part in submits)]
