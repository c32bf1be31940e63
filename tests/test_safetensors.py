"""safetensors files: one mapping, checked headers, tensors that are wrapped in place."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import weakref
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlwrap
from capsules import look
from patience import SECONDS


def packed(header, data=b"", *, pad=0):
    """The bytes of a file; `header` may be anything that becomes JSON, or the bytes themselves."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def write(tmp_path):
    """Write a file; give its path."""

    def write(header, data=b"", *, pad=0):
        path = tmp_path / "weights.safetensors"
        path.write_bytes(packed(header, data, pad=pad))
        return path

    return write


WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
BIASES = np.arange(5, dtype=np.int16)
HEADER = {
    "__metadata__": {"format": "np", "of": "tests"},
    "weight": entry("F32", (2, 3), (0, 24)),
    "bias": entry("I16", (5,), (24, 34)),
}
DATA = WEIGHTS.tobytes() + BIASES.tobytes()


def aligned(header=HEADER):
    """How many spaces make the data begin at a multiple of 8, as writers do."""
    return -len(json.dumps(header)) % 8


@pytest.fixture
def path(write):
    return write(HEADER, DATA, pad=aligned())


# ---- what it shows ----


def test_a_file_is_a_mapping_of_names_to_arrays(path):
    with dlwrap.open_safetensors(path) as weights:
        assert isinstance(weights, Mapping)
        assert (list(weights), len(weights), "bias" in weights, "other" in weights) == (
            ["weight", "bias"],
            2,
            True,
            False,
        )
        np.testing.assert_array_equal(weights["weight"], WEIGHTS)
        np.testing.assert_array_equal(weights["bias"], BIASES)
        assert weights.metadata == {"format": "np", "of": "tests"}
        assert repr(weights) == f"<dlwrap.Safetensors {str(path)!r} 2 tensors>"
        with pytest.raises(KeyError, match="other"):
            weights["other"]


def test_all_arrays_lie_in_one_mapping(path):
    weights = dlwrap.open_safetensors(path)
    assert weights["bias"].ctypes.data == weights["weight"].ctypes.data + 24 == weights.data.ctypes.data + 24
    assert weights["bias"].ctypes.data == weights["bias"].ctypes.data
    assert weights.data.tobytes() == DATA


def test_the_mode_decides_about_writing_and_the_file_stays_as_it_is(path):
    before = path.read_bytes()
    assert not dlwrap.open_safetensors(path, mode="r")["bias"].flags.writeable
    array = dlwrap.open_safetensors(path, mode="c")["bias"]
    array[:] = 7
    assert (array.tolist(), path.read_bytes()) == ([7] * 5, before)


DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize(("name", "scalar"), DTYPES.items(), ids=DTYPES)
def test_every_type_of_the_format_comes_as_numpy_has_it_and_can_be_wrapped(cuda, write, name, scalar):
    values = np.array([[1, 0], [1, 1]]).astype(scalar)
    header = {"x": entry(name, (2, 2), (0, values.nbytes))}
    array = dlwrap.open_safetensors(write(header, values.tobytes(), pad=aligned(header)))["x"]
    np.testing.assert_array_equal(array, values)
    assert array.dtype == np.dtype(scalar)
    with dlwrap.wrap(array) as buffer:
        assert buffer.readonly


@pytest.mark.parametrize(("name", "shape", "nbytes"), [("F4", (4,), 2), ("F6_E2M3", (4,), 3), ("F6_E3M2", (8,), 6)])
def test_packed_types_are_refused_with_their_bytes_as_the_cure(write, name, shape, nbytes):
    weights = dlwrap.open_safetensors(write({"x": entry(name, shape, (0, nbytes))}, bytes(nbytes)))
    with pytest.raises(BufferError, match=rf"no packed elements of type {name}; use f.data\[0:{nbytes}\], its bytes"):
        weights["x"]


def test_without_ml_dtypes_the_cure_is_to_install_it(write, monkeypatch):
    weights = dlwrap.open_safetensors(write({"x": entry("BF16", (4,), (0, 8))}, bytes(8)))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(BufferError, match="pip install ml_dtypes"):
        weights["x"]


@pytest.mark.parametrize("shape", [(), (1, 1, 1)])
def test_scalars_have_their_shape(write, shape):
    array = dlwrap.open_safetensors(write({"x": entry("F64", shape, (0, 8))}, np.float64(5).tobytes()))["x"]
    assert (array.shape, float(array.sum())) == (shape, 5.0)


def test_more_keys_of_a_later_format_are_no_fault(write):
    weights = dlwrap.open_safetensors(write({"x": {**entry(), "more": 1}}, bytes(8)))
    assert weights["x"].tolist() == [0, 0]


def test_tensors_without_elements_and_files_without_tensors_are_fine(write):
    empty = {"x": entry("F64", (3, 0), (0, 0)), "y": entry("F64", (0,), (0, 0))}
    assert [array.shape for array in dlwrap.open_safetensors(write(empty)).values()] == [(3, 0), (0,)]
    assert dict(dlwrap.open_safetensors(write({}))) == {}


# ---- wrapping ----


def test_tensors_that_share_a_page_can_be_wrapped_at_once(cuda, path):
    weights = dlwrap.open_safetensors(path)
    with dlwrap.wrap(weights["weight"]), dlwrap.wrap(weights["bias"]):
        start = weights.data.ctypes.data
        assert [(each.start, each.nbytes) for each in cuda.registrations] == [(start, 24), (start + 24, 10)]


@pytest.mark.parametrize(("mode", "flags"), [("r", 3 | 8), ("c", 3)])
def test_everything_is_page_locked_by_one_pin(cuda, path, mode, flags):
    weights = dlwrap.open_safetensors(path, mode=mode)
    with dlwrap.pin(weights.data) as pin:
        assert (pin.nbytes, [each.flags for each in cuda.registrations]) == (34, [flags])
        buffers = [dlwrap.wrap(array) for array in weights.values()]
        assert len(cuda.registrations) == 1
        del buffers
        dlwrap.reclaim(SECONDS)


def test_a_tensor_that_the_file_has_not_aligned_is_an_array_that_wrap_refuses(cuda, write):
    header = {"x": entry("U8", (1,), (0, 1)), "y": entry("F32", (2,), (1, 9))}
    array = dlwrap.open_safetensors(write(header, b"\0" + WEIGHTS.tobytes()[:8], pad=aligned(header)))["y"]
    assert array.tolist() == [0, 1]
    with pytest.raises(BufferError, match=r"misaligned 4-byte elements; wrap a.copy\(\)"):
        dlwrap.wrap(array)


# ---- how long it stays ----


def is_mapped(path):
    with open("/proc/self/maps") as maps:
        return str(path) in maps.read()


def test_closing_leaves_the_arrays_and_the_last_of_them_ends_the_mapping(path):
    with dlwrap.open_safetensors(path) as weights:
        array = weights["weight"]
    assert weights.closed
    np.testing.assert_array_equal(array, WEIGHTS)
    with pytest.raises(ValueError, match="is closed: open it again"):
        weights["bias"]
    assert repr(weights).endswith("closed>")
    weights.close()
    del array
    assert not is_mapped(path)


def test_dropping_it_is_as_good_as_closing_it_and_no_cycle_keeps_it(path):
    gc.disable()
    try:
        weights = dlwrap.open_safetensors(path)
        gone = weakref.ref(weights)
        del weights
        assert (gone(), is_mapped(path)) == (None, False)
    finally:
        gc.enable()


def test_the_mapping_stays_until_the_gpu_is_done(cuda, path):
    with dlwrap.open_safetensors(path) as weights:
        capsule = dlwrap.wrap(weights["weight"]).__dlpack__(stream=1, max_version=(1, 0))
    cuda.hold(1)
    cuda.launch(1, look(capsule).as_array(np.float32))
    del capsule
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(0.05)
    assert is_mapped(path)
    cuda.let_go(1)
    dlwrap.reclaim(SECONDS)
    assert not is_mapped(path)


# ---- files that are none ----

ONE = {"x": entry()}
MALFORMED = {
    "nothing": (b"", "too few"),
    "a part of the length": (b"\1\2\3", "too few"),
    "a header longer than the file": (packed(ONE)[:-1], "is it complete"),
    "no data": (packed(ONE), "take 8 bytes, and it has 0"),
    "too little data": (packed(ONE, bytes(7)), "take 8 bytes, and it has 7"),
    "too much data": (packed(ONE, bytes(9)), "take 8 bytes, and it has 9"),
    "an empty header": (packed(b""), "does not begin with '{'"),
    "a space before it": (packed(b" {}"), "does not begin with '{'"),
    "no JSON": (packed(b"{oops}"), "its header cannot be read"),
    "two objects": (packed(b"{}{}"), "Extra data"),
    "no UTF-8": (packed(b'{"\xff": 1}'), "its header cannot be read"),
    "NaN": (packed(b'{"x": NaN}'), "NaN is no JSON"),
    "deep nesting": (packed(b'{"x":' + b"[" * 100_000), "its header cannot be read"),
    "a huge number": (packed(b'{"x":' + b"9" * 5000 + b"}"), "its header cannot be read"),
    "a name twice": (packed(b'{"x": 1, "y": 2, "x": 3}'), "'x' occurs twice"),
    "metadata that is no object": (packed({"__metadata__": 1}), "must map strings to strings"),
    "metadata with numbers": (packed({"__metadata__": {"a": 1}}), "must map strings to strings"),
    "a tensor that is no object": (packed({"x": 1}), "must have dtype, shape and data_offsets"),
    "a tensor without offsets": (packed({"x": {"dtype": "F32", "shape": []}}), "must have dtype, shape"),
    "an unknown dtype": (packed({"x": entry("F3")}, bytes(8)), "of dtype 'F3': dlwrap knows BOOL, U8"),
    "a dtype that is no string": (packed({"x": entry([1])}, bytes(8)), r"of dtype \[1\]"),
    "a shape that is no list": (packed({"x": {**entry(), "shape": 2}}, bytes(8)), "must be integers from 0 on"),
    "a negative extent": (packed({"x": entry(shape=(-2,))}, bytes(8)), "must be integers from 0 on"),
    "a fractional extent": (packed({"x": entry(shape=(2.0,))}, bytes(8)), "must be integers from 0 on"),
    "a true extent": (packed({"x": entry("U8", (True,), (0, 1))}, bytes(1)), "must be integers from 0 on"),
    "an extent of 65 bits": (packed({"x": entry(shape=(2**64, 0))}, bytes(8)), "must be integers from 0 on"),
    "three offsets": (packed({"x": entry(offsets=(0, 8, 8))}, bytes(8)), "must be integers from 0 on"),
    "offsets that are too far apart": (packed({"x": entry(offsets=(0, 9))}, bytes(9)), "takes 8 bytes"),
    "offsets that go back": (packed({"x": entry(offsets=(8, 0))}, bytes(8)), "takes 8 bytes"),
    "half a byte": (packed({"x": entry("F4", (3,), (0, 2))}, bytes(2)), "takes 1.5 bytes"),
    "an overlap": (packed({"x": entry(), "y": entry(offsets=(4, 12))}, bytes(12)), "overlaps the one before"),
    "the same bytes twice": (packed({"x": entry(), "y": entry()}, bytes(8)), "overlaps the one before"),
    "a hole": (packed({"x": entry(), "y": entry(offsets=(12, 20))}, bytes(20)), "leaves a hole before it"),
    "a hole at the beginning": (packed({"x": entry(offsets=(4, 12))}, bytes(12)), "leaves a hole before it"),
}


@pytest.mark.parametrize(("contents", "message"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused_and_not_mapped(tmp_path, contents, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=message):
        dlwrap.open_safetensors(path)
    assert not is_mapped(path)


def test_a_header_beyond_the_formats_limit_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "x.safetensors"
    with open(path, "wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(100_000_100)  # sparse
    with pytest.raises(ValueError, match="a header of 100000001 bytes, and the format allows 100000000"):
        dlwrap.open_safetensors(path)


@pytest.mark.parametrize("mode", ["r+", "w", None])
def test_other_modes_are_refused(path, mode):
    with pytest.raises(ValueError, match="mode must be 'r' or 'c'"):
        dlwrap.open_safetensors(path, mode=mode)


def test_a_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        dlwrap.open_safetensors(tmp_path / "none")


NUMBERS = st.integers(-2, 40) | st.sampled_from([2**62, 2**63, 2**64, True, 1.5, None])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPES, "F4", "F6_E2M3", "f32", 1, None]),
        "shape": st.lists(NUMBERS, max_size=3) | NUMBERS,
        "data_offsets": st.lists(NUMBERS, max_size=3) | NUMBERS,
    },
    optional={"more": st.none()},
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
)
HEADERS = st.dictionaries(st.text(max_size=3) | st.just("__metadata__"), ENTRIES | JSON, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    header=HEADERS.map(lambda header: json.dumps(header).encode()) | st.binary(max_size=60), nbytes=st.integers(0, 64)
)
def test_whatever_the_header_says_an_array_lies_in_the_file_or_there_is_a_documented_error(
    tmp_path_factory, header, nbytes
):
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    path.write_bytes(packed(header, bytes(range(nbytes))))
    try:
        weights = dlwrap.open_safetensors(path)
    except ValueError:
        return
    for name in weights:
        try:
            array = weights[name]
        except BufferError:
            continue
        begin = weights.data.ctypes.data
        assert begin <= array.ctypes.data <= array.ctypes.data + array.nbytes <= begin + nbytes


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, 6), min_size=1, max_size=6), dtype=st.sampled_from(["U8", "I16", "F32", "F64"]))
def test_whatever_is_well_formed_is_read(tmp_path_factory, cuts, dtype):
    path = tmp_path_factory.getbasetemp() / "made.safetensors"
    kind, at, header, arrays = np.dtype(DTYPES[dtype]), 0, {}, {}
    for number, size in enumerate(cuts):
        arrays[f"t{number}"] = np.arange(size).astype(kind)
        header[f"t{number}"] = entry(dtype, (size,), (at, at + size * kind.itemsize))
        at += size * kind.itemsize
    path.write_bytes(packed(dict(reversed(header.items())), b"".join(array.tobytes() for array in arrays.values())))
    weights = dlwrap.open_safetensors(path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name], array)


# ---- the format's own package ----


def test_files_of_the_safetensors_package_are_read(cuda, tmp_path):
    numpy_writer = pytest.importorskip("safetensors.numpy", reason="needs safetensors")
    path = tmp_path / "x.safetensors"
    arrays = {"a": WEIGHTS, "b/c": BIASES, "empty": np.zeros((0, 2)), "scalar": np.array(3.5), "üb": np.array([True])}
    numpy_writer.save_file(arrays, path, metadata={"of": "the package"})
    weights = dlwrap.open_safetensors(path)
    assert (weights.keys(), weights.metadata) == (arrays.keys(), {"of": "the package"})
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name], array)
        dlwrap.wrap(weights[name]).close(SECONDS)


def test_files_of_torch_tensors_are_read_bit_by_bit(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch")
    torch_writer = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    path = tmp_path / "x.safetensors"
    kinds = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.float64, torch.int64]
    tensors = {str(kind): torch.arange(8).to(torch.float32).to(kind) for kind in kinds}
    torch_writer.save_file(tensors, path)
    weights = dlwrap.open_safetensors(path)
    for name, tensor in tensors.items():
        assert weights[name].tobytes() == bytes(tensor.view(torch.uint8).numpy())


def test_what_is_refused_here_the_package_refuses_too(tmp_path):
    safetensors = pytest.importorskip("safetensors", reason="needs safetensors")
    path, accepted = tmp_path / "x.safetensors", []
    for name, (contents, _) in MALFORMED.items():
        path.write_bytes(contents)
        with contextlib.suppress(Exception):  # of several classes
            accepted.append(safetensors.safe_open(path, framework="numpy") and name)
    assert accepted == ["a space before it"]  # which the format forbids
