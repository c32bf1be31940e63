"""The driver layer: the only file that imports ``cuda.bindings``, and only at the first driver call.

Typed calls that raise `CudaError`; contexts are pushed and popped, so that the caller's current context is as
it was. It knows nothing of arrays, buffers or lifetimes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from dlwrap import _native
from dlwrap._errors import CudaError

if TYPE_CHECKING:
    from collections.abc import Iterator

LEGACY_STREAM = 1
PER_THREAD_STREAM = 2

# CUresult values that dlwrap decides on (CUDA driver API, "Data types used by CUDA driver").
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_FOUND = 500
NOT_READY = 600
HOST_MEMORY_ALREADY_REGISTERED = 712
HOST_MEMORY_NOT_REGISTERED = 713
NOT_SUPPORTED = 801
CAPTURE_IMPLICIT = 906
NO_DRIVER = -1

_PAGEABLE_MEMORY_ACCESS = 88  # CUdevice_attribute

# In the order in which _calls.c learns them.
_CALLED_IN_C = (
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuDeviceGetAttribute",
    "cuThreadExchangeStreamCaptureMode",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer",
)

_ON_HOST = 1  # CUmemorytype

_REGISTER_PORTABLE = 1
_REGISTER_DEVICEMAP = 2
_EVENT_DISABLE_TIMING = 2
_STREAM_BLOCKING = 0


_initialising: set[int] = set()  # by thread; each stays once it has succeeded


@functools.cache
def _module() -> Any:
    """Import ``cuda.bindings.driver`` and initialise the driver."""
    _initialising.add(threading.get_ident())
    try:
        return _initialise()
    except BaseException:
        _initialising.discard(threading.get_ident())
        raise


def _initialise() -> Any:
    try:
        # import dlwrap must touch no driver; the module is compiled and has no stub.
        from cuda.bindings import driver  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        raise CudaError(NO_DRIVER, "NO_BINDINGS", f"cuda-bindings cannot be imported: {error}", "import") from error
    _check("cuInit", _invoke(driver, "cuInit", (0,)), driver)
    _native.learn_driver(*(_find_function(driver, name) for name in _CALLED_IN_C))
    return driver


def is_initialised() -> bool:
    """Tell whether this module has initialised the driver, or a thread is about to; touches none."""
    return bool(_initialising)


def _invoke(driver: Any, name: str, args: tuple[Any, ...]) -> Any:
    """Call one driver function; what the bindings raise by themselves becomes a `CudaError`."""
    try:
        return getattr(driver, name)(*args)
    except ValueError as error:
        # The bindings refuse results that their enumeration lacks: "12345 is not a valid CUresult".
        word = str(error).split(" ", 1)[0]
        if "CUresult" not in str(error) or not word.isdecimal():
            raise
        raise _unknown(int(word), name) from error
    except RuntimeError as error:
        # No libcuda, or one that is too old to have the function: the bindings' own classes, all RuntimeErrors.
        cure = "install the NVIDIA driver, or use dlwrap.testing to run without a GPU"
        raise CudaError(NO_DRIVER, "NO_DRIVER", f"{error} ({cure})", name) from error


def _check(name: str, results: Any, driver: Any) -> Any:
    """Return what the call returned beside its result; raise if that is not success."""
    result = results[0]
    if int(result) != 0:
        raise CudaError(int(result), result.name, _explain(driver, result), name)
    return results[1] if len(results) == 2 else results[1:]


def _explain(driver: Any, result: Any) -> str:
    """Give the driver's own explanation of a result."""
    try:
        code, text = _invoke(driver, "cuGetErrorString", (result,))
    except CudaError:
        return "no explanation"
    return text.decode() if int(code) == 0 else "no explanation"


def _failure(code: int, call: str, explanation: str | None = None) -> CudaError:
    """Describe what the native part got from the driver; by default with the driver's own explanation."""
    driver = _module()
    try:
        result = driver.CUresult(code)
    except ValueError:
        return _unknown(code, call, explanation)
    return CudaError(code, result.name, explanation or _explain(driver, result), call)


def _unknown(code: int, call: str, explanation: str | None = None) -> CudaError:
    """Describe a result that the bindings' enumeration lacks."""
    return CudaError(code, "unknown CUresult", explanation or "newer than the installed cuda-bindings", call)


def _call(name: str, *args: Any, results: list[Any] | None = None) -> Any:
    """Call a driver function; give what it returned.

    All that it returned is noted in ``results`` on the very line that makes the call: an interrupt comes before or
    after, and `succeeded` tells which.
    """
    driver = _module()
    results = [] if results is None else results
    results.append(_invoke(driver, name, args))
    return _check(name, results[-1], driver)


def succeeded(results: list[Any]) -> bool:
    """Tell whether the call that notes its results here was made and succeeded, whatever was raised since."""
    return bool(results) and int(results[-1][0]) == 0


@contextlib.contextmanager
def _paired(name: str, argument: Any, undo: str) -> Iterator[None]:
    """Make a call, and in the end, whatever happens between, the one that undoes it: given what the first returned."""
    done: list[Any] = []
    undone: list[Any] = []

    def undo_once() -> None:
        if succeeded(done) and not succeeded(undone):
            _call(undo, *done[-1][1:], results=undone)

    try:
        try:
            _call(name, argument, results=done)
            yield
        finally:
            undo_once()
    except BaseException:
        # The undoing itself may have been interrupted, or have failed for once.
        with contextlib.suppress(CudaError):
            undo_once()
        raise


# ---- devices and contexts ----


def device_count() -> int:
    """Count the CUDA devices."""
    return int(_call("cuDeviceGetCount"))


def driver_version() -> int:
    """Give the CUDA version that the driver supports, as 1000 * major + 10 * minor."""
    return int(_call("cuDriverGetVersion"))


def device_name(device: int) -> str:
    """Give the device's name."""
    name: bytes = _call("cuDeviceGetName", 256, device)
    return name.split(b"\0", 1)[0].decode()


def attribute(device: int, name: str) -> int:
    """Read ``CU_DEVICE_ATTRIBUTE_<name>``."""
    _module()
    code, value = _native.attribute(_attribute_number(name), device)
    if code != 0:
        raise _failure(code, "cuDeviceGetAttribute")
    return value


def reads_pageable_memory(device: int) -> bool:
    """Tell whether the device's PAGEABLE_MEMORY_ACCESS is 1; asked at every wrap, once the driver is there."""
    code, value = _native.attribute(_PAGEABLE_MEMORY_ACCESS, device)
    if code != 0:
        raise _failure(code, "cuDeviceGetAttribute")
    return value == 1


@functools.cache
def _attribute_number(name: str) -> int:
    return int(getattr(_module().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"))


def current_device() -> int | None:
    """Give the device of the calling thread's current context, if it has one."""
    _module()
    code, device = _native.current_device()
    if code != 0:
        raise _failure(code, "cuCtxGetDevice" if device == -2 else "cuCtxGetCurrent")
    return None if device < 0 else device


@functools.cache
def _primary(device: int) -> Any:
    """Retain the device's primary context, to the end of the process."""
    context = _call("cuDevicePrimaryCtxRetain", device)
    _native.learn_primary(device, int(context))
    return context


@functools.cache
def primary_handle(device: int) -> int:
    """Give the device's primary context as a number."""
    return int(_primary(device))


def primary_context(device: int) -> contextlib.AbstractContextManager[None]:
    """Make the device's primary context current, and leave the caller's as it was."""
    return _paired("cuCtxPushCurrent", _primary(device), "cuCtxPopCurrent")


def use_primary_context(device: int) -> None:
    """Make the device's primary context current on a thread of our own, which has no other to go back to."""
    _call("cuCtxSetCurrent", _primary(device))


class ContextKind(Enum):
    """How a context stands to a device's primary one, in which alone dlwrap can wait."""

    PRIMARY = auto()
    GREEN = auto()  # a part of the primary one, covered by a wait for all of it
    FOREIGN = auto()  # may be destroyed at any time, and touching it then ends the process (measured)


def current_context_kind(device: int) -> ContextKind:
    """Tell in which kind of context work runs whose stream is not told, or is a default stream.

    Where the current context belongs to another device, or there is none, what is told for this device can only
    mean its primary context.
    """
    current = int(_call("cuCtxGetCurrent"))
    if current in {0, int(_primary(device))} or int(_call("cuCtxGetDevice")) != device:
        return ContextKind.PRIMARY
    return ContextKind.GREEN if _is_green(LEGACY_STREAM) else ContextKind.FOREIGN


def stream_context_kind(stream: int, device: int) -> ContextKind:
    """Tell to which kind of context a live stream belongs (cuStreamGetCtx)."""
    if int(_call("cuStreamGetCtx", _module().CUstream(stream))) == int(_primary(device)):
        return ContextKind.PRIMARY
    return ContextKind.GREEN if _is_green(stream) else ContextKind.FOREIGN


def _is_green(stream: int) -> bool:
    """Ask for the stream's green context; drivers before CUDA 12.4 have none."""
    try:
        return int(_call("cuStreamGetGreenCtx", _module().CUstream(stream))) != 0
    except CudaError:
        return False


# ---- capture modes ----


def relaxed() -> contextlib.AbstractContextManager[None]:
    """Let the calling thread make calls that would otherwise invalidate captures of other threads."""
    exchange = "cuThreadExchangeStreamCaptureMode"
    return _paired(exchange, _module().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED, exchange)


def relax_thread() -> None:
    """Do so for good, on a thread of our own."""
    _call("cuThreadExchangeStreamCaptureMode", _module().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)


# ---- page-locking ----


def register(pointer: int, nbytes: int) -> None:
    """Page-lock memory for every context (cuMemHostRegister)."""
    _call("cuMemHostRegister", pointer, nbytes, _REGISTER_PORTABLE | _REGISTER_DEVICEMAP)


def page_lock(table: _native.Registrations, made: _native.Registration) -> None:
    """Register what was claimed in a table, and find its address on its device, whatever captures there are.

    In one native call, so that no interrupt can come between. The range is live if it is registered, also where
    something else failed.
    """
    failed = table.page_lock(made, primary_handle(made.device))
    if failed is not None:
        function, code = failed
        raise _failure(code, function)


def unregister(pointer: int) -> None:
    """Undo `register`; waits for everything that runs on the device (cuMemHostUnregister)."""
    _call("cuMemHostUnregister", pointer)


def unregister_all(pointers: tuple[int, ...]) -> list[CudaError | None]:
    """Do so for up to 64 ranges, one after the other; give what failed for each."""
    return [None if code == 0 else _failure(code, "cuMemHostUnregister") for code in _native.unregister(pointers)]


def device_pointer(pointer: int) -> int:
    """Give the current context's address of page-locked memory (cuMemHostGetDevicePointer)."""
    return int(_call("cuMemHostGetDevicePointer", pointer, 0))


def known_range(pointer: int) -> tuple[int, int] | None:
    """Give start and stop of the range that the driver knows around a host address, or None for pageable memory."""
    try:
        start, size, seen_by_device = (
            int(_call("cuPointerGetAttribute", getattr(_module().CUpointer_attribute, name), pointer))
            for name in (
                "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR",
                "CU_POINTER_ATTRIBUTE_RANGE_SIZE",
                "CU_POINTER_ATTRIBUTE_DEVICE_POINTER",
            )
        )
    except CudaError as error:
        if error.code == INVALID_VALUE:
            return None
        raise
    # Where host and device see the memory at different addresses, the start is the device's.
    before = (seen_by_device if start <= seen_by_device < start + size else pointer) - start
    return (pointer - before, pointer - before + size) if size else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the driver says that an address is.

    Attributes
    ----------
    host_address : int or None
        Where the host reads it; None for device memory.
    is_managed : bool
        Whether it is managed memory, whose pages move between host and devices.
    device : int
        The device in whose context it was allocated or registered.
    """

    host_address: int | None
    is_managed: bool
    device: int


def find_place(pointer: int) -> Place | None:
    """Ask where an address is (cuPointerGetAttribute); None where the driver knows nothing, as of pageable memory."""
    try:
        device = _pointer_attribute("DEVICE_ORDINAL", pointer)
        if _pointer_attribute("IS_MANAGED", pointer):
            return Place(pointer, is_managed=True, device=device)
        if _pointer_attribute("MEMORY_TYPE", pointer) != _ON_HOST:
            return Place(None, is_managed=False, device=device)
        return Place(_pointer_attribute("HOST_POINTER", pointer), is_managed=False, device=device)
    except CudaError as error:
        if error.code == INVALID_VALUE:
            return None
        raise


def _pointer_attribute(name: str, pointer: int) -> int:
    attribute = getattr(_module().CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    return int(_call("cuPointerGetAttribute", attribute, pointer))


# ---- the self-test ----


def allocate(nbytes: int) -> int:
    """Allocate device memory in the current context (cuMemAlloc)."""
    return int(_call("cuMemAlloc", nbytes))


def free(pointer: int) -> None:
    """Undo `allocate`; waits for the device (cuMemFree)."""
    _call("cuMemFree", pointer)


def fill(pointer: int, value: int, nbytes: int) -> None:
    """Set bytes of device memory (cuMemsetD8)."""
    _call("cuMemsetD8", pointer, value, nbytes)


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy on the legacy default stream between any two addresses, and wait for it (cuMemcpy)."""
    _call("cuMemcpy", target, source, nbytes)
    _call("cuStreamSynchronize", _module().CUstream(LEGACY_STREAM))


# ---- events ----


@functools.cache
def _address(name: str) -> int:
    """Look up a driver function for the native part, in its legacy-stream form."""
    return _find_function(_module(), name)


def _find_function(driver: Any, name: str) -> int:
    flags = int(driver.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM)
    results = _invoke(driver, "cuGetProcAddress", (name.encode(), 12000, flags))
    address, _status = _check("cuGetProcAddress", results, driver)
    if not int(address):
        raise CudaError(NOT_FOUND, "CUDA_ERROR_NOT_FOUND", f"this driver has no {name}", "cuGetProcAddress")
    return int(address)


_after_legacy: dict[int, tuple[int, int]] = {}


def stream_after_legacy(device: int) -> int | None:
    """Give a stream of our own in a device's primary context that waits for its legacy stream, once it is made.

    As every blocking stream does (CUDA driver API, "Stream synchronization behavior"). A context that was reset has
    another id, and its streams are dead.
    """
    context, stream = _after_legacy.get(device, (None, None))
    return stream if context == int(_call("cuCtxGetId", _primary(device))) else None


def make_stream_after_legacy(device: int) -> None:
    """Make that stream; where there are some 32 already, this waits for the device (measured)."""
    use_primary_context(device)
    context = int(_call("cuCtxGetId", _primary(device)))
    _after_legacy[device] = (context, int(_call("cuStreamCreate", _STREAM_BLOCKING)))


def create_event() -> Any:
    """Create an event without time stamps, to be polled.

    Without blocking sync: of such events a stream takes 56 behind a running kernel, then recording waits for the kernel
    (measured).
    """
    return _call("cuEventCreate", _EVENT_DISABLE_TIMING)


def destroy_event(event: Any) -> None:
    """Destroy an event; the driver lets work that waits for it go on."""
    _call("cuEventDestroy", event)


def record_unless_capturing(event: Any, stream: int) -> bool:
    """Record the event on the stream, or say False: the stream captures, and the event must not be waited for."""
    code, capturing = _native.record(_address("cuStreamIsCapturing"), _address("cuEventRecord"), stream, int(event))
    if code == CAPTURE_IMPLICIT or capturing:
        return False
    if code != 0:
        raise _failure(code, "cuEventRecord", "recording an event failed")
    return True


def address_of_is_capturing() -> int:
    """Give the address of cuStreamIsCapturing."""
    return _address("cuStreamIsCapturing")


def is_event_done(event: Any) -> bool:
    """Ask whether everything before the recorded event has finished (cuEventQuery)."""
    driver = _module()
    results = _invoke(driver, "cuEventQuery", (event,))
    if int(results[0]) == NOT_READY:
        return False
    _check("cuEventQuery", results, driver)
    return True


def is_capturing(stream: int) -> bool:
    """Ask whether a live stream captures, or would break a capture (cuStreamIsCapturing)."""
    try:
        status = _call("cuStreamIsCapturing", _module().CUstream(stream))
    except CudaError as error:
        if error.code == CAPTURE_IMPLICIT:
            return True
        raise
    return int(status) != 0


# ---- captured graphs ----


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture that is open: its number, which is never used again, and the graph that it fills."""

    id: int
    graph: int


def find_capture(stream: int) -> Capture | None:
    """Find the capture that a live stream takes part in; None without one, and for an invalidated one."""
    if not is_capturing(stream):
        return None
    # Newer bindings also give the graph's edges.
    status, number, graph, *_ = _call("cuStreamGetCaptureInfo", _module().CUstream(stream))
    active = _module().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return Capture(int(number), int(graph)) if status == active else None


def give_to_graph(exporter: _native.Exporter, graph: int) -> int:
    """Make a graph a holder of the exporter's lease (cuGraphRetainUserObject); give the user object."""
    create, retain = _address("cuUserObjectCreate"), _address("cuGraphRetainUserObject")
    code, user_object = _native.hold_by_graph(exporter, create, retain, _address("cuUserObjectRelease"), graph)
    if code != 0:
        raise _failure(code, "cuGraphRetainUserObject", "the graph does not take it")
    return user_object


def take_from_graph(graph: int, user_object: int) -> None:
    """Undo `give_to_graph` (cuGraphReleaseUserObject)."""
    _call("cuGraphReleaseUserObject", _module().CUgraph(graph), _module().CUuserObject(user_object), 1)


def is_graph(handle: object) -> bool:
    """Tell whether this is the bindings' ``CUgraph`` or ``cudaGraph_t``."""
    return isinstance(handle, _module().CUgraph)


def is_stream(handle: object) -> bool:
    """Tell whether this is the bindings' ``CUstream`` or ``cudaStream_t``."""
    return isinstance(handle, _module().CUstream)


def is_executable(handle: object) -> bool:
    """Tell whether this is the bindings' ``CUgraphExec`` or ``cudaGraphExec_t``."""
    return isinstance(handle, _module().CUgraphExec)
