"""The frameworks that take part, each in a file of its own, on the sides that it can be given."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.cannot import UnavailableError
from conformance.results import REFERENCE, Side

if TYPE_CHECKING:
    from conformance.consumers._consumer import Consumer
    from conformance.drivers._calls import Driver


@dataclass(frozen=True)
class Entry:
    """Where a consumer is found.

    Attributes
    ----------
    name : str
        As in the report.
    side : Side
        Which view it is given.
    module : str
        Its file here.
    packages : tuple of str
        The distributions that may provide it; the first that is installed gives the version.
    needs_gpu : bool
        Whether it needs a real driver.
    """

    name: str
    side: Side
    module: str
    packages: tuple[str, ...]
    needs_gpu: bool = False

    @property
    def label(self) -> str:
        """As in results: "torch (CPU view)"."""
        return self.name if self.side is Side.BOTH else f"{self.name} ({self.side})"

    @property
    def version(self) -> str:
        """The installed version, or an empty text."""
        for package in self.packages:
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return ""


_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
ENTRIES = (
    Entry(REFERENCE, Side.BOTH, "reference", ("dlwrap",)),
    Entry("numpy", Side.CPU, "numpy_", ("numpy",)),
    Entry("torch", Side.CPU, "torch_", ("torch",)),
    Entry("jax", Side.CPU, "jax_", ("jax",)),
    Entry("tvm-ffi", Side.CPU, "tvm_ffi_", ("apache-tvm-ffi",)),
    Entry("array-api-strict", Side.CPU, "array_api_strict_", ("array-api-strict",)),
    Entry("nanobind", Side.CPU, "nanobind_", ("nanobind",)),
    Entry("warp", Side.CPU, "warp_", ("warp-lang",)),
    Entry("tensorflow", Side.CPU, "tensorflow_", ("tensorflow", "tensorflow-cpu", "tensorflow_cpu")),
    Entry("paddle", Side.CPU, "paddle_", ("paddlepaddle", "paddlepaddle-gpu")),
    Entry("mlx", Side.CPU, "mlx_", ("mlx",)),
    Entry("torch", Side.CUDA, "torch_", ("torch",), needs_gpu=True),
    Entry("cupy", Side.CUDA, "cupy_", _CUPY, needs_gpu=True),
    Entry("jax", Side.CUDA, "jax_", ("jax",), needs_gpu=True),
    Entry("numba-cuda", Side.CUDA, "numba_cuda_", ("numba-cuda",)),
    Entry("cuda.core", Side.CUDA, "cuda_core_", ("cuda-core",)),
    Entry("tvm-ffi", Side.CUDA, "tvm_ffi_", ("apache-tvm-ffi",)),
    Entry("warp", Side.CUDA, "warp_", ("warp-lang",), needs_gpu=True),
)
BY_LABEL = {entry.label: entry for entry in ENTRIES}


def obstacle(entry: Entry, *, simulated: bool) -> str:
    """Say why a consumer cannot run here, as far as that is known without importing it."""
    if not entry.version:
        return f"{entry.packages[0]} is not installed"
    if entry.needs_gpu and simulated:
        return "needs a GPU"
    return ""


def load(entry: Entry, driver: Driver) -> Consumer:
    """Import a consumer into this process.

    Raises
    ------
    UnavailableError
        It cannot run here.
    """
    try:
        module = importlib.import_module(f"conformance.consumers.{entry.module}")
        return module.make(entry.side, driver)  # type: ignore[no-any-return]
    except UnavailableError:
        raise
    except Exception as error:  # what a framework's import may raise is its own affair
        raise UnavailableError(f"cannot be imported: {type(error).__name__}: {error}") from error
