"""JAX: `jax.dlpack.from_dlpack`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cannot import UnavailableError
from conformance.consumers._consumer import Consumer
from conformance.dtypes import CODES
from conformance.results import Side

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared with other consumers

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver

jax.config.update("jax_enable_x64", True)  # otherwise it has no types of 64 bits


class Jax(Consumer):
    """Its arrays are immutable and compact."""

    compact = "JAX takes arrays without gaps and repetitions only"
    immutable = "JAX arrays are immutable"
    lacks = {name: f"jax.numpy has no {name}" for name in CODES if name != "bool" and not hasattr(jnp, name)}

    def take(self, offered: object) -> Any:
        """Import it."""
        return jax.dlpack.from_dlpack(offered)

    def address(self, array: Any) -> int:
        """As JAX says."""
        return array.unsafe_buffer_pointer()

    def device(self, array: Any) -> tuple[int, int]:
        """As JAX says."""
        (device,) = array.devices()
        return (2, device.id) if device.platform == "gpu" else (1, 0)

    def readonly(self, array: Any) -> bool:  # noqa: ARG002
        """Nobody writes to a JAX array."""
        return True

    def read(self, array: Any) -> np.ndarray:
        """Copy by the device; numpy.asarray(array) itself would be kept by the array."""
        return np.array(jnp.copy(array))

    def tail(self, array: Any) -> np.ndarray:
        """Slice on the host: the device would count in 32 bits."""
        return np.asarray(array)[-4:].copy()


def make(side: Side, driver: Driver) -> Jax:
    """Give the consumer."""
    if side is Side.CUDA and jax.default_backend() != "gpu":
        raise UnavailableError(f"jax {jax.__version__} sees no GPU")
    return Jax(side, driver)
