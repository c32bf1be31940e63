"""Wrapped buffers of a class of their own, each wrong in one way, and the producers that make them."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import dlwrap
from conformance.broken import _structs
from conformance.memory import watch
from conformance.producers import dlwrap_
from conformance.producers.dlwrap_ import Wrapped

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.producers._subject import Producer

Request = dict[str, Any]
Make = Callable[["Driver"], "Producer"]

BROKEN: dict[str, Make] = {}


class Sound(dlwrap.HostWrappedBuffer):
    """As good as can be: it keeps the one rule that dlwrap itself may break."""

    __slots__ = ()

    def __dlpack__(self, **request: Any) -> Any:
        if request.get("dl_device") == (1, 0) and request.get("stream") is not None:
            raise ValueError("on the CPU only stream=None is accepted")
        return super().__dlpack__(**request)


def breaks(rule: str) -> Callable[[Make], Make]:
    """Say which rule a producer breaks."""
    assert rule not in BROKEN, f"two broken producers for {rule}"

    def register(make: Make) -> Make:
        BROKEN[rule] = make
        return make

    return register


def producer_of(driver: Driver, kind: type, make: Callable[..., Any] | None = None) -> Producer:
    """Make dlwrap's producer hand over buffers of another class, or subjects made in another way."""
    sound = dlwrap_.make(driver)

    def wrap(array: np.ndarray, **options: Any) -> Any:
        subject = (make or sound.make)(array, **options)
        subject.offered.__class__ = kind
        return subject

    return dataclasses.replace(sound, make=wrap)


def variant(**members: Any) -> type:
    """Make a class of buffers that differs in some members."""
    return type("Broken", (Sound,), {"__slots__": (), **members})


def answering(answer: Callable[[Any, Request], Any]) -> type:
    """Make a class whose ``__dlpack__`` is another function, given the buffer and the request."""
    return variant(__dlpack__=lambda self, **request: answer(self, request))


def rewriting(
    change: Callable[[Any], None], when: Callable[[Any, Request], bool] = lambda buffer, request: True
) -> type:
    """Make a class that exports well, and then writes to the tensor."""

    def answer(buffer: Any, request: Request) -> Any:
        capsule = Sound.__dlpack__(buffer, **request)
        if when(buffer, request):
            change(_structs.managed(capsule))
        return capsule

    return answering(answer)


def of_shape(*shape: int) -> Callable[[Any, Request], bool]:
    """Tell buffers of a shape."""
    return lambda buffer, request: buffer.shape == shape


def asked(**wanted: Any) -> Callable[[Any, Request], bool]:
    """Tell requests of certain keywords, whatever else they have."""
    return lambda buffer, request: all(
        name in request and request[name] == value and type(request[name]) is type(value)
        for name, value in wanted.items()
    )


# ---- buffers over a copy, beside which the array is kept or not ----


class Kept:
    """What stands beside a buffer over a copy, until it is cleared."""

    def __init__(self, array: np.ndarray) -> None:
        self._array: np.ndarray | None = array

    def clear(self) -> None:
        """Let go of it."""
        self._array = None


class _Keeps:
    """Memory of a copy that keeps something else."""

    def __init__(self, copy: np.ndarray, kept: Kept) -> None:
        self.copy = copy
        self.kept = kept
        self.__array_interface__ = copy.__array_interface__


class OverCopy(Wrapped):
    """Looks as the array should, but lies elsewhere: the array itself goes when `kept` is cleared."""

    def __init__(self, array: np.ndarray, driver: Driver, **options: Any) -> None:
        kept = Kept(array)
        copy = driver.memory(array.nbytes).view(array.dtype).reshape(array.shape)
        copy[...] = array
        view = np.asarray(_Keeps(copy, kept))
        super().__init__(dlwrap.wrap(view, **options), view, driver)
        self._memory = watch(array)
        _kept[id(self.offered)] = kept


_kept: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()  # by the identity of buffers


def fragile(when: Callable[[Any, Request], bool]) -> Make:
    """Give a producer that lets the array go as soon as certain exports are deleted."""

    def make(driver: Driver) -> Producer:
        def answer(buffer: Any, request: Request) -> Any:
            capsule = Sound.__dlpack__(buffer, **request)
            if when(buffer, request):
                _structs.before_deleting(_structs.managed(capsule), clearing(buffer))
            return capsule

        return producer_of(driver, answering(answer), over_copy(driver))

    return make


def over_copy(driver: Driver) -> Callable[..., OverCopy]:
    """Make subjects over copies, of writable arrays of the plain type; all others as they are."""
    sound = dlwrap_.make(driver)

    def make(array: np.ndarray, **options: Any) -> Any:
        plain = array.dtype == np.float32 and array.ndim == 1 and array.flags.writeable and array.flags.aligned
        return (
            OverCopy(array, driver, **options) if plain and array.flags.c_contiguous else sound.make(array, **options)
        )

    return make


def clearing(buffer: Any) -> Callable[[], None]:
    """Give what lets the array beside a buffer go, and keeps neither."""
    kept = weakref.ref(_kept[id(buffer)]) if id(buffer) in _kept else lambda: None

    def clear() -> None:
        beside = kept()
        if beside is not None:
            beside.clear()

    return clear
