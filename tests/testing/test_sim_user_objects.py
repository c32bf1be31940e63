"""User objects: their destructor runs once, after the last reference, in a thread that may not call the driver."""

import ctypes
import signal
import threading

import numpy as np
import pytest
from cuda.bindings import driver as cu

SYNC = cu.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
MOVE = cu.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
OUT_OF_MEMORY = 2

libc = ctypes.CDLL(None)
libc.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
libc.sem_getvalue.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
SEM_POST = ctypes.cast(libc.sem_post, ctypes.c_void_p).value


class Watched:
    """A user object whose destructor is the C library's `sem_post`: it needs neither the GIL nor Python."""

    def __init__(self, cuda, references):
        self._cuda = cuda
        self._semaphore = ctypes.create_string_buffer(32)
        self._address = ctypes.addressof(self._semaphore)
        libc.sem_init(self._address, 0, 0)
        result, self.handle = cu.cuUserObjectCreate(self._address, cu.CUhostFn(SEM_POST), references, SYNC)
        assert result == 0

    @property
    def destroyed(self):
        """How often the destructor ran."""
        self._cuda.wait_for_destructors()
        value = ctypes.c_int()
        libc.sem_getvalue(self._address, ctypes.byref(value))
        return value.value


@pytest.fixture
def watch(cuda):
    """Make user objects; the memory of their counters outlives the destructors."""
    watched = []

    def make(references=1):
        watched.append(Watched(cuda, references))
        return watched[-1]

    yield make
    cuda.let_destructors_go()
    cuda.reset(force=True)


@pytest.fixture
def graph(cuda):
    return cu.cuGraphCreate(0)[1]


@pytest.fixture
def owned(watch, graph):
    """A user object that only the graph holds."""
    watched = watch()
    cu.cuGraphRetainUserObject(graph, watched.handle, 1, MOVE)
    return watched


@pytest.fixture
def instantiate(cuda):
    return lambda graph: cu.cuGraphInstantiate(graph, 0)[1]


# References of the program's


def test_the_last_reference_runs_the_destructor_once(outcome, watch):
    watched = watch(2)
    assert outcome(cu.cuUserObjectRelease(watched.handle, 1)) == "SUCCESS"
    assert watched.destroyed == 0
    assert outcome(cu.cuUserObjectRelease(watched.handle, 1)) == "SUCCESS"
    assert watched.destroyed == 1


def test_retained_references_are_held_too(outcome, watch):
    watched = watch()
    assert outcome(cu.cuUserObjectRetain(watched.handle, 2)) == "SUCCESS"
    cu.cuUserObjectRelease(watched.handle, 2)
    assert watched.destroyed == 0
    cu.cuUserObjectRelease(watched.handle, 1)
    assert watched.destroyed == 1


def test_the_objects_alive_are_those_whose_destructor_has_not_returned(cuda, watch):
    first, second = watch(), watch()
    assert cuda.user_objects_alive == 2
    cu.cuUserObjectRelease(first.handle, 1)
    cuda.wait_for_destructors()
    assert cuda.user_objects_alive == 1
    cu.cuUserObjectRelease(second.handle, 1)
    cuda.wait_for_destructors()
    assert cuda.user_objects_alive == 0


REFUSED = {
    "without a destructor": lambda: cu.cuUserObjectCreate(0, cu.CUhostFn(0), 1, SYNC),
    "without a reference": lambda: cu.cuUserObjectCreate(0, cu.CUhostFn(SEM_POST), 0, SYNC),
    "with too many references": lambda: cu.cuUserObjectCreate(0, cu.CUhostFn(SEM_POST), 2**31, SYNC),
    "without its only flag": lambda: cu.cuUserObjectCreate(0, cu.CUhostFn(SEM_POST), 1, 0),
    "with an unknown flag": lambda: cu.cuUserObjectCreate(0, cu.CUhostFn(SEM_POST), 1, 3),
}


@pytest.mark.parametrize("create", REFUSED.values(), ids=REFUSED)
def test_an_object_cannot_be_made(cuda, outcome, create):
    assert outcome(create()) == "INVALID_VALUE"
    assert cuda.user_objects_alive == 0


ON_AN_OBJECT = {
    "cuUserObjectRetain": lambda graph, handle, count: cu.cuUserObjectRetain(handle, count),
    "cuUserObjectRelease": lambda graph, handle, count: cu.cuUserObjectRelease(handle, count),
    "cuGraphRetainUserObject": lambda graph, handle, count: cu.cuGraphRetainUserObject(graph, handle, count, 0),
    "cuGraphRetainUserObject, MOVE": lambda graph, handle, count: cu.cuGraphRetainUserObject(
        graph, handle, count, MOVE
    ),
    "cuGraphReleaseUserObject": cu.cuGraphReleaseUserObject,
}


@pytest.mark.parametrize("call", ON_AN_OBJECT.values(), ids=ON_AN_OBJECT)
def test_a_dead_object_is_refused(outcome, watch, graph, call):
    watched = watch()
    cu.cuUserObjectRelease(watched.handle, 1)
    assert outcome(call(graph, watched.handle, 1)) == "INVALID_VALUE"
    assert watched.destroyed == 1


@pytest.mark.parametrize("call", ON_AN_OBJECT.values(), ids=ON_AN_OBJECT)
def test_what_never_was_an_object_is_refused(cuda, outcome, graph, call):
    assert outcome(call(graph, cu.CUuserObject(0xDEAD0), 1)) == "INVALID_VALUE"


@pytest.mark.parametrize("call", ON_AN_OBJECT.values(), ids=ON_AN_OBJECT)
@pytest.mark.parametrize("count", [0, 2**31])
def test_a_number_of_references_is_from_1_to_what_an_int_holds(outcome, watch, graph, call, count):
    watched = watch()
    cu.cuGraphRetainUserObject(graph, watched.handle, 1, 0)
    assert outcome(call(graph, watched.handle, count)) == "INVALID_VALUE"
    assert watched.destroyed == 0


@pytest.mark.parametrize(
    "call", ["cu.cuUserObjectRelease(handle, 2)", "cu.cuGraphRetainUserObject(graph, handle, 2, 1)"]
)
def test_giving_up_references_that_a_graph_owns_aborts(python, call):
    program = f"""
import ctypes
start()
destroy = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
graph = cu.cuGraphCreate(0)[1]
handle = cu.cuUserObjectCreate(0, cu.CUhostFn(destroy), 1, 1)[1]
cu.cuGraphRetainUserObject(graph, handle, 1, 0)
{call}
"""
    result = python(program)
    assert result.returncode == -signal.SIGABRT, result.stderr
    assert "giving up 2 references to user object" in result.stderr
    assert "of which the program holds 1" in result.stderr


# References of graphs


def test_a_graph_owns_what_was_moved_to_it(outcome, graph, owned):
    assert owned.destroyed == 0
    assert outcome(cu.cuGraphDestroy(graph)) == "SUCCESS"
    assert owned.destroyed == 1


def test_without_the_flag_the_caller_keeps_its_reference(outcome, watch, graph):
    watched = watch()
    assert outcome(cu.cuGraphRetainUserObject(graph, watched.handle, 1, 0)) == "SUCCESS"
    cu.cuGraphDestroy(graph)
    assert watched.destroyed == 0
    cu.cuUserObjectRelease(watched.handle, 1)
    assert watched.destroyed == 1


def test_a_graph_can_release_what_it_owns_and_no_more(outcome, watch, graph):
    watched = watch()
    cu.cuGraphRetainUserObject(graph, watched.handle, 3, 0)
    cu.cuUserObjectRelease(watched.handle, 1)
    assert outcome(cu.cuGraphReleaseUserObject(graph, watched.handle, 4)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphReleaseUserObject(graph, watched.handle, 2)) == "SUCCESS"
    assert watched.destroyed == 0
    assert outcome(cu.cuGraphReleaseUserObject(graph, watched.handle, 1)) == "SUCCESS"
    assert watched.destroyed == 1


def test_a_graph_cannot_release_what_another_graph_owns(outcome, graph, owned):
    other = cu.cuGraphCreate(0)[1]
    assert outcome(cu.cuGraphReleaseUserObject(other, owned.handle, 1)) == "INVALID_VALUE"
    assert owned.destroyed == 0


@pytest.mark.parametrize("flags", [2, 3])
def test_a_graph_takes_no_unknown_flags(outcome, watch, graph, flags):
    watched = watch()
    assert outcome(cu.cuGraphRetainUserObject(graph, watched.handle, 1, flags)) == "INVALID_VALUE"
    cu.cuUserObjectRelease(watched.handle, 1)
    assert watched.destroyed == 1


def test_a_dead_graph_owns_nothing(outcome, watch, graph):
    watched = watch()
    cu.cuGraphDestroy(graph)
    assert outcome(cu.cuGraphRetainUserObject(graph, watched.handle, 1, MOVE)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphReleaseUserObject(graph, watched.handle, 1)) == "INVALID_VALUE"
    cu.cuUserObjectRelease(watched.handle, 1)
    assert watched.destroyed == 1


def test_a_graph_owns_several_objects(watch, graph):
    several = [watch() for _ in range(3)]
    for watched in several:
        cu.cuGraphRetainUserObject(graph, watched.handle, 1, MOVE)
    cu.cuGraphReleaseUserObject(graph, several[1].handle, 1)
    assert [watched.destroyed for watched in several] == [0, 1, 0]
    cu.cuGraphDestroy(graph)
    assert [watched.destroyed for watched in several] == [1, 1, 1]


def test_a_clone_has_as_many_references_of_its_own(outcome, watch, graph):
    watched = watch(2)
    cu.cuGraphRetainUserObject(graph, watched.handle, 2, MOVE)
    clone = cu.cuGraphClone(graph)[1]
    cu.cuGraphDestroy(graph)
    assert watched.destroyed == 0
    assert outcome(cu.cuGraphReleaseUserObject(clone, watched.handle, 2)) == "SUCCESS"
    assert watched.destroyed == 1


def test_a_clone_does_not_share_what_its_original_is_given_later(watch, graph):
    clone = cu.cuGraphClone(graph)[1]
    watched = watch()
    cu.cuGraphRetainUserObject(graph, watched.handle, 1, MOVE)
    cu.cuGraphDestroy(graph)
    assert watched.destroyed == 1
    cu.cuGraphDestroy(clone)


def test_a_parent_graph_owns_what_its_child_owned(graph, owned):
    parent = cu.cuGraphCreate(0)[1]
    cu.cuGraphAddChildGraphNode(parent, None, 0, graph)
    cu.cuGraphDestroy(graph)
    clone = cu.cuGraphClone(parent)[1]
    cu.cuGraphDestroy(parent)
    assert owned.destroyed == 0
    cu.cuGraphDestroy(clone)
    assert owned.destroyed == 1


# Captures


@pytest.fixture
def captured(cuda, watch, stream):
    """A user object that the graph under capture owns."""
    cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    watched = watch()
    graph = cu.cuStreamGetCaptureInfo(stream)[3]
    assert cu.cuGraphRetainUserObject(graph, watched.handle, 1, MOVE)[0] == 0
    return watched


def test_a_captured_graph_owns_what_it_was_given_while_it_was_captured(stream, captured):
    graph = cu.cuStreamEndCapture(stream)[1]
    assert captured.destroyed == 0
    cu.cuGraphDestroy(graph)
    assert captured.destroyed == 1


def test_handing_an_object_to_a_capture_does_not_harm_it(cuda, stream, captured):
    assert cuda.capture_status(stream) == "active"
    assert cu.cuGraphGetNodes(cuda.end_capture(stream))[2] == 0


def test_an_invalidated_capture_drops_its_references_when_it_ends(cuda, outcome, stream, captured):
    cu.cuStreamQuery(stream)
    assert captured.destroyed == 0
    assert outcome(cu.cuStreamEndCapture(stream)) == "ERROR_STREAM_CAPTURE_INVALIDATED".removeprefix("ERROR_")
    assert captured.destroyed == 1


def test_a_capture_that_ends_unjoined_drops_its_references(outcome, stream, other_stream, event, captured):
    cu.cuEventRecord(event, stream)
    cu.cuStreamWaitEvent(other_stream, event, 0)
    assert outcome(cu.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_UNJOINED"
    assert captured.destroyed == 1


def test_destroying_the_capturing_stream_drops_its_references(stream, captured):
    cu.cuStreamDestroy(stream)
    assert captured.destroyed == 1


def test_a_graph_under_capture_cannot_be_destroyed(outcome, stream, captured):
    graph = cu.cuStreamGetCaptureInfo(stream)[3]
    assert outcome(cu.cuGraphDestroy(graph)) == "ILLEGAL_STATE"
    assert captured.destroyed == 0
    assert outcome(cu.cuStreamEndCapture(stream)) == "SUCCESS"


def test_a_graph_launched_into_a_capture_hands_its_references_on(cuda, stream, graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    cuda.begin_capture(stream)
    cu.cuGraphLaunch(executable, stream)
    outer = cuda.end_capture(stream)
    cu.cuGraphExecDestroy(executable)
    assert owned.destroyed == 0
    cu.cuGraphDestroy(outer)
    assert owned.destroyed == 1


# Executables and launches


def test_an_executable_has_references_of_its_own(graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    assert owned.destroyed == 0
    cu.cuGraphExecDestroy(executable)
    assert owned.destroyed == 1


def test_an_executable_keeps_what_its_graph_releases(graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphReleaseUserObject(graph, owned.handle, 1)
    assert owned.destroyed == 0
    cu.cuGraphExecDestroy(executable)
    assert owned.destroyed == 1


def test_a_graph_that_could_not_be_instantiated_gave_no_references(cuda, graph, owned):
    cuda.fail("cuGraphInstantiate", OUT_OF_MEMORY)
    assert cu.cuGraphInstantiate(graph, 0)[0] == OUT_OF_MEMORY
    cu.cuGraphDestroy(graph)
    assert owned.destroyed == 1


def test_a_launch_keeps_the_references_of_a_destroyed_executable_until_its_last_operation_ran(
    cuda, stream, graph, owned, instantiate
):
    cu.cuGraphAddEmptyNode(graph, None, 0)
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    cuda.hold(stream)
    cu.cuGraphLaunch(executable, stream)
    cu.cuGraphExecDestroy(executable)
    assert owned.destroyed == 0
    cuda.let_go(stream)
    assert owned.destroyed == 1


def test_a_launch_of_a_graph_without_nodes_keeps_its_references_until_its_turn(cuda, stream, graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    cuda.hold(stream)
    cu.cuGraphLaunch(executable, stream)
    cu.cuGraphExecDestroy(executable)
    assert owned.destroyed == 0
    cuda.let_go(stream)
    assert owned.destroyed == 1


def test_every_launch_keeps_the_references(cuda, stream, other_stream, graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    for each in (stream, other_stream):
        cuda.hold(each)
        cu.cuGraphLaunch(executable, each)
    cu.cuGraphExecDestroy(executable)
    cuda.let_go(stream)
    assert owned.destroyed == 0
    cuda.let_go(other_stream)
    assert owned.destroyed == 1


def test_a_launch_on_a_destroyed_stream_keeps_the_references(cuda, graph, owned, instantiate):
    stream = cuda.create_stream()
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    cuda.hold(stream)
    cu.cuGraphLaunch(executable, stream)
    cu.cuGraphExecDestroy(executable)
    cu.cuStreamDestroy(stream)
    assert owned.destroyed == 0
    cuda.let_go(stream)
    assert owned.destroyed == 1


def test_a_refused_launch_keeps_no_references(cuda, outcome, stream, graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    cuda.begin_capture(stream)
    cu.cuStreamQuery(stream)
    assert outcome(cu.cuGraphLaunch(executable, stream)) == "STREAM_CAPTURE_INVALIDATED"
    cu.cuGraphExecDestroy(executable)
    assert owned.destroyed == 1


def test_a_launch_without_an_executable_keeps_the_graphs_references(cuda, stream, graph, owned):
    cuda.hold(stream)
    cuda.launch_graph(int(graph), stream)
    cu.cuGraphDestroy(graph)
    assert owned.destroyed == 0
    cuda.let_go(stream)
    assert owned.destroyed == 1


def test_an_update_replaces_the_references_of_an_executable(outcome, watch, graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    other, newer = cu.cuGraphCreate(0)[1], watch()
    cu.cuGraphRetainUserObject(other, newer.handle, 1, MOVE)
    assert outcome(cu.cuGraphExecUpdate(executable, other)) == "SUCCESS"
    assert (owned.destroyed, newer.destroyed) == (1, 0)
    cu.cuGraphDestroy(other)
    assert newer.destroyed == 0
    cu.cuGraphExecDestroy(executable)
    assert newer.destroyed == 1


def test_launches_before_an_update_keep_what_it_dropped(cuda, stream, graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    cuda.hold(stream)
    cu.cuGraphLaunch(executable, stream)
    cu.cuGraphExecUpdate(executable, cu.cuGraphCreate(0)[1])
    assert owned.destroyed == 0
    cuda.let_go(stream)
    assert owned.destroyed == 1


def test_an_update_that_is_refused_changes_no_references(watch, graph, owned, instantiate):
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    other, newer = cu.cuGraphCreate(0)[1], watch()
    cu.cuGraphAddEmptyNode(other, None, 0)
    cu.cuGraphRetainUserObject(other, newer.handle, 1, MOVE)
    assert cu.cuGraphExecUpdate(executable, other)[0] != 0
    cu.cuGraphDestroy(other)
    assert (owned.destroyed, newer.destroyed) == (0, 1)


# Destructors


@pytest.fixture
def destroy(cuda):
    """Let a Python function be the destructor of a user object that nobody holds."""
    kept = []

    def end(function):
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
        kept.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        handle = cu.cuUserObjectCreate(0x5EED, cu.CUhostFn(address), 1, SYNC)[1]
        cu.cuUserObjectRelease(handle, 1)

    yield end
    cuda.let_destructors_go()
    cuda.wait_for_destructors()


def test_a_destructor_gets_its_pointer_in_a_thread_of_the_drivers_own(cuda, destroy):
    ran = []
    destroy(lambda pointer: ran.append((pointer, threading.get_ident())))
    cuda.wait_for_destructors()
    ((pointer, thread),) = ran
    assert pointer == 0x5EED
    assert thread != threading.get_ident()


def test_a_destructor_may_not_call_the_driver(cuda, outcome, destroy):
    results = []
    calls = (
        lambda: cu.cuInit(0),
        cu.cuDriverGetVersion,
        lambda: cu.cuStreamQuery(0),
        lambda: cu.cuMemFree(0),
        lambda: cu.cuUserObjectRetain(0, 1),
    )
    destroy(lambda _: results.extend(outcome(call()) for call in calls))
    cuda.wait_for_destructors()
    assert results == ["NOT_PERMITTED"] * len(calls)


def test_other_threads_call_the_driver_while_a_destructor_runs(cuda, outcome, destroy):
    entered, leave = threading.Event(), threading.Event()
    destroy(lambda _: (entered.set(), leave.wait(10)))
    try:
        assert entered.wait(10)
        assert outcome(cu.cuStreamSynchronize(0)) == "SUCCESS"
        assert cuda.user_objects_alive == 1
    finally:
        leave.set()


def test_the_thread_of_destructors_takes_no_signals_of_the_program(cuda, destroy):
    blocked = []
    destroy(lambda _: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    cuda.wait_for_destructors()
    assert {signal.SIGINT, signal.SIGALRM, signal.SIGUSR1} <= blocked[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_waiting_for_destructors_waits_for_one_that_runs(cuda, destroy):
    entered, leave = threading.Event(), threading.Event()
    destroy(lambda _: (entered.set(), leave.wait(10)))
    try:
        assert entered.wait(10)
        with pytest.raises(TimeoutError):
            cuda.wait_for_destructors(0)
    finally:
        leave.set()


def test_destructors_run_one_after_another_in_the_order_of_the_last_references(cuda, destroy):
    ran = []
    for number in range(5):
        destroy(lambda _, number=number: ran.append(number))
    cuda.wait_for_destructors()
    assert ran == list(range(5))


def test_held_destructors_do_not_begin(cuda, watch):
    watched = watch()
    cuda.hold_destructors()
    cu.cuUserObjectRelease(watched.handle, 1)
    with pytest.raises(TimeoutError, match="due or running after 0 s"):
        cuda.wait_for_destructors(0)
    assert cuda.user_objects_alive == 1
    cuda.let_destructors_go()
    assert watched.destroyed == 1


def test_a_hold_lets_the_destructor_that_runs_end_and_no_other_begin(cuda, watch, destroy):
    entered, leave = threading.Event(), threading.Event()
    destroy(lambda _: (entered.set(), leave.wait(10)))
    assert entered.wait(10)
    watched = watch()
    cu.cuUserObjectRelease(watched.handle, 1)
    cuda.hold_destructors()
    leave.set()
    with pytest.raises(TimeoutError):
        cuda.wait_for_destructors(0.1)
    cuda.let_destructors_go()
    assert watched.destroyed == 1


def test_a_destructor_that_takes_the_gil_does_not_hold_up_the_call_that_dropped_the_last_reference(cuda, destroy):
    ran = threading.Event()
    destroy(lambda _: ran.set())
    assert ran.wait(10)


def test_the_operation_that_ends_a_launch_does_not_wait_for_a_destructor(cuda, stream, graph, instantiate):
    entered, leave = threading.Event(), threading.Event()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (entered.set(), leave.wait(10)))
    address = ctypes.cast(callback, ctypes.c_void_p).value
    handle = cu.cuUserObjectCreate(0, cu.CUhostFn(address), 1, SYNC)[1]
    cu.cuGraphRetainUserObject(graph, handle, 1, MOVE)
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    cuda.hold(stream)
    cu.cuGraphLaunch(executable, stream)
    cu.cuGraphExecDestroy(executable)
    cuda.let_go(stream)
    try:
        assert entered.wait(10)
        assert cuda.pending() == 0
        assert cu.cuStreamQuery(stream)[0] == 0
    finally:
        leave.set()
        cuda.wait_for_destructors()


# The state that a test begins with


def test_a_reset_lets_go_of_what_graphs_own(cuda, graph, owned, instantiate):
    instantiate(graph)
    cuda.hold_destructors()
    cu.cuGraphDestroy(graph)
    cuda.reset()
    assert owned.destroyed == 1


def test_a_reset_by_force_drops_what_a_launch_and_a_capture_keep(cuda, stream, other_stream, graph, owned, watch):
    cuda.begin_capture(other_stream)
    captured = watch()
    cu.cuGraphRetainUserObject(cu.cuStreamGetCaptureInfo(other_stream)[3], captured.handle, 1, MOVE)
    cuda.hold(stream)
    cuda.launch_graph(int(graph), stream)
    cuda.reset(force=True)
    assert (owned.destroyed, captured.destroyed) == (1, 1)


def test_only_a_reset_by_force_drops_what_the_program_holds(cuda, watch):
    watched = watch()
    cuda.reset()
    assert watched.destroyed == 0
    cuda.reset(force=True)
    assert watched.destroyed == 1


def test_after_a_reset_a_graph_can_only_be_destroyed(cuda, outcome, stream, graph, instantiate):
    executable = instantiate(graph)
    cuda.reset()
    cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
    assert outcome(cu.cuGraphLaunch(executable, stream)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphInstantiate(graph, 0)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphClone(graph)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphExecDestroy(executable)) == "SUCCESS"
    assert outcome(cu.cuGraphDestroy(graph)) == "SUCCESS"
    assert outcome(cu.cuGraphDestroy(graph)) == "INVALID_VALUE"


def test_the_check_lists_references_that_the_program_never_gave_up(cuda, watch):
    watched = watch(2)
    with pytest.raises(AssertionError, match="2 references to user objects not released"):
        cuda.assert_clean()
    cu.cuUserObjectRelease(watched.handle, 2)
    cuda.assert_clean()


def test_the_check_does_not_mind_what_only_graphs_own(cuda, owned):
    cuda.assert_clean()
    assert cuda.user_objects_alive == 1


# Threads and processes


def test_references_are_counted_across_threads(cuda, watch, graph, threads):
    watched = watch()
    started = [
        threads.start(lambda: [cu.cuGraphRetainUserObject(graph, watched.handle, 1, 0) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in started:
        thread.join(10)
    cu.cuUserObjectRelease(watched.handle, 1)
    assert cu.cuGraphReleaseUserObject(graph, watched.handle, 199)[0] == 0
    assert watched.destroyed == 0
    assert cu.cuGraphReleaseUserObject(graph, watched.handle, 1)[0] == 0
    assert watched.destroyed == 1


OBJECTS = """
import ctypes, warnings
warnings.filterwarnings("ignore", "This process", DeprecationWarning)
start()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def destroy(_):
    os.write(1, b"destroyed ")
address = ctypes.cast(destroy, ctypes.c_void_p).value
graph = cu.cuGraphCreate(0)[1]
handle = cu.cuUserObjectCreate(0, cu.CUhostFn(address), 1, 1)[1]
cu.cuGraphRetainUserObject(graph, handle, 1, 1)
"""


def test_a_forked_child_runs_no_destructor_and_waits_for_none(python):
    program = """
cuda.hold_destructors()
cuda.destroy_graph(int(graph))
pid = os.fork()
if pid == 0:
    cuda.let_destructors_go()
    cuda.wait_for_destructors()
    os._exit(len(os.listdir("/proc/self/task")) - 1 + cuda.user_objects_alive - 1)
assert os.waitpid(pid, 0)[1] == 0
os.write(1, b"child ended ")
cuda.let_destructors_go()
cuda.wait_for_destructors()
"""
    result = python(OBJECTS + program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "child ended destroyed ", "")


def test_a_fork_while_a_destructor_runs_does_not_hang(python):
    program = """
entered, leave = threading.Event(), threading.Event()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def slow(_):
    entered.set()
    leave.wait(30)
handle = cu.cuUserObjectCreate(0, cu.CUhostFn(ctypes.cast(slow, ctypes.c_void_p).value), 1, 1)[1]
cu.cuUserObjectRelease(handle, 1)
assert entered.wait(30)
pid = os.fork()
if pid == 0:
    cuda.wait_for_destructors()
    os._exit(cu.cuStreamQuery(0)[0] != 3)
assert os.waitpid(pid, 0)[1] == 0
leave.set()
cuda.wait_for_destructors()
"""
    result = python(OBJECTS + program)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "begun", ["cuda.destroy_graph(int(graph))", "cuda.hold_destructors(); cuda.destroy_graph(int(graph))"]
)
def test_a_process_ends_quietly_whatever_is_due(python, begun):
    result = python(OBJECTS + begun)
    assert (result.returncode, result.stderr) == (0, "")


# Failures to order


FALLIBLE = {
    "cuUserObjectCreate": lambda g, u: cu.cuUserObjectCreate(0, cu.CUhostFn(SEM_POST), 1, SYNC),
    "cuUserObjectRetain": lambda g, u: cu.cuUserObjectRetain(u, 1),
    "cuUserObjectRelease": lambda g, u: cu.cuUserObjectRelease(u, 1),
    "cuGraphRetainUserObject": lambda g, u: cu.cuGraphRetainUserObject(g, u, 1, MOVE),
    "cuGraphReleaseUserObject": lambda g, u: cu.cuGraphReleaseUserObject(g, u, 1),
}


@pytest.mark.parametrize("function", FALLIBLE)
def test_an_ordered_failure_changes_no_references(cuda, watch, graph, function):
    watched = watch()
    cu.cuGraphRetainUserObject(graph, watched.handle, 1, 0)
    cuda.fail(function, OUT_OF_MEMORY)
    assert FALLIBLE[function](graph, watched.handle)[0] == OUT_OF_MEMORY
    assert cuda.count(function) >= 1
    assert cuda.user_objects_alive == 1
    cu.cuUserObjectRelease(watched.handle, 1)
    assert watched.destroyed == 0
    cu.cuGraphReleaseUserObject(graph, watched.handle, 1)
    assert watched.destroyed == 1


def test_a_watched_array_may_end_in_a_destructor(cuda, stream, graph, instantiate):
    """What an owner does: the memory lives until the last launch is done."""
    array = cuda.host_array(16, np.uint8)
    pointer = array.ctypes.data
    cu.cuMemHostRegister(pointer, array.nbytes, 0)
    cuda.begin_capture(stream)
    cuda.launch(stream, array, write=7)
    graph = cuda.end_capture(stream)
    ended = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ended.append(array[0]))
    handle = cu.cuUserObjectCreate(0, cu.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value), 1, SYNC)[1]
    cu.cuGraphRetainUserObject(graph, handle, 1, MOVE)
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    cuda.hold(stream)
    cu.cuGraphLaunch(executable, stream)
    cu.cuGraphExecDestroy(executable)
    cuda.wait_for_destructors()
    assert ended == []
    cuda.let_go(stream)
    cuda.wait_for_destructors()
    assert ended == [7]
    cu.cuMemHostUnregister(pointer)
