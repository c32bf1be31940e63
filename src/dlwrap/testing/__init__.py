"""A simulated CUDA driver, so that code which uses CUDA from Python can be tested without a GPU.

>>> import dlwrap.testing
>>> driver = dlwrap.testing.activate()  # before the first CUDA call of the process
>>> from cuda.bindings import driver as cuda  # the real bindings, on a simulated device
"""

from dlwrap.testing._activate import activate, active, simulated_cuda
from dlwrap.testing._driver import Call, Registration, SimulatedDriver, SimulationError

__all__ = [
    "Call",
    "Registration",
    "SimulatedDriver",
    "SimulationError",
    "activate",
    "active",
    "simulated_cuda",
]

for _public in (Call, Registration, SimulatedDriver, SimulationError, activate, active, simulated_cuda):
    _public.__module__ = "dlwrap.testing"
