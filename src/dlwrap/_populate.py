"""Has the pages of large memory there before it is page-locked, bit by bit.

The driver would do that in one call that takes seconds, in which Python can neither be interrupted nor tell how far it
is; most of the time of page-locking fresh memory goes there. Imports nothing of dlwrap but the native part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlwrap import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[int, int], object]

_LARGE = 256 * 2**20
_TOO_LARGE = 512 * 2**30  # a driver may refuse so much, and then all the pages would have been made in vain
_BIT = 64 * 2**20  # some 25 ms where the pages have to be made
_SAMPLES = 64


def populate(start: int, stop: int, *, writable: bool, progress: Progress | None) -> None:
    """Have the pages of memory there that is about to be page-locked; contents stay as they are.

    Parameters
    ----------
    start, stop : int
        The bytes.
    writable : bool
        Whether the pages have to be the process's own, as for a device that may write.
    progress : callable, optional
        Called with the bytes done and all bytes, before and after each bit. Without it nothing is done for memory that
        is small, or seems to be there.
    """
    nbytes = stop - start
    wanted = progress is not None or (nbytes >= _LARGE and not _native.is_resident(start, stop, _SAMPLES))
    if not wanted or nbytes >= _TOO_LARGE:
        return
    for done in range(0, nbytes, _BIT):
        if progress is not None:
            progress(done, nbytes)
        if not _native.populate(start + done, min(start + done + _BIT, stop), writable):
            return  # an older kernel, or no memory: the driver will say
