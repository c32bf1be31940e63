"""NumPy dtype -> DLPack type, or why there is none and what to wrap instead.

Imports nothing of dlwrap; `ml_dtypes` only when a tensor or a user asks for one of its types.
"""

from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple

import numpy as np

# DLDataTypeCode of dlpack.h 1.3
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6


class DType(NamedTuple):
    """The type of one element, as DLPack's ``DLDataType`` spells it.

    Attributes
    ----------
    code : int
        ``DLDataTypeCode``.
    bits : int
        Bits of one lane.
    lanes : int
        1, as NumPy has no vector types.
    """

    code: int
    bits: int
    lanes: int

    @property
    def is_numpy_type(self) -> bool:
        """Whether NumPy itself has the type, so that there is a typestr for it."""
        return self.code in {_INT, _UINT, _FLOAT, _COMPLEX, _BOOL}


def _types(code: int, *scalars: type[np.generic]) -> dict[type, DType]:
    return {scalar: DType(code, 8 * np.dtype(scalar).itemsize, 1) for scalar in scalars}


# Keyed by the C types, because numpy.longlong and numpy.int_ are different types of the same size.
_NUMPY: dict[type, DType] = {
    **_types(_BOOL, np.bool_),
    **_types(_INT, np.byte, np.short, np.intc, np.int_, np.longlong),
    **_types(_UINT, np.ubyte, np.ushort, np.uintc, np.uint, np.ulonglong),
    **_types(_FLOAT, np.float16, np.float32, np.float64),
    **_types(_COMPLEX, np.complex64, np.complex128),
}

_ML_DTYPES: dict[str, DType] = {
    "bfloat16": DType(_BFLOAT, 16, 1),
    "float8_e3m4": DType(7, 8, 1),
    "float8_e4m3": DType(8, 8, 1),
    "float8_e4m3b11fnuz": DType(9, 8, 1),
    "float8_e4m3fn": DType(10, 8, 1),
    "float8_e4m3fnuz": DType(11, 8, 1),
    "float8_e5m2": DType(12, 8, 1),
    "float8_e5m2fnuz": DType(13, 8, 1),
    "float8_e8m0fnu": DType(14, 8, 1),
}

_NO_STRINGS = "DLPack has no strings"
_NO_DATES = "DLPack has no dates"
_REFUSED: dict[type, tuple[str, str]] = {
    np.object_: ("its elements are pointers to Python objects", "a.astype(numpy.float64)"),
    np.bytes_: (_NO_STRINGS, "a.view(numpy.uint8)"),
    np.str_: (_NO_STRINGS, "a.view(numpy.uint32), the code points"),
    str: (_NO_STRINGS, "the numbers they stand for"),
    np.void: ("DLPack has no raw bytes", "a.view(numpy.uint8)"),
    np.datetime64: (_NO_DATES, "a.view(numpy.int64)"),
    np.timedelta64: (_NO_DATES, "a.view(numpy.int64)"),
    np.longdouble: ("no GPU has a float of that width", "a.astype(numpy.float64)"),
    np.clongdouble: ("no GPU has a float of that width", "a.astype(numpy.complex128)"),
}
_STRUCTURED = ("DLPack has no records", "numpy.ascontiguousarray(a[field]) of one field")
_SUB_BYTE = ("NumPy keeps one element in a byte, GPU frameworks pack several", "a.view(numpy.uint8)")
_UNKNOWN = ("DLPack has no type for it", "a.view(numpy.uint8), or a.astype(numpy.float32)")


def plain_dtypes() -> tuple[tuple[np.dtype[Any], DType], ...]:
    """Give NumPy's own dtype objects, of which there is one for each type, with their DLPack types."""
    return tuple((np.dtype(scalar), name) for scalar, name in _NUMPY.items())


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Give NumPy's dtype for a DLPack type.

    Raises
    ------
    BufferError
        There is none, or its package is not installed.
    """
    for scalar, known in _NUMPY.items():
        if known == dtype:
            return np.dtype(scalar)
    for name, known in _ML_DTYPES.items():
        if known == dtype:
            return _import_dtype(name)
    raise BufferError(f"NumPy has no dtype for DLPack's {dtype}: view the tensor as one of NumPy's types")


def as_dtype(dtype: object) -> np.dtype[Any]:
    """Give NumPy's dtype for what a user names one by: NumPy's ways, and torch's and JAX's types.

    Raises
    ------
    BufferError
        The package of its type is not installed.
    TypeError
        It is no dtype.
    """
    name = str(dtype).rpartition(".")[2] if type(dtype).__module__ == "torch" else dtype
    if isinstance(name, str) and name in _ML_DTYPES:
        return _import_dtype(name)
    try:
        made: np.dtype[Any] = np.dtype(name)  # type: ignore[call-overload]
    except TypeError as error:
        raise TypeError(f"dtype must be a dtype of NumPy, ml_dtypes, torch or JAX, got {dtype!r}") from error
    return made


def typestr(dtype: np.dtype[Any]) -> str:
    """Give what the array interface calls a dtype; those of ml_dtypes it calls bytes, to be viewed as what they are."""
    return dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}"


def _import_dtype(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes  # noqa: PLC0415 -- optional
    except ModuleNotFoundError:
        raise BufferError(f"NumPy has no dtype {name}: pip install ml_dtypes, which has") from None
    scalar = getattr(ml_dtypes, name, None)
    if scalar is None:
        raise BufferError(f"this ml_dtypes has no {name}: pip install --upgrade ml_dtypes")
    made: np.dtype[Any] = np.dtype(scalar)
    return made


def dlpack_type(dtype: np.dtype[Any]) -> DType:
    """Return the DLPack type of a NumPy dtype.

    Raises
    ------
    BufferError
        DLPack, or its consumers on a GPU, have no such type, or the byte order is not this machine's.
    """
    found = _NUMPY.get(dtype.type) or _ml_dtypes_type(dtype.type)
    if found is None or dtype.fields is not None:
        raise BufferError(_refusal(dtype))
    if not dtype.isnative:
        raise BufferError(
            f"cannot export dtype {dtype.str}: DLPack has only this machine's byte order; "
            "wrap a.astype(a.dtype.newbyteorder('='))"
        )
    return found


def _ml_dtypes_type(scalar: type) -> DType | None:
    # The type itself is compared: another package's class of that name may mean another format.
    if getattr(sys.modules.get("ml_dtypes"), scalar.__name__, None) is scalar:
        return _ML_DTYPES.get(scalar.__name__)
    return None


def _refusal(dtype: np.dtype[Any]) -> str:
    if dtype.fields is not None:
        why, cure = _STRUCTURED
    elif re.match(r"u?int[124]$|float[46]_", dtype.type.__name__):
        why, cure = _SUB_BYTE
    else:
        why, cure = _REFUSED.get(dtype.type, _UNKNOWN)
    return f"cannot export dtype {dtype}: {why}; wrap {cure}"
