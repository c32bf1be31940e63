"""A DLPack producer in ctypes, every field of which can be chosen, that counts what becomes of its tensors."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from capsules import DELETER, Legacy, Versioned

_api = ctypes.pythonapi
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))


class Producer:
    """Exports an array by DLPack, as often as it is asked, with whatever the test wants to be said of it."""

    def __init__(
        self,
        array: np.ndarray,
        *,
        dtype: tuple[int, int, int] = (2, 32, 1),
        device: tuple[int, int] = (1, 0),
        flags: int = 0,
        byte_offset: int = 0,
        with_strides: bool = True,
        version: tuple[int, int] | None = (1, 1),
    ) -> None:
        array = np.asarray(array)
        self._array, self._dtype, self._device, self._flags = array, dtype, device, flags
        self._byte_offset, self._with_strides, self._version = byte_offset, with_strides, version
        self._tensors: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.deleted = 0
        self.dropped = 0  # capsules that nobody consumed
        self._deleter = DELETER(self._delete)
        self._destructor = _DESTRUCTOR(self._drop)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **asked: Any) -> object:
        self.asked.append(asked)
        if self._version is None and asked:
            raise TypeError(f"__dlpack__() got an unexpected keyword argument {next(iter(asked))!r}")
        tensor = Legacy() if self._version is None else Versioned()
        if self._version is not None:
            tensor.major, tensor.minor = self._version
            tensor.flags = self._flags
        tensor.manager_ctx, tensor.deleter = 1, ctypes.cast(self._deleter, ctypes.c_void_p)
        array, seen = self._array, tensor.dl_tensor
        seen.data = array.ctypes.data - self._byte_offset
        seen.byte_offset = self._byte_offset
        seen.device_type, seen.device_id = self._device
        seen.code, seen.bits, seen.lanes = self._dtype
        seen.ndim = array.ndim
        seen.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        if self._with_strides:
            seen.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        self._tensors.append(tensor)
        name = b"dltensor" if self._version is None else b"dltensor_versioned"
        return _new(ctypes.addressof(tensor), _NAMES[name], ctypes.cast(self._destructor, ctypes.c_void_p))

    def _delete(self, _tensor: int) -> None:
        self.deleted += 1

    def _drop(self, capsule: int) -> None:
        self.dropped += any(_is_valid(capsule, name) for name in _NAMES)


_NAMES = {name: name for name in (b"dltensor", b"dltensor_versioned")}  # they must outlive the capsules


def plain(shape: tuple[int, ...] = (3, 4), **said: Any) -> Producer:
    """A producer of float32 0, 1, 2, ..."""
    return Producer(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), **said)
