"""Streams: handles and their reuse, the default ones, queries and waits, host functions."""

import ctypes

import numpy as np
import pytest
from cuda.bindings import driver as cu


def test_a_destroyed_stream_leaves_its_number_to_the_next(cuda):
    first = int(cu.cuStreamCreate(0)[1])
    keep = int(cu.cuStreamCreate(0)[1])
    cu.cuStreamDestroy(first)
    assert int(cu.cuStreamCreate(0)[1]) == first != keep


def test_the_work_of_a_destroyed_stream_goes_on(cuda, register, stream):
    array = register(cuda.host_array(1, np.uint8))
    cuda.hold(stream)
    cuda.launch(stream, array, write=1)
    cu.cuStreamDestroy(stream)
    assert (cuda.pending(), array[0]) == (1, 0)
    cuda.let_go(stream)
    assert (cuda.pending(), array[0]) == (0, 1)


def test_the_next_stream_of_that_number_has_work_of_its_own(cuda, outcome, register, stream):
    array = register(cuda.host_array(1, np.uint8))
    cuda.hold(stream)
    cuda.launch(stream, array)
    cu.cuStreamDestroy(stream)
    assert int(cu.cuStreamCreate(0)[1]) == stream
    assert outcome(cu.cuStreamQuery(stream)) == "SUCCESS"
    cuda.let_go(stream)


@pytest.mark.parametrize(
    "touch",
    [
        cu.cuStreamQuery,
        cu.cuStreamSynchronize,
        cu.cuStreamIsCapturing,
        cu.cuStreamGetCtx,
        cu.cuStreamGetFlags,
        cu.cuStreamGetId,
        cu.cuStreamGetPriority,
        cu.cuStreamDestroy,
        lambda stream: cu.cuMemsetD8Async(0, 0, 1, stream),
    ],
)
def test_touching_a_dead_handle_can_be_an_error(cuda, outcome, stream, touch):
    cuda.configure(dead_handle="error")
    cu.cuStreamDestroy(stream)
    assert outcome(touch(stream)) == "INVALID_CONTEXT"


def test_the_default_streams_cannot_be_destroyed(cuda, outcome):
    for handle in (0, 1, 2):
        assert outcome(cu.cuStreamDestroy(handle)) == "INVALID_HANDLE"


def test_handles_0_and_1_are_the_legacy_stream(cuda):
    assert cu.cuStreamGetId(0)[1] == cu.cuStreamGetId(1)[1]


def test_handle_2_is_another_stream_on_every_thread(cuda, threads):
    here = cu.cuStreamGetId(2)[1]
    there = threads.run(lambda: cu.cuStreamGetId(2)[1])
    assert len({here, there, cu.cuStreamGetId(0)[1]}) == 3
    assert here == cu.cuStreamGetId(2)[1]


def test_waiting_for_handle_2_on_another_thread_returns_at_once(cuda, outcome, threads, register):
    array = register(cuda.host_array(1, np.uint8))
    cuda.hold(2)
    cuda.launch(2, array)
    assert threads.run(lambda: outcome(cu.cuStreamSynchronize(2))) == "SUCCESS"
    assert cuda.pending(2) == 1
    cuda.let_go(2)


def test_the_per_thread_stream_is_a_blocking_one(cuda, register):
    array = register(cuda.host_array(1, np.uint8))
    cuda.hold(2)
    cuda.launch(2, array)
    cuda.launch(0, array, write=1)
    assert array[0] == 0
    cuda.let_go(2)
    assert array[0] == 1


def test_a_query_tells_whether_work_is_left(cuda, outcome, register, stream):
    array = register(cuda.host_array(1, np.uint8))
    cuda.hold(stream)
    assert outcome(cu.cuStreamQuery(stream)) == "SUCCESS"
    cuda.launch(stream, array)
    assert outcome(cu.cuStreamQuery(stream)) == "NOT_READY"
    cuda.let_go(stream)
    assert outcome(cu.cuStreamQuery(stream)) == "SUCCESS"


def test_a_wait_is_only_for_what_was_submitted_before_it(cuda, outcome, threads, register, stream, event):
    array = register(cuda.host_array(1, np.uint8))
    gate = cuda.create_stream(blocking=False)
    cuda.hold(gate)
    cuda.launch(gate, array)
    cu.cuEventRecord(event, gate)
    cuda.hold(stream)
    cuda.launch(stream, array)
    waiting = threads.start(lambda: outcome(cu.cuStreamSynchronize(stream)))
    waiting.join(0.05)
    cu.cuStreamWaitEvent(stream, event, 0)
    cuda.launch(stream, array)
    assert waiting.is_alive()
    cuda.let_go(stream)
    waiting.join(10)
    assert waiting.results == ["SUCCESS"]
    assert cuda.pending(stream) > 0
    cuda.let_go(gate)


def test_waiting_for_the_legacy_stream_waits_for_blocking_ones(cuda, outcome, register, stream, other_stream):
    array = register(cuda.host_array(1, np.uint8))
    cuda.hold(other_stream)
    cuda.launch(other_stream, array)
    assert outcome(cu.cuStreamQuery(0)) == "SUCCESS"
    cuda.hold(stream)
    cuda.launch(stream, array)
    assert outcome(cu.cuStreamQuery(0)) == "NOT_READY"
    for each in (stream, other_stream):
        cuda.let_go(each)


def test_facts_about_a_stream(cuda):
    stream = cu.cuStreamCreateWithPriority(cu.CUstream_flags.CU_STREAM_NON_BLOCKING, -3)[1]
    assert cu.cuStreamGetFlags(stream)[1] == 1
    assert cu.cuStreamGetPriority(stream)[1] == -3
    assert int(cu.cuStreamGetCtx(stream)[1]) == int(cu.cuCtxGetCurrent()[1])
    cu.cuStreamDestroy(stream)


def test_unknown_flags_are_refused(cuda, outcome):
    assert outcome(cu.cuStreamCreate(6)) == "INVALID_VALUE"


def test_host_functions_run_in_order_and_may_not_call_the_driver(cuda, outcome, register, stream):
    array = register(cuda.host_array(1, np.uint8))
    seen = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def note(argument):
        seen.append((argument, int(array[0]), outcome(cu.cuStreamQuery(0))))

    function = cu.CUhostFn(_ptr=ctypes.addressof(ctypes.c_void_p.from_buffer(note)))
    cuda.hold(stream)
    cuda.launch(stream, array, write=1)
    assert outcome(cu.cuLaunchHostFunc(stream, function, 41)) == "SUCCESS"
    cuda.launch(stream, array, write=2)
    assert seen == []
    cuda.let_go(stream)
    assert seen == [(41, 1, "NOT_PERMITTED")]
    assert array[0] == 2


def test_callbacks_are_told_their_stream_and_that_all_is_well(cuda, outcome, stream):
    seen = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def note(*arguments):
        seen.append(arguments)

    callback = cu.CUstreamCallback(_ptr=ctypes.addressof(ctypes.c_void_p.from_buffer(note)))
    assert outcome(cu.cuStreamAddCallback(stream, callback, 41, 0)) == "SUCCESS"
    assert seen == [(stream, 0, 41)]


def test_no_call_holds_the_gil(cuda, stream):
    cu.cuStreamQuery(stream)
    cu.cuStreamSynchronize(stream)
    assert [call.function for call in cuda.calls() if call.gil_held] == []
