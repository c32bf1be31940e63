"""A captured graph as an owner of leased memory: until it, its clones and its executables are gone.

A CUDA user object that is retained on the graph is one more holder of the lease (CUDA programming guide, "CUDA User
Objects"). The driver drops it when the last of them is gone and their launches have finished.
"""

from __future__ import annotations

import numbers
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from dlwrap import _driver
from dlwrap._driver import ContextKind
from dlwrap._errors import CudaError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dlwrap._driver import Capture
    from dlwrap._lifetime import Lease
    from dlwrap._native import Exporter

_IN_THE_CAPTURE = "call dlwrap.keep_alive(stream, buffer) during the capture"


def find_capture(handle: int, device: int) -> Capture | None:
    """Find the capture that a live stream takes part in; a capture cannot begin on the legacy stream.

    Raises
    ------
    CudaError
        The driver refused.
    """
    if handle <= _driver.LEGACY_STREAM:
        return None
    with _context_of(handle, device):
        return _driver.find_capture(handle)


def _context_of(handle: int, device: int) -> AbstractContextManager[None]:
    """Make current the context whose per-thread stream is meant; other streams know their own."""
    if handle != _driver.PER_THREAD_STREAM or _driver.current_context_kind(device) is ContextKind.GREEN:
        return nullcontext()
    return _driver.primary_context(device)


def give_to_capture(capture: Capture, lease: Lease, exporter: Exporter) -> int | None:
    """Make the graph under capture an owner, once; give the user object if it has become one.

    Raises
    ------
    BufferError, CudaError
        As `give_to_graph`.
    """
    if capture.id in lease.captures:
        return None
    user_object = give_to_graph(capture.graph, exporter)
    lease.note_capture(capture.id)
    return user_object


def give_to_graph(graph: int, exporter: Exporter) -> int:
    """Make a graph an owner; give the user object, for `take_from_graph`.

    Raises
    ------
    BufferError
        The exporter is closed.
    CudaError
        The driver refused.
    """
    with _driver.relaxed():
        return _driver.give_to_graph(exporter, graph)


def take_from_graph(graph: int, user_object: int) -> None:
    """Undo `give_to_graph`, as far as the driver lets it; else the graph goes on owning."""
    with suppress(CudaError), _driver.relaxed():
        _driver.take_from_graph(graph, user_object)


def find_graph(obj: Any) -> int | None:
    """Find the ``CUgraph`` of a graph object of any framework, or say None: it is something else.

    Raises
    ------
    TypeError
        It is a graph that gives no access to its ``CUgraph``.
    ValueError
        It is no graph any more.
    """
    handle = _raw_graph(obj)
    if handle == 0:
        raise ValueError(f"keep_alive needs a live graph, got one with handle 0; {_IN_THE_CAPTURE}")
    return handle


def _raw_graph(obj: Any) -> int | None:
    # Not __index__, which streams and executables of the bindings have as well.
    if isinstance(obj, numbers.Integral) and not isinstance(obj, bool):
        return int(obj)
    if _driver.is_graph(obj):
        return int(obj)
    if hasattr(obj, "raw_cuda_graph"):  # torch.cuda.CUDAGraph
        try:
            return int(obj.raw_cuda_graph())
        except RuntimeError as error:
            raise TypeError(
                f"this torch.cuda.CUDAGraph keeps no graph: make it with keep_graph=True, or {_IN_THE_CAPTURE}"
            ) from error
    if hasattr(obj, "graph") and hasattr(obj, "graphExec"):  # cupy.cuda.graph.Graph
        return int(obj.graph)
    if getattr(obj, "is_building", None) is False:  # cuda.core's GraphBuilder, which is a stream until then
        obj = obj.graph_definition
    handle: Any = getattr(obj, "handle", None)  # cuda.core's GraphDefinition
    if _driver.is_graph(handle):
        return int(handle)
    if _driver.is_executable(obj) or _driver.is_executable(handle):
        raise TypeError(
            f"an executable graph ({type(obj).__name__}) cannot own anything: give the graph that it is made of, "
            f"before it is instantiated, or {_IN_THE_CAPTURE}"
        )
    return None
