"""os.fork with buffers alive: the child lets go of them without a word to CUDA, and the parent goes on."""

from __future__ import annotations

import pytest

import scripts
from forkserver import run
from locks import LOCKS
from scripts import outcome

QUIET = (0, "")

# `fork` runs an action in a child, which ends as told, and says how it ended. A child that hangs is killed (-14).
FORK = """
def fork(action, leave=lambda: os._exit(0)):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        action()
        # The log of the parent is inherited; its last calls may have come after any count before the fork.
        print("driver calls:", sum(call.thread_id == os.getpid() for call in cuda.calls()), flush=True)
        leave()
    print("child ended:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

def forget():
    for name in ("buffer", "capsule", "view", "pin", "kept", "other"):
        globals().pop(name, None)
    gc.collect()

def attempt(action, *arguments, **keywords):
    try:
        return action(*arguments, **keywords)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)

"""
# Python 3.12 and later warn of any fork beside threads, and dlwrap has two.
MUTED = ("-W", "ignore:This process:DeprecationWarning")
CHILD_LEFT = ["driver calls: 0", "child ended: 0"]


def lines_of(code: str) -> list[str]:
    """Run a program that forks; give the lines that parent and children printed."""
    done = run(FORK + code, *MUTED)
    assert outcome(done) == QUIET
    return done.stdout.splitlines()


HELD = """
kept = array()
buffer, stream = dlwrap.wrap(kept), cuda.create_stream(blocking=False)
cuda.hold(stream)
cuda.launch(stream, kept)
"""
LET_GO = '\nif "stream" in globals(): cuda.let_go(stream)\n'
PENDING = "while not dlwrap.stats().pending: time.sleep(0.001)\n"

# What the parent has when it forks; where it holds a stream, that is `stream`.
PARENTS = {
    "a wrapper": "buffer = dlwrap.wrap(array())",
    "a wrapper that was used": "kept = array(); buffer = dlwrap.wrap(kept); buffer.record_stream(1)",
    "a pin": "pin = dlwrap.pin(array())",
    "a capsule": "capsule = dlwrap.wrap(array()).__dlpack__(max_version=(1, 0))",
    "a legacy capsule": "capsule = dlwrap.wrap(array()).__dlpack__(stream=1)",
    "a CPU view": "view = np.from_dlpack(dlwrap.wrap(array()), device='cpu')",
    "a buffer in use": HELD + "buffer.__dlpack__(stream=stream)",
    "a release that waits for an event": """
stream, kept = 1, array()
buffer = dlwrap.wrap(kept)
buffer.record_stream(stream)
cuda.hold(stream)
cuda.launch(stream, kept)
del kept, buffer
"""
    + PENDING,
    "a release that waits for the device": HELD + "buffer.record_stream(stream)\ndel kept, buffer\n" + PENDING,
    "an unregistration that waits for the device": HELD
    + """
dlwrap.wrap(array())
while not cuda.count("cuMemHostUnregister"): time.sleep(0.001)
""",
    "a page-lock that lingers": """
dlwrap.configure(linger_seconds=float("inf"))
dlwrap.wrap(array())
while not dlwrap.stats().lingering: time.sleep(0.001)
""",
    "nothing any more": "dlwrap.wrap(array()).close()",
}


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit()"])
@pytest.mark.parametrize("parent", PARENTS)
def test_a_child_drops_what_it_inherits_without_a_driver_call(parent, leave):
    told = lines_of(f"""
{PARENTS[parent]}
fork(forget, lambda: {leave})
{LET_GO}forget()
dlwrap.configure(linger_seconds=0)
dlwrap.reclaim(20)
print("kept:", cuda.registrations, cuda.host_arrays_alive)
dlwrap.wrap(array()).close(20)
""")
    assert told == [*CHILD_LEFT, "kept: [] 0"]


@pytest.mark.parametrize("parent", PARENTS)
def test_a_child_that_keeps_what_it_inherits_ends_quietly(parent):
    told = lines_of(f"""
{PARENTS[parent]}
fork(lambda: None, sys.exit)
{LET_GO}""")
    assert told == CHILD_LEFT


@pytest.mark.parametrize("parent", ["a wrapper", "a release that waits for the device", "nothing any more"])
@pytest.mark.parametrize("make", ["wrap", "pin"])
def test_a_child_is_refused_memory_of_its_own(parent, make):
    told = lines_of(f"{PARENTS[parent]}\nfork(lambda: attempt(dlwrap.{make}, np.zeros(9)))\n{LET_GO}")
    assert told == [
        "RuntimeError: cannot wrap in a forked child: CUDA does not survive fork(); start children by spawn",
        *CHILD_LEFT,
    ]


@pytest.mark.parametrize(
    "call",
    [
        "dlwrap.stats()",
        "dlwrap.reclaim()",
        "dlwrap.reclaim(0)",
        "dlwrap.configure(linger_seconds=1)",
        "buffer.close()",
        "buffer.close(0)",
        "buffer.synchronize()",
        "repr(buffer)",
    ],
)
def test_a_call_in_a_child_returns_at_once(call):
    # The parent's device is busy for ever, so whatever waits for it never returns.
    told = lines_of(f"{HELD}\nbuffer.record_stream(stream)\nfork(lambda: {call}, sys.exit)\ncuda.let_go(stream)")
    assert told == CHILD_LEFT


def test_a_child_has_nothing_to_count():
    told = lines_of("""
from dataclasses import astuple
buffer = dlwrap.wrap(array())
capsule = buffer.__dlpack__()
def count(): print(set(astuple(dlwrap.stats())), flush=True)
fork(lambda: (count(), forget(), count()))
""")
    assert told == ["{0}", "{0}", *CHILD_LEFT]


def test_a_child_may_close_a_buffer_whose_parent_goes_on_with_it():
    told = lines_of("""
buffer = dlwrap.wrap(array())
fork(lambda: (buffer.close(), print(buffer.closed, flush=True)), sys.exit)
print(buffer.closed, len(cuda.registrations))
buffer.close(20)
print(cuda.registrations)
""")
    assert told == ["True", *CHILD_LEFT, "False 1", "[]"]


def test_a_child_reads_the_array_and_writes_to_a_copy_of_its_own():
    told = lines_of("""
kept = array(fill=1)
buffer = dlwrap.wrap(kept)
buffer.record_stream(1)
def work():
    view = np.from_dlpack(buffer, device="cpu")
    print(view[0], buffer.array[0], np.asarray(buffer)[0], flush=True)
    view[:] = 2
fork(work, sys.exit)
print(kept[0])
""")
    assert told == ["1.0 1.0 1.0", *CHILD_LEFT, "1.0"]


@pytest.mark.parametrize("stream", ["None", "-1", "1", "2", "stream"])
def test_a_child_is_refused_an_export_to_the_gpu(stream):
    told = lines_of(f"""
buffer, stream = dlwrap.wrap(array()), cuda.create_stream()
fork(lambda: attempt(buffer.__dlpack__, stream={stream}))
""")
    assert told[1:] == CHILD_LEFT
    assert "fork" in told[0]


@pytest.mark.parametrize(
    "use",
    ["buffer.record_stream(1)", "buffer.record_stream(stream)", "buffer.ptr", "buffer.__cuda_array_interface__"],
)
def test_a_child_makes_no_driver_call_by(use):
    # It may work or be refused.
    told = lines_of(f"""
buffer, stream = dlwrap.wrap(array()), cuda.create_stream()
fork(lambda: attempt(lambda: {use}))
""")
    assert told[-2:] == CHILD_LEFT


def test_a_grandchild_is_like_a_child():
    told = lines_of("""
buffer = dlwrap.wrap(array())
fork(lambda: fork(lambda: (forget(), attempt(dlwrap.wrap, np.zeros(9))), sys.exit), sys.exit)
""")
    assert "forked child" in told[0]
    assert told[1:] == 2 * CHILD_LEFT


# ---- the parent ----


def test_the_parent_finishes_a_release_that_was_pending():
    told = lines_of(f"""
{HELD}
buffer.record_stream(stream)
del buffer, kept
{PENDING}
fork(forget)
print(dlwrap.stats().pending, cuda.host_arrays_alive)
cuda.let_go(stream)
dlwrap.reclaim(20)
print(dlwrap.stats().pending, cuda.host_arrays_alive)
""")
    assert told == [*CHILD_LEFT, "1 1", "0 0"]


def test_a_thread_of_the_parent_finishes_its_close():
    told = lines_of(f"""
{HELD}
buffer.record_stream(stream)
closing = threading.Thread(target=lambda: (buffer.close(20), print("closed", flush=True)))
closing.start()
{PENDING}
fork(lambda: print(buffer.closed, flush=True), sys.exit)
cuda.let_go(stream)
closing.join()
""")
    assert told == ["True", *CHILD_LEFT, "closed"]


def test_the_parent_forks_often():
    told = lines_of("""
for _ in range(20):
    buffer = dlwrap.wrap(array())
    buffer.record_stream(1)
    fork(forget, sys.exit)
    forget()
dlwrap.reclaim(20)
print(cuda.registrations, cuda.host_arrays_alive, dlwrap.stats().leaked)
""")
    assert told == [*20 * CHILD_LEFT, "[] 0 0"]


# ---- another thread in the middle of something ----


@pytest.mark.parametrize(
    "function",
    ["cuMemHostRegister", "cuMemHostGetDevicePointer", "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"],
)
def test_a_fork_while_another_thread_wraps(function):
    told = lines_of(f"""
dlwrap.wrap(array()).close()
cuda.pause("{function}")
buffers = []
wrapping = threading.Thread(target=lambda: buffers.append(dlwrap.wrap(array())))
wrapping.start()
cuda.wait_until_paused("{function}")
fork(lambda: attempt(dlwrap.wrap, np.zeros(9)), sys.exit)
cuda.resume("{function}")
wrapping.join()
print(len(cuda.registrations))
buffers.pop().close(20)
print(cuda.registrations)
""")
    assert "forked child" in told[0]
    assert told[1:] == [*CHILD_LEFT, "1", "[]"]


@pytest.mark.parametrize(
    "function", ["cuInit", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuMemHostRegister"]
)
def test_a_fork_while_another_thread_makes_the_first_wrap(function):
    # The child may wrap or be refused, but not hang on a lock of a thread that it does not have.
    told = lines_of(f"""
cuda.pause("{function}")
buffers = []
wrapping = threading.Thread(target=lambda: buffers.append(dlwrap.wrap(array())))
wrapping.start()
cuda.wait_until_paused("{function}")
fork(lambda: (cuda.resume("{function}"), attempt(dlwrap.wrap, np.zeros(9))), sys.exit)
cuda.resume("{function}")
wrapping.join()
buffers.pop().close(20)
print(cuda.registrations)
""")
    assert told[-2:] == ["child ended: 0", "[]"]


@pytest.mark.parametrize(
    "function",
    [
        "cuEventCreate",
        "cuStreamIsCapturing",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventDestroy",
        "cuMemHostRegister",
        "cuMemHostUnregister",
    ],
)
def test_a_fork_while_the_manager_is_in_a_driver_call(function):
    told = lines_of(f"""
buffer = dlwrap.wrap(array(), wait="device")
buffer.record_stream(1)
cuda.pause("{function}")
del buffer
cuda.wait_until_paused("{function}")
fork(lambda: (dlwrap.reclaim(), attempt(dlwrap.wrap, np.zeros(9))), sys.exit)
cuda.resume("{function}")
dlwrap.reclaim(20)
print(cuda.registrations, cuda.host_arrays_alive)
""")
    assert "forked child" in told[0]
    assert told[1:] == [*CHILD_LEFT, "[] 0"]


# Another thread has the lock; the child has the lock but not the thread.
HOLD = """
from dlwrap import _lifetime
lock = {lock}
has_it, give_back = threading.Event(), threading.Event()
def keep():
    with lock:
        has_it.set()
        give_back.wait(50)
keeping = threading.Thread(target=keep)
keeping.start()
assert has_it.wait(20)
"""
ALL_CALLS = "dlwrap.stats(), dlwrap.configure(linger_seconds=0), dlwrap.reclaim(), attempt(dlwrap.wrap, np.zeros(9))"


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("parent", ["a wrapper", "a release that waits for the device", "a page-lock that lingers"])
def test_a_fork_while_another_thread_has(lock, parent):
    told = lines_of(f"""
{PARENTS[parent]}
{HOLD.format(lock="_lifetime.manager()." + LOCKS[lock])}
fork(lambda: ({ALL_CALLS}, forget()), sys.exit)
give_back.set()
keeping.join()
{LET_GO}forget()
dlwrap.configure(linger_seconds=0)
dlwrap.reclaim(20)
print("kept:", cuda.registrations, cuda.host_arrays_alive)
""")
    assert "forked child" in told[0]
    assert told[1:] == [*CHILD_LEFT, "kept: [] 0"]


def test_a_fork_while_another_thread_has_the_lock_of_a_close_that_waits():
    told = lines_of(f"""
{HELD}
buffer.record_stream(stream)
closing = threading.Thread(target=buffer.close)
closing.start()
{PENDING}
{HOLD.format(lock="buffer._lease.closed._changed")}
fork(lambda: (buffer.close(), forget()), sys.exit)
give_back.set()
keeping.join()
cuda.let_go(stream)
closing.join()
""")
    assert told == CHILD_LEFT


@pytest.mark.parametrize("lock", LOCKS)
def test_a_fork_before_dlwrap_was_used_while_another_thread_has(lock):
    # Such as one that calls `configure` or `stats`; the child may use dlwrap as if it were the first.
    told = lines_of(f"""
{HOLD.format(lock="_lifetime.manager()." + LOCKS[lock])}
fork(lambda: ({ALL_CALLS}), sys.exit)
give_back.set()
keeping.join()
dlwrap.wrap(array()).close(20)
print(cuda.registrations)
""")
    assert told[-2:] == ["child ended: 0", "[]"]


def test_a_fork_while_another_thread_imports_the_bindings():
    # Python does not renew the locks of single imports: a child that imported the same module would wait for ever.
    done = scripts.run(
        FORK
        + """
import importlib.util
importing, go_on = threading.Event(), threading.Event()
class Slow:
    def find_spec(self, name, path, target=None):
        if name != "cuda.bindings": return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (importing.set(), go_on.wait(50), load(module))
        return spec
sys.meta_path.insert(0, Slow())
buffers = []
wrapping = threading.Thread(target=lambda: buffers.append(dlwrap.wrap(array())))
wrapping.start()
assert importing.wait(20)
fork(lambda: (go_on.set(), attempt(dlwrap.wrap, np.zeros(9))), sys.exit)
go_on.set()
wrapping.join()
buffers.pop().close(20)
print(cuda.registrations)
""",
        *MUTED,
    )
    assert outcome(done) == QUIET
    assert done.stdout.splitlines()[-2:] == ["child ended: 0", "[]"]


def test_forks_while_other_threads_export_and_delete_on_and_on():
    # The native part has a lock of its own around its spare exports, which only a thread with the GIL can have.
    told = lines_of("""
buffer, stop = dlwrap.wrap(array()), threading.Event()
def export():
    while not stop.is_set(): buffer.__dlpack__(dl_device=(1, 0))
exporting = [threading.Thread(target=export) for _ in range(3)]
for thread in exporting: thread.start()
def export_in_the_child():
    capsules = [buffer.__dlpack__(dl_device=(1, 0)) for _ in range(200)]
for _ in range(15): fork(export_in_the_child)
stop.set()
for thread in exporting: thread.join()
buffer.close(20)
print(cuda.registrations)
""")
    assert told == [*15 * CHILD_LEFT, "[]"]


# ---- a fork before dlwrap was used ----

USE = """
def use():
    buffer = dlwrap.wrap(array(fill=0))
    cuda.launch(1, buffer.array, write=1)
    buffer.record_stream(1)
    buffer.close(20)
    print("used:", cuda.registrations, dlwrap.stats().leaked, flush=True)
"""


@pytest.mark.parametrize("before", ["", "dlwrap.stats(); dlwrap.reclaim(); dlwrap.configure(linger_seconds=0)"])
@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit()"])
def test_a_child_forked_before_dlwrap_was_used_may_use_it(before, leave):
    told = lines_of(f"{USE}{before}\nfork(use, lambda: {leave})\nuse()")
    assert [told[0], *told[2:]] == ["used: [] 0", "child ended: 0", "used: [] 0"]


def test_a_child_may_activate_the_simulated_driver_itself():
    done = scripts.run(
        """
import os, sys
import dlwrap, numpy as np
pid = os.fork()
if pid == 0:
    from dlwrap import testing
    cuda = testing.activate()
    dlwrap.wrap(np.zeros(9)).close(20)
    print(cuda.registrations)
    sys.exit()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        prologue="",
    )
    assert (*outcome(done), done.stdout) == (*QUIET, "[]\n")


def test_a_child_of_a_parent_that_only_asked_for_support_is_told_of_the_fork():
    # The driver is initialised by then, so the child cannot use CUDA.
    told = lines_of("dlwrap.support()\nfork(lambda: attempt(dlwrap.wrap, np.zeros(9)), sys.exit)")
    assert "fork" in told[0]
    assert told[-1] == "child ended: 0"


def test_a_child_of_a_parent_whose_other_library_uses_cuda_is_refused():
    told = lines_of("""
from cuda.bindings import driver
driver.cuInit(0)
fork(lambda: attempt(dlwrap.wrap, np.zeros(9)), sys.exit)
""")
    assert told[0].startswith(("CudaError: ", "RuntimeError: "))
    assert told[-1] == "child ended: 0"


# ---- subprocess ----


def test_a_subprocess_with_a_hook_between_fork_and_exec():
    told = lines_of("""
import subprocess
buffer = dlwrap.wrap(array())
print(subprocess.run(["true"], preexec_fn=forget).returncode)
buffer.close(20)
print(cuda.registrations)
""")
    assert told == ["0", "[]"]
