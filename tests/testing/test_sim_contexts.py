"""Contexts: current ones per thread, primary ones per device."""

import pytest
from cuda.bindings import driver as cu

UNUSED = 7  # a device that no other test retains


@pytest.mark.parametrize(
    "call",
    [
        cu.cuCtxGetDevice,
        cu.cuCtxSynchronize,
        cu.cuCtxPopCurrent,
        lambda: cu.cuStreamCreate(0),
        lambda: cu.cuStreamQuery(0),
        lambda: cu.cuEventCreate(0),
        lambda: cu.cuMemAlloc(8),
        lambda: cu.cuMemHostRegister(4096, 8, 0),
        lambda: cu.cuMemHostUnregister(4096),
    ],
)
def test_without_a_current_context_calls_are_refused(cuda, outcome, call):
    cu.cuCtxSetCurrent(None)
    assert outcome(call()) == "INVALID_CONTEXT"


def test_push_and_pop_leave_the_context_below_current(cuda):
    cuda.configure(devices=2)
    below = cu.cuCtxGetCurrent()[1]
    above = cu.cuDevicePrimaryCtxRetain(1)[1]
    cu.cuCtxPushCurrent(above)
    assert int(cu.cuCtxGetDevice()[1]) == 1
    assert int(cu.cuCtxPopCurrent()[1]) == int(above)
    assert int(cu.cuCtxGetCurrent()[1]) == int(below)
    cu.cuDevicePrimaryCtxRelease(1)


def test_another_thread_has_no_current_context(cuda):
    import threading

    seen = []
    thread = threading.Thread(target=lambda: seen.append(int(cu.cuCtxGetCurrent()[1])))
    thread.start()
    thread.join()
    assert seen == [0]


def test_the_primary_context_is_active_while_retained(cuda):
    cuda.configure(devices=8)
    assert cu.cuDevicePrimaryCtxGetState(UNUSED)[2] == 0
    cu.cuDevicePrimaryCtxRetain(UNUSED)
    cu.cuDevicePrimaryCtxRetain(UNUSED)
    cu.cuDevicePrimaryCtxRelease(UNUSED)
    assert cu.cuDevicePrimaryCtxGetState(UNUSED)[2] == 1
    cu.cuDevicePrimaryCtxRelease(UNUSED)
    assert cu.cuDevicePrimaryCtxGetState(UNUSED)[2] == 0


def test_releasing_the_primary_context_once_too_often_is_refused(cuda, outcome):
    cuda.configure(devices=8)
    assert outcome(cu.cuDevicePrimaryCtxRelease(UNUSED)) == "INVALID_CONTEXT"


def test_a_released_primary_context_is_destroyed(cuda, outcome):
    cuda.configure(devices=8)
    context = cu.cuDevicePrimaryCtxRetain(UNUSED)[1]
    cu.cuCtxPushCurrent(context)
    cu.cuDevicePrimaryCtxRelease(UNUSED)
    assert outcome(cu.cuStreamCreate(0)) == "CONTEXT_IS_DESTROYED"
    assert outcome(cu.cuCtxPushCurrent(context)) == "CONTEXT_IS_DESTROYED"
    cu.cuCtxPopCurrent()


def test_destroying_a_context_unregisters_what_was_registered_in_it(cuda):
    cuda.configure(devices=8)
    array = cuda.host_array(4)
    cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(UNUSED)[1])
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
    assert [each.device for each in cuda.registrations] == [UNUSED]
    cu.cuCtxPopCurrent()
    cu.cuDevicePrimaryCtxRelease(UNUSED)
    assert cuda.registrations == []


def test_destroying_a_context_waits_for_its_work(cuda, threads):
    cuda.configure(devices=2)
    array = cuda.host_array(4)
    stream = cuda.create_stream(device=1)
    cuda.hold(stream)
    cuda.launch(stream, array)
    thread = threads.start(lambda: cu.cuDevicePrimaryCtxReset(1))
    thread.join(0.05)
    assert thread.is_alive()
    cuda.let_go(stream)


def test_a_made_context_is_current_and_has_its_own_streams(cuda, outcome):
    primary = cu.cuCtxGetCurrent()[1]
    legacy = cu.cuStreamGetId(0)[1]
    try:
        context = cu.cuCtxCreate(None, 0, 0)[1]  # CUDA 13
    except TypeError:
        context = cu.cuCtxCreate(0, 0)[1]
    assert int(cu.cuCtxGetCurrent()[1]) == int(context) != int(primary)
    assert cu.cuStreamGetId(0)[1] != legacy
    assert cu.cuCtxGetId(context)[1] != cu.cuCtxGetId(primary)[1]
    assert outcome(cu.cuCtxDestroy(context)) == "SUCCESS"
    assert int(cu.cuCtxGetCurrent()[1]) == int(primary)
    assert outcome(cu.cuCtxDestroy(primary)) == "INVALID_CONTEXT"


def test_the_flags_of_a_primary_context_are_remembered(cuda):
    cu.cuDevicePrimaryCtxSetFlags(0, 4)
    assert cu.cuDevicePrimaryCtxGetState(0)[1] == cu.cuCtxGetFlags()[1] == 4
    cu.cuDevicePrimaryCtxSetFlags(0, 0)


def test_facts_about_the_current_context(cuda, outcome):
    assert cu.cuCtxGetApiVersion(cu.cuCtxGetCurrent()[1])[1] == 3020
    assert cu.cuCtxGetStreamPriorityRange()[1:] == (0, -5)
    assert outcome(cu.cuCtxGetLimit(cu.CUlimit.CU_LIMIT_STACK_SIZE)) == "UNSUPPORTED_LIMIT"
    assert outcome(cu.cuCtxEnablePeerAccess(cu.cuCtxGetCurrent()[1], 0)) == "PEER_ACCESS_UNSUPPORTED"


def test_an_event_of_the_context_stands_for_all_of_its_work(cuda, outcome, stream, other_stream, event):
    array = cuda.host_array(4)
    cuda.configure(pageable=True)
    for each in (stream, other_stream):
        cuda.hold(each)
        cuda.launch(each, array)
    cuda.destroy_stream(other_stream)
    assert outcome(cu.cuCtxRecordEvent(cu.cuCtxGetCurrent()[1], event)) == "SUCCESS"
    cuda.let_go(stream)
    assert outcome(cu.cuEventQuery(event)) == "NOT_READY"
    cuda.let_go(other_stream)
    assert outcome(cu.cuEventQuery(event)) == "SUCCESS"


def test_synchronising_the_context_waits_for_all_of_its_work(cuda, outcome, threads, other_stream):
    cuda.configure(pageable=True)
    cuda.hold(other_stream)
    cuda.launch(other_stream, cuda.host_array(4).copy())
    waiting = threads.start(lambda: outcome(cu.cuCtxSynchronize()))
    waiting.join(0.05)
    assert waiting.is_alive()
    cuda.let_go(other_stream)
    waiting.join(10)
    assert waiting.results == ["SUCCESS"]
