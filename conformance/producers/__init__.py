"""The producers that can be judged, each in a file of its own, and any function of the user's."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING

from conformance.cannot import UnavailableError

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.producers._subject import Producer

MODULES = {
    "dlwrap": "dlwrap_",
    "numpy": "numpy_",
    "torch": "torch_",
    "cupy": "cupy_",
    "jax": "jax_",
    "cuda.core": "cuda_core_",
    "tvm-ffi": "tvm_ffi_",
}


def load(name: str, driver: Driver) -> Producer:
    """Import a producer into this process: one of `MODULES`, ``broken:RULE``, or ``module:function``.

    Raises
    ------
    UnavailableError
        It cannot run here.
    ValueError
        There is none of that name.
    """
    if name in MODULES:
        module, argument = f"conformance.producers.{MODULES[name]}", ()
    elif name.startswith("broken:"):
        module, argument = "conformance.broken", (name.partition(":")[2],)
    elif ":" in name:
        module, argument = "conformance.producers.function", (name,)
    else:
        raise ValueError(f"no producer {name!r}: {', '.join(MODULES)}, or module:function")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for the user's module
    try:
        return importlib.import_module(module).make(driver, *argument)  # type: ignore[no-any-return]
    except ImportError as error:
        raise UnavailableError(f"cannot be imported: {error}") from error


def version(producer: Producer) -> str:
    """Give the installed version, or an empty text."""
    for package in producer.packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
