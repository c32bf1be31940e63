"""`report`, and `start_tracing` by which it knows where each holding was made; keeps nothing alive.

What is lent is found among the objects that the garbage collector knows, so that it costs nothing before somebody asks.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import operator
import os
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dlwrap import _driver, _watch
from dlwrap._errors import DLWrapError, DLWrapWarning
from dlwrap._lifetime import USED_ANYWHERE, USED_ON_LEGACY, Lease, manager

if TYPE_CHECKING:
    import traceback

    from dlwrap._registration import Registration
    from dlwrap._watch import Origin

_FRAMES = 8
_EXIT_SECONDS = 0.5  # for releases that are on their way when the program ends
_SHOWN_AT_EXIT = 20


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory that dlwrap holds.

    Attributes
    ----------
    kind : {"wrap", "pin", "copy", "range"}
        What holds it: `wrap`, `pin`, the copy that ``__dlpack__(copy=True)`` made, or a page-locked range by itself.
    state : {"live", "pending", "lingering", "leaked"}
        Whether somebody uses it, the release waits, nobody uses the range any more, or it is kept for ever.
    nbytes : int
        Bytes of all elements, or of the range.
    locked_nbytes : int
        Bytes of the page-locked range that it uses, which others may share; 0 where nothing is page-locked.
    device : int
        The device that may use it.
    memory : {"pinned", "pageable"}
        The memory kind.
    address : int
        The host's address of the first element, or of the range.
    exports : int
        Live DLPack exports.
    graphs : int
        CUDA graphs that own it.
    waits_for : tuple of str
        What its release waits for, or would wait for now.
    age : float or None
        Seconds since it was made; None if it was made without tracing.
    traceback : tuple of traceback.FrameSummary or None
        Who made it, the innermost caller last; None if it was made without tracing.
    """

    kind: Literal["wrap", "pin", "copy", "range"]
    state: Literal["live", "pending", "lingering", "leaked"]
    nbytes: int
    locked_nbytes: int
    device: int
    memory: Literal["pinned", "pageable"]
    address: int
    exports: int
    graphs: int
    waits_for: tuple[str, ...]
    age: float | None
    traceback: tuple[traceback.FrameSummary, ...] | None

    def __str__(self) -> str:
        parts = [f"{self.state} {self.kind} of {self.nbytes} bytes on device {self.device}, {self.memory}"]
        parts += [f"{count} {noun}" for count, noun in ((self.exports, "exports"), (self.graphs, "graphs")) if count]
        parts += [f"waits for {' and '.join(self.waits_for)}"] * bool(self.waits_for)
        parts += [] if self.age is None else [f"{self.age:.1f} s old"]
        frames = self.traceback or ()
        shown = _watch.format_frames(frames)
        return ", ".join(parts) + ("\n" + shown if shown else "")


def start_tracing(frames: int = _FRAMES) -> None:
    """Note for everything wrapped from now on who wrapped it, for `report` and for warnings of leaks.

    Costs some 30 microseconds for each wrap and export; what was wrapped before stays without a traceback. The
    environment variable ``DLWRAP_TRACE=8`` does so from the start, and warns at the end of the program of what is still
    held.

    Parameters
    ----------
    frames : int
        How many callers are kept, at least 1.

    Raises
    ------
    TypeError, ValueError
        ``frames`` is no integer of at least 1.
    """
    if isinstance(frames, bool):
        raise TypeError("frames must be an integer of at least 1, got a bool")
    try:
        number = operator.index(frames)
    except TypeError:
        raise TypeError(f"frames must be an integer of at least 1, got {type(frames).__name__}") from None
    if number < 1:
        raise ValueError(f"frames must be at least 1, got {number}; stop_tracing() ends tracing")
    _watch.trace(number)


def stop_tracing() -> None:
    """Note no callers any more; what was noted stays."""
    _watch.trace(0)


def report() -> tuple[Holding, ...]:
    """List everything that dlwrap holds, the largest first; works without tracing, but then no traceback is known.

    Looks at every object that the garbage collector knows, which takes milliseconds; what ``gc.freeze`` froze is not
    found.
    """
    lifetime = manager()
    if not lifetime.is_usable:
        return ()
    kept = {id(each) for each in lifetime.kept}
    found = [_describe(each, kept) for each in gc.get_objects() if type(each) is Lease]
    ranges = [_describe_range(each, "lingering") for each in list(lifetime.pins.lingering)]
    ranges += [_describe_range(each, "leaked") for each in lifetime.kept if not isinstance(each, Lease)]
    holdings = [each for each in found if each is not None] + ranges
    return tuple(sorted(holdings, key=lambda each: each.nbytes, reverse=True))


def _describe(lease: Lease, kept: set[int]) -> Holding | None:
    """Describe what was lent; None for what is not lent yet, or given back."""
    lent = lease.lent
    if lent is None or lease.hold is None:
        return None
    nbytes, exports, graphs, uses, address, is_held = lent
    state: Literal["live", "pending", "leaked"] = "live" if is_held else "leaked" if id(lease) in kept else "pending"
    pin = lease.pin
    age, traceback = _origin_of(lease.origin)
    return Holding(
        kind=_watch.KINDS[lease.kind],
        state=state,
        nbytes=nbytes,
        locked_nbytes=0 if pin is None else pin.nbytes,
        device=lease.device,
        memory="pageable" if pin is None else "pinned",
        address=address,
        exports=exports,
        graphs=graphs,
        waits_for=_waits_for(lease, uses),
        age=age,
        traceback=traceback,
    )


def _describe_range(found: Registration, state: Literal["lingering", "leaked"]) -> Holding:
    age, traceback = _origin_of(found.origin)
    return Holding(
        kind="range",
        state=state,
        nbytes=found.nbytes,
        locked_nbytes=found.nbytes,
        device=found.device,
        memory="pinned",
        address=found.start,
        exports=0,
        graphs=0,
        waits_for=(),
        age=age,
        traceback=traceback,
    )


def _waits_for(lease: Lease, uses: int) -> tuple[str, ...]:
    if lease.device_wide or uses & USED_ANYWHERE:
        return (f"everything on device {lease.device}",)
    handles = {*list(lease.streams), *([_driver.LEGACY_STREAM] * bool(uses & USED_ON_LEGACY))}
    return tuple(
        "the legacy default stream" if handle == _driver.LEGACY_STREAM else f"stream {handle:#x}"
        for handle in sorted(handles)
    )


def _origin_of(origin: Origin | None) -> tuple[float | None, tuple[traceback.FrameSummary, ...] | None]:
    if origin is None:
        return None, None
    return time.monotonic() - origin.seconds, _watch.summarise(origin.frames)


def _follow_environment() -> None:
    """Do as DLWRAP_TRACE and DLWRAP_NVTX say; what they say wrong ends no program."""
    frames = os.environ.get("DLWRAP_TRACE", "")
    if frames.isdecimal() and int(frames):
        start_tracing(int(frames))
        atexit.register(_warn_at_exit)
    elif frames not in {"", "0"}:
        warnings.warn(f"DLWRAP_TRACE must be a number of callers, got {frames!r}", RuntimeWarning, stacklevel=2)
    if os.environ.get("DLWRAP_NVTX", "0") not in {"", "0"}:
        try:
            _watch.use_nvtx(True)
        except ImportError as error:
            warnings.warn(f"DLWRAP_NVTX: {error}", RuntimeWarning, stacklevel=2)


def _warn_at_exit() -> None:
    """Warn of what is still held, after releases that are on their way had a moment."""
    lifetime = manager()
    if not lifetime.is_usable:
        return
    with contextlib.suppress(DLWrapError, RuntimeError, TimeoutError):
        lifetime.reclaim(_EXIT_SECONDS)
    left = [each for each in report() if each.state != "lingering"]
    if left:
        shown = "\n".join(map(str, left[:_SHOWN_AT_EXIT]))
        more = f"\nand {len(left) - _SHOWN_AT_EXIT} smaller ones" if len(left) > _SHOWN_AT_EXIT else ""
        total = sum(each.nbytes for each in left)
        text = f"at the end of the program dlwrap still holds {total} bytes for {len(left)}:\n{shown}{more}"
        warnings.warn(text, DLWrapWarning, stacklevel=2)


for _public in (Holding, start_tracing, stop_tracing, report):
    _public.__module__ = "dlwrap"

_follow_environment()
