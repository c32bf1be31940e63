"""Arrays that are born page-locked: wraps of them are free, and their memory goes only when nobody can use it."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import dlwrap
from capsules import look, take
from dlwrap import _born, _native
from forkserver import run
from patience import SECONDS
from scripts import outcome

KINDS = {"pinned": {}, "pageable": {"pageable": True}}


def ranges(cuda):
    return [(each.start, each.nbytes) for each in cuda.registrations]


def span(array):
    return (array.ctypes.data, array.nbytes)


@pytest.fixture
def watched(cuda, monkeypatch):
    """The memory is watched: freeing it while it is page-locked or in use aborts the process."""
    monkeypatch.setattr(_born, "_map", lambda nbytes: cuda.host_array(nbytes, np.uint8))
    return cuda


# ---- what they are ----


@pytest.mark.parametrize("make", [dlwrap.empty, dlwrap.zeros])
@pytest.mark.parametrize(
    ("shape", "extents"), [(3, (3,)), ((), ()), ((2, 3), (2, 3)), ([2, 3], (2, 3)), (np.int64(4), (4,))]
)
def test_they_are_plain_writable_arrays_of_the_shape(cuda, make, shape, extents):
    array = make(shape)
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype, array.flags.writeable) == (extents, np.dtype(float), True)
    array[...] = 7
    np.testing.assert_array_equal(array, np.full(extents, 7.0))


@pytest.mark.parametrize(
    "dtype",
    [bool, "int8", np.uint64, "float16", np.float32, complex, ml_dtypes.bfloat16, "bfloat16", ml_dtypes.float8_e4m3fn],
    ids=str,
)
def test_every_dtype_that_can_be_exported_is_born(cuda, dtype):
    array = dlwrap.zeros((4, 4), dtype)
    assert not array.astype(np.complex128).any()
    with dlwrap.wrap(array) as buffer:
        assert ranges(cuda) == [span(array)]
        assert buffer.dtype == array.dtype


def test_the_order_is_as_numpy_has_it(cuda):
    for order in ("C", "F"):
        assert dlwrap.empty((2, 3, 4), order=order).strides == np.empty((2, 3, 4), order=order).strides


def test_the_memory_begins_on_a_page_of_its_own(cuda):
    assert dlwrap.empty(1, np.uint8).ctypes.data % 4096 == 0


def test_the_memory_is_private_as_any_arrays(cuda):
    kept = dlwrap.zeros(9)
    lines = Path("/proc/self/maps").read_text().splitlines()
    around = [line for line in lines if int(line.split("-")[0], 16) <= kept.ctypes.data]
    assert around[-1].split()[1] == "rw-p"


@pytest.mark.parametrize("shape", [0, (3, 0), (0, 5)])
def test_without_elements_nothing_is_locked(cuda, shape):
    array = dlwrap.empty(shape, np.float32)
    assert (array.size, ranges(cuda), dlwrap.stats().live) == (0, [], 0)


def test_nothing_is_locked_where_the_device_reads_pageable_memory(cuda):
    cuda.configure(pageable=True)
    array = dlwrap.empty(100)
    with dlwrap.wrap(array) as buffer:
        assert (buffer.memory, ranges(cuda)) == ("pageable", [])


def test_the_device_is_the_one_asked_for(cuda):
    cuda.configure(devices=2)
    kept = dlwrap.empty(100, device=1)
    assert [each.device for each in cuda.registrations] == [1]
    with dlwrap.wrap(kept, device=0) as buffer:
        assert (buffer.device, ranges(cuda)) == (0, [span(kept)])


def test_the_bytes_count_as_page_locked(cuda):
    kept = dlwrap.empty(1000, np.float64)
    assert (dlwrap.stats().pinned_bytes, dlwrap.stats().live) == (kept.nbytes, 1)


# ---- wraps are free ----

VIEWS = {
    "itself": lambda array: array,
    "a slice": lambda array: array[2:5],
    "a strided slice": lambda array: array[::2, 1:3],
    "its transpose": lambda array: array.T,
    "a slice of a slice": lambda array: array[1:][1:],
    "its elements in a row": lambda array: array.reshape(-1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_wraps_take_the_short_way_in_the_native_part(cuda, kind, view):
    cuda.configure(**kind)
    array = dlwrap.zeros((8, 8), np.float32)
    assert _native.read_array(view(array)) is not None
    dlwrap.wrap(array).close(SECONDS)  # from the first wrap on
    made = _native.wrap(view(array), None, "auto", "owner", "streams", None)
    assert type(made) is dlwrap.HostWrappedBuffer


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_whatever_part_is_wrapped_shares_the_one_range(cuda, view, dtype):
    array = dlwrap.zeros((8, 8), dtype)
    cuda.clear_calls()
    for extent in ("owner", "view"):
        with dlwrap.wrap(view(array), extent=extent):
            assert ranges(cuda) == [span(array)]
    dlwrap.reclaim(SECONDS)
    assert cuda.count("cuMemHostRegister") == cuda.count("cuMemHostUnregister") == 0


def test_other_dtypes_and_read_only_views_share_it_too(cuda):
    array = dlwrap.zeros(8, np.float32)
    frozen = array.view(np.int16)[3:]
    frozen.flags.writeable = False
    with dlwrap.wrap(frozen) as buffer:
        assert (buffer.readonly, ranges(cuda)) == (True, [span(array)])


# ---- how long they live ----


def test_dropping_the_array_gives_the_memory_back(watched):
    array = dlwrap.zeros(100)
    del array
    dlwrap.reclaim(SECONDS)
    assert (watched.host_arrays_alive, ranges(watched)) == (0, [])


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_keeps_it_locked(watched, view):
    array = dlwrap.zeros((8, 8))
    locked, kept = span(array), view(array)
    del array
    dlwrap.reclaim(SECONDS)
    assert ranges(watched) == [locked]
    assert kept.size


def test_work_on_a_wrap_keeps_it_after_every_reference_is_gone(watched):
    array = dlwrap.zeros(100, np.float32)
    capsule = dlwrap.wrap(array[10:]).__dlpack__(stream=1, max_version=(1, 0))
    watched.hold(1)
    watched.launch(1, look(capsule).as_array(np.float32))
    del array, capsule
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(0.05)
    assert (watched.host_arrays_alive, len(ranges(watched))) == (1, 1)
    watched.let_go(1)
    dlwrap.reclaim(SECONDS)
    assert (watched.host_arrays_alive, ranges(watched)) == (0, [])


def test_the_memory_is_freed_after_it_is_unregistered_and_nothing_waits_for_that(watched):
    array = dlwrap.zeros(100)
    watched.pause("cuMemHostUnregister")
    del array  # returns although the driver does not
    watched.wait_until_paused("cuMemHostUnregister")
    assert watched.host_arrays_alive == 1
    watched.resume("cuMemHostUnregister")
    dlwrap.reclaim(SECONDS)
    assert watched.host_arrays_alive == 0


def test_nothing_of_it_is_a_reference_cycle(watched):
    gc.disable()
    try:
        array = dlwrap.zeros(100)
        base = weakref.ref(array)
        del array
        dlwrap.reclaim(SECONDS)
        assert (base(), watched.host_arrays_alive) == (None, 0)
    finally:
        gc.enable()


def test_an_importer_keeps_it_without_the_array(watched):
    held = take(dlwrap.wrap(dlwrap.zeros(100)).__dlpack__(stream=1))
    dlwrap.reclaim(SECONDS)
    assert watched.host_arrays_alive == 1
    held.delete()
    dlwrap.reclaim(SECONDS)
    assert watched.host_arrays_alive == 0


def test_it_lingers_as_other_memory_does(watched):
    dlwrap.configure(linger_seconds=float("inf"))
    nbytes = dlwrap.zeros(100).nbytes
    while not dlwrap.stats().lingering:
        pass
    assert dlwrap.stats().lingering_bytes == nbytes
    dlwrap.reclaim(SECONDS)
    assert watched.host_arrays_alive == 0


def test_memory_that_cannot_be_unregistered_is_kept(cuda, monkeypatch, leaks):
    mapped = []
    plain = _born._map

    def remember(nbytes):
        memory = plain(nbytes)
        mapped.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(_born, "_map", remember)
    array = dlwrap.zeros(100)
    cuda.fail("cuMemHostUnregister", 999)
    with pytest.warns(dlwrap.DLWrapWarning, match="keeps memory"):  # noqa: PT031 -- it may come as soon as it is dropped
        del array
        with contextlib.suppress(dlwrap.DLWrapError):  # only if it fails while this waits
            dlwrap.reclaim(SECONDS)
    assert (leaks(), mapped[0]() is None) == (1, False)
    cuda.reset(force=True)


def test_threads_may_make_and_drop_them_at_once(watched):
    def work():
        for size in range(1, 60):
            array = dlwrap.zeros(size)
            dlwrap.wrap(array[size // 2 :]).__dlpack__(stream=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dlwrap.reclaim(SECONDS)
    assert (watched.host_arrays_alive, ranges(watched)) == (0, [])


# ---- errors ----


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((3, object), {}, BufferError, "cannot make an array of dtype object for GPU frameworks"),
        ((3, "U4"), {}, BufferError, "dtype <U4"),
        ((3, ">f4"), {}, BufferError, "dtype >f4"),
        ((3, [("a", "f4")]), {}, BufferError, "for GPU frameworks, none of which takes it"),
        ((3, "no dtype"), {}, TypeError, "dtype must be a dtype of NumPy, ml_dtypes, torch or JAX"),
        ((-1,), {}, ValueError, r"shape must have extents of at least 0, got \(-1,\)"),
        ((2.5,), {}, TypeError, "shape must be an integer or a tuple of integers, got 2.5"),
        (((3, None),), {}, TypeError, "shape must be"),
        ((3,), {"order": "A"}, ValueError, "order must be 'C' or 'F', got 'A'"),
        (((2**40, 2**40),), {}, ValueError, "larger than the address space"),
        ((3,), {"device": 7}, ValueError, "the CUDA devices there are"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_allocated(
    cuda, monkeypatch, arguments, options, error, message
):
    monkeypatch.setattr(_born, "_map", pytest.fail)
    with pytest.raises(error, match=message):
        dlwrap.empty(*arguments, **options)


def test_too_much_memory_is_a_memory_error(cuda):
    with pytest.raises(MemoryError, match="cannot map"):
        dlwrap.empty(2**60, np.uint8)


def test_what_the_driver_refuses_to_lock_is_given_back(watched):
    watched.fail("cuMemHostRegister", 2)
    with pytest.raises(dlwrap.CudaError, match="no more memory can be page-locked") as caught:
        dlwrap.zeros(100)
    del caught
    dlwrap.reclaim(SECONDS)
    assert (watched.host_arrays_alive, dlwrap.stats().live) == (0, 0)


def test_huge_pages_are_asked_for_where_the_kernel_has_them(cuda, monkeypatch):
    monkeypatch.setattr(_born.mmap, "MADV_HUGEPAGE", 12345)  # as of a kernel without
    assert dlwrap.zeros(5 * 2**20, np.uint8).nbytes == 5 * 2**20


def test_at_the_end_of_the_program_nothing_is_said(cuda):
    done = run("kept = dlwrap.zeros(100)\nbuffer = dlwrap.wrap(kept[5:])\nbuffer.record_stream(1)")
    assert outcome(done) == (0, "")


CHILD = """
kept = dlwrap.zeros(4)
pid = os.fork()
if pid == 0:
    kept[0] = 5  # the child's own
    try:
        dlwrap.empty(3)
    except RuntimeError as error:
        print(error, flush=True)
    del kept
    gc.collect()
    os._exit(0)
print(os.waitpid(pid, 0)[1], kept[0], len(cuda.registrations))
"""


def test_a_forked_child_keeps_its_copy_and_makes_none(cuda):
    done = run(CHILD, "-W", "ignore:This process:DeprecationWarning")
    assert outcome(done) == (0, "")
    refused, ended = done.stdout.splitlines()
    assert refused.startswith("cannot page-lock memory in a forked child")
    assert ended == "0 0.0 1"
