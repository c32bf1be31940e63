"""The simulated driver as tests see it: settings, held streams, planned failures, gates, and the call log."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dlwrap.testing import _memory
from dlwrap.testing._library import SUCCESS, ListedRegistration, LoggedCall, Settings

if TYPE_CHECKING:
    import numpy.typing as npt

CaptureMode = Literal["global", "thread_local", "relaxed"]
CaptureStatus = Literal["none", "active", "invalidated"]

_MODES: dict[str, int] = {"global": 0, "thread_local": 1, "relaxed": 2}
_STATUSES: tuple[CaptureStatus, ...] = ("none", "active", "invalidated")
_NON_BLOCKING = 1


class SimulationError(RuntimeError):
    """The simulated driver refused what a test asked of it.

    Attributes
    ----------
    code : int
        The ``CUresult`` it refused with.
    """

    def __init__(self, code: int, request: str) -> None:
        self.code = code
        self._request = request
        super().__init__(f"the simulated driver refused to {request}: CUresult {code}")

    def __reduce__(self) -> tuple[type[SimulationError], tuple[int, str]]:
        return type(self), (self.code, self._request)


@dataclass(frozen=True, slots=True)
class Registration:
    """One page-locked range: ``nbytes`` bytes at the host address ``start``."""

    start: int
    nbytes: int
    flags: int
    device: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One driver call: which function, by which thread, and whether that thread held the GIL."""

    function: str
    thread_id: int
    thread_name: str
    gil_held: bool


class SimulatedDriver:
    """Drives the simulated CUDA driver; `dlwrap.testing.activate` gives the one there is.

    Streams, graphs, executables and device pointers are plain integers, the values of the driver's handles. None of
    these methods appears in the call log, and none can be made to fail by `fail`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._thread_names: dict[int, str] = {}

    # Settings

    def configure(
        self,
        *,
        devices: int = 1,
        pageable: bool = False,
        host_page_tables: bool = False,
        host_register: bool = True,
        read_only_register: bool = True,
        pointer_offset: int = 0,
        driver_version: int = 13000,
        compute_capability: tuple[int, int] = (9, 0),
        dead_handle: Literal["abort", "error"] = "abort",
        strict: bool = True,
        unregister_blocks_launches: bool = False,
        concurrent_managed: bool = True,
    ) -> None:
        """Set how the devices behave; whatever is not given becomes the default again.

        Parameters
        ----------
        devices
            How many there are, up to 8.
        pageable, host_page_tables
            Whether they reach memory that is not page-locked, and through the host's page tables.
        host_register, read_only_register
            Whether they can page-lock existing memory, and memory that is mapped read-only.
        pointer_offset
            Bytes between the host's and the device's address of page-locked memory.
        driver_version
            1000 * major + 10 * minor; functions that came later are missing.
        compute_capability
            Of every device.
        dead_handle
            What touching a destroyed stream does: "abort", or the "error" INVALID_CONTEXT.
        strict
            Whether unregistering memory with work pending on it aborts, rather than wait.
        unregister_blocks_launches
            Whether launches of other threads wait while an unregister or a free waits.
        concurrent_managed
            Whether the host may touch managed memory while a device works.

        Raises
        ------
        RuntimeError
            If work is pending or memory is registered.
        """
        major, minor = compute_capability
        settings = Settings(
            devices=devices,
            pageable=pageable,
            host_page_tables=host_page_tables,
            host_register=host_register,
            read_only_register=read_only_register,
            pointer_offset=pointer_offset,
            driver_version=driver_version,
            compute_major=major,
            compute_minor=minor,
            abort_on_dead_handle=_is_abort(dead_handle),
            strict=strict,
            unregister_blocks_launches=unregister_blocks_launches,
            concurrent_managed=concurrent_managed,
        )
        self._check(self._library.dlwrap_sim_configure(ctypes.byref(settings)), "take new settings while it is in use")

    def reset(self, force: bool = False) -> None:
        """Go back to the default settings: no failures, no gates, no log, no errors, nothing held or capturing.

        Live handles and retained contexts stay what they are, since libraries keep events and primary contexts
        for as long as the process lives. Only the calling thread's stack of contexts is emptied, and its capture
        mode made global. Graphs and executables lose their nodes and their references to user objects, and can
        only be destroyed from then on; the destructors of user objects that nobody else holds have run when this
        returns.

        Parameters
        ----------
        force
            Drop pending work unexecuted, and registrations; without it either makes the reset fail. Drop also the
            references to user objects that the program holds itself.

        Raises
        ------
        RuntimeError
            If work is pending or memory is registered.
        TimeoutError
            If a destructor does not return within 10 seconds.
        """
        self._check(
            self._library.dlwrap_sim_reset(ctypes.byref(_default_settings()), int(force)),
            "reset while work is pending or memory registered",
        )
        self.wait_for_destructors()

    def assert_clean(self) -> None:
        """Raise an AssertionError that lists what is pending or registered, if anything is, and user objects.

        A user object counts if the program itself holds a reference that it never gave back or handed over, since
        the end of no graph can end it. Graphs, and what only they own, do not count: libraries may keep them.
        """
        pending, registered, references = self.pending(), self.registrations, self._library.dlwrap_sim_user_references()
        if pending or registered or references:
            raise AssertionError(
                f"{pending} operations pending, {len(registered)} ranges registered: {registered[:4]}, "
                f"{references} references to user objects not released"
            )

    # Streams and work

    def create_stream(self, *, blocking: bool = True, device: int = 0) -> int:
        """Make a stream in the device's primary context, which is retained and stays so."""
        handle = ctypes.c_void_p()
        flags = 0 if blocking else _NON_BLOCKING
        self._check(self._library.dlwrap_sim_create_stream(device, flags, ctypes.byref(handle)), "create a stream")
        return handle.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; its work goes on, and the next stream made has its number."""
        self._check(self._library.dlwrap_sim_destroy_stream(stream), "destroy the stream")

    def hold(self, stream: int) -> None:
        """Keep what is submitted to the stream from running, as if a long kernel ran there."""
        self._check(self._library.dlwrap_sim_hold(stream), "hold the stream")

    def let_go(self, stream: int) -> None:
        """Run in this thread what `hold` kept on every stream, destroyed ones too, that has or had this number."""
        self._check(self._library.dlwrap_sim_let_go(stream), "let the stream go")

    def launch(self, stream: int, target: npt.NDArray[Any] | tuple[int, int], *, write: int | None = None) -> None:
        """Submit a kernel that reads all bytes of ``target``, or sets each of them to ``write``.

        Parameters
        ----------
        stream
            A handle; 0 and 1 are the legacy stream, 2 this thread's default stream.
        target
            A contiguous array, or a device pointer and a number of bytes.
        write
            From 0 to 255.
        """
        if write is not None and not 0 <= write <= 255:
            raise ValueError(f"write must be a byte from 0 to 255, not {write}")
        pointer, nbytes = self._device_bytes(target)
        value = -1 if write is None else write
        self._check(self._library.dlwrap_sim_launch(stream, pointer, nbytes, value), "launch")

    def pending(self, stream: int | None = None) -> int:
        """Count the operations that have not run, on one stream (also a destroyed one) or on all."""
        return int(self._library.dlwrap_sim_pending(stream or 0, stream is None))

    # Captures

    def begin_capture(self, stream: int, mode: CaptureMode = "global") -> None:
        """Begin a capture on the stream, owned by this thread."""
        self._check(self._library.dlwrap_sim_begin_capture(stream, _MODES[mode]), "begin a capture")

    def end_capture(self, stream: int) -> int:
        """End the capture and give its graph; a SimulationError of code 901 tells of a broken one."""
        graph = ctypes.c_void_p()
        self._check(self._library.dlwrap_sim_end_capture(stream, ctypes.byref(graph)), "end the capture")
        return graph.value or 0

    def capture_status(self, stream: int) -> CaptureStatus:
        """Say what the stream's capture is at."""
        status = ctypes.c_int()
        self._check(self._library.dlwrap_sim_capture_status(stream, ctypes.byref(status)), "ask for the capture")
        return _STATUSES[status.value]

    # Graphs and user objects

    def launch_graph(self, graph: int, stream: int) -> None:
        """Submit a graph's operations to the stream, as if by an executable that is destroyed at once."""
        self._check(self._library.dlwrap_sim_launch_graph(graph, stream), "launch the graph")

    def instantiate(self, graph: int) -> int:
        """Make an executable of the graph, with references of its own to what the graph owns."""
        executable = ctypes.c_void_p()
        self._check(self._library.dlwrap_sim_instantiate(graph, ctypes.byref(executable)), "instantiate the graph")
        return executable.value or 0

    def launch_exec(self, executable: int, stream: int) -> None:
        """Submit the executable's operations; what it owns is kept until the last of them has run."""
        self._check(self._library.dlwrap_sim_launch_exec(executable, stream), "launch the executable")

    def clone_graph(self, graph: int) -> int:
        """Copy the graph, with as many references to each user object."""
        clone = ctypes.c_void_p()
        self._check(self._library.dlwrap_sim_clone_graph(graph, ctypes.byref(clone)), "clone the graph")
        return clone.value or 0

    def destroy_graph(self, graph: int) -> None:
        """Destroy the graph; its executables and clones stay."""
        self._check(self._library.dlwrap_sim_destroy_graph(graph), "destroy the graph")

    def destroy_exec(self, executable: int) -> None:
        """Destroy the executable; its launches go on."""
        self._check(self._library.dlwrap_sim_destroy_exec(executable), "destroy the executable")

    @property
    def user_objects_alive(self) -> int:
        """How many user objects there are whose destructor has not returned."""
        return int(self._library.dlwrap_sim_user_objects_alive())

    def hold_destructors(self) -> None:
        """Keep destructors of user objects from beginning; a driver may run them as late as it likes."""
        self._library.dlwrap_sim_hold_destructors(1)

    def let_destructors_go(self) -> None:
        """Let the destructors run that `hold_destructors` kept, in the driver's own thread."""
        self._library.dlwrap_sim_hold_destructors(0)

    def wait_for_destructors(self, timeout: float = 10) -> None:
        """Wait until every destructor that is due has returned; in a forked child none ever runs.

        Raises
        ------
        TimeoutError
            If that takes longer than ``timeout`` seconds.
        """
        if not self._library.dlwrap_sim_wait_for_destructors(timeout):
            raise TimeoutError(f"destructors of user objects are due or running after {timeout} s")

    # Memory

    @property
    def registrations(self) -> list[Registration]:
        """What is page-locked, by anybody, in the order of addresses."""
        count = self._library.dlwrap_sim_registrations(None, 0)
        listed = (ListedRegistration * count)()
        count = min(count, self._library.dlwrap_sim_registrations(listed, count))
        return [Registration(each.start, each.nbytes, each.flags, each.device) for each in listed[:count]]

    def host_array(
        self,
        shape: int | tuple[int, ...],
        dtype: npt.DTypeLike = np.float32,
        fill: Any = 0,
        *,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        """Make an array whose end is watched.

        Freeing its memory while it is page-locked or has work pending aborts the process, with one line that
        says so.

        Parameters
        ----------
        shape, dtype, fill
            As for `numpy.full`.
        offset
            Bytes from the page boundary to the first element.
        """
        return _memory.host_array(self._library, shape, dtype, fill, offset)

    @property
    def host_arrays_alive(self) -> int:
        """How many memories of `host_array` are not freed, of those made since the test began (`simulated_cuda`)."""
        return int(self._library.dlwrap_sim_host_alive())

    # Failures, gates and the log

    def fail(self, function: str, code: int, *, nth: int = 1, times: int = 1) -> None:
        """Let the nth call from now on, and ``times`` - 1 after it, return ``code`` and do nothing.

        Parameters
        ----------
        function
            The name in `cuda.bindings.driver`.
        code
            Any integer but 0.
        """
        if code == 0 or nth < 1 or times < 1:
            raise ValueError(f"a failure needs code != 0, nth >= 1 and times >= 1, not {code}, {nth} and {times}")
        self._check(self._library.dlwrap_sim_fail(self._known(function), code, nth, times), "plan another failure")

    def clear_failures(self) -> None:
        """Forget every planned failure."""
        self._library.dlwrap_sim_clear_failures()

    def calls(self, function: str | None = None) -> list[Call]:
        """List the driver calls so far, oldest first (the first million), of one function or of all."""
        wanted = None if function is None else self._known(function).decode()
        self._thread_names.update({t.native_id: t.name for t in threading.enumerate() if t.native_id is not None})
        return [call for call in self._logged() if wanted is None or call.function == wanted]

    def count(self, function: str) -> int:
        """Count the calls of a function so far."""
        return int(self._library.dlwrap_sim_count(self._known(function)))

    def clear_calls(self) -> None:
        """Forget the calls so far."""
        self._library.dlwrap_sim_clear_calls()

    def pause(self, function: str) -> None:
        """Let every call of the function wait at its entry until `resume`."""
        self._library.dlwrap_sim_pause(self._known(function), 1)

    def resume(self, function: str) -> None:
        """Let the calls go on that wait because of `pause`."""
        self._library.dlwrap_sim_pause(self._known(function), 0)

    def waiting(self, function: str) -> int:
        """Count the threads that wait because of `pause`."""
        return int(self._library.dlwrap_sim_waiting(self._known(function)))

    def wait_until_paused(self, function: str, threads: int = 1, timeout: float = 10) -> None:
        """Wait until so many threads wait because of `pause`.

        Raises
        ------
        TimeoutError
            If that takes longer than ``timeout`` seconds.
        """
        if not self._library.dlwrap_sim_wait_until_paused(self._known(function), threads, timeout):
            raise TimeoutError(f"{self.waiting(function)} threads wait in {function} after {timeout} s, not {threads}")

    # Helpers

    def _check(self, code: int, request: str) -> None:
        if code != SUCCESS:
            raise SimulationError(code, request)

    def _known(self, function: str) -> bytes:
        name = function.encode()
        if not self._library.dlwrap_sim_knows(name):
            raise ValueError(f"the simulated driver has no function {function!r}: names are as in cuda.bindings.driver")
        return name

    def _device_bytes(self, target: npt.NDArray[Any] | tuple[int, int]) -> tuple[int, int]:
        if isinstance(target, tuple):
            return int(target[0]), int(target[1])
        if not (target.flags.c_contiguous or target.flags.f_contiguous):
            raise ValueError(f"a simulated kernel takes a contiguous array, not one with strides {target.strides}")
        return int(self._library.dlwrap_sim_device_address(target.ctypes.data)), target.nbytes

    def _logged(self) -> list[Call]:
        chunk = (LoggedCall * 4096)()
        calls: list[Call] = []
        while count := self._library.dlwrap_sim_calls(len(calls), chunk, len(chunk)):
            calls += [self._call(entry) for entry in chunk[:count]]
        return calls

    def _call(self, entry: LoggedCall) -> Call:
        name = self._thread_names.get(entry.thread_id) or entry.thread_name.decode(errors="replace")
        function = self._library.dlwrap_sim_function_name(entry.function).decode()
        return Call(function, entry.thread_id, name, entry.gil_held == 1)


def _is_abort(dead_handle: str) -> bool:
    if dead_handle not in ("abort", "error"):
        raise ValueError(f"dead_handle must be 'abort' or 'error', not {dead_handle!r}")
    return dead_handle == "abort"


def _default_settings() -> Settings:
    return Settings(
        devices=1,
        host_register=1,
        read_only_register=1,
        driver_version=13000,
        compute_major=9,
        abort_on_dead_handle=1,
        strict=1,
        concurrent_managed=1,
    )
