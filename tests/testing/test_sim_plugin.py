"""The pytest plugin, as another project's test suite uses it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlwrap.testing

CONFTEST = "from dlwrap.testing.plugin import simulated_cuda\n"

TESTS = """
from cuda.bindings import driver as cu

def start():
    cu.cuInit(0)
    cu.cuCtxPushCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])

def test_it_gives_a_device(simulated_cuda):
    simulated_cuda.configure(devices=3)
    start()
    assert cu.cuDeviceGetCount()[1] == 3

def test_every_test_has_a_fresh_one(simulated_cuda):
    assert simulated_cuda.calls() == []
    assert cu.cuDeviceGetCount()[1] == 1

def test_it_finds_what_a_test_left(simulated_cuda):
    start()
    test_it_finds_what_a_test_left.array = array = simulated_cuda.host_array(4)
    cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0)

def test_what_a_test_left_does_not_harm_the_next(simulated_cuda):
    assert simulated_cuda.registrations == []

def test_tests_without_it_do_not_notice():
    pass
"""


@pytest.fixture
def other_project(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    source = Path(dlwrap.testing.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}

    def run(tests, *options):
        (tmp_path / "test_it.py").write_text(tests)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    return run


def test_the_fixture_gives_fresh_drivers_and_checks_what_is_left(other_project):
    report = other_project(TESTS)
    assert "5 passed, 1 error" in report
    assert "ERROR test_it.py::test_it_finds_what_a_test_left" in report
    assert "1 ranges registered" in report


def test_the_fixture_skips_where_a_real_driver_is_loaded(other_project):
    import importlib.util

    library = importlib.util.find_spec("dlwrap.testing._simcuda").origin
    report = other_project(f"import ctypes\nctypes.CDLL({library!r})\n{TESTS}", "-rs")
    assert "1 passed, 4 skipped" in report
    assert "a real libcuda.so.1 is loaded" in report
