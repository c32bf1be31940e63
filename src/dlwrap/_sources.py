"""What is not a NumPy array -> a NumPy array over the same memory, and what keeps it; a copy never.

Frameworks are looked up, not imported: where one was never imported there is no object of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlwrap._imported import NEWEST, Tensor, as_array, take_tensor
from dlwrap._owner import address

if TYPE_CHECKING:
    from dlwrap._owner import Array

_CPU, _CUDA_HOST = 1, 3  # DLDeviceType: memory of the host, and of the host page-locked by CUDA

# By package: what can be wrapped instead of an object that would have to be copied.
_CURES = {
    "torch": "wrap t.detach(), or t.resolve_conj() or t.to_dense(), which may copy",
    "jax": "wrap numpy.asarray(x)",
    "pyarrow": "wrap a.buffers()[1] with dtype=..., and mind the nulls in a.buffers()[0] yourself",
    "pandas": "wrap s.to_numpy(), which may copy, or pyarrow.array(s)",
    "polars": "wrap s.to_numpy(), which copies, or s.rechunk()",
}


class Source(NamedTuple):
    """A view of an object's memory, and the object that has to live for it."""

    array: Array
    given: object


def open_source(obj: object) -> Source:
    """Give the array over an object's memory.

    Raises
    ------
    BufferError
        It has memory that NumPy cannot read, or gives copies only.
    TypeError
        It has no host memory to share.
    ValueError
        Its memory was given back already.
    """
    if isinstance(obj, np.ndarray):
        return Source(obj, obj)
    kind = type(obj)
    if _package(kind) == "dlwrap":
        raise TypeError(f"cannot wrap a {_name(kind)}: it is wrapped already; use it as it is, or wrap its .array")
    if isinstance(obj, np.generic):
        raise TypeError(_no_memory(kind))
    # DLPack first: it tells bfloat16, which a buffer cannot. The type is asked, because torch computes attributes.
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return Source(_from_producer(obj), obj)
    if hasattr(kind, "__cuda_array_interface__"):
        raise TypeError(_no_memory(kind))
    if _package(kind) == "pyarrow" and kind.__name__ == "ChunkedArray":
        return _open_chunks(obj)
    view = _buffer(obj)
    if view is not None:
        return Source(_from_buffer(kind, view), obj)
    if any(hasattr(kind, name) for name in ("__array_interface__", "__array_struct__", "__array__")):
        return Source(_from_array(obj), obj)
    raise TypeError(_no_memory(kind))


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _no_memory(kind: type) -> str:
    if hasattr(kind, "__cuda_array_interface__"):
        cure = "it lies in device memory already: give it to the framework as it is"
    else:
        cure = "make an array of it with numpy.asarray(x), which copies lists and numbers, and wrap that"
    return f"cannot wrap a {_name(kind)}: it is no host array or buffer; {cure}"


def _no_copy(kind: type, why: str) -> str:
    cure = _CURES.get(_package(kind).removesuffix("lib"), "wrap numpy.array(x), a copy")
    return f"cannot wrap a {_name(kind)}: {why}; {cure}"


# ---- DLPack ----


def _from_producer(obj: Any) -> Array:
    kind = type(obj)
    try:
        device_type = int(obj.__dlpack_device__()[0])
        if device_type not in {_CPU, _CUDA_HOST}:
            raise TypeError(_no_memory_of_device(kind, device_type))
        tensor = take_tensor(_ask(obj), obj)
    except (BufferError, ValueError, RuntimeError, NotImplementedError) as error:
        raise BufferError(_no_copy(kind, f"it cannot be exported ({error})")) from error
    return _checked(kind, tensor)


def _ask(obj: Any) -> object:
    # JAX on the CPU computes in the background; others have no such method.
    wait = getattr(obj, "block_until_ready", None)
    if callable(wait):
        wait()
    try:
        return obj.__dlpack__(max_version=NEWEST)
    except TypeError as error:
        # pyarrow's refusals are of this type too.
        if type(error) is not TypeError:
            raise BufferError(str(error)) from error
    return obj.__dlpack__()


def _checked(kind: type, tensor: Tensor) -> Array:
    lanes = tensor.dtype[2]
    if lanes != 1:
        raise BufferError(_no_copy(kind, f"NumPy has no vectors of {lanes} lanes"))
    return as_array(tensor)


def _no_memory_of_device(kind: type, device_type: int) -> str:
    return (
        f"cannot wrap a {_name(kind)}: it is no host array, it lies in device memory already (DLPack's device type "
        f"{device_type}): give it to the framework as it is"
    )


# ---- pyarrow ----


def _open_chunks(obj: Any) -> Source:
    chunks = obj.chunks
    if len(chunks) != 1:
        raise BufferError(
            f"cannot wrap a {_name(type(obj))} of {len(chunks)} chunks: they lie apart; "
            "wrap each of x.chunks, or x.combine_chunks(), a copy"
        )
    return open_source(chunks[0])


# ---- buffers ----


def _buffer(obj: Any) -> memoryview | None:
    """Return a view of an object with the buffer protocol, None of any other."""
    try:
        return memoryview(_shared_buffer(obj))
    except TypeError:
        return None
    except ValueError as error:
        raise ValueError(
            f"cannot wrap a released {type(obj).__name__} ({error}); wrap before release() or close()"
        ) from error


def _shared_buffer(obj: Any) -> Any:
    shared_memory = sys.modules.get("multiprocessing.shared_memory")
    if shared_memory is None or not isinstance(obj, shared_memory.SharedMemory):
        return obj
    if obj.buf is None:
        raise ValueError("its buf is None")
    return obj.buf


def _from_buffer(kind: type, view: memoryview) -> Array:
    try:
        return np.asarray(view)
    except (ValueError, BufferError) as error:
        raise BufferError(
            f"cannot export a {kind.__name__} of format {view.format!r}: NumPy cannot read it ({error}); "
            "wrap numpy.frombuffer(x, numpy.uint8), or a contiguous copy"
        ) from error


# ---- NumPy's own protocols ----


def _from_array(obj: object) -> Array:
    """Ask twice: who copies gives other memory each time, and the GPU would write to what nobody sees."""
    kind = type(obj)
    try:
        array, again = np.asarray(obj), np.asarray(obj)
    except Exception as error:
        raise BufferError(_no_copy(kind, f"NumPy cannot read it ({error})")) from error
    if array.nbytes and address(array) != address(again):
        raise BufferError(_no_copy(kind, "it gives NumPy a copy, not its own memory"))
    return array
