"""Events: what they stand for, and waiting for it."""

import numpy as np
import pytest
from cuda.bindings import driver as cu


@pytest.fixture
def busy(cuda, register, stream):
    """A stream that is held and has one kernel on it."""
    cuda.hold(stream)
    cuda.launch(stream, register(cuda.host_array(1, np.uint8)))
    yield stream
    cuda.let_go(stream)


def test_an_event_that_was_never_recorded_is_complete(cuda, outcome, event):
    assert outcome(cu.cuEventQuery(event)) == "SUCCESS"
    assert outcome(cu.cuEventSynchronize(event)) == "SUCCESS"


def test_an_event_stands_for_the_work_before_it(cuda, outcome, busy, event):
    cu.cuEventRecord(event, busy)
    assert outcome(cu.cuEventQuery(event)) == "NOT_READY"
    cuda.let_go(busy)
    assert outcome(cu.cuEventQuery(event)) == "SUCCESS"


def test_an_event_stands_for_its_last_record(cuda, outcome, busy, other_stream, event):
    cu.cuEventRecord(event, busy)
    cu.cuEventRecordWithFlags(event, other_stream, 0)
    assert outcome(cu.cuEventQuery(event)) == "SUCCESS"


def test_a_wait_is_for_the_record_it_found(cuda, outcome, threads, busy, event):
    later = cuda.create_stream(blocking=False)
    cu.cuEventRecord(event, busy)
    waiting = threads.start(lambda: outcome(cu.cuEventSynchronize(event)))
    waiting.join(0.05)
    cuda.hold(later)
    cu.cuEventRecord(event, later)
    assert waiting.is_alive()
    cuda.let_go(busy)
    waiting.join(10)
    assert waiting.results == ["SUCCESS"]
    cuda.let_go(later)


def test_an_event_can_be_destroyed_before_it_is_done(cuda, outcome, busy):
    event = cu.cuEventCreate(0)[1]
    cu.cuEventRecord(event, busy)
    assert outcome(cu.cuEventDestroy(event)) == "SUCCESS"
    cuda.let_go(busy)
    assert cuda.pending() == 0


def test_a_stream_takes_only_so_many_unfinished_events_with_blocking_sync(cuda, outcome, threads, busy):
    events = [cu.cuEventCreate(1)[1] for _ in range(57)]
    for event in events[:-1]:
        cu.cuEventRecord(event, busy)
    recording = threads.start(lambda: outcome(cu.cuEventRecord(events[-1], busy)))
    recording.join(0.05)
    assert recording.is_alive()
    cuda.let_go(busy)
    recording.join(10)
    assert recording.results == ["SUCCESS"]


def test_a_stream_takes_any_number_of_other_unfinished_events(cuda, outcome, busy):
    for _ in range(200):
        assert outcome(cu.cuEventRecord(cu.cuEventCreate(2)[1], busy)) == "SUCCESS"


def test_a_dead_event_can_be_an_error(cuda, outcome):
    cuda.configure(dead_handle="error")
    event = cu.cuEventCreate(0)[1]
    cu.cuEventDestroy(event)
    assert outcome(cu.cuEventQuery(event)) == "INVALID_HANDLE"


def test_an_event_belongs_to_a_context(cuda, outcome, event):
    cuda.configure(devices=2)
    stream = cuda.create_stream(device=1)
    assert outcome(cu.cuEventRecord(event, stream)) == "INVALID_HANDLE"


def test_a_stream_waits_for_an_event_of_another(cuda, busy, register, event):
    array = register(cuda.host_array(1, np.uint8))
    follower = cuda.create_stream(blocking=False)
    cu.cuEventRecord(event, busy)
    cu.cuStreamWaitEvent(follower, event, 0)
    cu.cuEventDestroy(event)
    cuda.launch(follower, array, write=1)
    assert array[0] == 0
    cuda.let_go(busy)
    assert array[0] == 1


def test_times_need_two_records_that_are_done(cuda, outcome, busy):
    first, last = (cu.cuEventCreate(0)[1] for _ in range(2))
    assert outcome(cu.cuEventElapsedTime(first, last)) == "INVALID_HANDLE"
    cu.cuEventRecord(first, busy)
    cu.cuEventRecord(last, busy)
    assert outcome(cu.cuEventElapsedTime(first, last)) == "NOT_READY"
    cuda.let_go(busy)
    result = cu.cuEventElapsedTime(first, last)
    assert outcome(result) == "SUCCESS"
    assert result[1] >= 0


def test_events_without_timing_have_no_times(cuda, outcome, event, stream):
    cu.cuEventRecord(event, stream)
    assert outcome(cu.cuEventElapsedTime(event, event)) == "INVALID_HANDLE"
