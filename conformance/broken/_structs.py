"""DLPack's structs, to be written to, and the capsules they lie in."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

from conformance.building import build

DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetDestructor.restype = ctypes.c_void_p
_api.PyCapsule_GetDestructor.argtypes = [ctypes.py_object]
_api.PyCapsule_SetDestructor.argtypes = [ctypes.py_object, ctypes.c_void_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_forever: list[Any] = []  # what C points at


class Tensor(ctypes.Structure):
    """DLTensor."""

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


class Legacy(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class Table(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_py_object", ctypes.c_void_p),
        ("to_py_object", ctypes.c_void_p),
        ("view", ctypes.c_void_p),
        ("work_stream", ctypes.c_void_p),
    )


def keep(thing: Any) -> Any:
    """Keep what C points at for as long as the process lives."""
    _forever.append(thing)
    return thing


def managed(capsule: object) -> Any:
    """Open an unconsumed capsule."""
    name = _api.PyCapsule_GetName(capsule)
    kind = Versioned if name == b"dltensor_versioned" else Legacy
    return kind.from_address(_api.PyCapsule_GetPointer(capsule, name))


def extents(*values: int) -> Any:
    """Make a shape or strides."""
    return ctypes.cast(keep((ctypes.c_int64 * len(values))(*values)), ctypes.POINTER(ctypes.c_int64))


def capsule_of(address: int, name: bytes) -> Any:
    """Make a capsule without a destructor."""
    return _api.PyCapsule_New(address, keep(ctypes.c_char_p(name)), None)


def destructor_of(capsule: object) -> int:
    """Give a capsule's destructor."""
    return _api.PyCapsule_GetDestructor(capsule)


def set_destructor(capsule: object, function: Any) -> None:
    """Give a capsule another destructor, or none."""
    _api.PyCapsule_SetDestructor(capsule, function)


@functools.cache
def library() -> ctypes.CDLL:
    """Build the deleters that misbehave."""
    command = [os.environ.get("CC", "cc"), "-std=c11", "-Werror=implicit", "-O1", "-shared", "-fPIC", "-pthread"]
    loaded = ctypes.CDLL(str(build([Path(__file__).with_name("deleters.c")], command, ".so")))
    loaded.broken_remember.argtypes = [ctypes.c_void_p] * 3
    loaded.broken_remember_destructor.argtypes = [ctypes.c_void_p]
    return loaded


def function_address(name: str) -> int:
    """Give the address of one of them."""
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0


def remember(tensor: Any) -> None:
    """Note what a tensor has, before it is given another deleter."""
    field = ctypes.addressof(tensor) + type(tensor).manager_ctx.offset
    assert library().broken_remember(ctypes.addressof(tensor), tensor.deleter, field) == 0


def replace_deleter(tensor: Any, name: str) -> None:
    """Give a tensor one of the deleters that misbehave."""
    remember(tensor)
    tensor.deleter = function_address(name)


def before_deleting(tensor: Any, action: Any) -> None:
    """Have something done before a tensor is deleted, in Python."""
    original = DELETER(tensor.deleter)

    def delete(address: int) -> None:
        action()
        original(address)

    tensor.deleter = ctypes.cast(keep(DELETER(delete)), ctypes.c_void_p)
