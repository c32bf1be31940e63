"""A real CUDA driver with a GPU; work waits in the latch kernel of the GPU tests."""

from __future__ import annotations

import contextlib
import gc
import re
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dlwrap
from conformance.drivers._calls import Calls
from conformance.memory import plain_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

_GPU_TESTS = Path(__file__).resolve().parents[2] / "tests" / "gpu"


class RealDriver(Calls):
    """Work waits in a kernel that spins on a word of page-locked memory."""

    simulated = False

    def __init__(self) -> None:
        super().__init__()
        name = self.call("cuDeviceGetName", 128, 0)
        self._gpu = bytes(name).split(b"\0", 1)[0].decode()
        self._cuda = int(self.call("cuDriverGetVersion"))
        self.name = f"{self._gpu}, CUDA driver {self._cuda // 1000}.{self._cuda % 1000 // 10}"
        self._kernels: Any = None
        self._latches: list[Any] = []

    def describe(self) -> dict[str, Any]:
        """Name the hardware."""
        version = Path("/proc/driver/nvidia/version")
        found = re.search(r"\d+\.\d+(\.\d+)?", version.read_text(encoding="utf-8")) if version.exists() else None
        return {"gpu": self._gpu, "driver": found[0] if found else "unknown", "memory": dlwrap.support(0).memory}

    def reset(self) -> None:
        """Begin a check with nothing held or pending."""
        gc.collect()
        for latch in self._latches:
            latch.open()
        self._latches.clear()
        with contextlib.suppress(TimeoutError):
            dlwrap.reclaim(5)
        self.set_context(self.primary)

    def memory(self, nbytes: int) -> np.ndarray:
        """Make bytes of a mapping of their own; a kernel that reads them after their end faults."""
        return plain_bytes(nbytes)

    def busy(self, stream: int, pointer: int, nbytes: int) -> Callable[[], None]:
        """Launch the latch kernel: it waits, and then overwrites the floats."""
        latch = self._get_kernels().new_latch()
        (value,) = struct.unpack("f", b"\7\7\7\7")
        latch.launch(stream, pointer, nbytes // 4, value)
        self._latches.append(latch)

        def let_go() -> None:
            latch.open()
            latch.wait()

        return let_go

    def use_pageable_memory(self) -> bool:
        """Tell whether the device reads ordinary memory; it cannot be made to."""
        return dlwrap.support(0).memory == "pageable"

    def _get_kernels(self) -> Any:
        if self._kernels is None:
            sys.path.insert(0, str(_GPU_TESTS))
            from _latch import Kernels

            self._kernels = Kernels()
        return self._kernels
