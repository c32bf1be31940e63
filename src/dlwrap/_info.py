"""Finds out what dlwrap can do on this machine; shows nothing, and imports no consumer."""

from __future__ import annotations

import itertools
import platform
from dataclasses import dataclass
from importlib import metadata

import dlwrap
from dlwrap import testing

# What users call it, and the distributions that it may come in.
_CONSUMERS = {
    "PyTorch": ("torch",),
    "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "JAX": ("jax",),
    "JAX for CUDA": ("jax-cuda13-plugin", "jax-cuda12-plugin"),
    "numba-cuda": ("numba-cuda",),
    "cuda.core": ("cuda-core",),
    "TVM FFI": ("apache-tvm-ffi",),
    "Triton": ("triton",),
    "Warp": ("warp-lang",),
    "TensorFlow": ("tensorflow",),
    "cuDF": ("cudf-cu13", "cudf-cu12"),
}

_ADVICE = {
    "NO_DRIVER": "nvidia-smi has to list the GPU; a container has to be given it.",
    "NO_BINDINGS": "Install the CUDA bindings: pip install cuda-bindings",
    "CUDA_ERROR_NO_DEVICE": "Look at CUDA_VISIBLE_DEVICES, and at what nvidia-smi lists.",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes
    ----------
    devices : tuple of DeviceSupport
        Every CUDA device, by ordinal.
    obstacle, obstacle_name, advice : str or None
        Why no device can be used, the driver's name for it, and what to do.
    simulated : bool
        Whether the devices are those of the simulated driver.
    versions : dict of str to str
        dlwrap, and what it stands on.
    consumers : dict of str to str
        The consumers that are installed, with the distribution and its version.
    """

    devices: tuple[dlwrap.DeviceSupport, ...]
    obstacle: str | None
    obstacle_name: str | None
    advice: str | None
    simulated: bool
    versions: dict[str, str]
    consumers: dict[str, str]


def collect() -> Report:
    """Ask the driver and the installed packages."""
    obstacle = name = advice = None
    devices: tuple[dlwrap.DeviceSupport, ...] = ()
    try:
        devices = _all_devices()
        if not devices:
            obstacle, name = "the CUDA driver has no device", "CUDA_ERROR_NO_DEVICE"
            advice = _ADVICE[name]
    except dlwrap.CudaError as error:
        obstacle, name, advice = str(error), error.name, _ADVICE.get(error.name)
    return Report(devices, obstacle, name, advice, testing.active(), _versions(), _installed_consumers())


def _all_devices() -> tuple[dlwrap.DeviceSupport, ...]:
    found = []
    for ordinal in itertools.count():
        try:
            found.append(dlwrap.support(ordinal))
        except ValueError:  # beyond the last device
            break
    return tuple(found)


def _versions() -> dict[str, str]:
    return {
        "dlwrap": dlwrap.__version__,
        "cuda-bindings": _version("cuda-bindings") or "not installed",
        "numpy": _version("numpy") or "not installed",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _installed_consumers() -> dict[str, str]:
    found = {}
    for name, distributions in _CONSUMERS.items():
        versions = [f"{each} {version}" for each in distributions if (version := _version(each))]
        if versions:
            found[name] = ", ".join(versions)
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
