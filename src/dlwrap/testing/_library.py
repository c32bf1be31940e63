"""The simulated driver's C library: finds, loads and declares it; knows nothing of what the calls are for.

The library is a ``libcuda.so.1`` by its SONAME, so whoever asks the dynamic loader for that name afterwards,
such as ``cuda.bindings``, is given this one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys

SUCCESS = 0


class Settings(ctypes.Structure):
    """How the simulated devices behave; the same struct as in ``simcuda/sim.h``."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "devices",
            "pageable",
            "host_page_tables",
            "host_register",
            "read_only_register",
            "pointer_offset",
            "driver_version",
            "compute_major",
            "compute_minor",
            "abort_on_dead_handle",
            "strict",
            "unregister_blocks_launches",
            "concurrent_managed",
        )
    )


class LoggedCall(ctypes.Structure):
    """One driver call; the same struct as in ``simcuda/control.h``."""

    _fields_ = (
        ("function", ctypes.c_int32),
        ("thread_id", ctypes.c_int32),
        ("gil_held", ctypes.c_int32),
        ("thread_name", ctypes.c_char * 16),
    )


class ListedRegistration(ctypes.Structure):
    """One page-locked range; the same struct as in ``simcuda/control.h``."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
    )


_RESULT = ctypes.c_int
_HANDLE = ctypes.c_void_p
_NAME = ctypes.c_char_p

_PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "configure": (_RESULT, (ctypes.POINTER(Settings),)),
    "reset": (_RESULT, (ctypes.POINTER(Settings), ctypes.c_int)),
    "create_stream": (_RESULT, (ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_HANDLE))),
    "destroy_stream": (_RESULT, (_HANDLE,)),
    "hold": (_RESULT, (_HANDLE,)),
    "let_go": (_RESULT, (_HANDLE,)),
    "launch": (_RESULT, (_HANDLE, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int)),
    "launch_graph": (_RESULT, (_HANDLE, _HANDLE)),
    "instantiate": (_RESULT, (_HANDLE, ctypes.POINTER(_HANDLE))),
    "launch_exec": (_RESULT, (_HANDLE, _HANDLE)),
    "clone_graph": (_RESULT, (_HANDLE, ctypes.POINTER(_HANDLE))),
    "destroy_graph": (_RESULT, (_HANDLE,)),
    "destroy_exec": (_RESULT, (_HANDLE,)),
    "user_references": (ctypes.c_uint64, ()),
    "user_objects_alive": (ctypes.c_size_t, ()),
    "hold_destructors": (None, (ctypes.c_int,)),
    "wait_for_destructors": (ctypes.c_int, (ctypes.c_double,)),
    "pending": (ctypes.c_size_t, (_HANDLE, ctypes.c_int)),
    "begin_capture": (_RESULT, (_HANDLE, ctypes.c_int)),
    "end_capture": (_RESULT, (_HANDLE, ctypes.POINTER(_HANDLE))),
    "capture_status": (_RESULT, (_HANDLE, ctypes.POINTER(ctypes.c_int))),
    "registrations": (ctypes.c_size_t, (ctypes.POINTER(ListedRegistration), ctypes.c_size_t)),
    "device_address": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "knows": (ctypes.c_int, (_NAME,)),
    "fail": (_RESULT, (_NAME, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)),
    "clear_failures": (None, ()),
    "count": (ctypes.c_uint64, (_NAME,)),
    "calls": (ctypes.c_size_t, (ctypes.c_size_t, ctypes.POINTER(LoggedCall), ctypes.c_size_t)),
    "clear_calls": (None, ()),
    "function_name": (ctypes.c_char_p, (ctypes.c_int,)),
    "pause": (_RESULT, (_NAME, ctypes.c_int)),
    "waiting": (ctypes.c_uint, (_NAME,)),
    "wait_until_paused": (ctypes.c_int, (_NAME, ctypes.c_uint, ctypes.c_double)),
    "host_allocate": (ctypes.c_void_p, (ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))),
    "host_free": (None, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)),
    "host_count_anew": (None, ()),
    "host_alive": (ctypes.c_size_t, ()),
}


def why_not_loadable() -> str | None:
    """Say why the simulated driver cannot be loaded into this process, or None if it can."""
    if not sys.platform.startswith("linux"):
        return f"the simulated CUDA driver needs Linux, not {sys.platform}"
    try:
        ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return None
    return "a real libcuda.so.1 is loaded in this process already: activate the simulated one before any CUDA call"


def load() -> ctypes.CDLL:
    """Load the library for the whole process and declare its control functions."""
    spec = importlib.util.find_spec("dlwrap.testing._simcuda")
    if spec is None or spec.origin is None:
        raise RuntimeError("dlwrap was built without its simulated CUDA driver: install it again with a C compiler")
    library = ctypes.CDLL(spec.origin, mode=ctypes.RTLD_GLOBAL)
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, f"dlwrap_sim_{name}")
        function.restype = result
        function.argtypes = arguments
    return library
