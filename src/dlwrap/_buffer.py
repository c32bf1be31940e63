"""`wrap` and `HostWrappedBuffer`, `pin` and `Pin`: what the user holds.

Everything is validated before anything is page-locked or lent, and a failure leaves neither behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar

import numpy as np

from dlwrap import _driver, _graphs, _native, _streams, _watch
from dlwrap._errors import DLWrapError
from dlwrap._layout import HostLayout, check_unmoved, describe
from dlwrap._lifetime import USED_AS_NOTED, Lease, lease_of, manager
from dlwrap._native import Exporter
from dlwrap._support import Memory, choose_device, choose_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import numpy.typing as npt
    from typing_extensions import CapsuleType

    from dlwrap._devices import DeviceLike
    from dlwrap._populate import Progress
    from dlwrap._streams import TrackedStream

    class CudaStream(Protocol):
        """An object with the CUDA stream protocol."""

        def __cuda_stream__(self) -> tuple[int, int]:
            """Give (version, handle)."""
            ...


_LEGACY, _NEWEST = -1, 2**31 - 1  # minor versions; the native part gives what it knows

_MEMORIES = ("auto", "pinned", "pageable")
_EXTENTS = ("owner", "view")
_WAITS = ("streams", "device")

_Holder = TypeVar("_Holder", bound=Exporter)


def wrap(
    obj: object,
    *,
    dtype: object = None,
    shape: int | tuple[int, ...] | None = None,
    device: DeviceLike | None = None,
    memory: Literal["auto", "pinned", "pageable"] = "auto",
    extent: Literal["owner", "view"] = "owner",
    wait: Literal["streams", "device"] = "streams",
    readonly: bool | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> HostWrappedBuffer:
    """Give GPU frameworks the use of a host array in place.

    Parameters
    ----------
    obj : array_like
        What has host memory: a NumPy array; an object with the buffer protocol, such as a memoryview, bytearray, mmap
        or SharedMemory; a DLPack producer on the CPU, such as a torch tensor, a JAX or a pyarrow array; what gives
        NumPy its own memory, such as a column of pandas or polars. Never a copy. Any shape; strides must be whole,
        non-negative numbers of elements.
    dtype : dtype_like, optional
        Reads contiguous memory as elements of this dtype of NumPy, ml_dtypes, torch or JAX.
    shape : int or tuple of int, optional
        Reads contiguous memory in this shape, which the bytes have to fill; one extent may be -1. With ``dtype`` alone
        it is one dimension.
    device : int, str or device object, optional
        The CUDA device that is to use the memory: its ordinal, "cuda" or "cuda:1", (2, ordinal) as of DLPack, or a
        device of torch, CuPy, numba, cuda.core, JAX, Warp or tvm-ffi; by default the current context's device, else 0.
    memory : {"auto", "pinned", "pageable"}
        "pageable": the device reads the memory as it is, by HMM or ATS. "pinned": the memory is page-locked.
        "auto": "pageable" where the device can, else "pinned". See `support`.
    extent : {"owner", "view"}
        What is page-locked: the memory of the array that owns the data, or the bytes of this view only. A
        page-locked slice breaks CUDA copies of its parent.
    wait : {"streams", "device"}
        What a release waits for: the streams that were recorded (the device, where one of them cannot be
        tracked), or always everything on the device.
    readonly : bool, optional
        What consumers are told; by default as the array is. ``False`` hands a read-only array to consumers that
        know no read-only tensors.
    progress : callable, optional
        Called with the bytes that are done and all bytes, every 64 MiB and in the end, while memory is page-locked; if
        it raises, nothing is. With it or without, an interrupt is served after each 64 MiB of memory that has no pages
        yet; the driver's own call, some 30 ms for each GiB of memory that has, cannot be interrupted.

    Returns
    -------
    HostWrappedBuffer
        Ready for ``from_dlpack`` of any framework.

    Raises
    ------
    BufferError
        The array cannot be exported, or other page-locked memory overlaps it.
    CudaError
        No driver, no device, or the driver refused to page-lock the memory.
    TypeError, ValueError
        An argument is wrong.
    RuntimeError
        In a forked child, or while the interpreter exits.
    """
    if dtype is None and shape is None:
        buffer: HostWrappedBuffer | None = _native.wrap(obj, device, memory, extent, wait, readonly)
        if buffer is not None:  # nothing had to be page-locked, so that there is no progress
            return buffer
    _check_choice("memory", memory, _MEMORIES)
    _check_choice("extent", extent, _EXTENTS)
    _check_choice("wait", wait, _WAITS)
    if readonly is not None and not isinstance(readonly, bool):
        raise TypeError(f"readonly must be None, True or False, got {readonly!r}")
    _check_progress(progress)
    layout = describe(obj, dtype, shape)
    if readonly is False and not layout.writable_memory:
        raise BufferError(
            "cannot export read-only mapped memory with readonly=False: a write by the GPU would fault; "
            "map it writable (numpy.memmap mode 'c'), or leave readonly=None"
        )
    readonly = layout.readonly if readonly is None else readonly
    device_wide = wait == "device"
    return _lend(
        HostWrappedBuffer,
        layout,
        device,
        memory,
        extent,
        device_wide=device_wide,
        readonly=readonly,
        progress=progress,
    )


def pin(
    obj: object,
    *,
    device: DeviceLike | None = None,
    extent: Literal["owner", "view"] = "owner",
    progress: Callable[[int, int], object] | None = None,
) -> Pin:
    """Keep an array page-locked, so that wraps of it or of parts of it cost next to nothing.

    Where the device reads pageable memory nothing is locked, and wraps are cheap anyway.

    Parameters
    ----------
    obj : array_like
        As for `wrap`.
    device : int, str or device object, optional
        As for `wrap`.
    extent : {"owner", "view"}
        As for `wrap`.
    progress : callable, optional
        As for `wrap`.

    Returns
    -------
    Pin
        A context manager; the memory stays page-locked until it is closed or collected, and until the last wrap
        inside is released.

    Raises
    ------
    BufferError, CudaError, TypeError, ValueError, RuntimeError
        As `wrap`.
    """
    _check_choice("extent", extent, _EXTENTS)
    _check_progress(progress)
    layout = describe(obj)
    exporter = _lend(
        Exporter,
        layout,
        device,
        "auto",
        extent,
        device_wide=False,
        readonly=True,
        progress=progress,
        made_by=_watch.PIN,
    )
    return Pin(exporter)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _check_progress(progress: object) -> None:
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be None or take two numbers of bytes, got {progress!r}")


def _lend(
    make: type[_Holder],
    layout: HostLayout,
    device: object,
    memory: str,
    extent: str,
    *,
    device_wide: bool,
    readonly: bool,
    progress: Progress | None = None,
    made_by: int = _watch.WRAP,
) -> _Holder:
    """Lend the layout's memory, page-locked where that is the kind: when the holder goes, the manager takes it back."""
    lifetime = manager()
    lifetime.check_usable("wrap")
    ordinal = choose_device(device)
    kind = choose_memory(memory, ordinal)
    lifetime.start()
    _native.serve_wraps(HostWrappedBuffer, Lease, lifetime.pins.table)
    lease = Lease(ordinal, layout.hold, device_wide)
    lease.kind, lease.origin = made_by, _watch.find_origin()
    span = _watch.begin(_watch.KINDS[made_by], layout.nbytes)
    if span is None:
        return _hand_out(make, lease, layout, kind, extent, readonly=readonly, progress=progress)
    try:
        made = _hand_out(make, lease, layout, kind, extent, readonly=readonly, progress=progress)
    finally:
        span.end()
    _watch.tell(_watch.KINDS[made_by], layout.nbytes, ordinal, f", {kind}, in", span.seconds)
    return made


def _hand_out(
    make: type[_Holder],
    lease: Lease,
    layout: HostLayout,
    kind: Memory,
    extent: str,
    *,
    readonly: bool,
    progress: Progress | None = None,
) -> _Holder:
    """Make a lease's first holder; a failure leaves nothing."""
    pins = manager().pins
    try:
        if kind == "pinned" and layout.nbytes > 0:
            pins.acquire(lease, layout, lease.device, extent, progress)
        pointer = lease.device_pointer(layout.pointer)
        primary = _driver.primary_handle(lease.device)
        return _native.lend(make, layout, lease, pointer, readonly, primary, kind == "pageable")
    except BaseException:
        pins.release(lease)
        raise


class HostWrappedBuffer(Exporter):
    """A host array that GPU frameworks use in place; made by `wrap`.

    It speaks DLPack and the CUDA array interface. The array lives as long as this object or anything a framework
    made of it, and until the GPU has finished with it.
    """

    __slots__ = ("__weakref__",)

    # DLPack 1.3, struct DLPackExchangeAPI: what it does is in _exchange.c, and in dlwrap._exchange.
    __dlpack_c_exchange_api__: CapsuleType = _native.exchange_api()

    # ---- what it is ----

    @property
    def array(self) -> npt.NDArray[Any]:
        """The host array, or a NumPy view of the buffer given; says nothing of work that still runs."""
        return self._open().array

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return self._open().array.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each dimension, as NumPy counts them."""
        return self._open().array.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy element type."""
        return self._open().array.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._open().array.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._open().nbytes

    @property
    def ptr(self) -> int:
        """The device's address of the first element; 0 without elements.

        Whoever reads it may use it on any stream, so the release will wait for the whole device.

        Raises
        ------
        BufferError
            The memory has moved, or the current context is not the device's primary one.
        ValueError
            The buffer is closed.
        """
        layout = self._open()
        check_unmoved(layout)
        if manager().is_usable:
            _streams.check_untold(self.device)
            note_use(self, None)
        return lease_of(self).device_pointer(layout.pointer)

    def __repr__(self) -> str:
        if self.closed:
            return "<dlwrap.HostWrappedBuffer closed>"
        return (
            f"<dlwrap.HostWrappedBuffer shape={self.shape} dtype={self.dtype} device={self.device} "
            f"memory={self.memory!r} readonly={self.readonly} exports={self.exports}>"
        )

    # ---- exports ----

    def _serve_dlpack(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Serve the calls of ``__dlpack__`` that the native part leaves to Python, or refuse."""
        handle = _streams.check_told_stream(stream)
        on_host = self._serves_host(dl_device)
        minor = _version_for(max_version)
        layout = self._check_exportable(on_host=on_host)
        if copy:
            return self._export_copy(layout, handle, minor, on_host=on_host)
        if self.readonly and minor == _LEGACY:
            raise BufferError(
                "cannot export read-only memory in a legacy capsule, which cannot say so: ask with max_version=(1, 0), "
                "or wrap with readonly=False"
            )
        if on_host:
            self._wait_for_host_use()
            capsule = _native.make_capsule(self, minor, True, False)
            _watch.tell("export", layout.nbytes, self.device, ", to the host")
            return capsule
        told = _streams.find_told_stream(handle, self.device)
        return _export_to_device(self, told, handle, minor, copied=False)

    def _serve_exchange(self) -> CapsuleType:
        """Serve what the native part of the C exchange API leaves to Python, or refuse.

        The consumer may work on any stream, so the release waits for the device; a graph that captures on the current
        stream becomes an owner.
        """
        self._check_exportable(on_host=False)
        _streams.check_untold(self.device)
        current = _streams.find_work_stream(self.device)
        return _export_to_device(self, None, current, _NEWEST, copied=False)

    def _check_exportable(self, *, on_host: bool) -> HostLayout:
        if self.closed:
            raise BufferError("cannot export a closed HostWrappedBuffer: wrap the array again")
        layout = self._open()
        check_unmoved(layout)
        if manager().is_forked and not on_host:
            raise BufferError("cannot export to the GPU in a forked child: CUDA does not survive fork()")
        return layout

    def _serves_host(self, dl_device: object) -> bool:
        """Tell whether the CPU view is asked for; refuse what is neither that nor our device."""
        match dl_device:
            case None | (2, self.device) | (2, 255):  # torch's device="cuda" has the index 255
                return False
            case (1, 0):
                return True
        raise BufferError(
            f"cannot export to dl_device={dl_device!r}: this buffer serves (2, {self.device}), CUDA, and (1, 0), CPU; "
            "wrap with device=... for another GPU"
        )

    def _export_copy(self, layout: HostLayout, handle: int | None, minor: int, *, on_host: bool) -> CapsuleType:
        """Export fresh memory of the same kind, which only the capsule keeps."""
        self._wait_for_host_use()
        copied = describe(np.array(layout.array, order="K", copy=True, subok=False))
        if on_host:
            lease = Lease(self.device, copied.hold)
            lease.kind, lease.origin = _watch.COPY, _watch.find_origin()
            fresh = _hand_out(Exporter, lease, copied, "pageable", "owner", readonly=False)
            return _native.make_capsule(fresh, minor, True, True)
        fresh = _lend(
            Exporter,
            copied,
            self.device,
            self.memory,
            "owner",
            device_wide=False,
            readonly=False,
            made_by=_watch.COPY,
        )
        told = _streams.find_told_stream(handle, self.device)
        return _export_to_device(fresh, told, handle, minor, copied=True)

    def _wait_for_host_use(self) -> None:
        try:
            manager().synchronize(self)
        except (RuntimeError, DLWrapError) as error:
            raise BufferError(f"cannot use the array on the host: {error}") from error

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3, of page-locked memory.

        Raises
        ------
        AttributeError
            For pageable memory, whose pointers consumers cannot look up, and for types without a typestr.
        BufferError, ValueError
            As `ptr`.
        """
        if self.memory == "pageable":
            raise AttributeError("__cuda_array_interface__ is for page-locked memory; this is pageable: use DLPack")
        layout = self._open()
        if not layout.dtype.is_numpy_type:
            raise AttributeError(f"__cuda_array_interface__ has no typestr for {layout.array.dtype}: use DLPack")
        return {
            "shape": layout.shape,
            "typestr": layout.array.dtype.str,
            "data": (self.ptr, self.readonly),
            "strides": None
            if layout.array.flags.c_contiguous
            else tuple(stride * layout.itemsize for stride in layout.strides),
            "version": 3,
            "stream": None,
        }

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Give the host array to NumPy, after the work recorded so far."""
        array = self._open().array
        self._wait_for_host_use()
        if copy:
            return np.array(array, dtype=dtype, copy=True)
        converted = array if dtype is None else array.astype(dtype, copy=False)
        if copy is False and converted is not array:
            raise ValueError(f"cannot convert {array.dtype} to {converted.dtype} without a copy")
        return converted

    # ---- lifetime ----

    def record_stream(self, stream: int | CudaStream) -> None:
        """Note a stream on which the array is used, so that the release waits for it too.

        While the stream captures, its graph becomes an owner as well, as by `keep_alive`.

        Parameters
        ----------
        stream : int or stream object
            An object of torch, CuPy, numba or Warp that owns its stream is kept alive until then, and its stream is
            waited for by itself. Any other with ``__cuda_stream__``, such as cuda.core's, or a handle, also as
            ``CUstream``, makes the release wait for the whole device, because the stream may be destroyed.

        Raises
        ------
        BufferError
            The stream belongs to another context than the device's primary one.
        CudaError
            The stream captures, and the driver does not let its graph own the memory.
        RuntimeError
            In a forked child, or while the interpreter exits.
        TypeError, ValueError
            It is neither a stream object nor a handle, or the buffer is closed.
        """
        self._open()
        manager().check_usable("record a stream")
        handle, tracked = _streams.find_recorded_stream(stream, self.device)
        _give_to_capture(handle, self)
        note_use(self, tracked)

    def synchronize(self) -> None:
        """Wait on the host for the work submitted so far to the recorded streams.

        Raises
        ------
        RuntimeError
            A recorded stream is being captured.
        DLWrapError
            The GPU failed, so that the end is unknown.
        """
        self._open()
        manager().synchronize(self)

    def close(self, timeout: float | None = None) -> None:
        """Give the array up and wait until the GPU is done and the memory is unregistered.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; by default as long as it takes. After a timeout `close` may be called again.

        Raises
        ------
        BufferError
            Something made from this buffer is alive; the message says how many.
        TimeoutError
            The release goes on in the background.
        DLWrapError
            The memory is kept, because the GPU or the driver failed.
        ValueError
            ``timeout`` is negative or NaN.
        """
        manager().close(self, timeout)

    def __enter__(self) -> HostWrappedBuffer:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: the memory is lent out by this process, once."""
        raise TypeError("cannot pickle or copy a HostWrappedBuffer: pass its .array, and wrap that where it is used")

    def _open(self) -> HostLayout:
        layout: HostLayout | None = self._layout
        if layout is None:
            raise ValueError("this HostWrappedBuffer is closed: wrap the array again")
        return layout


class Pin:
    """Page-locked memory that wraps inside it share; made by `pin`.

    Attributes
    ----------
    nbytes : int
        Bytes that are page-locked for it; 0 where the device reads pageable memory.
    device : int
        Ordinal of the CUDA device.
    memory : {"pinned", "pageable"}
        The memory kind.
    """

    __slots__ = ("__weakref__", "_exporter", "device", "memory", "nbytes")

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self.device: int = exporter.device
        self.memory: Literal["pinned", "pageable"] = exporter.memory
        pin = lease_of(exporter).pin
        self.nbytes: int = 0 if pin is None else pin.stop - pin.start

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._exporter.closed

    def close(self, timeout: float | None = None) -> None:
        """Give it up; wait until the memory is unregistered, unless wraps inside still use it.

        Raises
        ------
        TimeoutError, DLWrapError, ValueError
            As `HostWrappedBuffer.close`.
        """
        manager().close(self._exporter, timeout)

    def __enter__(self) -> Pin:
        if self.closed:
            raise ValueError("this Pin is closed: pin the array again")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: the memory is lent out by this process, once."""
        raise TypeError("cannot pickle or copy a Pin: pass the array, and pin that where it is used")

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"nbytes={self.nbytes}"
        return f"<dlwrap.Pin {state} device={self.device} memory={self.memory!r}>"


def _export_to_device(
    exporter: Exporter, told: TrackedStream | None, handle: int | None, minor: int, *, copied: bool
) -> CapsuleType:
    """Export, and note the stream only if that succeeded: consumers ask several times for one import."""
    capsule = _native.make_capsule(exporter, minor, False, copied)
    try:
        if handle is not None:
            _give_to_capture(handle, exporter)
    except BaseException:
        del capsule  # which the error's traceback would keep
        raise
    note_use(exporter, told)
    if _watch.is_on():
        lease, stream = lease_of(exporter), "no stream told" if handle is None else f"stream {handle:#x}"
        _watch.tell("export", lease.nbytes, lease.device, f", {stream}{', a copy' * copied}")
    return capsule


def note_use(exporter: Exporter, stream: TrackedStream | None) -> None:
    """Note a stream that may use the memory; None where it cannot be tracked."""
    lease_of(exporter).note(stream)
    _native.note_uses(exporter, USED_AS_NOTED)


def _give_to_capture(handle: int, exporter: Exporter) -> None:
    """If the stream captures, the graph owns the memory, because it will use it whenever it is launched."""
    lease = lease_of(exporter)
    capture = _graphs.find_capture(handle, lease.device)
    if capture is not None:
        _graphs.give_to_capture(capture, lease, exporter)


def _version_for(max_version: object) -> int:
    """Give the newest minor version of DLPack 1 that the consumer knows, or `_LEGACY`."""
    match max_version:
        case None:
            return _LEGACY
        case (int(major), int(minor)) if major >= 0 and minor >= 0:
            return _LEGACY if major < 1 else min(minor, _NEWEST) if major == 1 else _NEWEST
    # Not TypeError: consumers would retry with fewer arguments.
    raise BufferError(f"max_version must be None or (major, minor), got {max_version!r}")


for _public in (wrap, pin, HostWrappedBuffer, Pin):
    _public.__module__ = "dlwrap"
