"""Page-locking by exact bytes, device memory, and what a pointer tells of itself."""

import ctypes
import mmap
import tempfile
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver as cu

from cuda_calls import create_context

DEVICEMAP = cu.CU_MEMHOSTREGISTER_DEVICEMAP
READ_ONLY = cu.CU_MEMHOSTREGISTER_READ_ONLY
ATTRIBUTE = cu.CUpointer_attribute


@pytest.mark.parametrize(
    ("offset", "nbytes", "expected"),
    [
        (100, 50, "HOST_MEMORY_ALREADY_REGISTERED"),  # the same range
        (110, 10, "HOST_MEMORY_ALREADY_REGISTERED"),  # inside
        (50, 200, "HOST_MEMORY_ALREADY_REGISTERED"),  # around
        (50, 51, "HOST_MEMORY_ALREADY_REGISTERED"),  # the first byte
        (149, 10, "HOST_MEMORY_ALREADY_REGISTERED"),  # the last byte
        (50, 50, "SUCCESS"),  # just before, on the same page
        (150, 50, "SUCCESS"),  # just after
        (1000, 0, "INVALID_VALUE"),
    ],
)
def test_ranges_are_tracked_by_exact_bytes(cuda, outcome, register, offset, nbytes, expected):
    memory = cuda.host_array(4096, np.uint8)
    register(memory[100:150])
    start = memory.ctypes.data + offset
    assert outcome(cu.cuMemHostRegister(start, nbytes, DEVICEMAP)) == expected
    if expected == "SUCCESS":
        assert outcome(cu.cuMemHostUnregister(start)) == "SUCCESS"


def test_registrations_are_listed_by_address(cuda, register):
    memory = cuda.host_array(4096, np.uint8)
    register(memory[200:300])
    register(memory[0:100])
    start = memory.ctypes.data
    assert [(each.start - start, each.nbytes, each.flags) for each in cuda.registrations] == [
        (0, 100, DEVICEMAP),
        (200, 100, DEVICEMAP),
    ]


@pytest.mark.parametrize("offset", [1, 8, 49])
def test_unregistering_an_inner_pointer_is_an_invalid_value(cuda, outcome, register, offset):
    array = register(cuda.host_array(50, np.uint8))
    assert outcome(cu.cuMemHostUnregister(array.ctypes.data + offset)) == "INVALID_VALUE"


def test_unregistering_an_unknown_pointer_is_refused(cuda, outcome):
    array = cuda.host_array(50, np.uint8)
    assert outcome(cu.cuMemHostUnregister(array.ctypes.data)) == "HOST_MEMORY_NOT_REGISTERED"


def test_unregistering_twice_is_refused(cuda, outcome):
    array = cuda.host_array(50, np.uint8)
    cu.cuMemHostRegister(array.ctypes.data, 50, 0)
    assert outcome(cu.cuMemHostUnregister(array.ctypes.data)) == "SUCCESS"
    assert outcome(cu.cuMemHostUnregister(array.ctypes.data)) == "HOST_MEMORY_NOT_REGISTERED"


def test_unregistering_after_the_memory_was_unmapped_succeeds(cuda, outcome):
    memory = mmap.mmap(-1, 4096)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    assert outcome(cu.cuMemHostRegister(start, 4096, DEVICEMAP)) == "SUCCESS"
    memory.close()
    assert outcome(cu.cuMemHostUnregister(start)) == "SUCCESS"


@pytest.mark.parametrize(
    ("mode", "flags", "expected"),
    [
        ("r", DEVICEMAP, "INVALID_VALUE"),
        ("r", DEVICEMAP | READ_ONLY, "SUCCESS"),
        ("r+", DEVICEMAP, "INVALID_VALUE"),
        ("c", DEVICEMAP, "SUCCESS"),
    ],
)
def test_mapped_files_register_as_the_driver_allows(cuda, outcome, mode, flags, expected):
    # Beside this file, since the temporary directory may be a file system in memory.
    with tempfile.NamedTemporaryFile(dir=Path(__file__).parent) as file:
        np.arange(1024, dtype=np.uint8).tofile(file)
        file.flush()
        mapped = np.memmap(file.name, np.uint8, mode)
        result = outcome(cu.cuMemHostRegister(mapped.ctypes.data, mapped.nbytes, flags))
        if result == "SUCCESS":
            cu.cuMemHostUnregister(mapped.ctypes.data)
    assert result == expected


def _shared():
    memory = shared_memory.SharedMemory(create=True, size=4096)
    return memory, np.frombuffer(memory.buf, np.uint8)


def _anonymous():
    memory = mmap.mmap(-1, 4096)
    return memory, np.frombuffer(memory, np.uint8)


def _bytes():
    memory = bytes(5000)
    return memory, np.frombuffer(memory, np.uint8)


@pytest.mark.parametrize("make", [_shared, _anonymous, _bytes])
def test_memory_without_a_file_registers(cuda, outcome, make):
    memory, array = make()
    assert outcome(cu.cuMemHostRegister(array.ctypes.data, array.nbytes, DEVICEMAP)) == "SUCCESS"
    assert outcome(cu.cuMemHostUnregister(array.ctypes.data)) == "SUCCESS"
    del array
    if make is _shared:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize(
    ("settings", "flags"),
    [({"host_register": False}, DEVICEMAP), ({"read_only_register": False}, DEVICEMAP | READ_ONLY)],
)
def test_what_the_device_does_not_support_is_refused(cuda, outcome, settings, flags):
    cuda.configure(**settings)
    array = cuda.host_array(4)
    assert outcome(cu.cuMemHostRegister(array.ctypes.data, array.nbytes, flags)) == "NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("start", "nbytes", "flags"),
    [(0, 8, 0), (2**64 - 8, 16, 0), (4096, 8, 0), (None, 8, 64)],
    ids=["null", "wrapping", "unmapped", "unknown flag"],
)
def test_bad_arguments_of_register_are_invalid_values(cuda, outcome, start, nbytes, flags):
    array = cuda.host_array(8)
    where = array.ctypes.data if start is None else start
    assert outcome(cu.cuMemHostRegister(where, nbytes, flags)) == "INVALID_VALUE"


def test_unregister_waits_for_unrelated_and_destroyed_streams(cuda, outcome, threads, register, other_stream):
    busy, idle = register(cuda.host_array(4)), cuda.host_array(4)
    cu.cuMemHostRegister(idle.ctypes.data, idle.nbytes, 0)
    cuda.hold(other_stream)
    cuda.launch(other_stream, busy)
    cuda.destroy_stream(other_stream)
    waiting = threads.start(lambda: outcome(cu.cuMemHostUnregister(idle.ctypes.data)))
    waiting.join(0.05)
    assert waiting.is_alive()
    cuda.let_go(other_stream)
    waiting.join(10)
    assert waiting.results == ["SUCCESS"]


def test_unregister_does_not_wait_for_another_context(cuda, outcome, register, other_context_stream):
    memory, other = cuda.host_array(64, np.uint8), cuda.host_array(64, np.uint8)
    register(other)
    cuda.hold(other_context_stream)
    cuda.launch(other_context_stream, other)
    assert outcome(cu.cuMemHostRegister(memory.ctypes.data, 64, DEVICEMAP)) == "SUCCESS"
    assert outcome(cu.cuMemHostUnregister(memory.ctypes.data)) == "SUCCESS"
    assert cuda.pending() == 1
    cuda.let_go(other_context_stream)


@pytest.fixture
def other_context_stream(cuda):
    """A stream of a context beside the current one."""
    context = create_context()
    stream = cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)[1]
    cu.cuCtxPopCurrent()
    yield int(stream)
    cu.cuCtxDestroy(context)


def test_register_does_not_wait(cuda, register, stream):
    busy = register(cuda.host_array(4))
    cuda.hold(stream)
    cuda.launch(stream, busy)
    register(cuda.host_array(4))
    cuda.let_go(stream)


def test_freeing_device_memory_waits_for_the_device(cuda, outcome, threads, register, stream):
    busy = register(cuda.host_array(4))
    pointer = cu.cuMemAlloc(64)[1]
    cuda.hold(stream)
    cuda.launch(stream, busy)
    waiting = threads.start(lambda: outcome(cu.cuMemFree(pointer)))
    waiting.join(0.05)
    assert waiting.is_alive()
    cuda.let_go(stream)
    waiting.join(10)
    assert waiting.results == ["SUCCESS"]


def test_a_waiting_unregister_can_be_made_to_block_launches(cuda, threads, stream, other_stream):
    cuda.configure(unregister_blocks_launches=True)
    busy, idle, more = (cuda.host_array(4) for _ in range(3))
    for array in (busy, idle, more):
        cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
    cuda.hold(stream)
    cuda.launch(stream, busy)
    unregistering = threads.start(lambda: cu.cuMemHostUnregister(idle.ctypes.data))
    unregistering.join(0.05)
    launching = threads.start(lambda: cuda.launch(other_stream, more, write=1))
    launching.join(0.05)
    assert unregistering.is_alive()
    assert launching.is_alive()
    cuda.let_go(stream)
    launching.join(10)
    assert more.view(np.uint8)[0] == 1
    for array in (busy, more):
        cu.cuMemHostUnregister(array.ctypes.data)


def test_a_waiting_unregister_blocks_no_launch_by_default(cuda, threads, register, stream, other_stream):
    busy, more = register(cuda.host_array(4)), register(cuda.host_array(4))
    idle = cuda.host_array(4)
    cu.cuMemHostRegister(idle.ctypes.data, idle.nbytes, 0)
    cuda.hold(stream)
    cuda.launch(stream, busy)
    unregistering = threads.start(lambda: cu.cuMemHostUnregister(idle.ctypes.data))
    unregistering.join(0.05)
    cuda.launch(other_stream, more, write=1)
    assert unregistering.is_alive()
    assert more.view(np.uint8)[0] == 1
    cuda.let_go(stream)


def test_unregister_waits_for_its_own_range_when_not_strict(cuda, outcome, threads, stream):
    cuda.configure(strict=False)
    array = cuda.host_array(4)
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
    cuda.hold(stream)
    cuda.launch(stream, array, write=9)
    waiting = threads.start(lambda: outcome(cu.cuMemHostUnregister(array.ctypes.data)))
    waiting.join(0.05)
    assert waiting.is_alive()
    cuda.let_go(stream)
    waiting.join(10)
    assert waiting.results == ["SUCCESS"]
    assert array.view(np.uint8)[0] == 9


def test_pageable_memory_has_no_pointer_attributes(cuda, outcome):
    array = cuda.host_array(4)
    for attribute in ("MEMORY_TYPE", "DEVICE_POINTER", "RANGE_SIZE"):
        wanted = getattr(ATTRIBUTE, f"CU_POINTER_ATTRIBUTE_{attribute}")
        assert outcome(cu.cuPointerGetAttribute(wanted, array.ctypes.data)) == "INVALID_VALUE"


@pytest.mark.parametrize("offset", [0, 1 << 44])
def test_registered_memory_tells_its_type_and_its_range(cuda, offset):
    cuda.configure(pointer_offset=offset)
    array = cuda.host_array(100, np.uint8, offset=24)
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, DEVICEMAP)
    inner = array.ctypes.data + 10

    def ask(name, pointer):
        return int(cu.cuPointerGetAttribute(getattr(ATTRIBUTE, f"CU_POINTER_ATTRIBUTE_{name}"), pointer)[1])

    for pointer in (inner, inner + offset):
        assert ask("MEMORY_TYPE", pointer) == 1
        assert ask("DEVICE_POINTER", pointer) == inner + offset
        assert ask("HOST_POINTER", pointer) == inner
        assert ask("RANGE_START_ADDR", pointer) == array.ctypes.data + offset
        assert ask("RANGE_SIZE", pointer) == 100
        assert ask("DEVICE_ORDINAL", pointer) == 0
        assert ask("IS_MANAGED", pointer) == 0
        assert ask("CONTEXT", pointer) == int(cu.cuCtxGetCurrent()[1])
    assert int(cu.cuMemHostGetDevicePointer(inner, 0)[1]) == inner + offset
    assert cu.cuMemHostGetFlags(inner)[1] == DEVICEMAP
    cu.cuMemHostUnregister(array.ctypes.data)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("MAPPED", 1),
        ("SYNC_MEMOPS", 0),
        ("IS_LEGACY_CUDA_IPC_CAPABLE", 0),
        ("IS_GPU_DIRECT_RDMA_CAPABLE", 0),
        ("ACCESS_FLAGS", 3),
        ("ALLOWED_HANDLE_TYPES", 0),
        ("MEMPOOL_HANDLE", 0),
    ],
)
def test_registered_memory_tells_the_rest_of_itself(cuda, register, attribute, value):
    array = cuda.host_array(100, np.uint8)
    register(array)
    wanted = getattr(ATTRIBUTE, f"CU_POINTER_ATTRIBUTE_{attribute}")
    assert int(cu.cuPointerGetAttribute(wanted, array.ctypes.data)[1]) == value


def test_each_range_has_a_number_of_its_own(cuda, register):
    arrays = [cuda.host_array(100, np.uint8) for _ in range(2)]
    for array in arrays:
        register(array)
    numbers = [
        int(cu.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_BUFFER_ID, a.ctypes.data)[1]) for a in arrays
    ]
    assert numbers[0] != numbers[1]


def test_several_attributes_of_a_pageable_pointer_are_empty_and_no_error(cuda, outcome):
    wanted = [ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE.CU_POINTER_ATTRIBUTE_IS_MANAGED]
    result = cu.cuPointerGetAttributes(len(wanted), wanted, cuda.host_array(4).ctypes.data)
    assert outcome(result) == "SUCCESS"
    assert [int(value) for value in result[1]] == [0, 0]


def test_the_device_pointer_of_pageable_memory_is_refused(cuda, outcome):
    array = cuda.host_array(4)
    assert outcome(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0)) == "INVALID_VALUE"
    assert outcome(cu.cuMemHostGetFlags(array.ctypes.data)) == "INVALID_VALUE"


def test_device_memory_tells_its_range(cuda, outcome):
    pointer = cu.cuMemAlloc(640)[1]
    base, nbytes = cu.cuMemGetAddressRange(int(pointer) + 100)[1:]
    assert (int(base), nbytes) == (int(pointer), 640)
    assert cu.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)[1] == 2
    assert outcome(cu.cuMemFree(int(pointer) + 8)) == "INVALID_VALUE"
    assert outcome(cu.cuMemFree(pointer)) == "SUCCESS"
    assert outcome(cu.cuMemFree(pointer)) == "INVALID_VALUE"
    assert outcome(cu.cuMemFree(0)) == "SUCCESS"
    assert outcome(cu.cuMemAlloc(0)) == "INVALID_VALUE"


@pytest.mark.parametrize("allocate", [lambda: cu.cuMemHostAlloc(64, 0), lambda: cu.cuMemAllocHost(64)])
def test_allocated_host_memory_is_page_locked_but_no_registration(cuda, outcome, allocate):
    start = allocate()[1]
    assert cuda.registrations == []
    assert cu.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, start)[1] == 1
    assert outcome(cu.cuMemHostRegister(start, 64, 0)) == "HOST_MEMORY_ALREADY_REGISTERED"
    assert outcome(cu.cuMemHostUnregister(start)) == "INVALID_VALUE"
    assert outcome(cu.cuMemFreeHost(start)) == "SUCCESS"


def test_many_ranges_can_be_registered_at_once(cuda, outcome):
    memory = cuda.host_array(2000 * 16, np.uint8)
    starts = range(memory.ctypes.data, memory.ctypes.data + memory.nbytes, 16)
    assert {outcome(cu.cuMemHostRegister(start, 16, 0)) for start in starts} == {"SUCCESS"}
    assert len(cuda.registrations) == 2000
    assert {outcome(cu.cuMemHostUnregister(start)) for start in starts} == {"SUCCESS"}


# ---- managed memory ----


@pytest.fixture
def managed(cuda, outcome):
    """An array over managed memory."""
    code, address = cu.cuMemAllocManaged(400, 1)
    assert outcome((code,)) == "SUCCESS"
    yield np.ctypeslib.as_array((ctypes.c_float * 100).from_address(int(address)))
    assert outcome(cu.cuMemFree(address)) == "SUCCESS"


@pytest.mark.parametrize("offset", [0, 4096])
def test_managed_memory_has_one_address_for_host_and_device(cuda, offset):
    cuda.configure(pointer_offset=offset)
    code, address = cu.cuMemAllocManaged(400, 1)
    told = [ATTRIBUTE.CU_POINTER_ATTRIBUTE_HOST_POINTER, ATTRIBUTE.CU_POINTER_ATTRIBUTE_DEVICE_POINTER]
    inside = int(address) + 40
    assert [int(cu.cuPointerGetAttribute(each, inside)[1]) for each in told] == [inside, inside]
    assert int(cu.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_IS_MANAGED, inside)[1]) == 1
    assert code == cu.cuMemFree(address)[0] == 0


def test_other_memory_is_not_managed(cuda, register):
    locked = register(cuda.host_array(50, np.uint8))
    device = cu.cuMemAlloc(50)[1]
    for pointer in (locked.ctypes.data, int(device)):
        assert not cu.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer)[1]
    cu.cuMemFree(device)


def test_the_device_writes_to_managed_memory_when_its_work_runs(cuda, managed):
    managed[:] = 1
    cuda.hold(1)
    cuda.launch(1, managed, write=0)
    assert managed.tolist() == [1] * 100
    cuda.let_go(1)
    assert managed.tolist() == [0] * 100


def test_managed_memory_can_be_copied_as_a_whole_and_in_part(cuda, managed, outcome):
    source = np.arange(100, dtype=np.float32)
    assert outcome(cu.cuMemcpyHtoD(managed.ctypes.data, source.ctypes.data, 400)) == "SUCCESS"
    np.testing.assert_array_equal(managed, source)
    assert outcome(cu.cuMemcpyHtoD(managed.ctypes.data + 200, source.ctypes.data, 400)) == "INVALID_VALUE"


@pytest.mark.parametrize("flags", [0, 3, 4])
def test_managed_memory_needs_to_be_attached_somewhere(cuda, outcome, flags):
    assert outcome(cu.cuMemAllocManaged(400, flags)[:1]) == "INVALID_VALUE"


def test_managed_memory_is_not_freed_as_host_memory(cuda, managed, outcome):
    assert outcome(cu.cuMemFreeHost(managed.ctypes.data)) == "INVALID_VALUE"
    assert outcome(cu.cuMemHostUnregister(managed.ctypes.data)) == "HOST_MEMORY_NOT_REGISTERED"
