"""Which CUDA device is meant by what frameworks call a device: its ordinal, found without importing any of them.

Objects are told by their class's package and name. This module asks no driver, and doesn't check that there is such a
device.
"""

from __future__ import annotations

import numbers
import re
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

# Any: an object that some framework has for a device.
DeviceLike: TypeAlias = "int | str | tuple[int, int] | Any"

_CUDA = 2  # kDLCUDA of DLPack


def find_ordinal(device: object) -> int | None:
    """Find the ordinal of what is given as a device; None where the current one is meant.

    Raises
    ------
    TypeError
        It is nothing that names a device.
    ValueError
        It names a device that is no CUDA device.
    """
    if isinstance(device, numbers.Integral) and not isinstance(device, bool):
        return int(device)
    if isinstance(device, str):
        return _of_name(device)
    if isinstance(device, tuple):
        return _of_pair(device)
    # Not type(): numba hands out weak proxies of its devices.
    for base in device.__class__.__mro__:
        find = _FINDERS.get((base.__module__.partition(".")[0], base.__name__))
        if find is not None:
            return find(device)
    raise TypeError(
        f"device must be an ordinal, 'cuda', 'cuda:1', (2, ordinal) as of DLPack, or a device of torch, CuPy, numba, "
        f"cuda.core, JAX, Warp or tvm-ffi, got {type(device).__name__}: pass its ordinal"
    )


def _of_name(device: str) -> int | None:
    """Read torch's names; without a number they mean the current device."""
    found = re.fullmatch(r"cuda(?::(\d+))?", device, re.ASCII)
    if found is None:
        raise _no_cuda_device(device)
    return None if found[1] is None else int(found[1])


def _of_pair(device: tuple[object, ...]) -> int:
    """Read what ``__dlpack_device__`` gives, (type, ordinal)."""
    match device:
        case (int(kind), int(ordinal)) if kind == _CUDA:
            return int(ordinal)
    raise _no_cuda_device(device)


def _of_torch(device: Any) -> int | None:
    if device.type != "cuda":
        raise _no_cuda_device(device)
    if device.index is not None:
        return int(device.index)
    # torch's current device is the context's, but where it left a device for one that has no context yet.
    torch: Any = sys.modules["torch"]
    return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else None


def _of_tvm_ffi(device: Any) -> int:
    if device.type != "cuda":
        raise _no_cuda_device(device)
    return int(device.index)


def _of_jax(device: Any) -> int:
    if device.platform not in {"gpu", "cuda"}:
        raise _no_cuda_device(device)
    # Not id, which counts the devices of all processes.
    return int(device.local_hardware_id)


def _of_warp(device: Any) -> int:
    if not device.is_cuda:
        raise _no_cuda_device(device)
    return int(device.ordinal)


def _by_id(device: Any) -> int:
    return int(device.id)


def _by_device_id(device: Any) -> int:
    return int(device.device_id)


def _no_cuda_device(device: object) -> ValueError:
    return ValueError(f"device must be the CUDA device that uses the memory, got {device!r}: pass 'cuda' or 'cuda:1'")


# By the package and the name of the class; modules in between change from version to version.
_FINDERS: dict[tuple[str, str], Callable[[Any], int | None]] = {
    ("torch", "device"): _of_torch,
    ("cupy", "Device"): _by_id,
    ("numba", "Device"): _by_id,
    ("numba", "_DeviceContextManager"): _by_id,  # numba.cuda.gpus[0]
    ("cuda", "Device"): _by_device_id,  # cuda.core
    ("cuda", "CUdevice"): int,  # cuda.bindings
    ("jaxlib", "Device"): _of_jax,
    ("warp", "Device"): _of_warp,
    ("tvm_ffi", "Device"): _of_tvm_ffi,
}
