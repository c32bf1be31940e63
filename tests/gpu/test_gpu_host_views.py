"""The host's own views of a wrapped array wait for the work recorded on it."""

from __future__ import annotations

import _cuda
import numpy as np
import pytest
from _cuda import Thread
from _subject import COUNT

import dlwrap

VIEWS = {
    "np.from_dlpack": lambda buffer: np.from_dlpack(buffer, device="cpu"),
    "np.from_dlpack copy": lambda buffer: np.from_dlpack(buffer, device="cpu", copy=True),
    "np.asarray": np.asarray,
    "np.array": np.array,
    "synchronize": lambda buffer: (buffer.synchronize(), buffer.array)[1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("known_to", ["torch", "nobody"])
def test_host_view_waits_for_the_gpu(torch, latch, view, known_to):
    """Where nobody keeps the stream's handle alive, the whole device is waited for."""
    buffer = dlwrap.wrap(np.zeros(COUNT, np.float32))
    stream = torch.cuda.Stream()
    if known_to == "torch":
        with torch.cuda.stream(stream):
            torch.from_dlpack(buffer)
    else:
        buffer.__dlpack__(stream=stream.cuda_stream, max_version=(1, 0))
    latch.launch(stream.cuda_stream, _cuda.device_address(buffer.array), COUNT, value=9)
    reader = Thread(lambda: view(buffer))
    assert reader.goes_on()
    assert latch.holds
    latch.open()
    values = reader.result()
    assert latch.finished
    np.testing.assert_array_equal(values, np.full(COUNT, 9, np.float32))


def test_wait_of_one_buffer_is_not_held_up_by_another(torch, latch):
    busy, free = torch.cuda.Stream(), torch.cuda.Stream()
    buffer, other = dlwrap.wrap(np.zeros(COUNT, np.float32)), dlwrap.wrap(np.zeros(8, np.float32))
    with torch.cuda.stream(busy):
        tensor = torch.from_dlpack(buffer)
    with torch.cuda.stream(free):
        torch.from_dlpack(other).add_(1)
    latch.launch(busy.cuda_stream, tensor.data_ptr(), COUNT)
    np.testing.assert_array_equal(np.asarray(other), np.ones(8, np.float32))
    assert latch.holds


def test_view_shares_the_memory_and_a_copy_does_not():
    array = np.arange(8, dtype=np.float32)
    buffer = dlwrap.wrap(array)
    assert np.shares_memory(np.from_dlpack(buffer, device="cpu"), array)
    assert np.shares_memory(np.asarray(buffer), array)
    assert not np.shares_memory(np.from_dlpack(buffer, device="cpu", copy=True), array)
    assert not np.shares_memory(np.array(buffer), array)


def test_copy_for_the_gpu_is_page_locked_memory_of_its_own(torch):
    array = np.arange(8, dtype=np.float32)
    buffer = dlwrap.wrap(array)
    tensor = torch.from_dlpack(buffer, copy=True)
    assert tensor.data_ptr() != _cuda.address(array)
    assert tensor.is_cuda
    tensor.add_(1)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(array, np.arange(8, dtype=np.float32))
    np.testing.assert_array_equal(tensor.cpu().numpy(), np.arange(1, 9, dtype=np.float32))


def test_view_keeps_the_memory_page_locked():
    buffer = dlwrap.wrap(np.arange(8, dtype=np.float32))
    view = np.from_dlpack(buffer, device="cpu")
    with pytest.raises(BufferError, match="1 importer"):
        buffer.close()
    np.testing.assert_array_equal(view, np.arange(8, dtype=np.float32))
    del view
    buffer.close(timeout=20)


def test_view_is_refused_while_a_recorded_stream_captures(torch):
    buffer = dlwrap.wrap(np.zeros(8, np.float32))
    side = torch.cuda.Stream()
    buffer.record_stream(side)
    with _cuda.Capture(side.cuda_stream, "global"), pytest.raises(BufferError, match="captured"):
        np.asarray(buffer)
    assert np.asarray(buffer).size == 8
