"""Copies and fills: each side lies inside one registration or allocation, or outside all."""

import numpy as np
import pytest
from cuda.bindings import driver as cu

COPIES = {
    "HtoD": lambda device, host, nbytes, stream: cu.cuMemcpyHtoD(device, host, nbytes),
    "HtoDAsync": cu.cuMemcpyHtoDAsync,
    "DtoH": lambda device, host, nbytes, stream: cu.cuMemcpyDtoH(host, device, nbytes),
    "DtoHAsync": lambda device, host, nbytes, stream: cu.cuMemcpyDtoHAsync(host, device, nbytes, stream),
    "generic": lambda device, host, nbytes, stream: cu.cuMemcpy(device, host, nbytes),
    "genericAsync": cu.cuMemcpyAsync,
    "DtoD": lambda device, host, nbytes, stream: cu.cuMemcpyDtoD(device, host, nbytes),
    "DtoDAsync": cu.cuMemcpyDtoDAsync,
}


@pytest.fixture
def device_memory(cuda):
    pointer = cu.cuMemAlloc(4096)[1]
    yield pointer
    cu.cuMemFree(pointer)


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_no_copy_crosses_two_adjacent_registrations(cuda, outcome, register, stream, device_memory, copy):
    memory = cuda.host_array(200, np.uint8)
    register(memory[:100])
    register(memory[100:])
    assert outcome(copy(device_memory, memory.ctypes.data, 100, stream)) == "SUCCESS"
    assert outcome(copy(device_memory, memory.ctypes.data + 100, 100, stream)) == "SUCCESS"
    assert outcome(copy(device_memory, memory.ctypes.data, 101, stream)) == "INVALID_VALUE"


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("registered", [slice(0, 100), slice(100, 200), slice(50, 150)], ids=["start", "end", "middle"])
def test_no_copy_crosses_registered_and_other_memory(cuda, outcome, register, stream, device_memory, copy, registered):
    memory = cuda.host_array(200, np.uint8)
    register(memory[registered])
    assert outcome(copy(device_memory, memory.ctypes.data, 200, stream)) == "INVALID_VALUE"


@pytest.mark.parametrize("copy", [name for name in COPIES if "DtoD" not in name])
def test_copies_of_pageable_memory_work(cuda, outcome, stream, device_memory, copy):
    memory = cuda.host_array(200, np.uint8)
    assert outcome(COPIES[copy](device_memory, memory.ctypes.data, 200, stream)) == "SUCCESS"


def test_no_device_copy_takes_pageable_memory(cuda, outcome, device_memory):
    memory = cuda.host_array(200, np.uint8)
    assert outcome(cu.cuMemcpyDtoD(device_memory, memory.ctypes.data, 200)) == "INVALID_VALUE"


def test_a_device_copy_takes_pageable_memory_where_the_device_reaches_it(cuda, outcome, device_memory):
    cuda.configure(pageable=True)
    memory = cuda.host_array(200, np.uint8)
    assert outcome(cu.cuMemcpyDtoD(device_memory, memory.ctypes.data, 200)) == "SUCCESS"


def test_no_copy_leaves_its_allocation(cuda, outcome, device_memory):
    memory = cuda.host_array(5000, np.uint8)
    assert outcome(cu.cuMemcpyHtoD(device_memory, memory.ctypes.data, 4097)) == "INVALID_VALUE"


@pytest.mark.parametrize("offset", [0, 1 << 44])
@pytest.mark.parametrize("pinned", [False, True])
def test_bytes_go_there_and_back(cuda, pinned, offset, device_memory):
    cuda.configure(pointer_offset=offset)
    source = cuda.host_array(200_000 // 8, np.float64)
    source[...] = np.arange(source.size)
    back = cuda.host_array(source.size, np.float64)
    pointer = cu.cuMemAlloc(source.nbytes)[1]
    if pinned:
        for array in (source, back):
            cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 2)
    cu.cuMemcpyHtoD(pointer, source.ctypes.data, source.nbytes)
    cu.cuMemcpyDtoH(back.ctypes.data, pointer, source.nbytes)
    np.testing.assert_array_equal(back, source)
    if pinned:
        for array in (source, back):
            cu.cuMemHostUnregister(array.ctypes.data)
    cu.cuMemFree(pointer)


def test_an_asynchronous_copy_of_registered_memory_happens_when_the_stream_gets_there(
    cuda, register, stream, device_memory
):
    array = register(cuda.host_array(4, np.uint8, fill=1))
    result = np.zeros(4, np.uint8)
    cuda.hold(stream)
    cu.cuMemcpyHtoDAsync(device_memory, array.ctypes.data, 4, stream)
    array[...] = 2
    cuda.let_go(stream)
    cu.cuMemcpyDtoH(result.ctypes.data, device_memory, 4)
    assert result.tolist() == [2, 2, 2, 2]


def test_an_asynchronous_copy_of_pageable_memory_reads_it_at_once(cuda, stream, device_memory):
    array = cuda.host_array(4, np.uint8, fill=1)
    result = np.zeros(4, np.uint8)
    cuda.hold(stream)
    cu.cuMemcpyHtoDAsync(device_memory, array.ctypes.data, 4, stream)
    del array
    cuda.let_go(stream)
    cu.cuMemcpyDtoH(result.ctypes.data, device_memory, 4)
    assert result.tolist() == [1, 1, 1, 1]


def test_an_asynchronous_copy_to_pageable_memory_waits(cuda, threads, stream, device_memory):
    result = np.zeros(4, np.uint8)
    cu.cuMemsetD8(device_memory, 7, 4)
    cuda.hold(stream)
    waiting = threads.start(lambda: cu.cuMemcpyDtoHAsync(result.ctypes.data, device_memory, 4, stream))
    waiting.join(0.05)
    assert waiting.is_alive()
    cuda.let_go(stream)
    waiting.join(10)
    assert result.tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (lambda pointer, stream: cu.cuMemsetD8(pointer, 3, 8), [3] * 8),
        (lambda pointer, stream: cu.cuMemsetD8Async(pointer, 3, 8, stream), [3] * 8),
        (lambda pointer, stream: cu.cuMemsetD32(pointer, 0x04030201, 2), [1, 2, 3, 4] * 2),
        (lambda pointer, stream: cu.cuMemsetD32Async(pointer, 0x04030201, 2, stream), [1, 2, 3, 4] * 2),
    ],
)
def test_fills_write_their_value(cuda, register, stream, fill, expected):
    array = register(cuda.host_array(8, np.uint8))
    fill(array.ctypes.data, stream)
    assert array.tolist() == expected


def test_copies_and_fills_of_nothing_do_nothing(cuda, outcome, stream):
    assert outcome(cu.cuMemcpyHtoD(0, 0, 0)) == "SUCCESS"
    assert outcome(cu.cuMemsetD8Async(0, 1, 0, stream)) == "SUCCESS"


def test_a_fill_must_be_aligned_to_its_value(cuda, outcome, device_memory):
    assert outcome(cu.cuMemsetD32(int(device_memory) + 1, 0, 1)) == "INVALID_VALUE"
