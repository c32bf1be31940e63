"""NVIDIA Warp: `warp.from_dlpack`, which asks for legacy capsules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import warp

from conformance.cannot import UnavailableError
from conformance.consumers._consumer import Consumer
from conformance.dtypes import FLOAT8
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver

warp.config.quiet = True


class Warp(Consumer):
    """On either side."""

    most_dimensions = 4
    lacks = {
        **dict.fromkeys(("complex64", "complex128"), "Warp has no complex types"),
        **dict.fromkeys(FLOAT8, "Warp has no float8"),
        **({} if hasattr(warp, "bfloat16") else {"bfloat16": "this Warp has no bfloat16"}),
    }

    def take(self, offered: object) -> Any:
        """Import it."""
        return warp.from_dlpack(offered)

    def address(self, array: Any) -> int:
        """As Warp says."""
        return array.ptr or 0

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements; Warp counts bytes."""
        return tuple(stride // warp.types.type_size_in_bytes(array.dtype) for stride in array.strides)

    def dtype(self, array: Any) -> str:
        """Warp and NumPy name them alike."""
        return array.dtype.__name__

    def device(self, array: Any) -> tuple[int, int]:
        """As Warp says."""
        return (2, array.device.ordinal) if array.device.is_cuda else (1, 0)

    def read(self, array: Any) -> np.ndarray:
        """Copy."""
        return array.contiguous().numpy().copy()

    def write(self, array: Any, values: np.ndarray) -> None:
        """In place."""
        warp.copy(array, warp.array(np.ascontiguousarray(values), dtype=array.dtype, device=array.device))
        warp.synchronize()

    def work_stream(self) -> int:
        """Warp has streams of its own."""
        return super().work_stream() if self.side is Side.CPU else int(warp.get_stream().cuda_stream)


def make(side: Side, driver: Driver) -> Warp:
    """Give the consumer."""
    warp.init()
    if side is Side.CUDA and not warp.is_cuda_available():
        raise UnavailableError(f"warp {warp.__version__} sees no GPU")
    warp.set_device("cuda:0" if side is Side.CUDA else "cpu")
    return Warp(side, driver)
