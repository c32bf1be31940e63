"""What type checkers must find of the public API; CI has mypy and pyright read this file, and nothing runs it."""

from __future__ import annotations

import mmap
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import dlwrap
from dlwrap import testing


def wrapping(a: npt.NDArray[np.float32], raw: mmap.mmap) -> None:
    buffer = dlwrap.wrap(a)
    assert_type(buffer, dlwrap.HostWrappedBuffer)
    assert_type(buffer.ptr, int)
    assert_type(buffer.shape, tuple[int, ...])
    assert_type(buffer.strides, tuple[int, ...])
    assert_type(buffer.nbytes, int)
    assert_type(buffer.ndim, int)
    assert_type(buffer.readonly, bool)
    assert_type(buffer.device, int)
    assert_type(buffer.exports, int)
    assert_type(buffer.closed, bool)
    assert_type(buffer.memory, Literal["pinned", "pageable"])
    assert_type(buffer.array, npt.NDArray[Any])
    assert_type(buffer.__dlpack_device__(), tuple[int, int])
    np.from_dlpack(buffer, device="cpu")  # is what NumPy wants
    with dlwrap.wrap(raw, dtype=np.int16, shape=(2, 3), memory="pageable", extent="view", wait="device") as inner:
        assert_type(inner, dlwrap.HostWrappedBuffer)
        assert_type(inner.close(timeout=1.5), None)
    dlwrap.wrap(a, memory="locked")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    dlwrap.wrap(a, "pinned")  # type: ignore[call-arg,misc,unused-ignore]  # pyright: ignore[reportCallIssue]
    buffer.device = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def pinning(a: npt.NDArray[np.float32]) -> None:
    with dlwrap.pin(a, progress=lambda done, total: done < total) as pin:
        assert_type(pin, dlwrap.Pin)
        assert_type(pin.device, int)
        assert_type(pin.nbytes, int)
        assert_type(pin.memory, Literal["pinned", "pageable"])


def the_process(buffer: dlwrap.HostWrappedBuffer) -> None:
    assert_type(dlwrap.stats().live, int)
    assert_type(dlwrap.stats(), dlwrap.Stats)
    assert_type(dlwrap.support(), dlwrap.DeviceSupport)
    assert_type(dlwrap.support(0).name, str)
    assert_type(dlwrap.reclaim(1.0), None)
    assert_type(dlwrap.configure(linger_seconds=0.5, linger_bytes=1 << 20), None)
    assert_type(dlwrap.keep_alive(0x1234, buffer, buffer), None)


def failures() -> None:
    try:
        dlwrap.reclaim()
    except dlwrap.CudaError as error:
        assert_type(error.code, int)
        assert_type(error.name, str)
    except dlwrap.DLWrapError:
        pass


def testing_without_a_gpu(cuda: testing.SimulatedDriver) -> None:
    assert_type(testing.activate(), testing.SimulatedDriver)
    assert_type(testing.active(), bool)
    assert_type(cuda.host_arrays_alive, int)
