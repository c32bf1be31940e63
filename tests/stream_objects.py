"""Objects that frameworks have for streams."""

from __future__ import annotations


class OwnedStream:
    """Poses as a CuPy stream: holding it keeps the handle alive."""

    def __init__(self, handle):
        self.ptr = handle

    def __cuda_stream__(self):
        return (0, self.ptr)


OwnedStream.__module__, OwnedStream.__qualname__ = "cupy.cuda.stream", "Stream"


class UnknownStream(OwnedStream):
    """Tells its handle, and may destroy it at any time."""
