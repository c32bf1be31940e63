"""torch: a tensor over the host array; where there is a GPU, a CUDA tensor with the same values."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from conformance.cannot import CannotBeAskedError
from conformance.consumers.torch_ import Torch
from conformance.dtypes import OF_ML_DTYPES
from conformance.producers._blocks import block_of, check_native
from conformance.producers._subject import Producer, Subject
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver


class OnGpu(Subject):
    """A CUDA tensor; the end of its memory cannot be watched."""

    def __init__(self, tensor: Any, consumer: Torch) -> None:
        self.offered = tensor
        self._consumer = consumer

    @property
    def array(self) -> np.ndarray:
        """There is none."""
        raise CannotBeAskedError("a CUDA tensor lies in device memory, not in the host array")

    def address(self, side: Side) -> int:  # noqa: ARG002
        """As torch says."""
        return self.offered.data_ptr()

    def read(self) -> np.ndarray:
        """Copy from the GPU."""
        return self._consumer.read(self.offered)

    def write(self, values: np.ndarray) -> None:
        """Copy to the GPU."""
        self._consumer.write(self.offered, values)

    def drop(self) -> None:
        """Let go of the tensor."""
        self.offered = None

    def alive(self) -> bool:
        """Nobody can tell."""
        raise CannotBeAskedError("the end of torch's device memory cannot be watched")


def tensor_of(array: np.ndarray) -> Any:
    """Make a tensor over the host array."""
    check_native(array, "torch")
    if not array.flags.writeable:
        raise CannotBeAskedError("torch has no read-only tensors")
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        raise CannotBeAskedError(f"torch has no tensors with strides {array.strides} of {array.itemsize}-byte elements")
    name = array.dtype.name
    if not hasattr(torch, name):
        raise CannotBeAskedError(f"torch has no {name}")
    if name in OF_ML_DTYPES:
        return torch.from_numpy(array.view(f"int{8 * array.itemsize}")).view(getattr(torch, name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def make(driver: Driver) -> Producer:
    """Give the producer, on the GPU where there is one."""
    if not torch.cuda.is_available():
        return Producer("torch", Side.CPU, lambda array: Subject(tensor_of(array), array), ("torch",))
    consumer = Torch(Side.CUDA, driver)

    def upload(array: np.ndarray) -> OnGpu:
        tensor = tensor_of(array)
        if array.size == 0:
            return OnGpu(torch.empty(array.shape, dtype=tensor.dtype, device="cuda"), consumer)
        block, strides = block_of(array)
        flat = torch.from_numpy(block).cuda().view(tensor.dtype)
        return OnGpu(flat.as_strided(array.shape, strides), consumer)

    return Producer("torch", Side.CUDA, upload, ("torch",), in_place=False)
