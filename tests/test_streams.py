"""Which stream was recorded, and whether its handle can still be touched later."""

from __future__ import annotations

import importlib.util
import json
import sys
import weakref
from ctypes import c_void_p
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver, runtime

import dlwrap
import scripts
from capsules import take
from cuda_calls import checked, create_context
from dlwrap import _driver, _native
from dlwrap._streams import (
    TrackedStream,
    check_told_stream,
    find_capturing_stream,
    find_recorded_stream,
    find_told_stream,
)
from patience import SECONDS, settle
from stand_ins import make_class


@pytest.fixture(params=[{}, {"pageable": True}], ids=["pinned", "pageable"])
def device(cuda, request):
    cuda.configure(**request.param)
    return cuda


@pytest.fixture
def stream(cuda):
    """The handle of a stream of the primary context."""
    handle = cuda.create_stream()
    yield handle
    dlwrap.reclaim(SECONDS)
    cuda.destroy_stream(handle)


@pytest.fixture
def buffer(cuda, stream):  # the stream is destroyed after the buffer is closed
    made = dlwrap.wrap(np.zeros(3))
    yield made
    made.close(SECONDS)


@pytest.fixture
def other_context(cuda):
    """A context of the same device that is not its primary one, current in this thread."""
    _driver.device_count()  # initialises the driver
    context = create_context()
    yield context
    checked(driver.cuCtxDestroy(context))


@pytest.fixture
def other_stream(other_context):
    return int(checked(driver.cuStreamCreate(0)))


# ---- stand-ins for the frameworks' stream objects: told apart by module and qualified name only ----


class Protocol:
    def __init__(self, handle, *, version=0, **attributes):
        self.handle, self.version = handle, version
        vars(self).update(attributes)

    def __cuda_stream__(self):
        return (self.version, self.handle)


Torch = make_class("torch.cuda.streams.Stream", Protocol)
Cupy = make_class("cupy.cuda.stream.Stream", Protocol)
CupyExternal = make_class("cupy.cuda.stream.ExternalStream", Protocol)
Numba = make_class("numba.cuda.cudadrv.driver.Stream", Protocol)
Warp = make_class("warp._src.context.Stream", Protocol)
Core = make_class("cuda.core._stream.Stream", Protocol)
Unknown = make_class("mine.Stream", Protocol)
TorchSubclass = type("Stream", (Torch,), {"__module__": "mine"})


# As of versions that had no stream protocol yet.
OldTorch = make_class("torch.cuda.streams.Stream")
OldTorchExternal = make_class("torch.cuda.streams.ExternalStream")
OldCupy = make_class("cupy.cuda.stream.Stream")
OldCupyExternal = make_class("cupy.cuda.stream.ExternalStream")
OldNumba = make_class("numba.cuda.cudadrv.driver.Stream")

LIVE = 0  # stands for the handle of a live stream

# made, and whether it keeps its handle
OBJECTS = [
    pytest.param(lambda handle: Torch(handle, stream_id=3), True, id="torch, of its pool"),
    pytest.param(lambda handle: Torch(handle, stream_id=0), True, id="torch, the default stream's id"),
    pytest.param(lambda handle: Torch(handle, stream_id=handle & ~1), False, id="torch, external"),
    pytest.param(Cupy, True, id="cupy"),
    pytest.param(CupyExternal, False, id="cupy, external"),
    pytest.param(lambda handle: Numba(handle, external=False), True, id="numba"),
    pytest.param(lambda handle: Numba(handle, external=True), False, id="numba, external"),
    pytest.param(lambda handle: Warp(handle, owner=True), True, id="warp"),
    pytest.param(lambda handle: Warp(handle, owner=False), False, id="warp, external"),
    pytest.param(Core, False, id="cuda.core, which can be closed"),
    pytest.param(Unknown, False, id="unknown"),
    pytest.param(lambda handle: TorchSubclass(handle, stream_id=3), False, id="a subclass, which may do anything"),
]


# ---- what __dlpack__ is told ----


@pytest.mark.parametrize(
    ("told", "handle"), [(None, None), (-1, None), (1, 1), (2, 2), (3, 3), (2**63, 2**63), (np.int64(1), 1)]
)
def test_a_told_stream_is_a_handle_or_none(told, handle):
    assert check_told_stream(told) == handle


@pytest.mark.parametrize("handle", [None, 2, LIVE], ids=["none", "per-thread", "raw handle"])
def test_a_told_stream_of_unknown_owner_is_not_tracked(cuda, stream, handle):
    assert find_told_stream(stream if handle == LIVE else handle, 0) is None


def test_the_legacy_stream_is_tracked(cuda):
    assert find_told_stream(1, 0) == TrackedStream(1, 0, None)


@pytest.mark.parametrize(
    ("told", "device_wide", "tracked"),
    [
        pytest.param(None, True, False, id="None"),
        pytest.param(-1, True, False, id="-1"),
        pytest.param(1, False, True, id="1"),
        pytest.param(2, True, False, id="2"),
        pytest.param(LIVE, True, False, id="raw handle"),
    ],
)
def test_an_export_notes_its_stream(device, stream, told, device_wide, tracked):
    buffer = dlwrap.wrap(np.zeros(3))
    take(buffer.__dlpack__(stream=stream if told == LIVE else told)).delete()
    buffer._lease.note_uses(_native.uses_of(buffer))
    assert (buffer._lease.device_wide, list(buffer._lease.streams)) == (device_wide, [1] * tracked)


def test_a_tracked_stream_is_waited_for_by_an_event(cuda):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.zeros(3))
    take(buffer.__dlpack__(stream=1)).delete()
    cuda.clear_calls()
    buffer.close()
    assert (cuda.count("cuEventRecord"), cuda.count("cuMemHostUnregister")) == (1, 0)


@pytest.mark.parametrize("told", [None, -1, 2, LIVE], ids=["None", "-1", "2", "raw handle"])
def test_a_stream_that_is_not_tracked_is_waited_for_with_the_device(cuda, stream, told):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.zeros(3))
    take(buffer.__dlpack__(stream=stream if told == LIVE else told)).delete()
    cuda.clear_calls()
    buffer.close()
    assert (cuda.count("cuEventRecord"), cuda.count("cuMemHostUnregister")) == (0, 1)


@pytest.mark.parametrize("told", [1, None], ids=["tracked", "not tracked"])
def test_wait_device_always_waits_for_the_device(cuda, told):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.zeros(3), wait="device")
    take(buffer.__dlpack__(stream=told)).delete()
    cuda.clear_calls()
    buffer.close()
    assert cuda.count("cuMemHostUnregister") == 1


def test_a_buffer_that_was_never_exported_waits_for_nothing(cuda):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.zeros(3))
    cuda.clear_calls()
    buffer.close()
    assert cuda.calls() == []


def test_a_stream_is_noted_once(device):
    buffer = dlwrap.wrap(np.zeros(3))
    for _ in range(3):
        take(buffer.__dlpack__(stream=1)).delete()
    device.clear_calls()
    buffer.close()
    assert device.count("cuEventRecord") == 1


# ---- the frameworks' current streams ----


def torch_with(stream, initialized=True):
    return SimpleNamespace(
        cuda=SimpleNamespace(current_stream=lambda device: stream, is_initialized=lambda: initialized)
    )


def cupy_with(stream):
    return SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda device: stream))


@pytest.fixture
def modules(monkeypatch):
    """Puts a framework in the place of what may be imported already."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    return lambda **modules: [monkeypatch.setitem(sys.modules, name, module) for name, module in modules.items()]


FRAMEWORKS = [
    pytest.param(("torch", torch_with, lambda handle: Torch(handle, stream_id=3)), id="torch"),
    pytest.param(("cupy", cupy_with, Cupy), id="cupy"),
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_current_stream_of_a_framework_is_tracked(cuda, modules, stream, framework):
    name, module_with, make = framework
    current = make(stream)
    modules(**{name: module_with(current)})
    found = find_told_stream(stream, 0)
    assert (found.handle, found.device) == (stream, 0)
    assert found.owner is current


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_current_stream_of_another_handle_tells_nothing(cuda, modules, stream, framework):
    name, module_with, make = framework
    modules(**{name: module_with(make(stream + 1))})
    assert find_told_stream(stream, 0) is None


def test_the_second_framework_is_asked_after_the_first(cuda, modules, stream):
    current = Cupy(stream)
    modules(torch=torch_with(Torch(stream + 1, stream_id=3)), cupy=cupy_with(current))
    assert find_told_stream(stream, 0).owner is current


def test_the_current_stream_is_asked_of_the_buffers_device(cuda, modules):
    cuda.configure(devices=2)
    asked = []
    module = torch_with(None)
    module.cuda.current_stream = asked.append
    modules(torch=module)
    handle = cuda.create_stream(device=1)
    find_told_stream(handle, 1)
    assert asked == [1]
    cuda.destroy_stream(handle)


def test_a_current_stream_that_does_not_keep_its_handle_is_not_tracked(cuda, modules, stream):
    modules(torch=torch_with(Torch(stream, stream_id=stream & ~1)))
    assert find_told_stream(stream, 0) is None


def test_a_torch_that_never_used_cuda_is_not_made_to(cuda, modules, stream):
    def forbidden(device):
        raise AssertionError

    module = torch_with(None, initialized=False)
    module.cuda.current_stream = forbidden
    modules(torch=module)
    assert find_told_stream(stream, 0) is None


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize(
    "module", [SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace()), None], ids=["empty", "no stream", "blocked"]
)
def test_a_half_imported_framework_knows_no_stream(cuda, modules, stream, name, module):
    modules(**{name: module})
    assert find_told_stream(stream, 0) is None


@pytest.mark.parametrize("error", [RuntimeError, ValueError, AttributeError])
def test_a_framework_that_fails_knows_no_stream(cuda, modules, stream, error):
    def fail(device):
        raise error

    modules(
        torch=SimpleNamespace(cuda=SimpleNamespace(current_stream=fail, is_initialized=lambda: True)),
        cupy=SimpleNamespace(cuda=SimpleNamespace(get_current_stream=fail)),
    )
    assert find_told_stream(stream, 0) is None


@pytest.mark.parametrize("error", [AttributeError, TypeError, RuntimeError])
def test_a_current_stream_whose_protocol_fails_tells_nothing(cuda, modules, stream, error):
    class Failing(Torch):
        def __cuda_stream__(self):
            raise error

    Failing.__module__, Failing.__qualname__ = Torch.__module__, Torch.__qualname__
    modules(torch=torch_with(Failing(stream, stream_id=3)))
    assert find_told_stream(stream, 0) is None


def test_a_current_stream_of_an_old_torch_has_no_protocol(cuda, modules, stream):
    old = type("Stream", (), {"__module__": "torch.cuda.streams", "stream_id": 3})
    modules(torch=torch_with(old()))
    assert find_told_stream(stream, 0) is None


def test_the_frameworks_are_not_imported(cuda, modules, stream):
    find_told_stream(stream, 0)
    assert "torch" not in sys.modules
    assert "cupy" not in sys.modules


@pytest.mark.parametrize("handle", [None, 1, 2])
def test_no_framework_is_asked_for_a_stream_without_a_handle(cuda, modules, handle):
    asked = []
    module = cupy_with(None)
    module.cuda.get_current_stream = asked.append
    modules(cupy=module)
    if handle != 2:
        find_told_stream(handle, 0)
        assert asked == []
    else:
        assert find_told_stream(handle, 0) is None


def test_the_per_thread_stream_of_a_framework_is_not_tracked(cuda, modules):
    modules(cupy=cupy_with(Cupy(2)))
    assert find_told_stream(2, 0) is None


# ---- contexts ----


@pytest.mark.parametrize("told", [None, 1, 2])
def test_what_is_told_beside_a_foreign_current_context_is_refused(cuda, other_context, told):
    # Its work could not be waited for: a wait in the primary context does not cover it (measured).
    with pytest.raises(BufferError, match="cannot wait for the current context: it belongs to another context than"):
        find_told_stream(told, 0)


def test_recording_the_legacy_stream_of_a_foreign_context_is_refused(cuda, other_context):
    buffer = dlwrap.wrap(np.zeros(3))
    with pytest.raises(BufferError, match="cannot wait for the current context"):
        buffer.record_stream(1)
    assert not buffer._lease.was_used


@pytest.mark.parametrize("attribute", ["ptr", "__cuda_array_interface__"])
def test_a_pointer_for_a_foreign_context_is_refused(cuda, other_context, attribute):
    buffer = dlwrap.wrap(np.zeros(3))
    with pytest.raises(BufferError, match="cannot wait for the current context"):
        getattr(buffer, attribute)


def test_an_export_to_a_stream_of_a_foreign_context_is_refused_and_leaves_nothing(cuda, other_stream):
    buffer = dlwrap.wrap(np.zeros(3))
    with pytest.raises(BufferError, match=f"cannot wait for stream {other_stream:#x}: it belongs to another context"):
        buffer.__dlpack__(stream=other_stream)
    assert (buffer.exports, buffer._lease.was_used) == (0, False)


def test_what_runs_in_a_green_context_is_waited_for_with_the_device(cuda, other_stream, monkeypatch):
    # The simulated driver has no green contexts; on a GPU they are covered by a wait for the primary one.
    monkeypatch.setattr(_driver, "_is_green", lambda stream: stream in {1, other_stream})
    assert [find_told_stream(told, 0) for told in (1, 2, None, other_stream)] == [None] * 4


def test_beside_a_context_of_another_device_the_legacy_stream_is_that_of_the_buffers_device(cuda):
    cuda.configure(devices=2)
    context = checked(driver.cuDevicePrimaryCtxRetain(1))
    checked(driver.cuCtxPushCurrent(context))
    assert find_told_stream(1, 0) == TrackedStream(1, 0, None)
    checked(driver.cuCtxPopCurrent())
    checked(driver.cuDevicePrimaryCtxRelease(1))


def test_the_legacy_stream_of_the_current_primary_context_is_tracked(cuda):
    context = checked(driver.cuDevicePrimaryCtxRetain(0))
    checked(driver.cuCtxPushCurrent(context))
    assert find_told_stream(1, 0) == TrackedStream(1, 0, None)
    checked(driver.cuCtxPopCurrent())
    checked(driver.cuDevicePrimaryCtxRelease(0))


@pytest.mark.parametrize("make", [Cupy, int], ids=["object", "handle"])
def test_recording_a_stream_of_a_foreign_context_is_refused(cuda, other_stream, make):
    with pytest.raises(BufferError, match="it belongs to another context than the primary one of device 0"):
        find_recorded_stream(make(other_stream), 0)


def test_recording_a_stream_of_another_device_is_refused(cuda):
    cuda.configure(devices=2)
    handle = cuda.create_stream(device=1)
    with pytest.raises(BufferError, match="it belongs to another context than the primary one of device 0"):
        find_recorded_stream(Cupy(handle), 0)
    cuda.destroy_stream(handle)


def test_a_stream_whose_context_cannot_be_had_is_refused(cuda, stream):
    cuda.fail("cuStreamGetCtx", 999)
    with pytest.raises(dlwrap.CudaError, match="cuStreamGetCtx"):
        find_recorded_stream(Cupy(stream), 0)


def test_a_driver_without_green_contexts_has_foreign_ones(cuda, other_stream):
    cuda.fail("cuStreamGetGreenCtx", 801)
    with pytest.raises(BufferError, match="it belongs to another context"):
        find_told_stream(other_stream, 0)


def test_a_failed_question_for_the_current_context_fails_the_export(cuda, buffer):
    cuda.fail("cuCtxGetCurrent", 999, times=2)  # the native part asks, then Python
    with pytest.raises(dlwrap.CudaError, match="cuCtxGetCurrent"):
        buffer.__dlpack__(stream=1)
    assert (buffer.exports, _native.uses_of(buffer), buffer._lease.was_used) == (0, 0, False)


# ---- record_stream ----


@pytest.mark.parametrize(("make", "kept"), OBJECTS)
def test_an_object_is_tracked_where_it_keeps_its_handle(cuda, stream, make, kept):
    recorded = make(stream)
    _, found = find_recorded_stream(recorded, 0)
    assert found == (TrackedStream(stream, 0, recorded) if kept else None)


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        pytest.param(lambda handle: OldTorch(cuda_stream=handle, stream_id=3), True, id="torch"),
        pytest.param(lambda handle: OldTorchExternal(cuda_stream=handle, stream_id=8), False, id="torch, external"),
        pytest.param(lambda handle: OldCupy(ptr=handle), True, id="cupy"),
        pytest.param(lambda handle: OldCupyExternal(ptr=handle), False, id="cupy, external"),
        pytest.param(lambda handle: OldNumba(handle=driver.CUstream(handle), external=False), True, id="numba"),
        pytest.param(lambda handle: OldNumba(handle=c_void_p(handle), external=True), False, id="numba, external"),
    ],
)
def test_an_object_without_the_protocol_is_known_by_its_attribute(cuda, stream, make, kept):
    recorded = make(stream)
    assert find_recorded_stream(recorded, 0) == (stream, TrackedStream(stream, 0, recorded) if kept else None)
    assert find_capturing_stream(recorded) == stream


def test_a_null_handle_of_ctypes_is_no_stream_to_track(cuda):
    assert find_recorded_stream(OldNumba(handle=c_void_p(0), external=False), 0) == (0, None)


@pytest.mark.parametrize("make", [driver.CUstream, runtime.cudaStream_t])
def test_a_handle_of_the_bindings_is_taken_as_a_handle(cuda, stream, make):
    assert find_recorded_stream(make(stream), 0) == (stream, None)
    assert find_capturing_stream(make(stream)) == stream


@pytest.mark.parametrize(
    ("given", "legacy"),
    [
        pytest.param(Torch(0, stream_id=0), True, id="torch 0"),
        pytest.param(Cupy(0), True, id="cupy 0"),
        pytest.param(Cupy(1), True, id="cupy 1"),
        pytest.param(Cupy(2), False, id="cupy 2"),
        pytest.param(CupyExternal(1), True, id="external 1"),
        pytest.param(Numba(0, external=False), False, id="numba 0, which may be the per-thread stream"),
        pytest.param(Numba(1, external=False), True, id="numba 1"),
        pytest.param(Warp(0, owner=False), False, id="warp 0"),
        pytest.param(Core(1), True, id="cuda.core 1"),
        pytest.param(Core(2), False, id="cuda.core 2"),
        pytest.param(Unknown(0), False, id="unknown 0"),
        pytest.param(Unknown(1), True, id="unknown 1"),
        pytest.param(1, True, id="handle 1"),
        pytest.param(2, False, id="handle 2"),
    ],
)
def test_an_object_of_a_default_stream_is_tracked_if_that_is_the_legacy_one(cuda, given, legacy):
    assert find_recorded_stream(given, 0)[1] == (TrackedStream(1, 0, None) if legacy else None)


def test_a_raw_handle_is_recorded_for_the_device(cuda, buffer, stream):
    buffer.record_stream(stream)
    assert (buffer._lease.device_wide, buffer._lease.streams) == (True, {})


def test_an_object_is_recorded_with_its_handle(cuda, buffer, stream):
    buffer.record_stream(Cupy(stream))
    assert (buffer._lease.device_wide, list(buffer._lease.streams)) == (False, [stream])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        pytest.param(0, ValueError, "stream must not be 0: it is ambiguous", id="0"),
        pytest.param(-2, ValueError, "stream must be None, -1, 1, 2 or a CUstream handle, got -2", id="-2"),
        pytest.param(-1, ValueError, "record_stream needs a stream, got -1: pass a handle or", id="-1"),
        pytest.param(None, ValueError, "record_stream needs a stream, got None: pass a handle or", id="None"),
        pytest.param(True, TypeError, "stream must be an integer handle or None, got a bool", id="bool"),
        pytest.param("x", TypeError, r"got str: pass int\(stream.handle\)", id="str"),
        pytest.param(1.5, TypeError, r"got float: pass int\(stream.handle\)", id="float"),
        pytest.param(object(), TypeError, r"got object: pass int\(stream.handle\)", id="object"),
        pytest.param(
            Unknown(7, version=1), TypeError, r"__cuda_stream__ of Stream must return \(0, handle\)", id="version"
        ),
        pytest.param(
            Unknown("x"), TypeError, r"__cuda_stream__ of Stream must return \(0, handle\)", id="garbage handle"
        ),
        pytest.param(
            SimpleNamespace(__cuda_stream__=lambda: 7),
            TypeError,
            r"__cuda_stream__ of SimpleNamespace must return \(0, handle\)",
            id="garbage",
        ),
        pytest.param(
            SimpleNamespace(__cuda_stream__=7),
            TypeError,
            r"__cuda_stream__ of SimpleNamespace must return \(0, handle\)",
            id="no method",
        ),
    ],
)
def test_what_is_no_stream_is_refused_and_nothing_recorded(cuda, buffer, given, error, message):
    with pytest.raises(error, match=message):
        buffer.record_stream(given)
    assert not buffer._lease.was_used


def test_a_closed_buffer_records_no_stream(cuda, buffer):
    buffer.close()
    with pytest.raises(ValueError, match="closed: wrap the array again"):
        buffer.record_stream(1)


def test_the_release_waits_for_every_recorded_stream(device, stream):
    array = device.host_array(3)
    buffer = dlwrap.wrap(array)
    second = device.create_stream()
    for handle in (stream, second):
        device.hold(handle)
        device.launch(handle, array, write=1)
        buffer.record_stream(Cupy(handle))
    for handle in (second, stream):
        with pytest.raises(TimeoutError):
            buffer.close(0.01)
        device.let_go(handle)
    buffer.close()
    device.destroy_stream(second)


def test_the_release_does_not_wait_for_other_streams(cuda):
    cuda.configure(pageable=True)  # unregistering would wait for the device
    array = cuda.host_array(3)
    stream = cuda.create_stream(blocking=False)  # the legacy stream waits for the blocking ones
    cuda.hold(stream)
    cuda.launch(stream, array, write=1)
    buffer = dlwrap.wrap(np.zeros(3))
    buffer.record_stream(1)
    buffer.close(SECONDS)
    assert cuda.pending(stream) == 1
    cuda.let_go(stream)
    cuda.destroy_stream(stream)


def test_the_release_waits_for_a_stream_that_was_destroyed(device):
    array = device.host_array(3)
    buffer = dlwrap.wrap(array)
    stream = device.create_stream()
    device.hold(stream)
    device.launch(stream, array, write=1)
    buffer.record_stream(stream)
    device.destroy_stream(stream)
    with pytest.raises(TimeoutError):
        buffer.close(0.01)
    device.let_go(stream)
    buffer.close()


def test_the_stream_object_lives_until_the_release(device, stream):
    buffer = dlwrap.wrap(np.zeros(3))
    recorded = Cupy(stream)
    alive = weakref.ref(recorded)
    buffer.record_stream(recorded)
    del recorded
    assert alive() is not None
    buffer.close()
    settle()
    assert alive() is None


# ---- real stream objects, in a process of their own: their libraries keep a context per thread ----


def run(code):
    return scripts.run(code, prologue="", timeout=100)


HEAD = """
import numpy as np
import dlwrap, dlwrap.testing
cuda = dlwrap.testing.activate()
from dlwrap._streams import find_recorded_stream, find_told_stream
"""

needs_core = pytest.mark.skipif(importlib.util.find_spec("cuda.core") is None, reason="needs cuda-core")


NUMBA = {
    "numba.stream()": "itself",
    "numba.external_stream(cuda.create_stream())": "nothing",
    "numba.default_stream()": "nothing",
    "numba.legacy_default_stream()": "legacy",
    "numba.per_thread_default_stream()": "nothing",
}


@pytest.fixture(scope="module")
def numba_streams():
    """What is tracked for numba's own stream objects, by how they are made."""
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("needs numba-cuda")
    done = run(f"""{HEAD}
import json
from numba import cuda as numba

def tracked(stream):
    if not hasattr(stream, "__cuda_stream__"):
        return "no protocol"
    _, found = find_recorded_stream(stream, 0)
    if found is None:
        return "nothing"
    return "itself" if found.owner is stream and found.handle == stream.__cuda_stream__()[1] else "legacy"

dlwrap.wrap(np.zeros(3)).close()
print(json.dumps([tracked(stream) for stream in ({", ".join(NUMBA)})]))
""")
    assert done.returncode == 0, done.stderr
    return dict(zip(NUMBA, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("made", "expected"), NUMBA.items())
def test_a_stream_of_numba(numba_streams, made, expected):
    if numba_streams[made] == "no protocol":
        pytest.skip("this numba-cuda has no stream protocol")
    assert numba_streams[made] == expected


@needs_core
def test_a_stream_of_cuda_core_is_not_tracked_because_it_can_be_closed():
    done = run(f"""{HEAD}
from cuda.core import Device
device = Device(0)
device.set_current()
stream = device.create_stream()
buffer = dlwrap.wrap(np.zeros(3))
buffer.record_stream(stream)
print(buffer._lease.device_wide, buffer._lease.streams)
stream.close()
buffer.close(20)
""")
    assert done.stdout == "True {}\n", done.stderr
    assert done.returncode == 0, done.stderr
