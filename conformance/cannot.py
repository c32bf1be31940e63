"""What a check, a producer or a consumer raises when there is nothing to judge."""

from __future__ import annotations


class CannotBeAskedError(Exception):
    """This rule cannot be asked of this producer at this consumer; the text says why. The outcome is "n/a"."""


class UnavailableError(Exception):
    """This producer or consumer cannot run on this machine; the text says why. The outcome is "not run"."""
