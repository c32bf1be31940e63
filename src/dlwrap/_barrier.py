"""The device-wide wait, for work on streams that cannot be tracked.

Its own file behind one function, so that a better wait can replace it. No documented call waits for every stream
of a device without breaking stream captures; unregistering any page-locked memory does, so a page of our own is
registered and unregistered. It stalls launches of the whole process while it waits: batch the callers.
"""

from __future__ import annotations

import mmap

import numpy as np

from dlwrap import _driver

_pages: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []


def wait_for_device(device: int) -> None:
    """Wait until everything submitted to the device's primary context so far has finished.

    That covers its green contexts, but no other context (measured). To be called by one thread, whose capture mode
    is RELAXED.

    Raises
    ------
    CudaError
        Nothing is known about the device's work.
    """
    if not _pages:
        _pages.append(np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=np.uint8))
    page = _pages.pop()
    pointer = int(page.__array_interface__["data"][0])
    with _driver.primary_context(device):
        _driver.register(pointer, page.nbytes)
        _driver.unregister(pointer)
    # Not reached when a call failed: a page that may still be registered is never used again.
    _pages.append(page)
