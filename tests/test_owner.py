from __future__ import annotations

import ctypes
import mmap
import pickle
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlwrap import _owner
from dlwrap._layout import HostLayout, Span, describe

PAGE = mmap.PAGESIZE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * PAGE))
    return path


@pytest.fixture
def shared() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=2 * PAGE)
    yield memory
    memory.close()
    memory.unlink()


def over_frombuffer(mapped: mmap.mmap) -> Any:
    return np.frombuffer(mapped, np.float32)[8:]


def over_ndarray(mapped: mmap.mmap) -> Any:
    return np.ndarray(16, np.float32, buffer=mapped, offset=32)


def over_memoryview(mapped: mmap.mmap) -> Any:
    return memoryview(mapped)[32:96]


def over_views(mapped: mmap.mmap) -> Any:
    return np.lib.stride_tricks.as_strided(np.asarray(memoryview(mapped))[32:], (4, 4), (4, 1))


OVER_MMAP = [over_frombuffer, over_ndarray, over_memoryview, over_views, lambda mapped: mapped]


@pytest.mark.parametrize("make", OVER_MMAP)
def test_closing_an_mmap_under_a_layout_fails_until_it_is_dropped(make: Any) -> None:
    mapped = mmap.mmap(-1, 2 * PAGE)
    layout = describe(make(mapped))
    with pytest.raises(BufferError, match="exported pointers exist"):
        mapped.close()
    del layout
    mapped.close()


@pytest.mark.parametrize("make", OVER_MMAP)
def test_the_whole_anonymous_mapping_owns_a_view_of_it(make: Any) -> None:
    with mmap.mmap(-1, 2 * PAGE) as mapped:
        layout = describe(make(mapped))
        assert layout.owner_span.nbytes == 2 * PAGE
        assert layout.owner_span.start == layout.pointer - (0 if layout.nbytes == 2 * PAGE else 32)
        assert (layout.writable_memory, layout.file_backed) == (True, False)
        del layout


def test_an_mmap_closed_under_its_array_is_noticed() -> None:
    mapped = mmap.mmap(-1, PAGE)
    a = np.ndarray(16, np.uint8, buffer=mapped)
    mapped.close()
    with pytest.raises(ValueError, match=r"cannot wrap an array over a released mmap \(.*\): its memory may be gone"):
        describe(a)


def test_a_closed_mmap_is_explained() -> None:
    mapped = mmap.mmap(-1, PAGE)
    mapped.close()
    with pytest.raises(ValueError, match="cannot wrap a released mmap"):
        describe(mapped)


def test_a_memoryview_released_under_its_array_is_noticed() -> None:
    a = np.asarray(memoryview(bytearray(16)))
    assert isinstance(a.base, memoryview)
    a.base.release()
    with pytest.raises(ValueError, match="cannot wrap an array over a released memoryview"):
        describe(a)


def test_a_memoryview_released_under_a_layout_leaves_the_owner_held() -> None:
    owner = bytearray(16)
    layout = describe(np.asarray(memoryview(owner)))
    assert isinstance(layout.array.base, memoryview)
    layout.array.base.release()
    with pytest.raises(BufferError, match="re-sized"):
        owner.append(1)


def test_a_terabyte_mapping_that_nobody_touches_is_described() -> None:
    mapped = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    layout = describe(np.frombuffer(mapped, np.uint8))
    assert layout.shape == (1 << 40,)
    assert layout.owner_span.nbytes == 1 << 40
    del layout
    mapped.close()


@pytest.mark.parametrize(
    ("mode", "readonly", "writable"), [("r", True, False), ("r+", False, True), ("c", False, True)]
)
def test_a_memmap_is_a_file_and_locks_only_its_view(file: Path, mode: Any, readonly: bool, writable: bool) -> None:
    a = np.memmap(file, np.float32, mode=mode)
    layout = describe(a[16:32])
    assert layout.span == Span(a.ctypes.data + 64, a.ctypes.data + 128)
    assert layout.owner_span == layout.span
    assert layout.file_backed
    assert (layout.readonly, layout.writable_memory) == (readonly, writable)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("make", [lambda a: a, lambda a: a[8:], lambda a: np.asarray(a)[8:].reshape(4, -1)])
def test_closing_a_memmap_under_a_layout_fails_until_it_is_dropped(file: Path, mode: Any, make: Any) -> None:
    a = np.memmap(file, np.float32, mode=mode)
    mapped = a._mmap  # type: ignore[attr-defined]
    layout = describe(make(a))
    with pytest.raises(BufferError, match="exported pointers exist"):
        mapped.close()
    del layout, a
    mapped.close()


def test_a_read_only_view_of_a_writable_memmap_lies_in_writable_memory(file: Path) -> None:
    a = np.memmap(file, np.uint8, mode="r+")
    a.flags.writeable = False
    layout = describe(a)
    assert (layout.readonly, layout.writable_memory) == (True, True)


def test_a_memmap_without_elements_needs_no_memory(file: Path) -> None:
    layout = describe(np.memmap(file, np.uint8, mode="r")[5:5])
    assert (layout.owner_span, layout.writable_memory, layout.file_backed) == (Span(0, 0), True, False)


def test_without_proc_a_mapping_is_taken_for_a_file_that_cannot_be_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(_owner, "open", unreadable, raising=False)
    layouts = [describe(np.memmap(file, np.uint8, mode=mode)) for mode in ("r", "r+")]
    assert [layout.writable_memory for layout in layouts] == [False, True]
    assert all(layout.file_backed for layout in layouts)


def test_addresses_above_every_mapping_count_as_ordinary_memory() -> None:
    assert _owner._mapping(Span((1 << 64) - 8, 1 << 64), writable=False) == (True, False)


def over_shm(shared: SharedMemory) -> Any:
    return shared


def over_buf(shared: SharedMemory) -> Any:
    return shared.buf


def over_buf_array(shared: SharedMemory) -> Any:
    return np.ndarray(PAGE, np.uint8, buffer=shared.buf)


@pytest.mark.parametrize("make", [over_shm, over_buf, over_buf_array])
def test_closing_shared_memory_under_a_layout_fails_until_it_is_dropped(shared: SharedMemory, make: Any) -> None:
    layout = describe(make(shared))
    with pytest.raises(BufferError, match="exported pointers exist"):
        shared.close()
    del layout
    shared.close()


@pytest.mark.parametrize("make", [over_shm, over_buf, over_buf_array])
def test_shared_memory_is_owned_as_a_whole_and_is_no_file(shared: SharedMemory, make: Any) -> None:
    layout = describe(make(shared))
    assert layout.owner_span.nbytes == 2 * PAGE
    assert (layout.writable_memory, layout.file_backed) == (True, False)


def test_a_layout_of_shared_memory_keeps_it_from_collection() -> None:
    memory = SharedMemory(create=True, size=PAGE)
    layout = describe(memory)
    memory.unlink()
    del memory
    layout.array[:] = 7
    assert layout.array[-1] == 7


def test_closed_shared_memory_is_explained() -> None:
    memory = SharedMemory(create=True, size=PAGE)
    memory.close()
    memory.unlink()
    with pytest.raises(ValueError, match=r"cannot wrap a released SharedMemory \(its buf is None\)"):
        describe(memory)


@pytest.mark.parametrize("make", [lambda b: b, lambda b: np.frombuffer(b, np.uint8)[3:], lambda b: memoryview(b)[3:]])
def test_a_bytearray_cannot_grow_under_a_layout(make: Any) -> None:
    owner = bytearray(64)
    layout = describe(make(owner))
    assert layout.owner_span.nbytes == 64
    with pytest.raises(BufferError, match="re-sized"):
        owner.extend(b"more")
    del layout
    owner.extend(b"more")


def test_bytes_lie_in_writable_memory() -> None:
    layout = describe(np.frombuffer(b"0123456789", np.uint8)[2:5])
    assert (layout.readonly, layout.writable_memory) == (True, True)
    assert layout.owner_span == Span(layout.pointer - 2, layout.pointer + 8)


def test_a_ctypes_array_owns_its_memory() -> None:
    owner = (ctypes.c_double * 8)()
    layout = describe(np.ctypeslib.as_array(owner)[2:4])
    start = ctypes.addressof(owner)
    assert layout.owner_span == Span(start, start + 64)


def test_a_view_of_a_view_in_another_exporter_is_owned_by_the_first_array() -> None:
    owner: Any = np.zeros(32)
    inner = np.frombuffer(memoryview(owner[4:])[2:], np.float64)
    layout = describe(inner[3:])
    assert layout.owner_span == describe(owner).span
    assert layout.owner is owner


def test_an_array_from_a_pickle_buffer_is_owned_by_the_array_it_came_from() -> None:
    owner = np.zeros(32)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(owner, protocol=5, buffer_callback=buffers.append)
    layout = describe(pickle.loads(stream, buffers=buffers)[4:8])
    assert layout.owner_span == describe(owner).span


def test_a_view_that_reaches_beyond_its_owner_widens_the_owner_span() -> None:
    owner = np.zeros(64)[:32]
    assert owner.base is not None
    foreign = Foreign(owner.base[:16])
    a = np.lib.stride_tricks.as_strided(np.asarray(foreign)[8:], (24,), (8,))
    layout = describe(a)
    start = owner.ctypes.data
    assert layout.span == Span(start + 64, start + 256)
    assert layout.owner_span == Span(start, start + 256)


class Foreign:
    """Memory that only `__array_interface__` tells of: no buffer protocol, no known extent."""

    def __init__(self, memory: Any, **changes: Any) -> None:
        self.memory = memory
        self.__array_interface__ = {**memory.__array_interface__, **changes}


def test_memory_of_an_unknown_owner_is_as_wide_as_the_widest_array_over_it() -> None:
    whole = np.asarray(Foreign(np.zeros(64)[8:40]))
    layout = describe(whole[4:6])
    assert layout.owner_span == Span(whole.ctypes.data, whole.ctypes.data + 256)
    assert layout.hold.export is None
    assert (layout.writable_memory, layout.file_backed) == (True, False)


def test_an_owner_of_strided_foreign_memory_counts_from_its_lowest_to_its_highest_element() -> None:
    memory = np.zeros(64)
    backwards = np.asarray(Foreign(memory[40::-2]))
    layout = describe(backwards[::-1][3:5])
    assert layout.owner_span == Span(memory.ctypes.data, memory.ctypes.data + 41 * 8)


def test_read_only_memory_of_an_unknown_owner_is_looked_up_in_the_map(file: Path) -> None:
    mapped = np.memmap(file, np.uint8, mode="r")
    layout = describe(np.asarray(Foreign(mapped)))
    assert (layout.writable_memory, layout.file_backed) == (False, True)


def test_the_base_chain_of_an_unknown_owner_is_held() -> None:
    layout = describe(np.asarray(Foreign(np.full(4, 5.0))))
    assert layout.array.tolist() == [5.0] * 4


class Anchored(np.ndarray):
    """Its base is kept alive for its own sake; the data lie elsewhere."""

    base = np.zeros(1 << 16)


def test_an_unrelated_base_does_not_widen_the_owner_span() -> None:
    assert describe(np.zeros(4).view(Anchored)).owner_span.nbytes == 32


def test_a_buffer_with_gaps_falls_back_to_the_array_over_it() -> None:
    testbuffer = pytest.importorskip("_testbuffer")
    gaps = testbuffer.ndarray(list(range(12)), shape=[6], strides=[2], format="B", flags=testbuffer.ND_WRITABLE)
    layout = describe(gaps)
    assert layout.span.nbytes == layout.owner_span.nbytes == 11
    assert layout.hold.export is not None


def test_a_buffer_in_fortran_order_is_owned_by_its_array() -> None:
    owner: Any = np.zeros((3, 4), order="F")
    layout = describe(memoryview(owner))
    assert (layout.strides, layout.owner_span) == ((1, 3), describe(owner).span)


class Exporter:
    """A buffer made in Python (PEP 688)."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.memory)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 688 came with Python 3.12")
@pytest.mark.parametrize("make", [lambda e: e, lambda e: np.frombuffer(e, np.uint8)])
def test_a_buffer_made_in_python_is_held(make: Any) -> None:
    memory = bytearray(16)
    layout = describe(make(Exporter(memory)))
    assert layout.owner_span.nbytes == 16
    with pytest.raises(BufferError, match="re-sized"):
        memory.append(1)
    del layout
    memory.append(1)


class Subclass(np.ndarray):
    pass


def test_bases_that_are_subclasses_are_followed() -> None:
    owner = np.zeros(16).view(Subclass)
    layout = describe(owner[2:][3:])
    assert layout.owner_span.nbytes == 128


def hold(layout: HostLayout) -> Any:
    return layout.hold


def test_the_hold_alone_keeps_the_memory() -> None:
    mapped = mmap.mmap(-1, PAGE)
    held = hold(describe(mapped))
    with pytest.raises(BufferError, match="exported pointers exist"):
        mapped.close()
    del held
    mapped.close()
