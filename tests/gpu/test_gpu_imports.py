"""Every framework imports a wrapped array in place: the array's own address, its values, its memory."""

from __future__ import annotations

import _cuda
import ml_dtypes
import numpy as np
import pytest
from _consumers import CLASSES

import dlwrap

EVERY = tuple(CLASSES)
STRIDED = ("torch", "cupy", "numba_cuda", "cuda_core")  # JAX wants compact arrays
WRITING = STRIDED

LAYOUTS = {
    "1-D": lambda: np.arange(24, dtype=np.float32),
    "2-D": lambda: np.arange(24, dtype=np.float32).reshape(4, 6),
    "0-d": lambda: np.array(5, np.float32),
    "transposed": lambda: np.arange(24, dtype=np.float32).reshape(4, 6).T,
    "every second of every third": lambda: np.arange(96, dtype=np.float32).reshape(8, 12)[::2, ::3],
    "inner block": lambda: np.arange(96, dtype=np.float32).reshape(8, 12)[2:6, 4:8],
}
DTYPES = {
    "torch": ("float32", "int64", "float16", "bool", "complex64", "uint8", ml_dtypes.bfloat16),
    "cupy": ("float32", "int64", "float16", "bool", "complex64", "uint16"),
    "jax": ("float32", "int32", "float16", "bool", "complex64", ml_dtypes.bfloat16),  # 64 bits are off by default
    "numba_cuda": ("float32", "int64", "float16", "bool", "complex64"),
    "cuda_core": ("float32", "int64", "float16", "bool", "complex64"),
}


@pytest.fixture
def consumer(request):
    return CLASSES[request.param](request.getfixturevalue(request.param))


def name_of(value):
    return np.dtype(value).name if isinstance(value, type) else None


@pytest.mark.parametrize(
    ("consumer", "layout"),
    [
        *((name, layout) for name in STRIDED for layout in LAYOUTS),
        *(("jax", layout) for layout in ("1-D", "2-D", "0-d")),
    ],
    indirect=["consumer"],
)
def test_layout_is_imported_in_place(consumer, layout):
    array = LAYOUTS[layout]()
    imported = consumer.take(dlwrap.wrap(array))
    assert tuple(imported.shape) == array.shape
    assert consumer.address(imported) == _cuda.address(array)
    np.testing.assert_array_equal(consumer.read(imported), array)


@pytest.mark.parametrize(
    ("consumer", "dtype"),
    [(name, dtype) for name, dtypes in DTYPES.items() for dtype in dtypes],
    indirect=["consumer"],
    ids=name_of,
)
def test_dtype_is_imported_in_place(consumer, dtype):
    array = (np.arange(64) % 3).astype(dtype)
    imported = consumer.take(dlwrap.wrap(array))
    assert consumer.address(imported) == _cuda.address(array)
    values = consumer.read(imported)
    assert values.dtype == array.dtype
    np.testing.assert_array_equal(values, array)


@pytest.mark.parametrize("consumer", ["torch", "cupy"], indirect=True)
def test_empty_array_is_imported(consumer):
    imported = consumer.take(dlwrap.wrap(np.empty((3, 0, 2), np.float32)))
    assert tuple(imported.shape) == (3, 0, 2)
    assert consumer.read(imported).size == 0


@pytest.mark.parametrize("consumer", EVERY, indirect=True)
def test_what_the_host_writes_is_read_by_the_gpu(consumer):
    array = np.zeros(32, np.float32)
    buffer = dlwrap.wrap(array)
    array[:] = 3
    np.testing.assert_array_equal(consumer.read(consumer.take(buffer)), np.full(32, 3, np.float32))


@pytest.mark.parametrize("consumer", WRITING, indirect=True)
def test_what_the_gpu_writes_is_read_by_the_host(consumer):
    array = np.zeros(32, np.float32)
    consumer.fill(consumer.take(dlwrap.wrap(array)), 7)
    np.testing.assert_array_equal(array, np.full(32, 7, np.float32))


@pytest.mark.parametrize("consumer", ["torch", "cupy"], indirect=True)
def test_gpu_writes_to_the_elements_of_a_view_only(consumer):
    parent = np.zeros((6, 8), np.float32)
    consumer.fill(consumer.take(dlwrap.wrap(parent[1:5:2, ::4])), 7)
    expected = np.zeros((6, 8), np.float32)
    expected[1:5:2, ::4] = 7
    np.testing.assert_array_equal(parent, expected)


def test_jax_overwrites_a_donated_array(jax):
    array = np.arange(64, dtype=np.float32)
    imported = jax.dlpack.from_dlpack(dlwrap.wrap(array))
    result = jax.jit(lambda x: x + 1, donate_argnums=0)(imported)
    result.block_until_ready()
    np.testing.assert_array_equal(array, np.arange(1, 65, dtype=np.float32))


@pytest.mark.parametrize("consumer", ["torch", "cupy", "cuda_core"], indirect=True)
def test_read_only_array_reaches_those_who_ask_for_a_versioned_capsule(consumer):
    array = np.arange(16, dtype=np.float32)
    array.flags.writeable = False
    imported = consumer.take(dlwrap.wrap(array))
    assert consumer.address(imported) == _cuda.address(array)
    np.testing.assert_array_equal(consumer.read(imported), array)


def test_cuda_core_sees_what_is_read_only(cuda_core):
    array = np.arange(16, dtype=np.float32)
    array.flags.writeable = False
    take = cuda_core.utils.StridedMemoryView.from_dlpack
    assert take(dlwrap.wrap(array), stream_ptr=-1).readonly
    assert not take(dlwrap.wrap(array, readonly=False), stream_ptr=-1).readonly


def test_read_only_array_is_refused_to_jax_unless_it_is_allowed(jax):
    array = np.arange(16, dtype=np.float32)
    array.flags.writeable = False
    with pytest.raises(BufferError, match="readonly=False"):
        jax.dlpack.from_dlpack(dlwrap.wrap(array))
    imported = jax.dlpack.from_dlpack(dlwrap.wrap(array, readonly=False))
    assert imported.unsafe_buffer_pointer() == _cuda.address(array)
    np.testing.assert_array_equal(np.array(jax.numpy.copy(imported)), array)


@pytest.mark.parametrize("name", ["as_tensor", "asarray"])
def test_torch_takes_it_without_a_copy_by_every_name(torch, name):
    array = np.arange(16, dtype=np.float32)
    tensor = getattr(torch, name)(dlwrap.wrap(array), device="cuda")
    assert tensor.data_ptr() == _cuda.address(array)


def test_cupy_takes_it_without_a_copy_by_the_array_interface(cupy):
    array = np.arange(16, dtype=np.float32)
    imported = cupy.asarray(dlwrap.wrap(array))
    assert imported.data.ptr == _cuda.address(array)
    np.testing.assert_array_equal(imported.copy().get(), array)


def test_two_frameworks_share_one_wrap(torch, cupy):
    array = np.zeros(16, np.float32)
    buffer = dlwrap.wrap(array)
    tensor, other = torch.from_dlpack(buffer), cupy.from_dlpack(buffer)
    assert buffer.exports == 2
    tensor.add_(1)
    torch.cuda.synchronize()
    other += 1
    cupy.cuda.get_current_stream().synchronize()
    np.testing.assert_array_equal(array, np.full(16, 2, np.float32))
