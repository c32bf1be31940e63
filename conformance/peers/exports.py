"""NumPy arrays whose DLPack export is dlwrap's, and the count of such exports."""

from __future__ import annotations

from typing import Any

import numpy as np

import dlwrap

_CPU = (1, 0)


class Tally:
    """How often dlwrap exported; by it a test is known to have reached dlwrap."""

    count = 0


def export_to_host(array: np.ndarray, request: dict[str, Any]) -> object:
    """Give the CPU view of an array as a capsule; a CPU framework names no device, so it is named here."""
    Tally.count += 1
    return dlwrap.wrap(array).__dlpack__(**{"dl_device": _CPU, **_without_none(request, "dl_device")})


def export_to_device(array: np.ndarray, request: dict[str, Any]) -> object:
    """Give an array as a capsule for the CUDA device."""
    Tally.count += 1
    return dlwrap.wrap(array).__dlpack__(**request)


def _without_none(request: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name != key or value is not None}


class HostArray(np.ndarray):
    """A NumPy array that hands itself over as dlwrap's CPU view; so do its slices and what is computed from it."""

    def __dlpack__(self, **request: Any) -> object:
        return export_to_host(self.view(np.ndarray), request)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


class DeviceArray(np.ndarray):
    """A NumPy array that hands itself over as memory of the CUDA device; it stands in for a GPU array."""

    def __dlpack__(self, **request: Any) -> object:
        return export_to_device(self.view(np.ndarray), request)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlwrap.wrap(self.view(np.ndarray)).__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        Tally.count += 1
        return dlwrap.wrap(self.view(np.ndarray)).__cuda_array_interface__

    @property
    def device_pointer(self) -> int:
        """The device's address of the first element, also where the strides are such that nothing can be exported."""
        owner: Any = self
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return dlwrap.wrap(owner.view(np.ndarray)).ptr + self.ctypes.data - owner.ctypes.data
