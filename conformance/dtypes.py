"""DLPack's names of element types, and NumPy's."""

from __future__ import annotations

import numpy as np

from conformance.cannot import CannotBeAskedError

# name: code, bits (DLPack 1.3, DLDataTypeCode)
CODES: dict[str, tuple[int, int]] = {
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "bool": (6, 8),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
NAMES = {code: name for name, code in CODES.items()}
FLOAT8 = tuple(name for name in CODES if name.startswith("float8"))
OF_ML_DTYPES = ("bfloat16", *FLOAT8)


def numpy_type(name: str) -> np.dtype:
    """Give the NumPy type of a name; those that NumPy lacks come of ml_dtypes."""
    if name not in OF_ML_DTYPES:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise CannotBeAskedError(f"{name} needs ml_dtypes: {error}") from error
    if not hasattr(ml_dtypes, name):
        raise CannotBeAskedError(f"this ml_dtypes has no {name}")
    return np.dtype(getattr(ml_dtypes, name))
