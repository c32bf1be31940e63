"""Graphs: what was captured runs when the graph is launched, as often as it is."""

import numpy as np
import pytest
from cuda.bindings import driver as cu


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
