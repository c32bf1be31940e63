"""The simulated driver becomes the process's libcuda.so.1, once, and never beside a real one."""

import ctypes
import os
import pickle

import pytest
from cuda.bindings import driver as cu

import dlwrap.testing
from dlwrap.testing import SimulationError


def test_activating_again_gives_the_same_driver(simulated_cuda):
    assert dlwrap.testing.activate() is simulated_cuda


def test_it_is_found_by_the_name_of_the_real_driver(simulated_cuda):
    assert ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD).cuGetProcAddress_v2


def test_the_real_bindings_run_on_it(cuda):
    assert cu.cuDeviceGetName(64, 0)[1].startswith(b"Simulated CUDA device 0")


def test_importing_it_imports_no_cuda_and_activates_nothing(python):
    program = """
import sys
import dlwrap.testing, dlwrap.testing.plugin
assert not dlwrap.testing.active()
assert "cuda.bindings" not in sys.modules
"""
    result = python(program, prelude="")
    assert result.returncode == 0, result.stderr


def test_it_refuses_to_stand_beside_a_real_driver(python, tmp_path):
    library = dlwrap.testing._library.importlib.util.find_spec("dlwrap.testing._simcuda").origin
    program = f"""
import ctypes, dlwrap.testing
ctypes.CDLL({library!r})
try:
    dlwrap.testing.activate()
except RuntimeError as error:
    assert "real libcuda" in str(error)
    assert not dlwrap.testing.active()
else:
    raise AssertionError("activated")
"""
    result = python(program, prelude="")
    assert result.returncode == 0, result.stderr


def test_calls_before_init_are_refused(python):
    program = """
assert cu.cuDriverGetVersion() == (0, 13000)
assert cu.cuCtxGetCurrent()[0] == 3
assert cu.cuDeviceGetCount()[0] == 3
mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
assert cu.cuThreadExchangeStreamCaptureMode(mode)[0] == 3
"""
    result = python(program)
    assert result.returncode == 0, result.stderr


PER_THREAD = {
    "cuStreamQuery": "cu.cuStreamQuery(0)[0] == 600",
    "cuStreamGetId": "cu.cuStreamGetId(0) == cu.cuStreamGetId(2) != cu.cuStreamGetId(1)",
    "cuStreamGetFlags": "cu.cuStreamGetFlags(0) == (0, 0)",
    "cuStreamGetPriority": "cu.cuStreamGetPriority(0) == (0, 0)",
    "cuStreamGetCtx": "int(cu.cuStreamGetCtx(0)[1]) == int(cu.cuCtxGetCurrent()[1])",
    "cuStreamIsCapturing": "cu.cuStreamIsCapturing(0)[0] == 0",
    "cuStreamGetCaptureInfo": "cu.cuStreamGetCaptureInfo(0)[0] == 0",
    "cuEventRecord": "cu.cuEventRecord(event, 0)[0] == 0 and cu.cuEventQuery(event)[0] == 600",
    "cuEventRecordWithFlags": "cu.cuEventRecordWithFlags(event, 0, 0)[0] == 0 and cu.cuEventQuery(event)[0] == 600",
    "cuStreamWaitEvent": "cu.cuStreamWaitEvent(0, event, 0)[0] == 0 and cuda.pending(2) == 2",
    "cuMemsetD8": "cu.cuMemsetD8(address, 1, 1)[0] == 0 and cuda.pending(2) == 2",
    "cuMemsetD32": "cu.cuMemsetD32(address, 1, 1)[0] == 0 and cuda.pending(2) == 2",
    "cuMemsetD8Async": "cu.cuMemsetD8Async(address, 1, 1, 0)[0] == 0 and cuda.pending(2) == 2",
    "cuMemsetD32Async": "cu.cuMemsetD32Async(address, 1, 1, 0)[0] == 0 and cuda.pending(2) == 2",
    "cuMemcpyAsync": "cu.cuMemcpyAsync(address, address, 1, 0)[0] == 0 and cuda.pending(2) == 2",
    "cuMemcpyHtoDAsync": "cu.cuMemcpyHtoDAsync(address, address, 1, 0)[0] == 0 and cuda.pending(2) == 2",
    "cuMemcpyDtoHAsync": "cu.cuMemcpyDtoHAsync(address, address, 1, 0)[0] == 0 and cuda.pending(2) == 2",
    "cuMemcpyDtoDAsync": "cu.cuMemcpyDtoDAsync(address, address, 1, 0)[0] == 0 and cuda.pending(2) == 2",
    "cuMemcpy": "waits(lambda: cu.cuMemcpy(address, address, 1))",
    "cuMemcpyHtoD": "waits(lambda: cu.cuMemcpyHtoD(address, address, 1))",
    "cuMemcpyDtoH": "waits(lambda: cu.cuMemcpyDtoH(address, address, 1))",
    "cuMemcpyDtoD": "waits(lambda: cu.cuMemcpyDtoD(address, address, 1))",
    "cuStreamSynchronize": "waits(lambda: cu.cuStreamSynchronize(0))",
    "cuStreamBeginCapture": "captures()",
}


def test_handle_0_is_what_the_bindings_ask_for(python):
    program = """
start()
context = cu.cuCtxGetCurrent()[1]
memory = cuda.host_array(4)
address = memory.ctypes.data
cu.cuMemHostRegister(address, memory.nbytes, 0)

def waits(call):
    "Whether the call waits for work on the calling thread's own stream, and only for that."
    def body():
        cu.cuCtxPushCurrent(context)
        cuda.hold(2)
        own.append(cu.cuStreamGetId(0))
        cuda.launch(2, memory)
        done.append(call())
    own, done = [], []
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(0.05)
    waited = thread.is_alive() and not done
    cuda.reset(force=True)
    thread.join(10)
    cu.cuCtxPushCurrent(context)
    cu.cuMemHostRegister(address, memory.nbytes, 0)
    return waited and done[0][0] == 0

def captures():
    cuda.let_go(2)
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert cu.cuStreamBeginCapture(0, mode)[0] == 0
    assert cuda.capture_status(2) == "active"
    result, graph = cu.cuStreamEndCapture(0)
    executable = cu.cuGraphInstantiate(graph, 0)[1]
    return result == 0 and cu.cuGraphLaunch(executable, 0)[0] == 0

for name, check in CHECKS.items():
    event = cu.cuEventCreate(0)[1]
    cuda.hold(2)
    cuda.launch(2, memory)
    assert eval(check), name
    cuda.let_go(2)
cu.cuMemHostUnregister(address)
"""
    environment = {**os.environ, "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}
    result = python(f"CHECKS = {PER_THREAD!r}\n{program}", env=environment)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "version", "flags", "status"),
    [
        (b"cuStreamIsCapturing", 13000, 0, "SUCCESS"),
        (b"cuStreamIsCapturing", 13000, 2, "SUCCESS"),
        (b"cuNoSuchFunction", 13000, 0, "SYMBOL_NOT_FOUND"),
        (b"cuCtxRecordEvent", 12040, 0, "VERSION_NOT_SUFFICIENT"),
    ],
)
def test_get_proc_address_says_what_it_found(cuda, name, version, flags, status):
    _, address, found = cu.cuGetProcAddress(name, version, flags)
    assert found.name == f"CU_GET_PROC_ADDRESS_{status}"
    assert (address != 0) == (status == "SUCCESS")


def test_the_two_forms_of_a_function_have_two_addresses(cuda):
    plain = cu.cuGetProcAddress(b"cuEventRecord", 13000, 0)[1]
    per_thread = cu.cuGetProcAddress(b"cuEventRecord", 13000, 2)[1]
    assert plain != per_thread


def test_an_older_driver_lacks_what_came_later(simulated_cuda):
    simulated_cuda.configure(driver_version=12040)
    assert cu.cuGetProcAddress(b"cuCtxRecordEvent", 13000, 0)[1] == 0


def test_every_function_of_the_table_is_exported(simulated_cuda):
    library = simulated_cuda._library
    index = 0
    while (name := library.dlwrap_sim_function_name(index)) is not None:
        for version in (11000, 12000, 12080, 13000):
            for flags in (0, 2):
                _, address, found = cu.cuGetProcAddress(name, version, flags)
                assert (address != 0) == (int(found) == 0), name
        index += 1
    assert index > 100


def test_a_function_called_by_its_address_does_the_same(cuda, stream):
    is_capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))(
        cu.cuGetProcAddress(b"cuStreamIsCapturing", 13000, 0)[1]
    )
    status = ctypes.c_int(-1)
    assert is_capturing(stream, ctypes.byref(status)) == 0
    assert status.value == 0


def test_a_refusal_reaches_the_parent_of_a_worker_as_it_is():
    refused = pickle.loads(pickle.dumps(SimulationError(709, "hold the stream")))
    assert (type(refused), refused.code, str(refused)) == (
        SimulationError,
        709,
        "the simulated driver refused to hold the stream: CUresult 709",
    )
