"""For tvm-ffi's tests with torch tensors: wrapped buffers take their place, which it imports by the C exchange API."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dlwrap
from conformance.peers.exports import Tally

_FLOAT32, _INT32 = np.dtype(np.float32), np.dtype(np.int32)


def while_importing() -> dict[str, ModuleType]:
    torch = ModuleType("torch")
    torch.Tensor = dlwrap.HostWrappedBuffer
    torch.arange = _arange
    torch.tensor = _tensor
    torch.float32, torch.int32 = _FLOAT32, _INT32
    torch.version = ModuleType("torch.version")
    torch.version.hip = None
    torch.cuda = SimpleNamespace(is_available=lambda: False)
    return {"torch": torch, "torch.version": torch.version}


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give buffers the two methods of torch tensors by which the tests look at them."""
    monkeypatch.setattr(dlwrap.HostWrappedBuffer, "data_ptr", lambda buffer: buffer.ptr, raising=False)
    monkeypatch.setattr(dlwrap.HostWrappedBuffer, "numpy", lambda buffer: buffer.array, raising=False)


def _tensor(values: list[float], dtype: Any) -> dlwrap.HostWrappedBuffer:
    Tally.count += 1
    return dlwrap.wrap(np.array(values, dtype=dtype))


def _arange(stop: int, dtype: Any = None) -> dlwrap.HostWrappedBuffer:
    Tally.count += 1
    return dlwrap.wrap(np.arange(stop, dtype=dtype))
