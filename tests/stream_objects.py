"""Objects that frameworks have for streams."""

from __future__ import annotations


def pose_as_cupy(cls):
    """Give a class the name of CuPy's streams, whose handles live as long as the objects."""
    cls.__module__, cls.__qualname__ = "cupy.cuda.stream", "Stream"
    return cls


@pose_as_cupy
class OwnedStream:
    """Poses as a CuPy stream: holding it keeps the handle alive."""

    def __init__(self, handle):
        self.ptr = handle

    def __cuda_stream__(self):
        return (0, self.ptr)


@pose_as_cupy
class SimulatedStream(OwnedStream):
    """Likewise; it makes the stream on the simulated driver, and its end is the stream's."""

    def __init__(self, cuda, **options):
        self._cuda = cuda
        super().__init__(cuda.create_stream(**options))

    def __del__(self):
        self._cuda.destroy_stream(self.ptr)


class UnknownStream(OwnedStream):
    """Tells its handle, and may destroy it at any time."""
