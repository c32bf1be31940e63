"""`open_safetensors`: the tensors of a safetensors file, as NumPy arrays over one mapping of it.

The format is that of https://github.com/huggingface/safetensors: 8 bytes with the length of a JSON header, the header,
the data without holes. The header is checked before anything is mapped; the data is never looked at.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, NoReturn

import numpy as np

from dlwrap._dtypes import as_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import numpy.typing as npt

_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_ACCESS = {"r": mmap.ACCESS_READ, "c": mmap.ACCESS_COPY}

# What the format calls a type: its bits, and NumPy's name, if it has one that is laid out like that.
_TYPES: dict[str, tuple[int, str | None]] = {
    "BOOL": (8, "bool"),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "U16": (16, "uint16"),
    "I16": (16, "int16"),
    "U32": (32, "uint32"),
    "I32": (32, "int32"),
    "U64": (64, "uint64"),
    "I64": (64, "int64"),
    "F16": (16, "float16"),
    "F32": (32, "float32"),
    "F64": (64, "float64"),
    "C64": (64, "complex64"),
    "BF16": (16, "bfloat16"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "F4": (4, None),
}


class Entry(NamedTuple):
    """What the header says of a tensor; the offsets are bytes from the beginning of the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def open_safetensors(path: str | os.PathLike[str], *, mode: Literal["r", "c"] = "r") -> Safetensors:
    """Map a safetensors file; its tensors are NumPy arrays over the mapping, which `wrap` takes without a copy.

    Nothing is read but the header: the kernel brings pages when they are touched, or page-locked.

    Parameters
    ----------
    path : path_like
        The file; while it is mapped nobody may shorten it.
    mode : {"r", "c"}
        "r": read-only. "c": the arrays can be written to, and the changes are never seen by the file.

    Returns
    -------
    Safetensors
        A mapping of names to arrays.

    Raises
    ------
    OSError
        The file cannot be opened or mapped.
    ValueError
        It is no safetensors file, or ``mode`` is wrong.
    """
    if mode not in _ACCESS:
        raise ValueError(f"mode must be 'r' or 'c', got {mode!r}")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        entries, metadata, begin = _read_header(file, size)
        mapped = mmap.mmap(file.fileno(), size, access=_ACCESS[mode])
    return Safetensors(os.fspath(path), np.frombuffer(mapped, np.uint8)[begin:], entries, metadata)


class Safetensors(Mapping[str, "npt.NDArray[Any]"]):
    """The tensors of a safetensors file by name, as NumPy arrays over one mapping; made by `open_safetensors`.

    The mapping stays until this is closed or collected, every array is gone, and the GPU is done with what was wrapped.

    Attributes
    ----------
    path : str
        The file.
    metadata : dict of str to str
        The header's ``__metadata__``; empty where it has none.
    """

    def __init__(
        self, path: str, data: npt.NDArray[np.uint8], entries: dict[str, Entry], metadata: dict[str, str]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self._entries = entries
        self._data: npt.NDArray[np.uint8] | None = data

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """All bytes of all tensors: ``dlwrap.pin(f.data)`` page-locks them once, so that wraps of each are free.

        Raises
        ------
        ValueError
            The file is closed.
        """
        if self._data is None:
            raise ValueError(f"{self.path} is closed: open it again")
        return self._data

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._data is None

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Give a tensor; where the file has not aligned it to its elements, NumPy can use it and `wrap` refuses it.

        Raises
        ------
        BufferError
            NumPy has no such elements: bfloat16 and float8 need ml_dtypes, and 4 and 6 bits there are none of.
        KeyError
            There is no such tensor.
        ValueError
            The file is closed.
        """
        entry = self._entries[name]
        kind = self._dtype_of(name, entry)
        raw = self.data[entry.start : entry.stop]
        return raw.view(kind).reshape(entry.shape)

    def _dtype_of(self, name: str, entry: Entry) -> np.dtype[Any]:
        known = _TYPES[entry.dtype][1]
        if known is None:
            raise BufferError(
                f"cannot give tensor {name!r} as an array: NumPy has no packed elements of type {entry.dtype}; "
                f"use f.data[{entry.start}:{entry.stop}], its bytes"
            )
        return as_dtype(known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Let go of the mapping; arrays that were taken, and what the GPU makes of them, keep it."""
        self._data = None

    def __enter__(self) -> Safetensors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} tensors"
        return f"<dlwrap.Safetensors {self.path!r} {state}>"


# ---- the header ----


def _read_header(file: BinaryIO, size: int) -> tuple[dict[str, Entry], dict[str, str], int]:
    """Give the tensors, the metadata, and where the data begins."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
        raise ValueError(
            f"no safetensors file: its {size} bytes are too few for 8 of a length and a header of {length}; "
            "is it complete?"
        )
    if length > _LONGEST_HEADER:
        raise ValueError(f"no safetensors file: a header of {length} bytes, and the format allows {_LONGEST_HEADER}")
    header = _parse(file.read(length))
    metadata = _check_metadata(header.pop(_METADATA, {}))
    entries = {name: _check_entry(name, described) for name, described in header.items()}
    begin = _LENGTH_BYTES + length
    _check_coverage(entries, size - begin)
    return entries, metadata, begin


def _parse(header: bytes) -> dict[str, Any]:
    try:
        if not header.startswith(b"{"):
            raise ValueError("it does not begin with '{'")
        parsed = json.loads(header, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no safetensors file: its header cannot be read ({error})") from error
    return dict(parsed)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _check_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"no safetensors file: {_METADATA} must map strings to strings")
    return metadata


def _check_entry(name: str, described: Any) -> Entry:
    """Check what the header says of a tensor by itself."""
    if not isinstance(described, dict) or not described.keys() >= {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"no safetensors file: tensor {name!r} must have dtype, shape and data_offsets")
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise ValueError(f"cannot read tensor {name!r} of dtype {dtype!r}: dlwrap knows {', '.join(_TYPES)}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"no safetensors file: shape and data_offsets of tensor {name!r} must be integers from 0 on")
    start, stop = offsets
    bits = math.prod(shape) * _TYPES[dtype][0]
    if bits != 8 * (stop - start):
        raise ValueError(
            f"no safetensors file: tensor {name!r} of {dtype} and shape {tuple(shape)} takes {bits / 8:g} bytes, "
            f"and its data_offsets {start} to {stop} are {stop - start}"
        )
    return Entry(dtype, tuple(shape), start, stop)


def _are_sizes(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**63 for number in numbers)


def _check_coverage(entries: dict[str, Entry], nbytes: int) -> None:
    """Check that the tensors fill the data, without holes and overlaps."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != at:
            what = "overlaps the one before" if entry.start < at else "leaves a hole before it"
            raise ValueError(f"no safetensors file: tensor {name!r} begins at {entry.start}, not {at}, and {what}")
        at = entry.stop
    if at != nbytes:
        raise ValueError(
            f"no safetensors file: its tensors take {at} bytes, and it has {nbytes} after the header; is it complete?"
        )


for _public in (open_safetensors, Safetensors):
    _public.__module__ = "dlwrap"
