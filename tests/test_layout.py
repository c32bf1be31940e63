from __future__ import annotations

import array
import ctypes
import gc
import re
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dlwrap._layout import DType, Span, check_unmoved, describe

NUMPY_TYPES = [
    ("bool", DType(6, 8, 1)),
    *((f"int{bits}", DType(0, bits, 1)) for bits in (8, 16, 32, 64)),
    *((f"uint{bits}", DType(1, bits, 1)) for bits in (8, 16, 32, 64)),
    *((name, DType(0, 8 * np.dtype(name).itemsize, 1)) for name in ("intc", "int_", "longlong", "intp")),
    *((name, DType(1, 8 * np.dtype(name).itemsize, 1)) for name in ("uintc", "uint", "ulonglong", "uintp")),
    *((f"float{bits}", DType(2, bits, 1)) for bits in (16, 32, 64)),
    *((f"complex{bits}", DType(5, bits, 1)) for bits in (64, 128)),
]
ML_TYPES = [
    ("bfloat16", DType(4, 16, 1)),
    ("float8_e3m4", DType(7, 8, 1)),
    ("float8_e4m3", DType(8, 8, 1)),
    ("float8_e4m3b11fnuz", DType(9, 8, 1)),
    ("float8_e4m3fn", DType(10, 8, 1)),
    ("float8_e4m3fnuz", DType(11, 8, 1)),
    ("float8_e5m2", DType(12, 8, 1)),
    ("float8_e5m2fnuz", DType(13, 8, 1)),
    ("float8_e8m0fnu", DType(14, 8, 1)),
]
SUB_BYTE = ["int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"]


@pytest.mark.parametrize(("name", "expected"), NUMPY_TYPES)
def test_numpy_dtypes_have_their_dlpack_type(name: str, expected: DType) -> None:
    assert describe(np.zeros(2, name)).dtype == expected


@pytest.mark.parametrize(("name", "expected"), ML_TYPES)
def test_ml_dtypes_have_their_dlpack_type(name: str, expected: DType) -> None:
    layout = describe(np.zeros(3, getattr(ml_dtypes, name)))
    assert (layout.dtype, layout.itemsize) == (expected, expected.bits // 8)


@pytest.mark.parametrize("name", SUB_BYTE)
def test_sub_byte_types_are_refused(name: str) -> None:
    with pytest.raises(BufferError, match=rf"cannot export dtype {name}: .* pack several; wrap a.view\(numpy.uint8\)"):
        describe(np.zeros(2, getattr(ml_dtypes, name)))


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("O", r"cannot export dtype object: .* Python objects; wrap a\.astype\(numpy\.float64\)"),
        ("S3", r"cannot export dtype \|S3: DLPack has no strings; wrap a\.view\(numpy\.uint8\)"),
        ("U3", r"cannot export dtype <U3: DLPack has no strings; wrap a\.view\(numpy\.uint32\)"),
        ("V3", r"cannot export dtype \|V3: DLPack has no raw bytes; wrap a\.view\(numpy\.uint8\)"),
        ("M8[s]", r"cannot export dtype datetime64\[s\]: DLPack has no dates; wrap a\.view\(numpy\.int64\)"),
        ("m8[s]", r"cannot export dtype timedelta64\[s\]: DLPack has no dates; wrap a\.view\(numpy\.int64\)"),
        ("g", r"cannot export dtype float128: no GPU .* width; wrap a\.astype\(numpy\.float64\)"),
        ("G", r"cannot export dtype complex256: no GPU .* width; wrap a\.astype\(numpy\.complex128\)"),
        (
            [("x", "f4"), ("y", "i4")],
            r"cannot export dtype \[\('x'.*: DLPack has no records; wrap .*a\[field\]",
        ),
        (
            (np.int32, {"low": (np.int16, 0), "high": (np.int16, 2)}),
            r"cannot export dtype .*: DLPack has no records; wrap ",
        ),
        (">f4", r"cannot export dtype >f4: .* byte order; wrap a\.astype\(a\.dtype\.newbyteorder\('='\)\)"),
        (">c16", r"cannot export dtype >c16: .* byte order; wrap "),
    ],
)
@pytest.mark.parametrize("size", [0, 2])
def test_dtypes_that_dlpack_lacks_are_refused(dtype: Any, message: str, size: int) -> None:
    with pytest.raises(BufferError, match=message):
        describe(np.zeros(size, dtype))


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 2 has variable-width strings")
def test_variable_width_strings_are_refused() -> None:
    with pytest.raises(BufferError, match=r"cannot export dtype StringDType.*: DLPack has no strings; wrap "):
        describe(np.zeros(2, np.dtypes.StringDType()))


def test_record_arrays_are_refused_by_their_dtype() -> None:
    with pytest.raises(BufferError, match="DLPack has no records"):
        describe(np.zeros(2, [("x", "f4")]).view(np.recarray))


def test_a_big_endian_ml_dtype_is_refused() -> None:
    with pytest.raises(BufferError, match="byte order"):
        describe(np.zeros(2, np.dtype(ml_dtypes.bfloat16).newbyteorder(">")))


@pytest.mark.skipif(not hasattr(ml_dtypes, "float8_e5m3fnu"), reason="needs a newer ml_dtypes")
def test_an_ml_dtype_that_dlpack_does_not_know_is_refused() -> None:
    with pytest.raises(BufferError, match=r"cannot export dtype float8_e5m3fnu: DLPack has no type for it; wrap "):
        describe(np.zeros(2, ml_dtypes.float8_e5m3fnu))


def test_a_foreign_type_with_the_name_of_an_ml_dtype_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.zeros(2, ml_dtypes.bfloat16)
    monkeypatch.setattr(ml_dtypes, "bfloat16", type("bfloat16", (), {}))
    with pytest.raises(BufferError, match="DLPack has no type for it"):
        describe(a)


def test_masked_arrays_are_refused() -> None:
    with pytest.raises(BufferError, match=r"cannot export a MaskedArray: .*; wrap a\.data or a\.filled\(\)"):
        describe(np.ma.masked_array([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize(
    ("make", "strides"),
    [
        (lambda a: a[::-1], "(-48, 8)"),
        (lambda a: a[:, ::-1], "(48, -8)"),
        (lambda a: a[0, ::-2], "(-16,)"),
    ],
)
def test_negative_strides_are_refused(make: Any, strides: str) -> None:
    message = f"cannot export strides {strides}: torch aborts on negative strides; wrap numpy.ascontiguousarray(a)"
    with pytest.raises(BufferError, match=re.escape(message)):
        describe(make(np.zeros((4, 6))))


def test_strides_between_elements_are_refused() -> None:
    a = np.zeros(3, [("x", "f8"), ("y", "i4")])["x"]
    message = r"cannot export strides \(12,\): DLPack counts elements of 8 bytes; wrap numpy\.ascontiguous"
    with pytest.raises(BufferError, match=message):
        describe(a)


@pytest.mark.parametrize(("offset", "dtype"), [(1, "f4"), (2, "f8"), (8, "c16"), (4, "c8")])
def test_misaligned_elements_are_refused(offset: int, dtype: str) -> None:
    raw = np.zeros(64 + 15, np.uint8)
    aligned = raw[-raw.ctypes.data % 16 :]
    size = np.dtype(dtype).itemsize
    with pytest.raises(BufferError, match=rf"cannot export address 0x\w+: .* {size}-byte elements; wrap a\.copy\(\)"):
        describe(aligned[offset : offset + 2 * size].view(dtype))


def test_a_misaligned_array_without_elements_is_exported() -> None:
    assert describe(np.zeros(9, np.uint8)[1:1].view("f4")).pointer == 0


SIX = np.arange(48, dtype=np.float32).reshape(6, 8)


@pytest.mark.parametrize(
    ("a", "strides"),
    [
        (np.zeros(()), ()),
        (np.zeros(5), (1,)),
        (np.zeros((2, 3, 4)), (12, 4, 1)),
        (np.zeros((2, 3, 4), order="F"), (1, 2, 6)),
        (SIX.T, (1, 8)),
        (SIX[1:5:2, ::3], (16, 3)),
        (np.broadcast_to(np.zeros(4), (3, 4)), (0, 1)),
        (np.broadcast_to(np.zeros(()), (3, 4)), (0, 0)),
        (np.zeros((1, 5))[::-1], (5, 1)),
        (SIX[::2, 3:4], (16, 1)),
        (SIX[2:3, ::2], (4, 2)),
        (np.zeros((4, 0)), (1, 1)),
        (np.zeros((0, 4))[::-1, ::-1], (4, 1)),
        (np.zeros((2, 0, 3))[::-1], (3, 3, 1)),
    ],
)
def test_strides_are_in_elements_and_compact_where_unused(a: Any, strides: tuple[int, ...]) -> None:
    layout = describe(a)
    assert (layout.shape, layout.strides) == (a.shape, strides)


@pytest.mark.parametrize(
    ("view", "first", "stop"),
    [
        (SIX, 0, 192),
        (SIX[0, 0, ...], 0, 4),
        (SIX[2:4], 64, 128),
        (SIX[1:5:2, 1:], 36, 128),
        (SIX.T[3:], 12, 192),
        (SIX[..., 2], 8, 172),
        (np.broadcast_to(SIX[1], (9, 8)), 32, 64),
        (np.broadcast_to(SIX[1, :1], (9,)), 32, 36),
        (np.lib.stride_tricks.sliding_window_view(SIX[0], 3), 0, 32),
    ],
)
def test_the_span_holds_the_bytes_of_the_view_and_the_owner_span_those_of_its_owner(
    view: Any, first: int, stop: int
) -> None:
    start = SIX.ctypes.data
    layout = describe(view)
    assert layout.pointer == start + first
    assert layout.span == Span(start + first, start + stop)
    assert layout.owner_span == Span(start, start + SIX.nbytes)


@pytest.mark.parametrize("a", [np.zeros((4, 0)), np.zeros(0, np.int8), SIX[3:3], memoryview(b""), bytearray()])
def test_an_array_without_elements_has_no_pointer_and_no_memory(a: Any) -> None:
    layout = describe(a)
    assert (layout.pointer, layout.nbytes, layout.span, layout.owner_span) == (0, 0, Span(0, 0), Span(0, 0))
    assert layout.span.nbytes == 0
    check_unmoved(layout)


def test_a_scalar_array_is_one_element() -> None:
    layout = describe(np.array(3.0))
    assert (layout.shape, layout.strides, layout.nbytes, layout.span.nbytes) == ((), (), 8, 8)


def test_sizes_beyond_32_and_40_bits_are_plain_integers() -> None:
    layout = describe(np.broadcast_to(np.zeros(1, np.float64), (1 << 20, 1 << 21)))
    assert (layout.nbytes, layout.span.nbytes) == (1 << 44, 8)
    assert all(type(value) is int for value in (layout.nbytes, layout.pointer, *layout.shape, *layout.strides))


def test_a_stride_beyond_32_bits_is_a_plain_integer() -> None:
    a = np.lib.stride_tricks.as_strided(np.zeros(1), (2, 2), (1 << 45, 8))
    layout = describe(a)
    assert (layout.strides, layout.span.nbytes) == ((1 << 42, 1), (1 << 45) + 16)


@pytest.mark.parametrize("writeable", [True, False])
def test_readonly_says_what_numpy_says(writeable: bool) -> None:
    a = np.zeros(3)
    a.flags.writeable = writeable
    layout = describe(a)
    assert (layout.readonly, layout.writable_memory, layout.file_backed) == (not writeable, True, False)


def test_the_array_of_the_layout_is_the_array_given() -> None:
    a = np.zeros(3)
    assert describe(a).array is a


def test_a_subclass_is_described_as_its_memory() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        a = np.matrix([[1.0, 2.0]])
    layout = describe(a)
    assert (layout.array is a, layout.shape, layout.pointer) == (True, (1, 2), a.ctypes.data)


class Lying(np.ndarray):
    __array_interface__ = property(lambda self: {"data": (1, False)})


def test_a_subclass_with_its_own_array_interface_does_not_mislead() -> None:
    a = np.zeros(4).view(Lying)
    assert describe(a[1:]).owner_span == describe(a.view(np.ndarray)).span


COMPLEX: Any = np.zeros((2, 3), "c8")


@pytest.mark.parametrize(
    ("obj", "shape", "dtype", "readonly"),
    [
        (b"abc", (3,), DType(1, 8, 1), True),
        (bytearray(b"abc"), (3,), DType(1, 8, 1), False),
        (memoryview(b"abcd")[1:], (3,), DType(1, 8, 1), True),
        (memoryview(bytearray(24)).cast("q", (3, 1)), (3, 1), DType(0, 64, 1), False),
        (memoryview(COMPLEX), (2, 3), DType(5, 64, 1), False),
        (array.array("d", [1, 2]), (2,), DType(2, 64, 1), False),
        (((ctypes.c_int * 3) * 2)(), (2, 3), DType(0, 32, 1), False),
        (ctypes.c_double(1), (), DType(2, 64, 1), False),
    ],
)
def test_buffers_are_exported_in_their_own_shape_and_format(
    obj: Any, shape: tuple[int, ...], dtype: DType, readonly: bool
) -> None:
    layout = describe(obj)
    assert (layout.shape, layout.dtype, layout.readonly) == (shape, dtype, readonly)
    assert layout.writable_memory


def test_a_strided_memoryview_keeps_its_strides() -> None:
    layout = describe(memoryview(bytearray(12))[1::3])
    assert (layout.strides, layout.span.nbytes, layout.owner_span.nbytes) == ((3,), 10, 12)


def test_a_reversed_memoryview_is_refused() -> None:
    with pytest.raises(BufferError, match="negative strides"):
        describe(memoryview(bytearray(12))[::-1])


@pytest.mark.parametrize("obj", [(ctypes.c_wchar * 2)(), (ctypes.c_longdouble * 2)(), (ctypes.c_void_p * 2)()])
def test_buffer_formats_that_numpy_cannot_read_are_refused(obj: Any) -> None:
    message = r"cannot export a c_\w+ of format '<\w': NumPy cannot read it .*; wrap numpy\.frombuffer"
    with pytest.raises(BufferError, match=message):
        describe(obj)


def test_buffers_of_rows_elsewhere_are_refused() -> None:
    testbuffer = pytest.importorskip("_testbuffer")
    flags = testbuffer.ND_PIL | testbuffer.ND_WRITABLE
    rows = testbuffer.ndarray([1, 2, 3, 4], shape=[2, 2], format="B", flags=flags)
    with pytest.raises(BufferError, match=r"cannot export a ndarray of format 'B': .*suboffsets"):
        describe(rows)


@pytest.mark.parametrize("make", [lambda: array.array("u", "ab"), ctypes.c_char * 3])
def test_buffers_of_characters_are_refused(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        text = make()
    with pytest.raises(BufferError, match="DLPack has no strings"):
        describe(text)


def test_a_released_memoryview_is_explained() -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(ValueError, match=r"cannot wrap a released memoryview \(.*\); wrap before release\(\)"):
        describe(view)


class TorchTensor:
    __module__ = "torch"
    __cuda_array_interface__ = property(lambda self: 1 / 0)


class CudaArray:
    __cuda_array_interface__ = None


class Wrapped(CudaArray):
    __module__ = "dlwrap"


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (
            [1, 2],
            r"cannot wrap a builtins\.list: it is no host array or buffer; .*numpy\.asarray\(x\), which ",
        ),
        (3.0, r"cannot wrap a builtins\.float: .*numpy\.asarray"),
        (None, r"cannot wrap a builtins\.NoneType: "),
        ("text", r"cannot wrap a builtins\.str: "),
        (np.float32(1), r"cannot wrap a numpy\.float32: .*numpy\.asarray"),
        (np.bytes_(b"ab"), r"cannot wrap a numpy\.bytes_: .*numpy\.asarray"),
        (TorchTensor(), r"cannot wrap a torch\.TorchTensor: .*device memory already"),
        (CudaArray(), r"cannot wrap a .*CudaArray: .*device memory already"),
        (Wrapped(), r"cannot wrap a dlwrap\.Wrapped: .*use it as it is, or wrap its \.array"),
    ],
)
def test_objects_without_host_memory_are_refused_with_a_cure(obj: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        describe(obj)


ARRAYS = hnp.arrays(
    dtype=st.sampled_from(["u1", "i2", "f4", "f8", "c8"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
    fill=st.just(0),
)


@given(data=st.data(), a=ARRAYS, transpose=st.booleans())
def test_any_view_is_described_by_its_touched_bytes_or_refused_for_a_negative_stride(
    data: st.DataObject, a: Any, transpose: bool
) -> None:
    indices = hnp.basic_indices(a.shape, allow_ellipsis=True, allow_newaxis=True)
    view = a[data.draw(indices)]
    if not isinstance(view, np.ndarray):
        view = a[...]
    if transpose:
        view = view.T
    used = [(size, stride) for size, stride in zip(view.shape, view.strides, strict=True) if size > 1]
    if view.size and any(stride < 0 for _, stride in used):
        with pytest.raises(BufferError, match="negative strides"):
            describe(view)
        return

    layout = describe(view)

    starts = {
        view.ctypes.data + sum(i * s for i, s in zip(index, view.strides, strict=True))
        for index in np.ndindex(view.shape)
    }
    touched = {start + byte for start in starts for byte in range(view.itemsize)}
    assert layout.span == (Span(min(touched), max(touched) + 1) if touched else Span(0, 0))
    assert layout.owner_span.start <= layout.span.start <= layout.span.stop <= layout.owner_span.stop
    assert layout.owner_span == (Span(a.ctypes.data, a.ctypes.data + a.nbytes) if touched else Span(0, 0))
    assert layout.nbytes == view.nbytes
    by_layout = {
        layout.pointer + layout.itemsize * sum(i * s for i, s in zip(index, layout.strides, strict=True))
        for index in np.ndindex(layout.shape)
    }
    assert by_layout == starts


@given(a=ARRAYS)
def test_strides_of_a_contiguous_array_are_those_of_numpy_where_they_are_used(a: Any) -> None:
    layout = describe(a)
    for size, ours, theirs in zip(a.shape, layout.strides, a.strides, strict=True):
        assert ours * a.itemsize == theirs or size < 2 or a.size == 0


def resize(a: Any, size: Any) -> None:
    a.resize(size, refcheck=False)


def test_an_array_resized_in_place_is_noticed() -> None:
    a = np.zeros(8)
    layout = describe(a)
    check_unmoved(layout)
    resize(a, 1 << 20)
    with pytest.raises(BufferError, match=r"moved: 64 bytes at 0x\w+ are now 8388608 bytes .*; wrap the array again"):
        check_unmoved(layout)


def test_an_owner_resized_in_place_under_its_view_is_noticed() -> None:
    a = np.zeros(8)
    layout = describe(a[2:4])
    check_unmoved(layout)
    resize(a, 1 << 20)
    with pytest.raises(BufferError, match="cannot export memory that has moved"):
        check_unmoved(layout)


def test_an_owner_cut_short_in_place_is_noticed() -> None:
    a = np.zeros(1 << 10)
    layout = describe(a)
    resize(a, 1)
    with pytest.raises(BufferError, match="cannot export memory that has moved"):
        check_unmoved(layout)


def test_an_owner_moved_at_the_same_size_is_noticed() -> None:
    a = np.zeros(8)
    layout = describe(a)
    resize(a, 1 << 20)
    blocker = np.zeros(8)
    resize(a, 8)
    if a.ctypes.data == layout.pointer:
        pytest.skip("the allocator gave the old address again")
    del blocker
    with pytest.raises(BufferError, match="cannot export memory that has moved"):
        check_unmoved(layout)


def test_an_array_that_grows_from_nothing_is_noticed() -> None:
    a = np.zeros(0)
    layout = describe(a)
    resize(a, 4)
    with pytest.raises(BufferError, match="cannot export memory that has moved"):
        check_unmoved(layout)


def test_a_new_shape_in_place_is_no_move() -> None:
    a = np.zeros(8)
    layout = describe(a[:])
    resize(a, (2, 4))
    check_unmoved(layout)


def test_layouts_compare_by_identity_and_hide_the_data_in_their_repr() -> None:
    a = np.zeros(3)
    assert describe(a) != describe(a)
    assert "array" not in repr(describe(a))


def test_a_dropped_layout_lets_go_of_its_array_at_once() -> None:
    gc.disable()
    try:
        alive = []

        class Noted(np.ndarray):
            def __del__(self) -> None:
                alive.append(False)

        layout = describe(np.zeros(3).view(Noted)[1:])
        alive.clear()
        del layout
        assert alive
    finally:
        gc.enable()
