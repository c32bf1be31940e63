"""`stats`, `reclaim` and `configure`."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dlwrap
import scripts
from capsules import take
from dlwrap._lifetime import manager
from patience import SECONDS, settle


def sweep():
    """Return when the sweeper's thread has gone once through what was due."""
    empty = dlwrap.wrap(np.zeros(0))
    empty.record_stream(2)
    for _ in range(2):  # it waits for devices first, so the second wait comes after what was due at the first
        empty.synchronize()


@pytest.fixture(params=[{}, {"pageable": True}], ids=["pinned", "pageable"])
def device(cuda, request):
    cuda.configure(**request.param)
    return cuda


# ---- stats ----


def test_nothing_is_held_at_first(cuda):
    now = dlwrap.stats()
    assert (now.live, now.exports, now.pinned_bytes, now.pending, now.lingering, now.lingering_bytes) == (0,) * 6


def test_a_wrap_is_live_until_it_is_closed(device):
    buffer = dlwrap.wrap(np.zeros(3))
    assert dlwrap.stats().live == 1
    buffer.close()
    assert dlwrap.stats().live == 0


def test_exports_are_counted_until_their_deleter(device):
    buffer = dlwrap.wrap(np.zeros(3))
    first, second = take(buffer.__dlpack__()), take(buffer.__dlpack__())
    assert dlwrap.stats().exports == 2
    first.delete()
    assert dlwrap.stats().exports == 1
    second.delete()
    assert dlwrap.stats().exports == 0


def test_page_locked_bytes_are_counted(cuda):
    buffer = dlwrap.wrap(np.zeros(1000, np.uint8))
    assert dlwrap.stats().pinned_bytes == 1000
    buffer.close()
    assert dlwrap.stats().pinned_bytes == 0


def test_pageable_memory_counts_no_page_locked_bytes(cuda):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.zeros(1000, np.uint8))
    assert (dlwrap.stats().live, dlwrap.stats().pinned_bytes) == (1, 0)
    buffer.close()


def test_a_release_is_pending_while_the_gpu_works(device):
    array = device.host_array(3)
    buffer = dlwrap.wrap(array)
    device.hold(1)
    device.launch(1, array, write=1)
    buffer.record_stream(1)
    del buffer
    settle()
    assert (dlwrap.stats().live, dlwrap.stats().pending) == (0, 1)
    device.let_go(1)
    dlwrap.reclaim(SECONDS)
    assert dlwrap.stats().pending == 0


def test_what_lingers_is_counted(cuda):
    dlwrap.configure(linger_seconds=math.inf)
    buffer = dlwrap.wrap(np.zeros(1000, np.uint8))
    assert dlwrap.stats().lingering == 0
    del buffer
    settle()
    now = dlwrap.stats()
    assert (now.live, now.pinned_bytes, now.lingering, now.lingering_bytes) == (0, 1000, 1, 1000)


def test_a_pin_is_live(device):
    pin = dlwrap.pin(np.zeros(3))
    assert dlwrap.stats().live == 1
    pin.close()


# ---- reclaim ----


def test_reclaim_waits_for_the_gpu(device):
    array = device.host_array(3)
    buffer = dlwrap.wrap(array)
    device.hold(1)
    device.launch(1, array, write=1)
    buffer.record_stream(1)
    del buffer
    with pytest.raises(TimeoutError, match=r"reclaim\(\): not done after 0.01 s; it goes on in the background"):
        dlwrap.reclaim(0.01)
    device.let_go(1)
    dlwrap.reclaim()
    assert (dlwrap.stats().pending, device.registrations) == (0, [])


def test_reclaim_waits_for_the_unregistering(cuda):
    dlwrap.configure(linger_seconds=math.inf)
    buffer = dlwrap.wrap(np.zeros(3))
    del buffer
    cuda.pause("cuMemHostUnregister")
    try:
        with pytest.raises(TimeoutError, match="reclaim"):
            dlwrap.reclaim(0.05)
        cuda.wait_until_paused("cuMemHostUnregister")
        with pytest.raises(TimeoutError, match="reclaim"):
            dlwrap.reclaim(0.05)
    finally:
        cuda.resume("cuMemHostUnregister")
    dlwrap.reclaim(SECONDS)
    assert cuda.registrations == []


def test_reclaim_drops_the_array(device):
    array = device.host_array(3)
    buffer = dlwrap.wrap(array)
    del array, buffer
    dlwrap.reclaim()
    settle()
    assert device.host_arrays_alive == 0


def test_reclaim_leaves_what_is_in_use(device):
    array = np.zeros(3)
    buffer = dlwrap.wrap(array)
    before = device.registrations
    dlwrap.reclaim()
    assert not buffer.closed
    assert device.registrations == before
    assert np.asarray(buffer) is array


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, -math.inf])
def test_a_timeout_that_is_no_time_is_refused(cuda, timeout):
    with pytest.raises(ValueError, match="timeout must be None or at least 0 seconds, got"):
        dlwrap.reclaim(timeout)


@pytest.mark.parametrize("timeout", [1, None, SECONDS])
def test_reclaim_of_nothing_ends_at_once(cuda, timeout):
    dlwrap.reclaim(timeout)


@pytest.mark.parametrize("timeout", [1e11, math.inf])
def test_reclaim_may_wait_for_longer_than_a_lifetime(cuda, timeout):
    buffer = dlwrap.wrap(np.zeros(3))
    del buffer
    dlwrap.reclaim(timeout)
    assert cuda.registrations == []


# ---- configure ----


def test_without_lingering_a_range_is_unregistered_by_itself(cuda):
    dlwrap.configure(linger_seconds=0)
    cuda.pause("cuMemHostUnregister")
    try:
        buffer = dlwrap.wrap(np.zeros(3))
        del buffer
        cuda.wait_until_paused("cuMemHostUnregister")
    finally:
        cuda.resume("cuMemHostUnregister")
    sweep()
    assert cuda.registrations == []


def test_a_range_that_lingered_long_enough_is_unregistered_by_itself(cuda):
    dlwrap.configure(linger_seconds=0.05)
    cuda.pause("cuMemHostUnregister")
    try:
        buffer = dlwrap.wrap(np.zeros(3))
        del buffer
        cuda.wait_until_paused("cuMemHostUnregister")
    finally:
        cuda.resume("cuMemHostUnregister")
    sweep()
    assert cuda.registrations == []


def test_with_endless_lingering_a_range_stays_until_reclaim(cuda):
    dlwrap.configure(linger_seconds=math.inf)
    buffer = dlwrap.wrap(np.zeros(3))
    del buffer
    settle()
    sweep()
    assert len(cuda.registrations) == 1
    dlwrap.reclaim()
    assert cuda.registrations == []


def test_a_range_that_lingers_is_used_again(cuda):
    dlwrap.configure(linger_seconds=math.inf)
    array = np.zeros(3)
    for _ in range(3):
        buffer = dlwrap.wrap(array)
        del buffer
        settle()
    assert cuda.count("cuMemHostRegister") == 1


def test_shortening_the_lingering_concerns_what_lingers_already(cuda):
    dlwrap.configure(linger_seconds=math.inf)
    buffer = dlwrap.wrap(np.zeros(3))
    del buffer
    settle()
    cuda.pause("cuMemHostUnregister")
    try:
        dlwrap.configure(linger_seconds=0)
        cuda.wait_until_paused("cuMemHostUnregister")
    finally:
        cuda.resume("cuMemHostUnregister")


def test_beyond_the_bytes_the_longest_unused_goes_first(cuda):
    dlwrap.configure(linger_seconds=math.inf, linger_bytes=1000)
    arrays = [np.zeros(600, np.uint8) for _ in range(2)]
    for array in arrays:
        buffer = dlwrap.wrap(array)
        del buffer
        settle()
    sweep()
    assert [each.start for each in cuda.registrations] == [arrays[1].ctypes.data]


def test_a_range_larger_than_the_bytes_never_lingers(cuda):
    dlwrap.configure(linger_seconds=math.inf, linger_bytes=999)
    buffer = dlwrap.wrap(np.zeros(1000, np.uint8))
    del buffer
    settle()
    sweep()
    assert cuda.registrations == []


def test_ranges_within_the_bytes_linger(cuda):
    dlwrap.configure(linger_seconds=math.inf, linger_bytes=1200)
    buffers = [dlwrap.wrap(np.zeros(600, np.uint8)) for _ in range(2)]
    buffers.clear()
    settle()
    sweep()
    assert len(cuda.registrations) == 2


def test_a_range_that_is_closed_takes_no_room_from_those_that_linger(cuda):
    dlwrap.configure(linger_seconds=math.inf, linger_bytes=600)
    kept, closed = np.zeros(600, np.uint8), np.zeros(600, np.uint8)
    buffer = dlwrap.wrap(kept)
    del buffer
    settle()
    dlwrap.wrap(closed).close(SECONDS)
    sweep()
    assert [each.start for each in cuda.registrations] == [kept.ctypes.data]


def test_what_is_not_given_becomes_the_default_again(cuda):
    dlwrap.configure(linger_seconds=math.inf, linger_bytes=0)
    dlwrap.configure()
    assert (manager().pins.lingering.seconds, manager().pins.lingering.limit) == (2.0, 256 * 2**20)


@pytest.mark.parametrize("seconds", [1e11, 1e300])
def test_lingering_may_be_longer_than_a_lifetime(seconds):
    # In a process of its own: what a thread cannot wait for must not end it.
    run(f"""
import numpy as np
import dlwrap
import scripts
import dlwrap.testing

dlwrap.testing.activate()
dlwrap.configure(linger_seconds={seconds})
buffer = dlwrap.wrap(np.zeros(3))
del buffer
dlwrap.wrap(np.zeros(3)).close(timeout=5)
dlwrap.reclaim(5)
""")


@pytest.mark.parametrize("value", [-1, -1e-9, math.nan, -math.inf])
@pytest.mark.parametrize("name", ["linger_seconds", "linger_bytes"])
def test_what_is_no_amount_is_refused(cuda, name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got {value}"):
        dlwrap.configure(**{name: value})


@pytest.mark.parametrize("value", ["x", None, [1]])
@pytest.mark.parametrize("name", ["linger_seconds", "linger_bytes"])
def test_what_is_no_number_is_a_type_error(cuda, name, value):
    with pytest.raises(TypeError, match="real number"):
        dlwrap.configure(**{name: value})


@pytest.mark.parametrize(
    "settings", [{"linger_seconds": 7, "linger_bytes": -1}, {"linger_seconds": 7, "linger_bytes": "x"}]
)
def test_a_refused_configuration_changes_nothing(cuda, settings):
    before = manager().pins.lingering.seconds
    with pytest.raises((ValueError, TypeError)):
        dlwrap.configure(**settings)
    assert manager().pins.lingering.seconds == before


@pytest.mark.parametrize("public", [dlwrap.Stats, dlwrap.stats, dlwrap.reclaim, dlwrap.configure])
def test_tracebacks_show_the_public_name(public):
    assert public.__module__ == "dlwrap"


def run(code):
    done = scripts.run(code, prologue="")
    assert (done.returncode, done.stderr) == (0, "")
