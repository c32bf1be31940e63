"""What the examples share: where they run, and what they say where they can't. Not an example itself.

With a GPU they use it. Without one they run on the CPU, with dlwrap on its simulated CUDA driver, and say so.
"""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

SKIPPED = 77  # the exit status of an example that cannot run here


def torch_device() -> str:
    """Give "cuda" where torch can use a GPU; else "cpu", and dlwrap is on the simulated driver from then on."""
    if need("torch").cuda.is_available():
        return "cuda"
    simulate()
    return "cpu"


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
    """End as skipped where torch can't use a GPU."""
    if not need("torch").cuda.is_available():
        skip("needs a GPU: torch finds none")


def skip(reason: str) -> NoReturn:
    """End the example, with the reason why it can't run here."""
    print(reason)
    raise SystemExit(SKIPPED)
