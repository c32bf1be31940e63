"""MLX: `mlx.core.from_dlpack`, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from conformance import reference
from conformance.cannot import UnavailableError
from conformance.consumers._consumer import Consumer, read_by_address
from conformance.dtypes import CODES, numpy_type

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class Mlx(Consumer):
    """Its arrays are immutable: what looks like an assignment makes a new one."""

    immutable = "MLX arrays are immutable"
    lacks = {name: f"MLX has no {name}" for name in CODES if name != "bool" and not hasattr(mx, name)}

    def take(self, offered: object) -> Any:
        """Import it."""
        return mx.from_dlpack(offered)

    def address(self, array: Any) -> int:
        """As its export says."""
        return self._look(array).first

    def dtype(self, array: Any) -> str:
        """Both name them alike, but for bool."""
        return str(array.dtype).removeprefix("mlx.core.").rstrip("_")

    def device(self, array: Any) -> tuple[int, int]:
        """As its export says."""
        return tuple(map(int, array.__dlpack_device__()))  # type: ignore[return-value]

    def readonly(self, array: Any) -> bool:  # noqa: ARG002
        """Nobody writes to an MLX array."""
        return True

    def read(self, array: Any) -> np.ndarray:
        """Read where its export points."""
        capsule = array.__dlpack__()
        seen = reference.look(capsule)
        return read_by_address(self, seen.first, seen.shape, seen.strides, numpy_type(self.dtype(array)))

    def tail(self, array: Any) -> np.ndarray:
        """Read where its export points."""
        capsule = array.__dlpack__()
        seen = reference.look(capsule)
        return read_by_address(self, seen.first + seen.shape[0] - 4, (4,), seen.strides, numpy_type(self.dtype(array)))

    def _look(self, array: Any) -> reference.Seen:
        return reference.look(array.__dlpack__())


def make(side: Side, driver: Driver) -> Mlx:
    """Give the consumer."""
    if not hasattr(mx, "from_dlpack"):
        raise UnavailableError("this MLX has no from_dlpack")
    mx.set_default_device(mx.cpu)
    return Mlx(side, driver)
