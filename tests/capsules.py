"""A consumer of DLPack capsules in ctypes that looks at every field, and can misbehave."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetDestructor.argtypes = [ctypes.py_object, ctypes.c_void_p]


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = (("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    )


# Names must outlive the capsules that point at them.
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


def name_of(capsule: object) -> bytes:
    return _api.PyCapsule_GetName(capsule)


@dataclass
class Imported:
    """What a well-mannered consumer has after taking a capsule."""

    managed: Any
    address: int

    @property
    def tensor(self) -> DLTensor:
        return self.managed.dl_tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.tensor.strides[: self.tensor.ndim])

    @property
    def device(self) -> tuple[int, int]:
        return (self.tensor.device_type, self.tensor.device_id)

    @property
    def dtype(self) -> tuple[int, int, int]:
        return (self.tensor.code, self.tensor.bits, self.tensor.lanes)

    def as_array(self, dtype: object) -> np.ndarray:
        """The memory as NumPy sees it, without keeping anything alive."""
        dtype = np.dtype(dtype)
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1
        raw = (ctypes.c_char * (reach * dtype.itemsize)).from_address(self.tensor.data)
        flat = np.frombuffer(raw, dtype=dtype)
        return np.lib.stride_tricks.as_strided(flat, self.shape, [s * dtype.itemsize for s in self.strides])

    def delete(self) -> None:
        """Call the deleter, without the GIL as most consumers do."""
        DELETER(self.managed.deleter)(self.address)


def look(capsule: object) -> Imported:
    """Read an unconsumed capsule and leave it so."""
    name = name_of(capsule)
    address = _api.PyCapsule_GetPointer(capsule, name)
    kind = Versioned if name == b"dltensor_versioned" else Legacy
    return Imported(kind.from_address(address), address)


def take(capsule: object, *, clear_destructor: bool = False) -> Imported:
    """Consume a capsule: rename it, and be responsible for calling the deleter."""
    imported = look(capsule)
    _api.PyCapsule_SetName(capsule, USED[name_of(capsule)])
    if clear_destructor:
        _api.PyCapsule_SetDestructor(capsule, None)
    return imported
