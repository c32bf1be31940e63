"""Who may still touch which bytes: a model of a GPU's work and of what a release has to wait for; knows no dlwrap.

A lease is what one wrap, pin or exported copy lends. It has holders: the wrapper, live exports, captured graphs. When
the last one goes, it is pending until the work that it has to wait for has run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

LEGACY, PER_THREAD = 1, 2


@dataclass(eq=False)
class Memory:
    """Host memory of one array.

    Attributes
    ----------
    start, stop : int
        Its addresses.
    array : ndarray or None
        The program's own reference.
    freed : bool or None
        Whether it was given back; None where nobody can tell.
    """

    start: int
    stop: int
    array: Any = None
    freed: bool | None = False


@dataclass(eq=False)
class Graph:
    """A capture, and the graph that comes of it.

    Attributes
    ----------
    leases : set of Lease
        Whose bytes its launches touch.
    handle : int
        0 while it is being captured.
    """

    leases: set[Lease] = field(default_factory=set)
    handle: int = 0


@dataclass(eq=False)
class Stream:
    """A stream.

    Attributes
    ----------
    owner : object
        What the program keeps the stream alive with; None for raw handles, and once it has let go.
    is_owned, is_destroyed : bool
        Whether there is such an owner, and whether its last reference went.
    is_usable : bool
        Whether the program may use the handle.
    """

    handle: int
    device: int
    blocking: bool = True
    owner: Any = None
    is_owned: bool = False
    is_destroyed: bool = False
    is_usable: bool = True
    held: bool = False
    capture: Graph | None = None

    @property
    def is_ordinary(self) -> bool:
        return self.handle > PER_THREAD


@dataclass(eq=False)
class Work:
    """A kernel on a stream; `Model.markers[marker]` becomes 1 when it, and so all before it on the stream, has run."""

    stream: Stream
    leases: tuple[Lease, ...]
    marker: int
    graph: Graph | None = None


@dataclass(eq=False)
class Lease:
    """Bytes that are lent out.

    Attributes
    ----------
    memory, start, stop
        The bytes, and the memory they are part of.
    device_wide, streams
        What the release waits for.
    registered : tuple of int or None
        Start and stop of the page-locked range that serves it.
    pointer : int
        The device's address, once a consumer knows it.
    handle : object
        The wrapper or pin, as long as the program has it.
    exports, graphs
        The other holders; a graph may be one several times.
    """

    memory: Memory
    start: int
    stop: int
    device: int
    device_wide: bool = False
    streams: set[Stream] = field(default_factory=set)
    registered: tuple[int, int] | None = None
    pointer: int = 0
    handle: Any = None
    exports: int = 0
    graphs: list[Graph] = field(default_factory=list)
    # Once released:
    submitted_before: list[Work] = field(default_factory=list)
    unrecorded: set[Stream] = field(default_factory=set)
    probes: list[Work] = field(default_factory=list)

    @property
    def is_held(self) -> bool:
        return self.handle is not None or self.exports > 0 or bool(self.graphs)

    def may_be_used_on(self, stream: Stream) -> bool:
        """Whether the release waits for work on this stream."""
        return stream in self.streams or (self.device_wide and stream.device == self.device)


class Model:
    """Everything that is alive.

    Attributes
    ----------
    live : list of Lease
        Those with holders.
    pending : list of Lease
        Those that were released, and of which it isn't known that they are done.
    """

    def __init__(self, markers: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.markers = markers
        self.memories: list[Memory] = []
        self.streams: list[Stream] = []
        self.graphs: list[Graph] = []
        self.live: list[Lease] = []
        self.pending: list[Lease] = []
        self._work: list[Work] = []
        self._submitted = 0

    # ---- what happens ----

    def submit(self, stream: Stream, leases: tuple[Lease, ...] = (), graph: Graph | None = None) -> Work:
        """Note work; whoever calls has it run."""
        work = Work(stream, leases, self._submitted, graph)
        self._submitted += 1
        self._work.append(work)
        return work

    def tell(self, lease: Lease, stream: Stream | None) -> None:
        """Note a stream that the lease may be used on; None where it cannot be tracked."""
        if stream is None:
            lease.device_wide = True
        else:
            lease.streams.add(stream)

    def release_unless_held(self, lease: Lease) -> None:
        """Begin the release if the last holder is gone."""
        if lease.is_held or lease not in self.live:
            return
        self.live.remove(lease)
        self.pending.append(lease)
        lease.unrecorded = set(lease.streams)
        lease.submitted_before = [work for work in self.unfinished() if lease.may_be_used_on(work.stream)]

    def forget_done(self) -> None:
        """Strike out what is done for sure."""
        self.pending = [lease for lease in self.pending if self.may_wait(lease)]

    def forget_pending(self) -> None:
        """Strike out all that was released, because somebody waited for its end."""
        self.pending = [lease for lease in self.pending if self.must_wait(lease)]

    # ---- what is asked ----

    def unfinished(self) -> list[Work]:
        """Give the work that has not run."""
        self._work = [work for work in self._work if not self.markers[work.marker]]
        return self._work

    def is_unfinished(self, work: Work) -> bool:
        return not self.markers[work.marker]

    def is_blocked_by_capture(self, stream: Stream) -> bool:
        """Whether touching the stream now would end up in a capture, or break one."""
        if stream.handle != LEGACY:
            return stream.capture is not None
        return any(other.capture and other.blocking and other.device == stream.device for other in self.streams)

    def must_wait(self, lease: Lease) -> bool:
        """Whether a lease that was released cannot be done yet."""
        captured = any(stream.is_ordinary for stream in lease.unrecorded)
        own = (work for work in self.unfinished() if lease in work.leases)
        return captured or any(map(self.is_unfinished, [*lease.submitted_before, *own]))

    def may_wait(self, lease: Lease) -> bool:
        """Whether it need not be done yet.

        An event comes behind more than it has to: on the legacy stream behind the work of blocking streams, on these
        behind the legacy stream's. How soon a device-wide wait is made nobody says.
        """
        late = bool(lease.unrecorded) or any(map(self.is_unfinished, lease.probes))
        return late or lease.device_wide or self.must_wait(lease)

    def in_use(self, memory: Memory) -> bool:
        """Whether somebody may still touch the memory."""
        return memory.array is not None or any(lease.memory is memory for lease in self.users())

    def users(self) -> list[Lease]:
        """Give the leases whose bytes may still be touched."""
        return [*self.live, *filter(self.must_wait, self.pending)]

    def is_idle(self) -> bool:
        """Whether everything that was released can be given back now."""
        blocked = any(
            map(self.is_blocked_by_capture, {stream for lease in self.pending for stream in lease.unrecorded})
        )
        return not self.unfinished() and not blocked
