"""Producers that free too early, keep too long, wait, or meddle."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from conformance.broken import _structs
from conformance.broken._variant import (
    BROKEN,
    Request,
    Sound,
    answering,
    asked,
    breaks,
    clearing,
    fragile,
    over_copy,
    producer_of,
    variant,
)
from conformance.producers import dlwrap_

if TYPE_CHECKING:
    import numpy as np

    from conformance.drivers._calls import Driver
    from conformance.producers._subject import Producer

NEWEST = (1, 3)
DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_told: dict[int, list[Any]] = {}  # the streams told to a buffer, by its identity


def tell(buffer: Any, request: Request) -> list[Any]:
    """Note a stream; give all that were told."""
    told = _told.setdefault(id(buffer), [])
    told.append(request.get("stream"))
    return told


def handle_told(request: Request, version: tuple[int, int]) -> bool:
    """Tell whether a stream was given by its handle, by the check that asks for a version."""
    return (request.get("stream") or 0) > 2 and request.get("max_version") == version


# ---- the array goes too early ----

BROKEN["lifetime.after-the-gpu"] = fragile(asked(stream=1))
BROKEN["lifetime.untold-stream"] = fragile(asked(stream=-1))
BROKEN["lifetime.dropped-first"] = fragile(asked(stream=None))
BROKEN["lifetime.destroyed-stream"] = fragile(lambda buffer, request: handle_told(request, NEWEST))
BROKEN["lifetime.several-streams"] = fragile(
    lambda buffer, request: handle_told(request, (1, 1)) and buffer.exports > 1
)
BROKEN["ownership.several"] = fragile(lambda buffer, request: buffer.shape == (24,))


@breaks("lifetime.outlives")
def make_going_with_the_buffer(driver: Driver) -> Producer:
    def end(self: Any) -> None:
        told = _told.pop(id(self), [])
        if self.exports and told == [1]:
            clearing(self)()

    def reply(self: Any, **request: Any) -> Any:
        tell(self, request)
        return Sound.__dlpack__(self, **request)

    return producer_of(driver, variant(__dlpack__=reply, __del__=end), over_copy(driver))


@breaks("ownership.consumed-capsule")
def make_going_with_the_capsule(driver: Driver) -> Producer:
    def reply(buffer: Any, request: Request) -> Any:
        capsule = Sound.__dlpack__(buffer, **request)
        if buffer.shape == (23,):
            clear, sound = clearing(buffer), DESTRUCTOR(_structs.destructor_of(capsule))

            def destroy(address: int) -> None:
                clear()
                sound(address)

            _structs.set_destructor(capsule, ctypes.cast(_structs.keep(DESTRUCTOR(destroy)), ctypes.c_void_p))
        return capsule

    return producer_of(driver, answering(reply), over_copy(driver))


@breaks("lifetime.capture-owns")
def make_hiding_the_stream(driver: Driver) -> Producer:
    def reply(buffer: Any, request: Request) -> Any:
        hides = (request.get("stream") or 0) > 2
        return Sound.__dlpack__(buffer, **({**request, "stream": -1} if hides else request))

    return producer_of(driver, answering(reply))


# ---- the array stays too long ----


@breaks("ownership.unconsumed")
def make_without_destructor(driver: Driver) -> Producer:
    def reply(buffer: Any, request: Request) -> Any:
        capsule = Sound.__dlpack__(buffer, **request)
        _structs.set_destructor(capsule, _structs.function_address("broken_destroy_never"))
        return capsule

    return producer_of(driver, answering(reply))


@breaks("ownership.refused")
def make_keeping_what_it_refused(driver: Driver) -> Producer:
    def reply(buffer: Any, request: Request) -> Any:
        try:
            return Sound.__dlpack__(buffer, **request)
        except BufferError:
            _structs.keep(buffer)
            raise

    return producer_of(driver, answering(reply))


@breaks("ownership.pending-error")
def make_clearing_the_error(driver: Driver) -> Producer:
    def reply(buffer: Any, request: Request) -> Any:
        capsule = Sound.__dlpack__(buffer, **request)
        _structs.library().broken_remember_destructor(_structs.destructor_of(capsule))
        _structs.set_destructor(capsule, _structs.function_address("broken_destroy_and_clear"))
        return capsule

    return producer_of(driver, answering(reply))


# ---- meddling with the driver ----


@breaks("lifetime.nothing-launched")
def make_copying(driver: Driver) -> Producer:
    scratch = driver.memory(64)

    def reply(buffer: Any, request: Request) -> Any:
        capsule = Sound.__dlpack__(buffer, **request)
        if (request.get("stream") or 0) > 2 and request.get("max_version") == (1, 0):
            pointer = _structs.managed(capsule).tensor.data
            driver.call("cuMemcpyDtoHAsync", scratch.ctypes.data, pointer, 4, request["stream"])
        return capsule

    return producer_of(driver, answering(reply))


@breaks("lifetime.capture-unbroken")
def make_synchronizing(driver: Driver) -> Producer:
    def reply(buffer: Any, request: Request) -> Any:
        if request.get("stream") == -1 and request.get("max_version") == (1, 0):
            with contextlib.suppress(RuntimeError):  # it breaks the capture, and says so
                driver.call("cuCtxSynchronize")
        return Sound.__dlpack__(buffer, **request)

    return producer_of(driver, answering(reply))


@breaks("lifetime.context-kept")
def make_setting_the_context(driver: Driver) -> Producer:
    sound = dlwrap_.make(driver)

    def make(array: np.ndarray, **options: Any) -> Any:
        driver.set_context(driver.primary)
        return sound.make(array, **options)

    return producer_of(driver, Sound, make)


# ---- close ----


def closing(rule: str, close: Any) -> None:
    """Break a rule by another close()."""
    BROKEN[rule] = lambda driver: producer_of(driver, variant(close=close))


def close_in_spite_of_tensors(self: Any, timeout: float | None = None) -> None:
    with contextlib.suppress(BufferError):
        Sound.close(self, timeout)


def close_in_spite_of_work(self: Any, timeout: float | None = None) -> None:
    with contextlib.suppress(TimeoutError):
        Sound.close(self, timeout)


def close_not_at_all(self: Any, timeout: float | None = None) -> None:
    if self.exports or timeout is not None:
        Sound.close(self, timeout)


closing("lifetime.close-refuses", close_in_spite_of_tensors)
closing("lifetime.close-times-out", close_in_spite_of_work)
closing("lifetime.closed", close_not_at_all)


# ---- the end of the program ----


def ending(rule: str, when: Any) -> None:
    """Break a rule by ending the program with another status, after certain requests."""

    def make(driver: Driver) -> Producer:
        def reply(buffer: Any, request: Request) -> Any:
            if when(buffer, request):
                atexit.register(os._exit, 3)
            return Sound.__dlpack__(buffer, **request)

        return producer_of(driver, answering(reply))

    BROKEN[rule] = make


ending("exit.never-deleted", lambda buffer, request: not request)
ending("exit.pending-work", asked(stream=2, max_version=NEWEST))


@breaks("exit.fork")
def make_in_children(driver: Driver) -> Producer:
    sound, process = dlwrap_.make(driver), os.getpid()

    def make(array: np.ndarray, **options: Any) -> Any:
        if os.getpid() != process:
            return None
        subject = sound.make(array, **options)
        subject.offered.__class__ = Sound
        return subject

    return dataclasses.replace(sound, make=make)
