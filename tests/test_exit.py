"""How a program may end: with the status it means, in a bounded time, and without a word on stderr.

The simulated driver aborts with a line on stderr if memory is freed while it is page-locked or in use.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import time

import pytest

import scripts
from forkserver import run
from scripts import outcome

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
    "a wrapper in a module": """
import types
module = sys.modules["of_the_user"] = types.ModuleType("of_the_user")
module.buffer = dlwrap.wrap(array())
del module
""",
    "a wrapper of a thread that has ended": """
local = threading.local()
def work():
    local.buffer = dlwrap.wrap(array())
    local.buffer.record_stream(1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
    "a wrapper in a class with a cycle and a finaliser": """
class Node:
    def __init__(self): self.buffer, self.me = dlwrap.wrap(array()), self
    def __del__(self): self.buffer.close()
nodes = [Node() for _ in range(3)]
""",
    "a generator inside a wrapper's block": """
def generate():
    with dlwrap.wrap(array()) as buffer: yield buffer
generator = generate(); next(generator)
""",
    "a generator inside a pin's block": """
def generate():
    with dlwrap.pin(array()): yield
generator = generate(); next(generator)
""",
    "a generator that closes at its end": """
def generate():
    buffer = dlwrap.wrap(array())
    buffer.record_stream(1)
    try: yield
    finally: buffer.close()
generator = generate(); next(generator)
""",
    "a generator in a cycle": """
def generate():
    with dlwrap.wrap(array()) as buffer: yield buffer
generator = generate(); next(generator)
cycle = [generator]; cycle.append(cycle)
del generator
""",
    "a weakref.finalize that closes": """
import weakref
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
weakref.finalize(buffer.array, buffer.close)
""",
    "an exit stack": """
import contextlib
stack = contextlib.ExitStack()
stack.enter_context(dlwrap.wrap(array()))
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
class Stream:  # it poses as a CuPy stream
    def __init__(self): self.ptr = cuda.create_stream()
    def __cuda_stream__(self): return (0, self.ptr)
Stream.__module__, Stream.__qualname__ = "cupy.cuda.stream", "Stream"
stream = Stream()
buffer = dlwrap.wrap(array())
buffer.record_stream(stream)
cuda.begin_capture(stream.ptr)
del buffer
while not dlwrap.stats().pending: time.sleep(0.001)
""",
    "a release that failed": """
import warnings
warnings.simplefilter("ignore", dlwrap.DLWrapWarning)
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
for function in ("cuEventQuery", "cuMemHostRegister"): cuda.fail(function, 700, times=1000)
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


# What each has to import, and how it consumes.
CONSUMED = {
    "a NumPy CPU view": ("numpy", "", "view = np.from_dlpack(dlwrap.wrap(array()), device='cpu')"),
    "a tvm-ffi tensor": ("tvm_ffi", "import tvm_ffi", "tensor = tvm_ffi.from_dlpack(dlwrap.wrap(array()))"),
    "a cuda.core view": (
        "cuda.core",
        "from cuda.core.utils import StridedMemoryView",
        "view = StridedMemoryView.from_dlpack(dlwrap.wrap(array()), stream_ptr=-1)",
    ),
    "a numba array": ("numba.cuda", "from numba import cuda as nc", "view = nc.as_cuda_array(dlwrap.wrap(array()))"),
    "a torch CPU view": ("torch", "import torch", "view = torch.from_dlpack(OnHost(dlwrap.wrap(array())))"),
    "a JAX CPU view": ("jax", "import jax", "view = jax.dlpack.from_dlpack(OnHost(dlwrap.wrap(array())))"),
}
ON_HOST = """
class OnHost:
    def __init__(self, buffer): self.buffer = buffer
    def __dlpack_device__(self): return (1, 0)
    def __dlpack__(self, **request): return self.buffer.__dlpack__(**{**request, "dl_device": (1, 0)})
"""
BUSY = """
stream = cuda.create_stream(blocking=False)
cuda.hold(stream)
cuda.launch(stream, (cuda.registrations[0].start, 16))
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
@pytest.mark.parametrize("gpu", ["idle", "busy"])
def test_a_program_ends_quietly_with_a_consumer_in_a_global(alive, gpu):
    module, imports, code = CONSUMED[alive]
    skip_without(module)
    done = run(ON_HOST + code + (BUSY if gpu == "busy" else ""), imports=imports)
    assert outcome(done) == QUIET


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
    hook = f"""
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
def early_hook():
    {CLOSING[action]}
    print("done")
"""
    done = run(hook)
    assert (*outcome(done), done.stdout) == (*QUIET, "done\n")


def test_close_in_an_exit_hook_gives_the_memory_back():
    done = run("""
buffer = dlwrap.wrap(array())
atexit.register(lambda: (buffer.close(), print(cuda.registrations, buffer.closed)))
""")
    assert (*outcome(done), done.stdout) == (*QUIET, "[] True\n")


def test_close_after_dlwrap_stopped_keeps_the_memory():
    done = run("""
buffer = dlwrap.wrap(array())
def early_hook():
    buffer.close()
    print(len(cuda.registrations), cuda.host_arrays_alive, buffer.closed)
""")
    assert (*outcome(done), done.stdout) == (*QUIET, "1 1 True\n")


REFUSED = """
def {}():
    try:
        dlwrap.wrap(array())
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("used", ["dlwrap.wrap(array()).close()", "buffer = dlwrap.wrap(array())", "pass"])
def test_wrapping_after_dlwrap_stopped_says_that_the_interpreter_exits(used):
    done = run(used + REFUSED.format("early_hook"))
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
    done = run(f"{used}\natexit.register(lambda: hook()){REFUSED.format('hook')}    else:\n        print('wrapped')\n")
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


# What has begun when the process is ended at once, or by an error.
AT_WORK = {
    "a wrapper": USED,
    "a buffer in use": HELD,
    "a release that waits for the legacy stream": ALIVE["a release that waits for the legacy stream"],
    "a release that waits for the device": ALIVE["a release that waits for the device"],
    "an unregistration that waits for the device": ALIVE["an unregistration that waits for the device"],
    "a page-lock that lingers": ALIVE["a page-lock that lingers"],
}


@pytest.mark.parametrize("work", AT_WORK)
def test_an_uncaught_exception_is_all_that_stderr_says(work):
    status, said = outcome(run(f"{AT_WORK[work]}\nraise KeyError('of the user')"))
    assert status == 1
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith("\nKeyError: 'of the user'\n")
    assert "dlwrap" not in said


def test_an_uncaught_exception_of_a_thread_is_all_that_stderr_says():
    status, said = outcome(
        run(f"""
def work():
    buffer = dlwrap.wrap(array())
    raise KeyError("of the user")
{USED}
thread = threading.Thread(target=work)
thread.start()
""")
    )
    assert status == 0
    assert said.startswith("Exception in thread Thread-")
    assert said.endswith("\nKeyError: 'of the user'\n")
    assert "dlwrap" not in said


@pytest.mark.parametrize("work", AT_WORK)
def test_os_exit_ends_at_once(work):
    assert outcome(run(f"{AT_WORK[work]}\nos._exit(3)")) == (3, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("work", AT_WORK)
def test_a_signal_ends_at_once(work, number):
    code = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n{AT_WORK[work]}"
    assert outcome(run(f"{code}\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)")) == (-number, "")


@pytest.mark.parametrize("work", AT_WORK)
def test_an_interrupt_ends_with_its_traceback(work):
    status, said = outcome(run(f"{AT_WORK[work]}\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(60)"))
    assert status == -signal.SIGINT
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith("\nKeyboardInterrupt\n")
    assert "dlwrap" not in said


@pytest.mark.parametrize("work", AT_WORK)
def test_a_signal_handler_may_end_the_program(work):
    done = run(f"""
{AT_WORK[work]}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""")
    assert outcome(done) == (4, "")


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


CPP = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <thread>
#include <unistd.h>

typedef void (*Deleter)(void *);

static bool python_runs() {
    auto *is_initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
    return is_initialized != nullptr && is_initialized() != 0;
}

struct Holder {
    void *tensor = nullptr;
    Deleter deleter = nullptr;
    ~Holder() {
        if (deleter != nullptr) {
            deleter(tensor);
            dprintf(1, "deleted %s Python ended\n", python_runs() ? "before" : "after");
        }
    }
};

static Holder holder;

extern "C" void hold(void *tensor, Deleter deleter) {
    holder.tensor = tensor;
    holder.deleter = deleter;
}

extern "C" void delete_one_by_one(void **tensors, Deleter *deleters, int count) {
    std::thread([=] {
        for (int i = 0; i < count; i++) {
            usleep(200);
            deleters[i](tensors[i]);
        }
    }).detach();
}
"""


@pytest.fixture(scope="module")
def cpp_library(tmp_path_factory):
    """A library that keeps tensors in C++, beyond the interpreter's end."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("cpp")
    source, library = folder / "holder.cpp", folder / "libholder.so"
    source.write_text(CPP)
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, source], check=True, timeout=60)
    return library


HELD_BY_CPP = """
from capsules import take
import ctypes
library = ctypes.CDLL({library!r})
buffer = dlwrap.wrap(array())
held = take(buffer.__dlpack__({request}))
del buffer
library.hold(ctypes.c_void_p(held.address), ctypes.c_void_p(held.managed.deleter))
"""


@pytest.mark.parametrize("request_", ["stream=1", "stream=1, max_version=(1, 0)", "dl_device=(1, 0)"])
@pytest.mark.parametrize("gpu", ["idle", "busy"])
def test_a_cpp_static_holds_a_tensor_until_after_finalisation(cpp_library, request_, gpu):
    code = HELD_BY_CPP.format(library=str(cpp_library), request=request_)
    done = run(code + (BUSY if gpu == "busy" else ""))
    assert (*outcome(done), done.stdout) == (*QUIET, "deleted after Python ended\n")


def test_a_cpp_thread_deletes_tensors_while_the_interpreter_ends(cpp_library):
    done = run(f"""
from capsules import take
import ctypes
library = ctypes.CDLL({str(cpp_library)!r})
held = [take(dlwrap.wrap(array()).__dlpack__(stream=stream)) for stream in 200 * [1, -1]]
tensors = (ctypes.c_void_p * 400)(*(each.address for each in held))
deleters = (ctypes.c_void_p * 400)(*(each.managed.deleter for each in held))
atexit.register(library.delete_one_by_one, tensors, deleters, 400)
import dlwrap._native
dlwrap._native.leak(tensors)
dlwrap._native.leak(deleters)
""")
    assert outcome(done) == QUIET


def test_what_the_gpu_uses_outlives_the_module_that_kept_it():
    # Finalisation clears modules in an order of its own; nothing of dlwrap runs any more by then.
    done = run(f"""
{ALIVE["a release that waits for the legacy stream"]}
def early_hook():
    vars(sys.modules["dlwrap._lifetime"]).clear()
    gc.collect()
    print(cuda.host_arrays_alive)
""")
    assert (*outcome(done), done.stdout) == (*QUIET, "1\n")


# ---- subinterpreters ----

SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
buffer = dlwrap.wrap(array())
buffer.record_stream(1)
for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
    del os.environ[name]  # it would be measured, and coverage cannot in a second interpreter
interpreter = interpreters.create()
interpreters.run_string(interpreter, "import threading; kept = [object()]; kept.append(kept)")
"""


@pytest.mark.parametrize("end", ["", "interpreters.destroy(interpreter)", "buffer.close()"])
def test_a_program_with_a_subinterpreter_ends_quietly(end):
    assert outcome(run(SUBINTERPRETER + end)) == QUIET


def test_a_subinterpreter_that_imports_dlwrap_leaves_the_first_one_at_work():
    # It may be refused, by NumPy already; a second manager would take the releases of the first.
    done = run(f"""
{SUBINTERPRETER}
import contextlib
code = f"import sys, warnings; sys.path[:0] = {{sys.path!r}}; warnings.simplefilter('ignore'); import dlwrap"
with contextlib.suppress(Exception): interpreters.run_string(interpreter, code)
for _ in range(10): dlwrap.wrap(array()).close(5)
buffer.close(5)
print(cuda.registrations)
""")
    assert (*outcome(done), done.stdout) == (*QUIET, "[]\n")


# ---- without the simulated driver ----

PLAIN = "import atexit, sys\nimport dlwrap\n"


@pytest.mark.parametrize("code", ["", "dlwrap.stats()", "dlwrap.reclaim()", "dlwrap.configure()"])
def test_a_program_that_never_touched_a_driver_ends_quietly(code):
    assert outcome(scripts.run(PLAIN + code, "-W", "error", prologue="")) == QUIET


def test_importing_dlwrap_starts_no_thread_and_imports_no_bindings():
    done = scripts.run(
        PLAIN + "import threading; print(threading.active_count(), 'cuda.bindings' in sys.modules)", prologue=""
    )
    assert (*outcome(done), done.stdout) == (*QUIET, "1 False\n")


def test_a_program_in_development_mode_ends_quietly():
    assert outcome(scripts.run(USED, "-W", "error", "-X", "dev")) == QUIET
