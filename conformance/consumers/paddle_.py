"""PaddlePaddle: `paddle.utils.dlpack.from_dlpack`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.consumers._consumer import Consumer, read_by_address
from conformance.dtypes import CODES, numpy_type

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.results import Side


class Paddle(Consumer):
    """Its CPU side."""

    lacks = {name: f"Paddle has no {name}" for name in CODES if not hasattr(paddle, name)}

    def take(self, offered: object) -> Any:
        """Import it."""
        return paddle.utils.dlpack.from_dlpack(offered)

    def address(self, array: Any) -> int:
        """As Paddle says."""
        return array.data_ptr()

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        return tuple(array.strides)

    def dtype(self, array: Any) -> str:
        """Both name them alike."""
        return str(array.dtype).removeprefix("paddle.")

    def device(self, array: Any) -> tuple[int, int]:
        """As Paddle says."""
        return (1, 0) if array.place.is_cpu_place() else (2, array.place.gpu_device_id())

    def read(self, array: Any) -> np.ndarray:
        """Read where it points; its NumPy knows no bfloat16."""
        return read_by_address(
            self, self.address(array), self.shape(array), self.strides(array), numpy_type(self.dtype(array))
        )

    def write(self, array: Any, values: np.ndarray) -> None:
        """In place."""
        paddle.assign(paddle.to_tensor(np.ascontiguousarray(values)), output=array)


def make(side: Side, driver: Driver) -> Paddle:
    """Give the consumer."""
    paddle.set_device("cpu")
    return Paddle(side, driver)
