"""The CUDA driver as checks use it: a real one, or the simulated one of dlwrap where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver

_PROBE = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
raise SystemExit(driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value < 1)
"""


def choose(wanted: str) -> str:
    """Turn "auto" into "real" or "simulated"; loads no driver into this process, where only one can be."""
    if wanted != "auto":
        return wanted
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False, timeout=60)
    return "simulated" if probe.returncode else "real"


def load(name: str) -> Driver:
    """Make a driver this process's own."""
    if name == "simulated":
        from conformance.drivers.simulated import SimulatedDriver as Chosen
    else:
        from conformance.drivers.real import RealDriver as Chosen
    return Chosen()
