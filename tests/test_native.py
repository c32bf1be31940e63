"""The native part: capsules, the deleter, the released list; no driver is needed."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import dlwrap
from capsules import look, name_of, take
from dlwrap import _native as shared_native
from exporters import lend, released_keys

LEGACY = -1
FOLDER = Path(dlwrap.__file__).parent


def load_private_copy():
    """Load the native part a second time, with a released list that no lifetime manager takes from."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(shared_native.__file__, folder)
        loader = importlib.machinery.ExtensionFileLoader("_native", copy)
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_native", loader))
        loader.exec_module(module)
        return module


_native = load_private_copy()


@pytest.fixture
def released():
    """The keys released so far."""
    assert _native.wait(0) == []
    yield lambda: released_keys(_native)
    _native.wait(0)
    assert _native.live_exports() == 0


def exporter(key=1, *, shape=(2, 3), strides=(3, 1), read_only=False, device_pointer=0x1000, host_pointer=0x2000):
    return lend(_native, key, device_pointer, host_pointer, 5, (2, 32, 1), shape, strides, read_only)


@pytest.mark.parametrize(("minor", "name"), [(LEGACY, b"dltensor"), (0, b"dltensor_versioned")])
def test_a_capsule_has_the_name_of_its_form(released, minor, name):
    assert name_of(_native.make_capsule(exporter(), minor, False, False)) == name


@pytest.mark.parametrize("minor", [LEGACY, 0])
def test_every_field_of_the_tensor_is_filled(released, minor):
    made = exporter()
    capsule = _native.make_capsule(made, minor, False, False)
    tensor = look(capsule)
    assert (tensor.tensor.data, tensor.device, tensor.dtype) == (0x1000, (2, 5), (2, 32, 1))
    assert (tensor.shape, tensor.strides, tensor.tensor.byte_offset) == ((2, 3), (3, 1), 0)
    assert tensor.managed.manager_ctx
    assert tensor.managed.deleter


def test_a_host_export_has_the_host_address_and_device(released):
    capsule = _native.make_capsule(exporter(), 0, True, False)
    assert look(capsule).tensor.data == 0x2000
    assert look(capsule).device == (1, 0)


def test_a_scalar_has_no_extents(released):
    capsule = _native.make_capsule(exporter(shape=(), strides=()), 0, False, False)
    assert look(capsule).tensor.ndim == 0


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (1, 1), (3, 3), (9, 3), (2**31 - 1, 3)])
def test_the_version_is_the_lesser_of_ours_and_the_one_asked(released, asked, given):
    capsule = _native.make_capsule(exporter(), asked, False, False)
    assert (look(capsule).managed.major, look(capsule).managed.minor) == (1, given)


@pytest.mark.parametrize(("read_only", "copied", "flags"), [(False, False, 0), (True, False, 1), (False, True, 2)])
def test_flags_say_read_only_and_copied(released, read_only, copied, flags):
    capsule = _native.make_capsule(exporter(read_only=read_only), 0, False, copied)
    assert look(capsule).managed.flags == flags


def test_the_lease_is_released_when_wrapper_and_exports_are_gone(released):
    made = exporter(key=7)
    first, second = (
        take(_native.make_capsule(made, 0, False, False)),
        take(_native.make_capsule(made, LEGACY, False, False)),
    )
    assert made.exports == 2
    del made
    first.delete()
    assert released() == []
    second.delete()
    assert released() == [7]


def test_the_wrapper_alone_keeps_the_lease(released):
    made = exporter(key=8)
    take(_native.make_capsule(made, 0, False, False)).delete()
    assert released() == []
    del made
    assert released() == [8]


def test_an_unconsumed_capsule_releases_when_it_is_dropped(released):
    made = exporter(key=9)
    capsule = _native.make_capsule(made, 0, False, False)
    del made
    assert released() == []
    del capsule
    assert released() == [9]


def test_a_consumed_capsule_releases_nothing_when_it_is_dropped(released):
    made = exporter(key=10)
    capsule = _native.make_capsule(made, 0, False, False)
    imported = take(capsule)
    del capsule, made
    assert released() == []
    imported.delete()
    assert released() == [10]


def test_a_consumer_may_clear_the_destructor(released):
    made = exporter(key=11)
    take(_native.make_capsule(made, LEGACY, False, False), clear_destructor=True).delete()
    del made
    assert released() == [11]


@pytest.mark.parametrize("minor", [LEGACY, 0])
def test_a_deleter_called_on_a_capsule_that_is_then_dropped_releases_once(released, minor):
    made = exporter(key=12)
    capsule = _native.make_capsule(made, minor, False, False)
    look(capsule).delete()
    assert made.exports == 0
    second = _native.make_capsule(made, minor, False, False)  # reuses the memory of the first
    del capsule
    assert made.exports == 1
    del second
    assert made.exports == 0


def test_a_second_call_of_the_deleter_does_nothing(released):
    made = exporter(key=13)
    imported = take(_native.make_capsule(made, 0, False, False))
    imported.delete()
    imported.delete()
    assert made.exports == 0
    assert released() == []


def test_close_counts_the_exports_that_forbid_it(released):
    made = exporter(key=14)
    capsules = [_native.make_capsule(made, 0, False, False) for _ in range(3)]
    assert _native.give_up(made) == 3
    assert not made.closed
    capsules.clear()
    assert _native.give_up(made) == 0
    assert made.closed
    assert released() == [14]


def test_closing_twice_releases_once(released):
    made = exporter(key=15)
    _native.give_up(made)
    assert _native.give_up(made) == 0
    del made
    assert released() == [15]


def test_a_closed_exporter_exports_nothing(released):
    made = exporter(key=16)
    _native.give_up(made)
    with pytest.raises(BufferError, match="closed HostWrappedBuffer: wrap the array again"):
        _native.make_capsule(made, 0, False, False)
    assert made.exports == 0


def test_a_pending_exception_survives_the_drop_of_a_capsule(released):
    # The capsule is on the interpreter's stack when the second argument raises, and dies before anything catches.
    made = exporter(key=17)

    def fail():
        raise KeyError("pending")

    with pytest.raises(KeyError, match="pending"):
        print(_native.make_capsule(made, 0, False, False), fail())
    assert made.exports == 0


def test_the_deleter_runs_on_any_thread_without_the_gil(released):
    made = exporter(key=18)
    imported = [take(_native.make_capsule(made, 0, False, False)) for _ in range(64)]
    threads = [threading.Thread(target=one.delete) for one in imported]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.exports == 0


def test_leases_come_in_the_order_of_their_release(released):
    for made in [exporter(key=key) for key in (3, 1, 2)]:
        _native.give_up(made)
    assert released() == [3, 1, 2]


def test_waiting_ends_when_a_lease_is_released():
    keys: list[int] = []

    def wait():
        while not keys:  # a signal may be left over from leases that were taken before
            keys.extend(released_keys(_native, -1))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    made = exporter(key=19)
    del made
    waiting.join(30)
    assert keys == [19]


def test_waiting_ends_when_it_is_woken():
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: (_native.wait(-1), ended.set()), daemon=True)
    waiting.start()
    _native.wake()
    assert ended.wait(30)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.9999])
def test_waiting_ends_with_the_time(released, seconds):
    assert _native.wait(seconds) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"shape": (1, 2), "strides": (1,)}, ValueError),
        ({"shape": (2**63,), "strides": (1,)}, OverflowError),
        ({"shape": ("x",), "strides": (1,)}, TypeError),
        ({"shape": [1], "strides": (1,)}, TypeError),
    ],
)
def test_a_bad_description_makes_no_exporter(released, arguments, error):
    with pytest.raises(error):
        exporter(**arguments)
    assert released() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: _native.wait("x"),
        lambda: _native.record(1),
        lambda: _native.make_capsule(exporter(), "x", False, False),
    ],
)
def test_bad_arguments_are_type_errors(released, call):
    with pytest.raises(TypeError):
        call()


def test_a_leaked_object_outlives_its_last_reference():
    array = np.zeros(1)
    alive = weakref.ref(array)
    _native.leak(array)
    del array
    assert alive() is not None


RECORDED, CAPTURES = 0, 1


@pytest.mark.parametrize(
    ("statuses", "codes", "expected", "records"),
    [
        ([0, 0], [0, 0, 0], (0, False), 1),
        ([1], [0], (0, True), 0),
        ([0, 1], [0, 0, 0], (0, True), 1),
        ([0], [906], (906, False), 0),
        ([0], [0, 400], (400, False), 1),
        ([0, 0], [0, 0, 709], (709, False), 1),
    ],
)
def test_recording_looks_before_and_after(statuses, codes, expected, records):
    codes, statuses, recorded = list(codes), list(statuses), []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    def is_capturing(stream, status):
        assert stream == 11
        status[0] = statuses.pop(0)
        return codes.pop(0)

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def event_record(event, stream):
        recorded.append((event, stream))
        return codes.pop(0)

    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (is_capturing, event_record)]
    assert _native.record(*addresses, 11, 22) == expected
    assert recorded == [(22, 11)] * records


@pytest.mark.parametrize("name", ["_lease.c", "_lease.h", "_dlpack.h"])
def test_leases_and_their_release_name_nothing_of_python(name):
    text = re.sub(r"/\*.*?\*/", "", FOLDER.joinpath(name).read_text(), flags=re.DOTALL)
    assert "DLManagedTensor" in text or "Lease" in text
    assert re.findall(r"\b_?Py\w*", text) == []


@pytest.mark.parametrize("minor", [LEGACY, 0])
def test_a_deleter_called_after_finalisation_only_leaks(minor):
    # A C++ static that holds the tensor: its deleter runs in exit(), after Py_Finalize.
    code = f"""
import ctypes, sys
sys.path[:0] = {sys.path!r}
from capsules import take
from dlwrap import _native
from exporters import lend
made = lend(_native, 1, shape=(1,), strides=(1,))
held = take(_native.make_capsule(made, {minor}, False, False))
libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
libc.__cxa_atexit(held.managed.deleter, held.address, None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
