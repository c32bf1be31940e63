"""Host memory of other frameworks reaches the GPU in place, and is given back after the GPU is done."""

from __future__ import annotations

from multiprocessing import shared_memory

import numpy as np
import pytest

import dlwrap
from patience import SECONDS
from producer import Producer


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "complex64", "int64"])
def test_a_cpu_tensor_of_torch_becomes_a_cuda_tensor_over_its_memory(torch, name):
    host = torch.zeros(1024, dtype=getattr(torch, name))
    tensor = torch.from_dlpack(dlwrap.wrap(host))
    assert (tensor.device.type, tensor.dtype, tensor.data_ptr()) == ("cuda", host.dtype, host.data_ptr())
    tensor.view(torch.uint8).fill_(1)
    torch.cuda.synchronize()
    assert bool((host.view(torch.uint8) == 1).all())


def test_slices_of_a_cpu_tensor_share_the_page_lock_of_its_storage(torch):
    host = torch.zeros(256, 256)
    row, column = torch.from_dlpack(dlwrap.wrap(host[0])), torch.from_dlpack(dlwrap.wrap(host[:, 0]))
    assert dlwrap.stats().pinned_bytes == host.nbytes
    row += 1
    column += 1
    torch.cuda.synchronize()
    assert (host[0, 0].item(), host[0, 1].item(), host[1, 0].item(), host.sum().item()) == (2, 1, 1, 512)


def test_memory_that_torch_page_locked_is_used_as_it_is(torch):
    host = torch.zeros(1024).pin_memory()
    tensor = torch.from_dlpack(dlwrap.wrap(host))
    tensor += 1
    torch.cuda.synchronize()
    assert (host.sum().item(), dlwrap.stats().pinned_bytes) == (1024, 0)


def test_a_jax_array_of_the_cpu_is_read_by_the_gpu(torch, jax):
    host = jax.device_put(np.arange(1024, dtype=np.float32), jax.devices("cpu")[0])
    tensor = torch.from_dlpack(dlwrap.wrap(host))
    assert (tensor.device.type, tensor.sum().item()) == ("cuda", 1023 * 512)


def test_raw_shared_memory_is_read_as_what_is_told(torch):
    block = shared_memory.SharedMemory(create=True, size=4096)
    try:
        tensor = torch.from_dlpack(dlwrap.wrap(block, dtype=torch.bfloat16, shape=(2, -1)))
        assert (tuple(tensor.shape), tensor.dtype) == ((2, 1024), torch.bfloat16)
        tensor.fill_(1)
        torch.cuda.synchronize()
        assert np.frombuffer(bytes(block.buf), np.uint16).tolist() == [0x3F80] * 2048
        del tensor
        dlwrap.reclaim(SECONDS)
    finally:
        block.close()
        block.unlink()


def test_a_producers_deleter_is_called_once_and_only_after_the_gpu_is_done(torch, latch):
    producer = Producer(np.zeros(1024, np.float32))
    tensor = torch.from_dlpack(dlwrap.wrap(producer))
    latch.launch(torch.cuda.current_stream().cuda_stream, tensor.data_ptr(), tensor.numel())
    del tensor
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(0.3)
    assert producer.deleted == 0
    latch.open()
    dlwrap.reclaim(SECONDS)
    assert producer.deleted == 1
