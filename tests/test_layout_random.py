"""Random views beside NumPy's own exports of them: the same in every field, or different for reasons named here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dlwrap
from capsules import take

ON_HOST, VERSIONED = (1, 0), (1, 0)
READ_ONLY = 1

EXPORTED = ["?", *"bhilqBHILQ", "e", "f", "d", "F", "D"]
REFUSED = [">i2", ">f4", ">c16", "g", "G", "S3", "U2", "V5", "M8[s]", "m8[ms]", [("x", "f4"), ("y", "i2")]]
# What dlwrap exports, and NumPy does not, because it has no such types itself.
MORE_THAN_NUMPY = [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)]
DTYPES = st.sampled_from(3 * EXPORTED + MORE_THAN_NUMPY + REFUSED)

# What dlwrap refuses, by what its message says, in the order in which it looks.
REASONS = {
    "cannot export dtype": lambda a: (
        (a.dtype.char not in EXPORTED or not a.dtype.isnative or a.dtype.fields is not None)
        and a.dtype not in MORE_THAN_NUMPY
    ),
    "negative strides": lambda a: any(stride < 0 for stride in used_strides(a)),
    "DLPack counts elements": lambda a: any(stride % a.itemsize for stride in used_strides(a)),
    "misaligned": lambda a: a.size > 0 and a.ctypes.data % a.itemsize != 0,
}
# What NumPy exports, and dlwrap refuses because torch aborts, or because a GPU faults.
STRICTER_THAN_NUMPY = {"negative strides", "misaligned"}


def used_strides(a: np.ndarray[Any, Any]) -> list[int]:
    return [stride for size, stride in zip(a.shape, a.strides, strict=True) if size > 1] if a.size else []


def reason_to_refuse(a: np.ndarray[Any, Any]) -> str | None:
    return next((reason for reason, holds in REASONS.items() if holds(a)), None)


@st.composite
def fresh_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Make an array over bytes of its own, all different from their neighbours."""
    dtype = np.dtype(draw(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
    padding = draw(st.sampled_from([0, 0, 0, 1, 2]))  # bytes between the elements, as in a field of a record
    offset = draw(st.sampled_from([0, 0, 0, 1, 2, 4, 8]))
    step = dtype.itemsize + padding
    raw = np.arange(math.prod(shape) * step + offset + 16, dtype=np.uint32).astype(np.uint8)
    raw = raw[-raw.ctypes.data % 16 :]
    strides = [step * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return np.ndarray(shape, dtype, raw, offset, strides)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Slice, turn and repeat an array."""
    a = draw(fresh_arrays())
    indexed = a[draw(hnp.basic_indices(a.shape, max_dims=5, allow_ellipsis=True, allow_newaxis=True))]
    a = indexed if isinstance(indexed, np.ndarray) else a
    if draw(st.booleans()):
        a = a.transpose(draw(st.permutations(range(a.ndim))))
    if a.ndim < 5 and draw(st.booleans()):
        a = np.broadcast_to(a, (draw(st.integers(0, 3)), *a.shape))
    if draw(st.booleans()):
        a.flags.writeable = False
    return a


@dataclass
class Fields:
    """What a consumer reads; the strides where they are used, None elsewhere."""

    pointer: int | None
    device: tuple[int, int]
    shape: tuple[int, ...]
    strides: list[int | None]
    dtype: tuple[int, int, int]
    flags: int


def fields_of(capsule: object) -> Fields:
    imported = take(capsule)
    tensor, shape = imported.tensor, imported.shape
    strides = imported.strides if tensor.strides else compact(shape)
    used = [stride if size > 1 and 0 not in shape else None for size, stride in zip(shape, strides, strict=True)]
    pointer = None if 0 in shape else tensor.data + tensor.byte_offset
    fields = Fields(pointer, imported.device, shape, used, imported.dtype, imported.managed.flags)
    imported.delete()
    return fields


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


def ask(obj: Any, **request: Any) -> tuple[object, str | None]:
    """Ask for a capsule; give it, or why not."""
    try:
        return obj.__dlpack__(max_version=VERSIONED, **request), None
    except BufferError as refusal:
        return None, str(refusal)


def wrap(a: np.ndarray[Any, Any]) -> tuple[dlwrap.HostWrappedBuffer | None, str | None]:
    try:
        return dlwrap.wrap(a), None
    except BufferError as refusal:
        return None, str(refusal)


many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(a=views())
def test_an_array_is_exported_or_refused_for_a_reason_that_is_documented(cuda, a):
    reason, (_, refusal) = reason_to_refuse(a), wrap(a)
    assert refusal is None if reason is None else reason in str(refusal)


@many
@given(a=views())
def test_where_numpy_exports_too_the_cpu_view_is_the_same_in_every_field(cuda, a):
    buffer, refusal = wrap(a)
    capsule, numpys_refusal = ask(a)
    if buffer is not None and capsule is not None:
        assert fields_of(buffer.__dlpack__(dl_device=ON_HOST, max_version=VERSIONED)) == fields_of(capsule)
    elif capsule is not None:
        assert any(reason in str(refusal) for reason in STRICTER_THAN_NUMPY)
    elif buffer is not None:
        assert a.dtype in MORE_THAN_NUMPY, numpys_refusal


@many
@given(a=views())
def test_the_device_is_given_the_same_fields_and_its_own_address(cuda, a):
    cuda.configure(pointer_offset=1 << 24)
    buffer, _ = wrap(a)
    if buffer is not None:
        on_host = fields_of(buffer.__dlpack__(dl_device=ON_HOST, max_version=VERSIONED))
        on_device = fields_of(buffer.__dlpack__(stream=1, max_version=VERSIONED))
        expected = None if on_host.pointer is None else on_host.pointer + (1 << 24)
        assert (on_device.pointer, on_device.device) == (expected, (2, 0))
        on_device.pointer, on_device.device = on_host.pointer, on_host.device
        assert on_device == on_host
        buffer.close()


@many
@given(a=views())
def test_where_strides_are_never_used_they_are_those_of_a_compact_array_and_an_empty_one_has_no_address(cuda, a):
    buffer, _ = wrap(a)
    if buffer is not None:
        imported = take(buffer.__dlpack__(stream=1, max_version=VERSIONED))
        unused = [size < 2 or a.size == 0 for size in a.shape]
        ours = [stride for stride, without in zip(imported.strides, unused, strict=True) if without]
        assert ours == [stride for stride, without in zip(compact(a.shape), unused, strict=True) if without]
        assert (imported.tensor.data is None) == (a.size == 0)
        assert imported.tensor.byte_offset == 0
        imported.delete()


@many
@given(a=views())
@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="from_dlpack takes a device from NumPy 2.1 on"
)
def test_numpy_reads_the_same_values_from_a_cpu_view_and_may_write_where_it_might_before(cuda, a):
    buffer, _ = wrap(a)
    if buffer is not None and a.dtype not in MORE_THAN_NUMPY:
        seen = np.from_dlpack(buffer, device="cpu")
        assert (seen.shape, seen.dtype) == (a.shape, a.dtype)
        assert seen.flags.writeable == a.flags.writeable or a.size == 0  # NumPy protects no empty arrays
        assert seen.tobytes() == a.tobytes()


@many
@given(a=views())
def test_a_legacy_capsule_has_the_same_fields_or_is_refused_because_it_cannot_say_read_only(cuda, a):
    buffer, _ = wrap(a)
    if buffer is None:
        return
    if not a.flags.writeable:
        with pytest.raises(BufferError, match="cannot export read-only memory in a legacy capsule"):
            buffer.__dlpack__(stream=1)
        return
    legacy, versioned = take(buffer.__dlpack__(stream=1)), take(buffer.__dlpack__(stream=1, max_version=VERSIONED))
    seen = [(x.tensor.data, x.device, x.shape, x.strides, x.dtype, x.tensor.byte_offset) for x in (legacy, versioned)]
    assert seen[0] == seen[1]
    legacy.delete()
    versioned.delete()


until_found = settings(
    max_examples=20_000, phases=[Phase.generate], database=None, suppress_health_check=[*HealthCheck]
)


@pytest.mark.parametrize("reason", [*REASONS, None])
def test_the_random_views_reach_every_reason(reason):
    found = find(views(), lambda a: reason_to_refuse(a) == reason, settings=until_found)
    assert reason_to_refuse(found) == reason
