"""Driver calls that the tests make themselves, through cuda.bindings: dlwrap's own layer is under test."""

from __future__ import annotations

import contextlib
import functools
import mmap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEGACY_STREAM = 1
PER_THREAD_STREAM = 2
BLOCKING, NON_BLOCKING = 0, 1  # flags of cuStreamCreate
PORTABLE_DEVICEMAP = 3
INVALID_VALUE = 1
HOST_MEMORY_ALREADY_REGISTERED = 712
HOST_MEMORY_NOT_REGISTERED = 713
STREAM_CAPTURE_UNSUPPORTED = 900
CAPTURE_MODES = ("global", "thread_local", "relaxed")


@functools.cache
def bindings() -> Any:
    """Import the driver's bindings; not at the top, so that collecting these tests loads no driver."""
    from cuda.bindings import driver

    return driver


def code(name: str, *args: Any) -> int:
    """Make a driver call; give its result."""
    return int(getattr(bindings(), name)(*args)[0])


def call(name: str, *args: Any) -> Any:
    """Make a driver call that must succeed; give what it returns beside its result."""
    result, *values = getattr(bindings(), name)(*args)
    if int(result):
        raise AssertionError(f"{name} returned {result!r}")
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def primary_context(device: int = 0) -> Any:
    return call("cuDevicePrimaryCtxRetain", device)


@contextlib.contextmanager
def current(context: Any = None) -> Iterator[None]:
    """Make a context current, by default the primary one, and leave the thread's own as it was."""
    call("cuCtxPushCurrent", primary_context() if context is None else context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Let this thread do what would otherwise invalidate captures of other threads."""
    mode = call("cuThreadExchangeStreamCaptureMode", capture_mode("relaxed"))
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", mode)


def create_context() -> Any:
    """Make a context beside the primary one, and make it current."""
    return call("cuCtxCreate", None, 0, 0)


@contextlib.contextmanager
def green_context() -> Iterator[tuple[Any, int]]:
    """Give a green context of 8 multiprocessors, as a CUcontext, and a stream of it."""
    types = bindings()
    try:
        whole = call("cuDeviceGetDevResource", 0, types.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
        groups = call("cuDevSmResourceSplitByCount", 1, whole, 0, 8)[0]
        description = call("cuDevResourceGenerateDesc", groups, len(groups))
        green = call("cuGreenCtxCreate", description, 0, int(types.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM))
    except (AssertionError, AttributeError, RuntimeError) as error:
        pytest.skip(f"no green contexts: {error}")
    stream = int(call("cuGreenCtxStreamCreate", green, NON_BLOCKING, 0))
    try:
        yield call("cuCtxFromGreenCtx", green), stream
    finally:
        call("cuStreamDestroy", stream)
        call("cuGreenCtxDestroy", green)


def create_stream(flags: int = NON_BLOCKING) -> int:
    return int(call("cuStreamCreate", flags))


def pointer_attribute(name: str, pointer: int) -> int:
    attribute = getattr(bindings().CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    return int(call("cuPointerGetAttribute", attribute, pointer))


def is_registered(pointer: int) -> bool:
    attribute = bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE
    return code("cuPointerGetAttribute", attribute, pointer) == 0


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def device_address(array: np.ndarray) -> int:
    """Give the device's address of page-locked memory."""
    return int(call("cuMemHostGetDevicePointer", address(array), 0))


def page_of_our_own() -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)


@contextlib.contextmanager
def registered(array: np.ndarray) -> Iterator[None]:
    """Page-lock an array as somebody else would; fails at the end if it no longer is."""
    call("cuMemHostRegister", address(array), array.nbytes, PORTABLE_DEVICEMAP)
    try:
        yield
    finally:
        call("cuMemHostUnregister", address(array))


class Capture:
    """A stream capture, and after it the graph; a capture that was invalidated fails at its end."""

    def __init__(self, stream: int, mode: str) -> None:
        self._stream = stream
        self._mode = mode
        self.graph: Any = None

    def __enter__(self) -> Capture:
        call("cuStreamBeginCapture", self._stream, capture_mode(self._mode))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        result, graph = bindings().cuStreamEndCapture(self._stream)
        if kind is None:
            assert int(result) == 0, f"the capture was broken: {result!r}"
            self.graph = graph

    def replay(self, times: int = 1) -> None:
        executable = call("cuGraphInstantiate", self.graph, 0)
        for _ in range(times):
            call("cuGraphLaunch", executable, self._stream)
        call("cuStreamSynchronize", self._stream)
        call("cuGraphExecDestroy", executable)
        call("cuGraphDestroy", self.graph)


def capture_mode(name: str) -> Any:
    return getattr(bindings().CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name.upper()}")


class Thread(threading.Thread):
    """Runs a function, as long as the function goes on; `result` gives, or raises, what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 -- raised again where the result is asked for
            self._error = error

    def goes_on(self, seconds: float = 0.3) -> bool:
        """Tell whether it is still running after that time."""
        self.join(seconds)
        return self.is_alive()

    def result(self, timeout: float = 40) -> Any:
        self.join(timeout)
        assert not self.is_alive(), "the thread hangs"
        if self._error is not None:
            raise self._error
        value, self._value = self._value, None
        return value
