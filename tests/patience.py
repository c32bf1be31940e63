"""How long tests wait, and for what."""

from __future__ import annotations

import threading
import time

from dlwrap import _lifetime

SECONDS = 20  # for what should take milliseconds; only a failing test waits that long


def settle():
    """Let the manager take everything released so far, record what can be, and drop what is done; waits for no GPU."""
    done = threading.Event()
    manager = _lifetime.manager()
    manager._request(lambda: (manager._take_released(0), manager._events.advance(), done.set()))
    assert done.wait(SECONDS)


def eventually(condition):
    """Wait for what a thread of somebody else's brings about, such as a destructor that the driver calls."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(1e-4)
    return True
