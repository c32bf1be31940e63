"""The frameworks as importers: import a wrapped array, tell its address, read it by the GPU, fill it by the GPU."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from _cuda import address, call


class Torch:
    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def take(self, buffer: Any) -> Any:
        return self._torch.from_dlpack(buffer)

    def address(self, tensor: Any) -> int:
        return tensor.data_ptr()

    def read(self, tensor: Any) -> np.ndarray:
        copied = tensor.clone().cpu()
        if copied.dtype is not self._torch.bfloat16:
            return copied.numpy()
        import ml_dtypes

        return copied.contiguous().view(self._torch.uint16).numpy().view(ml_dtypes.bfloat16)

    def fill(self, tensor: Any, value: float) -> None:
        tensor.fill_(value)
        self._torch.cuda.synchronize()


class Cupy:
    name = "cupy"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def take(self, buffer: Any) -> Any:
        return self._cupy.from_dlpack(buffer)

    def address(self, array: Any) -> int:
        return array.data.ptr

    def read(self, array: Any) -> np.ndarray:
        return array.copy().get()

    def fill(self, array: Any, value: float) -> None:
        array[...] = value
        self._cupy.cuda.get_current_stream().synchronize()


class Jax:
    name = "jax"

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def take(self, buffer: Any) -> Any:
        return self._jax.dlpack.from_dlpack(buffer)

    def address(self, array: Any) -> int:
        return array.unsafe_buffer_pointer()

    def read(self, array: Any) -> np.ndarray:
        # A copy by the GPU; numpy.asarray(array) itself would be kept by the array.
        return np.array(self._jax.numpy.copy(array))


class Numba:
    name = "numba"

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def take(self, buffer: Any) -> Any:
        return self._cuda.as_cuda_array(buffer)

    def address(self, array: Any) -> int:
        return array.device_ctypes_pointer.value

    def read(self, array: Any) -> np.ndarray:
        return array.copy_to_host()

    def fill(self, array: Any, value: float) -> None:
        array.copy_to_device(np.full(array.shape, value, array.dtype))


class CudaCore:
    name = "cuda.core"

    def __init__(self, core: Any) -> None:
        self._core = core

    def take(self, buffer: Any) -> Any:
        return self._core.utils.StridedMemoryView.from_dlpack(buffer, stream_ptr=-1)

    def address(self, view: Any) -> int:
        return view.ptr

    def read(self, view: Any) -> np.ndarray:
        counts = view.strides or _compact(view.shape)
        reach = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, counts, strict=True))
        copied = np.empty(reach, view.dtype)
        call("cuMemcpyDtoH", address(copied), view.ptr, copied.nbytes)
        strides = [stride * copied.itemsize for stride in counts]
        return np.lib.stride_tricks.as_strided(copied, view.shape, strides).copy()

    def fill(self, view: Any, value: float) -> None:
        (bits,) = struct.unpack("I", struct.pack("f", value))
        call("cuMemsetD32", view.ptr, bits, view.size)
        call("cuStreamSynchronize", 1)


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


CLASSES = {"torch": Torch, "cupy": Cupy, "jax": Jax, "numba_cuda": Numba, "cuda_core": CudaCore}
