"""`HostWrappedBuffer` and `Pin`: what the user holds, on all memory kinds."""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
from capsules import look, name_of, take
from cuda_calls import checked, create_context
from dlwrap import _native
from patience import SECONDS, eventually, settle

VERSIONED = (1, 0)
READ_ONLY, IS_COPIED = 1, 2
CPU = (1, 0)
REGISTER_READ_ONLY = 8


@pytest.fixture(
    params=[{}, {"pageable": True}, {"pageable": True, "host_page_tables": True}], ids=["pinned", "HMM", "ATS"]
)
def device(cuda, request):
    """The simulated driver, with a device of each kind."""
    cuda.configure(**request.param)
    return cuda


@pytest.fixture
def pinned(cuda):
    """The simulated driver, whose device needs page-locked memory."""
    return cuda


@pytest.fixture
def pageable(cuda):
    """The simulated driver, whose device reads pageable memory."""
    cuda.configure(pageable=True)
    return cuda


def unwritable(nbytes=mmap.PAGESIZE):
    """An array over pages that a write would fault on."""
    return np.frombuffer(mmap.mmap(-1, nbytes, prot=mmap.PROT_READ), np.uint8)


def read(capsule):
    """Look at a capsule and keep it: what it describes ends with it."""
    imported = look(capsule)
    imported.capsule = capsule
    return imported


def values(capsule):
    """The bytes that a capsule describes."""
    return look(capsule).as_array(np.uint8).tolist()


def frozen(array):
    array.flags.writeable = False
    return array


class Waiting:
    """A call in a thread of its own, that is to wait for the GPU."""

    def __init__(self, call):
        self.result = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call):
        try:
            self.result = call()
        except BaseException as error:  # noqa: BLE001 -- shown by the test's comparison
            self.result = error

    @property
    def over(self):
        return not self._thread.is_alive()

    def join(self):
        self._thread.join(SECONDS)
        assert self.over
        return self.result


def result_after_work(driver, stream, call, *, gate="cuEventQuery"):
    """Begin the call while the stream is held; let the stream go once dlwrap is seen waiting; give the result."""
    driver.pause(gate)
    waiting = Waiting(call)
    try:
        driver.wait_until_paused(gate)
        assert not waiting.over
    finally:
        driver.resume(gate)
    driver.let_go(stream)
    return waiting.join()


@pytest.fixture
def busy(device):
    """A buffer of zeros, and work on the legacy stream that will write ones to it and is recorded."""
    array = device.host_array(4, np.uint8)
    buffer = dlwrap.wrap(array)
    device.hold(1)
    device.launch(1, array, write=1)
    buffer.record_stream(1)
    yield buffer
    device.let_go(1)
    buffer.close(SECONDS)


# ---- attributes ----


def test_the_array_is_the_one_given(device):
    array = np.zeros(3)
    assert dlwrap.wrap(array).array is array


def test_the_array_of_a_buffer_is_a_view_of_it(device):
    data = bytearray(b"abc")
    buffer = dlwrap.wrap(data)
    buffer.array[0] = ord("x")
    assert data == b"xbc"


def test_the_attributes_are_the_arrays(device):
    array = np.zeros((2, 3), np.float32)[:, ::2]
    buffer = dlwrap.wrap(array)
    described = (buffer.shape, buffer.strides, buffer.dtype, buffer.ndim, buffer.nbytes)
    assert described == ((2, 2), (12, 8), np.float32, 2, 16)


@pytest.mark.parametrize(
    ("attribute", "expected"), [("readonly", False), ("device", 0), ("exports", 0), ("closed", False)]
)
def test_a_fresh_buffer_says(device, attribute, expected):
    assert getattr(dlwrap.wrap(np.zeros(3)), attribute) == expected


@pytest.mark.parametrize(("settings", "memory"), [({}, "pinned"), ({"pageable": True}, "pageable")])
def test_the_memory_kind_is_told(cuda, settings, memory):
    cuda.configure(**settings)
    assert dlwrap.wrap(np.zeros(3)).memory == memory


@pytest.mark.parametrize(
    ("array", "told", "expected"),
    [
        (np.zeros(3), None, False),
        (np.zeros(3), False, False),
        (np.zeros(3), True, True),
        (frozen(np.zeros(3)), None, True),
        (frozen(np.zeros(3)), False, False),
        (frozen(np.zeros(3)), True, True),
    ],
)
def test_readonly_is_as_the_array_is_unless_told(device, array, told, expected):
    assert dlwrap.wrap(array, readonly=told).readonly is expected


def test_the_device_is_the_one_asked_for(device):
    device.reset()
    device.configure(devices=3)
    buffer = dlwrap.wrap(np.zeros(3), device=2)
    assert buffer.device == 2
    assert buffer.__dlpack_device__() == (2, 2)
    assert read(buffer.__dlpack__()).device == (2, 2)


def test_the_repr_says_what_it_is(cuda):
    buffer = dlwrap.wrap(np.zeros((2, 3), np.float32))
    importer = take(buffer.__dlpack__())
    assert repr(buffer) == (
        "<dlwrap.HostWrappedBuffer shape=(2, 3) dtype=float32 device=0 memory='pinned' readonly=False exports=1>"
    )
    importer.delete()


def test_exports_are_counted(device):
    buffer = dlwrap.wrap(np.zeros(3))
    importers = [take(buffer.__dlpack__()) for _ in range(3)]
    assert buffer.exports == 3
    importers.pop().delete()
    assert buffer.exports == 2
    for importer in importers:
        importer.delete()
    assert buffer.exports == 0


def test_nothing_can_be_set(device):
    buffer = dlwrap.wrap(np.zeros(3))
    with pytest.raises(AttributeError):
        buffer.anything = 1


@pytest.mark.parametrize("public", [dlwrap.wrap, dlwrap.pin, dlwrap.HostWrappedBuffer, dlwrap.Pin])
def test_tracebacks_show_the_public_name(public):
    assert public.__module__ == "dlwrap"


# ---- capsules ----


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (None, b"dltensor"),
        ((0, 8), b"dltensor"),
        ((1, 0), b"dltensor_versioned"),
        ((1, 3), b"dltensor_versioned"),
        ((2, 0), b"dltensor_versioned"),
    ],
)
def test_the_form_is_as_asked(device, asked, name):
    assert name_of(dlwrap.wrap(np.zeros(3)).__dlpack__(max_version=asked)) == name


@pytest.mark.parametrize(
    ("asked", "version"),
    [((1, 0), (1, 0)), ((1, 1), (1, 1)), ((1, 3), (1, 3)), ((1, 99), (1, 3)), ((2, 0), (1, 3)), ((1, 2**40), (1, 3))],
)
def test_the_version_is_the_lesser_of_ours_and_the_one_asked(device, asked, version):
    managed = read(dlwrap.wrap(np.zeros(3)).__dlpack__(max_version=asked)).managed
    assert (managed.major, managed.minor) == version


@pytest.mark.parametrize("asked", [None, VERSIONED], ids=["legacy", "versioned"])
def test_every_field_describes_the_array(device, asked):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    imported = read(dlwrap.wrap(array).__dlpack__(max_version=asked))
    assert imported.tensor.data == array.ctypes.data
    assert (imported.device, imported.shape, imported.strides, imported.dtype) == ((2, 0), (2, 3), (3, 1), (2, 32, 1))
    assert imported.tensor.byte_offset == 0
    assert imported.managed.manager_ctx
    assert imported.managed.deleter


ARRAYS = [
    pytest.param(np.array(7.0), (), (), id="0-d"),
    pytest.param(np.zeros((2, 0, 3)), (2, 0, 3), (3, 3, 1), id="empty"),
    pytest.param(np.arange(6.0).reshape(2, 3).T, (3, 2), (1, 3), id="transposed"),
    pytest.param(np.broadcast_to(np.arange(3.0), (2, 3)), (2, 3), (0, 1), id="broadcast"),
    pytest.param(np.arange(24.0).reshape(4, 6)[::2, 1::3], (2, 2), (12, 3), id="strided"),
    pytest.param(np.arange(6.0).reshape(2, 3)[:1], (1, 3), (3, 1), id="one row"),
]


@pytest.mark.parametrize(("array", "shape", "strides"), ARRAYS)
def test_shape_and_strides_are_in_elements(device, array, shape, strides):
    imported = read(dlwrap.wrap(array).__dlpack__(max_version=VERSIONED))
    assert (imported.shape, imported.strides) == (shape, strides)
    assert imported.tensor.data == (array.ctypes.data if array.size else None)


@pytest.mark.parametrize(("array", "shape", "strides"), ARRAYS)
def test_a_consumer_sees_the_values(device, array, shape, strides):
    if array.size:
        imported = read(dlwrap.wrap(array).__dlpack__(max_version=VERSIONED))
        np.testing.assert_array_equal(imported.as_array(array.dtype), array)
    else:
        np.testing.assert_array_equal(np.from_dlpack(dlwrap.wrap(array), device="cpu"), array)


def test_an_array_without_elements_page_locks_nothing(pinned):
    buffer = dlwrap.wrap(np.zeros(0))
    assert pinned.count("cuMemHostRegister") == 0
    assert (buffer.memory, buffer.ptr) == ("pinned", 0)


def test_a_write_of_the_gpu_reaches_the_array(device):
    array = device.host_array(4, np.uint8)
    buffer = dlwrap.wrap(array)
    imported = take(buffer.__dlpack__(stream=1))
    device.launch(1, (imported.tensor.data, 4), write=9)
    buffer.synchronize()
    assert array.tolist() == [9, 9, 9, 9]
    imported.delete()


def test_the_devices_address_is_exported(pinned):
    pinned.configure(pointer_offset=1 << 40)
    array = np.zeros(3)
    buffer = dlwrap.wrap(array)
    address = array.ctypes.data + (1 << 40)
    assert read(buffer.__dlpack__()).tensor.data == address
    assert buffer.ptr == address
    assert buffer.__cuda_array_interface__["data"] == (address, False)


def test_the_devices_address_of_a_view_is_inside_that_of_its_owner(pinned):
    pinned.configure(pointer_offset=1 << 40)
    array = np.zeros(100)
    assert read(dlwrap.wrap(array[10:]).__dlpack__()).tensor.data == array.ctypes.data + 80 + (1 << 40)


def test_the_hosts_address_is_exported_to_the_cpu(pinned):
    pinned.configure(pointer_offset=1 << 40)
    array = np.zeros(3)
    assert read(dlwrap.wrap(array).__dlpack__(dl_device=CPU)).tensor.data == array.ctypes.data


def test_each_device_has_its_own_address(pinned):
    pinned.configure(devices=2, pointer_offset=1 << 40)
    array = np.zeros(3)
    first, second = dlwrap.wrap(array, device=0), dlwrap.wrap(array, device=1)
    assert len(pinned.registrations) == 1
    assert first.ptr == second.ptr == array.ctypes.data + (1 << 40)
    assert pinned.count("cuMemHostGetDevicePointer") == 2


@pytest.mark.parametrize("told", [None, -1, 1, 2])
@pytest.mark.parametrize("asked", [None, (2, 0), (2, 255)])
def test_an_export_to_the_device_is_the_same_however_it_is_asked_for(device, told, asked):
    imported = read(dlwrap.wrap(np.zeros(3)).__dlpack__(stream=told, dl_device=asked))
    assert imported.device == (2, 0)


@pytest.mark.parametrize("copy", [None, False])
def test_no_copy_is_made_unless_asked_for(device, copy):
    array = np.zeros(3)
    imported = read(dlwrap.wrap(array).__dlpack__(copy=copy, max_version=VERSIONED))
    assert (imported.tensor.data, imported.managed.flags) == (array.ctypes.data, 0)


def test_an_export_page_locks_nothing(pinned):
    buffer = dlwrap.wrap(np.zeros(3))
    pinned.clear_calls()
    for _ in range(3):
        take(buffer.__dlpack__(stream=1)).delete()
    assert pinned.count("cuMemHostRegister") == 0
    assert pinned.count("cuMemHostGetDevicePointer") == 0


def test_an_export_without_a_stream_asks_for_the_current_context_alone(device):
    buffer = dlwrap.wrap(np.zeros(3))
    device.clear_calls()
    take(buffer.__dlpack__()).delete()
    assert [call.function for call in device.calls()] == ["cuCtxGetCurrent"]


def test_an_export_launches_nothing(device):
    buffer = dlwrap.wrap(np.zeros(3))
    device.hold(1)
    take(buffer.__dlpack__(stream=1)).delete()
    assert device.pending(1) == 0
    device.let_go(1)


# ---- read-only ----


@pytest.mark.parametrize(
    "make", [lambda: dlwrap.wrap(frozen(np.zeros(3))), lambda: dlwrap.wrap(np.zeros(3), readonly=True)]
)
def test_a_versioned_capsule_says_read_only(device, make):
    assert read(make().__dlpack__(max_version=VERSIONED)).managed.flags == READ_ONLY


@pytest.mark.parametrize(
    "make", [lambda: dlwrap.wrap(frozen(np.zeros(3))), lambda: dlwrap.wrap(np.zeros(3), readonly=True)]
)
def test_a_legacy_capsule_cannot_say_read_only(device, make):
    buffer = make()
    with pytest.raises(
        BufferError,
        match=r"cannot export read-only memory in a legacy capsule, which cannot say so: "
        r"ask with max_version=\(1, 0\), or wrap with readonly=False",
    ):
        buffer.__dlpack__()


@pytest.mark.parametrize("arguments", [{"stream": 1}, {"stream": None}, {"dl_device": CPU}])
def test_an_export_that_is_refused_records_no_stream(device, arguments):
    buffer = dlwrap.wrap(frozen(np.zeros(3)))
    with pytest.raises(BufferError, match="read-only"):
        buffer.__dlpack__(**arguments)
    device.clear_calls()
    buffer.close()
    assert device.count("cuEventRecord") == 0
    assert (buffer.exports, buffer._lease.was_used) == (0, False)


def test_a_read_only_array_can_be_handed_to_legacy_consumers_on_purpose(device):
    imported = read(dlwrap.wrap(frozen(np.zeros(3)), readonly=False).__dlpack__())
    assert imported.shape == (3,)


def test_a_read_only_array_that_is_handed_out_as_writable_says_so(device):
    buffer = dlwrap.wrap(frozen(np.zeros(3)), readonly=False)
    assert read(buffer.__dlpack__(max_version=VERSIONED)).managed.flags == 0


def test_a_read_only_array_of_writable_memory_is_registered_for_writing(pinned):
    buffer = dlwrap.wrap(frozen(np.zeros(3)))
    assert [each.flags & REGISTER_READ_ONLY for each in pinned.registrations] == [0]
    buffer.close()


def test_memory_that_faults_on_writes_is_registered_read_only(pinned):
    buffer = dlwrap.wrap(unwritable())
    assert [each.flags & REGISTER_READ_ONLY for each in pinned.registrations] == [REGISTER_READ_ONLY]
    assert buffer.readonly
    buffer.close()


def test_memory_that_faults_on_writes_is_never_handed_out_as_writable(device):
    with pytest.raises(
        BufferError,
        match=r"cannot export read-only mapped memory with readonly=False: a write by the GPU would fault; "
        r"map it writable \(numpy.memmap mode 'c'\), or leave readonly=None",
    ):
        dlwrap.wrap(unwritable(), readonly=False)


def test_a_read_only_array_is_read_only_on_the_cpu_too(device):
    buffer = dlwrap.wrap(frozen(np.zeros(3)))
    assert read(buffer.__dlpack__(dl_device=CPU, max_version=VERSIONED)).managed.flags == READ_ONLY


# ---- on the host ----


def test_an_export_to_the_cpu_says_so(device):
    imported = read(dlwrap.wrap(np.zeros(3)).__dlpack__(dl_device=CPU))
    assert (imported.device, imported.shape) == (CPU, (3,))


def test_numpy_imports_on_the_cpu(device):
    array = np.arange(3.0)
    buffer = dlwrap.wrap(array)
    imported = np.from_dlpack(buffer, device="cpu")
    imported[0] = 9
    assert array[0] == 9
    assert buffer.exports == 1
    del imported
    assert buffer.exports == 0


def test_an_export_to_the_cpu_records_no_stream(device):
    buffer = dlwrap.wrap(np.zeros(3))
    take(buffer.__dlpack__(dl_device=CPU, stream=1)).delete()
    assert not buffer._lease.was_used


HOST_USES = [
    pytest.param(lambda buffer: np.from_dlpack(buffer, device="cpu").tolist(), id="from_dlpack"),
    pytest.param(lambda buffer: np.asarray(buffer).tolist(), id="asarray"),
    pytest.param(lambda buffer: np.array(buffer).tolist(), id="array"),
    pytest.param(lambda buffer: buffer.synchronize() or buffer.array.tolist(), id="synchronize"),
    pytest.param(lambda buffer: values(buffer.__dlpack__(copy=True)), id="copy"),
    pytest.param(lambda buffer: values(buffer.__dlpack__(copy=True, dl_device=CPU)), id="copy to the CPU"),
]


@pytest.mark.parametrize("use", HOST_USES)
def test_a_use_on_the_host_waits_for_the_recorded_work(device, busy, use):
    assert busy.array.tolist() == [0, 0, 0, 0]
    assert result_after_work(device, 1, lambda: use(busy)) == [1, 1, 1, 1]


@pytest.mark.parametrize("use", HOST_USES)
def test_a_use_on_the_host_waits_for_work_on_unknown_streams(device, use):
    array = device.host_array(4, np.uint8)
    buffer = dlwrap.wrap(array)
    stream = device.create_stream()
    device.hold(stream)
    device.launch(stream, array, write=1)
    buffer.record_stream(stream)
    device.destroy_stream(stream)
    assert result_after_work(device, stream, lambda: use(buffer), gate="cuMemHostRegister") == [1, 1, 1, 1]


def test_the_array_itself_does_not_wait(device, busy):
    assert busy.array.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("use", [lambda buffer: buffer.synchronize(), np.asarray])
def test_without_recorded_work_nothing_is_asked_of_the_driver(device, use):
    buffer = dlwrap.wrap(np.zeros(3))
    device.clear_calls()
    use(buffer)
    assert device.calls() == []


def test_synchronize_may_be_called_again(device):
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.record_stream(1)
    device.clear_calls()
    buffer.synchronize()
    buffer.synchronize()
    assert device.count("cuEventRecord") == 2


def test_synchronize_waits_for_the_device_where_wrap_said_so(device):
    buffer = dlwrap.wrap(np.zeros(3), wait="device")
    device.clear_calls()
    buffer.synchronize()
    assert device.count("cuMemHostUnregister") == 1


@pytest.fixture
def captured(device):
    """A buffer whose recorded stream captures."""
    stream = device.create_stream()
    owner = type("Stream", (), {"__module__": "cupy.cuda.stream", "__cuda_stream__": lambda self: (0, stream)})
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.record_stream(owner())
    assert list(buffer._lease.streams) == [stream]
    device.begin_capture(stream)
    yield buffer
    assert device.capture_status(stream) == "active"
    device.destroy_graph(device.end_capture(stream))
    assert eventually(lambda: dlwrap.stats().graphs == 0)
    buffer.close(SECONDS)
    device.destroy_stream(stream)


def test_synchronize_during_a_capture_is_an_error_and_harmless(captured):
    (stream,) = captured._lease.streams
    with pytest.raises(
        RuntimeError,
        match=rf"cannot wait for stream {stream:#x}: it is being captured; call again after the capture ends",
    ):
        captured.synchronize()


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda buffer: buffer.__dlpack__(dl_device=CPU), id="to the CPU"),
        pytest.param(lambda buffer: buffer.__dlpack__(copy=True), id="copy"),
        pytest.param(lambda buffer: buffer.__dlpack__(copy=True, dl_device=CPU), id="copy to the CPU"),
        pytest.param(np.asarray, id="asarray"),
    ],
)
def test_a_use_on_the_host_during_a_capture_is_a_buffer_error_and_harmless(captured, use):
    with pytest.raises(BufferError, match=r"cannot use the array on the host: cannot wait for stream .* captured"):
        use(captured)
    assert captured.exports == 0


def test_an_export_during_a_capture_works(captured):
    (stream,) = captured._lease.streams
    assert read(captured.__dlpack__(stream=stream)).device == (2, 0)


def test_synchronize_beside_a_capture_of_another_stream_works_and_is_harmless(device):
    stream = device.create_stream(blocking=False)
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.record_stream(1)
    device.begin_capture(stream)
    buffer.synchronize()
    assert device.capture_status(stream) == "active"
    device.end_capture(stream)
    device.destroy_stream(stream)


def test_synchronize_of_the_legacy_stream_beside_the_capture_of_a_blocking_stream_is_harmless(device):
    stream = device.create_stream(blocking=True)
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.record_stream(1)
    device.begin_capture(stream)
    buffer.synchronize()
    assert device.capture_status(stream) == "active"
    device.end_capture(stream)
    device.destroy_stream(stream)


def failure_of(call):
    """What the call raises, without the traceback that would keep its buffer."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 -- the tests look at its type
        return error.with_traceback(None)
    return None


def break_waits(cuda):
    """Let neither the next event nor the device after it tell whether the GPU is done."""
    cuda.fail("cuEventQuery", 719)
    cuda.fail("cuMemHostRegister", 719)


def test_synchronize_tells_that_the_gpu_failed(pageable):
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.record_stream(1)
    break_waits(pageable)
    error = failure_of(buffer.synchronize)
    buffer.close(SECONDS)
    assert isinstance(error, dlwrap.DLWrapError)
    assert "memory is kept" not in str(error)  # nothing was to be released


@pytest.mark.parametrize("arguments", [{"dl_device": CPU}, {"copy": True}])
def test_an_export_that_cannot_wait_for_the_gpu_is_a_buffer_error(pageable, arguments):
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.record_stream(1)
    break_waits(pageable)
    error = failure_of(lambda: buffer.__dlpack__(**arguments))
    buffer.close(SECONDS)  # there are no exports
    assert isinstance(error, BufferError)


# ---- __array__ ----


def test_numpy_is_given_the_array_itself(device):
    array = np.zeros(3)
    assert np.asarray(dlwrap.wrap(array)) is array


@pytest.mark.parametrize(
    ("dtype", "copy", "same"),
    [
        (None, None, True),
        (None, False, True),
        (None, True, False),
        (np.float32, None, True),
        (np.float32, False, True),
        (np.float32, True, False),
        (np.float64, None, False),
        (np.float64, True, False),
    ],
)
def test_numpy_is_given_a_copy_where_it_asks_for_one_or_needs_one(device, dtype, copy, same):
    array = np.arange(3, dtype=np.float32)
    given = dlwrap.wrap(array).__array__(dtype, copy)
    assert np.shares_memory(given, array) == same
    assert given.dtype == (dtype or np.float32)
    np.testing.assert_array_equal(given, array)


def test_a_conversion_without_a_copy_is_refused(device):
    buffer = dlwrap.wrap(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="cannot convert float32 to float64 without a copy"):
        buffer.__array__(np.float64, copy=False)


# ---- copies ----


@pytest.mark.parametrize("asked", [None, (2, 0), (2, 255), CPU])
@pytest.mark.parametrize("make", [lambda: np.arange(6.0).reshape(2, 3), lambda: np.arange(6.0).reshape(3, 2).T])
def test_a_copy_has_the_values_in_memory_of_its_own(device, asked, make):
    array = make()
    imported = read(dlwrap.wrap(array).__dlpack__(copy=True, dl_device=asked, max_version=VERSIONED))
    assert imported.device == (CPU if asked == CPU else (2, 0))
    assert imported.managed.flags == IS_COPIED
    assert imported.tensor.data != array.ctypes.data
    assert imported.strides == tuple(stride // 8 for stride in array.strides)
    np.testing.assert_array_equal(imported.as_array(np.float64), array)


@pytest.mark.parametrize("asked", [None, CPU])
def test_a_copy_does_not_keep_the_original(device, asked):
    array = np.zeros(3)
    alive = weakref.ref(array)
    buffer = dlwrap.wrap(array)
    capsule = buffer.__dlpack__(copy=True, dl_device=asked)
    assert buffer.exports == 0
    buffer.close()
    del array, buffer
    settle()
    assert alive() is None
    assert read(capsule).as_array(np.float64).tolist() == [0, 0, 0]


@pytest.mark.parametrize("asked", [None, CPU])
def test_a_copy_is_released_by_its_deleter(device, asked):
    buffer = dlwrap.wrap(np.zeros(3))
    imported = take(buffer.__dlpack__(copy=True, dl_device=asked))
    assert dlwrap.stats().live == 2
    imported.delete()
    dlwrap.reclaim(SECONDS)
    assert dlwrap.stats().live == 1


def test_a_copy_for_the_device_is_page_locked_like_the_array(pinned):
    buffer = dlwrap.wrap(np.zeros(3))
    imported = take(buffer.__dlpack__(copy=True))
    assert len(pinned.registrations) == 2
    assert imported.tensor.data in [each.start for each in pinned.registrations]
    imported.delete()
    dlwrap.reclaim(SECONDS)
    assert len(pinned.registrations) == 1


def test_a_copy_for_the_cpu_is_not_page_locked(pinned):
    buffer = dlwrap.wrap(np.zeros(3))
    imported = take(buffer.__dlpack__(copy=True, dl_device=CPU))
    assert len(pinned.registrations) == 1
    imported.delete()


def test_a_copy_of_pageable_memory_is_pageable(pageable):
    take(dlwrap.wrap(np.zeros(3)).__dlpack__(copy=True)).delete()
    assert pageable.count("cuMemHostRegister") == 0


def test_a_copy_of_page_locked_memory_is_page_locked_where_that_was_forced(pageable):
    imported = take(dlwrap.wrap(np.zeros(3), memory="pinned").__dlpack__(copy=True))
    assert imported.tensor.data in [each.start for each in pageable.registrations]
    imported.delete()


def test_the_release_of_a_copy_waits_for_its_stream(device):
    buffer = dlwrap.wrap(np.zeros(4, np.uint8))
    imported = take(buffer.__dlpack__(copy=True, stream=1))
    device.hold(1)
    device.launch(1, (imported.tensor.data, 4), write=1)
    imported.delete()
    settle()
    assert dlwrap.stats().pending == 1
    device.let_go(1)
    buffer.close()


def test_a_copy_of_a_read_only_array_is_writable(device):
    buffer = dlwrap.wrap(frozen(np.zeros(3)))
    assert read(buffer.__dlpack__(copy=True, max_version=VERSIONED)).managed.flags == IS_COPIED
    assert name_of(buffer.__dlpack__(copy=True)) == b"dltensor"


def test_a_copy_of_nothing_is_nothing(device):
    imported = read(dlwrap.wrap(np.zeros((0, 3))).__dlpack__(copy=True))
    assert imported.shape == (0, 3)


def test_a_copy_that_cannot_be_page_locked_leaves_nothing(pinned):
    buffer = dlwrap.wrap(np.zeros(3))
    pinned.fail("cuMemHostRegister", 2)
    with pytest.raises(dlwrap.CudaError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        buffer.__dlpack__(copy=True)
    assert (dlwrap.stats().live, dlwrap.stats().exports, len(pinned.registrations)) == (1, 0, 1)


def test_a_copy_whose_stream_cannot_be_found_leaves_nothing(pinned):
    buffer = dlwrap.wrap(np.zeros(3))
    pinned.fail("cuCtxGetCurrent", 999)
    try:
        buffer.__dlpack__(copy=True, stream=1)
    except dlwrap.CudaError as error:
        assert error.call == "cuCtxGetCurrent"  # noqa: PT017 -- the traceback would keep the lease
    dlwrap.reclaim(SECONDS)
    assert (dlwrap.stats().live, dlwrap.stats().exports, len(pinned.registrations)) == (1, 0, 1)


def test_only_wrap_makes_buffers():
    with pytest.raises(TypeError, match=r"dlwrap\.wrap"):
        dlwrap.HostWrappedBuffer()


def test_a_wrap_whose_description_is_refused_leaves_nothing(device, monkeypatch):
    def refuse(*arguments):
        raise MemoryError

    monkeypatch.setattr("dlwrap._native.lend", refuse)
    array = np.zeros(3)
    with pytest.raises(MemoryError):
        dlwrap.wrap(array, device=0)
    dlwrap.reclaim(SECONDS)
    assert (dlwrap.stats().live, device.registrations) == (0, [])


# ---- ptr and the CUDA array interface ----


def test_ptr_is_the_address_of_the_first_element(device):
    array = np.zeros(100)
    assert dlwrap.wrap(array[10:]).ptr == array.ctypes.data + 80


def test_whoever_reads_ptr_may_use_any_stream(device):
    buffer = dlwrap.wrap(np.zeros(3))
    _ = buffer.ptr
    assert buffer._lease.device_wide


def test_whoever_reads_the_interface_may_use_any_stream(pinned):
    buffer = dlwrap.wrap(np.zeros(3))
    _ = buffer.__cuda_array_interface__
    assert buffer._lease.device_wide


def test_the_interface_describes_the_array(pinned):
    array = np.zeros((2, 3), np.float32)
    assert dlwrap.wrap(array).__cuda_array_interface__ == {
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (array.ctypes.data, False),
        "strides": None,
        "version": 3,
        "stream": None,
    }


@pytest.mark.parametrize(
    ("array", "strides"),
    [
        (np.zeros((2, 3)), None),
        (np.zeros((2, 3)).T, (8, 24)),
        (np.zeros((4, 6))[::2, ::3], (96, 24)),
        (np.broadcast_to(np.zeros(3), (2, 3)), (0, 8)),
        (np.array(1.0), None),
    ],
)
def test_the_interfaces_strides_are_in_bytes(pinned, array, strides):
    assert dlwrap.wrap(array).__cuda_array_interface__["strides"] == strides


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, np.float16, np.float64, np.complex128])
def test_the_interface_names_the_type_as_numpy_does(pinned, dtype):
    typestr = dlwrap.wrap(np.zeros(3, dtype)).__cuda_array_interface__["typestr"]
    assert typestr == np.dtype(dtype).str


@pytest.mark.parametrize(
    "make", [lambda: dlwrap.wrap(frozen(np.zeros(3))), lambda: dlwrap.wrap(np.zeros(3), readonly=True)]
)
def test_the_interface_says_read_only(pinned, make):
    assert make().__cuda_array_interface__["data"][1] is True


@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ],
)
def test_types_that_numpy_has_no_typestr_for_have_no_interface(pinned, dtype):
    buffer = dlwrap.wrap(np.zeros(3, getattr(ml_dtypes, dtype)))
    with pytest.raises(AttributeError, match=f"__cuda_array_interface__ has no typestr for {dtype}: use DLPack"):
        _ = buffer.__cuda_array_interface__


def test_pageable_memory_has_no_interface(pageable):
    # torch tries this interface before DLPack, and then looks the pointer up.
    buffer = dlwrap.wrap(np.zeros(3))
    assert not hasattr(buffer, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="is for page-locked memory; this is pageable: use DLPack"):
        _ = buffer.__cuda_array_interface__


def test_page_locked_memory_has_an_interface_where_it_was_forced(pageable):
    assert hasattr(dlwrap.wrap(np.zeros(3), memory="pinned"), "__cuda_array_interface__")


# ---- memory that moved ----


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda buffer: buffer.__dlpack__(stream=1), id="export"),
        pytest.param(lambda buffer: buffer.__dlpack__(dl_device=CPU), id="export to the CPU"),
        pytest.param(lambda buffer: buffer.__dlpack__(copy=True), id="copy"),
        pytest.param(lambda buffer: buffer.ptr, id="ptr"),
    ],
)
def test_memory_that_moved_is_not_exported(device, use):
    array = np.zeros(1000)
    buffer = dlwrap.wrap(array)
    array.resize(2_000_000, refcheck=False)
    with pytest.raises(
        BufferError, match=r"cannot export memory that has moved: 8000 bytes at 0x.*wrap the array again"
    ):
        use(buffer)
    assert (buffer.exports, buffer._lease.was_used) == (0, False)


def test_the_interface_of_memory_that_moved_is_refused(pinned):
    array = np.zeros(1000)
    buffer = dlwrap.wrap(array)
    array.resize(2_000_000, refcheck=False)
    with pytest.raises(BufferError, match="cannot export memory that has moved"):
        _ = buffer.__cuda_array_interface__


# ---- context managers ----


def test_a_buffer_is_closed_at_the_end_of_its_block(device):
    with dlwrap.wrap(np.zeros(3)) as buffer:
        assert not buffer.closed
    assert buffer.closed
    assert device.registrations == []


def test_importers_that_outlive_the_block_are_an_error(device):
    with pytest.raises(BufferError, match="cannot close: 1 importer"), dlwrap.wrap(np.zeros(3)) as buffer:
        importer = take(buffer.__dlpack__())
    assert not buffer.closed
    importer.delete()
    buffer.close()


def test_an_error_in_the_block_is_what_is_seen_though_importers_are_alive(device):
    importers = []

    def use():
        with buffer:
            importers.append(take(buffer.__dlpack__()))
            raise KeyError("the error")

    buffer = dlwrap.wrap(np.zeros(3))
    with pytest.raises(KeyError, match="the error"):
        use()
    assert not buffer.closed
    importers[0].delete()
    buffer.close()


def test_a_buffer_that_was_closed_in_its_block_may_be_closed_again(device):
    with dlwrap.wrap(np.zeros(3)) as buffer:
        buffer.close()
    assert buffer.closed


def test_closing_waits_for_the_gpu(device):
    array = device.host_array(4, np.uint8)
    buffer = dlwrap.wrap(array)
    buffer.record_stream(1)
    device.hold(1)
    device.launch(1, array, write=1)
    result_after_work(device, 1, buffer.close)
    assert array.tolist() == [1, 1, 1, 1]


def test_closing_gives_up_after_the_timeout_and_may_be_called_again(device):
    array = device.host_array(4, np.uint8)
    buffer = dlwrap.wrap(array)
    buffer.record_stream(1)
    device.hold(1)
    device.launch(1, array, write=1)
    with pytest.raises(TimeoutError, match=r"close\(\): not done after 0.01 s; it goes on in the background"):
        buffer.close(0.01)
    assert buffer.closed
    device.let_go(1)
    buffer.close()
    assert device.registrations == []


def test_closing_drops_the_array(device):
    array = np.zeros(3)
    alive = weakref.ref(array)
    buffer = dlwrap.wrap(array)
    buffer.close()
    del array
    settle()
    assert alive() is None


# ---- pins ----


def test_a_pin_page_locks_the_array(pinned):
    array = np.zeros(100)
    pin = dlwrap.pin(array)
    assert [(each.start, each.nbytes) for each in pinned.registrations] == [(array.ctypes.data, 800)]
    assert (pin.nbytes, pin.device, pin.memory, pin.closed) == (800, 0, "pinned", False)
    pin.close()
    assert pinned.registrations == []


@pytest.mark.parametrize(("extent", "nbytes"), [("owner", 800), ("view", 80)])
def test_a_pin_of_a_view_locks_what_is_asked_for(pinned, extent, nbytes):
    with dlwrap.pin(np.zeros(100)[10:20], extent=extent) as pin:
        assert pin.nbytes == nbytes


def test_a_pin_of_pageable_memory_locks_nothing(pageable):
    with dlwrap.pin(np.zeros(100)) as pin:
        assert (pin.nbytes, pin.memory) == (0, "pageable")
        assert pageable.count("cuMemHostRegister") == 0


def test_a_pin_of_nothing_locks_nothing(pinned):
    with dlwrap.pin(np.zeros(0)) as pin:
        assert (pin.nbytes, pinned.registrations) == (0, [])


def test_the_repr_of_a_pin_says_what_it_is(cuda):
    pin = dlwrap.pin(np.zeros(100))
    assert repr(pin) == "<dlwrap.Pin nbytes=800 device=0 memory='pinned'>"
    pin.close()
    assert repr(pin) == "<dlwrap.Pin closed device=0 memory='pinned'>"


def test_a_pin_for_another_device(cuda):
    cuda.configure(devices=2)
    with dlwrap.pin(np.zeros(100), device=1) as pin:
        assert pin.device == 1


def test_wraps_inside_a_pin_cost_no_registration(pinned):
    array = np.zeros(100)
    with dlwrap.pin(array):
        for part in (array, array[:10], array[10:20], array[::2]):
            dlwrap.wrap(part).close()
        assert (pinned.count("cuMemHostRegister"), pinned.count("cuMemHostUnregister")) == (1, 0)


def test_closing_a_pin_leaves_the_wraps_inside(pinned):
    array = np.zeros(100)
    pin = dlwrap.pin(array)
    buffer = dlwrap.wrap(array)
    pin.close(SECONDS)
    assert pin.closed
    assert len(pinned.registrations) == 1
    buffer.close()
    assert pinned.registrations == []


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_pin_is_closed_at_the_end_of_its_block(device, error):
    pin = dlwrap.pin(np.zeros(100))
    try:
        with pin:
            if error is not None:
                raise error
    except KeyError:
        pass
    assert pin.closed
    assert device.registrations == []


def test_a_pin_that_is_dropped_is_given_back(device):
    array = np.zeros(100)
    alive = weakref.ref(array)
    pin = dlwrap.pin(array)
    del pin, array
    dlwrap.reclaim(SECONDS)
    settle()
    assert (alive(), device.registrations) == (None, [])


def test_a_pin_keeps_the_array(device):
    array = np.zeros(100)
    alive = weakref.ref(array)
    pin = dlwrap.pin(array)
    del array
    assert alive() is not None
    pin.close()


# ---- what needs no page-locking is wrapped in C ----


def of_which_nobody_may_write(array):
    view = array[:]
    view.flags.writeable = False
    return view


def described(buffer):
    """What a buffer is, and what is told of it."""
    capsule = take(buffer.__dlpack__(stream=1, max_version=(1, 0)))
    told = (capsule.tensor.data, capsule.device, capsule.dtype, capsule.shape, capsule.strides, capsule.managed.flags)
    capsule.delete()
    lease = buffer._lease
    return (*told, buffer.memory, buffer.readonly, buffer.ptr, lease.device_wide, type(lease), lease.hold is None)


@pytest.mark.parametrize("memory", ["auto", "pinned"])
@pytest.mark.parametrize("extent", ["owner", "view"])
@pytest.mark.parametrize("wait", ["streams", "device"])
@pytest.mark.parametrize("readonly", [None, True, False])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda parent: parent, id="array"),
        pytest.param(lambda parent: parent[2:9:2], id="strided"),
        pytest.param(lambda parent: parent.reshape(4, 5).T, id="transposed"),
        pytest.param(of_which_nobody_may_write, id="read-only"),
    ],
)
def test_a_wrap_in_c_is_as_one_in_python(device, memory, extent, wait, readonly, make):
    parent = np.arange(20.0)
    array = make(parent)
    options = {"memory": memory, "extent": extent, "wait": wait, "readonly": readonly}
    with dlwrap.wrap(parent, memory="pinned"):
        in_c = _native.wrap(array, None, memory, extent, wait, readonly)
        in_python = dlwrap.wrap(array, device=0, **options)
        assert in_c is not None
        assert described(in_c) == described(in_python)
        for buffer in (in_c, in_python):
            buffer.close(SECONDS)
    assert (dlwrap.stats().live, dlwrap.stats().pinned_bytes) == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"device": 0}, id="a device that is told"),
        pytest.param({"memory": "".join(["au", "to"])}, id="a word that only equals"),
        pytest.param({"memory": "pageable"}, id="a memory kind that has to be refused"),
        pytest.param({"extent": "all"}, id="an extent that there is not"),
        pytest.param({"wait": None}, id="no wait"),
        pytest.param({"readonly": 1}, id="a number for a truth value"),
        pytest.param({"array": np.zeros(0)}, id="an array without elements"),
        pytest.param({"array": np.ma.zeros(3)}, id="a masked array"),
        pytest.param({"array": np.zeros(3)[::-1]}, id="negative strides"),
        pytest.param({"array": bytearray(64)}, id="a buffer"),
    ],
)
def test_what_c_does_not_wrap_is_left_to_python(pinned, arguments):
    array = arguments.get("array", np.zeros(3))
    options = {"device": None, "memory": "auto", "extent": "owner", "wait": "streams", "readonly": None}
    options |= {name: value for name, value in arguments.items() if name != "array"}
    kept = []
    with contextlib.suppress(BufferError):
        kept.append(dlwrap.wrap(array))  # page-locked, where it can be
    assert _native.wrap(array, *options.values()) is None


def test_a_wrap_in_c_shares_no_range_that_somebody_waits_to_see_gone(pinned):
    array = np.zeros(3)
    buffer = dlwrap.wrap(array)
    buffer._lease.pin.flush = True
    assert _native.wrap(array, None, "auto", "owner", "streams", None) is None
    dlwrap.wrap(array).close(SECONDS)  # and Python shares it
    buffer.close(SECONDS)


def test_no_wrap_is_made_in_c_for_another_context(cuda):
    array = np.zeros(3)
    with dlwrap.pin(array):
        stranger = create_context(0)
        assert _native.wrap(array, None, "auto", "owner", "streams", None) is None
        checked(driver.cuCtxPopCurrent())
        checked(driver.cuCtxDestroy(stranger))


@pytest.mark.parametrize("memory", ["auto", "pageable"])
def test_a_wrap_of_pageable_memory_is_made_in_c(cuda, memory):
    array = np.arange(20.0)
    cuda.configure(pageable=True)
    dlwrap.wrap(array)  # starts what has to be there
    in_c = _native.wrap(array, None, memory, "owner", "streams", None)
    in_python = dlwrap.wrap(array, device=0, memory=memory)
    assert (in_c.memory, in_c._lease.pin) == ("pageable", None)
    assert described(in_c) == described(in_python)
