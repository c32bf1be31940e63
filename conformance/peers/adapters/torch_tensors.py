"""For torch: a tensor's export is dlwrap's, of the host memory under the tensor.

On a GPU, tensors that the tests make lie over wrapped host memory; what is computed from them is copied to the host.
What torch alone can judge (tensors with gradients, conjugates, sparse and quantized ones) stays torch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import dlwrap
from conformance.peers.exports import Tally, export_to_device, export_to_host

_BY_BYTES = {"bfloat16": torch.int16, **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), torch.uint8)}
_over_host: dict[int, np.ndarray] = {}  # the device's address -> the wrapped array


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    own_export = torch.Tensor.__dlpack__
    own_make = torch.testing.make_tensor

    def export(tensor: torch.Tensor, **request: Any) -> object:
        host = _host_array(tensor)
        if host is None:
            return own_export(tensor, **request)
        return (export_to_device if tensor.is_cuda else export_to_host)(host, request)

    def make_tensor(*shape: Any, dtype: torch.dtype, device: Any, **how: Any) -> torch.Tensor:
        if torch.device(device).type != "cuda":
            return own_make(*shape, dtype=dtype, device=device, **how)
        host = _host_array(own_make(*shape, dtype=dtype, device="cpu", **how))
        if host is None:
            return own_make(*shape, dtype=dtype, device=device, **how)
        Tally.count += 1
        tensor = torch.from_dlpack(dlwrap.wrap(host))
        _over_host[tensor.data_ptr()] = host
        return tensor

    monkeypatch.setattr(torch.Tensor, "__dlpack__", export)
    monkeypatch.setattr(torch.testing, "make_tensor", make_tensor)
    monkeypatch.setattr(torch.utils.dlpack, "to_dlpack", lambda tensor: tensor.__dlpack__())


def _strides_in_elements(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def _host_array(tensor: torch.Tensor) -> np.ndarray | None:
    """Give the host memory under a tensor as an array of the same layout, or None where only torch can export it."""
    if tensor.is_quantized or tensor.layout is not torch.strided or tensor.requires_grad or tensor.is_conj():
        return None
    if tensor.is_cuda:
        known = _over_host.get(tensor.data_ptr())
        if known is not None and (known.shape, _strides_in_elements(known)) == (tuple(tensor.shape), tensor.stride()):
            return known
        tensor = tensor.cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    bits = tensor.view(_BY_BYTES[name]) if name in _BY_BYTES else tensor
    try:
        memory = torch.empty(0, dtype=bits.dtype).set_(bits.untyped_storage()).numpy()
    except TypeError:  # a type that NumPy has not
        return None
    # A view of all that the tensor's storage has, for two slices of it overlap only if dlwrap sees what owns both.
    strides = [stride * memory.itemsize for stride in bits.stride()]
    array = np.lib.stride_tricks.as_strided(memory[bits.storage_offset() :], tuple(bits.shape), strides)
    return array.view(getattr(pytest.importorskip("ml_dtypes"), name)) if name in _BY_BYTES else array
