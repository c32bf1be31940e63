"""An array under test: whether it is still there, and whether the GPU still found its contents there."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

import dlwrap

if TYPE_CHECKING:
    from _latch import Latch

COUNT = 1 << 16


class Subject:
    """Hands out an array once, without keeping it.

    Parameters
    ----------
    owner : ndarray, optional
        Page-locked by somebody else; then the array is a view of it, that dlwrap keeps but never registers.
    """

    def __init__(self, owner: np.ndarray | None = None) -> None:
        array = self.make_array() if owner is None else owner[:]
        self.pinned_bytes = array.nbytes if owner is None and dlwrap.support(0).memory == "pinned" else 0
        self.sum = float(array.sum(dtype=np.float64))
        self._reference = weakref.ref(array)
        self._array: np.ndarray | None = array

    @staticmethod
    def make_array() -> np.ndarray:
        return np.arange(COUNT, dtype=np.float32) % 251

    def take(self) -> np.ndarray:
        """Give the array away."""
        array, self._array = self._array, None
        assert array is not None
        return array

    @property
    def alive(self) -> bool:
        return self._reference() is not None

    def assert_held_by(self, latch: Latch) -> None:
        """Assert that everybody let go, without waiting, and only the GPU's work still keeps the array."""
        assert latch.holds, "something waited for the GPU, or the kernel never ran"
        # A manager that did not wait would be done within this time.
        with pytest.raises(TimeoutError):
            dlwrap.reclaim(timeout=0.2)
        stats = dlwrap.stats()
        assert (stats.live, stats.pending, stats.lingering) == (0, 1, 0)
        assert stats.pinned_bytes == self.pinned_bytes
        assert self.alive
        assert latch.holds

    def assert_released_after(self, latch: Latch) -> None:
        """Let the GPU go on; it has to find the contents, and then everything has to be given back."""
        latch.open()
        latch.wait()
        assert latch.sum == self.sum
        dlwrap.reclaim(timeout=30)
        assert not self.alive
        assert (dlwrap.stats().pending, dlwrap.stats().pinned_bytes) == (0, 0)


def assert_gone(subject: Subject) -> None:
    """Assert that the array goes after its graph, whose destructor the driver calls some time later."""
    deadline = time.monotonic() + 20
    while subject.alive and time.monotonic() < deadline:
        dlwrap.reclaim(timeout=20)
        time.sleep(1e-3)
    assert not subject.alive
    assert dlwrap.stats().graphs == 0


def assert_kept_until_done(subject: Subject, latch: Latch) -> None:
    """Assert that the array lives as long as the latch's kernel runs, which then finds the contents."""
    time.sleep(0.3)
    assert subject.alive
    assert latch.holds
    latch.open()
    latch.wait()
    assert latch.sum == subject.sum
    assert_gone(subject)
