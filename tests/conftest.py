"""Every test starts and ends with nothing lent, pending or page-locked."""

from __future__ import annotations

import gc

import pytest

import dlwrap

SECONDS = 20  # for what should take milliseconds; only a failing test waits that long


@pytest.fixture(autouse=True)
def nothing_left():
    """Assert that the test found, and leaves, nothing behind."""
    assert_nothing_left()
    yield
    dlwrap.reclaim(SECONDS)
    if dlwrap.stats().live:
        gc.collect()  # a buffer in a reference cycle, such as a traceback's
        dlwrap.reclaim(SECONDS)
    dlwrap.configure()
    assert_nothing_left()


def assert_nothing_left():
    now = dlwrap.stats()
    assert (now.live, now.exports, now.pending, now.pinned_bytes, now.lingering) == (0, 0, 0, 0, 0)


@pytest.fixture
def cuda(simulated_cuda):
    """The simulated driver; released memory is unregistered at once."""
    dlwrap.configure(linger_seconds=0)
    yield simulated_cuda
    dlwrap.reclaim(SECONDS)


@pytest.fixture
def leaks():
    """How many more leaks there are than when the test began; the test is to say how many it expects."""
    before = dlwrap.stats().leaked
    return lambda: dlwrap.stats().leaked - before
