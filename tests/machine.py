"""Names what a result was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import dlwrap
import dlwrap.testing

_PACKAGES = {
    "numpy": ["numpy"],
    "cuda-bindings": ["cuda-bindings"],
    "torch": ["torch"],
    "cupy": ["cupy-cuda13x", "cupy-cuda12x", "cupy"],
    "jax": ["jax"],
    "numba-cuda": ["numba-cuda"],
    "cuda-core": ["cuda-core"],
}


def describe_machine() -> dict[str, Any]:
    """Give date, device, driver, processor and versions; the device is "simulated driver" where that is loaded."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **_describe_device(),
        "processors": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            "dlwrap": dlwrap.__version__,
            **{name: _version_of(candidates) for name, candidates in _PACKAGES.items()},
        },
    }


def _describe_device() -> dict[str, str]:
    if dlwrap.testing.active():
        return {"gpu": "simulated driver", "memory": "as each test sets it", "driver": "simulated", "cuda": "simulated"}
    support = dlwrap.support(0)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "gpu": support.name,
        "memory": f"{support.memory}: {support.reason}",
        "driver": re.findall(r"\d{3,}\.[\d.]+", driver.read_text())[0] if driver.exists() else "unknown",
        "cuda": f"{support.driver_version // 1000}.{support.driver_version % 1000 // 10}",
    }


def _version_of(candidates: list[str]) -> str | None:
    for name in candidates:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
