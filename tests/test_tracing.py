"""`report` and `start_tracing`: who holds what, since when, and who made it."""

from __future__ import annotations

import traceback
import weakref

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap
from cuda_calls import checked
from patience import SECONDS, eventually
from scripts import outcome, run


@pytest.fixture
def tracing():
    yield dlwrap.start_tracing
    dlwrap.stop_tracing()


def holdings(*states):
    """What is held, without what earlier tests leaked."""
    return [each for each in dlwrap.report() if each.state in (states or {"live", "pending", "lingering"})]


def wrap_in_a_function(array):
    return dlwrap.wrap(array)


def test_nothing_wrapped_is_an_empty_report(cuda):
    assert holdings() == []


def test_a_report_without_tracing_has_everything_but_the_origin(cuda):
    array = np.zeros(1000, np.uint8)
    buffer = dlwrap.wrap(array)
    capsule = buffer.__dlpack__(stream=1, max_version=(1, 0))
    (held,) = holdings()
    assert (held.kind, held.state, held.nbytes, held.locked_nbytes) == ("wrap", "live", 1000, 1000)
    assert (held.device, held.memory, held.exports, held.graphs) == (0, "pinned", 1, 0)
    assert held.address == array.__array_interface__["data"][0]
    assert held.waits_for == ("the legacy default stream",)
    assert (held.age, held.traceback) == (None, None)
    assert "live wrap of 1000 bytes on device 0, pinned, 1 exports" in str(held)
    del buffer, capsule


def test_the_traceback_ends_where_dlwrap_was_called(cuda, tracing):
    tracing(2)
    buffer = wrap_in_a_function(np.zeros(10))
    (held,) = holdings()
    assert [each.name for each in held.traceback][-1] == "wrap_in_a_function"
    assert held.traceback[-1].filename == __file__
    assert len(held.traceback) == 2
    assert held.age >= 0
    assert "return dlwrap.wrap(array)" in "".join(traceback.format_list(held.traceback))
    assert "in wrap_in_a_function" in str(held)
    del buffer


def test_a_warm_wrap_is_traced_too(cuda, tracing):
    array = np.zeros(10)
    with dlwrap.pin(array):
        warm = dlwrap.wrap(array)
        tracing()
        traced = dlwrap.wrap(array)
        assert sorted(each.traceback is not None for each in holdings() if each.kind == "wrap") == [False, True]
        del warm, traced


def test_tracing_that_was_stopped_leaves_no_traceback(cuda, tracing):
    tracing()
    dlwrap.stop_tracing()
    buffer = dlwrap.wrap(np.zeros(10))
    assert holdings()[0].traceback is None
    del buffer


def test_tracing_keeps_nothing_alive(cuda, tracing):
    tracing()
    array = cuda.host_array(100)
    gone = weakref.ref(array)
    buffer = dlwrap.wrap(array)
    found = dlwrap.report()
    del array, buffer
    dlwrap.reclaim(SECONDS)
    assert gone() is None
    assert found


def test_the_largest_comes_first_and_each_has_its_kind(cuda):
    small, large = np.zeros(10, np.uint8), np.zeros(100, np.uint8)
    kept = [dlwrap.wrap(small), dlwrap.pin(large)]
    capsule = kept[0].__dlpack__(stream=1, max_version=(1, 0), copy=True)
    found = [(each.kind, each.nbytes, each.exports) for each in holdings()]
    assert found[0] == ("pin", 100, 0)
    assert sorted(found[1:]) == [("copy", 10, 1), ("wrap", 10, 0)]
    del kept, capsule


def test_a_view_tells_what_it_keeps_page_locked(cuda):
    buffer = dlwrap.wrap(np.zeros(1000, np.uint8)[:10])
    assert [(each.nbytes, each.locked_nbytes) for each in holdings()] == [(10, 1000)]
    del buffer


def test_a_release_that_waits_is_pending_and_says_for_what(cuda):
    array = cuda.host_array(1000)
    capsule = dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
    cuda.hold(1)
    cuda.launch(1, array)
    del capsule, array
    eventually(lambda: dlwrap.stats().pending == 1)
    (held,) = holdings()
    assert (held.state, held.waits_for, held.exports) == ("pending", ("the legacy default stream",), 0)
    cuda.let_go(1)


@pytest.mark.parametrize(
    ("use", "waits_for"),
    [
        (lambda buffer: buffer.ptr, "everything on device 0"),
        (lambda buffer: buffer.__dlpack__(), "everything on device 0"),
        (lambda buffer: buffer.record_stream(1), "the legacy default stream"),
    ],
)
def test_a_live_wrap_says_what_its_release_would_wait_for(use, waits_for, cuda):
    buffer = dlwrap.wrap(np.zeros(10))
    use(buffer)
    assert holdings()[0].waits_for == (waits_for,)
    del buffer


def test_pageable_memory_is_reported_as_such(cuda):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.zeros(10, np.uint8))
    assert [(each.memory, each.locked_nbytes) for each in holdings()] == [("pageable", 0)]
    del buffer


def test_a_range_that_lingers_is_reported_with_its_first_user(cuda, tracing):
    tracing()
    dlwrap.configure(linger_seconds=60)
    wrap_in_a_function(np.zeros(1000, np.uint8))
    eventually(lambda: dlwrap.stats().lingering == 1)
    (held,) = holdings()
    assert (held.kind, held.state, held.nbytes) == ("range", "lingering", 1000)
    assert held.traceback[-1].name == "wrap_in_a_function"


def test_a_closed_buffer_is_not_reported(cuda):
    buffer = dlwrap.wrap(np.zeros(10))
    buffer.close(SECONDS)
    assert holdings() == []


def test_a_graph_that_owns_memory_is_counted(cuda):
    stream = cuda.create_stream(blocking=False)
    buffer = dlwrap.wrap(np.zeros(10))
    cuda.begin_capture(stream)
    buffer.record_stream(stream)
    assert [(each.graphs, each.exports) for each in holdings()] == [(1, 0)]
    del buffer
    checked(driver.cuGraphDestroy(driver.CUgraph(cuda.end_capture(stream))))
    cuda.destroy_stream(stream)


def test_a_leak_is_reported_and_its_warning_says_who_made_it(cuda, tracing, leaks):
    tracing()
    cuda.fail("cuMemHostUnregister", 999)
    buffer = wrap_in_a_function(np.zeros(777, np.uint8))
    warns = pytest.warns(dlwrap.DLWrapWarning, match=r"made by:\n(.|\n)*in wrap_in_a_function")
    with warns, pytest.raises(dlwrap.DLWrapError):
        buffer.close(SECONDS)
    (held,) = [each for each in holdings("leaked") if each.nbytes == 777]
    assert held.kind == "range"
    cuda.reset(force=True)


@pytest.mark.parametrize(
    ("frames", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("8", TypeError)]
)
def test_a_number_of_frames_that_is_none_is_refused(frames, error):
    with pytest.raises(error, match="at least 1"):
        dlwrap.start_tracing(frames)


TRACED = "import os; os.environ['DLWRAP_TRACE'] = '4'\n"


def test_dlwrap_trace_warns_at_the_end_of_what_is_held():
    done = run("def make():\n    return dlwrap.wrap(array())\nkept = make()\n", first=TRACED)
    assert done.returncode == 0
    assert "DLWrapWarning: at the end of the program dlwrap still holds 4096 bytes for 1:" in done.stderr
    assert "in make" in done.stderr


def test_dlwrap_trace_says_nothing_where_nothing_is_held():
    assert outcome(run("dlwrap.wrap(array())\n", first=TRACED)) == (0, "")


def test_dlwrap_trace_that_is_no_number_warns():
    done = run("", first="import os; os.environ['DLWRAP_TRACE'] = 'yes'\n")
    assert done.returncode == 0
    assert "DLWRAP_TRACE must be a number" in done.stderr


FORKED = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
buffer = dlwrap.wrap(array())
child = os.fork()
if not child:
    os._exit(len(dlwrap.report()))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_reports_nothing():
    assert outcome(run(FORKED)) == (0, "")
