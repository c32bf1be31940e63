"""DLPack's C exchange API with real streams: what consumers in C, such as tvm-ffi, do."""

from __future__ import annotations

import _cuda
import pytest
from _subject import COUNT, assert_gone, assert_kept_until_done

import dlwrap
from exchange_api import delete, export, view, work_stream


@pytest.mark.parametrize("flags", [_cuda.BLOCKING, _cuda.NON_BLOCKING], ids=["blocking", "non-blocking"])
def test_a_tensor_dropped_right_after_the_launch_is_waited_for(subject, latch, flags):
    stream = _cuda.create_stream(flags)
    buffer = dlwrap.wrap(subject.take())
    tensor = export(buffer)
    latch.launch(stream, tensor.dl_tensor.data, COUNT)
    latch.wait_until_started()
    delete(tensor)
    del buffer
    assert_kept(subject, latch)
    _cuda.call("cuStreamDestroy", stream)


def test_a_view_is_waited_for(subject, stream, latch):
    buffer = dlwrap.wrap(subject.take())
    latch.launch(stream, view(buffer).data, COUNT)
    latch.wait_until_started()
    del buffer
    assert_kept(subject, latch)


def assert_kept(subject, latch):
    """Assert that the array lives as long as the kernel runs, although everything is to be released."""
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(0.2)
    assert_kept_until_done(subject, latch)


def test_the_stream_to_work_on_is_torchs_current_one(torch):
    stream = torch.cuda.Stream()
    assert work_stream() == 0
    with torch.cuda.stream(stream):
        assert [work_stream(), work_stream()] == [stream.cuda_stream] * 2
    assert work_stream() == 0


def test_a_graph_that_torch_captures_owns_what_was_exchanged(torch, subject):
    pool = torch.cuda.Stream()
    with torch.cuda.stream(pool):
        work_stream()  # from here on torch is asked in C
    graph, other = torch.cuda.CUDAGraph(), torch.zeros(8, device="cuda")
    buffer = dlwrap.wrap(subject.take())
    with torch.cuda.graph(graph, stream=pool):
        other.add_(1)
        delete(export(buffer))
    assert dlwrap.stats().graphs == 1
    del buffer
    graph.replay()
    torch.cuda.synchronize()
    assert subject.alive
    graph.reset()
    del graph
    assert_gone(subject)
