"""What drives the simulation: settings, planned failures, gates, the call log, watched memory."""

import ctypes
import os
import threading

import numpy as np
import pytest
from cuda.bindings import driver as cu

import dlwrap.testing
from dlwrap.testing import SimulationError
from patience import eventually


def test_a_planned_failure_happens_once_and_does_nothing(cuda, outcome):
    array = cuda.host_array(4)
    cuda.fail("cuMemHostRegister", 2)
    assert outcome(cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)) == "OUT_OF_MEMORY"
    assert cuda.registrations == []
    assert outcome(cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)) == "SUCCESS"
    cu.cuMemHostUnregister(array.ctypes.data)


def test_failures_can_begin_late_and_last(cuda, outcome):
    cuda.fail("cuEventCreate", 2, nth=2, times=2)
    results = [outcome(cu.cuEventCreate(0)) for _ in range(4)]
    assert results == ["SUCCESS", "OUT_OF_MEMORY", "OUT_OF_MEMORY", "SUCCESS"]


def test_failures_can_have_codes_that_no_header_knows(cuda):
    cuda.fail("cuCtxSynchronize", 31337)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(cu.cuGetProcAddress(b"cuCtxSynchronize", 12000, 0)[1])() == 31337


def test_every_form_of_every_function_fails_as_planned(cuda):
    names = {address: name for name, address in _forms(cuda)}
    for address, name in names.items():
        if name in {"cuGetProcAddress", "cuGraphInstantiateWithFlags"}:
            continue  # what the test itself calls, and another name of cuGraphInstantiate
        cuda.fail(name, 31337)
        call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 8)(address)
        assert call(*[None] * 8) == 31337, name


def _forms(cuda):
    """Every function's name with the address of each of its forms."""
    index = 0
    while (name := cuda._library.dlwrap_sim_function_name(index)) is not None:
        for version in (4000, 6050, 10010, 11000, 11030, 11040, 12000, 12030, 12050, 13000):
            for flags in (0, 2):
                address = cu.cuGetProcAddress(name, version, flags)[1]
                if address:
                    yield name.decode(), address
        index += 1


def test_failures_can_be_forgotten(cuda, outcome):
    cuda.fail("cuEventCreate", 2, times=5)
    cuda.clear_failures()
    assert outcome(cu.cuEventCreate(0)) == "SUCCESS"


@pytest.mark.parametrize("call", ["fail", "count", "calls", "pause", "resume", "waiting", "wait_until_paused"])
def test_a_function_that_is_not_simulated_is_refused_by_name(cuda, call):
    arguments = (1,) if call == "fail" else ()
    with pytest.raises(ValueError, match="no function 'cuMemHostRegister_v2'"):
        getattr(cuda, call)("cuMemHostRegister_v2", *arguments)


@pytest.mark.parametrize("options", [{"code": 0}, {"code": 1, "nth": 0}, {"code": 1, "times": 0}])
def test_a_failure_that_could_not_happen_is_refused(cuda, options):
    with pytest.raises(ValueError, match="code != 0"):
        cuda.fail("cuInit", options.pop("code"), **options)


def test_the_log_tells_which_thread_called_what(cuda, stream, threads):
    cu.cuStreamQuery(stream)
    thread = threads.start(lambda: cu.cuStreamGetId(stream), name="helper")
    while not thread.results:
        pass
    queries, helpers = cuda.calls("cuStreamQuery"), cuda.calls("cuStreamGetId")
    assert [call.thread_id for call in queries] == [threading.get_native_id()]
    assert [call.function for call in helpers] == ["cuStreamGetId"]
    assert helpers[0].thread_id != queries[0].thread_id
    assert queries[0].thread_name == threading.current_thread().name


def test_the_log_is_in_order_and_can_be_forgotten(cuda, stream):
    cu.cuStreamQuery(stream)
    cu.cuStreamGetId(stream)
    cu.cuStreamQuery(stream)
    assert [call.function for call in cuda.calls()] == ["cuStreamQuery", "cuStreamGetId", "cuStreamQuery"]
    assert cuda.count("cuStreamQuery") == 2
    cuda.clear_calls()
    assert (cuda.calls(), cuda.count("cuStreamQuery")) == ([], 0)


def test_the_log_knows_who_holds_the_gil(cuda):
    get_id = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(("cuStreamGetId", cuda._library))
    get_id(None, ctypes.addressof(ctypes.c_uint64()))
    cu.cuStreamGetId(0)
    assert [call.gil_held for call in cuda.calls("cuStreamGetId")] == [True, False]


def test_what_the_tests_ask_is_not_logged(cuda):
    stream = cuda.create_stream()
    cuda.hold(stream)
    cuda.let_go(stream)
    cuda.destroy_stream(stream)
    assert cuda.calls() == []


def test_a_gate_stops_every_call_of_its_function_only(cuda, threads, stream):
    cuda.pause("cuStreamQuery")
    stopped = [threads.start(lambda: cu.cuStreamQuery(stream)) for _ in range(2)]
    cuda.wait_until_paused("cuStreamQuery", threads=2)
    assert cuda.waiting("cuStreamQuery") == 2
    cu.cuStreamGetId(stream)
    cuda.resume("cuStreamQuery")
    for thread in stopped:
        thread.join(10)
    assert cuda.waiting("cuStreamQuery") == 0


def test_threads_without_python_that_end_together_race_with_nothing(cuda):
    # More stacks than glibc keeps (40 MiB), so that each thread that ends frees the storage of others. Here the thread
    # sanitizer sees it; that it is wrong to complain is said in .ci/tsan.supp.
    libc, driver = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    contexts = (ctypes.c_void_p * 12)(*range(1, 13))
    attributes = ctypes.create_string_buffer(64)  # pthread_attr_t
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setdetachstate(attributes, 1)  # PTHREAD_CREATE_DETACHED
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(8 << 20))
    threads_before = _count_threads()
    cuda.pause("cuCtxGetCurrent")
    for number in range(len(contexts)):
        context = ctypes.byref(contexts, number * ctypes.sizeof(ctypes.c_void_p))
        assert libc.pthread_create(ctypes.byref(ctypes.c_ulong()), attributes, driver.cuCtxGetCurrent, context) == 0
    cuda.wait_until_paused("cuCtxGetCurrent", threads=len(contexts))
    cuda.resume("cuCtxGetCurrent")
    assert eventually(lambda: not any(contexts) and _count_threads() <= threads_before)
    assert cuda.waiting("cuCtxGetCurrent") == 0  # after their last unlock, so that `contexts` may be freed
    assert list(contexts) == [None] * len(contexts)


def _count_threads():
    return len(os.listdir("/proc/self/task"))


def test_waiting_for_a_gate_has_an_end(cuda):
    cuda.pause("cuStreamQuery")
    with pytest.raises(TimeoutError, match="0 threads wait in cuStreamQuery"):
        cuda.wait_until_paused("cuStreamQuery", timeout=0.01)


def test_a_failure_planned_while_a_call_is_at_its_gate_meets_it(cuda, outcome, threads, stream):
    cuda.pause("cuStreamQuery")
    stopped = threads.start(lambda: outcome(cu.cuStreamQuery(stream)))
    cuda.wait_until_paused("cuStreamQuery")
    cuda.fail("cuStreamQuery", 999)
    cuda.resume("cuStreamQuery")
    stopped.join(10)
    assert stopped.results == ["UNKNOWN"]


def test_settings_cannot_change_while_in_use(cuda, register):
    register(cuda.host_array(4))
    with pytest.raises(SimulationError, match="take new settings"):
        cuda.configure(pageable=True)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"devices": 9}, SimulationError),
        ({"devices": -1}, SimulationError),
        ({"pointer_offset": -8}, SimulationError),
        ({"dead_handle": "ignore"}, ValueError),
    ],
)
def test_settings_that_make_no_sense_are_refused(cuda, settings, error):
    with pytest.raises(error):
        cuda.configure(**settings)


def test_a_reset_is_refused_while_memory_is_registered(cuda, register):
    register(cuda.host_array(4))
    with pytest.raises(SimulationError, match="reset"):
        cuda.reset()


def test_a_forced_reset_drops_work_and_registrations(cuda, stream):
    array = cuda.host_array(4, np.uint8)
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
    cuda.hold(stream)
    cuda.launch(stream, array, write=1)
    cuda.reset(force=True)
    cuda.assert_clean()
    assert array[0] == 0


def test_a_reset_keeps_live_handles(cuda, outcome, stream, event):
    cuda.reset()
    assert outcome(cu.cuEventRecord(event, stream)) == "SUCCESS"
    assert outcome(cu.cuEventQuery(event)) == "SUCCESS"


def test_a_reset_ends_captures_holds_gates_and_failures(cuda, outcome, register, stream):
    cuda.begin_capture(stream)
    cuda.hold(stream)
    cuda.pause("cuStreamQuery")
    cuda.fail("cuStreamQuery", 1)
    cuda.reset()
    assert cuda.capture_status(stream) == "none"
    assert outcome(cu.cuStreamQuery(stream)) == "SUCCESS"


def test_a_reset_makes_the_calling_thread_s_capture_mode_global(cuda):
    relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cu.cuThreadExchangeStreamCaptureMode(relaxed)
    cuda.reset()
    assert int(cu.cuThreadExchangeStreamCaptureMode(relaxed)[1]) == 0


def test_the_check_lists_what_is_left(cuda, stream):
    array = cuda.host_array(4)
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
    cuda.hold(stream)
    cuda.launch(stream, array)
    with pytest.raises(AssertionError, match="1 operations pending, 1 ranges registered"):
        cuda.assert_clean()
    cuda.reset(force=True)


def test_the_context_manager_configures_and_checks(cuda, stream):
    with dlwrap.testing.simulated_cuda(devices=2) as driver:
        assert driver is cuda
        assert cu.cuDeviceGetCount()[1] == 2
    assert cu.cuDeviceGetCount()[1] == 1


def leave_registered(array):
    cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)


def test_the_context_manager_tells_what_was_left_and_clears_it(cuda):
    array = cuda.host_array(4)
    with pytest.raises(AssertionError, match="1 ranges registered"), dlwrap.testing.simulated_cuda():
        leave_registered(array)
    cuda.assert_clean()


def test_the_context_manager_lets_the_body_s_own_error_through(cuda):
    array = cuda.host_array(4)

    def body():
        leave_registered(array)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), dlwrap.testing.simulated_cuda():
        body()
    cuda.assert_clean()


@pytest.mark.parametrize("dtype", ["u1", "f2", "f8", "c16", "?", "<U3"])
@pytest.mark.parametrize("shape", [(), 5, (0,), (2, 3)])
def test_watched_arrays_are_arrays_like_any_other(cuda, dtype, shape):
    array = cuda.host_array(shape, dtype, fill=1)
    np.testing.assert_array_equal(array, np.full(shape, 1, dtype))
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_watched_memory_lives_as_long_as_a_view_of_it(cuda):
    array = cuda.host_array((4, 4), offset=8)
    assert array.ctypes.data % 4096 == 8
    view = array[1:, 2].T
    del array
    assert cuda.host_arrays_alive == 1
    del view
    assert cuda.host_arrays_alive == 0


def test_a_test_does_not_count_what_an_earlier_one_kept():
    with dlwrap.testing.simulated_cuda() as cuda:
        kept, other = cuda.host_array(3), cuda.host_array(3)
        assert cuda.host_arrays_alive == 2
    with dlwrap.testing.simulated_cuda() as cuda:
        array = cuda.host_array(3)
        assert cuda.host_arrays_alive == 1
        del kept
        assert cuda.host_arrays_alive == 1
        cuda.reset()
        assert cuda.host_arrays_alive == 1
        del array
        assert cuda.host_arrays_alive == 0
    del other
