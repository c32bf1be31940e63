"""Stream capture: which calls, by which thread in which mode, are refused and break the capture."""

import pytest
from cuda.bindings import driver as cu

from dlwrap.testing import SimulationError

MODE = cu.CUstreamCaptureMode
RELAXED = MODE.CU_STREAM_CAPTURE_MODE_RELAXED
MODES = ("global", "thread_local", "relaxed")


class Calls:
    """What somebody may do while `capturing` captures; the array and the events are theirs."""

    def __init__(self, cuda, capturing):
        self.capturing = capturing
        self.idle = cuda.create_stream(blocking=False)
        self.event = cu.cuEventCreate(0)[1]
        self.array = cuda.host_array(4)
        self.locked = cuda.host_array(4)
        cu.cuMemHostRegister(self.locked.ctypes.data, self.locked.nbytes, 0)

    def ask_is_capturing(self):
        return cu.cuStreamIsCapturing(self.capturing)

    def ask_id(self):
        return cu.cuStreamGetId(self.capturing)

    def ask_pointer(self):
        attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        return cu.cuPointerGetAttribute(attribute, self.locked.ctypes.data)

    def create_event(self):
        return cu.cuEventCreate(0)

    def record_on_another_stream(self):
        return cu.cuEventRecord(self.event, self.idle)

    def query_another_stream(self):
        return cu.cuStreamQuery(self.idle)

    def synchronise_another_stream(self):
        return cu.cuStreamSynchronize(self.idle)

    def query_an_event(self):
        return cu.cuEventQuery(self.event)

    def synchronise_an_event(self):
        return cu.cuEventSynchronize(self.event)

    def register(self):
        return cu.cuMemHostRegister(self.array.ctypes.data, self.array.nbytes, 0)

    def unregister(self):
        return cu.cuMemHostUnregister(self.locked.ctypes.data)

    def allocate(self):
        return cu.cuMemAlloc(8)

    def record_on_the_capturing_stream(self):
        return cu.cuEventRecord(self.event, self.capturing)

    def record_and_query(self):
        cu.cuEventRecord(self.event, self.capturing)
        return cu.cuEventQuery(self.event)

    def record_and_synchronise(self):
        cu.cuEventRecord(self.event, self.capturing)
        return cu.cuEventSynchronize(self.event)

    def query_the_capturing_stream(self):
        return cu.cuStreamQuery(self.capturing)

    def synchronise_the_capturing_stream(self):
        return cu.cuStreamSynchronize(self.capturing)

    def synchronise_the_context(self):
        return cu.cuCtxSynchronize()

    def record_the_context(self):
        return cu.cuCtxRecordEvent(cu.cuCtxGetCurrent()[1], self.event)

    def query_legacy(self):
        return cu.cuStreamQuery(0)

    def synchronise_legacy(self):
        return cu.cuStreamSynchronize(0)

    def record_on_legacy(self):
        return cu.cuEventRecord(self.event, 0)

    def fill_on_legacy(self):
        return cu.cuMemsetD8Async(self.locked.ctypes.data, 0, 1, 0)

    def ask_whether_legacy_captures(self):
        return cu.cuStreamIsCapturing(0)


HARMLESS = ("ask_is_capturing", "ask_id", "ask_pointer", "create_event", "record_on_another_stream")
UNSAFE = (
    "query_another_stream",
    "synchronise_another_stream",
    "query_an_event",
    "synchronise_an_event",
    "register",
    "unregister",
    "allocate",
)


@pytest.fixture
def calls(cuda, stream):
    calls = Calls(cuda, stream)
    yield calls
    if cuda.capture_status(stream) != "none":
        cu.cuStreamEndCapture(stream)
    for array in (calls.array, calls.locked):
        cu.cuMemHostUnregister(array.ctypes.data)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("call", HARMLESS)
def test_harmless_calls_of_another_thread(cuda, outcome, threads, calls, call, relaxed, mode):
    cuda.begin_capture(calls.capturing, mode)
    assert threads.run(lambda: outcome(getattr(calls, call)()), relaxed=relaxed) == "SUCCESS"
    assert cuda.capture_status(calls.capturing) == "active"


@pytest.mark.parametrize("call", UNSAFE)
def test_unsafe_calls_of_another_thread_break_a_global_capture(cuda, outcome, threads, calls, call):
    cuda.begin_capture(calls.capturing, "global")
    assert threads.run(lambda: outcome(getattr(calls, call)())) == "STREAM_CAPTURE_UNSUPPORTED"
    assert cuda.capture_status(calls.capturing) == "invalidated"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", UNSAFE)
def test_unsafe_calls_of_a_relaxed_thread_do_no_harm(cuda, outcome, threads, calls, call, mode):
    cuda.begin_capture(calls.capturing, mode)
    assert threads.run(lambda: outcome(getattr(calls, call)()), relaxed=True) == "SUCCESS"
    assert cuda.capture_status(calls.capturing) == "active"


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
@pytest.mark.parametrize("call", UNSAFE)
def test_unsafe_calls_of_another_thread_do_no_harm_to_other_captures(cuda, outcome, threads, calls, call, mode):
    cuda.begin_capture(calls.capturing, mode)
    assert threads.run(lambda: outcome(getattr(calls, call)())) == "SUCCESS"
    assert cuda.capture_status(calls.capturing) == "active"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("global", "STREAM_CAPTURE_UNSUPPORTED"),
        ("thread_local", "STREAM_CAPTURE_UNSUPPORTED"),
        ("relaxed", "SUCCESS"),
    ],
)
@pytest.mark.parametrize("call", UNSAFE)
def test_unsafe_calls_of_the_capturing_thread(cuda, outcome, calls, call, mode, expected):
    cuda.begin_capture(calls.capturing, mode)
    assert outcome(getattr(calls, call)()) == expected
    assert cuda.capture_status(calls.capturing) == ("active" if expected == "SUCCESS" else "invalidated")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", UNSAFE)
def test_the_capturing_thread_can_relax_itself(cuda, outcome, calls, call, mode):
    cuda.begin_capture(calls.capturing, mode)
    before = cu.cuThreadExchangeStreamCaptureMode(RELAXED)[1]
    result = outcome(getattr(calls, call)())
    cu.cuThreadExchangeStreamCaptureMode(before)
    assert result == "SUCCESS"
    assert cuda.capture_status(calls.capturing) == "active"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("relaxed", [False, True])
def test_an_event_recorded_on_the_capturing_stream_adds_no_node(cuda, outcome, threads, calls, relaxed, mode):
    cuda.begin_capture(calls.capturing, mode)
    assert threads.run(lambda: outcome(calls.record_on_the_capturing_stream()), relaxed=relaxed) == "SUCCESS"
    graph = cuda.end_capture(calls.capturing)
    assert cu.cuGraphGetNodes(graph)[2] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("call", ["record_and_query", "record_and_synchronise"])
def test_waiting_for_a_captured_event_breaks_the_capture(cuda, outcome, threads, calls, call, relaxed, mode):
    cuda.begin_capture(calls.capturing, mode)
    assert threads.run(lambda: outcome(getattr(calls, call)()), relaxed=relaxed) == "CAPTURED_EVENT"
    assert cuda.capture_status(calls.capturing) == "invalidated"


def test_a_captured_event_is_free_again_once_recorded_elsewhere(cuda, outcome, threads, calls):
    cuda.begin_capture(calls.capturing)
    calls.record_on_the_capturing_stream()
    calls.record_on_another_stream()
    assert threads.run(lambda: outcome(calls.query_an_event()), relaxed=True) == "SUCCESS"
    assert cuda.capture_status(calls.capturing) == "active"


@pytest.mark.parametrize("mode", MODES)
def test_an_event_of_a_capture_that_has_ended_stands_for_nothing(cuda, outcome, threads, calls, mode):
    cuda.begin_capture(calls.capturing, mode)
    calls.record_on_the_capturing_stream()
    cuda.end_capture(calls.capturing)
    assert outcome(calls.query_an_event()) == "INVALID_VALUE"
    cuda.begin_capture(calls.capturing, mode)
    assert threads.run(lambda: outcome(calls.query_an_event()), relaxed=True) == "INVALID_VALUE"
    assert cuda.capture_status(calls.capturing) == "active"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        "query_the_capturing_stream",
        "synchronise_the_capturing_stream",
        "synchronise_the_context",
        "record_the_context",
    ],
)
def test_waiting_for_the_capturing_stream_breaks_it_in_every_mode(cuda, outcome, threads, calls, call, relaxed, mode):
    cuda.begin_capture(calls.capturing, mode)
    assert threads.run(lambda: outcome(getattr(calls, call)()), relaxed=relaxed) == "STREAM_CAPTURE_UNSUPPORTED"
    assert cuda.capture_status(calls.capturing) == "invalidated"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("call", ["query_legacy", "synchronise_legacy", "record_on_legacy", "fill_on_legacy"])
def test_using_the_legacy_stream_breaks_captures_of_blocking_streams(
    cuda, outcome, threads, calls, call, relaxed, mode
):
    cuda.begin_capture(calls.capturing, mode)
    assert threads.run(lambda: outcome(getattr(calls, call)()), relaxed=relaxed) == "STREAM_CAPTURE_IMPLICIT"
    assert cuda.capture_status(calls.capturing) == "invalidated"


def test_asking_whether_the_legacy_stream_captures_is_refused_without_harm(cuda, outcome, threads, calls):
    cuda.begin_capture(calls.capturing)
    assert threads.run(lambda: outcome(calls.ask_whether_legacy_captures())) == "STREAM_CAPTURE_IMPLICIT"
    assert cuda.capture_status(calls.capturing) == "active"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "call",
    ["query_legacy", "synchronise_legacy", "record_on_legacy", "fill_on_legacy", "ask_whether_legacy_captures"],
)
def test_the_legacy_stream_is_free_while_a_non_blocking_stream_captures(
    cuda, outcome, threads, calls, other_stream, call, mode
):
    cuda.begin_capture(other_stream, mode)
    assert threads.run(lambda: outcome(getattr(calls, call)()), relaxed=True) == "SUCCESS"
    assert cuda.capture_status(other_stream) == "active"
    cuda.end_capture(other_stream)


def test_a_wait_that_began_before_the_capture_does_no_harm(cuda, outcome, threads, register, stream):
    array = register(cuda.host_array(4))
    cuda.hold(stream)
    cuda.launch(stream, array)
    waiting = threads.start(lambda: outcome(cu.cuStreamSynchronize(stream)))
    waiting.join(0.05)
    cuda.begin_capture(stream)
    assert waiting.is_alive()
    cuda.let_go(stream)
    waiting.join(10)
    assert waiting.results == ["SUCCESS"]
    assert cuda.capture_status(stream) == "active"
    cuda.end_capture(stream)


def test_a_broken_capture_refuses_everything_until_it_is_ended(cuda, outcome, calls):
    cuda.begin_capture(calls.capturing)
    calls.query_the_capturing_stream()
    for call in (
        calls.query_the_capturing_stream,
        calls.record_on_the_capturing_stream,
        calls.query_another_stream,
        lambda: cu.cuMemsetD8Async(calls.locked.ctypes.data, 0, 1, calls.capturing),
        lambda: cu.cuStreamEndCapture(calls.capturing),
    ):
        assert outcome(call()) == "STREAM_CAPTURE_INVALIDATED"
    assert outcome(calls.query_the_capturing_stream()) == "SUCCESS"


def test_the_mode_is_each_thread_s_own_and_begins_global(cuda, threads):
    def exchange():
        return cu.cuThreadExchangeStreamCaptureMode(RELAXED)[1]

    before = exchange()
    assert threads.run(exchange) == MODE.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert cu.cuThreadExchangeStreamCaptureMode(before)[1] == RELAXED


def test_a_capture_is_ended_by_its_thread_unless_relaxed(cuda, outcome, threads, stream):
    cuda.begin_capture(stream)
    assert threads.run(lambda: outcome(cu.cuStreamEndCapture(stream))) == "STREAM_CAPTURE_WRONG_THREAD"
    cuda.end_capture(stream)
    cuda.begin_capture(stream, "relaxed")
    assert threads.run(lambda: outcome(cu.cuStreamEndCapture(stream))) == "SUCCESS"


def test_captures_begin_and_end_where_they_can(cuda, outcome, stream):
    mode = MODE.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert outcome(cu.cuStreamEndCapture(stream)) == "ILLEGAL_STATE"
    assert outcome(cu.cuStreamBeginCapture(0, mode)) == "STREAM_CAPTURE_UNSUPPORTED"
    assert outcome(cu.cuStreamBeginCapture(stream, mode)) == "SUCCESS"
    assert outcome(cu.cuStreamBeginCapture(stream, mode)) == "ILLEGAL_STATE"
    assert outcome(cu.cuStreamEndCapture(stream)) == "SUCCESS"


def test_a_stream_that_waits_for_a_captured_event_joins_the_capture(cuda, outcome, calls, event):
    cuda.begin_capture(calls.capturing)
    calls.record_on_the_capturing_stream()
    assert outcome(cu.cuStreamWaitEvent(calls.idle, calls.event, 0)) == "SUCCESS"
    assert cuda.capture_status(calls.idle) == "active"
    cuda.launch(calls.idle, calls.locked)
    assert outcome(cu.cuStreamEndCapture(calls.idle)) == "STREAM_CAPTURE_UNMATCHED"
    cu.cuEventRecord(event, calls.idle)
    cu.cuStreamWaitEvent(calls.capturing, event, 0)
    assert cu.cuGraphGetNodes(cuda.end_capture(calls.capturing))[2] == 1
    assert cuda.capture_status(calls.idle) == "none"


def test_a_stream_that_joined_must_be_joined_to_the_origin(cuda, outcome, calls):
    cuda.begin_capture(calls.capturing)
    calls.record_on_the_capturing_stream()
    cu.cuStreamWaitEvent(calls.idle, calls.event, 0)
    assert outcome(cu.cuStreamEndCapture(calls.capturing)) == "STREAM_CAPTURE_UNJOINED"
    assert cuda.capture_status(calls.idle) == "none"


def test_a_capture_cannot_wait_for_an_event_from_outside(cuda, outcome, calls):
    calls.record_on_another_stream()
    cuda.begin_capture(calls.capturing)
    assert outcome(cu.cuStreamWaitEvent(calls.capturing, calls.event, 0)) == "STREAM_CAPTURE_ISOLATION"
    assert cuda.capture_status(calls.capturing) == "invalidated"


def test_two_captures_cannot_be_merged(cuda, outcome, calls, event):
    cuda.begin_capture(calls.capturing, "relaxed")
    cuda.begin_capture(calls.idle, "relaxed")
    cu.cuEventRecord(event, calls.idle)
    assert outcome(cu.cuStreamWaitEvent(calls.capturing, event, 0)) == "STREAM_CAPTURE_MERGE"
    cuda.end_capture(calls.idle)


def test_a_capture_in_another_context_is_not_waited_for(cuda, outcome, stream):
    cuda.configure(devices=2)
    elsewhere = cuda.create_stream(device=1)
    cuda.begin_capture(elsewhere, "relaxed")
    assert outcome(cu.cuCtxSynchronize()) == "SUCCESS"
    assert cuda.capture_status(elsewhere) == "active"
    cuda.end_capture(elsewhere)


def test_destroying_the_capturing_stream_ends_its_capture(cuda, outcome):
    stream = cuda.create_stream()
    cuda.begin_capture(stream)
    cu.cuStreamDestroy(stream)
    assert outcome(cu.cuStreamQuery(0)) == "SUCCESS"


def test_the_capture_s_graph_can_be_had_while_it_is_open(cuda, outcome, register, stream):
    array = register(cuda.host_array(4))
    assert cu.cuStreamGetCaptureInfo(stream)[1] == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cuda.begin_capture(stream)
    cuda.launch(stream, array)
    info = cu.cuStreamGetCaptureInfo(stream)
    assert outcome(info) == "SUCCESS"
    assert info[1] == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    assert int(info[2]) > 0
    assert cuda.end_capture(stream) == int(info[3])


def test_a_helper_reports_a_broken_capture_by_its_code(cuda, stream):
    cuda.begin_capture(stream)
    cu.cuStreamQuery(stream)
    with pytest.raises(SimulationError, match="end the capture: CUresult 901") as caught:
        cuda.end_capture(stream)
    assert caught.value.code == 901


def graph_under_capture(stream):
    return int(cu.cuStreamGetCaptureInfo(stream)[3])


def test_the_graph_of_this_thread_s_default_stream_can_be_had(cuda, outcome, threads):
    cuda.begin_capture(2)
    info = cu.cuStreamGetCaptureInfo(2)
    assert outcome(info) == "SUCCESS"
    assert info[1] == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    elsewhere = threads.run(lambda: cu.cuStreamGetCaptureInfo(2))
    assert elsewhere[1] == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    assert cuda.end_capture(2) == int(info[3]) > 0


def test_asking_for_the_graph_of_the_legacy_stream_is_refused_without_harm_to_a_blocking_capture(cuda, outcome, stream):
    cuda.begin_capture(stream)
    for handle in (0, 1):
        assert outcome(cu.cuStreamGetCaptureInfo(handle)) == "STREAM_CAPTURE_IMPLICIT"
    assert cuda.capture_status(stream) == "active"
    cuda.end_capture(stream)


def test_the_legacy_stream_has_no_graph_beside_a_capture_that_is_not_blocking(cuda, outcome, other_stream):
    cuda.begin_capture(other_stream)
    info = cu.cuStreamGetCaptureInfo(0)
    assert outcome(info) == "SUCCESS"
    assert info[1] == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cuda.end_capture(other_stream)


def test_a_broken_capture_gives_its_status_and_no_graph(cuda, outcome, stream):
    cuda.begin_capture(stream)
    cu.cuStreamQuery(stream)
    info = cu.cuStreamGetCaptureInfo(stream)
    assert outcome(info) == "SUCCESS"
    assert info[1] == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED
    assert (int(info[2]), int(info[3])) == (0, 0)
    cu.cuStreamEndCapture(stream)


def test_a_stream_that_joined_shares_the_graph(cuda, calls, event):
    cuda.begin_capture(calls.capturing)
    calls.record_on_the_capturing_stream()
    cu.cuStreamWaitEvent(calls.idle, calls.event, 0)
    assert graph_under_capture(calls.idle) == graph_under_capture(calls.capturing)
    cu.cuEventRecord(event, calls.idle)
    cu.cuStreamWaitEvent(calls.capturing, event, 0)
    cuda.end_capture(calls.capturing)


@pytest.fixture
def joined(cuda, calls, event):
    """A stream that was taken into the capture and joined again; `event` was recorded on it."""
    joined = cuda.create_stream()
    cuda.begin_capture(calls.capturing)
    calls.record_on_the_capturing_stream()
    cu.cuStreamWaitEvent(joined, calls.event, 0)
    cuda.launch(joined, calls.locked)
    cu.cuEventRecord(event, joined)
    cu.cuStreamWaitEvent(calls.capturing, event, 0)
    return joined


def test_a_joined_stream_may_be_destroyed_before_the_capture_ends(cuda, calls, joined):
    cu.cuStreamDestroy(joined)
    assert cuda.capture_status(calls.capturing) == "active"
    assert cu.cuGraphGetNodes(cuda.end_capture(calls.capturing))[2] == 1


def test_an_event_of_a_joined_and_destroyed_stream_can_still_be_waited_for(cuda, outcome, calls, event, joined):
    cu.cuStreamDestroy(joined)
    assert outcome(cu.cuStreamWaitEvent(calls.capturing, event, 0)) == "SUCCESS"
    cuda.end_capture(calls.capturing)


def test_a_capture_ends_unjoined_after_a_stream_with_work_that_was_not_joined_is_destroyed(
    cuda, outcome, calls, joined
):
    cuda.launch(joined, calls.locked)
    cu.cuStreamDestroy(joined)
    assert cuda.capture_status(calls.capturing) == "active"
    assert outcome(cu.cuStreamEndCapture(calls.capturing)) == "STREAM_CAPTURE_UNJOINED"


def test_a_stream_that_only_waited_for_the_capture_may_be_destroyed(cuda, outcome, calls, event):
    waiting = cuda.create_stream()
    cuda.begin_capture(calls.capturing)
    cu.cuEventRecord(event, calls.capturing)
    cu.cuStreamWaitEvent(waiting, event, 0)
    cu.cuStreamDestroy(waiting)
    assert outcome(cu.cuStreamEndCapture(calls.capturing)) == "SUCCESS"


def update_dependencies(stream, nodes, flags=1):
    """The call that names what the next captured node depends on."""
    takes_edges = not hasattr(cu, "cuStreamUpdateCaptureDependencies_v2")
    edges = (None,) if takes_edges else ()
    return cu.cuStreamUpdateCaptureDependencies(stream, nodes, *edges, len(nodes), flags)


def test_a_node_can_be_added_to_a_graph_under_capture(cuda, outcome, stream):
    cuda.begin_capture(stream)
    node = cu.cuGraphAddEmptyNode(graph_under_capture(stream), None, 0)[1]
    assert outcome(update_dependencies(stream, [node])) == "SUCCESS"
    assert cu.cuGraphGetNodes(cuda.end_capture(stream))[2] == 1


def test_a_capture_depends_on_nodes_of_its_own_graph(cuda, outcome, stream):
    foreign = cu.cuGraphAddEmptyNode(cu.cuGraphCreate(0)[1], None, 0)[1]
    cuda.begin_capture(stream)
    assert outcome(update_dependencies(stream, [foreign])) == "INVALID_VALUE"
    assert outcome(update_dependencies(stream, [], flags=2)) == "INVALID_VALUE"
    assert cuda.capture_status(stream) == "active"
    cuda.end_capture(stream)


def test_only_an_unbroken_capture_has_dependencies(cuda, outcome, stream):
    assert outcome(update_dependencies(stream, [])) == "ILLEGAL_STATE"
    cuda.begin_capture(stream)
    cu.cuStreamQuery(stream)
    assert outcome(update_dependencies(stream, [])) == "STREAM_CAPTURE_INVALIDATED"
    cu.cuStreamEndCapture(stream)
