"""What the processes of Ray do in the tests: each has a simulated driver of its own."""

from __future__ import annotations

import ctypes
import gc
import os
import threading

import numpy as np
import ray
from kernels import STREAM, eventually, finish, mapping, use

import dlwrap
from dlwrap import testing

MIB = 2**20


class Worker:
    """Uses objects of the store; as an actor of Ray."""

    def __init__(self) -> None:
        self.cuda = testing.activate()
        self.address = 0
        self.linger(0)

    def read(self, box) -> float:
        """Read an object without dlwrap."""
        return float(ray.get(box[0]).max())

    def look(self, array, readonly=None) -> dict[str, object]:
        """Say what dlwrap makes of an array that is an argument of this call."""
        with dlwrap.wrap(array, readonly=readonly) as buffer:
            [registered] = self.cuda.registrations
            start, stop, permissions, path = mapping(array.ctypes.data)
            return {
                "readonly": buffer.readonly,
                "memory": buffer.memory,
                "in place": buffer.array.ctypes.data == array.ctypes.data,
                "page-locked": (registered.start - array.ctypes.data, registered.nbytes),
                "flags": registered.flags,
                "mapping": (stop - start, permissions, path.rpartition("/")[0]),
            }

    def wrap(self, array) -> dlwrap.HostWrappedBuffer:
        """Give back what cannot leave a process."""
        return dlwrap.wrap(array)

    def begin(self, box) -> int:
        """Use the object that a box refers to, and keep nothing of it but its address."""
        array = ray.get(box[0])
        self.address = array.ctypes.data
        use(dlwrap.wrap(array))
        return os.getpid()

    def use_and_finish(self, box) -> None:
        """Use an object until the GPU is done with it; its memory lingers page-locked from then on."""
        self.begin(box)
        self.cuda.let_go(STREAM)
        assert eventually(lambda: not dlwrap.stats().pending)

    def state(self) -> tuple[int, int, float]:
        """Give how many releases are pending, how many ranges are page-locked, and what lies at the address."""
        gc.collect()
        found = ctypes.c_float.from_address(self.address).value
        return dlwrap.stats().pending, len(self.cuda.registrations), found

    def finish(self) -> None:
        """End the kernels, and wait until everything is released."""
        finish()

    def linger(self, seconds: float) -> None:
        """Say how long memory lingers from now on."""
        dlwrap.configure(linger_seconds=seconds)


def use_in_a_task(box, signal: str) -> None:
    """Use an object in a kernel that runs on after the task, until there is a file named `signal`."""
    testing.activate()
    dlwrap.configure(linger_seconds=0)
    use(dlwrap.wrap(ray.get(box[0])))
    threading.Thread(target=_let_go_after, args=[signal], daemon=True).start()


def _let_go_after(signal: str) -> None:
    eventually(lambda: os.path.exists(signal))
    testing.activate().let_go(STREAM)


def floats(mib: int, fill: float) -> np.ndarray:
    return np.full(mib * MIB // 4, fill, np.float32)
