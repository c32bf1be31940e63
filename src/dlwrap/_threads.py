"""What the threads of dlwrap share: no fault may end them, because nothing would be released any more."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable


def guard(step: Callable[..., None], *arguments: object) -> None:
    """Take a step; a fault is shown, and what the step was about stays in the books, and so in memory."""
    try:
        step(*arguments)
    except BaseException as error:  # noqa: BLE001 -- see above
        report(error, step)


def report(error: BaseException, where: object) -> None:
    """Show an error that no caller is there for; the hook that shows it is the user's, and may fail itself."""
    with contextlib.suppress(BaseException):
        sys.unraisablehook(
            # What the interpreter makes itself can't be made in Python.
            cast(
                "sys.UnraisableHookArgs",
                SimpleNamespace(
                    exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=None, object=where
                ),
            )
        )
