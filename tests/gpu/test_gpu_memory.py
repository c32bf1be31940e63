"""Which memory is page-locked, by whom, and what a refusal leaves behind: nothing."""

from __future__ import annotations

import array as stdlib_array
import contextlib
import mmap
import time
from multiprocessing.shared_memory import SharedMemory

import _cuda
import numpy as np
import pytest
from _cuda import Thread

import dlwrap


def pinned_bytes():
    dlwrap.reclaim(timeout=20)
    return dlwrap.stats().pinned_bytes


# ---- again and again ----


def test_close_and_wrap_at_once_a_thousand_times(torch):
    array = np.zeros(256, np.float32)
    for _ in range(1000):
        buffer = dlwrap.wrap(array)
        torch.from_dlpack(buffer).add_(1)
        buffer.close(timeout=20)
    np.testing.assert_array_equal(array, np.full(256, 1000, np.float32))
    assert not _cuda.is_registered(_cuda.address(array))


def test_drop_and_wrap_at_once_a_thousand_times(torch):
    array = np.zeros(256, np.float32)
    for _ in range(1000):
        torch.from_dlpack(dlwrap.wrap(array)).add_(1)
    assert pinned_bytes() == 0
    np.testing.assert_array_equal(array, np.full(256, 1000, np.float32))


def test_fresh_arrays_at_addresses_just_freed(torch):
    for value in range(300):
        tensor = torch.from_dlpack(dlwrap.wrap(np.full(1 << 14, value, np.float32)))
        # Only the last is kept to the next round: the allocator gives addresses again that were page-locked.
        assert tensor.sum().item() == value * (1 << 14)


# ---- large memory ----


def test_the_progress_of_page_locking_fresh_memory(torch):
    told, array = [], np.zeros(2**28, np.uint8)
    tensor = torch.from_dlpack(dlwrap.wrap(array, progress=lambda *done: told.append(done)))
    assert [done for done, _ in told] == [*range(0, 2**28, 2**26), 2**28]
    assert {total for _, total in told} == {array.nbytes}
    tensor.fill_(3)
    torch.cuda.synchronize()
    assert array[:: 2**20].tolist() == [3] * 2**8


def test_page_locking_that_is_interrupted_leaves_nothing(torch):
    def interrupt(done, total):
        if done:
            raise KeyboardInterrupt

    array = np.zeros(2**28, np.uint8)
    with pytest.raises(KeyboardInterrupt):
        dlwrap.wrap(array, progress=interrupt)
    assert pinned_bytes() == 0
    assert not _cuda.is_registered(_cuda.address(array))
    assert torch.from_dlpack(dlwrap.wrap(array)).sum().item() == 0


@pytest.mark.parametrize("refused", [0, 70])
def test_many_ranges_are_unregistered_together(refused):
    """Also where the driver refuses one, because somebody else has unregistered it already."""
    dlwrap.configure(linger_seconds=1000)
    arrays = [np.zeros(1 << 10, np.uint8) for _ in range(130)]
    for array in arrays:
        dlwrap.wrap(array, extent="view")
    while dlwrap.stats().live or dlwrap.stats().pending:
        time.sleep(1e-3)
    assert dlwrap.stats().lingering == 130
    if refused:
        with _cuda.current():
            _cuda.call("cuMemHostUnregister", _cuda.address(arrays[refused]))
    assert pinned_bytes() == 0
    assert not any(_cuda.is_registered(_cuda.address(array)) for array in arrays)
    assert dlwrap.stats().leaked == 0


# ---- parents and parts ----


def test_parent_can_be_copied_while_a_part_is_wrapped(torch, cupy):
    parent = np.arange(4096, dtype=np.float32)
    tensor = torch.from_dlpack(dlwrap.wrap(parent[1000:1010]))
    np.testing.assert_array_equal(cupy.asarray(parent).get(), parent)
    np.testing.assert_array_equal(torch.from_numpy(parent).cuda().cpu().numpy(), parent)
    np.testing.assert_array_equal(tensor.cpu().numpy(), parent[1000:1010])


def test_parts_share_one_registration(torch):
    parent = np.arange(4096, dtype=np.float32)
    tensors = [torch.from_dlpack(dlwrap.wrap(parent[start : start + 64])) for start in range(0, 4096, 64)]
    assert dlwrap.stats().pinned_bytes == parent.nbytes
    assert sum(tensor.sum().item() for tensor in tensors) == parent.sum(dtype=np.float64)


def test_pin_makes_wraps_inside_it_free(torch):
    parent = np.arange(4096, dtype=np.float32)
    with dlwrap.pin(parent) as pin:
        assert pin.nbytes == parent.nbytes
        for start in range(0, 4096, 512):
            torch.from_dlpack(dlwrap.wrap(parent[start : start + 512])).add_(1)
        assert pinned_bytes() == parent.nbytes
        assert _cuda.is_registered(_cuda.address(parent))
    assert not _cuda.is_registered(_cuda.address(parent))
    np.testing.assert_array_equal(parent, np.arange(1, 4097, dtype=np.float32))


def test_pin_ends_after_the_wraps_inside_it(torch):
    parent = np.arange(64, dtype=np.float32)
    with dlwrap.pin(parent):
        tensor = torch.from_dlpack(dlwrap.wrap(parent[:32]))
    assert pinned_bytes() == parent.nbytes
    tensor.add_(1)
    del tensor
    assert pinned_bytes() == 0


def test_overlap_of_our_own_is_refused_until_it_is_closed(torch):
    parent = np.arange(64, dtype=np.float32)
    part = dlwrap.wrap(parent[:32], extent="view")
    with pytest.raises(BufferError, match="live wrap or pin of dlwrap"):
        dlwrap.wrap(parent[16:48])
    part.close(timeout=20)
    assert torch.from_dlpack(dlwrap.wrap(parent[16:48])).sum().item() == parent[16:48].sum()


# ---- kinds of host memory ----


@pytest.mark.parametrize("mode", ["r", "c"])
def test_mapped_file(torch, real_device, tmp_path, mode):
    if mode == "r" and not real_device.read_only_host_register:
        pytest.skip("the device cannot page-lock read-only memory")
    np.arange(4096, dtype=np.float32).tofile(tmp_path / "file")
    mapped = np.memmap(tmp_path / "file", np.float32, mode=mode)
    tensor = torch.from_dlpack(dlwrap.wrap(mapped[1024:2048]))
    assert tensor.data_ptr() == _cuda.address(mapped) + 4096
    assert tensor.sum().item() == np.arange(1024, 2048).sum()
    if mode == "c":
        tensor.add_(1)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(mapped[1024:2048], np.arange(1025, 2049, dtype=np.float32))
    np.testing.assert_array_equal(np.fromfile(tmp_path / "file", np.float32), np.arange(4096, dtype=np.float32))


def test_shared_memory(torch):
    shared = SharedMemory(create=True, size=4096)
    try:
        np.frombuffer(shared.buf, np.uint8)[:] = 3
        tensor = torch.from_dlpack(dlwrap.wrap(shared))
        assert tensor.sum().item() == 3 * shared.size
        tensor.fill_(5)
        del tensor
        dlwrap.reclaim(timeout=20)
        assert bytes(shared.buf[:4]) == b"\5\5\5\5"
    finally:
        shared.close()
        shared.unlink()


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytes(range(200)),
        lambda: bytearray(range(200)),
        lambda: memoryview(bytearray(range(200))),
        lambda: stdlib_array.array("B", range(200)),
    ],
    ids=["bytes", "bytearray", "memoryview", "array.array"],
)
def test_buffer(torch, make):
    tensor = torch.from_dlpack(dlwrap.wrap(make()))
    assert tensor.dtype is torch.uint8
    assert tensor.sum(dtype=torch.int64).item() == sum(range(200))


def test_anonymous_map_cannot_be_closed_while_it_is_used(torch):
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    tensor = torch.from_dlpack(dlwrap.wrap(mapped))
    with pytest.raises(BufferError):
        mapped.close()
    tensor.fill_(1)
    del tensor
    dlwrap.reclaim(timeout=20)
    assert mapped[:4] == b"\1\1\1\1"
    mapped.close()


# ---- memory that somebody else registered ----


def use_and_let_go(torch, array):
    expected = array + 1
    torch.from_dlpack(dlwrap.wrap(array)).add_(1)
    assert pinned_bytes() == 0
    np.testing.assert_array_equal(array, expected)
    assert _cuda.is_registered(_cuda.address(array))


def test_memory_registered_through_cupy_stays_registered(torch, cupy):
    array = np.arange(1024, dtype=np.float32)
    cupy.cuda.runtime.hostRegister(_cuda.address(array), array.nbytes, 0)
    use_and_let_go(torch, array)
    use_and_let_go(torch, array[100:200])
    cupy.cuda.runtime.hostUnregister(_cuda.address(array))


def test_pinned_memory_of_torch_stays_pinned(torch):
    tensor = torch.arange(1024, dtype=torch.float32).pin_memory()
    use_and_let_go(torch, tensor.numpy())
    use_and_let_go(torch, tensor.numpy()[100:200])
    assert tensor.is_pinned()


@pytest.mark.parametrize("offset", [0, 16])
def test_pinned_memory_of_cupy_stays_pinned(torch, cupy, offset):
    memory = cupy.cuda.alloc_pinned_memory(4096)
    array = np.frombuffer(memory, np.float32, 1024)[offset:]
    array[:] = 1
    use_and_let_go(torch, array)


def test_half_registered_by_somebody_else_is_refused_and_then_is_not(torch):
    array = np.arange(64, dtype=np.float32)
    with _cuda.registered(array[:32]):
        with pytest.raises(BufferError, match=r"somebody else.*dlwrap\.pin"):
            dlwrap.wrap(array[16:48])
        use_and_let_go(torch, array[:16])
        assert torch.from_dlpack(dlwrap.wrap(array[32:])).sum().item() == array[32:].sum()
        assert pinned_bytes() == 0
    assert torch.from_dlpack(dlwrap.wrap(array[16:48])).sum().item() == array[16:48].sum()


# ---- refusals, and the caller's context ----


def assert_frameworks_work(torch, cupy):
    assert torch.ones(1, device="cuda").sum().item() == 1
    torch.cuda.synchronize()
    assert cupy.ones(1).sum().item() == 1
    cupy.cuda.runtime.deviceSynchronize()


def test_refused_wrap_of_a_mapped_file_leaves_no_error_behind(torch, cupy, tmp_path):
    np.zeros(4096, np.float32).tofile(tmp_path / "file")
    mapped = np.memmap(tmp_path / "file", np.float32, mode="r+")
    if _cuda.code("cuMemHostRegister", _cuda.address(mapped), mapped.nbytes, _cuda.PORTABLE_DEVICEMAP) == 0:
        _cuda.call("cuMemHostUnregister", _cuda.address(mapped))
        pytest.skip("this file system's pages can be page-locked")
    with pytest.raises(dlwrap.CudaError, match="mode 'c'"):
        dlwrap.wrap(mapped)
    assert_frameworks_work(torch, cupy)
    assert dlwrap.stats().live == 0


def test_refused_overlap_leaves_no_error_behind(torch, cupy):
    array = np.zeros(64, np.float32)
    with _cuda.registered(array[:32]), pytest.raises(BufferError):
        dlwrap.wrap(array[16:48])
    assert_frameworks_work(torch, cupy)
    assert dlwrap.stats().live == 0


def test_adoption_leaves_no_error_behind(torch, cupy):
    array = np.zeros(64, np.float32)
    with _cuda.registered(array):
        buffer = dlwrap.wrap(array)
        assert_frameworks_work(torch, cupy)
        buffer.close(timeout=20)


@pytest.mark.parametrize("which", ["none", "primary", "another"])
def test_current_context_stays_as_it_was(which):
    def use():
        own = _cuda.create_context() if which == "another" else None
        context = {"none": 0, "primary": _cuda.primary_context(), "another": own}[which]
        _cuda.call("cuCtxSetCurrent", context)
        before = int(_cuda.call("cuCtxGetCurrent"))
        buffer = dlwrap.wrap(np.zeros(64, np.float32))
        with contextlib.suppress(BufferError):  # what runs in another context is refused
            buffer.__dlpack__(stream=1, max_version=(1, 0))
        with contextlib.suppress(BufferError):
            buffer.record_stream(2)
        buffer.synchronize()
        buffer.close(timeout=20)
        with pytest.raises(BufferError):
            dlwrap.wrap(np.zeros(8, ">f4"))
        after = int(_cuda.call("cuCtxGetCurrent"))
        if own is not None:
            _cuda.call("cuCtxDestroy", own)
        return before, after

    before, after = Thread(use).result()
    assert before == after
    assert (before == 0) == (which == "none")
