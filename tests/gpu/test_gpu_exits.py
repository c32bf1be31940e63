"""A program that still holds wrapped memory ends as it should: in time, with status 0, without a word on stderr."""

from __future__ import annotations

import time

import pytest
from _script import run_script

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
