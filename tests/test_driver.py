"""The driver layer: errors, contexts and capture modes as the program sees them."""

from __future__ import annotations

import contextlib
import pickle
import weakref

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
import scripts
from capsules import look
from cuda_calls import QUICK, checked, create_context
from dlwrap import _driver
from patience import SECONDS, eventually

GLOBAL, THREAD_LOCAL, RELAXED = (
    driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
)


@pytest.fixture(autouse=True)
def threads_run(request):
    """Start dlwrap's threads, so that a failure planned by a test meets the calls of the test's own thread."""
    if "cuda" in request.fixturenames:
        request.getfixturevalue("cuda")
        dlwrap.wrap(np.zeros(1)).close()


@pytest.fixture(
    params=[{}, {"pageable": True}, {"pageable": True, "host_page_tables": True}], ids=["pinned", "HMM", "ATS"]
)
def device(cuda, request):
    cuda.configure(**request.param)
    return cuda


def current_context():
    return int(checked(driver.cuCtxGetCurrent()))


def capture_mode():
    """Look at the calling thread's capture mode and leave it so."""
    mode = checked(driver.cuThreadExchangeStreamCaptureMode(GLOBAL))
    checked(driver.cuThreadExchangeStreamCaptureMode(mode))
    return mode


def read(capsule):
    """Look at a capsule and keep it: what it describes ends with it."""
    imported = look(capsule)
    imported.capsule = capsule
    return imported


def run(code):
    return scripts.run(code, prologue="")


# ---- errors ----


def test_a_failed_call_tells_code_name_call_and_explanation(cuda):
    cuda.fail("cuDeviceGetCount", 999)
    with pytest.raises(dlwrap.CudaError, match=r"^CUDA_ERROR_UNKNOWN \(999\) from cuDeviceGetCount: unknown error$"):
        dlwrap.wrap(np.zeros(3), device=0)


@pytest.mark.parametrize("function", ["cuDeviceGetAttribute", "cuCtxGetCurrent", "cuCtxGetDevice"])
@pytest.mark.parametrize("context", ["the primary context"], indirect=True)
def test_a_failed_call_of_the_native_part_is_told_as_well(cuda, context, function):
    cuda.fail(function, 999, times=2)  # what fails once is asked again
    with pytest.raises(dlwrap.CudaError, match=rf"^CUDA_ERROR_UNKNOWN \(999\) from {function}: unknown error$"):
        dlwrap.wrap(np.zeros(3))


def test_the_error_of_a_failed_call_can_be_pickled(cuda):
    cuda.fail("cuDeviceGetCount", 2)
    with pytest.raises(dlwrap.CudaError) as caught:
        _driver.device_count()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.code, again.name, again.call) == (2, "CUDA_ERROR_OUT_OF_MEMORY", "cuDeviceGetCount")
    assert str(again) == str(caught.value)


def test_a_result_that_the_bindings_do_not_know_is_told_by_its_number(cuda):
    cuda.fail("cuDeviceGetCount", 12345)
    with pytest.raises(
        dlwrap.CudaError, match=r"unknown CUresult \(12345\) from cuDeviceGetCount: newer than"
    ) as caught:
        _driver.device_count()
    assert caught.value.code == 12345


def test_a_result_that_the_driver_cannot_explain_is_told_by_its_name(cuda):
    cuda.fail("cuDeviceGetCount", 802)  # known to the bindings only
    with pytest.raises(dlwrap.CudaError, match=r"CUDA_ERROR_SYSTEM_NOT_READY \(802\) .*: no explanation") as caught:
        _driver.device_count()
    assert caught.value.code == 802


def test_a_wrong_argument_is_not_mistaken_for_a_result(cuda):
    with pytest.raises(ValueError, match="99 is not a valid CUstreamCaptureMode"):
        _driver._invoke(
            type("Bindings", (), {"f": staticmethod(lambda: driver.CUstreamCaptureMode(99))}),
            "f",
            (),
        )


def test_a_failed_recording_is_an_error(cuda):
    with _driver.primary_context(0):
        event = _driver.create_event()
        cuda.fail("cuEventRecord", 719)
        with pytest.raises(dlwrap.CudaError, match=r"CUDA_ERROR_LAUNCH_FAILED \(719\) from cuEventRecord"):
            _driver.record_unless_capturing(event, 1)
        _driver.destroy_event(event)


def test_a_recording_that_fails_in_a_new_way_is_an_error(cuda):
    with _driver.primary_context(0):
        event = _driver.create_event()
        cuda.fail("cuEventRecord", 12345)
        with pytest.raises(dlwrap.CudaError, match=r"unknown CUresult \(12345\) from cuEventRecord"):
            _driver.record_unless_capturing(event, 1)
        _driver.destroy_event(event)


def test_an_event_that_cannot_be_queried_is_an_error(cuda):
    with _driver.primary_context(0):
        event = _driver.create_event()
        cuda.fail("cuEventQuery", 719)
        with pytest.raises(dlwrap.CudaError, match=r"\(719\) from cuEventQuery"):
            _driver.is_event_done(event)
        _driver.destroy_event(event)


def test_an_event_is_done_when_the_work_before_it_is(cuda):
    array = cuda.host_array(3)
    buffer = dlwrap.wrap(array)
    with _driver.primary_context(0):
        event = _driver.create_event()
        cuda.hold(1)
        cuda.launch(1, array, write=1)
        assert _driver.record_unless_capturing(event, 1)
        assert not _driver.is_event_done(event)
        cuda.let_go(1)
        assert _driver.is_event_done(event)
        _driver.destroy_event(event)
    buffer.close()


def test_a_stream_that_captures_is_not_recorded(cuda):
    stream = cuda.create_stream()
    cuda.begin_capture(stream)
    with _driver.primary_context(0):
        event = _driver.create_event()
        assert not _driver.record_unless_capturing(event, stream)
        _driver.destroy_event(event)
    cuda.end_capture(stream)
    cuda.destroy_stream(stream)


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
def test_the_legacy_stream_counts_as_capturing_beside_a_blocking_capture(cuda, blocking):
    stream = cuda.create_stream(blocking=blocking)
    cuda.begin_capture(stream)
    with _driver.primary_context(0):
        assert _driver.is_capturing(1) == blocking
        assert _driver.is_capturing(stream)
    assert cuda.capture_status(stream) == "active"
    cuda.end_capture(stream)
    cuda.destroy_stream(stream)


def test_a_failed_question_for_captures_is_an_error(cuda):
    cuda.fail("cuStreamIsCapturing", 719)
    with _driver.primary_context(0), pytest.raises(dlwrap.CudaError, match="cuStreamIsCapturing"):
        _driver.is_capturing(1)


@pytest.mark.parametrize("nth", [1, 2], ids=["start", "size"])
def test_a_failed_question_for_a_range_is_an_error(cuda, nth):
    array = np.zeros(3)
    buffer = dlwrap.wrap(array)
    cuda.fail("cuPointerGetAttribute", 719, nth=nth)
    with _driver.primary_context(0), pytest.raises(dlwrap.CudaError, match="cuPointerGetAttribute"):
        _driver.known_range(array.ctypes.data)
    buffer.close()


def test_the_driver_knows_the_range_around_page_locked_memory(cuda):
    array = np.zeros(3)
    buffer = dlwrap.wrap(array)
    start = array.ctypes.data
    with _driver.primary_context(0):
        assert _driver.known_range(start + 8) == (start, start + 24)
    buffer.close()


def test_the_driver_knows_nothing_of_pageable_memory(cuda):
    with _driver.primary_context(0):
        assert _driver.known_range(np.zeros(3).ctypes.data) is None


# ---- no driver, no device, an old driver: each in a process of its own ----


def test_import_touches_no_driver():
    done = run("import sys, dlwrap; print([name for name in sys.modules if name.startswith('cuda.')])")
    assert done.stdout == "[]\n"


def test_without_a_driver_wrap_says_what_to_install():
    done = run("""
import ctypes
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    import dlwrap
    try:
        dlwrap.wrap(bytearray(8))
    except dlwrap.CudaError as error:
        print(error.code, error.name, error)
else:
    print("driver")
""")
    if done.stdout == "driver\n":
        pytest.skip("this machine has a CUDA driver")
    assert done.stdout.startswith("-1 NO_DRIVER ")
    assert "install the NVIDIA driver, or use dlwrap.testing" in done.stdout
    assert done.stderr == ""


def test_without_a_driver_nothing_is_lent_and_no_thread_runs():
    done = run("""
import ctypes
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    import contextlib, threading, dlwrap
    with contextlib.suppress(dlwrap.CudaError):
        dlwrap.wrap(bytearray(8))
    dlwrap.reclaim()
    print(dlwrap.stats().live, threading.active_count())
else:
    print("driver")
""")
    if done.stdout == "driver\n":
        pytest.skip("this machine has a CUDA driver")
    assert (done.stdout, done.stderr) == ("0 1\n", "")


def test_without_cuda_bindings_wrap_says_so():
    done = run("""
import sys
sys.modules["cuda.bindings"] = None
import dlwrap
try:
    dlwrap.wrap(bytearray(8))
except dlwrap.CudaError as error:
    print(error.code, error.name, error)
""")
    assert done.stdout.startswith("-1 NO_BINDINGS NO_BINDINGS (-1) from import: cuda-bindings cannot be imported: ")


@pytest.mark.parametrize("setting", ["driver.configure(devices=0)", 'driver.fail("cuInit", 100)'])
def test_without_a_device_wrap_says_so(setting):
    done = run(f"""
import dlwrap, dlwrap.testing
driver = dlwrap.testing.activate()
{setting}
try:
    dlwrap.wrap(bytearray(8))
except dlwrap.CudaError as error:
    print(error)
""")
    assert (done.stdout, done.stderr) == ("CUDA_ERROR_NO_DEVICE (100) from cuInit: no CUDA-capable device\n", "")


def test_a_driver_that_could_not_be_initialised_is_tried_again():
    done = run("""
import contextlib, dlwrap, dlwrap.testing
driver = dlwrap.testing.activate()
driver.fail("cuInit", 100)
with contextlib.suppress(dlwrap.CudaError):
    dlwrap.wrap(bytearray(8))
print(dlwrap.wrap(bytearray(8)).device)
""")
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_a_function_that_an_old_driver_lacks_is_named(memory):
    # cuGetProcAddress came with CUDA 11.3.
    done = run(f"""
import dlwrap, dlwrap.testing
dlwrap.testing.activate().configure(driver_version=9000, pageable={memory == "pageable"})
try:
    dlwrap.wrap(bytearray(8)).close(timeout=2)
except dlwrap.CudaError as error:
    print(error)
""")
    assert "cuGetProcAddress" in done.stdout
    assert "not found" in done.stdout
    assert "wrap a copy" not in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_a_call_that_fails_once_as_the_threads_start_hangs_nothing(memory):
    done = run(f"""
import dlwrap, dlwrap.testing
driver = dlwrap.testing.activate()
driver.configure(pageable={memory == "pageable"})
driver.fail("cuThreadExchangeStreamCaptureMode", 999, times=2)
for _ in range(4):
    try:
        dlwrap.wrap(bytearray(8)).close(timeout=2)
    except dlwrap.CudaError:
        continue
    print("closed")
    break
""")
    assert (done.stdout, done.stderr) == ("closed\n", "")


# ---- contexts ----

CONTEXTS = ["no context", "the primary context", "another context", "a context of another device"]


@contextlib.contextmanager
def _current(kind):
    if kind == "the primary context":
        context = checked(driver.cuDevicePrimaryCtxRetain(0))
        checked(driver.cuCtxPushCurrent(context))
        yield
        checked(driver.cuCtxPopCurrent())
        checked(driver.cuDevicePrimaryCtxRelease(0))
    elif kind == "no context":
        yield
    else:
        context = create_context(int(kind == "a context of another device"))
        yield
        checked(driver.cuCtxDestroy(context))


@pytest.fixture(params=CONTEXTS)
def context(request, cuda):
    """Make a context current; give its handle."""
    cuda.configure(devices=2)
    with _current(request.param):
        yield current_context()
        assert (current_context() == 0) == (request.param == "no context")


USES = {
    "export": lambda buffer: buffer.__dlpack__(),
    "export for a stream": lambda buffer: buffer.__dlpack__(stream=1),
    "export to the host": lambda buffer: buffer.__dlpack__(dl_device=(1, 0)),
    "copy": lambda buffer: buffer.__dlpack__(copy=True),
    "copy to the host": lambda buffer: buffer.__dlpack__(copy=True, dl_device=(1, 0)),
    "ptr": lambda buffer: buffer.ptr,
    "interface": lambda buffer: buffer.__cuda_array_interface__,
    "array": np.asarray,
    "record_stream": lambda buffer: buffer.record_stream(1),
    "synchronize": lambda buffer: buffer.synchronize(),
    "close": lambda buffer: buffer.close(),
    "wrap of a part": lambda buffer: dlwrap.wrap(buffer.array[:2], device=0).close(),
    "pin": lambda buffer: dlwrap.pin(buffer.array, device=0).close(),
    "support": lambda buffer: dlwrap.support(),
    "reclaim": lambda buffer: dlwrap.reclaim(),
}


def test_a_wrap_leaves_the_current_context(cuda, context):
    buffer = dlwrap.wrap(np.zeros(3), device=0)
    assert current_context() == context
    buffer.close()


@pytest.mark.parametrize("use", USES)
def test_a_use_leaves_the_current_context(cuda, context, use):
    buffer = dlwrap.wrap(np.zeros(3), device=0)
    for used in (USES["record_stream"], USES[use]):
        with contextlib.suppress(BufferError):  # another context of the same device is refused
            used(buffer)
        assert current_context() == context


def test_a_wrap_that_the_bindings_break_leaves_the_current_context_and_the_mode(cuda, context, monkeypatch):
    def interrupted(pointer):
        raise KeyboardInterrupt

    array = np.zeros(3)
    with dlwrap.pin(array, device=1):
        monkeypatch.setattr(_driver, "device_pointer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dlwrap.wrap(array, device=0)
        assert current_context() == context
        assert capture_mode() == GLOBAL
    dlwrap.reclaim(SECONDS)  # after an interrupt nobody waits for the unregistering
    assert cuda.registrations == []


# The calls that a first wrap makes, and results that they may have.
FAILURES = [
    ("cuDeviceGetCount", 999),
    ("cuDeviceGetAttribute", 101),
    ("cuThreadExchangeStreamCaptureMode", 999),
    ("cuCtxPushCurrent", 999),
    ("cuMemHostRegister", 1),
    ("cuMemHostRegister", 2),
    ("cuMemHostRegister", 101),
    ("cuMemHostRegister", 712),
    ("cuMemHostRegister", 719),
    ("cuMemHostRegister", 801),
    ("cuMemHostRegister", 12345),
    ("cuMemHostGetDevicePointer", 1),
    ("cuMemHostGetDevicePointer", 999),
    ("cuMemHostGetDevicePointer", 12345),
]


def outcome(array, **arguments):
    """Wrap and keep nothing of it: neither the buffer nor the traceback."""
    try:
        dlwrap.wrap(array, **arguments)
    except (dlwrap.CudaError, BufferError) as error:
        return f"{type(error).__name__}: {error}"
    return "wrapped"


@pytest.mark.parametrize(("function", "code"), FAILURES)
def test_a_failed_wrap_leaves_the_current_context(cuda, context, function, code):
    cuda.fail(function, code)
    assert outcome(np.zeros(3), device=0) != "wrapped"
    assert current_context() == context


@pytest.mark.parametrize(("function", "code"), FAILURES)
def test_a_failed_wrap_leaves_nothing_behind(cuda, function, code):
    array = np.zeros(3)
    alive = weakref.ref(array)
    cuda.fail(function, code)
    assert outcome(array, device=0) != "wrapped"
    assert cuda.registrations == []
    assert (dlwrap.stats().live, dlwrap.stats().pinned_bytes) == (0, 0)
    del array
    assert alive() is None


@pytest.mark.parametrize(("function", "code"), FAILURES)
def test_after_a_failed_wrap_the_next_one_works(cuda, function, code):
    array = np.zeros(3)
    cuda.fail(function, code)
    assert outcome(array, device=0) != "wrapped"
    buffer = dlwrap.wrap(array)
    assert read(buffer.__dlpack__()).tensor.data == array.ctypes.data
    buffer.close()


@pytest.mark.parametrize(("function", "code"), FAILURES)
def test_a_failed_wrap_restores_the_capture_mode(cuda, function, code):
    checked(driver.cuThreadExchangeStreamCaptureMode(THREAD_LOCAL))
    try:
        cuda.fail(function, code)
        assert outcome(np.zeros(3), device=0) != "wrapped"
        assert capture_mode() == THREAD_LOCAL
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(GLOBAL))


def test_a_primary_context_that_cannot_be_had_fails_the_wrap(cuda):
    cuda.configure(devices=8)
    _driver._primary.cache_clear()  # device 7 may have been used before
    cuda.fail("cuDevicePrimaryCtxRetain", 46)
    assert outcome(np.zeros(3), device=6).startswith("CudaError: CUDA_ERROR_DEVICE_UNAVAILABLE (46)")
    dlwrap.wrap(np.zeros(3), device=6).close()


# ---- captures ----


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_relaxed_restores_the_mode(cuda, mode):
    checked(driver.cuThreadExchangeStreamCaptureMode(mode))
    try:
        with _driver.relaxed():
            assert capture_mode() == RELAXED
        assert capture_mode() == mode
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(GLOBAL))


def test_relaxed_restores_the_mode_after_an_error(cuda):
    with pytest.raises(KeyError), _driver.relaxed():
        raise KeyError
    assert capture_mode() == GLOBAL


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
def test_a_whole_life_beside_a_capture_of_the_same_thread_leaves_it_valid(device, mode, blocking):
    stream = device.create_stream(blocking=blocking)
    device.begin_capture(stream, mode)
    buffer = dlwrap.wrap(np.zeros(3))
    capsule = buffer.__dlpack__(stream=stream)
    assert dlwrap.support().device == 0
    del capsule
    assert device.capture_status(stream) == "active"
    device.destroy_graph(device.end_capture(stream))
    assert eventually(lambda: buffer.exports == dlwrap.stats().graphs == 0)
    buffer.close(SECONDS)
    device.destroy_stream(stream)


@pytest.mark.parametrize(
    ("function", "code"), [each for each in FAILURES if each[0] != "cuThreadExchangeStreamCaptureMode"]
)
def test_a_failed_wrap_leaves_a_capture_valid(cuda, function, code):
    stream = cuda.create_stream()
    cuda.begin_capture(stream)
    cuda.fail(function, code)
    assert outcome(np.zeros(3), device=0) != "wrapped"
    assert cuda.capture_status(stream) == "active"
    cuda.end_capture(stream)
    cuda.destroy_stream(stream)


# ---- calls ----


def test_the_attribute_that_is_asked_for_by_number_is_the_right_one(cuda):
    assert _driver._attribute_number("PAGEABLE_MEMORY_ACCESS") == _driver._PAGEABLE_MEMORY_ACCESS


def test_no_call_of_a_life_holds_the_gil(device):
    device.clear_calls()
    array = np.zeros(3)
    buffer = dlwrap.wrap(array, memory="pinned")
    buffer.record_stream(1)
    buffer.synchronize()
    buffer.close()
    made = {call.function for call in device.calls()}
    assert {
        "cuMemHostRegister",
        "cuMemHostGetDevicePointer",
        "cuEventRecord",
        "cuEventQuery",
        "cuMemHostUnregister",
    } <= made
    assert {call.function for call in device.calls() if call.gil_held} <= QUICK


def test_the_waiting_and_unregistering_is_done_by_threads_of_dlwrap(device):
    buffer = dlwrap.wrap(np.zeros(3), memory="pinned")
    buffer.record_stream(1)
    device.clear_calls()
    buffer.close()
    by = {call.function: call.thread_name for call in device.calls()}
    assert by["cuEventRecord"] == by["cuEventQuery"] == "dlwrap-lifetime"
    assert by["cuMemHostUnregister"] == "dlwrap-sweeper"


@pytest.fixture
def recorded(monkeypatch):
    """The streams that events are recorded on, as the driver is told them."""
    streams = []
    record = _driver._native.record

    def spy(is_capturing, event_record, stream, event):
        streams.append(stream)
        return record(is_capturing, event_record, stream, event)

    monkeypatch.setattr(_driver._native, "record", spy)
    return streams


def test_the_legacy_stream_itself_is_recorded_by_nobody(device, recorded):
    # It would break the capture of a blocking stream that begins at that moment.
    buffer = dlwrap.wrap(np.zeros(3))
    capsule = buffer.__dlpack__(stream=1)
    del capsule
    buffer.close()
    assert recorded == [_driver._after_legacy[0][1]]
    assert checked(driver.cuStreamGetFlags(recorded[0])) == 0  # a blocking stream


def test_the_per_thread_stream_is_recorded_by_nobody(device, recorded):
    # From another thread the number names another stream.
    buffer = dlwrap.wrap(np.zeros(3))
    capsule = buffer.__dlpack__(stream=2)
    del capsule
    buffer.close()
    assert recorded == []


@pytest.mark.parametrize("settings", [{"driver_version": 12000}, {"driver_version": 12090}, {"driver_version": 13000}])
def test_a_life_works_on_older_drivers(settings):
    done = run(f"""
import numpy as np
import dlwrap, dlwrap.testing
dlwrap.testing.activate().configure(**{settings})
buffer = dlwrap.wrap(np.zeros(3))
capsule = buffer.__dlpack__(stream=1)
del capsule
buffer.synchronize()
buffer.close(20)
print("closed")
""")
    assert (done.stdout, done.stderr) == ("closed\n", "")
