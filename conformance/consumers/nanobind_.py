"""nanobind: a tiny extension, built at first use, whose function takes any `nb::ndarray`."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nanobind
import numpy as np

from conformance.building import build
from conformance.consumers._consumer import Consumer, read_by_address, write_by_address
from conformance.dtypes import NAMES, numpy_type

if TYPE_CHECKING:
    from types import ModuleType

    from conformance.drivers._calls import Driver
    from conformance.results import Side

_SOURCE = Path(__file__).with_name("nanobind_extension.cpp")


class Nanobind(Consumer):
    """It shows where the elements lie, and computes nothing."""

    def __init__(self, side: Side, driver: Driver, extension: ModuleType) -> None:
        super().__init__(side, driver)
        self._extension = extension

    def take(self, offered: object) -> Any:
        """Import it."""
        return self._extension.take(offered)

    def address(self, array: Any) -> int:
        """As nanobind says."""
        return array.ptr

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        return array.strides

    def dtype(self, array: Any) -> str:
        """Name what nanobind says."""
        code, bits, _ = array.dtype
        return NAMES.get((code, bits), f"code {code}, {bits} bits")

    def device(self, array: Any) -> tuple[int, int]:
        """As nanobind says."""
        return array.device

    def read(self, array: Any) -> np.ndarray:
        """Read where it points."""
        return read_by_address(self, array.ptr, array.shape, array.strides, numpy_type(self.dtype(array)))

    def write(self, array: Any, values: np.ndarray) -> None:
        """Write where it points."""
        write_by_address(self, array.ptr, array.shape, array.strides, values)

    def tail(self, array: Any) -> np.ndarray:
        """Read where it points."""
        dtype = numpy_type(self.dtype(array))
        (size,), (stride,) = array.shape, array.strides
        return read_by_address(self, array.ptr + (size - 4) * stride * dtype.itemsize, (4,), (stride,), dtype)


def make(side: Side, driver: Driver) -> Nanobind:
    """Build the extension, and give the consumer."""
    folder = Path(nanobind.__file__).parent
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    command += ["-fno-strict-aliasing", "-DNDEBUG"]
    command += [f"-I{path}" for path in (folder / "include", folder / "ext/robin_map/include")]
    command += [f"-I{sysconfig.get_path('include')}"]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = build([_SOURCE, folder / "src/nb_combined.cpp"], command, suffix)
    loader = importlib.machinery.ExtensionFileLoader("nanobind_extension", str(built))
    spec = importlib.util.spec_from_loader("nanobind_extension", loader)
    assert spec is not None
    extension = importlib.util.module_from_spec(spec)
    loader.exec_module(extension)
    return Nanobind(side, driver, extension)
