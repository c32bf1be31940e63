"""The logger "dlwrap": whether it wants records, and who gives them to its handlers.

A handler may do anything: wrap, wait, raise, take long. So none ever runs on a thread that others of dlwrap wait for,
nor inside one of its locks: there the record is left to a thread that does nothing else. Imports logging only once
something is wrapped.
"""

from __future__ import annotations

import os
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from dlwrap._threads import report

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "dlwrap"
DEBUG, WARNING = 10, 30  # as in logging

_PACKAGE = os.path.dirname(__file__) + os.sep
_EXIT_SECONDS = 0.5


class Logs:
    """Follows the logger, and gives it records.

    Attributes
    ----------
    generation : int
        Counts how often the answer of `wants_debug` may have changed.

    Parameters
    ----------
    look_again : callable
        Called, on any thread, when the answer of `wants_debug` may have changed.
    """

    def __init__(self, look_again: Callable[[], None]) -> None:
        self.generation = 0
        self.must_defer: Callable[[], bool] = bool  # whether no handler may run on this thread now
        self._look_again = look_again
        self._logger: Any = None
        self._wants: bool | None = False  # None where it has to be asked
        self._disabled = False
        self._is_followed = False
        self._this_thread = threading.local()
        self._records: SimpleQueue[Any] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def attach(self) -> Any:
        """Find the logger, once, and follow it from here on."""
        if self._logger is None:
            import logging  # noqa: PLC0415 -- takes longer than all of dlwrap

            logger = logging.getLogger(NAME)
            logger.addHandler(logging.NullHandler())
            # logging empties the cache of each logger whenever a level changes anywhere, `logging.disable` included.
            cache = getattr(logger, "_cache", None)
            self._is_followed = isinstance(cache, dict)
            if self._is_followed:
                logger._cache = _Cache(self.forget)  # type: ignore[attr-defined]  # noqa: SLF001
            self._logger = logger
            self.forget()
        return self._logger

    def forget(self) -> None:
        """Ask again, because the answer may have changed."""
        self._wants = None
        self.generation += 1
        self._look_again()

    def poll(self) -> None:
        """See what no cache tells: that the logger was disabled or enabled by its attribute."""
        if self._logger is not None and self._logger.disabled != self._disabled:
            self.forget()

    def wants_debug(self) -> bool:
        """Tell whether ``logger.isEnabledFor(DEBUG)``."""
        wants = self._wants
        if wants is None:
            seen = self.generation
            self._disabled = self._logger.disabled
            wants = self._logger.isEnabledFor(DEBUG)
            # Where it cannot be followed it is asked each time.
            self._wants = wants if self._is_followed and seen == self.generation else None
        return bool(wants)

    def tell(self, level: int, text: str, arguments: tuple[object, ...], fields: dict[str, object]) -> None:
        """Log; whatever fails there ends nothing else."""
        if getattr(self._this_thread, "is_inside", False):
            return  # a handler that wraps would be called for ever
        self._this_thread.is_inside = True
        try:
            logger = self.attach()
            if not logger.isEnabledFor(level):
                return
            path, line, function = _find_caller()
            record = logger.makeRecord(NAME, level, path, line, text, arguments, None, function, {NAME: fields})
            if self.must_defer():
                self._defer(record)
            else:
                logger.handle(record)
        except Exception as error:  # noqa: BLE001 -- see above
            report(error, self.tell)
        finally:
            self._this_thread.is_inside = False

    def _defer(self, record: Any) -> None:
        self._records.put(record)
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver, name="dlwrap-logs", daemon=True)
            self._thread.start()

    def _deliver(self) -> None:
        """Be the thread that nobody waits for."""
        self._this_thread.is_inside = True
        while (record := self._records.get()) is not None:
            try:
                self._logger.handle(record)
            except Exception as error:  # noqa: BLE001 -- see above
                report(error, self._deliver)

    def stop(self) -> None:
        """Let what was deferred come out, within half a second, before the interpreter ends."""
        if self._thread is not None:
            self._records.put(None)
            self._thread.join(_EXIT_SECONDS)

    def follow_fork(self) -> None:
        """Go on in a child, which has no thread of the parent's."""
        self._records, self._thread = SimpleQueue(), None
        self._this_thread = threading.local()


class _Cache(dict[int, bool]):
    """A logger's cache of its answers, that tells when it is emptied."""

    def __init__(self, forget: Callable[[], None]) -> None:
        super().__init__()
        self._forget = forget

    def clear(self) -> None:
        """Empty it."""
        super().clear()
        self._forget()


def _find_caller() -> tuple[str, int, str]:
    """Give file, line and function of the caller outside dlwrap; on a thread of dlwrap, of the outermost frame."""
    frame = sys._getframe()  # noqa: SLF001 -- as logging does
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
