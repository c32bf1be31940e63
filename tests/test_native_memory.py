"""The native part without memory: each allocation of its own fails once, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from scripts import outcome, run

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int fail_next_calloc;
void *calloc(size_t count, size_t size) {
    static void *(*real)(size_t, size_t);
    static char early[65536]; /* dlsym itself allocates */
    static size_t used;
    if (fail_next_calloc) {
        fail_next_calloc = 0;
        return NULL;
    }
    if (real == NULL) {
        static int asking;
        if (asking) {
            void *memory = early + used;
            used += (count * size + 15) / 16 * 16;
            return memory;
        }
        asking = 1;
        real = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    }
    return real(count, size);
}
"""
PRELUDE = """
import ctypes
from dlwrap import _native
fail = ctypes.c_int.in_dll(ctypes.CDLL(None), "fail_next_calloc")
layout = _native.Layout(None, (4,), (1,), (2, 32, 1), 4, 0, False, 0, 0, 0, 0, None, 0, 0, True, False, None)
loan = _native.Loan(0, "its loan")
def released():
    return [(loan.hold, uses) for loan, uses in _native.wait(0)]
def exporter():
    return _native.lend(_native.Exporter, layout, loan, 0, False, 0, False)
def attempt(function, *args):
    fail.value = 1
    try:
        function(*args)
    except MemoryError:
        return "MemoryError"
    finally:
        fail.value = 0
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True)
    return folder / "shim.so"


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        pytest.param("print(attempt(exporter), released())", "MemoryError []", id="a lease"),
        pytest.param(
            "made = exporter()\n"
            "print(attempt(_native.make_capsule, made, 0, False, False), made.exports)\n"
            "print(_native.live_exports(), released())",
            "MemoryError 0\n0 []",
            id="an export",
        ),
        pytest.param(
            "made = exporter()\n"
            "attempt(_native.make_capsule, made, 0, False, False)\n"
            "capsule = _native.make_capsule(made, 0, False, False)\n"
            "print(made.exports, _native.give_up(made)); del capsule; print(_native.give_up(made), released())",
            "1 1\n0 [('its loan', 0)]",
            id="an export, then one that succeeds",
        ),
    ],
)
def test_an_allocation_that_fails_leaves_nothing(shim, code, printed):
    environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PRELUDE + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", printed + "\n")


FAILING = """
import _testcapi
from dlwrap import _native
from dlwrap._native import live_exports, wait
from exporters import lend

def until_it_succeeds(call):
    "Let the first Python allocation fail, then the second, ...; give the result, and how often it failed."
    failures = 0
    while True:
        _testcapi.set_nomemory(failures, failures + 1)
        try:
            return call(), failures
        except MemoryError:
            failures += 1
        finally:
            _testcapi.remove_mem_hooks()

def names(released):
    return [(loan.hold, uses) for loan, uses in released]

def exporter(key):
    return lend(_native, key, shape=(10**6, 10**7), strides=(10**7, 1))
"""


def run_failing(code):
    """Run a program with allocations of Python that fail; give what it printed."""
    pytest.importorskip("_testcapi", reason="CPython was built without the module of its own tests")
    done = run(code, prologue=FAILING, measured=False)  # coverage's tracer crashes where Python has no memory
    assert outcome(done) == (0, "")
    return done.stdout


def test_no_released_key_is_lost_when_python_is_out_of_memory():
    code = """
keys = list(range(100))
for key in keys:
    exporter(key)
taken, failures = until_it_succeeds(lambda: wait(0.0))
print(failures > 2, names(taken) == [(key, 0) for key in keys], wait(0.0))
"""
    assert run_failing(code) == "True True []\n"


def test_an_exporter_that_python_has_no_memory_for_releases_nothing():
    code = """
made, failures = until_it_succeeds(lambda: exporter(7))
print(failures > 0, wait(0.0))
del made
print(names(wait(0.0)))
"""
    assert run_failing(code) == "True []\n[(7, 0)]\n"


@pytest.mark.parametrize("minor", [-1, 0])
def test_an_export_that_python_has_no_memory_for_leaves_nothing(minor):
    code = f"""
made = exporter(7)
capsule, failures = until_it_succeeds(lambda: _native.make_capsule(made, {minor}, False, False))
print(failures > 0, made.exports, live_exports())
del capsule
print(made.exports, live_exports(), _native.give_up(made), names(wait(0.0)))
"""
    assert run_failing(code) == "True 1 1\n0 0 0 [(7, 0)]\n"
