"""What both drivers are asked in the same words, through cuda.bindings: streams, captures, copies, contexts."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

LEGACY = 1
PER_THREAD = 2
_NON_BLOCKING = 1


class Driver(Protocol):
    """A CUDA driver, with work that waits until it is let go."""

    name: str
    simulated: bool

    def describe(self) -> dict[str, Any]:
        """Name the hardware."""

    def reset(self) -> None:
        """Begin a check with nothing held, pending or captured."""

    def memory(self, nbytes: int) -> np.ndarray:
        """Make bytes whose early end is noticed, filled with zeros."""

    def busy(self, stream: int, pointer: int, nbytes: int) -> Callable[[], None]:
        """Submit work that sets all bytes to 7, but waits until the function given back is called."""

    def use_pageable_memory(self) -> bool:
        """Let the device read ordinary memory; tell whether it does."""


class Calls:
    """Driver calls that must succeed, in the primary context of device 0."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._bindings = driver
        self.call("cuInit", 0)
        self.primary = self.call("cuDevicePrimaryCtxRetain", 0)
        self.call("cuCtxSetCurrent", self.primary)

    def call(self, name: str, *arguments: Any) -> Any:
        """Make one call; give what it returns beside its result."""
        result, *values = getattr(self._bindings, name)(*arguments)
        if int(result):
            raise RuntimeError(f"{name} returned {result!r}")
        return values[0] if len(values) == 1 else tuple(values)

    def create_stream(self) -> int:
        """Make a non-blocking stream."""
        return int(self.call("cuStreamCreate", _NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; its work goes on."""
        self.call("cuStreamDestroy", stream)

    def begin_capture(self, stream: int) -> None:
        """Begin a capture in global mode, the strictest."""
        self.call("cuStreamBeginCapture", stream, self._bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)

    def end_capture(self, stream: int) -> Any:
        """End it and give the graph; a capture that was broken raises RuntimeError."""
        return self.call("cuStreamEndCapture", stream)

    def destroy_graph(self, graph: Any) -> None:
        """Destroy a graph, and with it what only it owned."""
        self.call("cuGraphDestroy", graph)

    def current_context(self) -> int:
        """Give the thread's current context."""
        return int(self.call("cuCtxGetCurrent"))

    def set_context(self, context: Any) -> None:
        """Make a context current; None for none."""
        self.call("cuCtxSetCurrent", 0 if context is None else context)

    def download(self, pointer: int, nbytes: int) -> np.ndarray:
        """Copy bytes to the host."""
        copied = np.empty(nbytes, np.uint8)
        if nbytes:
            self.call("cuMemcpyDtoH", copied.ctypes.data, pointer, nbytes)
        return copied

    def upload(self, pointer: int, values: np.ndarray) -> None:
        """Copy bytes from the host."""
        flat = np.ascontiguousarray(values).view(np.uint8)
        if flat.size:
            self.call("cuMemcpyHtoD", pointer, flat.ctypes.data, flat.nbytes)
            self.call("cuStreamSynchronize", LEGACY)


def host_bytes(pointer: int, nbytes: int) -> np.ndarray:
    """View host memory by its address, keeping nothing alive."""
    return np.frombuffer((ctypes.c_char * nbytes).from_address(pointer), np.uint8) if nbytes else np.empty(0, np.uint8)
