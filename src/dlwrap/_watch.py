"""What watches wraps, exports and releases: the logger, tracing, NVTX; all are off at first.

While one is on, `_native.watch` leaves to Python what is otherwise done in C; while none is, that costs nothing. Takes
no lock.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

from dlwrap import _native
from dlwrap._logs import DEBUG, WARNING, Logs

if TYPE_CHECKING:
    import traceback
    from collections.abc import Callable

    Frame = tuple[str, int, str]  # file, line, function

WRAP, PIN, COPY = range(3)  # what made a lease, for `Loan.kind`
KINDS: tuple[Literal["wrap", "pin", "copy"], ...] = ("wrap", "pin", "copy")

_PACKAGE = os.path.dirname(__file__) + os.sep


class Origin:
    """Where a lease or a page-locked range comes from; keeps no frame, and so nothing of the program, alive.

    Attributes
    ----------
    seconds : float
        When (`time.monotonic`).
    frames : tuple
        File, line and function of each caller, the innermost last.
    """

    __slots__ = ("frames", "seconds")

    def __init__(self, frames: tuple[Frame, ...]) -> None:
        self.seconds = time.monotonic()
        self.frames = frames


class Span:
    """Something that takes time: when it began (`time.perf_counter`), and its NVTX range, if there is one."""

    __slots__ = ("_range", "began")

    def __init__(self, name: str, nbytes: int) -> None:
        self._range: Any = None
        if _watch.nvtx is not None:
            with contextlib.suppress(Exception):
                self._range = _watch.nvtx.start_range(message=name, domain="dlwrap", payload=nbytes)
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.perf_counter() - self.began

    def end(self) -> None:
        """End the NVTX range; a second time nothing happens."""
        handle, self._range = self._range, None
        if handle is not None and _watch.nvtx is not None:
            with contextlib.suppress(Exception):
                _watch.nvtx.end_range(handle)


class _Watch:
    """Who watches.

    Attributes
    ----------
    is_on : bool
        Whether anybody does, or may.
    frames : int
        How many callers tracing keeps; 0 while it is off.
    nvtx : module or None
        The package, while ranges are wanted.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.frames = 0
        self.nvtx: Any = None
        self.logs = Logs(lambda: self._set(True))

    def _set(self, is_on: bool) -> None:
        self.is_on = is_on
        _native.watch(is_on)

    def settle(self) -> bool:
        """Find out whether anybody watches."""
        while True:
            seen = self.logs.generation
            is_on = self.frames > 0 or self.nvtx is not None or self.logs.wants_debug()
            self._set(is_on)
            if seen == self.logs.generation:  # else a level was changed meanwhile, and nobody may miss that
                return is_on


_watch = _Watch()


def begin(name: str, nbytes: int) -> Span | None:
    """Begin something that somebody may want to see; None while nobody does."""
    return Span(name, nbytes) if _watch.is_on and _watch.settle() else None


def is_on() -> bool:
    """Tell whether somebody watches."""
    return _watch.is_on and _watch.settle()


def tell(event: str, nbytes: int, device: int, detail: str = "", seconds: float | None = None) -> None:
    """Log at DEBUG, if somebody watches: something happened to so many bytes, and took so long."""
    if is_on() and _watch.logs.wants_debug():
        fields = {"event": event, "nbytes": nbytes, "device": device, "seconds": seconds}
        took = "" if seconds is None else f" {seconds * 1e3:.3f} ms"
        _watch.logs.tell(DEBUG, "%s: %d bytes, device %d%s%s", (event, nbytes, device, detail, took), fields)


def tell_leak(nbytes: int, device: int, why: str) -> None:
    """Log at WARNING that memory is kept for ever."""
    fields: dict[str, object] = {"event": "leak", "nbytes": nbytes, "device": device, "seconds": None}
    _watch.logs.tell(WARNING, "leak: %d bytes, device %d: %s", (nbytes, device, why), fields)


def find_origin() -> Origin | None:
    """Note who calls dlwrap, while tracing is on."""
    left = _watch.frames
    if not left:
        return None
    found: list[Frame] = []
    frame = sys._getframe().f_back  # noqa: SLF001 -- the only quick way
    while frame is not None and len(found) < left:
        code = frame.f_code
        if found or not code.co_filename.startswith(_PACKAGE):
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return Origin(tuple(reversed(found)))


def summarise(frames: tuple[Frame, ...]) -> tuple[traceback.FrameSummary, ...]:
    """Give callers as the standard library does."""
    import traceback  # noqa: PLC0415 -- for those who ask

    return tuple(traceback.FrameSummary(*frame) for frame in frames)


def format_frames(frames: tuple[traceback.FrameSummary, ...]) -> str:
    """Show callers as tracebacks do, the innermost last."""
    import traceback  # noqa: PLC0415 -- for those who ask

    return "".join(traceback.format_list(list(frames))).rstrip("\n")


def trace(frames: int) -> None:
    """Keep so many callers of each new lease; 0 ends it."""
    _watch.frames = frames
    _watch.settle()


def frames_traced() -> int:
    """Give how many callers are kept; 0 while tracing is off."""
    return _watch.frames


def use_nvtx(wanted: bool) -> None:
    """Show ranges to NVIDIA's profilers, or no longer.

    Raises
    ------
    ImportError
        The package nvtx cannot be imported.
    """
    module = None
    if wanted:
        try:
            module = importlib.import_module("nvtx")
        except ImportError as error:
            raise ImportError(f"NVTX ranges need the package nvtx ({error}): pip install 'dlwrap[nvtx]'") from error
    _watch.nvtx = module
    _watch.settle()


def attach_logger() -> None:
    """Follow the logger from here on; called when the first thing is wrapped."""
    _watch.logs.attach()


def poll_logger() -> None:
    """Follow what the logger does not tell by itself."""
    _watch.logs.poll()


def defer_logs_where(must_defer: Callable[[], bool]) -> None:
    """Say where no handler may run."""
    _watch.logs.must_defer = must_defer


def stop_logs() -> None:
    """Let deferred records come out, at the end of the program."""
    _watch.logs.stop()


os.register_at_fork(after_in_child=_watch.logs.follow_fork)
