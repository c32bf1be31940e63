"""How a program may end: with the status it means, in a bounded time, and without a word on stderr.

The simulated driver aborts with a line on stderr if memory is freed while it is page-locked or in use.
"""

from __future__ import annotations

import importlib.util
import signal
import time

import pytest

from scripts import outcome, run

QUIET = (0, "")
BOUND = 10  # seconds for the ending itself, which may wait half a second for each of two threads

# ---- what may be alive at the end ----

HELD = """
kept = array()
buffer = dlwrap.wrap(kept)
stream = cuda.create_stream(blocking=False)
cuda.hold(stream)
cuda.launch(stream, kept)
"""

ALIVE = {
    "a wrapper": "buffer = dlwrap.wrap(array())",
    "a pin": "pin = dlwrap.pin(array())",
    "a wrapper and its array": "kept = array(); buffer = dlwrap.wrap(kept)",
    "a wrapper in a reference cycle": "cycle = [dlwrap.wrap(array())]; cycle.append(cycle)",
    "a capsule": "capsule = dlwrap.wrap(array()).__dlpack__(max_version=(1, 0))",
    "a legacy capsule": "capsule = dlwrap.wrap(array()).__dlpack__()",
    "a capsule whose consumer never deletes": """
from capsules import take
held = take(dlwrap.wrap(array()).__dlpack__())
""",
    "a wrapper that a thread holds": """
buffer = dlwrap.wrap(array())
threading.Thread(target=lambda held: threading.Event().wait(), args=[buffer], daemon=True).start()
""",
    "a wrapper that a late finaliser exports": """
class Late:
    def __init__(self): self.buffer = dlwrap.wrap(array())
    def __del__(self): self.buffer.__dlpack__(stream=1)
late = Late()
""",
    "a wrapper that a late finaliser closes": """
class Late:
    def __init__(self): self.buffer = dlwrap.wrap(array())
    def __del__(self): self.buffer.close()
late = Late()
""",
    "a page-lock that lingers": """
dlwrap.configure(linger_seconds=float("inf"))
dlwrap.wrap(array())
while not dlwrap.stats().lingering: time.sleep(0.001)
""",
    "a page-lock that lingers for another hour": """
dlwrap.configure(linger_seconds=3600)
dlwrap.wrap(array())
while not dlwrap.stats().lingering: time.sleep(0.001)
""",
    "a buffer in use on a held stream": HELD + "buffer.__dlpack__(stream=stream)",
    "a release that waits for the legacy stream": """
kept = array()
buffer = dlwrap.wrap(kept)
buffer.record_stream(1)
cuda.hold(1)
cuda.launch(1, kept)
del kept, buffer
while not dlwrap.stats().pending: time.sleep(0.001)
""",
    "a release that waits for the device": HELD
    + """
buffer.record_stream(stream)
del kept, buffer
while not dlwrap.stats().pending: time.sleep(0.001)
""",
    "an unregistration that waits for the device": HELD
    + """
elsewhere = dlwrap.wrap(array())
del elsewhere
while not any(call.function == "cuMemHostUnregister" for call in cuda.calls()): time.sleep(0.001)
""",
    "a release during a capture that never ends": """
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
cuda.begin_capture(cuda.create_stream())
del buffer
while not dlwrap.stats().pending: time.sleep(0.001)
""",
    "a release that failed": """
import warnings
warnings.simplefilter("ignore", dlwrap.DLWrapWarning)
cuda.fail("cuEventQuery", 700)
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
del buffer
while not dlwrap.stats().leaked: time.sleep(0.001)
""",
    "hundreds of releases at once": """
buffers = [dlwrap.wrap(array()) for _ in range(300)]
for buffer in buffers: buffer.record_stream(1)
buffers.clear()
""",
    "nothing, as all was closed": "dlwrap.wrap(array()).close()",
    "nothing, as nothing was wrapped": "dlwrap.stats()",
}


STAMP = "\natexit.register(lambda: print(time.monotonic(), flush=True))"  # the first hook to run


@pytest.mark.parametrize("alive", ALIVE)
def test_a_program_ends_quietly_and_soon_with(alive):
    done = run(ALIVE[alive] + STAMP, "-W", "error")
    ended = time.monotonic()  # one clock for all processes
    assert outcome(done) == QUIET
    assert ended - float(done.stdout) < BOUND


CONSUMED = {
    "a NumPy CPU view": ("numpy", "view = np.from_dlpack(dlwrap.wrap(array()), device='cpu')"),
    "a tvm-ffi tensor": ("tvm_ffi", "import tvm_ffi; tensor = tvm_ffi.from_dlpack(dlwrap.wrap(array()))"),
    "a cuda.core view": (
        "cuda.core",
        "from cuda.core.utils import StridedMemoryView as V; view = V.from_dlpack(dlwrap.wrap(array()), stream_ptr=-1)",
    ),
    "a numba array": ("numba.cuda", "from numba import cuda as nc; view = nc.as_cuda_array(dlwrap.wrap(array()))"),
    "a torch CPU view": ("torch", "import torch; view = torch.from_dlpack(OnHost(dlwrap.wrap(array())))"),
    "a JAX CPU view": ("jax", "import jax; view = jax.dlpack.from_dlpack(OnHost(dlwrap.wrap(array())))"),
}
ON_HOST = """
class OnHost:
    def __init__(self, buffer): self.buffer = buffer
    def __dlpack_device__(self): return (1, 0)
    def __dlpack__(self, **request): return self.buffer.__dlpack__(**{**request, "dl_device": (1, 0)})
"""


def skip_without(module: str) -> None:
    # Not imported: numba would look for a driver, and this process has none yet.
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"needs {module}")


@pytest.mark.parametrize("alive", CONSUMED)
def test_a_program_ends_quietly_with_a_consumer_in_a_global(alive):
    module, code = CONSUMED[alive]
    skip_without(module)
    assert outcome(run(ON_HOST + code)) == QUIET


@pytest.mark.parametrize("alive", CONSUMED)
def test_a_program_ends_quietly_with_a_consumer_in_use(alive):
    module, code = CONSUMED[alive]
    skip_without(module)
    busy = """
stream = cuda.create_stream(blocking=False)
cuda.hold(stream)
cuda.launch(stream, (cuda.registrations[0].start, 16))
"""
    assert outcome(run(ON_HOST + code + busy)) == QUIET


# ---- exit hooks ----

CLOSING = {
    "closes": "buffer.close()",
    "drops and reclaims": "globals().pop('buffer'); dlwrap.reclaim()",
    "exports": "buffer.__dlpack__(stream=1)",
    "takes a CPU view": "buffer.__array__()[:] = 2",
    "asks for stats": "dlwrap.stats()",
    "configures": "dlwrap.configure(linger_seconds=1)",
    "synchronizes": "buffer.synchronize()",
}
EARLY_HOOK = """
import atexit
atexit.register(lambda: hook())
"""


@pytest.mark.parametrize("action", CLOSING)
def test_an_exit_hook_that_runs_before_dlwrap_stops(action):
    hook = f"""
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
def hook():
    {CLOSING[action]}
    print("done")
atexit.register(hook)
"""
    done = run(hook)
    assert (*outcome(done), done.stdout) == (*QUIET, "done\n")


@pytest.mark.parametrize("action", CLOSING)
def test_an_exit_hook_that_runs_after_dlwrap_stopped(action):
    # Hooks run in the reverse order: this one was registered before dlwrap was imported.
    hook = f"""
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
def hook():
    {CLOSING[action]}
    print("done")
"""
    done = run(hook, first=EARLY_HOOK)
    assert (*outcome(done), done.stdout) == (*QUIET, "done\n")


def test_close_in_an_exit_hook_gives_the_memory_back():
    done = run("""
buffer = dlwrap.wrap(array())
atexit.register(lambda: (buffer.close(), print(cuda.registrations, buffer.closed)))
""")
    assert (*outcome(done), done.stdout) == (*QUIET, "[] True\n")


def test_close_after_dlwrap_stopped_keeps_the_memory():
    done = run(
        """
buffer = dlwrap.wrap(array())
def hook():
    buffer.close()
    print(len(cuda.registrations), cuda.host_arrays_alive, buffer.closed)
""",
        first=EARLY_HOOK,
    )
    assert (*outcome(done), done.stdout) == (*QUIET, "1 1 True\n")


REFUSED = """
def hook():
    try:
        dlwrap.wrap(array())
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("used", ["dlwrap.wrap(array()).close()", "buffer = dlwrap.wrap(array())", "pass"])
def test_wrapping_after_dlwrap_stopped_says_that_the_interpreter_exits(used):
    done = run(used + REFUSED, first=EARLY_HOOK)
    assert outcome(done) == QUIET
    assert "the interpreter is exiting" in done.stdout


def test_wrapping_in_a_late_finaliser_says_that_the_interpreter_exits():
    done = run("""
class Late:
    wrap, array, kept = staticmethod(dlwrap.wrap), array(), dlwrap.wrap(array())
    def __del__(self):
        try:
            self.wrap(self.array)
        except RuntimeError as error:
            print(error)
late = Late()
""")
    assert outcome(done) == QUIET
    assert "the interpreter is exiting" in done.stdout


@pytest.mark.parametrize("used", ["dlwrap.wrap(array()).close()", "pass"])
def test_wrapping_in_an_exit_hook_before_dlwrap_stops_works_or_says_why(used):
    # In Python 3.12 no thread can be started any more, so a first wrap comes too late there.
    done = run(f"{used}\natexit.register(lambda: hook()){REFUSED}    else:\n        print('wrapped')\n")
    assert outcome(done) == QUIET
    assert any(told in done.stdout for told in ("wrapped", "the interpreter is exiting", "at interpreter shutdown"))


# ---- other ways to end ----

USED = "buffer = dlwrap.wrap(array())\nbuffer.record_stream(1)\n"


@pytest.mark.parametrize("status", [0, 3])
def test_sys_exit_keeps_its_status(status):
    assert outcome(run(f"{USED}sys.exit({status})")) == (status, "")


def test_sys_exit_in_a_thread_ends_the_thread_only():
    done = run(
        f"{USED}thread = threading.Thread(target=sys.exit, args=[3]); thread.start(); thread.join(); print('on')"
    )
    assert (*outcome(done), done.stdout) == (*QUIET, "on\n")


def test_a_thread_that_goes_on_after_the_main_thread_may_still_wrap():
    # It was used before: Python 3.12 starts no thread any more by then.
    done = run("""
dlwrap.wrap(array()).close()
def work():
    threading.main_thread().join()
    dlwrap.wrap(array()).close()
    print(cuda.registrations)
threading.Thread(target=work).start()
""")
    assert (*outcome(done), done.stdout) == (*QUIET, "[]\n")


BLOCKED_IN = {
    "close": "buffer.close()",
    "close with a timeout": "buffer.close(3600)",
    "synchronize": "buffer.synchronize()",
    "a CPU view": "np.asarray(buffer)",
    "reclaim": "globals().pop('buffer'); dlwrap.reclaim()",
}


@pytest.mark.parametrize("call", BLOCKED_IN)
@pytest.mark.parametrize("recorded", ["1", "stream"])
def test_a_daemon_thread_may_be_blocked_in(call, recorded):
    done = run(f"""
kept = array()
buffer, stream = dlwrap.wrap(kept), cuda.create_stream(blocking=False)
buffer.record_stream({recorded})
cuda.hold({recorded})
cuda.launch({recorded}, kept)
def work():
    print("begun", flush=True)
    {BLOCKED_IN[call]}
    print("ended", flush=True)
thread = threading.Thread(target=work, daemon=True)
thread.start()
thread.join(0.2)
""")
    assert (*outcome(done), done.stdout) == (*QUIET, "begun\n")


def test_a_daemon_thread_may_go_on_wrapping_and_dropping():
    done = run("""
def work():
    try:
        while True:
            buffer = dlwrap.wrap(array())
            buffer.record_stream(1)
            del buffer
    except RuntimeError:
        pass  # the refusal; printing it while the interpreter ends could end the process with a lock of CPython's
for _ in range(3): threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""")
    assert outcome(done) == QUIET


def test_an_uncaught_exception_is_all_that_stderr_says():
    done = run(f"{USED}raise KeyError('of the user')")
    status, said = outcome(done)
    assert status == 1
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith("\nKeyError: 'of the user'\n")
    assert "dlwrap" not in said


def test_os_exit_ends_at_once():
    assert outcome(run(f"{USED}os._exit(3)")) == (3, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_at_once(number):
    assert outcome(run(f"{HELD}os.kill(os.getpid(), {int(number)})\ntime.sleep(60)")) == (-number, "")


def test_an_interrupt_ends_a_close_that_waits():
    done = run(f"""
{HELD}buffer.record_stream(stream)
del kept
threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    buffer.close()
except KeyboardInterrupt:
    print("interrupted")
""")
    assert (*outcome(done), done.stdout) == (*QUIET, "interrupted\n")


# ---- after the interpreter ----

AFTER_FINALISATION = """
from capsules import take
import ctypes
held = take(dlwrap.wrap(array()).__dlpack__({request}))
libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3
libc.__cxa_atexit(held.managed.deleter, held.address, None)
"""


@pytest.mark.parametrize("request_", ["stream=1", "stream=1, max_version=(1, 0)", "dl_device=(1, 0)"])
def test_a_deleter_that_runs_after_finalisation_only_leaks(request_):
    # As the destructor of a C++ static does.
    assert outcome(run(AFTER_FINALISATION.format(request=request_))) == QUIET


def test_a_deleter_that_runs_after_finalisation_while_the_gpu_works():
    busy = """
stream = cuda.create_stream(blocking=False)
cuda.hold(stream)
cuda.launch(stream, (held.tensor.data, 16))
"""
    assert outcome(run(AFTER_FINALISATION.format(request="stream=1") + busy)) == QUIET


# ---- without the simulated driver ----

PLAIN = "import atexit, sys\nimport dlwrap\n"


@pytest.mark.parametrize("code", ["", "dlwrap.stats()", "dlwrap.reclaim()", "dlwrap.configure()"])
def test_a_program_that_never_touched_a_driver_ends_quietly(code):
    assert outcome(run(PLAIN + code, "-W", "error", prologue="")) == QUIET


def test_importing_dlwrap_starts_no_thread_and_imports_no_bindings():
    done = run(PLAIN + "import threading; print(threading.active_count(), 'cuda.bindings' in sys.modules)", prologue="")
    assert (*outcome(done), done.stdout) == (*QUIET, "1 False\n")


def test_a_program_in_development_mode_ends_quietly():
    assert outcome(run(USED, "-W", "error", "-X", "dev")) == QUIET
