"""What worker processes do in these tests: they have the GPU of a simulated driver of their own read an array."""

from __future__ import annotations

import time

import dlwrap
from dlwrap import testing

STREAM = 1
SECONDS = 20


def use(buffer: dlwrap.HostWrappedBuffer) -> None:
    """Begin a kernel that reads the whole buffer, and does not end."""
    cuda = testing.activate()
    buffer.record_stream(STREAM)
    cuda.hold(STREAM)
    cuda.launch(STREAM, buffer.array)


def finish() -> None:
    """End the kernels, and wait until everything is released."""
    testing.activate().let_go(STREAM)
    dlwrap.reclaim(SECONDS)


def mapping(address: int) -> tuple[int, int, str, str]:
    """Give the mapping of an address: its start, its stop, its permissions, and its file."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, permissions, _offset, _device, _inode, *path = line.split()
            start, stop = (int(end, 16) for end in span.split("-"))
            if start <= address < stop:
                return start, stop, permissions, path[0] if path else ""
    raise LookupError(f"{address:#x} is not mapped")


def eventually(condition, seconds: float = SECONDS) -> bool:
    """Wait for what other threads and processes bring about."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
