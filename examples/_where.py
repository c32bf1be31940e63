"""What the examples share: where they run, and what they say where they can't. Not an example itself.

With a GPU they use it. Without one they run on the CPU, with dlwrap on its simulated CUDA driver, and say so.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any, NoReturn

SKIPPED = 77  # the exit status of an example that cannot run here


def torch_device() -> str:
    """Give "cuda" where torch can use a GPU; else "cpu", and dlwrap is on the simulated driver from then on."""
    if need("torch").cuda.is_available():
        return "cuda"
    simulate()
    return "cpu"


def has_gpu() -> bool:
    """Tell whether there is a CUDA driver with a device, without any framework."""
    # In a process of its own: a driver that is loaded, but has no device, would be in the way of the simulated one.
    code = "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def simulate() -> None:
    """Use the simulated CUDA driver; to be called before anything of CUDA."""
    from dlwrap import testing  # noqa: PLC0415 -- nobody needs it on a GPU

    testing.activate()
    print("no GPU: on the CPU, with the simulated CUDA driver of dlwrap")


def need(module: str, package: str | None = None) -> Any:
    """Import a module, or end as skipped where its package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        skip(f"needs {package or module}: pip install {package or module}")


def need_gpu() -> None:
    """End as skipped where there is no GPU."""
    if not has_gpu():
        skip("needs a GPU: no CUDA driver with a device is there")


def skip(reason: str) -> NoReturn:
    """End the example, with the reason why it can't run here."""
    print(reason)
    raise SystemExit(SKIPPED)
