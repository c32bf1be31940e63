"""Real consumers on the simulated driver: they see the array as it is, and it outlives their use of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import dlwrap
from patience import SECONDS
from stand_ins import memory_of

OFFSET = 2**20  # so that the device's address of an array differs from the host's
A_MOMENT = 0.1  # seconds in which what must not end would end


@dataclass
class Seen:
    """What a consumer says of an array; strides in bytes, and None where it does not tell."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype
    device: int | None = 0
    readonly: bool | None = None


def look_at_core_view(view: Any) -> Seen:
    strides = None if view.strides is None else tuple(stride * view.dtype.itemsize for stride in view.strides)
    return Seen(view.ptr, view.shape, strides, view.dtype, view.device_id, view.readonly)


def take_by_core_dlpack(buffer: object) -> Any:
    return core_view().from_dlpack(buffer, stream_ptr=-1)


def take_by_core_any_interface(buffer: object) -> Any:
    return core_view().from_any_interface(buffer, stream_ptr=-1)


def take_by_core_cuda_array_interface(buffer: object) -> Any:
    return core_view().from_cuda_array_interface(buffer, stream_ptr=-1)


def core_view() -> Any:
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView

    Device(0).set_current()  # it asks the driver about pointers
    return StridedMemoryView


def take_by_tvm_ffi(buffer: object) -> Any:
    import tvm_ffi

    return tvm_ffi.from_dlpack(buffer)


def look_at_tvm_tensor(tensor: Any) -> Seen:
    dtype = np.dtype(str(tensor.dtype))
    strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
    assert tensor.device.type == "cuda"
    return Seen(tensor.data_ptr(), tuple(tensor.shape), strides, dtype, tensor.device.index)


def take_by_numba(buffer: object) -> Any:
    import numba.cuda

    return numba.cuda.as_cuda_array(buffer)


def look_at_numba_array(array: Any) -> Seen:
    pointer = array.device_ctypes_pointer.value or 0
    return Seen(pointer, array.shape, array.strides, array.dtype, device=None)


@dataclass
class Consumer:
    """Takes a buffer into an object of its own, and tells what that is."""

    module: str
    take: Callable[[object], Any]
    look: Callable[[Any], Seen]


CONSUMERS = {
    "cuda.core, DLPack": Consumer("cuda.core", take_by_core_dlpack, look_at_core_view),
    "cuda.core, any interface": Consumer("cuda.core", take_by_core_any_interface, look_at_core_view),
    "cuda.core, CUDA array interface": Consumer("cuda.core", take_by_core_cuda_array_interface, look_at_core_view),
    "tvm-ffi": Consumer("tvm_ffi", take_by_tvm_ffi, look_at_tvm_tensor),
    "numba": Consumer("numba.cuda", take_by_numba, look_at_numba_array),
}
BY_DLPACK = ["cuda.core, DLPack", "cuda.core, any interface", "tvm-ffi"]
TELL_READONLY = [name for name in CONSUMERS if name.startswith("cuda.core")]


@pytest.fixture(params=CONSUMERS)
def consumer(request: pytest.FixtureRequest, cuda: Any) -> Consumer:
    # After `cuda`, because numba looks for the driver when it is imported.
    pytest.importorskip(CONSUMERS[request.param].module)
    return CONSUMERS[request.param]


@pytest.fixture
def numba_cuda(cuda: Any) -> Any:
    return pytest.importorskip("numba.cuda")


def numbers(shape: tuple[int, ...], dtype: object = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


LAYOUTS = {
    "C-contiguous": numbers((3, 4)),
    "Fortran-contiguous": np.asfortranarray(numbers((3, 4))),
    "every other row and column": numbers((4, 6))[::2, 1:5:2],
    "transposed": numbers((2, 3, 4)).transpose(2, 0, 1),
    "no dimensions": numbers(()),
    "no elements": numbers((0, 3)),
    "repeated rows": np.lib.stride_tricks.as_strided(numbers((4,)), (3, 4), (0, 4)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_consumer_sees_pointer_shape_strides_and_dtype(cuda, consumer, layout):
    cuda.configure(pointer_offset=OFFSET)
    array = LAYOUTS[layout]
    seen = consumer.look(consumer.take(dlwrap.wrap(array)))
    assert seen.shape == array.shape
    assert seen.dtype == array.dtype
    assert seen.device in {0, None}
    if array.size:
        assert seen.pointer == array.ctypes.data + OFFSET
        assert seen.strides == array.strides or (seen.strides is None and array.flags.c_contiguous)


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.uint8, np.int64, np.uint64, np.float16, np.float32, np.float64, np.complex64]
)
def test_a_consumer_sees_the_element_type(cuda, consumer, dtype):
    if consumer.take is take_by_tvm_ffi and dtype is np.complex64:
        pytest.skip("tvm-ffi has no complex types")
    seen = consumer.look(consumer.take(dlwrap.wrap(numbers((5,), dtype))))
    assert seen.dtype == dtype


@pytest.mark.parametrize("consumer", BY_DLPACK, indirect=True)
def test_a_consumer_by_dlpack_sees_bfloat16(cuda, consumer):
    array = numbers((5,), pytest.importorskip("ml_dtypes").bfloat16)
    seen = consumer.look(consumer.take(dlwrap.wrap(array)))
    assert (seen.pointer, seen.dtype) == (array.ctypes.data, array.dtype)


def test_a_kernel_reaches_the_array_through_the_pointer_a_consumer_sees(cuda, consumer):
    cuda.configure(pointer_offset=OFFSET)
    array = numbers((8,), np.uint8)
    seen = consumer.look(consumer.take(dlwrap.wrap(array)))
    cuda.launch(1, (seen.pointer, array.nbytes), write=7)
    assert (array == 7).all()


# ---- read-only arrays ----


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("consumer", TELL_READONLY, indirect=True)
def test_a_consumer_that_knows_read_only_memory_is_told(cuda, consumer, writable):
    array = numbers((3,))
    array.flags.writeable = writable
    view = consumer.take(dlwrap.wrap(array))
    assert consumer.look(view).readonly is not writable


@pytest.mark.parametrize("consumer", ["tvm-ffi"], indirect=True)
@pytest.mark.parametrize("readonly", [None, False])
def test_tvm_ffi_takes_a_read_only_array(cuda, consumer, readonly):
    # Through the exchange API, whose tensors can say that they are read-only.
    array = numbers((3,))
    array.flags.writeable = False
    tensor = consumer.take(dlwrap.wrap(array, readonly=readonly))
    assert tensor.data_ptr() == array.ctypes.data


# ---- lifetime ----


def test_a_consumer_keeps_the_array_until_it_drops_it(cuda, consumer):
    array = cuda.host_array(64)
    alive, buffer = memory_of(array), dlwrap.wrap(array)
    taken = consumer.take(buffer)
    del array, buffer
    dlwrap.reclaim(SECONDS)
    assert alive() is not None
    assert len(cuda.registrations) == 1
    del taken
    dlwrap.reclaim(SECONDS)
    assert alive() is None
    assert cuda.registrations == []


@pytest.mark.parametrize("consumer", BY_DLPACK, indirect=True)
def test_the_last_of_several_imports_releases(cuda, consumer):
    array = cuda.host_array(64)
    alive, buffer = memory_of(array), dlwrap.wrap(array)
    taken = [consumer.take(buffer) for _ in range(3)]
    assert buffer.exports == 3
    del array, buffer
    while taken:
        dlwrap.reclaim(SECONDS)
        assert alive() is not None
        taken.pop()
    dlwrap.reclaim(SECONDS)
    assert alive() is None


@pytest.mark.parametrize("consumer", BY_DLPACK, indirect=True)
def test_a_buffer_with_imports_refuses_to_close(cuda, consumer):
    buffer = dlwrap.wrap(numbers((3,)))
    taken = consumer.take(buffer)
    with pytest.raises(BufferError, match="1 importer of this HostWrappedBuffer still alive"):
        buffer.close()
    del taken
    buffer.close(SECONDS)


@pytest.mark.parametrize("destroyed", [False, True])
def test_the_array_outlives_work_on_a_stream_that_nobody_named(cuda, consumer, destroyed):
    # The simulated driver aborts when memory is unregistered, or watched memory freed, with work pending on it.
    array = cuda.host_array(64, np.uint8)
    alive, buffer, stream = memory_of(array), dlwrap.wrap(array), cuda.create_stream(blocking=False)
    taken = consumer.take(buffer)
    cuda.hold(stream)
    cuda.launch(stream, (consumer.look(taken).pointer, array.nbytes), write=5)
    if destroyed:
        cuda.destroy_stream(stream)
    del array, buffer, taken
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(A_MOMENT)
    assert alive() is not None
    cuda.let_go(stream)
    dlwrap.reclaim(SECONDS)
    assert alive() is None


@pytest.mark.parametrize("consumer", ["cuda.core, DLPack"], indirect=True)
def test_a_stream_told_to_cuda_core_is_waited_for(cuda, consumer):
    array = cuda.host_array(64, np.uint8)
    alive, buffer, stream = memory_of(array), dlwrap.wrap(array), cuda.create_stream(blocking=False)
    view = core_view().from_dlpack(buffer, stream_ptr=stream)
    cuda.hold(stream)
    cuda.launch(stream, (view.ptr, array.nbytes), write=5)
    del array, buffer, view
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(A_MOMENT)
    assert alive() is not None
    cuda.let_go(stream)
    dlwrap.reclaim(SECONDS)
    assert alive() is None


# ---- stream objects ----


def test_a_recorded_numba_stream_is_waited_for_by_itself(cuda, numba_cuda):
    cuda.configure(pageable=True)  # so that the release need not unregister, which waits for the device
    array = cuda.host_array(64, np.uint8)
    alive, buffer, other = memory_of(array), dlwrap.wrap(array), cuda.create_stream(blocking=False)
    stream = numba_cuda.stream()
    buffer.record_stream(stream)
    handle, unrelated = stream.__cuda_stream__()[1], cuda.host_array(64, np.uint8)
    cuda.hold(other)
    cuda.launch(other, unrelated)
    cuda.hold(handle)
    cuda.launch(handle, array, write=5)
    del array, buffer, stream
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(A_MOMENT)
    assert alive() is not None
    cuda.let_go(handle)
    dlwrap.reclaim(SECONDS)
    assert alive() is None
    assert cuda.pending(other) == 1
    cuda.let_go(other)


def test_a_recorded_cuda_core_stream_may_be_closed_before_the_release(cuda):
    # Its handle is dead then; the simulated driver aborts when one is touched.
    device = pytest.importorskip("cuda.core", reason="needs cuda-core").Device(0)
    device.set_current()
    array = cuda.host_array(64, np.uint8)
    alive, buffer, stream = memory_of(array), dlwrap.wrap(array), device.create_stream()
    buffer.record_stream(stream)
    handle = int(stream.handle)
    cuda.hold(handle)
    cuda.launch(handle, array, write=5)
    stream.close()
    del array, buffer
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(A_MOMENT)
    assert alive() is not None
    cuda.let_go(handle)
    dlwrap.reclaim(SECONDS)
    assert alive() is None


# ---- numba copies ----


@pytest.mark.parametrize("layout", ["C-contiguous", "Fortran-contiguous", "no dimensions", "no elements"])
def test_numba_copies_the_values_out(cuda, numba_cuda, layout):
    cuda.configure(pointer_offset=OFFSET)
    array = LAYOUTS[layout]
    assert np.array_equal(numba_cuda.as_cuda_array(dlwrap.wrap(array)).copy_to_host(), array)


def test_what_numba_copies_in_is_in_the_array(cuda, numba_cuda):
    cuda.configure(pointer_offset=OFFSET)
    array = numbers((3, 4))
    numba_cuda.as_cuda_array(dlwrap.wrap(array)).copy_to_device(np.full((3, 4), 7, np.float32))
    assert (array == 7).all()


def test_numba_copies_part_of_a_wrapped_array(cuda, numba_cuda):
    array = numbers((10,))
    device_array = numba_cuda.as_cuda_array(dlwrap.wrap(array))
    device_array[2:4].copy_to_device(np.array([70, 80], np.float32))
    assert array[:5].tolist() == [0, 1, 70, 80, 4]
    assert device_array[2:6].copy_to_host().tolist() == [70, 80, 4, 5]


# ---- pageable memory ----


@pytest.mark.parametrize("consumer", BY_DLPACK, indirect=True)
def test_a_consumer_by_dlpack_sees_pageable_memory(cuda, consumer):
    cuda.configure(pageable=True)
    array = numbers((3, 4))
    seen = consumer.look(consumer.take(dlwrap.wrap(array)))
    assert (seen.pointer, seen.shape) == (array.ctypes.data, array.shape)
    assert cuda.registrations == []


def test_numba_refuses_pageable_memory(cuda, numba_cuda):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(numbers((3,)))
    with pytest.raises(TypeError, match="cuda array interface"):
        numba_cuda.as_cuda_array(buffer)
