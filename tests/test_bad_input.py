"""What is refused: each with the rule, the value and the cure, and without leaving anything behind."""

from __future__ import annotations

import contextlib
import math
import mmap
import re
import weakref

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
from capsules import look, take
from patience import SECONDS


@pytest.fixture(params=[{}, {"pageable": True}], ids=["pinned", "pageable"])
def device(cuda, request):
    cuda.configure(**request.param)
    return cuda


@pytest.fixture
def buffer(device):
    made = dlwrap.wrap(np.zeros(3))
    yield made
    made.close(SECONDS)


@pytest.fixture
def closed(device):
    made = dlwrap.wrap(np.zeros(3))
    made.close(SECONDS)
    return made


def unwritable():
    """An array over pages that a write would fault on."""
    return np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ), np.uint8)


def read(capsule):
    """Look at a capsule and keep it: what it describes ends with it."""
    imported = look(capsule)
    imported.capsule = capsule
    return imported


# ---- wrap ----


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], r"cannot wrap a builtins.list: it is no host array or buffer; make an array of it with numpy.asarray"),
        (None, r"cannot wrap a builtins.NoneType: .*numpy.asarray"),
        (3, r"cannot wrap a builtins.int: .*numpy.asarray"),
        ("text", r"cannot wrap a builtins.str: .*numpy.asarray"),
        (np.float32(1), r"cannot wrap a numpy.float32: .*numpy.asarray"),
    ],
)
@pytest.mark.parametrize("make", [dlwrap.wrap, dlwrap.pin])
def test_what_has_no_host_memory_is_a_type_error(device, make, given, message):
    with pytest.raises(TypeError, match=message):
        make(given)


def test_a_buffer_of_dlwrap_is_not_wrapped_again(buffer):
    with pytest.raises(
        TypeError, match=r"cannot wrap a dlwrap.HostWrappedBuffer: .*use it as it is, or wrap its .array"
    ):
        dlwrap.wrap(buffer)


@pytest.mark.parametrize(
    ("ordinal", "error", "message"),
    [
        (1, ValueError, r"device must be in range\(1\), the CUDA devices there are, got 1$"),
        (2**70, ValueError, r"device must be in range\(1\), .*, got 1180591620717411303424"),
        (-1, ValueError, r"device must be in range\(1\), .*, got -1"),
        (True, TypeError, r"device must be an ordinal, 'cuda', 'cuda:1', .*, got bool: pass its ordinal"),
        (0.0, TypeError, r"device must be an ordinal, .*, got float: pass its ordinal"),
        ("cpu", ValueError, "device must be the CUDA device that uses the memory, got 'cpu': pass 'cuda' or 'cuda:1'"),
        ("cuda:7", ValueError, r"device must be in range\(1\), .*, got 7$"),
        ((1, 0), ValueError, r"device must be the CUDA device that uses the memory, got \(1, 0\): pass 'cuda'"),
    ],
)
@pytest.mark.parametrize("make", [dlwrap.wrap, dlwrap.pin])
def test_what_is_no_device_is_refused(device, make, ordinal, error, message):
    with pytest.raises(error, match=message):
        make(np.zeros(3), device=ordinal)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "managed"}, "memory must be one of 'auto', 'pinned', 'pageable', got 'managed'"),
        ({"memory": None}, "memory must be one of .*, got None"),
        ({"memory": []}, r"memory must be one of .*, got \[\]"),
        ({"extent": "all"}, "extent must be one of 'owner', 'view', got 'all'"),
        ({"extent": 1}, "extent must be one of 'owner', 'view', got 1"),
        ({"wait": "never"}, "wait must be one of 'streams', 'device', got 'never'"),
        ({"wait": False}, "wait must be one of 'streams', 'device', got False"),
    ],
)
def test_what_is_no_choice_is_refused(device, arguments, message):
    with pytest.raises(ValueError, match=message):
        dlwrap.wrap(np.zeros(3), **arguments)


def test_a_pin_refuses_what_is_no_extent(device):
    with pytest.raises(ValueError, match="extent must be one of 'owner', 'view', got 'all'"):
        dlwrap.pin(np.zeros(3), extent="all")


@pytest.mark.parametrize("value", ["x", 2, -1, 0.5, [], {}, ()])
def test_what_is_no_readonly_is_refused(device, value):
    with pytest.raises(TypeError, match=re.escape(f"readonly must be None, True or False, got {value!r}")):
        dlwrap.wrap(np.zeros(3), readonly=value)


@pytest.mark.parametrize("value", [False, np.False_, 0, 0.0])
def test_memory_that_faults_on_writes_is_never_passed_off_as_writable(device, value):
    # As readonly=False, or not at all.
    with pytest.raises((BufferError, TypeError)):
        dlwrap.wrap(unwritable(), readonly=value)


def test_pageable_memory_is_refused_where_the_device_cannot_read_it(cuda):
    with pytest.raises(
        dlwrap.CudaError,
        match=r"CUDA_ERROR_NOT_SUPPORTED \(801\) from cuDeviceGetAttribute: device 0 cannot read pageable memory "
        r"\(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 0\); use memory='auto' or 'pinned'",
    ):
        dlwrap.wrap(np.zeros(3), memory="pageable")


def test_page_locking_is_refused_where_the_device_cannot(cuda):
    cuda.configure(host_register=False)
    with pytest.raises(
        dlwrap.CudaError,
        match=r"CUDA_ERROR_NOT_SUPPORTED \(801\) from cuMemHostRegister: cannot page-lock 24 bytes at 0x",
    ):
        dlwrap.wrap(np.zeros(3))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        pytest.param(
            np.zeros(4)[::-1], r"cannot export strides \(-8,\): .*numpy.ascontiguousarray", id="negative strides"
        ),
        pytest.param(np.zeros(3, object), r"cannot export dtype object: .*astype", id="object"),
        pytest.param(np.zeros(3, ">f4"), r"cannot export dtype >f4: .*newbyteorder", id="byte order"),
        pytest.param(
            np.zeros(9, np.uint8)[1:].view(np.float64), r"cannot export address 0x.*a.copy\(\)", id="misaligned"
        ),
        pytest.param(np.ma.zeros(3), r"cannot export a MaskedArray: .*a.filled\(\)", id="masked"),
    ],
)
def test_what_dlpack_cannot_say_is_refused_before_anything_is_done(device, array, message):
    device.clear_calls()
    with pytest.raises(BufferError, match=message):
        dlwrap.wrap(array)
    assert device.calls() == []


def test_arguments_are_looked_at_before_anything_is_done(device):
    device.clear_calls()
    with pytest.raises(ValueError, match="memory must be"):
        dlwrap.wrap(np.zeros(3), memory="x")
    assert device.calls() == []


def test_a_shared_writable_mapping_of_a_file_is_refused_with_the_cure(cuda, tmp_path):
    mapped = np.memmap(tmp_path / "data", np.float32, "w+", shape=(1000,))
    with pytest.raises(
        dlwrap.CudaError,
        match=r"CUDA_ERROR_INVALID_VALUE \(1\) from cuMemHostRegister: cannot page-lock 4000 bytes at 0x.*"
        "shared writable mapping of a file on a disk; map the file with mode 'c' or 'r', or wrap a copy",
    ):
        dlwrap.wrap(mapped)


@pytest.mark.parametrize("mode", ["c", "r"])
def test_the_cure_for_a_mapped_file_works(cuda, tmp_path, mode):
    np.arange(1000, dtype=np.float32).tofile(tmp_path / "data")
    buffer = dlwrap.wrap(np.memmap(tmp_path / "data", np.float32, mode))
    assert cuda.registrations[0].nbytes == 4000
    buffer.close()


def test_a_shared_writable_mapping_of_a_file_works_where_the_device_reads_pageable_memory(cuda, tmp_path):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.memmap(tmp_path / "data", np.float32, "w+", shape=(1000,)))
    assert buffer.memory == "pageable"
    buffer.close()


def test_a_device_that_cannot_page_lock_read_only_memory_says_so(cuda):
    cuda.configure(read_only_register=False)
    with pytest.raises(
        dlwrap.CudaError, match=r"\(801\) from cuMemHostRegister: .*see dlwrap.support\(\), or wrap a copy"
    ):
        dlwrap.wrap(unwritable())


# ---- what the driver refuses ----

REFUSALS = [
    (
        1,
        r"CUDA_ERROR_INVALID_VALUE \(1\) from cuMemHostRegister: cannot page-lock 24 bytes at 0x.*map the file",
    ),
    (
        2,
        r"CUDA_ERROR_OUT_OF_MEMORY \(2\) from cuMemHostRegister: cannot page-lock 24 bytes.*`ulimit -l`",
    ),
    (101, r"CUDA_ERROR_INVALID_DEVICE \(101\) from cuMemHostRegister: cannot page-lock 24 bytes.*wrap a copy"),
    (801, r"CUDA_ERROR_NOT_SUPPORTED \(801\) from cuMemHostRegister: cannot page-lock 24 bytes.*dlwrap.support\(\)"),
]


@pytest.mark.parametrize(("code", "message"), REFUSALS)
@pytest.mark.parametrize("make", [dlwrap.wrap, dlwrap.pin])
def test_a_refusal_of_the_driver_is_told_with_the_cure(cuda, make, code, message):
    cuda.fail("cuMemHostRegister", code)
    with pytest.raises(dlwrap.CudaError, match=message) as caught:
        make(np.zeros(3))
    assert (caught.value.code, caught.value.call) == (code, "cuMemHostRegister")
    assert caught.value.__cause__.code == code


@pytest.mark.parametrize(("code", "message"), REFUSALS)
@pytest.mark.parametrize("make", [dlwrap.wrap, dlwrap.pin])
def test_a_refusal_of_the_driver_leaves_nothing(cuda, make, code, message):
    array = np.zeros(3)
    alive = weakref.ref(array)
    cuda.fail("cuMemHostRegister", code)
    with contextlib.suppress(dlwrap.CudaError):
        make(array)
    assert (cuda.registrations, int(driver.cuCtxGetCurrent()[1])) == ([], 0)
    make(array).close(SECONDS)
    del array
    assert alive() is None


@pytest.mark.parametrize("code", [1, 2, 719, 801])
def test_a_range_whose_device_address_cannot_be_had_is_unregistered_again(cuda, code):
    cuda.fail("cuMemHostGetDevicePointer", code)
    with pytest.raises(dlwrap.CudaError, match=rf"\({code}\) from cuMemHostGetDevicePointer: cannot page-lock"):
        dlwrap.wrap(np.zeros(3))
    assert (cuda.count("cuMemHostRegister"), cuda.count("cuMemHostUnregister")) == (1, 1)
    assert cuda.registrations == []


def test_a_range_that_cannot_be_unregistered_again_is_counted_as_leaked(cuda, leaks):
    array = np.zeros(3)
    cuda.fail("cuMemHostGetDevicePointer", 999)
    cuda.fail("cuMemHostUnregister", 999)
    with pytest.warns(dlwrap.DLWrapWarning, match="keeps memory"), pytest.raises(dlwrap.CudaError):
        dlwrap.wrap(array)
    counted = leaks()
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    driver.cuCtxPushCurrent(context)
    assert driver.cuMemHostUnregister(array.ctypes.data)[0] == 0
    driver.cuCtxPopCurrent()
    driver.cuDevicePrimaryCtxRelease(0)
    assert counted == 1


def test_a_range_whose_address_on_a_second_device_cannot_be_had_stays_for_the_first(cuda):
    cuda.configure(devices=2)
    array = np.zeros(3)
    first = dlwrap.wrap(array, device=0)
    cuda.fail("cuMemHostGetDevicePointer", 719)
    with pytest.raises(dlwrap.CudaError, match="cuMemHostGetDevicePointer"):
        dlwrap.wrap(array, device=1)
    assert len(cuda.registrations) == 1
    first.close()
    assert cuda.registrations == []


# ---- memory that somebody else has page-locked ----


@contextlib.contextmanager
def registered_by_somebody_else(array):
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    driver.cuCtxPushCurrent(context)
    assert driver.cuMemHostRegister(array.ctypes.data, array.nbytes, 3)[0] == 0
    driver.cuCtxPopCurrent()
    try:
        yield
    finally:
        driver.cuCtxPushCurrent(context)
        assert driver.cuMemHostUnregister(array.ctypes.data)[0] == 0
        driver.cuCtxPopCurrent()
        driver.cuDevicePrimaryCtxRelease(0)


@pytest.mark.parametrize("part", [slice(0, 100), slice(900, 1000)], ids=["head", "tail"])
def test_memory_that_is_partly_page_locked_is_refused_and_the_range_named(cuda, part):
    array = np.zeros(1000)
    theirs = array[part]
    start, stop = theirs.ctypes.data, theirs.ctypes.data + theirs.nbytes
    with (
        registered_by_somebody_else(theirs),
        pytest.raises(BufferError, match=rf"somebody else has page-locked {start:#x} to {stop:#x}, .*dlwrap.pin\(\)"),
    ):
        dlwrap.wrap(array)


def test_memory_whose_middle_is_page_locked_is_refused_without_a_wrong_claim(cuda):
    array = np.zeros(1000)
    start, stop = array.ctypes.data, array.ctypes.data + array.nbytes
    with (
        registered_by_somebody_else(array[400:500]),
        pytest.raises(BufferError, match=rf"^(?!.*has page-locked {start:#x} to {stop:#x}).*dlwrap.pin\(\)"),
    ):
        dlwrap.wrap(array)


@pytest.mark.parametrize("part", [slice(0, 100), slice(400, 500), slice(900, 1000)], ids=["head", "middle", "tail"])
def test_a_refusal_beside_the_memory_of_others_leaves_nothing_of_ours(cuda, part):
    array = np.zeros(1000)
    with registered_by_somebody_else(array[part]):
        theirs = cuda.registrations
        with pytest.raises(BufferError):
            dlwrap.wrap(array)
        assert cuda.registrations == theirs
        assert int(driver.cuCtxGetCurrent()[1]) == 0
    buffer = dlwrap.wrap(array)
    buffer.close()


def test_memory_that_others_page_locked_is_used_and_left_to_them(cuda):
    array = np.zeros(1000)
    with registered_by_somebody_else(array):
        theirs = cuda.registrations
        buffer = dlwrap.wrap(array)
        assert read(buffer.__dlpack__()).tensor.data == array.ctypes.data
        buffer.close()
        assert cuda.registrations == theirs


def test_the_part_of_an_array_that_others_page_locked_can_be_wrapped(cuda):
    array = np.zeros(1000)
    with registered_by_somebody_else(array[:100]):
        theirs = cuda.registrations
        buffer = dlwrap.wrap(array[10:20])
        assert read(buffer.__dlpack__()).tensor.data == array[10:].ctypes.data
        buffer.close()
        assert cuda.registrations == theirs


def test_the_part_of_an_array_that_others_did_not_page_lock_can_be_wrapped(cuda):
    array = np.zeros(1000)
    with registered_by_somebody_else(array[:100]):
        buffer = dlwrap.wrap(array[200:])
        assert [each.nbytes for each in cuda.registrations] == [800, 6400]
        buffer.close()
        assert [each.nbytes for each in cuda.registrations] == [800]


def test_a_refusal_that_cannot_be_looked_into_is_an_error(cuda):
    cuda.fail("cuMemHostRegister", 712)
    cuda.fail("cuPointerGetAttribute", 719)
    with pytest.raises(dlwrap.CudaError, match="cuPointerGetAttribute"):
        dlwrap.wrap(np.zeros(3))
    assert cuda.registrations == []


# ---- exports ----


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        (
            0,
            ValueError,
            r"stream must not be 0: it is ambiguous between 1 \(legacy default\) and 2 \(per-thread default\)",
        ),
        (-2, ValueError, "stream must be None, -1, 1, 2 or a CUstream handle, got -2"),
        (-(2**70), ValueError, "stream must be None, -1, 1, 2 or a CUstream handle, got -1180591620717411303424"),
        (True, TypeError, "stream must be an integer handle or None, got a bool"),
        (False, TypeError, "stream must be an integer handle or None, got a bool"),
        (1.5, TypeError, r"stream must be an integer handle or None, got float: pass int\(stream.handle\), stream.ptr"),
        ("x", TypeError, r"stream must be an integer handle or None, got str: pass int\(stream.handle\), stream.ptr"),
        ((1,), TypeError, r"stream must be an integer handle or None, got tuple: pass int\(stream.handle\)"),
    ],
)
def test_what_is_no_stream_is_refused(buffer, told, error, message):
    with pytest.raises(error, match=message):
        buffer.__dlpack__(stream=told)


@pytest.mark.parametrize(
    "asked", [(3, 0), (2, 1), (13, 0), (1, 1), (2,), (), "cuda", 5, True, [3, 0], (2, -1), ("2", "0")]
)
def test_a_device_that_cannot_be_served_is_a_buffer_error(buffer, asked):
    # Not TypeError: consumers would ask again without the keyword.
    message = (
        rf"cannot export to dl_device={re.escape(repr(asked))}: this buffer serves \(2, 0\), CUDA, and \(1, 0\), CPU"
    )
    with pytest.raises(BufferError, match=message):
        buffer.__dlpack__(dl_device=asked)


def test_an_array_as_device_is_a_buffer_error(buffer):
    with pytest.raises(BufferError, match="cannot export to dl_device="):
        buffer.__dlpack__(dl_device=np.array([3, 0]))


def test_the_cure_for_another_device_names_the_argument(buffer):
    with pytest.raises(BufferError, match=r"wrap with device=\.\.\. for another GPU"):
        buffer.__dlpack__(dl_device=(2, 1))


@pytest.mark.parametrize(
    "asked", [1, "1.0", (1,), (1, 0, 0), (), (1, "0"), (1.0, 0), (1, -1), (-1, 0), (None, None), {1: 0}, object]
)
def test_what_is_no_version_is_a_buffer_error(buffer, asked):
    with pytest.raises(
        BufferError, match=rf"max_version must be None or \(major, minor\), got {re.escape(repr(asked))}"
    ):
        buffer.__dlpack__(max_version=asked)


@pytest.mark.parametrize("arguments", [{"stream": 0}, {"dl_device": (3, 0)}, {"max_version": 1}, {"stream": "x"}])
def test_a_refused_export_leaves_nothing(buffer, arguments):
    with pytest.raises((ValueError, TypeError, BufferError)):
        buffer.__dlpack__(**({"stream": 1} | arguments))
    assert (buffer.exports, buffer._lease.was_used) == (0, False)


def test_positional_arguments_are_refused(buffer):
    with pytest.raises(TypeError, match="positional"):
        buffer.__dlpack__(1)


# ---- closed ----


@pytest.mark.parametrize(
    "arguments",
    [{}, {"stream": 1}, {"dl_device": (1, 0)}, {"copy": True}, {"max_version": (1, 0)}, {"dl_device": (2, 0)}],
)
def test_a_closed_buffer_is_not_exported(closed, arguments):
    with pytest.raises(BufferError, match="cannot export a closed HostWrappedBuffer: wrap the array again"):
        closed.__dlpack__(**arguments)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda buffer: buffer.array, id="array"),
        pytest.param(lambda buffer: buffer.ptr, id="ptr"),
        pytest.param(lambda buffer: buffer.shape, id="shape"),
        pytest.param(lambda buffer: buffer.strides, id="strides"),
        pytest.param(lambda buffer: buffer.dtype, id="dtype"),
        pytest.param(lambda buffer: buffer.nbytes, id="nbytes"),
        pytest.param(lambda buffer: buffer.ndim, id="ndim"),
        pytest.param(np.asarray, id="__array__"),
        pytest.param(lambda buffer: buffer.record_stream(1), id="record_stream"),
        pytest.param(lambda buffer: buffer.synchronize(), id="synchronize"),
        pytest.param(lambda buffer: buffer.__enter__(), id="with"),
    ],
)
def test_a_closed_buffer_tells_so(closed, use):
    with pytest.raises(ValueError, match="this HostWrappedBuffer is closed: wrap the array again"):
        use(closed)


def test_the_interface_of_a_closed_buffer_tells_so(cuda):
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.close()
    with pytest.raises(ValueError, match="this HostWrappedBuffer is closed"):
        _ = buffer.__cuda_array_interface__


def test_what_a_closed_buffer_was_can_still_be_asked(closed):
    assert (closed.closed, closed.exports, closed.readonly, closed.device) == (True, 0, False, 0)
    assert closed.memory in {"pinned", "pageable"}
    assert closed.__dlpack_device__() == (2, 0)
    assert repr(closed) == "<dlwrap.HostWrappedBuffer closed>"


def test_closing_again_does_nothing(closed):
    closed.close()
    assert closed.closed


def test_a_closed_pin_cannot_be_entered(device):
    pin = dlwrap.pin(np.zeros(3))
    pin.close()
    with pytest.raises(ValueError, match="this Pin is closed: pin the array again"):
        pin.__enter__()


def test_closing_a_pin_again_does_nothing(device):
    pin = dlwrap.pin(np.zeros(3))
    pin.close()
    pin.close()
    assert pin.closed


# ---- close ----


@pytest.mark.parametrize(("count", "words"), [(1, "1 importer of"), (2, "2 importers of"), (3, "3 importers of")])
def test_closing_counts_the_importers_that_are_alive(buffer, count, words):
    importers = [take(buffer.__dlpack__()) for _ in range(count)]
    with pytest.raises(
        BufferError, match=f"cannot close: {words} this HostWrappedBuffer still alive; drop the tensors and arrays"
    ):
        buffer.close()
    for importer in importers:
        importer.delete()


def test_a_refused_close_changes_nothing(buffer):
    importer = take(buffer.__dlpack__())
    with pytest.raises(BufferError, match="cannot close"):
        buffer.close()
    assert not buffer.closed
    take(buffer.__dlpack__()).delete()
    importer.delete()
    buffer.close()
    assert buffer.closed


@pytest.mark.parametrize("timeout", [-1, -1e-9, math.nan, -math.inf])
@pytest.mark.parametrize("make", [dlwrap.wrap, dlwrap.pin])
def test_a_timeout_that_is_no_time_is_refused_and_nothing_closed(device, make, timeout):
    made = make(np.zeros(3))
    with pytest.raises(ValueError, match=f"timeout must be None or at least 0 seconds, got {timeout}"):
        made.close(timeout)
    assert not made.closed
    made.close()


@pytest.mark.parametrize("timeout", ["x", [1]])
def test_a_timeout_that_is_no_number_is_a_type_error(buffer, timeout):
    with pytest.raises(TypeError, match="real number"):
        buffer.close(timeout)
    assert not buffer.closed


@pytest.mark.parametrize("timeout", [1e11, math.inf])
@pytest.mark.parametrize("make", [dlwrap.wrap, dlwrap.pin])
def test_close_may_wait_for_longer_than_a_lifetime(device, make, timeout):
    made = make(np.zeros(3))
    made.close(timeout)
    assert made.closed
