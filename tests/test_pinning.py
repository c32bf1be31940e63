"""The table of page-locked ranges: sharing, adoption, overlaps, lingering."""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
from capsules import take
from dlwrap import _driver
from dlwrap._lifetime import manager
from patience import SECONDS, eventually

FOREVER = float("inf")


def ranges(cuda):
    return [(each.start, each.nbytes) for each in cuda.registrations]


def span(array):
    return (array.__array_interface__["data"][0], array.nbytes)


@contextlib.contextmanager
def registered_by_somebody_else(array, flags=0):
    """Register memory with the driver, behind dlwrap's back."""
    pointer, nbytes = span(array)
    with _driver.primary_context(0):
        assert driver.cuMemHostRegister(pointer, nbytes, flags) == (0,)
    yield
    with _driver.primary_context(0):
        assert driver.cuMemHostUnregister(pointer) == (0,)


# ---- what is locked ----


def test_the_owner_of_a_slice_is_locked_so_that_copies_of_the_owner_go_on_working(cuda):
    parent = np.zeros(1000)
    with dlwrap.wrap(parent[10:20]):
        assert ranges(cuda) == [span(parent)]


def test_extent_view_locks_the_bytes_of_the_view_alone(cuda):
    parent = np.zeros(1000)
    with dlwrap.wrap(parent[10:20], extent="view"):
        assert ranges(cuda) == [span(parent[10:20])]


def test_of_a_strided_view_everything_between_is_locked(cuda):
    parent = np.zeros((10, 10))
    with dlwrap.wrap(parent[2:8:2, 3:6], extent="view"):
        assert ranges(cuda) == [(parent[2:, 3:].__array_interface__["data"][0], (4 * 10 + 3) * 8)]


def test_of_a_mapped_file_the_bytes_of_the_view_alone_are_locked(cuda, tmp_path):
    path = tmp_path / "data"
    np.arange(10_000.0).tofile(path)
    mapped = np.memmap(path, mode="c")
    with dlwrap.wrap(mapped[800:1600]):
        assert ranges(cuda) == [span(mapped[800:1600])]


@pytest.mark.parametrize(("mode", "flags"), [("c", 3), ("r", 3 | 8)])
def test_memory_that_cannot_be_written_is_registered_read_only(cuda, tmp_path, mode, flags):
    path = tmp_path / "data"
    np.arange(100.0).tofile(path)
    with dlwrap.wrap(np.memmap(path, mode=mode)):
        assert [each.flags for each in cuda.registrations] == [flags]


@pytest.mark.parametrize("source", [bytes(64), bytearray(64), memoryview(bytearray(64)), mmap.mmap(-1, 64)], ids=str)
def test_buffers_of_the_standard_library_are_locked(cuda, source):
    with dlwrap.wrap(source):
        assert [nbytes for _, nbytes in ranges(cuda)] >= [64]


def test_nothing_is_locked_where_the_device_reads_pageable_memory(cuda):
    cuda.configure(pageable=True)
    with dlwrap.wrap(np.zeros(10)), dlwrap.pin(np.zeros(10)) as pin:
        assert ranges(cuda) == []
        assert pin.nbytes == 0


def test_pinned_can_be_forced_where_the_device_reads_pageable_memory(cuda):
    cuda.configure(pageable=True)
    array = np.zeros(10)
    with dlwrap.wrap(array, memory="pinned"):
        assert ranges(cuda) == [span(array)]


def test_an_array_without_elements_is_not_locked(cuda):
    with dlwrap.wrap(np.zeros((3, 0))):
        assert ranges(cuda) == []


# ---- sharing ----


def test_wraps_inside_a_live_range_share_it(cuda):
    parent = np.zeros(1000)
    with dlwrap.wrap(parent):
        with dlwrap.wrap(parent[10:20]), dlwrap.wrap(parent[15:], extent="view"):
            assert ranges(cuda) == [span(parent)]
        assert ranges(cuda) == [span(parent)]
    assert ranges(cuda) == []


def test_a_range_stays_until_its_last_user_is_gone_whatever_the_order(cuda):
    parent = np.zeros(1000)
    outer, inner = dlwrap.wrap(parent), dlwrap.wrap(parent[10:20])
    outer.close(SECONDS)
    assert ranges(cuda) == [span(parent)]
    inner.close(SECONDS)
    assert ranges(cuda) == []


def test_inside_a_pin_wraps_register_nothing(cuda):
    array = np.zeros(1000)
    with dlwrap.pin(array):
        cuda.clear_calls()
        for _ in range(10):
            take(dlwrap.wrap(array).__dlpack__(stream=1)).delete()
        dlwrap.reclaim(SECONDS)
        assert cuda.count("cuMemHostRegister") == cuda.count("cuMemHostUnregister") == 0


def test_memory_stays_locked_after_the_pin_while_a_wrap_inside_lives(cuda):
    array = np.zeros(1000)
    with dlwrap.pin(array):
        inside = dlwrap.wrap(array)
    assert ranges(cuda) == [span(array)]
    inside.close(SECONDS)
    assert ranges(cuda) == []


def test_a_pin_that_is_collected_unlocks(cuda):
    pin = dlwrap.pin(np.zeros(1000))
    assert pin.nbytes == 8000
    del pin
    dlwrap.reclaim(SECONDS)
    assert ranges(cuda) == []


def test_a_range_knows_the_address_on_each_device_that_uses_it(cuda):
    cuda.configure(devices=2, pointer_offset=1 << 40)
    array = np.zeros(10)
    with dlwrap.wrap(array, device=0) as first, dlwrap.wrap(array, device=1) as second:
        assert first.ptr == second.ptr == span(array)[0] + (1 << 40)
        assert len(ranges(cuda)) == 1
        assert cuda.count("cuMemHostGetDevicePointer") == 2


def test_a_device_that_has_no_address_for_it_leaves_the_range_to_the_other(cuda):
    cuda.configure(devices=2)
    array = np.zeros(10)
    with dlwrap.wrap(array, device=0):
        cuda.fail("cuMemHostGetDevicePointer", 1)
        with pytest.raises(dlwrap.CudaError, match="cuMemHostGetDevicePointer"):
            dlwrap.wrap(array, device=1)
        assert len(ranges(cuda)) == 1
    assert ranges(cuda) == []


# ---- overlaps ----


def test_a_partial_overlap_names_the_live_range_and_the_cure(cuda):
    parent = np.zeros(1000)
    start, nbytes = span(parent[:600])
    with (
        dlwrap.wrap(parent[:600], extent="view"),
        pytest.raises(BufferError, match=rf"a live wrap or pin .* {start:#x} to {start + nbytes:#x}.*dlwrap.pin\(\)"),
    ):
        dlwrap.wrap(parent[400:], extent="view")


def test_the_view_alone_is_locked_where_another_part_of_its_owner_is(cuda):
    parent = np.zeros(1000)
    with dlwrap.wrap(parent[:10], extent="view"), dlwrap.wrap(parent[10:20]):
        assert ranges(cuda) == [span(parent[:10]), span(parent[10:20])]


def test_adjacent_ranges_do_not_overlap(cuda):
    parent = np.zeros(30)
    parts = [dlwrap.wrap(parent[i : i + 10], extent="view") for i in (10, 0, 20)]
    assert ranges(cuda) == [span(parent[i : i + 10]) for i in (0, 10, 20)]
    for part in parts:
        part.close(SECONDS)


def test_a_wrap_waits_for_an_overlapping_range_that_is_just_leaving(cuda):
    parent = np.zeros(1000)
    cuda.pause("cuMemHostUnregister")
    dlwrap.wrap(parent[:600], extent="view")
    cuda.wait_until_paused("cuMemHostUnregister")
    wrapped = []
    thread = threading.Thread(target=lambda: wrapped.append(dlwrap.wrap(parent)))
    thread.start()
    cuda.resume("cuMemHostUnregister")
    thread.join(SECONDS)
    assert ranges(cuda) == [span(parent)]
    wrapped.pop().close(SECONDS)


def test_a_wrap_waits_for_the_thread_that_is_registering_the_same_range(cuda):
    array = np.zeros(1000)
    wrapped = []
    threads = [threading.Thread(target=lambda: wrapped.append(dlwrap.wrap(array))) for _ in range(4)]
    cuda.pause("cuMemHostRegister")
    for thread in threads:
        thread.start()
    cuda.wait_until_paused("cuMemHostRegister")
    cuda.resume("cuMemHostRegister")
    for thread in threads:
        thread.join(SECONDS)
    assert len(wrapped) == 4
    assert cuda.count("cuMemHostRegister") == 1


def test_a_wrap_goes_on_when_the_thread_that_was_registering_fails(cuda):
    array = np.zeros(1000)
    outcomes = []

    def wrap():
        try:
            outcomes.append(dlwrap.wrap(array))
        except dlwrap.CudaError as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=wrap) for _ in range(2)]
    cuda.fail("cuMemHostRegister", 2)
    cuda.pause("cuMemHostRegister")
    for thread in threads:
        thread.start()
    cuda.wait_until_paused("cuMemHostRegister")
    cuda.resume("cuMemHostRegister")
    for thread in threads:
        thread.join(SECONDS)
    assert 2 in outcomes
    assert len(ranges(cuda)) == 1


# ---- memory of somebody else ----


def test_memory_registered_by_somebody_else_is_adopted_and_left_to_them(cuda):
    array = np.zeros(1000)
    _driver.device_count()
    with registered_by_somebody_else(array):
        with dlwrap.wrap(array) as buffer, dlwrap.wrap(array[10:20]) as inside:
            assert buffer.ptr == span(array)[0]
            assert inside.ptr == span(array[10:])[0]
            assert dlwrap.stats().pinned_bytes == 0
        assert ranges(cuda) == [span(array)]


def test_memory_that_the_device_sees_elsewhere_is_adopted_too(cuda):
    cuda.configure(pointer_offset=1 << 40)
    array = np.zeros(1000)
    _driver.device_count()
    with registered_by_somebody_else(array):
        with dlwrap.wrap(array[10:20]) as inside:
            assert inside.ptr == span(array[10:])[0] + (1 << 40)
        with pytest.raises(BufferError, match=f"has page-locked {span(array)[0]:#x}"):
            dlwrap.wrap(np.lib.stride_tricks.as_strided(array, (1001,)), extent="view")


def test_the_view_alone_is_locked_where_somebody_else_locked_another_part_of_its_owner(cuda):
    parent = np.zeros(1000)
    _driver.device_count()
    with registered_by_somebody_else(parent[:10]), dlwrap.wrap(parent[10:20]):
        assert ranges(cuda) == [span(parent[:10]), span(parent[10:20])]


def test_memory_that_somebody_else_locked_in_part_is_refused(cuda):
    parent = np.zeros(1000)
    _driver.device_count()
    with (
        registered_by_somebody_else(parent[:600]),
        pytest.raises(BufferError, match="somebody else has page-locked"),
    ):
        dlwrap.wrap(parent)


def test_memory_that_somebody_else_locked_at_its_end_is_refused(cuda):
    parent = np.zeros(1000)
    _driver.device_count()
    with (
        registered_by_somebody_else(parent[600:]),
        pytest.raises(BufferError, match="somebody else has page-locked"),
    ):
        dlwrap.wrap(parent)


# ---- lingering ----


def test_a_range_that_nobody_uses_lingers_and_is_used_again(cuda):
    dlwrap.configure(linger_seconds=FOREVER)
    array = np.zeros(1000)
    for _ in range(5):
        take(dlwrap.wrap(array).__dlpack__(stream=1)).delete()
    while dlwrap.stats().lingering == 0:
        pass
    assert dlwrap.stats().lingering_bytes == 8000
    assert cuda.count("cuMemHostRegister") == 1
    dlwrap.reclaim(SECONDS)
    assert ranges(cuda) == []


def test_a_lingering_range_keeps_its_memory(cuda):
    dlwrap.configure(linger_seconds=FOREVER)
    array = cuda.host_array(100)
    alive = weakref.ref(array)
    buffer = dlwrap.wrap(array)
    del array, buffer
    while dlwrap.stats().lingering == 0:
        pass
    assert alive() is not None
    dlwrap.reclaim(SECONDS)
    assert alive() is None


@pytest.mark.parametrize("wait", ["close", "reclaim"])
def test_a_range_that_is_used_again_before_it_is_unregistered_keeps_nobody_waiting(cuda, wait):
    array, other = np.zeros(1000), np.zeros(1000)
    cuda.pause("cuMemHostUnregister")
    dlwrap.wrap(other)
    cuda.wait_until_paused("cuMemHostUnregister")  # the sweeper can take nothing else meanwhile
    dlwrap.configure(linger_seconds=FOREVER)
    buffer = dlwrap.wrap(array)
    if wait == "reclaim":
        del buffer
        while dlwrap.stats().lingering == 0:
            pass
        waiting = threading.Thread(target=dlwrap.reclaim, args=[SECONDS])
    else:
        waiting = threading.Thread(target=buffer.close, args=[SECONDS])
    waiting.start()
    while not any(found.when_gone for found in list(manager().pins.lingering)):
        pass
    again = dlwrap.wrap(array)
    cuda.resume("cuMemHostUnregister")
    waiting.join(SECONDS / 2)
    assert not waiting.is_alive()
    assert span(array) in ranges(cuda)
    again.close(SECONDS)


def test_lingering_ends_with_its_time(cuda):
    dlwrap.configure(linger_seconds=0.01)
    dlwrap.wrap(np.zeros(1000))
    cuda.pause("cuMemHostUnregister")
    cuda.wait_until_paused("cuMemHostUnregister")
    cuda.resume("cuMemHostUnregister")


def test_beyond_the_bytes_allowed_the_longest_unused_goes_first(cuda):
    dlwrap.configure(linger_seconds=FOREVER, linger_bytes=2000)
    arrays = [np.zeros(100) for _ in range(4)]
    for array in arrays:
        dlwrap.wrap(array)
    while dlwrap.stats().pinned_bytes > 1600:
        pass
    assert sorted(ranges(cuda)) == sorted(map(span, arrays[2:]))


def test_a_wrap_in_the_way_of_a_lingering_range_has_it_unregistered(cuda):
    dlwrap.configure(linger_seconds=FOREVER)
    parent = np.zeros(1000)
    dlwrap.wrap(parent[:600], extent="view")
    while dlwrap.stats().lingering == 0:
        pass
    with dlwrap.wrap(parent):
        assert ranges(cuda) == [span(parent)]


def test_a_finaliser_on_the_sweepers_own_thread_is_refused_a_wrap_that_would_wait_for_the_sweeper(cuda):
    dlwrap.configure(linger_seconds=FOREVER)
    parent, seen = np.zeros(1000), []

    class Owner:
        def __init__(self):
            self.array = np.zeros(64)
            self.__array_interface__ = self.array.__array_interface__

        def __del__(self):
            try:
                dlwrap.wrap(parent)
            except RuntimeError as error:
                seen.append(str(error))

    dlwrap.wrap(np.asarray(Owner()))
    dlwrap.wrap(parent[:600], extent="view")
    dlwrap.reclaim(SECONDS)
    assert seen == [
        "cannot wait for page-locked memory that is in the way in a finaliser that runs on dlwrap's own thread"
    ]


def test_shortening_the_time_takes_effect_at_once(cuda):
    dlwrap.configure(linger_seconds=FOREVER)
    dlwrap.wrap(np.zeros(1000))
    while dlwrap.stats().lingering == 0:
        pass
    dlwrap.configure(linger_seconds=0)
    while ranges(cuda):
        pass


# ---- many at once ----


def test_what_is_due_together_is_unregistered_in_one_go(cuda, leaks):
    """Of 130 ranges the 70th is refused: it alone is kept."""
    dlwrap.configure(linger_seconds=FOREVER)
    arrays = [np.zeros(100) for _ in range(130)]
    alive = [weakref.ref(array) for array in arrays]
    for array in arrays:
        dlwrap.wrap(array)
    assert eventually(lambda: dlwrap.stats().lingering == 130)
    del array, arrays
    cuda.fail("cuMemHostUnregister", 999, nth=70)
    with pytest.warns(dlwrap.DLWrapWarning), pytest.raises(dlwrap.DLWrapError, match="memory is kept"):
        dlwrap.reclaim(SECONDS)
    assert (leaks(), dlwrap.stats().pinned_bytes, len(cuda.registrations)) == (1, 0, 1)
    kept = [reference() for reference in alive if reference() is not None]
    assert len(kept) == 1
    with _driver.primary_context(0):
        _driver.unregister(span(kept[0])[0])


def test_ranges_of_two_devices_are_unregistered_each_in_its_context(cuda):
    cuda.configure(devices=2)
    dlwrap.configure(linger_seconds=FOREVER)
    arrays = [np.zeros(100) for _ in range(6)]
    for number, array in enumerate(arrays):
        dlwrap.wrap(array, device=number % 2)
    assert eventually(lambda: dlwrap.stats().lingering == 6)
    dlwrap.reclaim(SECONDS)
    assert cuda.registrations == []
