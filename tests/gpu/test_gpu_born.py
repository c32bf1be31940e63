"""Arrays that are born page-locked, and tensors of safetensors files, used by real frameworks."""

from __future__ import annotations

import json
import time

import _cuda
import numpy as np
import pytest
from _subject import COUNT

import dlwrap

PINNED = "the device reads pageable memory, so that nothing is locked"


def need_page_locking():
    if dlwrap.support(0).memory != "pinned":
        pytest.skip(PINNED)


def test_what_is_born_page_locked_is_used_in_place(torch):
    array = dlwrap.zeros((8, 16), np.float32)
    tensor = torch.from_dlpack(dlwrap.wrap(array[2:4]))
    tensor += 3
    torch.cuda.synchronize()
    assert array.sum() == 3 * 32
    assert array[2:4].min() == 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", np.float16, np.complex128, np.bool_])
def test_every_kind_of_element_reaches_torch(torch, dtype):
    array = dlwrap.zeros(16, dtype)
    array[:] = 1
    assert torch.from_dlpack(dlwrap.wrap(array)).to(torch.complex128).sum().item() == 16


def test_jax_finds_its_alignment(jax):
    array = dlwrap.zeros(1000, np.float32)
    array[:] = 2
    assert float(jax.dlpack.from_dlpack(dlwrap.wrap(array)).sum()) == 2000


def test_one_range_is_registered_and_stays_while_a_view_lives(torch):
    need_page_locking()
    array = dlwrap.empty(COUNT, np.float32)
    start = _cuda.address(array)
    view = array[10:20]
    torch.from_dlpack(dlwrap.wrap(view)).fill_(1)
    del array
    dlwrap.reclaim(timeout=20)
    assert _cuda.is_registered(start)
    assert dlwrap.stats().pinned_bytes == 4 * COUNT
    del view
    dlwrap.reclaim(timeout=20)
    assert dlwrap.stats().pinned_bytes == 0
    assert not _cuda.is_registered(start)


def test_memory_is_kept_for_a_kernel_that_runs_after_everything_was_dropped(latch, stream):
    need_page_locking()
    array = dlwrap.empty(COUNT, np.float32)
    array[:] = 1
    buffer = dlwrap.wrap(array)
    latch.launch(stream, _cuda.device_address(array), COUNT)
    buffer.record_stream(stream)
    del array, buffer
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(timeout=0.2)
    assert dlwrap.stats().pinned_bytes == 4 * COUNT
    latch.open()
    latch.wait()
    assert latch.sum == COUNT
    dlwrap.reclaim(timeout=20)
    assert dlwrap.stats().pinned_bytes == 0


def test_ordinary_copies_of_it_and_of_slices_work(torch):
    array = dlwrap.zeros(COUNT, np.float32)
    dlwrap.wrap(array[5:10]).close()
    on_gpu = torch.from_numpy(array).cuda()
    on_gpu += 1
    torch.from_numpy(array)[7:].copy_(on_gpu[7:])
    assert array.sum() == COUNT - 7


def test_fact_what_a_wrap_of_it_costs(torch, fact):
    need_page_locking()
    array = dlwrap.empty(COUNT, np.float32)
    dlwrap.wrap(array).close()
    begin = time.perf_counter()
    for _ in range(1000):
        dlwrap.wrap(array[10:])
    spent = (time.perf_counter() - begin) / 1000
    fact(f"a wrap of a slice of dlwrap.empty takes {1e6 * spent:.2f} us")
    assert spent < 20e-6  # page-locking alone takes more


@pytest.mark.parametrize("nbytes", [4096, 2**24, 2**28])
def test_fact_what_making_one_costs(fact, nbytes):
    begin = time.perf_counter()
    array = dlwrap.zeros(nbytes, np.uint8)
    fact(f"dlwrap.zeros of {nbytes} bytes takes {1e3 * (time.perf_counter() - begin):.2f} ms")
    assert array[-1] == 0


# ---- safetensors ----


@pytest.mark.parametrize("mode", ["r", "c"])
def test_neighbouring_tensors_of_a_file_are_used_at_once(torch, tmp_path, mode):
    if mode == "r" and not dlwrap.support(0).read_only_host_register:
        pytest.skip("this device cannot page-lock read-only memory")
    arrays = {f"t{number}": np.full(1000, number, np.float32) for number in range(5)}
    header = {
        name: {"dtype": "F32", "shape": [1000], "data_offsets": [4000 * number, 4000 * number + 4000]}
        for number, name in enumerate(arrays)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values()))
    file = dlwrap.open_safetensors(path, mode=mode)
    tensors = {name: torch.from_dlpack(dlwrap.wrap(array)) for name, array in file.items()}
    assert [tensor.sum().item() for tensor in tensors.values()] == [1000 * number for number in range(5)]
    del tensors
    dlwrap.reclaim(timeout=20)
    with dlwrap.pin(file.data):
        assert torch.from_dlpack(dlwrap.wrap(file["t3"])).sum().item() == 3000
        assert dlwrap.stats().pinned_bytes in {0, 20_000}
