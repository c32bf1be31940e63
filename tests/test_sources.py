"""What can be wrapped beside NumPy arrays: in place, with its true owner held until the GPU is done."""

from __future__ import annotations

import array
import mmap
import pickle
import weakref
from multiprocessing import shared_memory

import ml_dtypes
import numpy as np
import pytest

import dlwrap
from capsules import look
from dlwrap._owner import address
from patience import SECONDS
from producer import Producer, plain
from stand_ins import memory_of

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def wrapped(obj, **options):
    """The array that a wrap shows, which lives on."""
    with dlwrap.wrap(obj, **options) as buffer:
        return buffer.array


# ---- DLPack producers ----


def test_a_tensor_of_a_producer_is_wrapped_in_place(cuda):
    values = VALUES.copy()
    buffer = dlwrap.wrap(Producer(values))
    buffer.array[1, 2] = 50
    assert (values[1, 2], buffer.array.ctypes.data, buffer.readonly) == (50, values.ctypes.data, False)


@pytest.mark.parametrize("version", [(1, 0), (1, 3), None], ids=["1.0", "1.3", "legacy"])
def test_a_producer_is_asked_for_the_newest_form_it_knows(cuda, version):
    producer = plain(version=version)
    np.testing.assert_array_equal(wrapped(producer), VALUES)
    assert producer.asked == ([{"max_version": (1, 3)}] if version else [{"max_version": (1, 3)}, {}])


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (VALUES[:, 1:3], {}),
        (VALUES[1:, 1:].T, {}),
        (VALUES[2], {"byte_offset": 32}),
        (VALUES, {"with_strides": False}),
        (VALUES[0, 0].reshape(()), {}),
        (VALUES[:0], {}),
    ],
    ids=["strides", "transposed", "byte_offset", "no strides", "scalar", "empty"],
)
def test_strides_and_offsets_of_a_producer_are_respected(cuda, view, said):
    with dlwrap.wrap(Producer(view, **said)) as buffer:
        np.testing.assert_array_equal(buffer.array, view)
        assert buffer.shape == view.shape


@pytest.mark.parametrize(("said", "readonly"), [({"flags": 1}, True), ({"flags": 0}, False), ({"version": None}, True)])
def test_a_tensor_is_read_only_if_its_flag_says_so_or_it_has_none(cuda, said, readonly):
    with dlwrap.wrap(plain(**said)) as buffer:
        assert (buffer.readonly, buffer.array.flags.writeable) == (readonly, not readonly)


def test_a_legacy_tensor_can_be_handed_over_as_writable(cuda):
    with dlwrap.wrap(plain(version=None), readonly=False) as buffer:
        assert not buffer.readonly


@pytest.mark.parametrize("version", [(1, 1), None], ids=["versioned", "legacy"])
def test_the_deleter_is_called_once_and_only_after_the_gpu_is_done(cuda, version):
    producer = plain(version=version)
    capsule = dlwrap.wrap(producer).__dlpack__(stream=1, max_version=(1, 0))
    cuda.hold(1)
    cuda.launch(1, look(capsule).as_array(np.float32))
    del capsule
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(0.05)
    assert producer.deleted == 0
    cuda.let_go(1)
    dlwrap.reclaim(SECONDS)
    assert (producer.deleted, producer.dropped) == (1, 0)


def test_the_deleter_is_called_by_close(cuda):
    producer = plain()
    dlwrap.wrap(producer).close(SECONDS)
    assert producer.deleted == 1


def test_the_array_of_a_closed_buffer_keeps_the_tensor(cuda):
    producer = plain()
    kept = wrapped(producer)
    assert producer.deleted == 0
    del kept
    assert producer.deleted == 1


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"dtype": (4, 16, 4)}, r"NumPy has no vectors of 4 lanes; wrap numpy.array\(x\), a copy"),
        ({"dtype": (3, 64, 1)}, "NumPy has no dtype for DLPack's DType"),
        ({"version": (2, 0)}, r"cannot read a tensor of DLPack 2: dlwrap knows version 1"),
    ],
)
def test_a_tensor_that_cannot_be_read_is_given_back(cuda, said, message):
    producer = plain(**said)
    with pytest.raises(BufferError, match=message):
        dlwrap.wrap(producer)
    assert producer.deleted + producer.dropped == 1


def test_a_tensor_that_cannot_be_exported_is_given_back(cuda):
    producer = Producer(VALUES[:, ::-1])
    with pytest.raises(BufferError, match="negative strides"):
        dlwrap.wrap(producer)
    assert producer.deleted == 1


def test_a_used_capsule_is_refused(cuda):
    producer = plain()
    capsule = producer.__dlpack__()
    producer.__dlpack__ = lambda **asked: capsule
    dlwrap.wrap(producer).close(SECONDS)
    with pytest.raises(BufferError, match="cannot read a DLPack capsule that was used already"):
        dlwrap.wrap(producer)


@pytest.mark.parametrize("device", [(2, 0), (13, 0), (10, 0)])
def test_a_tensor_in_device_memory_is_refused_without_asking_for_it(cuda, device):
    producer = plain(device=device)
    with pytest.raises(TypeError, match=r"lies in device memory already .*give it to the framework as it is"):
        dlwrap.wrap(producer)
    assert not producer.asked


def test_a_tensor_that_cuda_page_locked_is_taken(cuda):
    np.testing.assert_array_equal(wrapped(plain(device=(3, 0))), VALUES)


def test_what_a_producer_says_when_it_refuses_is_passed_on(cuda):
    class Refusing(Producer):
        def __dlpack__(self, **asked):
            raise BufferError("Can't export tensors that require gradient")

    with pytest.raises(BufferError, match=r"Refusing: it cannot be exported \(Can't export .* gradient\); wrap"):
        dlwrap.wrap(Refusing(VALUES))


# ---- torch, JAX, tvm-ffi ----


def test_a_tensor_of_torch_is_wrapped_in_place(cuda):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.arange(12.0).reshape(3, 4)
    with dlwrap.wrap(tensor[:, 1:]) as buffer:
        buffer.array[0, 0] = 50
        assert (buffer.shape, buffer.strides) == ((3, 3), (16, 4))
    assert tensor[0, 1] == 50


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "bool", "complex64", "int8"])
def test_the_dtypes_of_torch_are_kept(cuda, name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.zeros(8, dtype=torch.uint8).view(getattr(torch, name))
    with dlwrap.wrap(tensor) as buffer:
        assert (buffer.dtype.name, buffer.array.ctypes.data) == (name, tensor.data_ptr())


def test_slices_of_one_tensor_share_the_memory_of_its_storage(cuda):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.zeros(64, 64)
    with dlwrap.wrap(tensor[0]) as row, dlwrap.wrap(tensor[:, 0]) as column, dlwrap.wrap(tensor[1].numpy()) as array:
        assert {row.memory, column.memory, array.memory} == {"pinned"}
        assert dlwrap.stats().pinned_bytes == tensor.nbytes
        assert cuda.count("cuMemHostRegister") == 1


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.numpy()], ids=["tensor", "its array"])
def test_a_tensor_that_is_given_other_data_takes_nothing_from_the_wrap(cuda, view):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    array = cuda.host_array(64)
    alive, tensor = memory_of(array), torch.from_numpy(array)
    del array
    buffer = dlwrap.wrap(view(tensor))
    tensor.data = torch.empty(0, dtype=tensor.dtype)
    assert alive() is not None
    buffer.close(SECONDS)
    assert alive() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.requires_grad_(), r"require gradient.*wrap t.detach\(\)"),
        (lambda t: t.to_sparse(), r"layout other than torch.strided.*t.to_dense\(\)"),
        (lambda t: t.cfloat().conj(), r"conjugate bit.*t.resolve_conj\(\)"),
    ],
)
def test_tensors_that_torch_does_not_export_are_refused_with_the_cure(cuda, change, message):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(BufferError, match=message):
        dlwrap.wrap(change(torch.ones(3)))


@pytest.mark.parametrize("name", ["float32", "int32", "bfloat16", "float8_e4m3fn"])
def test_an_array_of_jax_is_wrapped_in_place_and_read_only(cuda, name):
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    values = jnp.arange(64).astype(name)
    with dlwrap.wrap(values) as buffer:
        assert (buffer.readonly, buffer.dtype.name) == (True, name)
        assert buffer.array.ctypes.data == values.unsafe_buffer_pointer()


def test_a_tensor_of_tvm_ffi_is_wrapped_in_place(cuda):
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="tvm-ffi is not installed")
    values = VALUES.copy()
    np.testing.assert_array_equal(wrapped(tvm_ffi.from_dlpack(values)), values)
    assert wrapped(tvm_ffi.from_dlpack(values)).ctypes.data == values.ctypes.data


# ---- pyarrow, pandas, polars ----


def test_an_array_of_pyarrow_is_wrapped_in_place_and_read_only(cuda):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    values = pyarrow.array([1.0, 2.0, 3.0])
    with dlwrap.wrap(values[1:]) as buffer:
        assert (buffer.readonly, buffer.array.tolist()) == (True, [2.0, 3.0])
        assert buffer.array.ctypes.data == values.buffers()[1].address + 8


def test_a_buffer_of_pyarrow_is_read_as_what_is_told(cuda):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    values = pyarrow.array([1, None, 3], pyarrow.int32())
    held = values.buffers()[1]
    with dlwrap.wrap(held, dtype=np.int32) as buffer:
        assert buffer.array[[0, 2]].tolist() == [1, 3]
        assert buffer.array.ctypes.data == held.address


@pytest.mark.parametrize(
    ("values", "message"),
    [([1, None], "no nulls.*mind the nulls"), ([True], "Bit-packed.*buffers"), (["a"], "not compatible")],
)
def test_arrays_of_pyarrow_that_are_no_plain_memory_are_refused_with_the_cure(cuda, values, message):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with pytest.raises(BufferError, match=message):
        dlwrap.wrap(pyarrow.array(values))


def test_a_chunked_array_is_wrapped_if_it_has_one_chunk(cuda):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    chunk = pyarrow.array([1.0, 2.0])
    np.testing.assert_array_equal(wrapped(pyarrow.chunked_array([chunk])), [1.0, 2.0])
    with pytest.raises(BufferError, match=r"ChunkedArray of 2 chunks: they lie apart; wrap each of x.chunks"):
        dlwrap.wrap(pyarrow.chunked_array([chunk, chunk]))


@pytest.mark.parametrize("dtype", ["float64", "int32", "Int64", "float64[pyarrow]"])
def test_a_column_of_pandas_is_wrapped_where_it_is_plain_memory(cuda, dtype):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    column = pandas.Series([1, 2, 3], dtype=dtype)
    with dlwrap.wrap(column) as buffer:
        assert buffer.array.tolist() == [1, 2, 3]
        assert address(np.asarray(column)) == address(buffer.array)


@pytest.mark.parametrize(
    "make",
    [
        lambda pandas: pandas.Series([1, None], dtype="Int64"),
        lambda pandas: pandas.DataFrame({"a": [1.0], "b": [2]}),
        lambda pandas: pandas.Series(["a"]),
    ],
    ids=["nulls", "mixed columns", "strings"],
)
def test_what_pandas_would_copy_is_refused_with_the_cure(cuda, make):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(BufferError, match=r"it gives NumPy a copy, not its own memory; wrap s.to_numpy\(\)"):
        dlwrap.wrap(make(pandas))


def test_a_column_of_polars_is_wrapped_where_it_is_plain_memory(cuda):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    column = polars.Series([1.0, 2.0])
    with dlwrap.wrap(column) as buffer:
        assert (buffer.array.tolist(), buffer.readonly) == ([1.0, 2.0], True)
    for copied in (polars.Series([1.0, None]), polars.concat([column, column], rechunk=False)):
        with pytest.raises(BufferError, match=r"it gives NumPy a copy, not its own memory; wrap s.to_numpy\(\)"):
            dlwrap.wrap(copied)


# ---- NumPy's protocols ----


class Interface:
    def __init__(self, values):
        self.values = values

    @property
    def __array_interface__(self):
        return self.values.__array_interface__


def test_an_object_with_the_array_interface_is_wrapped_in_place_and_held(cuda):
    values = VALUES.copy()
    given = Interface(values)
    alive = weakref.ref(given)
    buffer = dlwrap.wrap(given)
    del given
    buffer.array[0, 0] = 50
    assert (values[0, 0], alive() is None) == (50, False)
    buffer.close(SECONDS)
    assert alive() is None


def test_an_object_that_gives_copies_is_refused(cuda):
    class Copying(Interface):
        @property
        def __array_interface__(self):
            self.last = self.values.copy()
            return self.last.__array_interface__ | {"data": self.last.tobytes()}

    with pytest.raises(BufferError, match=r"Copying: it gives NumPy a copy, not its own memory; wrap numpy.array\(x\)"):
        dlwrap.wrap(Copying(VALUES))


def test_an_object_that_numpy_cannot_read_is_refused(cuda):
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise OSError("no such file")

    with pytest.raises(BufferError, match=r"Broken: NumPy cannot read it \(no such file\)"):
        dlwrap.wrap(Broken())


# ---- buffers, and how they are read ----


def shared(nbytes):
    block = shared_memory.SharedMemory(create=True, size=nbytes)
    weakref.finalize(block, block.unlink)
    return block


BUFFERS = {
    "bytearray": bytearray,
    "mmap": lambda n: mmap.mmap(-1, n),
    "SharedMemory": shared,
    "array.array": lambda n: array.array("d", bytes(n)),
    "memoryview": lambda n: memoryview(bytearray(n)),
    "PickleBuffer": lambda n: pickle.PickleBuffer(bytearray(n)),
    "ndarray": lambda n: np.zeros(n, np.uint8),
}


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize("dtype", [np.float32, "int16", ml_dtypes.bfloat16, "float8_e4m3fn"])
def test_a_raw_buffer_is_read_as_what_is_told(cuda, make, dtype):
    with dlwrap.wrap(make(4096), dtype=dtype, shape=(2, 8, -1)) as buffer:
        itemsize = np.dtype(dtype).itemsize if dtype != "float8_e4m3fn" else 1
        assert (buffer.shape, buffer.array.itemsize) == ((2, 8, 256 // itemsize), itemsize)


def test_a_dtype_alone_reads_one_dimension(cuda):
    assert wrapped(VALUES.copy(), dtype=np.uint8).shape == (48,)


def test_a_shape_alone_keeps_the_dtype(cuda):
    seen = wrapped(VALUES.copy(), shape=(2, 6))
    assert (seen.dtype, seen.tolist()) == (np.float32, VALUES.reshape(2, 6).tolist())


@pytest.mark.parametrize(("shape", "elements"), [(0, 0), ((3, 0), 0), ((), 1), (1, 1)])
def test_nothing_and_one_element_have_shapes_too(cuda, shape, elements):
    assert wrapped(np.zeros(elements), shape=shape).size == elements


def test_a_dtype_of_torch_names_what_it_means(cuda):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert wrapped(bytearray(64), dtype=torch.bfloat16).dtype == ml_dtypes.bfloat16
    assert wrapped(bytearray(64), dtype=torch.float64).dtype == np.float64


def test_what_is_read_otherwise_holds_the_memory(cuda):
    array = cuda.host_array(16)
    alive, capsule = memory_of(array), dlwrap.wrap(array, dtype=np.int32).__dlpack__(stream=1)
    del array
    assert alive() is not None
    del capsule
    dlwrap.reclaim(SECONDS)
    assert alive() is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "nothing"}, TypeError, "dtype must be a dtype of NumPy, ml_dtypes, torch or JAX, got 'nothing'"),
        ({"dtype": 3}, TypeError, "dtype must be a dtype of .*, got 3"),
        ({"dtype": object}, ValueError, r"dtype must have elements of a fixed size, got dtype\('O'\)"),
        ({"dtype": "S0"}, ValueError, r"dtype must have elements of a fixed size"),
        ({"dtype": "S4"}, BufferError, "DLPack has no strings"),
        ({"shape": "12"}, TypeError, "shape must be an integer or a tuple of integers, got '12'"),
        ({"shape": (2, 1.5)}, TypeError, r"shape must be an integer or a tuple of integers, got \(2, 1.5\)"),
        ({"shape": (-1, -1)}, ValueError, r"of which one may be -1, got \(-1, -1\)"),
        ({"shape": (-2,)}, ValueError, r"extents of at least 0, .*got \(-2,\)"),
        ({"shape": (-1, 0)}, ValueError, r"cannot read 48 bytes as shape \(-1, 0\) of 4-byte elements"),
        (
            {"shape": 13},
            ValueError,
            r"cannot read 48 bytes as shape \(13,\) of 4-byte elements: the bytes have to fill",
        ),
        ({"dtype": np.complex128, "shape": (2, 2)}, ValueError, r"cannot read 48 bytes as shape \(2, 2\) of 16-byte"),
    ],
)
def test_what_the_bytes_do_not_fill_is_refused(cuda, options, error, message):
    with pytest.raises(error, match=message):
        dlwrap.wrap(VALUES.copy(), **options)


def test_memory_with_gaps_is_not_read_otherwise(cuda):
    with pytest.raises(BufferError, match=r"cannot reinterpret strides .*wrap numpy.ascontiguousarray\(a\)"):
        dlwrap.wrap(VALUES[:, 1:], dtype=np.uint8)


def test_objects_are_not_read_as_numbers(cuda):
    with pytest.raises(BufferError, match="cannot reinterpret dtype object: its elements are pointers"):
        dlwrap.wrap(np.array([None]), dtype=np.uint64)


def test_a_masked_array_is_refused_however_it_is_read(cuda):
    with pytest.raises(BufferError, match="DLPack has no masks"):
        dlwrap.wrap(np.ma.array([1.0], mask=[True]), dtype=np.uint8)


def test_a_misaligned_reading_is_refused_with_the_cure(cuda):
    with pytest.raises(BufferError, match="cannot export address"):
        dlwrap.wrap(np.zeros(9, np.uint8)[1:], dtype=np.float64)
