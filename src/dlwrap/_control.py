"""What concerns the whole process: `reclaim`, `configure`, `stats`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlwrap import _native, _watch
from dlwrap._lifetime import manager
from dlwrap._lingering import LINGER_BYTES, LINGER_SECONDS


@dataclass(frozen=True, slots=True)
class Stats:
    """What dlwrap holds at the moment.

    Attributes
    ----------
    live : int
        Wraps and pins whose wrapper, or something made of it, is alive.
    exports : int
        Live DLPack exports.
    graphs : int
        Holds of CUDA graphs that own memory: one for each graph and buffer.
    pinned_bytes : int
        Bytes that dlwrap has page-locked, those that linger included.
    pending : int
        Releases that wait for the GPU.
    lingering : int
        Page-locked ranges that nobody uses any more.
    lingering_bytes : int
        Their bytes.
    leaked : int
        Releases and ranges whose memory is kept for ever, because the GPU or the driver failed.
    """

    live: int
    exports: int
    graphs: int
    pinned_bytes: int
    pending: int
    lingering: int
    lingering_bytes: int
    leaked: int


def stats() -> Stats:
    """Count what dlwrap holds; the counts are taken one after the other while other threads go on."""
    lifetime = manager()
    lingering = lifetime.pins.lingering
    return Stats(
        live=lifetime.count_live(),
        exports=max(0, _native.live_exports() - lifetime.foreign_exports),
        graphs=max(0, _native.live_graphs() - lifetime.foreign_graphs),
        pinned_bytes=lifetime.pins.pinned_bytes,
        pending=lifetime.count_pending(),
        lingering=len(lingering),
        lingering_bytes=lingering.nbytes,
        leaked=lifetime.leaked,
    )


def reclaim(timeout: float | None = None) -> None:
    """Wait until everything handed over so far is released, unregistered and dropped.

    Parameters
    ----------
    timeout : float, optional
        Seconds to wait; by default as long as it takes.

    Raises
    ------
    TimeoutError
        The releases go on in the background.
    DLWrapError
        Some memory is kept, because the GPU or the driver failed.
    ValueError
        ``timeout`` is negative or NaN.
    """
    manager().reclaim(timeout)


def configure(
    *, linger_seconds: float = LINGER_SECONDS, linger_bytes: float = LINGER_BYTES, nvtx: bool | None = None
) -> None:
    """Set how long page-locked memory that nobody uses may stay, to be used again by the next wrap, and what is shown.

    Parameters
    ----------
    linger_seconds : float
        Seconds; 0 unregisters at once, infinity keeps it until `reclaim`.
    linger_bytes : float
        Bytes that may linger together; beyond that the longest unused go first.
    nvtx : bool, optional
        Whether NVIDIA's profilers are shown NVTX ranges, in the domain "dlwrap": wrap, page-lock, wait, unregister.
        Needs the package nvtx. By default as it was: off, unless the environment variable ``DLWRAP_NVTX`` is 1.

    Raises
    ------
    ImportError
        ``nvtx`` is True, and that package cannot be imported.
    ValueError
        One of them is negative or NaN.
    """
    for name, value in (("linger_seconds", linger_seconds), ("linger_bytes", linger_bytes)):
        if math.isnan(value) or value < 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    if nvtx is not None:
        _watch.use_nvtx(nvtx)
    manager().set_linger(linger_seconds, linger_bytes)


for _public in (Stats, stats, reclaim, configure):
    _public.__module__ = "dlwrap"
