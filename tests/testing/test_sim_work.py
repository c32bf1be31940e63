"""Simulated kernels: what they may touch, in which order they run, and what an illegal access does."""

import numpy as np
import pytest
from cuda.bindings import driver as cu


def test_a_kernel_writes_where_its_pointer_says(cuda, register, stream):
    array = register(cuda.host_array(8, np.uint8))
    cuda.launch(stream, array[2:4], write=7)
    assert array.tolist() == [0, 0, 7, 7, 0, 0, 0, 0]


def test_a_kernel_may_cross_adjacent_registrations(cuda, outcome, register, stream):
    array = cuda.host_array(8, np.uint8)
    register(array[:4])
    register(array[4:])
    cuda.launch(stream, array, write=7)
    assert outcome(cu.cuStreamSynchronize(stream)) == "SUCCESS"
    assert array.tolist() == [7] * 8


def test_a_kernel_on_memory_nobody_registered_is_a_sticky_error(cuda, outcome, stream):
    cuda.launch(stream, cuda.host_array(8))
    for call in (lambda: cu.cuStreamSynchronize(stream), cu.cuCtxSynchronize, lambda: cu.cuMemAlloc(8)):
        assert outcome(call()) == "ILLEGAL_ADDRESS"
    cuda.reset()
    cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
    assert outcome(cu.cuStreamSynchronize(stream)) == "SUCCESS"


def test_a_kernel_past_the_end_of_a_registration_is_an_error(cuda, outcome, register, stream):
    array = cuda.host_array(8, np.uint8)
    register(array[:4])
    cuda.launch(stream, (array.ctypes.data, 5))
    assert outcome(cu.cuStreamQuery(stream)) == "ILLEGAL_ADDRESS"
    cuda.reset(force=True)


def test_a_kernel_reaches_all_host_memory_where_the_device_does(cuda, outcome, stream):
    cuda.configure(pageable=True)
    array = np.zeros(8, np.uint8)
    cuda.launch(stream, array, write=5)
    assert outcome(cu.cuStreamSynchronize(stream)) == "SUCCESS"
    assert array.tolist() == [5] * 8


def test_a_kernel_on_unmapped_memory_is_an_error_also_there(cuda, outcome, stream):
    cuda.configure(pageable=True)
    array = cuda.host_array(8)
    gone = (array.ctypes.data, array.nbytes)
    del array
    cuda.launch(stream, gone)
    assert outcome(cu.cuStreamQuery(stream)) == "ILLEGAL_ADDRESS"


@pytest.mark.parametrize(("write", "expected"), [(None, "SUCCESS"), (1, "ILLEGAL_ADDRESS")])
def test_read_only_registrations_can_only_be_read(cuda, outcome, register, stream, write, expected):
    array = register(cuda.host_array(8), cu.CU_MEMHOSTREGISTER_DEVICEMAP | cu.CU_MEMHOSTREGISTER_READ_ONLY)
    cuda.launch(stream, array, write=write)
    assert outcome(cu.cuStreamQuery(stream)) == expected
    cuda.reset(force=True)


def test_where_the_pointers_differ_only_the_device_pointer_works(cuda, outcome, stream):
    cuda.configure(pointer_offset=1 << 44)
    array = cuda.host_array(8, np.uint8)
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 2)
    cuda.launch(stream, (int(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0)[1]), 8), write=3)
    assert outcome(cu.cuStreamQuery(stream)) == "SUCCESS"
    assert array.tolist() == [3] * 8
    cuda.launch(stream, (array.ctypes.data, 8), write=4)
    assert outcome(cu.cuStreamQuery(stream)) == "ILLEGAL_ADDRESS"
    assert array.tolist() == [3] * 8
    cuda.reset(force=True)


def test_work_on_a_held_stream_runs_in_order_when_it_is_let_go(cuda, register, stream):
    array = register(cuda.host_array(1, np.uint8))
    cuda.hold(stream)
    cuda.launch(stream, array, write=1)
    cuda.launch(stream, array, write=2)
    assert (cuda.pending(stream), cuda.pending(), array[0]) == (2, 2, 0)
    cuda.let_go(stream)
    assert (cuda.pending(stream), cuda.pending(), array[0]) == (0, 0, 2)


def test_streams_do_not_wait_for_each_other(cuda, register, stream, other_stream):
    array = register(cuda.host_array(2, np.uint8))
    cuda.hold(stream)
    cuda.launch(stream, array[:1], write=1)
    cuda.launch(other_stream, array[1:], write=1)
    assert array.tolist() == [0, 1]
    cuda.let_go(stream)


def test_work_on_the_legacy_stream_waits_for_blocking_streams_only(cuda, register, stream, other_stream):
    array = register(cuda.host_array(1, np.uint8))
    for each, expected in ((other_stream, 3), (stream, 0)):
        array[0] = 0
        cuda.hold(each)
        cuda.launch(each, array)
        cuda.launch(0, array, write=3)
        assert array[0] == expected
        cuda.let_go(each)
        assert array[0] == 3


def test_blocking_streams_wait_for_the_legacy_stream(cuda, register, stream, other_stream):
    array = register(cuda.host_array(2, np.uint8))
    cuda.hold(1)
    cuda.launch(1, array)
    cuda.launch(stream, array[:1], write=1)
    cuda.launch(other_stream, array[1:], write=1)
    assert array.tolist() == [0, 1]
    cuda.let_go(1)
    assert array.tolist() == [1, 1]


def test_an_event_on_the_legacy_stream_is_a_barrier_between_blocking_streams(cuda, register, stream, event):
    array = register(cuda.host_array(2, np.uint8))
    second = cuda.create_stream()
    cuda.hold(stream)
    cuda.launch(stream, array[:1], write=1)
    cu.cuEventRecord(event, 0)
    cuda.launch(second, array[1:], write=1)
    assert array.tolist() == [0, 0]
    cuda.let_go(stream)
    assert array.tolist() == [1, 1]


def test_work_of_a_context_with_an_error_never_runs(cuda, register, stream):
    array = register(cuda.host_array(1, np.uint8))
    second = cuda.create_stream()
    cuda.hold(second)
    cuda.launch(second, array, write=1)
    cuda.launch(stream, cuda.host_array(8))
    cuda.let_go(second)
    assert array[0] == 0
    cuda.reset(force=True)


@pytest.mark.parametrize("write", [-1, 256])
def test_a_kernel_writes_a_byte(cuda, stream, write):
    with pytest.raises(ValueError, match="byte from 0 to 255"):
        cuda.launch(stream, cuda.host_array(4), write=write)


def test_a_kernel_takes_contiguous_arrays(cuda, stream):
    with pytest.raises(ValueError, match="contiguous"):
        cuda.launch(stream, cuda.host_array(4)[::2])
