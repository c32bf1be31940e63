"""A forked child has no CUDA, as with the real driver, and dropping what it inherited is silent."""

import pytest

CHILD = """
def child(body):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize(
    "call",
    ["cu.cuInit(0)", "cu.cuCtxGetCurrent()", "cu.cuStreamCreate(0)", "cu.cuStreamQuery(0)", "cu.cuMemAlloc(8)"],
)
def test_calls_in_a_forked_child_are_not_initialised(python, call):
    program = f"""
start()
def body():
    assert {call}[0] == 3
child(body)
assert {call}[0] == 0
"""
    result = python(CHILD + program)
    assert result.returncode == 0, result.stderr


def test_a_child_forked_before_init_may_use_cuda(python):
    program = """
def body():
    start()
    assert cu.cuStreamCreate(0)[0] == 0
child(body)
"""
    result = python(CHILD + program)
    assert result.returncode == 0, result.stderr


def test_a_child_may_drop_registered_memory(python):
    program = """
start()
array = cuda.host_array(4)
cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
def body():
    global array
    del array
    assert cuda.host_arrays_alive == 0
child(body)
assert array[0] == 0
cu.cuMemHostUnregister(array.ctypes.data)
"""
    result = python(CHILD + program)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_child_forked_while_another_thread_waits_does_not_hang(python):
    program = """
start()
context = cu.cuCtxGetCurrent()[1]
stream = cuda.create_stream()
array = cuda.host_array(4)
cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)
cuda.hold(stream)
cuda.launch(stream, array)
thread = threading.Thread(target=lambda: (cu.cuCtxPushCurrent(context), cu.cuStreamSynchronize(stream)))
thread.start()
while not cuda.count("cuStreamSynchronize"):
    pass
def body():
    assert cu.cuStreamQuery(0)[0] == 3
child(body)
cuda.let_go(stream)
thread.join()
cu.cuMemHostUnregister(array.ctypes.data)
"""
    import sys

    ignore = "import warnings\nwarnings.filterwarnings('ignore', 'This process', DeprecationWarning)\n"
    result = python((ignore if sys.version_info >= (3, 12) else "") + CHILD + program)
    assert result.returncode == 0, result.stderr
