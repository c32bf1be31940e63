"""The logger "dlwrap": what it tells, when it is asked, and that no handler can break anything."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import dlwrap
from dlwrap import _native, _watch
from patience import SECONDS, eventually
from scripts import outcome, run

LOGGER = logging.getLogger("dlwrap")


class Recorder(logging.Handler):
    """Keeps records, and does something at each."""

    def __init__(self, action=lambda: None):
        super().__init__()
        self.records = []
        self.action = action

    def emit(self, record):
        self.records.append(record)
        self.action()

    def told(self, event=None):
        return [each for each in self.records if event in {None, each.dlwrap["event"]}]

    @property
    def events(self):
        return [each.dlwrap["event"] for each in self.records]


@pytest.fixture
def listen(cuda):
    """Make a handler of the logger, which wants everything."""
    added = []

    def make(action=lambda: None):
        added.append(Recorder(action))
        LOGGER.addHandler(added[-1])
        LOGGER.setLevel(logging.DEBUG)
        return added[-1]

    yield make
    for each in added:
        LOGGER.removeHandler(each)
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.disabled = False


def use(array):
    """Wrap, export and drop."""
    dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
    dlwrap.reclaim(SECONDS)


def test_the_way_of_an_array_is_told_with_sizes_and_times(listen):
    told = listen()
    use(np.zeros(1000, np.uint8))
    eventually(lambda: {"unregister", "release"} <= set(told.events))
    assert sorted(set(told.events) - {"linger"}) == ["export", "page-lock", "release", "unregister", "wrap"]
    for record in told.records:
        assert record.levelno == logging.DEBUG
        assert record.dlwrap["nbytes"] == 1000
        assert record.dlwrap["device"] == 0
        assert "1000 bytes, device 0" in record.getMessage()
        assert record.dlwrap["event"] in {"export", "linger"} or record.dlwrap["seconds"] >= 0


def test_the_release_tells_how_long_it_waited(listen, cuda):
    told, array = listen(), cuda.host_array(1000)
    capsule = dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
    cuda.hold(1)
    cuda.launch(1, array)
    del capsule, array
    eventually(lambda: dlwrap.stats().pending == 1)
    threading.Event().wait(0.05)
    cuda.let_go(1)
    dlwrap.reclaim(SECONDS)
    eventually(lambda: "release" in told.events)
    assert told.told("release")[0].dlwrap["seconds"] >= 0.05


def test_lingering_and_reviving_are_told(listen):
    dlwrap.configure(linger_seconds=60)
    told, array = listen(), np.zeros(10)
    dlwrap.wrap(array)
    eventually(lambda: "linger" in told.events)
    dlwrap.wrap(array)
    assert [each.dlwrap["nbytes"] for each in told.told("revive")] == [80]


@pytest.mark.parametrize("kind", ["pin", "copy"])
def test_pins_and_copies_have_their_own_names(kind, listen):
    told, array = listen(), np.zeros(10)
    if kind == "pin":
        dlwrap.pin(array).close(SECONDS)
    else:
        dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0), copy=True)
    assert [each.dlwrap["nbytes"] for each in told.told(kind)] == [80]


def test_a_record_names_the_caller_outside_dlwrap(listen):
    told = listen()
    dlwrap.wrap(np.zeros(10))
    assert told.told("wrap")[0].pathname == __file__


def test_an_export_to_the_host_is_told(listen):
    told = listen()
    np.from_dlpack(dlwrap.wrap(np.zeros(10)), device="cpu")
    assert "to the host" in told.told("export")[0].getMessage()


# ---- when ----


def switch_on_by_level():
    LOGGER.setLevel(logging.DEBUG)


def switch_on_by_root():
    LOGGER.setLevel(logging.NOTSET)
    logging.getLogger().setLevel(logging.DEBUG)


def switch_off_by_level():
    LOGGER.setLevel(logging.INFO)


def switch_off_by_disabling_all():
    logging.disable(logging.DEBUG)


@pytest.mark.parametrize("switch_on", [switch_on_by_level, switch_on_by_root])
@pytest.mark.parametrize("switch_off", [switch_off_by_level, switch_off_by_disabling_all])
def test_the_next_warm_wrap_and_export_follow_the_level(switch_on, switch_off, listen):
    told, array, root = listen(), np.zeros(10), logging.getLogger().level
    try:
        with dlwrap.pin(array):
            switch_off()
            buffer = dlwrap.wrap(array)
            before = len(told.records)
            dlwrap.wrap(array)
            buffer.__dlpack__(stream=1, max_version=(1, 0))
            assert len(told.records) == before
            logging.disable(logging.NOTSET)
            switch_on()
            dlwrap.wrap(array)
            buffer.__dlpack__(stream=1, max_version=(1, 0))
            assert told.events[before:].count("wrap") == 1
            assert told.events[before:].count("export") == 1
            del buffer
    finally:
        logging.disable(logging.NOTSET)
        logging.getLogger().setLevel(root)


def test_a_logger_that_is_enabled_by_hand_is_heard_after_the_next_release(listen):
    told, array = listen(), np.zeros(10)
    with dlwrap.pin(array):
        LOGGER.disabled = True
        use(array)
        told.records.clear()
        LOGGER.disabled = False
        use(array)
        use(array)
        assert "wrap" in told.events


def test_while_nobody_listens_wraps_and_exports_stay_in_c(cuda, monkeypatch):
    array = np.zeros(10)
    with dlwrap.pin(array):
        dlwrap.wrap(array).__dlpack__(stream=1, max_version=(1, 0))
        assert not _watch.is_on()
        monkeypatch.setattr(dlwrap.HostWrappedBuffer, "_serve_dlpack", lambda *args, **options: 1 / 0)
        buffer = _native.wrap(array, None, "auto", "owner", "streams", None)
        assert buffer is not None
        buffer.__dlpack__(stream=1, max_version=(1, 0))


def test_importing_dlwrap_imports_no_logging():
    assert outcome(run("", prologue="import sys, dlwrap; sys.exit('logging' in sys.modules)")) == (0, "")


# ---- nothing breaks ----


def test_a_handler_that_raises_is_shown_and_breaks_nothing(listen, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda caught: shown.append(caught.exc_type))
    told, array = listen(lambda: 1 / 0), np.zeros(10)
    use(array)
    eventually(lambda: "release" in told.events)
    assert set(shown) == {ZeroDivisionError}
    assert dlwrap.stats().live == 0


def test_a_handler_may_wrap_and_wait(listen):
    other = np.zeros(10)

    def wrap_and_wait():
        dlwrap.wrap(other).close(SECONDS)
        dlwrap.reclaim(SECONDS)

    told = listen(wrap_and_wait)
    use(np.zeros(1000))
    eventually(lambda: "release" in told.events)
    assert {each.dlwrap["nbytes"] for each in told.told("wrap")} == {8000}


def test_a_handler_that_holds_its_lock_while_it_waits_for_a_release_does_not_hang(listen):
    array = np.zeros(10)
    kept = [dlwrap.wrap(array), dlwrap.wrap(array)]

    def drop_and_wait():
        if kept:
            kept.pop()
            dlwrap.reclaim(SECONDS)  # the manager's thread logs this release meanwhile

    told = listen(drop_and_wait)
    dlwrap.wrap(array)
    eventually(lambda: told.told("release"))


def test_a_finaliser_may_wrap_while_another_record_is_told(listen):
    class Node:
        def __del__(self):
            use(np.zeros(3))

    told = listen(gc.collect)
    node = Node()
    node.me = node
    del node
    use(np.zeros(1000))
    gc.collect()
    eventually(lambda: "release" in told.events)


def test_a_leak_is_told_as_a_warning(listen, leaks, cuda):
    told = listen()
    cuda.fail("cuMemHostUnregister", 999)
    buffer = dlwrap.wrap(np.zeros(10))
    with pytest.warns(dlwrap.DLWrapWarning, match="keeps memory"), pytest.raises(dlwrap.DLWrapError):
        buffer.close(SECONDS)
    eventually(lambda: told.told("leak"))
    (record,) = told.told("leak")
    assert (record.levelno, record.dlwrap["nbytes"]) == (logging.WARNING, 80)
    cuda.reset(force=True)


LOGGED_TO_THE_END = """
import logging
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(message)s")
keep = [dlwrap.wrap(array()) for _ in range(3)]
capsules = [each.__dlpack__(stream=1, max_version=(1, 0)) for each in keep]
del keep[0], capsules[0]
"""


def test_the_end_of_a_program_that_logs_is_quiet():
    done = run(LOGGED_TO_THE_END)
    assert outcome(done) == (0, "")
    assert done.stdout.count("wrap: 4096 bytes") == 3


FORKED = """
import logging, warnings
warnings.simplefilter("ignore", DeprecationWarning)
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(message)s")
buffer = dlwrap.wrap(array())
child = os.fork()
if not child:
    del buffer
    try:
        dlwrap.wrap(array())
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_of_a_program_that_logs_ends():
    done = run(FORKED)
    assert outcome(done) == (0, "")
    assert "forked child" in done.stdout


# ---- NVTX ----


class Nvtx(SimpleNamespace):
    """The functions of the package nvtx that are used."""

    def __init__(self):
        super().__init__(open=[], ended=[])

    def start_range(self, *, message, domain, payload):
        assert domain == "dlwrap"
        self.open.append((message, payload))
        return (message, payload)

    def end_range(self, handle):
        self.open.remove(handle)
        self.ended.append(handle)


@pytest.fixture
def nvtx(monkeypatch):
    fake = Nvtx()
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    yield fake
    dlwrap.configure(nvtx=False)


def test_nvtx_shows_wrap_page_lock_wait_and_unregister(cuda, nvtx):
    dlwrap.configure(linger_seconds=0, nvtx=True)
    use(np.zeros(1000, np.uint8))
    assert nvtx.open == []
    assert set(nvtx.ended) == {("wrap", 1000), ("page-lock", 1000), ("wait", 0), ("unregister", 1000)}


def test_nvtx_ends_its_ranges_where_a_wrap_fails(cuda, nvtx):
    dlwrap.configure(nvtx=True)
    cuda.fail("cuMemHostRegister", 2)
    with pytest.raises(dlwrap.CudaError):
        dlwrap.wrap(np.zeros(10))
    assert nvtx.open == []
    assert ("wrap", 80) in nvtx.ended


def test_nvtx_that_is_not_installed_is_asked_for_with_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(ImportError, match=r"pip install 'dlwrap\[nvtx\]'"):
        dlwrap.configure(nvtx=True)


def test_the_real_nvtx_takes_the_ranges(cuda):
    pytest.importorskip("nvtx", reason="the package nvtx is not installed")
    dlwrap.configure(linger_seconds=0, nvtx=True)
    use(np.zeros(10))
    dlwrap.configure(nvtx=False)


def test_dlwrap_nvtx_without_nvtx_warns():
    first = "import os, sys; sys.modules['nvtx'] = None; os.environ['DLWRAP_NVTX'] = '1'\n"
    done = run("", first=first)
    assert done.returncode == 0
    assert "RuntimeWarning: DLWRAP_NVTX" in done.stderr
