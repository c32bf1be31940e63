"""`keep_alive`: CUDA graphs as owners of buffers, at the user's word."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dlwrap import _graphs, _streams
from dlwrap._buffer import HostWrappedBuffer, note_use
from dlwrap._lifetime import lease_of, manager

if TYPE_CHECKING:
    from dlwrap._buffer import CudaStream
    from dlwrap._driver import Capture


def keep_alive(graph_or_stream: int | CudaStream | Any, *buffers: HostWrappedBuffer) -> None:
    """Make a CUDA graph an owner of buffers, until the graph, its clones and its executables are gone.

    Exports and `HostWrappedBuffer.record_stream` on a capturing stream do so by themselves. This is for buffers
    that a graph uses without: imported before the capture, or by a pointer.

    Parameters
    ----------
    graph_or_stream : graph or stream
        A graph: ``CUgraph`` as an integer or of cuda.bindings, a torch.cuda.CUDAGraph with ``keep_graph=True``, a CuPy
        graph, a GraphDefinition or finished GraphBuilder of cuda.core; to be given before it is instantiated,
        because an executable owns what its graph owned then. Or a stream under capture: ``CUstream`` of
        cuda.bindings, or a stream object of any framework. An integer always means a graph.
    *buffers : HostWrappedBuffer
        What the graph uses. Wrappers and tensors may be dropped afterwards.

    Raises
    ------
    CudaError
        The driver refused; then none of the buffers is owned.
    RuntimeError
        In a forked child, or while the interpreter exits.
    TypeError, ValueError
        It is neither a graph nor a stream, an executable graph, or a stream that is not under capture; a buffer is
        closed, or is something else.
    """
    _check_buffers(buffers)
    manager().check_usable("keep buffers alive")
    graph = _graphs.find_graph(graph_or_stream)
    if graph is None:
        _give_to_capture(_find_capture(graph_or_stream, buffers[0].device), buffers)
    else:
        _give_to_graph(graph, buffers)


def _check_buffers(buffers: tuple[object, ...]) -> None:
    if not buffers:
        raise TypeError("keep_alive needs at least one HostWrappedBuffer after the graph or stream")
    for buffer in buffers:
        if not isinstance(buffer, HostWrappedBuffer):
            raise TypeError(
                f"keep_alive needs HostWrappedBuffers, got {type(buffer).__name__}: pass what dlwrap.wrap returned"
            )
        if buffer.closed:
            raise ValueError("this HostWrappedBuffer is closed: wrap the array again")


def _find_capture(stream: object, device: int) -> Capture:
    """Find the capture of what has to be a stream then."""
    handle = _streams.find_capturing_stream(stream)
    capture = _graphs.find_capture(handle, device)
    if capture is None:
        raise ValueError(
            f"keep_alive needs a graph or a stream with a valid capture, and stream {handle:#x} has none: call it "
            "between begin and end of the capture, or use HostWrappedBuffer.record_stream for work that is not captured"
        )
    return capture


def _give_to_capture(capture: Capture, buffers: tuple[HostWrappedBuffer, ...]) -> None:
    with ExitStack() as undo:
        for buffer in buffers:
            lease = lease_of(buffer)
            user_object = _graphs.give_to_capture(capture, lease, buffer)
            if user_object is not None:
                undo.callback(_graphs.take_from_graph, capture.graph, user_object)
                undo.callback(lease.forget_capture, capture.id)
        undo.pop_all()


def _give_to_graph(graph: int, buffers: tuple[HostWrappedBuffer, ...]) -> None:
    with ExitStack() as undo:
        for buffer in buffers:
            undo.callback(_graphs.take_from_graph, graph, _graphs.give_to_graph(graph, buffer))
            # An executable that was made before owns nothing: where it dies with its graph, its last launch may run.
            note_use(buffer, None)
        undo.pop_all()


keep_alive.__module__ = "dlwrap"
