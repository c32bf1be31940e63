"""What only a bug can do ends the process, with one line that says which bug."""

import signal

import pytest

SETUP = """
start()
stream = cuda.create_stream(blocking=False)
array = cuda.host_array(4)
cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 2)
"""

MISUSES = {
    "touching a dead stream": (
        "cu.cuStreamDestroy(stream); cu.cuStreamQuery(stream)",
        "cuStreamQuery: touched stream handle",
    ),
    "touching a dead event": (
        "event = cu.cuEventCreate(0)[1]; cu.cuEventDestroy(event); cu.cuEventQuery(event)",
        "cuEventQuery: touched event handle",
    ),
    "destroying a stream twice": (
        "cu.cuStreamDestroy(stream); cu.cuStreamDestroy(stream)",
        "cuStreamDestroy: touched stream handle",
    ),
    "touching a number that never was a stream": (
        "cu.cuStreamGetId(0xdead0)",
        "cuStreamGetId: touched stream handle 0xdead0",
    ),
    "unregistering what work is pending on": (
        "cuda.hold(stream); cuda.launch(stream, array); cu.cuMemHostUnregister(array.ctypes.data)",
        "cuMemHostUnregister: unregistering",
    ),
    "unregistering what a destroyed stream's work is pending on": (
        "cuda.hold(stream); cuda.launch(stream, array); cu.cuStreamDestroy(stream);"
        "cu.cuMemHostUnregister(array.ctypes.data)",
        "with work pending on it",
    ),
    "freeing what is registered": ("del array", "is registered"),
    "freeing what work is pending on": (
        "cu.cuMemHostUnregister(array.ctypes.data); cuda.configure(pageable=True)\n"
        "cuda.hold(stream); cuda.launch(stream, array); del array",
        "with work pending on it",
    ),
    "freeing what a copy is pending on": (
        "pointer = cu.cuMemAlloc(16)[1]; cuda.hold(stream)\n"
        "cu.cuMemcpyDtoHAsync(array.ctypes.data, pointer, 16, stream); cu.cuMemHostUnregister(array.ctypes.data)",
        "with work pending on it",
    ),
}


@pytest.mark.parametrize(("program", "line"), MISUSES.values(), ids=MISUSES)
def test_misuse_aborts_with_one_line_that_says_which(python, program, line):
    result = python(SETUP + program)
    assert result.returncode == -signal.SIGABRT, result.stderr
    assert result.stderr.startswith("dlwrap.testing: ")
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_same_calls_in_the_right_order_do_not(python):
    program = """
cuda.hold(stream); cuda.launch(stream, array); cuda.let_go(stream)
cu.cuMemHostUnregister(array.ctypes.data)
cu.cuStreamDestroy(stream)
del array
"""
    result = python(SETUP + program)
    assert (result.returncode, result.stderr) == (0, "")


def test_registered_memory_at_the_end_of_the_process_is_no_misuse_by_itself(python):
    result = python(SETUP + "sys.stdout.flush(); os._exit(0)")
    assert (result.returncode, result.stderr) == (0, "")
