"""Answers to the wrong question, and refusals in the wrong place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.broken import _structs
from conformance.broken._variant import (
    BROKEN,
    Request,
    Sound,
    answering,
    asked,
    breaks,
    producer_of,
    rewriting,
    variant,
)
from conformance.producers import dlwrap_

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.drivers._calls import Driver
    from conformance.producers._subject import Producer

NEWEST = (1, 3)
READ_ONLY, IS_COPIED = 1, 2


def answer(rule: str, function: Callable[[Any, Request], Any]) -> None:
    """Break a rule by another answer to certain requests; None leaves the answer to the sound one."""

    def make(driver: Driver) -> Producer:
        def reply(buffer: Any, request: Request) -> Any:
            found = function(buffer, dict(request))
            return Sound.__dlpack__(buffer, **request) if found is None else found

        return producer_of(driver, answering(reply))

    assert rule not in BROKEN, rule
    BROKEN[rule] = make


def instead(rule: str, when: Callable[[Any, Request], bool], **other: Any) -> None:
    """Break a rule by answering certain requests as if they were others."""

    def function(buffer: Any, request: Request) -> Any:
        return Sound.__dlpack__(buffer, **{**request, **other}) if when(buffer, request) else None

    answer(rule, function)


def refuse(rule: str, when: Callable[[Any, Request], bool], error: Exception) -> None:
    """Break a rule by refusing certain requests."""

    def function(buffer: Any, request: Request) -> Any:
        if when(buffer, request):
            raise error

    answer(rule, function)


@breaks("protocol.device-pair")
def make_device_list(driver: Driver) -> Producer:
    return producer_of(driver, variant(__dlpack_device__=lambda self: [2, 0]))


@breaks("device.matches")
def make_device_other(driver: Driver) -> Producer:
    def device(self: Any) -> tuple[int, int]:
        return (2, 1) if self.shape == (19,) else (2, 0)

    return producer_of(driver, variant(__dlpack_device__=device))


refuse(
    "protocol.keywords",
    lambda buffer, request: len(request) == 4 and set(request.values()) == {None},
    TypeError("too many keywords"),
)
instead(
    "protocol.no-arguments",
    lambda buffer, request: not request and buffer.array.flags.writeable,
    max_version=NEWEST,
)
instead("protocol.version-zero", asked(max_version=(0, 8)), max_version=NEWEST)
instead("protocol.versioned", asked(max_version=(1, 0)), max_version=None)
refuse("protocol.stream-untold", lambda buffer, request: request == {"stream": None}, ValueError("no stream"))
refuse("protocol.stream-default", lambda buffer, request: request == {"stream": 2}, ValueError("no such stream"))
refuse(
    "protocol.stream-handle",
    lambda buffer, request: list(request) == ["stream"] and (request["stream"] or 0) > 2,  # type: ignore[operator]
    ValueError("no such stream"),
)
instead("protocol.stream-zero", asked(stream=0), stream=1)
instead("protocol.stream-negative", asked(stream=-2), stream=-1)
instead("protocol.stream-not-an-integer", asked(stream=True), stream=1)


def ignore_stream(buffer: Any, request: Request) -> Any:
    on_host = request.get("dl_device") == (1, 0)
    return Sound.__dlpack__(buffer, **{**request, "stream": None}) if on_host else None


answer("protocol.stream-on-host", ignore_stream)
refuse("device.own", asked(dl_device=(2, 0)), BufferError("no device can be asked for"))
refuse("device.other", asked(dl_device=(7, 0)), ValueError("no such device"))
instead("device.host-view", asked(dl_device=(1, 0)), copy=True)
refuse("device.unnumbered", asked(dl_device=(2, 255)), BufferError("no such device"))


def lose_destructor(buffer: Any, request: Request) -> Any:
    capsule = Sound.__dlpack__(buffer, **request)
    if buffer.shape == (6,):
        _structs.set_destructor(capsule, None)
    return capsule


answer("protocol.destructor", lose_destructor)
_given: dict[int, Any] = {}


def give_again(buffer: Any, request: Request) -> Any:
    if buffer.closed or buffer.shape != (17,):
        return None
    return _given.setdefault(id(buffer), Sound.__dlpack__(buffer, **request))


answer("protocol.fresh-capsule", give_again)

# ---- copies ----


def copy_unasked(buffer: Any, request: Request) -> Any:
    if "copy" not in request or request["copy"] is not None:
        return None
    capsule = Sound.__dlpack__(buffer, **{**request, "copy": True})
    managed = _structs.managed(capsule)
    if hasattr(managed, "flags"):
        managed.flags &= ~IS_COPIED
    return capsule


answer("copy.default", copy_unasked)
instead("copy.false", asked(copy=False), copy=True)


def pretend_copy(buffer: Any, request: Request) -> Any:
    if not request.get("copy"):
        return None
    capsule = Sound.__dlpack__(buffer, **{**request, "copy": None})
    managed = _structs.managed(capsule)
    if hasattr(managed, "flags"):
        managed.flags |= IS_COPIED
    return capsule


answer("copy.true", pretend_copy)


@breaks("copy.values")
def make_blank_copies(driver: Driver) -> Producer:
    def blank(managed: Any) -> None:
        driver.upload(managed.tensor.data, np.zeros(16, np.float32))

    return producer_of(driver, rewriting(blank, asked(copy=True)))


# ---- read-only ----


@breaks("readonly.legacy")
def make_legacy_read_only(driver: Driver) -> Producer:
    sound = dlwrap_.make(driver)

    def make(array: np.ndarray, **options: Any) -> Any:
        return sound.make(array, **{"readonly": False, **options})

    def mark(managed: Any) -> None:
        if hasattr(managed, "flags"):
            managed.flags |= READ_ONLY

    kind = rewriting(mark, lambda buffer, request: not buffer.array.flags.writeable)
    return producer_of(driver, kind, make)


@breaks("readonly.opt-in")
def make_without_opt_in(driver: Driver) -> Producer:
    sound = dlwrap_.make(driver)
    return producer_of(driver, Sound, lambda array, **options: sound.make(array))


# ---- what has to be refused ----


def converting(rule: str, when: Callable[[np.ndarray], bool], convert: Callable[[np.ndarray], np.ndarray]) -> None:
    """Break a rule by handing over something else instead of refusing."""

    def make_producer(driver: Driver) -> Producer:
        sound = dlwrap_.make(driver)

        def make(array: np.ndarray, **options: Any) -> Any:
            return sound.make(convert(array) if when(array) else array, **options)

        return producer_of(driver, Sound, make)

    assert rule not in BROKEN, rule
    BROKEN[rule] = make_producer


converting(
    "dtypes.byte-order",
    lambda array: not array.dtype.isnative,
    lambda array: array.view(array.dtype.newbyteorder()),
)
converting("dtypes.no-numbers", lambda array: array.dtype.kind == "M", lambda array: array.view(np.int64))
converting(
    "shapes.odd-strides",
    lambda array: array.ndim > 0 and array.strides[0] == 6,
    np.ascontiguousarray,
)
converting("shapes.misaligned", lambda array: array.ctypes.data % array.itemsize != 0, lambda array: array.copy())


@breaks("shapes.reversed")
def make_refusing_with_another_error(driver: Driver) -> Producer:
    sound = dlwrap_.make(driver)

    def make(array: np.ndarray, **options: Any) -> Any:
        if array.ndim and array.strides[0] < 0:
            raise ValueError("no negative strides")
        return sound.make(array, **options)

    return producer_of(driver, Sound, make)


# ---- values ----


@breaks("data.values")
def make_altering(driver: Driver) -> Producer:
    def alter(buffer: Any, request: Request) -> Any:
        buffer.array[0] += 1
        return Sound.__dlpack__(buffer, **request)

    def reply(buffer: Any, request: Request) -> Any:
        return (
            alter(buffer, request)
            if not buffer.closed and buffer.shape == (11,)
            else Sound.__dlpack__(buffer, **request)
        )

    return producer_of(driver, answering(reply))


def copying(rule: str, shape: tuple[int, ...]) -> None:
    """Break a rule by handing over a copy of arrays of one shape."""

    def make_producer(driver: Driver) -> Producer:
        sound = dlwrap_.make(driver)

        class Elsewhere(dlwrap_.Wrapped):
            def address(self, side: Any) -> int:  # noqa: ARG002
                return self.offered.ptr + self.array.nbytes

        def make(array: np.ndarray, **options: Any) -> Any:
            subject = sound.make(array, **options)
            if array.shape != shape:
                return subject
            copy = driver.memory(array.nbytes).view(array.dtype).reshape(array.shape)
            copy[...] = array
            return Elsewhere(sound.make(copy, **options).offered, array, driver)

        return producer_of(driver, Sound, make)

    assert rule not in BROKEN, rule
    BROKEN[rule] = make_producer


copying("data.address", (12,))
copying("data.host-writes", (13,))
copying("data.framework-writes", (14,))
