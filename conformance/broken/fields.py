"""Tensors with a wrong field."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from conformance.broken._structs import extents, replace_deleter
from conformance.broken._variant import BROKEN, asked, of_shape, producer_of, rewriting
from conformance.checks.dtypes import NAMED
from conformance.checks.shapes import LARGE
from conformance.dtypes import numpy_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.drivers._calls import Driver
    from conformance.producers._subject import Producer

OPAQUE = 3  # an element type that nobody has


def field(
    rule: str, change: Callable[[Any], None], when: Callable[[Any, Any], bool] = lambda buffer, request: True
) -> None:
    """Break a rule by writing to the tensor."""

    def make(driver: Driver) -> Producer:
        return producer_of(driver, rewriting(change, when))

    assert rule not in BROKEN, rule
    BROKEN[rule] = make


def set_fields(**values: Any) -> Callable[[Any], None]:
    """Write to fields of the managed tensor, if it has them."""

    def change(managed: Any) -> None:
        for name, value in values.items():
            if hasattr(managed, name):
                setattr(managed, name, value)

    return change


def set_tensor(**values: Any) -> Callable[[Any], None]:
    """Write to fields of the tensor; tuples become shapes and strides."""

    def change(managed: Any) -> None:
        for name, value in values.items():
            setattr(managed.tensor, name, extents(*value) if isinstance(value, tuple) else value)

    return change


def set_flag(flag: int) -> Callable[[Any], None]:
    """Set a flag of a versioned tensor."""

    def change(managed: Any) -> None:
        if hasattr(managed, "flags"):
            managed.flags |= flag

    return change


def clear_flag(flag: int) -> Callable[[Any], None]:
    """Clear a flag of a versioned tensor."""

    def change(managed: Any) -> None:
        if hasattr(managed, "flags"):
            managed.flags &= ~flag

    return change


def is_legacy(managed: Any) -> bool:
    """Tell a legacy tensor."""
    return not hasattr(managed, "flags")


READ_ONLY, IS_COPIED = 1, 2
untold = lambda buffer, request: "stream" not in request  # noqa: E731 -- a condition among conditions
newest = asked(max_version=(1, 3))
told_default = asked(stream=1)

# ---- protocol ----

field("protocol.version-major", set_fields(major=2), newest)
field("protocol.version-newer", set_fields(major=9), asked(max_version=(9, 9)))
field("protocol.version-minor", set_fields(minor=3), asked(max_version=(1, 0)))
field("protocol.flags-known", set_flag(1 << 40), newest)
field("protocol.deleter", set_fields(deleter=None), of_shape(18))


def lose_context(managed: Any) -> None:
    replace_deleter(managed, "broken_delete_well")  # which puts it back
    managed.manager_ctx = None


field("protocol.manager-context", lose_context, untold)
field(
    "protocol.strides-present",
    set_tensor(strides=ctypes.POINTER(ctypes.c_int64)()),
    lambda buffer, request: newest(buffer, request) and buffer.array.flags.c_contiguous,
)


def use_byte_offset(managed: Any) -> None:
    managed.tensor.data -= 8
    managed.tensor.byte_offset = 8


field(
    "protocol.byte-offset",
    use_byte_offset,
    lambda buffer, request: buffer.shape == (16,) and buffer.array.ctypes.data % 4096 != 0,
)


def shorten_legacy(managed: Any) -> None:
    if is_legacy(managed):
        set_tensor(shape=(14,))(managed)


field("protocol.same-in-both", shorten_legacy, of_shape(15))

# ---- device, element types ----

field("device.arrives", set_tensor(device_id=1), of_shape(20))
field("device.cuda", set_tensor(device_type=13), lambda buffer, request: buffer.memory == "pageable")


def make_dtype(name: str) -> None:
    def when(buffer: Any, request: Any) -> bool:  # noqa: ARG001
        return buffer.shape == (7,) and buffer.dtype == numpy_type(name)

    field(f"dtypes.{name}", set_tensor(code=OPAQUE), when)


for _name in NAMED:
    make_dtype(_name)


def when_float8_e3m4(buffer: Any, request: Any) -> bool:  # noqa: ARG001
    return buffer.dtype.name == "float8_e3m4"


field("dtypes.float8-others", set_tensor(code=8), when_float8_e3m4)
field(
    "dtypes.lanes",
    set_tensor(lanes=2),
    lambda buffer, request: buffer.shape == (7,) and buffer.dtype.name == "complex64" and not request,
)

# ---- shapes ----

field("shapes.zero-d", set_tensor(ndim=1, shape=(1,), strides=(1,)), lambda buffer, request: buffer.ndim == 0)
field("shapes.empty", set_tensor(shape=(2, 0, 3)), of_shape(3, 0, 2))
field("shapes.empty-pointer", set_tensor(data=4096), of_shape(3, 0, 2))
field("shapes.size-one", set_tensor(ndim=1, shape=(5,), strides=(1,)), of_shape(1, 5, 1))
field(
    "shapes.row-major",
    set_tensor(strides=(1, 3)),
    lambda buffer, request: buffer.shape == (3, 4) and buffer.array.flags.c_contiguous,
)
field(
    "shapes.column-major",
    set_tensor(strides=(4, 1)),
    lambda buffer, request: buffer.shape == (3, 4) and buffer.array.flags.f_contiguous,
)
field("shapes.transposed", set_tensor(strides=(6, 3, 1)), of_shape(4, 2, 3))
field("shapes.strided", set_tensor(strides=(24, 1)), lambda buffer, request: buffer.strides == (96, 12))


def point_further(managed: Any) -> None:
    managed.tensor.data += 4


field(
    "shapes.offset",
    point_further,
    lambda buffer, request: buffer.shape == (4, 4) and buffer.strides == (48, 4),
)
field("shapes.broadcast", set_tensor(strides=(1, 1)), lambda buffer, request: 0 in buffer.strides)
field("shapes.many-dimensions", set_tensor(strides=(12, 12, 4, 4, 1, 2)), of_shape(2, 1, 3, 1, 2, 2))
field("shapes.large", set_tensor(shape=(8,)), of_shape(LARGE))
field("data.neighbours", set_tensor(strides=(16, 1)), lambda buffer, request: buffer.strides == (64, 16))

# ---- flags ----

field(
    "readonly.flag",
    clear_flag(READ_ONLY),
    lambda buffer, request: buffer.readonly and "stream" not in request,
)
field("readonly.respected", clear_flag(READ_ONLY), told_default)
field("readonly.flag-clear", set_flag(READ_ONLY), untold)
field("readonly.writable", set_flag(READ_ONLY), told_default)
field("copy.flag", clear_flag(IS_COPIED))
field("copy.flag-clear", set_flag(IS_COPIED), asked(copy=None))

# ---- ownership, by deleters in C that misbehave ----


def with_deleter(name: str) -> Callable[[Any], None]:
    """Give the tensor one of them."""
    return lambda managed: replace_deleter(managed, name)


field("ownership.legacy-deleter", with_deleter("broken_delete_never"), of_shape(21))
field("ownership.foreign-thread", with_deleter("broken_delete_on_first_thread"))
field("ownership.without-gil", with_deleter("broken_delete_with_lock"))
field("lifetime.released", with_deleter("broken_delete_never"), asked(stream=1, max_version=(1, 3)))
field("lifetime.never-blocks", with_deleter("broken_delete_slowly"), asked(stream=2, max_version=(1, 3)))
field("exit.alive", with_deleter("broken_delete_in_python"), told_default)
field(
    "exit.deleter-after-python",
    with_deleter("broken_delete_in_python"),
    lambda buffer, request: request == {"max_version": (1, 0)},
)
