"""A consumer in ctypes of DLPack's C exchange API."""

from __future__ import annotations

import ctypes

import dlwrap
from capsules import DLTensor, Versioned

CPU, CUDA = 1, 2
SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
# With the interpreter's lock, and raising what it raised, but for the allocator, which takes the lock by itself.
Allocator = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, SetError
)
FromPyObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
ToPyObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
ViewOfPyObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
WorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Api(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("allocate", Allocator),
        ("export", FromPyObject),
        ("import_", ToPyObject),
        ("view", ViewOfPyObject),
        ("work_stream", WorkStream),
    )


def table():
    """Look the table up on the type, as a consumer does."""
    address = ctypes.pythonapi.PyCapsule_GetPointer
    return Api.from_address(address(dlwrap.HostWrappedBuffer.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))


def export(buffer):
    out = ctypes.c_void_p()
    table().export(buffer, ctypes.byref(out))
    return Versioned.from_address(out.value)


def delete(tensor):
    Deleter(tensor.deleter)(ctypes.addressof(tensor))


def import_(tensor):
    out = ctypes.c_void_p()
    table().import_(ctypes.addressof(tensor), ctypes.byref(out))
    made = ctypes.cast(out, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(made))
    return made


def view(buffer):
    out = DLTensor()
    table().view(buffer, ctypes.byref(out))
    return out


def work_stream(device_type=CUDA, device=0):
    out = ctypes.c_void_p(99)
    table().work_stream(device_type, device, ctypes.byref(out))
    return out.value or 0
