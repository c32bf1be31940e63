"""Every test starts and ends with nothing lent, pending or page-locked."""

from __future__ import annotations

import gc
import sys

import pytest

import dlwrap
from dlwrap import _lifetime
from patience import SECONDS, eventually


@pytest.fixture(autouse=True)
def nothing_left():
    """Assert that the test found, and leaves, nothing behind."""
    assert_nothing_left()
    yield
    assert_nothing_left()
    dlwrap.configure()


def assert_nothing_left():
    dlwrap.reclaim(SECONDS)
    if dlwrap.stats().live:
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)  # pytest keeps the frames of the last failure there
        gc.collect()  # a buffer in a reference cycle, such as a traceback's
        dlwrap.reclaim(SECONDS)
    now = dlwrap.stats()
    assert (now.live, now.exports, now.graphs, now.pending, now.pinned_bytes, now.lingering) == (0, 0, 0, 0, 0, 0)


@pytest.fixture
def cuda(simulated_cuda):
    """The simulated driver; released memory is unregistered at once."""
    dlwrap.configure(linger_seconds=0)
    yield simulated_cuda
    eventually(lambda: dlwrap.stats().graphs == 0)  # the driver calls destructors late
    dlwrap.reclaim(SECONDS)


@pytest.fixture
def leaks():
    """Counts the leaks of this test, the first of which warns."""
    manager = _lifetime.manager()
    before, manager.leaked = manager.leaked, 0
    yield lambda: dlwrap.stats().leaked
    manager.leaked = before
