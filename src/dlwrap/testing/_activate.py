"""Loads the simulated driver into the process, once, and gives it to tests for a while."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from dlwrap.testing import _library
from dlwrap.testing._driver import SimulatedDriver

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_driver: SimulatedDriver | None = None


def activate() -> SimulatedDriver:
    """Make the simulated driver the CUDA driver of this process, for as long as it lives.

    Call it before anything makes its first CUDA call. Calling it again gives the same driver.

    Raises
    ------
    RuntimeError
        If a real driver is loaded already, or the platform is not Linux.
    """
    global _driver  # noqa: PLW0603 - a process has one CUDA driver
    with _lock:
        if _driver is None:
            obstacle = _library.why_not_loadable()
            if obstacle is not None:
                raise RuntimeError(obstacle)
            _driver = SimulatedDriver(_library.load())
        return _driver


def active() -> bool:
    """Whether the simulated driver is the CUDA driver of this process."""
    return _driver is not None


@contextlib.contextmanager
def simulated_cuda(**settings: Any) -> Iterator[SimulatedDriver]:
    """Activate the simulated driver, fresh and configured, and check at the end that all was put back.

    Parameters
    ----------
    **settings
        As for `SimulatedDriver.configure`.

    Raises
    ------
    AssertionError
        At the end, if work is pending, memory is registered, or the program still holds references to user objects.
        The driver is reset all the same.
    """
    driver = activate()
    driver.reset()
    driver._library.dlwrap_sim_host_count_anew()  # noqa: SLF001 - what an earlier test leaked, or its traceback keeps
    driver.configure(**settings)
    try:
        yield driver
        driver.assert_clean()
    finally:
        driver.reset(force=True)
