"""For CuPy, on a GPU: the arrays that the tests make lie over wrapped host memory, and their export is dlwrap's."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import cupy

import dlwrap
from conformance.peers.exports import Tally


class _OverHost(cupy.ndarray):
    """A CuPy array over a wrapped buffer, which exports in its place."""

    buffer: dlwrap.HostWrappedBuffer

    def __dlpack__(self, **request: Any) -> object:
        Tally.count += 1
        return self.buffer.__dlpack__(**request)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()


def after_importing(module: ModuleType) -> None:
    theirs = module._gen_array  # noqa: SLF001 - their function, by which the tests make arrays

    def generate(dtype: Any) -> _OverHost:
        buffer = dlwrap.wrap(cupy.asnumpy(theirs(dtype)))
        array = cupy.from_dlpack(buffer).view(type=_OverHost)
        array.buffer = buffer
        return array

    module._gen_array = generate  # noqa: SLF001
