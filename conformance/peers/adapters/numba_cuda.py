"""For numba-cuda: its device arrays lie over wrapped host memory, taken by the CUDA array interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import dlwrap
from conformance.peers.exports import Tally


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    """Stand in for the fixture that is not installed with the tests."""
    request.cls._dump_failed_filechecks = False  # noqa: SLF001 - as theirs does


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    def over_host(array: np.ndarray) -> Any:
        Tally.count += 1
        return cuda.as_cuda_array(dlwrap.wrap(array))

    def to_device(array: np.ndarray, **_: Any) -> Any:
        return over_host(np.array(array))

    def device_array(shape: Any, dtype: Any = np.float64, **_: Any) -> Any:
        return over_host(np.zeros(shape, dtype))

    monkeypatch.setattr(cuda, "to_device", to_device)
    monkeypatch.setattr(cuda, "device_array", device_array)
