"""No fault ends a thread of dlwrap."""

from __future__ import annotations

import errno

import numpy as np
import pytest

import dlwrap
from capsules import take
from dlwrap import _barrier, _lifetime, _sweeper
from patience import SECONDS


@pytest.fixture
def faults(monkeypatch):
    """What would be shown of errors that have no caller."""
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda shown: seen.append(shown.exc_value))
    return seen


def test_a_fault_in_a_step_of_the_manager_is_shown_and_the_next_release_works(cuda, faults):
    fault = KeyError("a fault")

    def fail():
        raise fault

    buffer = dlwrap.wrap(np.zeros(3))
    _lifetime.manager()._request(fail)
    buffer.close(SECONDS)
    assert faults == [fault]


def test_a_fault_of_the_sweeper_is_shown_and_the_next_unregister_works(cuda, faults, monkeypatch):
    fault = KeyError("a fault")

    pins = _lifetime.manager().pins
    due = pins.due

    def fail_once(now):
        monkeypatch.setattr(pins, "due", due)
        raise fault

    monkeypatch.setattr(pins, "due", fail_once)
    dlwrap.wrap(np.zeros(3))
    dlwrap.reclaim(SECONDS)
    assert cuda.registrations == []
    assert faults == [fault]


def test_without_memory_for_its_page_a_device_wide_wait_fails_and_the_array_is_kept(cuda, monkeypatch, leaks):
    cuda.configure(pageable=True)

    def fail(fileno, length):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(_barrier, "_pages", [])
    monkeypatch.setattr(_barrier.mmap, "mmap", fail)
    buffer = dlwrap.wrap(np.zeros(3))
    take(buffer.__dlpack__(stream=2)).delete()
    with (
        pytest.warns(dlwrap.DLWrapWarning, match="Cannot allocate memory"),
        pytest.raises(dlwrap.DLWrapError, match="memory is kept"),
    ):
        buffer.close(SECONDS)
    assert leaks() == 1


def test_device_wide_waits_that_nobody_waits_for_are_batched(cuda, monkeypatch):
    monkeypatch.setattr(_sweeper, "_PAUSE_BETWEEN_DEVICE_WAITS", 3600)
    cuda.configure(pageable=True)
    first, *others = [dlwrap.wrap(np.zeros(3)) for _ in range(10)]
    take(first.__dlpack__(stream=2)).delete()
    first.close(SECONDS)
    cuda.clear_calls()
    for other in others:
        take(other.__dlpack__(stream=2)).delete()
    del other, others
    dlwrap.reclaim(SECONDS)
    assert cuda.count("cuMemHostRegister") == 1
