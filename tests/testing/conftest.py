"""What the tests of the simulated driver share: the driver with a current context, other threads, other processes."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from cuda.bindings import driver as cu

from dlwrap.testing.plugin import simulated_cuda  # noqa: F401 - the fixture, also where dlwrap is not installed

RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
PRELUDE = """
import faulthandler, os, sys, threading
import numpy as np
import dlwrap.testing
cuda = dlwrap.testing.activate()
from cuda.bindings import driver as cu
def start():
    cu.cuInit(0)
    cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
"""


def _outcome(result):
    code = result[0] if isinstance(result, tuple) else result
    return code.name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")


@pytest.fixture(scope="session")
def outcome():
    """The name of a driver call's result, without its prefix."""
    return _outcome


@pytest.fixture
def cuda(simulated_cuda):  # noqa: F811
    """The simulated driver, with device 0's primary context current."""
    assert _outcome(cu.cuInit(0)) == "SUCCESS"
    cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
    simulated_cuda.clear_calls()
    return simulated_cuda


@pytest.fixture
def stream(cuda):
    return cuda.create_stream()


@pytest.fixture
def other_stream(cuda):
    """A stream that is not ordered with the legacy stream."""
    return cuda.create_stream(blocking=False)


@pytest.fixture
def event(cuda):
    return cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)[1]


@pytest.fixture
def register(cuda):
    """Page-lock an array until the test ends."""
    registered = []

    def lock(array, flags=cu.CU_MEMHOSTREGISTER_DEVICEMAP):
        assert _outcome(cu.cuMemHostRegister(array.ctypes.data, array.nbytes, flags)) == "SUCCESS"
        registered.append(array)
        return array

    yield lock
    for array in registered:
        cu.cuMemHostUnregister(array.ctypes.data)


class _Threads:
    """Runs functions in threads of their own, with device 0's primary context current."""

    def __init__(self, context):
        self._context = context
        self._started = []

    def start(self, function, *, relaxed=False, name=None):
        results = []

        def body():
            cu.cuCtxPushCurrent(self._context)
            if relaxed:
                cu.cuThreadExchangeStreamCaptureMode(RELAXED)
            results.append(function())

        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.results = results
        self._started.append(thread)
        thread.start()
        return thread

    def run(self, function, **options):
        thread = self.start(function, **options)
        thread.join(10)
        assert thread.results, "the call did not return"
        return thread.results[0]


@pytest.fixture
def threads(cuda):
    started = _Threads(cu.cuCtxGetCurrent()[1])
    yield started
    for thread in started._started:
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def python():
    """Run a program in a new process that has activated the simulated driver."""

    def run(program, *, prelude=PRELUDE, env=None):
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", prelude + program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=env,
        )

    return run
