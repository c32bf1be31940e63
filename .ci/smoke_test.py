"""Tried where nothing but the wheel of dlwrap, its dependencies, the extra "cli" and pytest is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata, resources

import numpy as np

import dlwrap


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a user would."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_it_is_the_installed_package_with_its_types() -> None:
    assert dlwrap.__version__ == metadata.version("dlwrap")
    assert "site-packages" in dlwrap.__file__
    assert resources.files("dlwrap").joinpath("py.typed").is_file()
    assert resources.files("dlwrap").joinpath("_native.pyi").is_file()


def test_an_array_is_wrapped_seen_and_given_back(simulated_cuda) -> None:
    array = simulated_cuda.host_array(1000)
    buffer = dlwrap.wrap(array)
    view = np.from_dlpack(buffer, device="cpu")
    assert view.ctypes.data == array.ctypes.data == buffer.ptr
    capsule = buffer.__dlpack__(stream=1)
    simulated_cuda.hold(1)
    simulated_cuda.launch(1, array)
    del array, buffer, view, capsule
    assert simulated_cuda.host_arrays_alive == 1
    simulated_cuda.let_go(1)
    dlwrap.reclaim()
    assert simulated_cuda.host_arrays_alive == 0


def test_a_program_activates_the_simulator_and_ends_quietly() -> None:
    done = run(
        "-c", "import dlwrap, dlwrap.testing as t; t.activate(); b = dlwrap.wrap(bytearray(64)); print(b.memory)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "pinned\n", "")


def test_the_command_tells_about_this_machine() -> None:
    done = run("-m", "dlwrap", "info")
    assert "dlwrap" in done.stdout, json.dumps([done.returncode, done.stdout, done.stderr])
    assert "Traceback" not in done.stderr
