"""`host_view`: the reverse direction, a NumPy view of memory that a GPU framework has and the host can read.

Copies nothing. The view keeps what it was made of; nothing is lent, so that there is nothing to give back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlwrap import _driver, _streams
from dlwrap._buffer import HostWrappedBuffer
from dlwrap._imported import NEWEST, Tensor, as_array, take_tensor
from dlwrap._lifetime import manager
from dlwrap._sources import open_source
from dlwrap._support import choose_device

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_CPU, _CUDA, _CUDA_HOST, _MANAGED = 1, 2, 3, 13  # DLDeviceType
_OF_CUDA = (_CUDA, _CUDA_HOST, _MANAGED)
_NO_STREAM = -1  # of __dlpack__: the producer adds nothing to a stream, because the device is waited for

# By package: how its arrays are copied to the host.
_CURES = {"torch": "x.cpu()", "cupy": "cupy.asnumpy(x)", "numba": "x.copy_to_host()", "jax": "numpy.asarray(x)"}


def host_view(obj: Any) -> Array:
    """Give a NumPy view of memory that a GPU framework works with and that the host can read, after the work so far.

    That is managed memory, page-locked host memory, and so also a tensor that a framework made of a
    `HostWrappedBuffer`. The view keeps its owner, so that it may outlive every other reference. It knows nothing of
    work that is submitted later: call `host_view` again, or wait for that work, before reading what it writes.

    Parameters
    ----------
    obj : object
        With ``__cuda_array_interface__``, such as arrays of CuPy and numba; or a DLPack producer, such as torch's
        tensors; or a `HostWrappedBuffer`.

    Returns
    -------
    ndarray
        Read-only where ``obj`` says so.

    Raises
    ------
    BufferError
        It is device memory, which the host cannot read; or memory that the driver knows nothing of, as of a tensor over
        pageable memory; or the GPU cannot share managed memory while it works; or NumPy has no such dtype.
    CudaError
        No driver, or no device.
    DLWrapError
        The GPU failed, so that nobody knows whether its work has ended.
    RuntimeError
        A stream that has to be waited for captures; in a forked child; or while the interpreter exits.
    TypeError
        It has neither interface.

    Notes
    -----
    Waits for the stream that ``__cuda_array_interface__`` tells, where dlwrap can know that it is alive, else for
    everything on the device; for NumPy arrays and ordinary tensors of the CPU, not at all.
    """
    if isinstance(obj, HostWrappedBuffer):
        return as_array(take_tensor(obj.__dlpack__(max_version=NEWEST, dl_device=(_CPU, 0)), obj))
    interface, device_type = _cuda_interface(obj), _dlpack_device_type(obj)
    if interface is not None:
        pointer = int(interface["data"][0])
        place = _find(obj, pointer)
        told = interface.get("stream")
        # DLPack's tensor cannot be changed under the view.
        if told is not None or device_type not in _OF_CUDA or hasattr(obj, "block_until_ready"):
            _wait(place, told)
            return _view(obj, interface, pointer if place is None else place.address)
    if device_type in _OF_CUDA:
        return _from_dlpack(obj, device_type)
    if device_type == _CPU:
        return open_source(obj).array.view(np.ndarray)
    raise TypeError(_no_view(obj, device_type))


class _Place(NamedTuple):
    address: int
    device: int


def _no_view(obj: object, device_type: int | None) -> str:
    name = _name(obj)
    if device_type is not None:
        return f"cannot view a {name}: its memory is on DLPack's device type {device_type}, which is not CUDA's"
    return f"cannot view a {name}: it has neither __cuda_array_interface__ nor DLPack; wrap() takes host arrays"


def _name(obj: object) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def _cuda_interface(obj: Any) -> dict[str, Any] | None:
    try:
        interface = getattr(obj, "__cuda_array_interface__", None)
    except Exception:  # noqa: BLE001 -- torch raises several classes, for tensors of the CPU and others; DLPack says why
        return None
    return interface if isinstance(interface, dict) else None


def _dlpack_device_type(obj: Any) -> int | None:
    kind = type(obj)
    if not (hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")):
        return None
    try:
        return int(obj.__dlpack_device__()[0])
    except Exception as error:
        raise BufferError(f"cannot view a {_name(obj)}: it cannot be exported ({error})") from error


# ---- where the memory is ----


def _find(obj: object, pointer: int) -> _Place | None:
    """Find where the host reads an address; None for that of no elements, 0."""
    manager().check_usable("view memory of a GPU")
    if pointer == 0:
        return None
    with _driver.relaxed(), _driver.primary_context(choose_device(None)):
        place = _driver.find_place(pointer)
    if place is None:
        raise BufferError(
            f"cannot view a {_name(obj)}: the driver knows nothing of its memory at {pointer:#x}; if it was made of "
            "wrap(a) on a device that reads pageable memory, use a itself, after a synchronize()"
        )
    if place.host_address is None:
        cure = _CURES.get(type(obj).__module__.partition(".")[0], "a copy of your framework on the host")
        raise BufferError(
            f"cannot view a {_name(obj)}: it lies in the memory of device {place.device}, which the host cannot read; "
            f"use {cure}"
        )
    if place.is_managed and not _driver.attribute(place.device, "CONCURRENT_MANAGED_ACCESS"):
        raise BufferError(
            f"cannot view a {_name(obj)}: the host faults on managed memory while device {place.device} works "
            "(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 0); use a copy"
        )
    return _Place(place.host_address, place.device)


def _wait(place: _Place | None, told: object) -> None:
    if place is None:
        return
    stream = _streams.find_told_stream(_streams.check_told_stream(told), place.device)
    manager().wait_for(place.device, stream, "host_view()")


# ---- the two interfaces ----


class _Memory:
    """Shows NumPy the memory of an object, and keeps the object."""

    def __init__(self, obj: object, interface: dict[str, Any]) -> None:
        self._kept = obj
        self.__array_interface__ = interface


def _view(obj: object, interface: dict[str, Any], address: int) -> Array:
    if interface.get("mask") is not None:
        raise BufferError(f"cannot view a {_name(obj)} with a mask: NumPy's views have none; view the data of it")
    shape = tuple(interface["shape"])
    readonly = bool(interface["data"][1])
    try:
        kind: np.dtype[Any] = np.dtype(interface["typestr"])
    except TypeError as error:
        raise BufferError(f"cannot view a {_name(obj)}: NumPy has no dtype {interface['typestr']!r}") from error
    if 0 in shape:
        empty = np.empty(shape, kind)
        empty.flags.writeable = not readonly
        return empty
    strides = interface.get("strides")
    shown = {
        "version": 3,
        "data": (address, readonly),
        "shape": shape,
        "strides": None if strides is None else tuple(strides),
        "typestr": kind.str,
        "descr": interface.get("descr") or kind.descr,
    }
    return np.asarray(_Memory(obj, shown))


def _from_dlpack(obj: Any, device_type: int) -> Array:
    tensor = _take(obj, device_type)
    lanes = tensor.dtype[2]
    if lanes != 1:
        raise BufferError(f"cannot view a {_name(obj)}: NumPy has no vectors of {lanes} lanes")
    place = None if 0 in tensor.shape else _find(obj, tensor.address)
    _wait(place, None)
    return as_array(tensor if place is None else tensor._replace(address=place.address))


def _take(obj: Any, device_type: int) -> Tensor:
    told = {"stream": _NO_STREAM} if device_type in {_CUDA, _MANAGED} else {}
    try:
        return take_tensor(_ask(obj, told), obj)
    except (BufferError, ValueError, RuntimeError, TypeError) as error:
        raise BufferError(f"cannot view a {_name(obj)}: it cannot be exported ({error})") from error


def _ask(obj: Any, told: dict[str, int]) -> object:
    """Ask for the newest form that the producer knows; without a stream it may add something to its own."""
    for arguments in ({"max_version": NEWEST, **told}, told):
        try:
            return obj.__dlpack__(**arguments)
        except TypeError:
            continue
    return obj.__dlpack__()


host_view.__module__ = "dlwrap"
