"""PyTorch: `torch.from_dlpack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from conformance.cannot import UnavailableError
from conformance.consumers._consumer import Consumer
from conformance.dtypes import CODES, OF_ML_DTYPES, numpy_type
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver


class Torch(Consumer):
    """On either side."""

    lacks = {name: f"torch has no {name}" for name in CODES if not hasattr(torch, name)}

    def take(self, offered: object) -> Any:
        """Import it."""
        return torch.from_dlpack(offered)

    def address(self, array: Any) -> int:
        """As torch says."""
        return array.data_ptr()

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        return tuple(array.stride())

    def dtype(self, array: Any) -> str:
        """Torch and NumPy name them alike."""
        return str(array.dtype).removeprefix("torch.")

    def device(self, array: Any) -> tuple[int, int]:
        """As torch says."""
        return (2, array.device.index) if array.device.type == "cuda" else (1, 0)

    def read(self, array: Any) -> np.ndarray:
        """Copy; torch converts no bfloat16 and no float8 to NumPy, so that goes by its bytes."""
        copied = array.clone().cpu().contiguous()
        name = self.dtype(copied)
        if name not in OF_ML_DTYPES:
            return copied.numpy()
        raw = copied.view(torch.int16 if name == "bfloat16" else torch.uint8)
        return raw.numpy().view(numpy_type(name))

    def write(self, array: Any, values: np.ndarray) -> None:
        """In place."""
        array.copy_(torch.from_numpy(np.ascontiguousarray(values)).to(array.device))
        if self.side is Side.CUDA:
            torch.cuda.synchronize()


def make(side: Side, driver: Driver) -> Torch:
    """Give the consumer."""
    if side is Side.CUDA and not torch.cuda.is_available():
        raise UnavailableError(f"torch {torch.__version__} sees no GPU")
    return Torch(side, driver)
