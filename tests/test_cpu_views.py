"""CPU views of a buffer in NumPy, torch and JAX: the same memory, kept alive, after the GPU has finished."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlwrap
from patience import SECONDS
from stand_ins import memory_of
from stream_objects import OwnedStream

A_MOMENT = 0.1  # seconds in which what must not end would end


class OnHost:
    """Asks a buffer for its CPU view, on behalf of frameworks whose CPU-only builds cannot ask themselves."""

    def __init__(self, buffer: dlwrap.HostWrappedBuffer) -> None:
        self._buffer = buffer

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **request: Any) -> object:
        return self._buffer.__dlpack__(**{**request, "dl_device": (1, 0)})


def view_in_numpy(buffer: dlwrap.HostWrappedBuffer) -> np.ndarray:
    return np.from_dlpack(buffer, device="cpu")


def view_in_torch(buffer: dlwrap.HostWrappedBuffer) -> Any:
    import torch

    return torch.from_dlpack(OnHost(buffer))


def view_in_jax(buffer: dlwrap.HostWrappedBuffer) -> Any:
    import jax

    return jax.dlpack.from_dlpack(OnHost(buffer))


FRAMEWORKS = {"numpy": view_in_numpy, "torch": view_in_torch, "jax": view_in_jax}
MUTABLE = ["numpy", "torch"]
View = Callable[[dlwrap.HostWrappedBuffer], Any]


@pytest.fixture(params=FRAMEWORKS)
def view(request: pytest.FixtureRequest) -> View:
    pytest.importorskip(request.param)
    if request.param == "numpy" and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("numpy.from_dlpack takes a device from NumPy 2.1 on")
    return FRAMEWORKS[request.param]


in_numpy = pytest.mark.parametrize("view", ["numpy"], indirect=True)
in_torch = pytest.mark.parametrize("view", ["torch"], indirect=True)
in_jax = pytest.mark.parametrize("view", ["jax"], indirect=True)
where_mutable = pytest.mark.parametrize("view", MUTABLE, indirect=True)


def pointer_of(viewed: Any) -> int:
    match type(viewed).__module__.partition(".")[0]:
        case "numpy":
            return viewed.ctypes.data
        case "torch":
            return viewed.data_ptr()
    return viewed.unsafe_buffer_pointer()


def assert_dies(alive: Callable[[], object]) -> None:
    """Assert that the memory is dropped, on whichever thread the framework lets go of it."""
    deadline = time.monotonic() + SECONDS
    while alive() is not None and time.monotonic() < deadline:
        gc.collect()
        dlwrap.reclaim(SECONDS)
    assert alive() is None


# ---- the same memory ----


def test_a_view_has_the_address_and_the_values_of_the_array(cuda, view):
    cuda.configure(pointer_offset=2**20)
    array = cuda.host_array((3, 4))
    array[...] = np.arange(12).reshape(3, 4)
    viewed = view(dlwrap.wrap(array))
    assert pointer_of(viewed) == array.ctypes.data
    assert np.array_equal(np.asarray(viewed), array)


def test_what_is_written_to_the_array_is_in_the_view(cuda, view):
    array = cuda.host_array(64, np.float32, 1)
    viewed = view(dlwrap.wrap(array))
    array[...] = 2
    assert (np.asarray(viewed) == 2).all()


@where_mutable
def test_what_is_written_to_the_view_is_in_the_array(cuda, view):
    array = cuda.host_array(64, np.float32, 1)
    viewed = view(dlwrap.wrap(array))
    viewed[...] = 3
    assert (array == 3).all()


@where_mutable
def test_a_view_has_the_strides_of_the_array(cuda, view):
    array = np.arange(24, dtype=np.float64).reshape(4, 6)[::2, 1:5:2]
    viewed = view(dlwrap.wrap(array))
    assert np.asarray(viewed).strides == array.strides
    assert np.array_equal(np.asarray(viewed), array)


@in_torch
def test_torch_views_bfloat16(cuda, view):
    torch = pytest.importorskip("torch")
    array = np.array([1, 2.5, -3], pytest.importorskip("ml_dtypes").bfloat16)
    viewed = view(dlwrap.wrap(array))
    assert (viewed.dtype, viewed.data_ptr()) == (torch.bfloat16, array.ctypes.data)
    viewed *= 2
    assert array.astype(np.float32).tolist() == [2, 5, -6]


@in_jax
def test_jax_views_bfloat16(cuda, view):
    array = cuda.host_array(3, pytest.importorskip("ml_dtypes").bfloat16, 2.5)
    viewed = view(dlwrap.wrap(array))
    assert (viewed.dtype, pointer_of(viewed)) == (array.dtype, array.ctypes.data)
    assert viewed.astype(np.float32).tolist() == [2.5] * 3


@in_jax
def test_jax_computes_on_a_view(cuda, view):
    jax = pytest.importorskip("jax")
    array = cuda.host_array(64, np.float32, 2)
    alive, viewed = memory_of(array), view(dlwrap.wrap(array))
    del array
    doubled = jax.jit(lambda x: 2 * x)(viewed)
    del viewed  # JAX's own threads may still read it
    assert np.asarray(doubled).tolist() == [4] * 64
    assert_dies(alive)


@where_mutable
def test_a_view_of_a_scalar_and_of_nothing(cuda, view):
    for array in (np.array(5, np.int32), np.zeros((0, 3), np.int32)):
        viewed = view(dlwrap.wrap(array))
        assert np.array_equal(np.asarray(viewed), array)


def test_numpy_without_a_device_refuses_and_leaves_nothing_behind(cuda):
    buffer = dlwrap.wrap(np.zeros(3))
    with pytest.raises((RuntimeError, BufferError), match=r"[Dd]evice"):
        np.from_dlpack(buffer)
    assert buffer.exports == 0


# ---- read-only ----


@in_numpy
def test_numpy_cannot_write_to_a_view_of_a_read_only_array(cuda, view):
    array = np.arange(3.0)
    array.flags.writeable = False
    viewed = view(dlwrap.wrap(array))
    assert not viewed.flags.writeable
    assert np.array_equal(viewed, array)


@in_numpy
def test_numpy_can_write_to_a_view_of_a_writable_array(cuda, view):
    assert view(dlwrap.wrap(np.zeros(3))).flags.writeable


@in_numpy
def test_a_buffer_made_read_only_gives_read_only_views(cuda, view):
    assert not view(dlwrap.wrap(np.zeros(3), readonly=True)).flags.writeable


@in_jax
def test_jax_takes_a_read_only_array_if_it_asks_for_versioned_capsules(cuda, view):
    array = cuda.host_array(16)
    array.flags.writeable = False
    buffer = dlwrap.wrap(array)
    try:
        assert pointer_of(view(buffer)) == array.ctypes.data
    except BufferError as refusal:
        assert "wrap with readonly=False" in str(refusal)  # noqa: PT017 -- JAX 0.11 and before
    assert_no_exports(buffer)


@in_jax
def test_jax_takes_a_read_only_array_on_demand(cuda, view):
    array = cuda.host_array(16)
    array.flags.writeable = False
    assert pointer_of(view(dlwrap.wrap(array, readonly=False))) == array.ctypes.data


# ---- lifetime ----


def test_a_view_keeps_the_array_until_it_is_dropped(cuda, view):
    array = cuda.host_array(64, np.float32, 1)
    alive, buffer = memory_of(array), dlwrap.wrap(array)
    viewed = view(buffer)
    del array, buffer
    dlwrap.reclaim(SECONDS)
    assert alive() is not None
    assert (np.asarray(viewed) == 1).all()
    del viewed
    assert_dies(alive)
    assert cuda.registrations == []


def test_a_view_of_a_view_keeps_the_array(cuda, view):
    array = cuda.host_array(64, np.float32, 1)
    alive, inner = memory_of(array), np.asarray(view(dlwrap.wrap(array)))[8:16]
    del array
    dlwrap.reclaim(SECONDS)
    assert alive() is not None
    assert inner.tolist() == [1] * 8
    del inner
    assert_dies(alive)


def test_a_view_dropped_on_another_thread_releases(cuda, view):
    array = cuda.host_array(64)
    alive, held = memory_of(array), [view(dlwrap.wrap(array))]
    del array
    dropping = threading.Thread(target=held.clear)
    dropping.start()
    dropping.join()
    assert_dies(alive)


def test_a_buffer_with_a_view_refuses_to_close(cuda, view):
    buffer = dlwrap.wrap(cuda.host_array(64))
    viewed = view(buffer)
    with pytest.raises(BufferError, match="1 importer of this HostWrappedBuffer still alive"):
        buffer.close()
    del viewed
    deadline = time.monotonic() + SECONDS
    while buffer.exports and time.monotonic() < deadline:
        gc.collect()
    buffer.close(SECONDS)


# ---- the GPU's work ----


def in_thread(action: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Begin an action that blocks."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(action()), daemon=True)
    thread.start()
    return thread, results


def work_on_a_recorded_stream(cuda, buffer):
    stream = cuda.create_stream(blocking=False)
    buffer.record_stream(stream)
    return stream


def work_on_the_legacy_stream(cuda, buffer):
    buffer.record_stream(1)
    return 1


def work_on_a_stream_that_a_consumer_told(cuda, buffer):
    stream = cuda.create_stream(blocking=False)
    buffer.__dlpack__(stream=stream)
    return stream


def work_on_a_stream_that_nobody_told(cuda, buffer):
    buffer.__dlpack__(stream=-1)
    return cuda.create_stream(blocking=False)


WORKS = [
    work_on_a_recorded_stream,
    work_on_the_legacy_stream,
    work_on_a_stream_that_a_consumer_told,
    work_on_a_stream_that_nobody_told,
]


@pytest.mark.parametrize("work", WORKS)
def test_a_view_waits_for_the_work_recorded_so_far(cuda, view, work):
    array = cuda.host_array(64, np.uint8, 1)
    buffer = dlwrap.wrap(array)
    stream = work(cuda, buffer)
    cuda.hold(stream)
    cuda.launch(stream, array, write=9)
    waiting, viewed = in_thread(lambda: np.asarray(view(buffer)).copy())
    waiting.join(A_MOMENT)
    assert waiting.is_alive()
    cuda.let_go(stream)
    waiting.join(SECONDS)
    assert viewed[0].tolist() == [9] * 64
    assert_no_exports(buffer)


def assert_no_exports(buffer: dlwrap.HostWrappedBuffer) -> None:
    deadline = time.monotonic() + SECONDS
    while buffer.exports and time.monotonic() < deadline:
        gc.collect()
    assert buffer.exports == 0


def test_a_view_of_a_buffer_that_was_never_exported_waits_for_nothing(cuda, view):
    stream = cuda.create_stream(blocking=False)
    elsewhere = dlwrap.wrap(cuda.host_array(64))
    cuda.hold(stream)
    cuda.launch(stream, elsewhere.array)
    array = cuda.host_array(64, np.float32, 1)
    buffer = dlwrap.wrap(array)
    seeing, viewed = in_thread(lambda: np.asarray(view(buffer)).copy())
    seeing.join(SECONDS)
    assert viewed[0].tolist() == [1] * 64
    cuda.let_go(stream)
    assert_no_exports(buffer)


def test_a_view_is_refused_while_a_recorded_stream_captures(cuda, view):
    stream = cuda.create_stream()
    buffer = dlwrap.wrap(cuda.host_array(64))
    buffer.record_stream(OwnedStream(stream))
    cuda.begin_capture(stream)
    with pytest.raises(BufferError, match="it is being captured; call again after the capture ends"):
        view(buffer)
    assert cuda.capture_status(stream) == "active"
    cuda.end_capture(stream)
    assert buffer.exports == 0


def test_a_view_does_not_hide_work_of_the_gpu_from_the_release(cuda, view):
    array = cuda.host_array(64, np.uint8, 1)
    alive, buffer, stream = memory_of(array), dlwrap.wrap(array), cuda.create_stream(blocking=False)
    viewed = view(buffer)
    buffer.__dlpack__(stream=stream)
    cuda.hold(stream)
    cuda.launch(stream, array, write=9)
    del array, buffer, viewed
    gc.collect()
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(A_MOMENT)
    assert alive() is not None
    cuda.let_go(stream)
    assert_dies(alive)
