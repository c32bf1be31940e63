"""For cuda.core: arrays that dlwrap exports as CPU views, and others in place of CuPy's and numba's arrays."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from conformance.peers.exports import DeviceArray, HostArray
from conformance.peers.namespace_of import Namespace


class _LikeCupy(DeviceArray):
    @property
    def data(self) -> SimpleNamespace:
        return SimpleNamespace(ptr=self.device_pointer)


class _LikeNumba(DeviceArray):
    @property
    def device_ctypes_pointer(self) -> SimpleNamespace:
        return SimpleNamespace(value=self.device_pointer)


def while_importing() -> dict[str, ModuleType]:
    numba = ModuleType("numba")
    numba.cuda = SimpleNamespace(
        device_array=lambda shape, dtype: np.zeros(shape, dtype).view(_LikeNumba),
        cudadrv=SimpleNamespace(devicearray=SimpleNamespace(DeviceNDArray=_LikeNumba)),
    )
    return {"numpy": Namespace("numpy", HostArray), "numba": numba}


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Namespace("cupy", _LikeCupy))  # the tests import it while they run
