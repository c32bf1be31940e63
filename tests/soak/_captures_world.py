"""What the soak of captures needs of a driver, real or simulated: both are driven through cuda.bindings alone."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from stream_objects import pose_as_cupy

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from dlwrap.testing import SimulatedDriver

LEGACY, PER_THREAD = 1, 2
BLOCKING, NON_BLOCKING = 0, 1  # flags of cuStreamCreate
MODES = ("global", "thread_local", "relaxed")
WORDS = 64  # of 4 bytes, in each array that is written to
VALUES = 256  # that a node may write

_BUSY_BYTES = 64 << 20  # a fill that keeps a real GPU busy for a while
_BUSY_FILLS = 8


class DriverError(AssertionError):
    """A driver call of the program failed."""


def result_of(name: str, *args: Any) -> tuple[Any, ...]:
    """Make a driver call; give its result and what else it returns."""
    from cuda.bindings import driver

    return getattr(driver, name)(*args)


def call(name: str, *args: Any) -> Any:
    """Make a driver call that must succeed; give what it returns beside its result."""
    result, *values = result_of(name, *args)
    if int(result):
        raise DriverError(f"{name} returned {result.name}")
    return values[0] if len(values) == 1 else tuple(values)


@pose_as_cupy
class OwnedStream:
    """Poses as a CuPy stream, which dlwrap tracks: it relies on the handle staying alive with the object."""

    def __init__(self, handle: int, *, blocking: bool) -> None:
        self.handle = handle
        self.is_blocking = blocking

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


_current = threading.local()


@contextlib.contextmanager
def framework() -> Iterator[None]:
    """Pose as an imported CuPy, so that ``__dlpack__(stream=handle)`` finds the owner of the current stream."""
    found = sys.modules.get("cupy")
    fake: Any = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda _: getattr(_current, "stream", None)))
    sys.modules["cupy"] = fake
    try:
        yield
    finally:
        del sys.modules["cupy"]
        if found is not None:
            sys.modules["cupy"] = found


@contextlib.contextmanager
def using(stream: OwnedStream) -> Iterator[None]:
    """Make a stream the framework's current one in this thread."""
    _current.stream = stream
    try:
        yield
    finally:
        _current.stream = None


@dataclass
class World:
    """A device, its primary context, streams, and work for them.

    Attributes
    ----------
    simulator : SimulatedDriver or None
        The simulated driver, if that is the one.
    writers : tuple of str
        The kinds of node by which graphs can write to page-locked memory here.
    """

    simulator: SimulatedDriver | None
    writers: tuple[str, ...] = ()
    _streams: list[OwnedStream] = field(default_factory=list)

    def __post_init__(self) -> None:
        call("cuInit", 0)
        self._context = call("cuDevicePrimaryCtxRetain", 0)
        call("cuCtxPushCurrent", self._context)
        self._busy_words = (_BUSY_BYTES if self.simulator is None else 4096) // 4
        self._scratch = call("cuMemAlloc", 4 * self._busy_words)
        self._table = call("cuMemAlloc", 4 * WORDS * VALUES)
        rows = np.repeat(np.arange(VALUES, dtype=np.uint32), WORDS)
        call("cuMemcpyHtoD", self._table, rows.ctypes.data, rows.nbytes)
        self.writers = self._find_writers()

    def close(self) -> None:
        """Destroy the streams, free the device memory, and leave the thread as it was."""
        for stream in self._streams:
            call("cuStreamSynchronize", stream.handle)
            call("cuStreamDestroy", stream.handle)
        for memory in (self._scratch, self._table):
            call("cuMemFree", memory)
        call("cuCtxPopCurrent")

    def enter_thread(self) -> None:
        """Make the primary context current in a thread of the soak."""
        call("cuCtxSetCurrent", self._context)

    def create_stream(self, flags: int) -> OwnedStream:
        stream = OwnedStream(int(call("cuStreamCreate", flags)), blocking=flags == BLOCKING)
        self._streams.append(stream)
        return stream

    def array(self, rng: random.Random) -> np.ndarray:
        """Make an array; one in four simulated ones ends the program if it goes while it is page-locked or in use."""
        if self.simulator is None or rng.random() < 0.75:  # the watched ones take four times as long to page-lock
            return np.zeros(WORDS, np.uint32)
        return self.simulator.host_array(WORDS, np.uint32)

    def keep_busy(self, stream: OwnedStream) -> None:
        """Submit work that goes on for a while; a simulated stream until `let_go`."""
        if self.simulator is not None:
            self.simulator.hold(stream.handle)
        for _ in range(_BUSY_FILLS if self.simulator is None else 1):
            call("cuMemsetD32Async", self._scratch, 0, self._busy_words, stream.handle)

    def let_go(self, stream: OwnedStream) -> None:
        """Let the work of `keep_busy` end."""
        if self.simulator is not None:
            self.simulator.let_go(stream.handle)

    def write(self, stream: int, pointer: int, value: int, words: int = WORDS, writer: str = "memset") -> None:
        """Submit, or capture, one node that sets so many words to a value below `VALUES`."""
        if writer == "memset":
            call("cuMemsetD32Async", pointer, value, words, stream)
        else:
            call("cuMemcpyAsync", pointer, int(self._table) + 4 * WORDS * value, 4 * words, stream)

    def begin_capture(self, stream: OwnedStream, mode: str) -> None:
        from cuda.bindings import driver

        modes = driver.CUstreamCaptureMode
        call("cuStreamBeginCapture", stream.handle, getattr(modes, f"CU_STREAM_CAPTURE_MODE_{mode.upper()}"))

    def check_capture(self, stream: OwnedStream) -> None:
        """Check that the capture is still valid."""
        from cuda.bindings import driver

        status = call("cuStreamIsCapturing", stream.handle)
        if status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            raise DriverError(f"cuStreamIsCapturing gave {status.name}")

    def end_capture(self, stream: OwnedStream) -> Any:
        """End the capture; give its graph."""
        graph = call("cuStreamEndCapture", stream.handle)
        if not int(graph):
            raise DriverError("cuStreamEndCapture gave no graph")
        return graph

    def run_graph(self, graph: Any, stream: OwnedStream) -> int:
        """Instantiate, launch, wait, destroy; give the number of nodes."""
        try:
            nodes = int(call("cuGraphGetNodes", graph, 0)[1])
            executable = call("cuGraphInstantiate", graph, 0)
            try:
                call("cuGraphLaunch", executable, stream.handle)
                call("cuStreamSynchronize", stream.handle)
            finally:
                call("cuGraphExecDestroy", executable)
        finally:
            call("cuGraphDestroy", graph)
        return nodes

    def _find_writers(self) -> tuple[str, ...]:
        """Try each kind of node by itself; also loads what the driver loads at the first use."""
        memory = np.zeros(WORDS, np.uint32)
        pointer = memory.ctypes.data
        call("cuMemHostRegister", pointer, memory.nbytes, 3)
        seen = int(call("cuMemHostGetDevicePointer", pointer, 0))
        found = []
        stream = self.create_stream(NON_BLOCKING)
        for value, writer in enumerate(("memset", "memcpy"), 1):
            try:
                self.begin_capture(stream, "global")
                self.write(stream.handle, seen, value, writer=writer)
                nodes = self.run_graph(self.end_capture(stream), stream)
            except DriverError as error:
                print(f"no {writer} nodes here: {error}", file=sys.stderr)
            else:
                if nodes == 1 and (memory == value).all():
                    found.append(writer)
        call("cuMemHostUnregister", pointer)
        if not found:
            raise DriverError("no kind of node writes to page-locked memory here")
        return tuple(found)
