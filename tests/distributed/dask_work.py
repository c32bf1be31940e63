"""What Dask's workers do in the tests: each has a simulated driver of its own."""

from __future__ import annotations

import ctypes
import gc
import weakref
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from kernels import finish, mapping, use

import dlwrap
from dlwrap import testing

SHAPE = (512, 1024)
NBYTES = 4 * SHAPE[0] * SHAPE[1]

address = 0
held = None  # a weak reference to the array in use


def simulate() -> None:
    """Use the simulated driver in this process, and let nothing linger."""
    testing.activate()
    dlwrap.configure(linger_seconds=0)


def open_block(name: str):
    """Open a block by its name, and wrap it as raw memory."""
    return dlwrap.wrap(SharedMemory(name), dtype=np.float32, shape=SHAPE)


def open_array(name: str):
    """Open a block by its name, and wrap an array over it; the block has to live as long."""
    global block  # noqa: PLW0603 -- the block outlives this call
    block = SharedMemory(name)
    return dlwrap.wrap(np.ndarray(SHAPE, np.float32, block.buf))


def map_file(name: str):
    """Map a block's file in /dev/shm."""
    return dlwrap.wrap(np.memmap(f"/dev/shm/{name}", np.float32, "r+", shape=SHAPE))


def map_file_to_read(name: str):
    """Map a block's file in /dev/shm read-only."""
    return dlwrap.wrap(np.memmap(f"/dev/shm/{name}", np.float32, "r", shape=SHAPE))


def begin(opener, name: str) -> dict[str, object]:
    """Have the GPU use a block, and keep nothing of it but its address."""
    global address  # noqa: PLW0603
    buffer = opener(name)
    address = buffer.array.ctypes.data
    use(buffer)
    [registered] = testing.activate().registrations
    return {
        "readonly": buffer.readonly,
        "page-locked": (registered.start - address, registered.nbytes),
        "read-only flag": bool(registered.flags & 8),
    }


def begin_with(array: np.ndarray) -> dict[str, object]:
    """Have the GPU use an array that came as an argument, and keep nothing of it but a weak reference."""
    global address, held
    array = np.require(array, requirements="A")  # what came in one message with others lies at any address
    buffer = dlwrap.wrap(array)
    address, held = array.ctypes.data, weakref.ref(array)
    use(buffer)
    return {"readonly": buffer.readonly, "in place": buffer.array.ctypes.data == address, "mean": float(array.mean())}


def state() -> tuple[int, float]:
    """Give how many ranges are page-locked, and what lies at the address."""
    gc.collect()
    return len(testing.activate().registrations), ctypes.c_float.from_address(address).value


def is_alive() -> bool:
    """Whether the array that came as an argument is still there."""
    gc.collect()
    return held() is not None


def end() -> bool:
    """End the kernels; give whether the memory is still mapped afterwards."""
    finish()
    try:
        return mapping(address)[3].startswith("/dev/shm")
    except LookupError:
        return False


def close_block() -> None:
    """Close what `open_array` opened."""
    block.close()
