"""How long tests wait, and for what."""

from __future__ import annotations

import threading

from dlwrap import _lifetime

SECONDS = 20  # for what should take milliseconds; only a failing test waits that long


def settle():
    """Let the manager take everything released so far, record what can be, and drop what is done; waits for no GPU."""
    done = threading.Event()
    manager = _lifetime.manager()
    manager._request(lambda: (manager._take_released(0), manager._events.advance(), done.set()))
    assert done.wait(SECONDS)
