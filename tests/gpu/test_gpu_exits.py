"""A program that still holds wrapped memory ends as it should: in time, with status 0, without a word on stderr."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time

import pytest
from _script import run_script, start_script

EVERYTHING_IN_GLOBALS = """
    import numpy as np, {framework}, dlwrap
    array = np.zeros(1 << 20, np.float32)
    pin = dlwrap.pin(array)
    buffer = dlwrap.wrap(array)
    tensor = {framework}.from_dlpack(buffer)
    tensor += 1
    kept = [{framework}.from_dlpack(dlwrap.wrap(np.zeros(64, np.float32))) for _ in range(16)]
    print("end")
"""

# Streams are cupy's or a bare handle: tracked by an event, or only by waiting for the whole device.
RELEASE_PENDING = """
    import numpy as np, _cuda, dlwrap
    from _latch import Kernels
    {import_framework}
    _cuda.call("cuInit", 0)
    _cuda.call("cuCtxSetCurrent", _cuda.primary_context())
    latch = Kernels().new_latch(seconds=4)
    buffer = dlwrap.wrap(np.zeros(1 << 16, np.float32))
    stream = {stream}
    handle = {handle}
    with {context}:
        capsule = buffer.__dlpack__(stream=handle, max_version=(1, 0))
    latch.launch(handle, _cuda.device_address(buffer.array), 1 << 16)
    latch.wait_until_started()
    del capsule, buffer
    try:
        dlwrap.reclaim(timeout=0.1)
    except TimeoutError:
        print("pending")
    {end}
"""
STREAMS = {
    "tracked": {
        "import_framework": "import cupy",
        "stream": "cupy.cuda.Stream(non_blocking=True)",
        "handle": "stream.ptr",
        "context": "stream",
    },
    "unknown": {
        "import_framework": "import contextlib",
        "stream": "_cuda.create_stream()",
        "handle": "stream",
        "context": "contextlib.nullcontext()",
    },
}

IN_A_THREAD = """
    import sys, threading, numpy as np, torch, dlwrap

    kept = []

    def work():
        tensor = torch.from_dlpack(dlwrap.wrap(np.zeros(1 << 16, np.float32)))
        tensor.add_(1)
        kept.append(torch.from_dlpack(dlwrap.wrap(np.zeros(64, np.float32))))
        sys.exit({status})

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print("end")
"""

BESIDE_A_BUSY_THREAD = """
    import sys, threading, numpy as np, torch, dlwrap

    torch.ones(1, device="cuda")
    busy = threading.Event()

    def work():
        try:
            while True:
                torch.from_dlpack(dlwrap.wrap(np.zeros(64, np.float32)))
                busy.set()
        except RuntimeError as error:
            assert "exiting" in str(error)

    threading.Thread(target=work, daemon=True).start()
    assert busy.wait(30)
    print("end", flush=True)
    sys.exit(0)
"""

# A kernel runs on a stream that nobody tells of, and the release of what it uses is pending.
BUSY = """
    import os, signal, sys, threading, time, numpy as np, _cuda, dlwrap
    from _latch import Kernels
    _cuda.call("cuInit", 0)
    _cuda.call("cuCtxSetCurrent", _cuda.primary_context())
    latch = Kernels().new_latch(seconds=4)
    buffer = dlwrap.wrap(np.zeros(1 << 16, np.float32))
    stream = _cuda.create_stream()
    capsule = buffer.__dlpack__(stream=stream, max_version=(1, 0))
    latch.launch(stream, _cuda.device_address(buffer.array), 1 << 16)
    latch.wait_until_started()
    kept = dlwrap.wrap(np.zeros(64, np.float32))
    del capsule, buffer
    while not dlwrap.stats().pending: time.sleep(1e-3)
"""

# What the program does next, and the status that it ends with.
ENDINGS = {
    "sys.exit(3)": ("sys.exit(3)", 3),
    "os._exit(3)": ("os._exit(3)", 3),
    "a handler that exits": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
        4,
    ),
    **{
        number.name: (f"os.kill(os.getpid(), {int(number)}); time.sleep(60)", -number)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
    },
}

IN_A_GENERATOR = """
    import numpy as np, torch, dlwrap

    def generate():
        with dlwrap.wrap(np.zeros(1 << 16, np.float32)) as buffer:
            tensor = torch.from_dlpack(buffer)
            tensor += 1
            yield tensor

    generator = generate()
    cycle = [next(generator), generator]
    cycle.append(cycle)
    print("end")
"""

HELD_BY_CPP = """
    import ctypes, numpy as np, _cuda, dlwrap
    from _latch import Kernels
    _cuda.call("cuInit", 0)
    _cuda.call("cuCtxSetCurrent", _cuda.primary_context())
    latch = Kernels().new_latch(seconds=2)
    buffer = dlwrap.wrap(np.zeros(1 << 16, np.float32))
    stream = _cuda.create_stream()
    latch.launch(stream, buffer.ptr, 1 << 16)
    latch.wait_until_started()
    capsule = buffer.__dlpack__(stream=stream)
    holder = ctypes.PyDLL({library!r})
    holder.hold.argtypes = [ctypes.py_object]
    holder.hold(capsule)
    del buffer, capsule
    print("end", flush=True)
"""

# Takes a legacy capsule, and deletes its tensor when the statics are destroyed, after Python.
HOLDER = r"""
#include <dlfcn.h>
#include <unistd.h>

struct Tensor { char unread[48]; void *context; void (*deleter)(Tensor *); };

struct Holder {
    Tensor *tensor = nullptr;
    ~Holder() {
        if (tensor != nullptr) {
            tensor->deleter(tensor);
            (void)!write(1, "deleted\n", 8);
        }
    }
};

static Holder holder;

extern "C" void hold(void *capsule) {
    auto *get = reinterpret_cast<void *(*)(void *, const char *)>(dlsym(RTLD_DEFAULT, "PyCapsule_GetPointer"));
    auto *rename = reinterpret_cast<int (*)(void *, const char *)>(dlsym(RTLD_DEFAULT, "PyCapsule_SetName"));
    holder.tensor = static_cast<Tensor *>(get(capsule, "dltensor"));
    rename(capsule, "used_dltensor");
}
"""

WORKERS = """
    import multiprocessing, numpy as np, torch, dlwrap
    from torch.utils.data import DataLoader

    array = np.arange(64, dtype=np.float32)
    tensor = torch.from_dlpack(dlwrap.wrap(array))
    total = 0.0
    for batch in DataLoader(torch.from_numpy(array), 8, num_workers=2, multiprocessing_context={method!r}):
        with dlwrap.wrap(batch.numpy()) as wrapped:
            on_gpu = torch.from_dlpack(wrapped)
            total += float(on_gpu.sum())
            del on_gpu
    assert total == float(tensor.sum()) == float(array.sum())
    print("end")
"""

FORK = """
    import gc, os, sys, warnings, numpy as np, {framework} as framework, dlwrap

    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    array = np.zeros(1 << 16, np.float32)
    buffer = dlwrap.wrap(array)
    tensor = framework.from_dlpack(buffer)
    tensor += 1
    dropped = dlwrap.wrap(np.zeros(1 << 16, np.float32))
    child = os.fork()
    if child == 0:
        del tensor, buffer, dropped
        gc.collect()
        try:
            dlwrap.wrap(np.zeros(8, np.float32))
        except RuntimeError as error:
            assert "fork" in str(error)
        else:
            os._exit(3)
        {end_of_child}
    else:
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        tensor += 1
        del tensor
        buffer.close(timeout=20)
        dropped.close(timeout=20)
        assert array[0] == 2
        framework.from_dlpack(dlwrap.wrap(array))
        dlwrap.reclaim(timeout=20)
        assert dlwrap.stats().pinned_bytes == 0
        print("parent went on")
"""


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_tensors_in_globals(request, framework):
    request.getfixturevalue(framework)
    assert run_script(EVERYTHING_IN_GLOBALS.format(framework=framework)) == "end\n"


@pytest.mark.parametrize("stream", ["tracked", "unknown"])
@pytest.mark.parametrize("end", ["", "import sys; sys.exit(0)"], ids=["last line", "sys.exit"])
def test_release_that_is_still_pending(request, stream, end):
    if stream == "tracked":
        request.getfixturevalue("cupy")
    begin = time.monotonic()
    assert run_script(RELEASE_PENDING.format(**STREAMS[stream], end=end)) == "pending\n"
    assert time.monotonic() - begin < 40


@pytest.mark.parametrize("status", [0, 3])
def test_sys_exit_in_a_thread(torch, status):
    assert run_script(IN_A_THREAD.format(status=status)) == "end\n"


def test_end_beside_a_thread_that_wraps_on_and_on(torch):
    assert run_script(BESIDE_A_BUSY_THREAD) == "end\n"


@pytest.mark.parametrize("framework", ["torch", "cupy"])
@pytest.mark.parametrize("end_of_child", ["os._exit(0)", "sys.exit(0)"])
def test_fork_with_live_buffers(request, framework, end_of_child):
    request.getfixturevalue(framework)
    assert run_script(FORK.format(framework=framework, end_of_child=end_of_child)) == "parent went on\n"


@pytest.mark.parametrize("ending", ENDINGS)
def test_end_while_the_gpu_works(ending):
    action, status = ENDINGS[ending]
    begin = time.monotonic()
    done = start_script(f"{BUSY}\n    {action}\n")
    assert (done.returncode, done.stderr) == (status, "")
    assert time.monotonic() - begin < 40


def test_an_uncaught_exception_while_the_gpu_works():
    done = start_script(f"{BUSY}\n    raise KeyError('of the user')\n")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("\nKeyError: 'of the user'\n")
    assert "dlwrap" not in done.stderr


def test_an_interrupt_while_the_gpu_works():
    done = start_script(f"{BUSY}\n    signal.raise_signal(signal.SIGINT); time.sleep(60)\n")
    assert done.returncode == -signal.SIGINT
    assert done.stderr.endswith("\nKeyboardInterrupt\n")
    assert "dlwrap" not in done.stderr


def test_a_tensor_in_a_generator_in_a_cycle(torch):
    assert run_script(IN_A_GENERATOR) == "end\n"


def test_a_cpp_static_that_holds_a_tensor_in_use(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    source, library = tmp_path / "holder.cpp", tmp_path / "libholder.so"
    source.write_text(HOLDER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    assert run_script(HELD_BY_CPP.format(library=str(library))) == "end\ndeleted\n"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_beside_wrapped_arrays(torch, method):
    assert run_script(WORKERS.format(method=method), timeout=120) == "end\n"
