"""JAX: an array of its own with the same values, on the GPU where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cannot import CannotBeAskedError
from conformance.consumers.jax_ import Jax, jax, jnp
from conformance.producers._blocks import check_native
from conformance.producers._subject import Producer, Subject
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver


class Immutable(Subject):
    """An array of JAX's; nobody may write to it, and the end of its memory cannot be watched."""

    def __init__(self, array: Any, consumer: Jax) -> None:
        self.offered = array
        self._consumer = consumer

    @property
    def array(self) -> np.ndarray:
        """There is none."""
        raise CannotBeAskedError("JAX's array lies in memory of its own, not in the host array")

    def address(self, side: Side) -> int:  # noqa: ARG002
        """As JAX says."""
        return self.offered.unsafe_buffer_pointer()

    def read(self) -> np.ndarray:
        """Copy."""
        return self._consumer.read(self.offered)

    def write(self, values: np.ndarray) -> None:  # noqa: ARG002
        """Nobody can."""
        raise CannotBeAskedError("JAX arrays are immutable")

    def drop(self) -> None:
        """Let go of the array."""
        self.offered = None

    def alive(self) -> bool:
        """Nobody can tell."""
        raise CannotBeAskedError("the end of JAX's memory cannot be watched")


def make(driver: Driver) -> Producer:
    """Give the producer."""
    side = Side.CUDA if jax.default_backend() == "gpu" else Side.CPU
    consumer = Jax(side, driver)

    def copy(array: np.ndarray) -> Immutable:
        check_native(array, "JAX")
        if not array.flags.c_contiguous:
            raise CannotBeAskedError("JAX has no strides")
        if array.dtype.name != "bool" and not hasattr(jnp, array.dtype.name):
            raise CannotBeAskedError(f"JAX has no {array.dtype.name}")
        return Immutable(jnp.array(array, copy=True), consumer)

    return Producer("jax", side, copy, ("jax",), in_place=False, immutable="JAX arrays are immutable")
