"""Which module may import which: arrows point down only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dlwrap

PACKAGE = Path(dlwrap.__file__).parent

# Each module, and those below it that it may import.
LAYERS = {
    "_version": set(),
    "_errors": set(),
    "_native": set(),
    "_threads": set(),
    "_logs": {"_threads"},
    "_watch": {"_logs", "_native"},
    "_dtypes": set(),
    "_owner": set(),
    "_imported": {"_dtypes", "_native", "_owner"},
    "_reinterpret": {"_dtypes", "_owner"},
    "_sources": {"_imported", "_owner"},
    "_layout": {"_dtypes", "_native", "_owner", "_reinterpret", "_sources"},
    "_driver": {"_errors", "_native"},
    "_streams": {"_driver", "_errors", "_native"},
    "_barrier": {"_driver", "_errors"},
    "_devices": set(),
    "_support": {"_devices", "_driver", "_errors"},
    "_registration": {"_native"},
    "_lingering": {"_registration"},
    "_populate": {"_native"},
    "_pinning": {
        "_driver",
        "_errors",
        "_layout",
        "_lingering",
        "_native",
        "_populate",
        "_registration",
        "_threads",
        "_watch",
    },
    "_waits": {"_driver", "_errors", "_streams"},
    "_sweeper": {"_barrier", "_driver", "_errors", "_pinning", "_registration", "_threads", "_waits"},
    "_lifetime": {
        "_driver",
        "_errors",
        "_native",
        "_pinning",
        "_registration",
        "_streams",
        "_sweeper",
        "_threads",
        "_waits",
        "_watch",
    },
    "_graphs": {"_driver", "_errors", "_lifetime", "_native"},
    "_buffer": {
        "_devices",
        "_driver",
        "_errors",
        "_graphs",
        "_layout",
        "_lifetime",
        "_native",
        "_populate",
        "_streams",
        "_support",
        "_watch",
    },
    "_born": {"_buffer", "_devices", "_dtypes", "_lifetime", "_native", "_reinterpret", "_support"},
    "_host_view": {"_buffer", "_driver", "_imported", "_lifetime", "_sources", "_streams", "_support"},
    "_safetensors": {"_dtypes"},
    "_keep_alive": {"_buffer", "_driver", "_graphs", "_lifetime", "_streams"},
    "_exchange": {"_buffer", "_dtypes", "_imported", "_lifetime", "_native", "_streams"},
    "_control": {"_lifetime", "_lingering", "_native", "_watch"},
    "_tracing": {"_driver", "_errors", "_lifetime", "_registration", "_watch"},
    "__init__": {
        "_born",
        "_buffer",
        "_control",
        "_errors",
        "_exchange",
        "_host_view",
        "_keep_alive",
        "_safetensors",
        "_support",
        "_tracing",
        "_version",
    },
}
PROGRAM = {path.stem for path in PACKAGE.glob("*.py")} - LAYERS.keys()  # the command line may use the public API


def imports_of(path: Path) -> set[str]:
    """Every name that a file imports, type-checking imports included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dlwrap_imports(path: Path) -> set[str]:
    parts = [name.split(".") for name in imports_of(path)]
    return {part[1] for part in parts if part[0] == "dlwrap" and len(part) > 1}


@pytest.mark.parametrize("module", sorted(LAYERS.keys() - {"_native"}))
def test_a_module_imports_only_what_is_below_it(module):
    assert dlwrap_imports(PACKAGE / f"{module}.py") <= LAYERS[module]


def test_no_module_imports_the_one_above_it():
    order = list(LAYERS)
    for module, below in LAYERS.items():
        assert all(order.index(other) < order.index(module) for other in below), module


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_only_the_driver_layer_imports_cuda_bindings(path):
    imports_cuda = any(name.split(".")[0] == "cuda" for name in imports_of(path))
    assert imports_cuda == (path == PACKAGE / "_driver.py")


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("testing/*.py")), ids=lambda path: path.stem)
def test_the_simulated_driver_knows_nothing_of_the_library(path):
    assert dlwrap_imports(path) <= {"testing", "_errors"}


def test_importing_dlwrap_imports_no_cuda_module_no_consumer_and_no_driver():
    code = (
        "import sys; before = set(sys.modules); import dlwrap\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new & {'cuda', 'torch', 'cupy', 'jax', 'numba', 'rich', 'ml_dtypes', 'ctypes'}))\n"
        "print('libcuda' in open('/proc/self/maps').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    new, loaded = done.stdout.splitlines()
    # NumPy imports ctypes; that is its own affair.
    assert new in {"[]", "['ctypes']"}
    assert loaded == "False"
