"""Which stream was recorded, and whether its handle can still be touched later.

A destroyed stream's handle must never be touched, and nothing can ask whether a handle is alive. So a stream is
tracked only where it can't be destroyed (the legacy default stream) or where we hold the object that would
destroy it. Every other stream means a device-wide wait. This module records nothing and waits for nothing.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlwrap import _driver, _native
from dlwrap._driver import ContextKind

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class TrackedStream:
    """A stream of the device's primary context whose handle stays alive as long as this does.

    Attributes
    ----------
    handle : int
        The ``CUstream``; 1 is the legacy default stream.
    device : int
        The device whose primary context it belongs to.
    owner : object
        What would destroy the stream; None for the legacy default stream.
    """

    handle: int
    device: int
    owner: object


@functools.cache
def legacy_stream(device: int) -> TrackedStream:
    """Give a device's legacy default stream, which cannot be destroyed."""
    return TrackedStream(_driver.LEGACY_STREAM, device, None)


def check_told_stream(stream: object) -> int | None:
    """Validate the ``stream`` argument of ``__dlpack__`` (array API standard, CUDA rules).

    Returns
    -------
    int or None
        The handle, or None where the consumer told no stream (None or -1).
    """
    if stream is None:
        return None
    handle = _as_handle(stream)
    if handle == 0:
        raise ValueError("stream must not be 0: it is ambiguous between 1 (legacy default) and 2 (per-thread default)")
    if handle < -1:
        raise ValueError(f"stream must be None, -1, 1, 2 or a CUstream handle, got {handle}")
    return None if handle == -1 else handle


def check_untold(device: int) -> ContextKind:
    """Check that work whose stream nobody tells can be waited for; give the kind of context it runs in.

    Raises
    ------
    BufferError
        It may run in a foreign context.
    """
    return _refuse_foreign(_driver.current_context_kind(device), "the current context", device)


def find_told_stream(handle: int | None, device: int) -> TrackedStream | None:
    """Find who keeps the stream of a ``__dlpack__`` call alive; None means a device-wide wait.

    The handle is alive during the call. The consumer's framework is asked for its current stream object, and only
    if it has been imported already.

    Raises
    ------
    BufferError
        The stream belongs to a foreign context.
    """
    if handle is None or handle <= _driver.PER_THREAD_STREAM:
        return _track(handle, device, None)
    owners = (_ask(find, device, handle) for find in _CURRENT_STREAMS)
    return _track(handle, device, next(filter(None, owners), None))


def find_recorded_stream(stream: object, device: int) -> tuple[int, TrackedStream | None]:
    """Find handle and owner of what `record_stream` was given: a handle, or a stream object.

    Raises
    ------
    BufferError
        The stream belongs to a foreign context.
    TypeError, ValueError
        It is neither, or handle 0, -1 or below.
    """
    if not _is_stream_object(stream):
        told = check_told_stream(stream)
        if told is None:
            raise ValueError(f"record_stream needs a stream, got {stream!r}: pass a handle or a __cuda_stream__ object")
        return told, _track(told, device, None)
    handle = _handle_of_object(stream)
    if handle == 0 and _class_of(stream) in _ZERO_IS_LEGACY:
        handle = _driver.LEGACY_STREAM
    return handle, _track(handle, device, stream if _keeps_its_handle(stream) else None)


def find_capturing_stream(stream: object) -> int:
    """Find the handle of what `keep_alive` was given: an object of the bindings, or a stream object.

    Raises
    ------
    TypeError
        It is neither.
    """
    if _driver.is_stream(stream):
        return int(stream)  # type: ignore[call-overload, no-any-return]
    if not _is_stream_object(stream):
        raise TypeError(
            f"keep_alive needs a CUDA graph or a stream under capture, got {type(stream).__name__}: pass a CUgraph, a "
            "graph object that gives its CUgraph, a CUstream, or an object with __cuda_stream__"
        )
    return _handle_of_object(stream)


def _handle_of_object(stream: object) -> int:
    handle = _handle_of(stream)
    if handle is None:
        raise TypeError(f"__cuda_stream__ of {type(stream).__name__} must return (0, handle)")
    return handle


def _as_handle(stream: object) -> int:
    if isinstance(stream, bool):
        raise TypeError("stream must be an integer handle or None, got a bool")
    try:
        return operator.index(stream)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"stream must be an integer handle or None, got {type(stream).__name__}: "
            "pass int(stream.handle), stream.ptr or stream.cuda_stream"
        ) from None


def _track(handle: int | None, device: int, owner: object) -> TrackedStream | None:
    """Track a stream that can be recorded on later, by another thread, in the primary context."""
    if handle is None or handle <= _driver.PER_THREAD_STREAM:
        in_primary = check_untold(device) is ContextKind.PRIMARY
        # Handle 2 names another stream on another thread, so the manager's thread can't record on it.
        is_legacy = handle == _driver.LEGACY_STREAM
        return legacy_stream(device) if is_legacy and in_primary else None
    with _driver.relaxed():
        kind = _refuse_foreign(_driver.stream_context_kind(handle, device), f"stream {handle:#x}", device)
    return TrackedStream(handle, device, owner) if owner is not None and kind is ContextKind.PRIMARY else None


def _refuse_foreign(kind: ContextKind, what: str, device: int) -> ContextKind:
    if kind is ContextKind.FOREIGN:
        raise BufferError(
            f"cannot wait for {what}: it belongs to another context than the primary one of device {device}; "
            "use the primary context (cuDevicePrimaryCtxRetain), as torch, CuPy and JAX do"
        )
    return kind


def _is_stream_object(stream: object) -> bool:
    return hasattr(stream, "__cuda_stream__") or _class_of(stream) in _ATTRIBUTES


def _handle_of(stream: Any) -> int | None:
    """Read the stream protocol, (version 0, handle), of an object that may not have it."""
    try:
        if hasattr(stream, "__cuda_stream__"):
            version, handle = stream.__cuda_stream__()
            return int(handle) if version == 0 else None
        handle = getattr(stream, _ATTRIBUTES[_class_of(stream)])
        return int(getattr(handle, "value", handle) or 0)  # of numba it is one of ctypes, whose 0 reads as None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _ask(find: Callable[[int], object], device: int, handle: int) -> object:
    """Ask a framework for the owner of its current stream, if that is the one; a half imported one knows none."""
    try:
        owner = find(device)
        return owner if owner is not None and _keeps_its_handle(owner) and _handle_of(owner) == handle else None
    except Exception:  # noqa: BLE001 -- a foreign framework's failure must not become the consumer's
        return None


def _current_torch_stream(device: int) -> object:
    torch = sys.modules.get("torch")
    return torch.cuda.current_stream(device) if torch is not None and torch.cuda.is_initialized() else None


def _current_cupy_stream(device: int) -> object:
    cupy = sys.modules.get("cupy")
    return cupy.cuda.get_current_stream(device) if cupy is not None else None


_CURRENT_STREAMS = (_current_torch_stream, _current_cupy_stream)


def find_work_stream(device: int) -> int:
    """Find the stream on which a consumer works that has none of its own: torch's or CuPy's current one; 0 if default.

    Where the native part can go on finding it without Python, it is told how, until another module is imported.
    """
    # A foreign framework's failure must not become the consumer's, and leaves it unsettled.
    with contextlib.suppress(Exception):
        _settle_work_stream(len(sys.modules), sys.modules.get("torch"))
    return next(filter(None, (_ask_for_current(find, device) for find in _CURRENT_STREAMS)), 0)


def _settle_work_stream(modules: int, torch: Any) -> None:
    if "cupy" in sys.modules:
        return  # it has no function in C that could be asked
    if torch is None or (torch.version.cuda is None and torch.version.hip is None):
        _native.settle_work_stream(None, 0, modules)
    elif torch.cuda.is_initialized():
        api = torch.Tensor.__dlpack_c_exchange_api__
        if api is not None:
            _native.settle_work_stream(api, _driver.address_of_is_capturing(), modules)


def _ask_for_current(find: Callable[[int], object], device: int) -> int:
    """Ask a framework for its current stream; 0 also where it fails, as above."""
    try:
        return _handle_of(find(device)) or 0
    except Exception:  # noqa: BLE001
        return 0


def _keeps_its_handle(stream: Any) -> bool:
    """Tell whether holding this object keeps the handle from being destroyed.

    torch never destroys the streams of its pool; CuPy, numba and Warp destroy theirs with the object. Not so external
    streams, which own nothing, and classes with a ``close()`` of their own, such as cuda.core's.
    """
    match _class_of(stream):
        case "torch.cuda.streams.Stream":
            # torch marks its own streams with an odd id; 0 is the default stream, else the id is a foreign handle.
            return bool(stream.stream_id % 2) or stream.stream_id == 0
        case "cupy.cuda.stream.Stream":
            return getattr(stream, "_foreign_stream_ref", None) is None  # set by Stream.from_external
        case "numba.cuda.cudadrv.driver.Stream":
            return not stream.external
        case "warp._src.context.Stream" | "warp.context.Stream":
            return bool(stream.owner)
    return False


# Where the handle is in versions without the stream protocol.
_ATTRIBUTES = {
    "torch.cuda.streams.Stream": "cuda_stream",
    "torch.cuda.streams.ExternalStream": "cuda_stream",
    "cupy.cuda.stream.Stream": "ptr",
    "cupy.cuda.stream.ExternalStream": "ptr",
    "numba.cuda.cudadrv.driver.Stream": "handle",
    "warp.context.Stream": "cuda_stream",
}

# numba's handle 0 may be the per-thread default stream, by an environment variable.
_ZERO_IS_LEGACY = {"torch.cuda.streams.Stream", "cupy.cuda.stream.Stream"}


def _class_of(stream: object) -> str:
    return f"{type(stream).__module__}.{type(stream).__qualname__}"
