"""The device-wide wait, for work on streams that cannot be tracked.

Its own file behind one function, so that a better wait can replace it. No documented call waits for every stream
of a device without breaking stream captures; unregistering any page-locked memory does, so a page of our own is
registered and unregistered. It stalls launches of the whole process while it waits: batch the callers.
"""

from __future__ import annotations

import mmap

import numpy as np

from dlwrap import _driver
from dlwrap._errors import CudaError

Page = np.ndarray[tuple[int], np.dtype[np.uint8]]

_pages: list[Page] = []


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
        _pages.append(_allocate_page())
    pointer, nbytes = int(_pages[0].__array_interface__["data"][0]), _pages[0].nbytes
    _driver.use_primary_context(device)
    try:
        _driver.register(pointer, nbytes)
    except CudaError as error:
        if error.code != _driver.HOST_MEMORY_ALREADY_REGISTERED:
            raise
        # A wait that failed left it so, perhaps for another device.
        _driver.unregister(pointer)
        _driver.register(pointer, nbytes)
    _driver.unregister(pointer)


def _allocate_page() -> Page:
    try:
        return np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=np.uint8)
    except OSError as error:
        raise CudaError(_driver.OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", str(error), "mmap") from error
