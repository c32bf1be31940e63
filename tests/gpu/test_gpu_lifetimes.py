"""The array is there until the GPU has finished with it, whoever lets go first, and nobody waits for that.

In every test a kernel runs on the array, everybody lets go while a latch holds the kernel, and the array must still
be there; the latch opens, the kernel must find the array's contents, and then the array must go.
"""

from __future__ import annotations

import time

import _cuda
import numpy as np
import pytest
from _cuda import LEGACY_STREAM, PER_THREAD_STREAM, Thread
from _subject import COUNT, Subject

import dlwrap


def test_wrapper_goes_first(torch, subject, latch):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        buffer = dlwrap.wrap(subject.take())
        tensor = torch.from_dlpack(buffer)
    del buffer
    latch.launch(stream.cuda_stream, tensor.data_ptr(), COUNT)
    assert subject.alive
    del tensor
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_any_number_of_releases_can_come_one_by_one_behind_a_running_kernel(latch):
    array = np.zeros(COUNT, np.float32)
    with dlwrap.pin(array):
        latch.launch(LEGACY_STREAM)
        latch.wait_until_started()
        for number in range(1, 301):
            dlwrap.wrap(array).__dlpack__(stream=LEGACY_STREAM)
            deadline = time.monotonic() + 10
            while dlwrap.stats().pending < number and time.monotonic() < deadline:
                time.sleep(1e-4)
        assert dlwrap.stats().pending == 300
        assert latch.holds
        latch.open()
        dlwrap.reclaim(timeout=30)
        assert dlwrap.stats().pending == 0


def test_array_goes_first(torch, subject, latch):
    stream = torch.cuda.Stream()
    array = subject.take()
    with torch.cuda.stream(stream):
        buffer = dlwrap.wrap(array)
        del array
        tensor = torch.from_dlpack(buffer)
    latch.launch(stream.cuda_stream, tensor.data_ptr(), COUNT)
    assert subject.alive
    del tensor
    assert subject.alive
    del buffer
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_last_tensor_goes_while_the_kernel_runs(torch, subject, latch):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.from_dlpack(dlwrap.wrap(subject.take()))
    view = tensor[COUNT // 2 :]
    latch.launch(stream.cuda_stream, tensor.data_ptr(), COUNT)
    latch.wait_until_started()
    del tensor
    assert dlwrap.stats().exports == 1
    del view
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_tensor_dropped_inside_a_torch_stream(torch, subject, latch):
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = torch.from_dlpack(dlwrap.wrap(subject.take()))
        latch.launch(torch.cuda.current_stream().cuda_stream, tensor.data_ptr(), COUNT)
        del tensor
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_array_dropped_inside_a_cupy_stream_that_goes_too(cupy, subject, latch):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.from_dlpack(dlwrap.wrap(subject.take()))
        latch.launch(stream.ptr, array.data.ptr, COUNT)
        del array
    del stream
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_blocking_cupy_stream(cupy, subject, latch):
    with cupy.cuda.Stream() as stream:
        array = cupy.from_dlpack(dlwrap.wrap(subject.take()))
        latch.launch(stream.ptr, array.data.ptr, COUNT)
        del array, stream
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_legacy_default_stream(torch, subject, latch):
    tensor = torch.from_dlpack(dlwrap.wrap(subject.take()))
    latch.launch(LEGACY_STREAM, tensor.data_ptr(), COUNT)
    del tensor
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_per_thread_default_stream(cupy, subject, latch):
    with cupy.cuda.Stream.ptds:
        array = cupy.from_dlpack(dlwrap.wrap(subject.take()))
        latch.launch(PER_THREAD_STREAM, array.data.ptr, COUNT)
        del array
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_per_thread_default_stream_of_a_thread_that_has_ended(subject, latch):
    def use():
        with _cuda.current():
            buffer = dlwrap.wrap(subject.take())
            capsule = buffer.__dlpack__(stream=PER_THREAD_STREAM, max_version=(1, 0))
            latch.launch(PER_THREAD_STREAM, _cuda.device_address(buffer.array), COUNT)
            return capsule

    capsule = Thread(use).result()
    assert subject.alive
    del capsule
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


@pytest.mark.parametrize("how", ["object", "handle"])
def test_second_stream_that_was_recorded(torch, subject, new_latch, how):
    latch, second_latch = new_latch(), new_latch()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    buffer = dlwrap.wrap(subject.take())
    with torch.cuda.stream(first):
        tensor = torch.from_dlpack(buffer)
    buffer.record_stream(second if how == "object" else second.cuda_stream)
    # The first kernel reads and writes; the second one, on its own stream, only has to be waited for.
    latch.launch(first.cuda_stream, tensor.data_ptr(), COUNT)
    second_latch.launch(second.cuda_stream)
    del tensor, buffer
    subject.assert_held_by(latch)
    latch.open()
    latch.wait()
    subject.assert_held_by(second_latch)
    second_latch.open()
    second_latch.wait()
    subject.assert_released_after(latch)


def test_stream_that_nobody_told_of_with_wait_device(torch, stream, subject, latch):
    tensor = torch.from_dlpack(dlwrap.wrap(subject.take(), wait="device"))
    latch.launch(stream, tensor.data_ptr(), COUNT)
    del tensor
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


@pytest.mark.parametrize("flags", [_cuda.BLOCKING, _cuda.NON_BLOCKING], ids=["blocking", "non-blocking"])
def test_raw_stream_that_is_destroyed_meanwhile(subject, latch, flags):
    handle = _cuda.create_stream(flags)
    buffer = dlwrap.wrap(subject.take())
    capsule = buffer.__dlpack__(stream=handle, max_version=(1, 0))
    latch.launch(handle, _cuda.device_address(buffer.array), COUNT)
    latch.wait_until_started()
    _cuda.call("cuStreamDestroy", handle)
    del capsule, buffer
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_torch_external_stream_that_is_destroyed_meanwhile(torch, subject, latch):
    handle = _cuda.create_stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
        tensor = torch.from_dlpack(dlwrap.wrap(subject.take()))
    latch.launch(handle, tensor.data_ptr(), COUNT)
    latch.wait_until_started()
    _cuda.call("cuStreamDestroy", handle)
    del tensor
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_destroyed_stream_whose_handle_is_used_again(subject, new_latch):
    latch, other_latch = new_latch(), new_latch()
    handle = _cuda.create_stream()
    buffer = dlwrap.wrap(subject.take())
    capsule = buffer.__dlpack__(stream=handle, max_version=(1, 0))
    latch.launch(handle, _cuda.device_address(buffer.array), COUNT)
    latch.wait_until_started()
    _cuda.call("cuStreamDestroy", handle)
    others = [_cuda.create_stream() for _ in range(4)]
    other_latch.launch(others[0])
    del capsule, buffer
    other_latch.open()
    other_latch.wait()
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)
    for other in others:
        _cuda.call("cuStreamDestroy", other)


def test_stream_of_a_second_context_is_refused(subject):
    context = _cuda.create_context()
    handle = _cuda.create_stream()
    buffer = dlwrap.wrap(subject.take())
    for told in (handle, LEGACY_STREAM, PER_THREAD_STREAM, None):
        with pytest.raises(BufferError, match="belongs to another context than the primary one"):
            buffer.__dlpack__(stream=told, max_version=(1, 0))
    _cuda.call("cuCtxPopCurrent")
    with pytest.raises(BufferError, match="belongs to another context than the primary one"):
        buffer.record_stream(handle)
    _cuda.call("cuCtxDestroy", context)


@pytest.mark.parametrize("told", ["handle", LEGACY_STREAM, None])
def test_stream_of_a_green_context(kernels, subject, new_latch, told):
    with _cuda.green_context() as (context, handle):
        kernels.warm_up(handle, context)
        latch = new_latch(context=context)
        buffer = dlwrap.wrap(subject.take())
        with _cuda.current(context):
            capsule = buffer.__dlpack__(stream=handle if told == "handle" else told, max_version=(1, 0))
            latch.launch(handle, _cuda.device_address(buffer.array), COUNT)
        del capsule, buffer
        subject.assert_held_by(latch)
        subject.assert_released_after(latch)


def test_numba_array(numba_cuda, subject, latch):
    stream = numba_cuda.stream()
    array = numba_cuda.as_cuda_array(dlwrap.wrap(subject.take()))
    latch.launch(int(stream), array.device_ctypes_pointer.value, COUNT)
    del array
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_cuda_core_stream_that_is_closed_meanwhile(cuda_core, subject, latch):
    device = cuda_core.Device(0)
    device.set_current()
    stream = device.create_stream()
    handle = int(stream.handle)
    view = cuda_core.utils.StridedMemoryView.from_dlpack(dlwrap.wrap(subject.take()), stream_ptr=handle)
    latch.launch(handle, view.ptr, COUNT)
    latch.wait_until_started()
    stream.close()
    del view
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_recorded_cuda_core_stream_that_is_closed_meanwhile(cuda_core, subject, latch):
    device = cuda_core.Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer = dlwrap.wrap(subject.take())
    buffer.record_stream(stream)
    latch.launch(int(stream.handle), _cuda.device_address(buffer.array), COUNT)
    latch.wait_until_started()
    stream.close()
    del buffer
    subject.assert_held_by(latch)
    subject.assert_released_after(latch)


def test_close_waits_until_it_is_given_back(torch, subject, latch):
    stream = torch.cuda.Stream()
    buffer = dlwrap.wrap(subject.take())
    with torch.cuda.stream(stream):
        tensor = torch.from_dlpack(buffer)
    latch.launch(stream.cuda_stream, tensor.data_ptr(), COUNT)
    with pytest.raises(BufferError, match="1 importer"):
        buffer.close()
    del tensor
    with pytest.raises(TimeoutError):
        buffer.close(timeout=0.2)
    assert latch.holds
    assert subject.alive
    latch.open()
    buffer.close(timeout=30)
    assert latch.finished
    subject.assert_released_after(latch)


def test_held_release_does_not_delay_another(torch, subject, new_latch):
    latch, quick_latch = new_latch(), new_latch()
    held, quick = torch.cuda.Stream(), torch.cuda.Stream()
    other = Subject()
    # Unregistering would wait for the held stream as well, so the memory of the other one stays page-locked.
    array = other.take()
    pin = dlwrap.pin(array)
    with torch.cuda.stream(held):
        tensor = torch.from_dlpack(dlwrap.wrap(subject.take()))
    latch.launch(held.cuda_stream, tensor.data_ptr(), COUNT)
    with torch.cuda.stream(quick):
        buffer = dlwrap.wrap(array)
        second = torch.from_dlpack(buffer)
    del array
    quick_latch.launch(quick.cuda_stream, second.data_ptr(), COUNT)
    del tensor, second
    quick_latch.open()
    quick_latch.wait()
    buffer.close(timeout=10)
    assert latch.holds
    assert other.alive
    now = dlwrap.stats()
    assert (now.live, now.pending) == (1, 1)  # the pin, and what the latch holds
    del pin
    latch.open()
    latch.wait()
    other.assert_released_after(quick_latch)
    subject.assert_released_after(latch)


def test_many_releases_at_once_from_many_threads(torch, new_latch):
    latch = new_latch()
    stream = torch.cuda.Stream()
    subjects = [Subject() for _ in range(16)]
    with torch.cuda.stream(stream):
        tensors = [torch.from_dlpack(dlwrap.wrap(subject.take())) for subject in subjects]
    latch.launch(stream.cuda_stream)

    def drop_one():
        tensors.pop()

    for thread in [Thread(drop_one) for _ in subjects]:
        thread.result()
    with pytest.raises(TimeoutError):
        dlwrap.reclaim(timeout=0.2)
    assert latch.holds
    assert dlwrap.stats().pending == 16
    assert all(subject.alive for subject in subjects)
    latch.open()
    dlwrap.reclaim(timeout=30)
    assert not any(subject.alive for subject in subjects)


def test_wrap_that_was_never_exported_has_nothing_to_wait_for(stream, latch):
    array = np.zeros(8)
    pin = dlwrap.pin(array)  # else unregistering would wait
    latch.launch(stream)
    buffer = dlwrap.wrap(array)
    del buffer
    dlwrap.reclaim(timeout=10)
    assert latch.holds
    assert dlwrap.stats().pending == 0
    latch.open()
    pin.close()
