"""Large memory before it is page-locked: its pages, the progress, interrupts, and what is too large."""

from __future__ import annotations

import mmap
import signal
import threading

import numpy as np
import pytest

import dlwrap
from dlwrap import _native, _populate
from patience import SECONDS

PAGES = 64
NBYTES = PAGES * mmap.PAGESIZE
NO_RESERVE = 0x4000  # in mmap from 3.13 on


def fresh(nbytes=NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
    """Memory without pages."""
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


def span(array):
    start = array.__array_interface__["data"][0]
    return start, start + array.nbytes


def is_there(array):
    return _native.is_resident(*span(array), PAGES)


@pytest.fixture
def bits(monkeypatch):
    """Let eight pages be a bit, and sixteen be large."""
    monkeypatch.setattr(_populate, "_BIT", 8 * mmap.PAGESIZE)
    monkeypatch.setattr(_populate, "_LARGE", 16 * mmap.PAGESIZE)


def test_memory_is_there_once_all_its_pages_are():
    array = fresh()
    assert not is_there(array)
    array[: -mmap.PAGESIZE] = 1
    assert not is_there(array)
    array[:] = 1
    assert is_there(array)


@pytest.mark.parametrize("writable", [True, False])
def test_pages_are_made_and_contents_stay(writable):
    array = fresh()
    array[5 :: mmap.PAGESIZE * 2] = 7
    assert _native.populate(*span(array), writable)
    assert is_there(array)
    assert array.sum() == 7 * PAGES / 2


def test_pages_that_cannot_be_made_are_told():
    assert not _native.populate(mmap.PAGESIZE, 2 * mmap.PAGESIZE, True)


def test_the_progress_of_page_locking_is_told_to_its_end(cuda, bits):
    told, array = [], fresh()
    with dlwrap.wrap(array, progress=lambda *done: told.append(done)):
        assert is_there(array)
    assert told == [(done * mmap.PAGESIZE, NBYTES) for done in range(0, PAGES, 8)] + [(NBYTES, NBYTES)]


def test_a_pin_tells_its_progress_too(cuda, bits):
    told = []
    with dlwrap.pin(fresh(), progress=lambda *done: told.append(done)):
        assert told[-1] == (NBYTES, NBYTES)


def test_there_is_no_progress_where_nothing_is_page_locked(cuda, bits):
    told, array = [], fresh()
    with dlwrap.pin(array):
        dlwrap.wrap(array[:10], progress=lambda *done: told.append(done)).close(SECONDS)
    cuda.configure(pageable=True)
    dlwrap.wrap(array, progress=lambda *done: told.append(done)).close(SECONDS)
    assert told == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("at", [0, 24 * mmap.PAGESIZE, NBYTES])
def test_progress_that_raises_leaves_nothing(cuda, bits, error, at):
    def raise_there(done, _):
        if done == at:
            raise error

    with pytest.raises(error):
        dlwrap.wrap(fresh(), progress=raise_there)
    dlwrap.reclaim(SECONDS)
    assert (cuda.registrations, dlwrap.stats().live, dlwrap.stats().pinned_bytes) == ([], 0, 0)


def test_an_interrupt_is_served_between_the_bits(cuda, bits, monkeypatch):
    """The signal comes while pages are made; the wrap must not go on to the driver."""
    made, array, populate = [], fresh(), _native.populate

    def populate_and_be_interrupted(*bit):
        made.append(bit)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return populate(*bit)

    monkeypatch.setattr(_native, "populate", populate_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        dlwrap.wrap(array)
    assert len(made) == 1
    assert cuda.count("cuMemHostRegister") == 0


def test_large_memory_without_pages_gets_them_first(cuda, bits):
    array = fresh()
    with dlwrap.wrap(array):
        assert is_there(array)


@pytest.mark.parametrize("prepare", [lambda array: array[: 8 * mmap.PAGESIZE], lambda array: (array.fill(1), array)[1]])
def test_small_memory_and_such_as_is_there_is_left_to_the_driver(cuda, bits, monkeypatch, prepare):
    made = []
    monkeypatch.setattr(_native, "populate", lambda *bit: made.append(bit))
    with dlwrap.wrap(prepare(fresh()), extent="view"):
        assert made == []


def test_pages_of_a_mapped_file_are_read_and_not_written(cuda, bits, monkeypatch, tmp_path):
    path, made, populate = tmp_path / "data", [], _native.populate
    np.zeros(NBYTES, np.uint8).tofile(path)
    monkeypatch.setattr(_native, "populate", lambda *bit: (made.append(bit[2]), populate(*bit))[1])
    with dlwrap.wrap(np.memmap(path, np.uint8, "c"), progress=lambda *_: None):
        assert made == [False] * 8


def test_without_help_of_the_kernel_the_driver_does_it_all(cuda, bits, monkeypatch):
    told = []
    monkeypatch.setattr(_native, "populate", lambda *_: False)
    with dlwrap.wrap(fresh(), progress=lambda *done: told.append(done)):
        assert told == [(0, NBYTES), (NBYTES, NBYTES)]


def test_what_a_driver_may_refuse_for_its_size_gets_no_pages_and_the_cure_is_told(cuda):
    array = fresh(2**39, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    cuda.fail("cuMemHostRegister", 1)
    with pytest.raises(dlwrap.CudaError, match=r"less than 512 GiB in one range; wrap its parts, with extent='view'"):
        dlwrap.wrap(array)
    assert not _native.is_resident(*span(array), 16)
    with dlwrap.wrap(array[: 2**20], extent="view") as part:
        assert part.nbytes == 2**20


@pytest.mark.parametrize("call", [dlwrap.wrap, dlwrap.pin])
def test_progress_has_to_be_callable(cuda, call):
    with pytest.raises(TypeError, match="progress must be None or take two numbers of bytes, got 1"):
        call(np.zeros(3), progress=1)
