"""Graphs: what was captured runs when the graph is launched, as often as it is."""

import ctypes
import threading

import numpy as np
import pytest
from cuda.bindings import driver as cu

from dlwrap.testing import SimulationError


def update_dependencies(stream, nodes):
    """The call that names what the next captured node depends on."""
    edges = () if hasattr(cu, "cuStreamUpdateCaptureDependencies_v2") else (None,)
    return cu.cuStreamUpdateCaptureDependencies(stream, nodes, *edges, len(nodes), 1)


@pytest.fixture
def array(cuda, register):
    return register(cuda.host_array(2, np.uint8))


@pytest.fixture
def graph(cuda, stream, array):
    """A graph that writes 1 to both elements, then 2 to the second."""
    cuda.begin_capture(stream)
    cuda.launch(stream, array, write=1)
    cu.cuMemsetD8Async(array.ctypes.data + 1, 2, 1, stream)
    graph = cuda.end_capture(stream)
    yield graph
    cu.cuGraphDestroy(graph)


def test_capturing_runs_nothing(graph, array):
    assert array.tolist() == [0, 0]
    assert cu.cuGraphGetNodes(graph)[2] == 2
    assert len(cu.cuGraphGetNodes(graph, 2)[1]) == 2


def test_every_launch_runs_the_whole_graph(outcome, graph, stream, array):
    executable = cu.cuGraphInstantiate(graph, 0)[1]
    for _ in range(2):
        array[...] = 0
        assert outcome(cu.cuGraphLaunch(executable, stream)) == "SUCCESS"
        assert array.tolist() == [1, 2]
    cu.cuGraphExecDestroy(executable)


def test_an_executable_outlives_its_graph_and_a_launch_its_executable(cuda, outcome, stream, array):
    cuda.begin_capture(stream)
    cuda.launch(stream, array, write=3)
    graph = cuda.end_capture(stream)
    executable = cu.cuGraphInstantiate(graph, 0)[1]
    assert outcome(cu.cuGraphDestroy(graph)) == "SUCCESS"
    cuda.hold(stream)
    cu.cuGraphLaunch(executable, stream)
    assert outcome(cu.cuGraphExecDestroy(executable)) == "SUCCESS"
    assert array.tolist() == [0, 0]
    cuda.let_go(stream)
    assert array.tolist() == [3, 3]


def test_graphs_and_executables_are_destroyed_once(cuda, outcome, stream):
    cuda.begin_capture(stream)
    graph = cuda.end_capture(stream)
    executable = cu.cuGraphInstantiate(graph, 0)[1]
    assert outcome(cu.cuGraphExecDestroy(executable)) == "SUCCESS"
    assert outcome(cu.cuGraphExecDestroy(executable)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphLaunch(executable, stream)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphDestroy(graph)) == "SUCCESS"
    assert outcome(cu.cuGraphDestroy(graph)) == "INVALID_VALUE"


def test_a_graph_launched_after_its_memory_was_unregistered_is_an_error(cuda, outcome, stream):
    array = cuda.host_array(4)
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
    cuda.begin_capture(stream)
    cuda.launch(stream, array)
    graph = cuda.end_capture(stream)
    cu.cuMemHostUnregister(array.ctypes.data)
    cuda.launch_graph(graph, stream)
    assert outcome(cu.cuStreamQuery(stream)) == "ILLEGAL_ADDRESS"


def test_a_graph_can_be_captured_into_another(cuda, graph, stream, array):
    cuda.begin_capture(stream)
    cuda.launch_graph(graph, stream)
    outer = cuda.end_capture(stream)
    assert array.tolist() == [0, 0]
    cuda.launch_graph(outer, stream)
    assert array.tolist() == [1, 2]


def test_a_launch_captured_into_a_graph_is_one_node(cuda, graph, stream):
    executable = cu.cuGraphInstantiate(graph, 0)[1]
    cuda.begin_capture(stream)
    cu.cuGraphLaunch(executable, stream)
    outer = cuda.end_capture(stream)
    assert cu.cuGraphGetNodes(outer)[2] == 1


# Graphs that are made node by node


@pytest.fixture
def empty(cuda):
    return cu.cuGraphCreate(0)[1]


def test_a_graph_can_be_made_without_a_capture(outcome, empty, stream):
    assert cu.cuGraphGetNodes(empty)[2] == 0
    first = cu.cuGraphAddEmptyNode(empty, None, 0)[1]
    second = cu.cuGraphAddEmptyNode(empty, [first], 1)[1]
    assert [int(node) for node in cu.cuGraphGetNodes(empty, 2)[1]] == [int(first), int(second)]
    executable = cu.cuGraphInstantiate(empty, 0)[1]
    assert outcome(cu.cuGraphLaunch(executable, stream)) == "SUCCESS"
    assert outcome(cu.cuStreamQuery(stream)) == "SUCCESS"


def test_graphs_have_no_flags(cuda, outcome):
    assert outcome(cu.cuGraphCreate(1)) == "INVALID_VALUE"


def test_a_node_depends_on_nodes_of_its_own_graph(outcome, empty, graph):
    foreign = cu.cuGraphGetNodes(graph, 1)[1]
    assert outcome(cu.cuGraphAddEmptyNode(empty, foreign, 1)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphAddChildGraphNode(empty, foreign, 1, graph)) == "INVALID_VALUE"
    assert cu.cuGraphGetNodes(empty)[2] == 0


def test_a_child_graph_is_one_node_and_runs_as_often_as_its_parent(outcome, empty, graph, stream, array):
    assert outcome(cu.cuGraphAddChildGraphNode(empty, None, 0, graph)) == "SUCCESS"
    assert cu.cuGraphGetNodes(empty)[2] == 1
    executable = cu.cuGraphInstantiate(empty, 0)[1]
    for _ in range(2):
        array[...] = 0
        cu.cuGraphLaunch(executable, stream)
        assert array.tolist() == [1, 2]


def test_a_child_graph_is_a_copy_that_belongs_to_its_node(outcome, empty, graph):
    node = cu.cuGraphAddChildGraphNode(empty, None, 0, graph)[1]
    result, child = cu.cuGraphChildGraphNodeGetGraph(node)
    assert result == 0
    assert int(child) != int(graph)
    cu.cuGraphAddEmptyNode(graph, None, 0)
    assert cu.cuGraphGetNodes(child)[2] == 2
    assert outcome(cu.cuGraphDestroy(child)) == "INVALID_VALUE"
    cu.cuGraphDestroy(empty)
    assert outcome(cu.cuGraphGetNodes(child)) == "INVALID_VALUE"


def test_only_a_child_graph_s_node_has_a_child_graph(outcome, empty):
    node = cu.cuGraphAddEmptyNode(empty, None, 0)[1]
    assert outcome(cu.cuGraphChildGraphNodeGetGraph(node)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphChildGraphNodeGetGraph(cu.CUgraphNode(0xDEAD0))) == "INVALID_VALUE"


def test_a_graph_is_no_child_of_its_own(outcome, empty):
    assert outcome(cu.cuGraphAddChildGraphNode(empty, None, 0, empty)) == "INVALID_VALUE"


def test_a_clone_has_child_graphs_of_its_own(outcome, empty, graph, stream, array):
    cu.cuGraphAddChildGraphNode(empty, None, 0, graph)
    clone = cu.cuGraphClone(empty)[1]
    cu.cuGraphDestroy(empty)
    executable = cu.cuGraphInstantiate(clone, 0)[1]
    assert outcome(cu.cuGraphDestroy(clone)) == "SUCCESS"
    cu.cuGraphLaunch(executable, stream)
    assert array.tolist() == [1, 2]


def test_a_clone_is_another_graph_with_the_same_nodes(outcome, graph, stream, array):
    result, clone = cu.cuGraphClone(graph)
    assert result == 0
    cu.cuGraphAddEmptyNode(clone, None, 0)
    assert (cu.cuGraphGetNodes(graph)[2], cu.cuGraphGetNodes(clone)[2]) == (2, 3)
    cu.cuGraphLaunch(cu.cuGraphInstantiate(clone, 0)[1], stream)
    assert array.tolist() == [1, 2]


DEAD = {
    "cuGraphClone": lambda graph, other: cu.cuGraphClone(graph),
    "cuGraphGetNodes": lambda graph, other: cu.cuGraphGetNodes(graph),
    "cuGraphInstantiate": lambda graph, other: cu.cuGraphInstantiate(graph, 0),
    "cuGraphInstantiateWithParams": lambda graph, other: cu.cuGraphInstantiateWithParams(
        graph, cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    ),
    "cuGraphAddEmptyNode": lambda graph, other: cu.cuGraphAddEmptyNode(graph, None, 0),
    "cuGraphAddChildGraphNode": lambda graph, other: cu.cuGraphAddChildGraphNode(graph, None, 0, other),
    "cuGraphAddChildGraphNode, as the child": lambda graph, other: cu.cuGraphAddChildGraphNode(other, None, 0, graph),
    "cuGraphExecUpdate": lambda graph, other: cu.cuGraphExecUpdate(cu.cuGraphInstantiate(other, 0)[1], graph),
}


@pytest.mark.parametrize("call", DEAD.values(), ids=DEAD)
def test_a_destroyed_graph_is_refused(outcome, empty, graph, call):
    cu.cuGraphDestroy(empty)
    assert outcome(call(empty, graph)) == "INVALID_VALUE"


# Executables


def test_an_executable_can_be_made_with_parameters_and_uploaded(outcome, graph, stream, array):
    params = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    result, executable = cu.cuGraphInstantiateWithParams(graph, params)
    assert result == 0
    assert params.result_out == cu.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_SUCCESS
    assert outcome(cu.cuGraphUpload(executable, stream)) == "SUCCESS"
    assert array.tolist() == [0, 0]
    cu.cuGraphLaunch(executable, stream)
    assert array.tolist() == [1, 2]


def test_a_destroyed_executable_is_refused(outcome, graph, stream):
    executable = cu.cuGraphInstantiate(graph, 0)[1]
    cu.cuGraphExecDestroy(executable)
    assert outcome(cu.cuGraphUpload(executable, stream)) == "INVALID_VALUE"
    assert outcome(cu.cuGraphExecUpdate(executable, graph)) == "INVALID_VALUE"


def filling(cuda, stream, array, *values):
    cuda.begin_capture(stream)
    for value in values:
        cuda.launch(stream, array, write=value)
    return cuda.end_capture(stream)


def test_an_update_changes_what_an_executable_does_but_no_earlier_launch(cuda, outcome, stream, array):
    executable = cu.cuGraphInstantiate(filling(cuda, stream, array, 1), 0)[1]
    cuda.hold(stream)
    cu.cuGraphLaunch(executable, stream)
    result, info = cu.cuGraphExecUpdate(executable, filling(cuda, cuda.create_stream(), array, 9))
    assert result == 0
    assert info.result == cu.CUgraphExecUpdateResult.CU_GRAPH_EXEC_UPDATE_SUCCESS
    cuda.let_go(stream)
    assert array.tolist() == [1, 1]
    cu.cuGraphLaunch(executable, stream)
    assert array.tolist() == [9, 9]


def update_with_another_node(cuda, stream, array):
    return filling(cuda, stream, array, 8, 9)


def update_with_a_node_less(cuda, stream, array):
    return cu.cuGraphCreate(0)[1]


def update_with_another_kind(cuda, stream, array):
    graph = cu.cuGraphCreate(0)[1]
    cu.cuGraphAddEmptyNode(graph, None, 0)
    return graph


@pytest.mark.parametrize("make", [update_with_another_node, update_with_a_node_less, update_with_another_kind])
def test_an_update_by_a_graph_of_another_shape_is_refused_and_changes_nothing(cuda, outcome, stream, array, make):
    executable = cu.cuGraphInstantiate(filling(cuda, stream, array, 1), 0)[1]
    assert outcome(cu.cuGraphExecUpdate(executable, make(cuda, stream, array))) == "GRAPH_EXEC_UPDATE_FAILURE"
    cu.cuGraphLaunch(executable, stream)
    assert array.tolist() == [1, 1]


def test_an_executable_destroyed_by_another_thread_during_its_launch_is_launched_to_its_end(
    cuda, threads, stream, array
):
    """The host function is the first operation; the second still runs."""
    entered, leave = threading.Event(), threading.Event()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (entered.set(), leave.wait(10)))
    cuda.begin_capture(stream)
    cu.cuLaunchHostFunc(stream, cu.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value), 0)
    cuda.launch(stream, array, write=4)
    executable = cu.cuGraphInstantiate(cuda.end_capture(stream), 0)[1]
    launching = threads.start(lambda: cu.cuGraphLaunch(executable, stream)[0])
    try:
        assert entered.wait(10)
        assert cu.cuGraphExecDestroy(executable)[0] == 0
    finally:
        leave.set()
    launching.join(10)
    assert launching.results == [0]
    assert array.tolist() == [4, 4]


# What tests do without the bindings


def test_tests_can_copy_launch_and_destroy_graphs_without_a_logged_call(cuda, stream, array):
    cuda.clear_calls()
    graph = filling(cuda, stream, array, 5)
    clone = cuda.clone_graph(graph)
    cuda.destroy_graph(graph)
    executable = cuda.instantiate(clone)
    cuda.destroy_graph(clone)
    cuda.launch_exec(executable, stream)
    assert array.tolist() == [5, 5]
    cuda.launch_exec(executable, 0)
    cuda.destroy_exec(executable)
    assert cuda.calls() == []


@pytest.mark.parametrize("request_", ["instantiate", "clone_graph", "destroy_graph", "destroy_exec"])
def test_tests_are_told_of_dead_graphs_and_executables(cuda, request_):
    with pytest.raises(SimulationError, match=r"CUresult 1$"):
        getattr(cuda, request_)(0xDEAD0)


def test_tests_cannot_launch_a_dead_executable(cuda, stream):
    with pytest.raises(SimulationError, match=r"launch the executable: CUresult 1$"):
        cuda.launch_exec(0xDEAD0, stream)


# Failures to order

FALLIBLE = {
    "cuGraphCreate": lambda graph, executable: cu.cuGraphCreate(0),
    "cuGraphClone": lambda graph, executable: cu.cuGraphClone(graph),
    "cuGraphAddEmptyNode": lambda graph, executable: cu.cuGraphAddEmptyNode(graph, None, 0),
    "cuGraphAddChildGraphNode": lambda graph, executable: cu.cuGraphAddChildGraphNode(graph, None, 0, graph),
    "cuGraphChildGraphNodeGetGraph": lambda graph, executable: cu.cuGraphChildGraphNodeGetGraph(0),
    "cuGraphDestroy": lambda graph, executable: cu.cuGraphDestroy(graph),
    "cuGraphInstantiateWithParams": lambda graph, executable: cu.cuGraphInstantiateWithParams(
        graph, cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    ),
    "cuGraphUpload": lambda graph, executable: cu.cuGraphUpload(executable, 0),
    "cuGraphLaunch": lambda graph, executable: cu.cuGraphLaunch(executable, 0),
    "cuGraphExecUpdate": lambda graph, executable: cu.cuGraphExecUpdate(executable, graph),
    "cuGraphExecDestroy": lambda graph, executable: cu.cuGraphExecDestroy(executable),
    "cuStreamUpdateCaptureDependencies": lambda graph, executable: update_dependencies(0, []),
}


@pytest.mark.parametrize("function", FALLIBLE)
def test_an_ordered_failure_does_nothing(cuda, outcome, graph, array, stream, function):
    executable = cu.cuGraphInstantiate(graph, 0)[1]
    cuda.fail(function, 2)
    assert outcome(FALLIBLE[function](graph, executable)) == "OUT_OF_MEMORY"
    assert array.tolist() == [0, 0]
    assert cu.cuGraphGetNodes(graph)[2] == 2
    assert outcome(cu.cuGraphLaunch(executable, stream)) == "SUCCESS"
    assert array.tolist() == [1, 2]
