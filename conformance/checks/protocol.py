"""Keywords, versions, flags, fields and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance import reference
from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check
from conformance.drivers._calls import LEGACY, PER_THREAD
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.case import Case
    from conformance.reference import Seen

NAMES = {reference.LEGACY: "dltensor", reference.VERSIONED: "dltensor_versioned"}


def fields(seen: Seen) -> dict[str, object]:
    """Give what two descriptions of the same array have in common."""
    return {
        "address": seen.first,
        "device": seen.device,
        "shape": seen.shape,
        "strides": seen.strides,
        "element type": seen.dtype,
    }


def assert_same(one: Seen, other: Seen) -> None:
    """Assert that both describe the same array."""
    for (name, left), right in zip(fields(one).items(), fields(other).values(), strict=True):
        assert left == right, f"the {name} differs: {left} and {right}"


def assert_refused(case: Case, why: str, *kinds: type[Exception], **request: object) -> None:
    """Assert that a request raises, one of certain kinds if there are any."""
    subject = case.make()
    error = None
    try:
        case.ask(subject, **request)
    except Exception as raised:  # noqa: BLE001 -- its kind is judged below
        error = raised
    assert error is not None, f"{why} was not refused"
    wanted = " or ".join(kind.__name__ for kind in kinds)
    assert not kinds or isinstance(error, kinds), f"refused with {type(error).__name__}, not {wanted}: {error}"


@check("protocol.device-pair")
def check_device_pair(case: Case) -> None:
    pair = case.make().offered.__dlpack_device__()
    assert isinstance(pair, tuple), f"{pair!r} is no tuple"
    assert len(pair) == 2, f"{pair!r} is no pair"
    assert all(isinstance(part, int) for part in pair), f"{pair!r} is no pair of integers"


@check("protocol.keywords")
def check_keywords(case: Case) -> None:
    subject = case.make()
    case.look(subject, stream=None, max_version=None, dl_device=None, copy=None)


@check("protocol.no-arguments")
def check_no_arguments(case: Case) -> None:
    assert_kind(case, reference.LEGACY)


@check("protocol.version-zero")
def check_version_zero(case: Case) -> None:
    assert_kind(case, reference.LEGACY, max_version=(0, 8))


@check("protocol.versioned")
def check_versioned(case: Case) -> None:
    assert_kind(case, reference.VERSIONED, max_version=(1, 0))


def assert_kind(case: Case, kind: int, **request: object) -> None:
    found = case.look(case.make(), **request).kind
    assert found == kind, f"a capsule named {NAMES[found]}, not {NAMES[kind]}"


@check("protocol.version-major")
def check_version_major(case: Case) -> None:
    major = case.look_versioned(case.make()).major
    assert major == 1, f"major version {major}"


@check("protocol.version-newer")
def check_version_newer(case: Case) -> None:
    subject = case.make()
    seen = case.look(subject, max_version=(9, 9))
    assert seen.kind == reference.LEGACY or seen.major <= 1, f"major version {seen.major}, which nobody has defined"


@check("protocol.version-minor", promise=True)
def check_version_minor(case: Case) -> None:
    subject = case.make()
    seen = case.look_versioned(subject, max_version=(1, 0))
    assert seen.minor == 0, f"asked for 1.0, got 1.{seen.minor}"


@check("protocol.flags-known")
def check_flags_known(case: Case) -> None:
    flags = case.look_versioned(case.make()).flags
    known = reference.READ_ONLY | reference.IS_COPIED | reference.SUBBYTE_PADDED
    assert not flags & ~known, f"flags {flags:#x}"


@check("protocol.destructor")
def check_destructor(case: Case) -> None:
    subject = case.make(case.plain((6,)))
    for request in ({}, {"max_version": (1, 3)}):
        seen = case.look(subject, **request)
        assert seen.destructor, f"a capsule named {NAMES[seen.kind]} has no destructor"


@check("protocol.fresh-capsule")
def check_fresh_capsule(case: Case) -> None:
    subject = case.make(case.plain((17,)))
    one, other = case.ask(subject, max_version=(1, 3)), case.ask(subject, max_version=(1, 3))
    assert reference.look(one).managed != reference.look(other).managed, "two calls gave the same tensor"


@check("protocol.same-in-both")
def check_same_in_both(case: Case) -> None:
    subject = case.make(case.plain((15,)))
    legacy, versioned = case.ask(subject), case.ask(subject, max_version=(1, 3))
    assert_same(reference.look(legacy), reference.look(versioned))


@check("protocol.deleter", promise=True)
def check_deleter(case: Case) -> None:
    subject = case.make(case.plain((18,)))
    for request in ({}, {"max_version": (1, 3)}):
        # Consumed, so that the capsule's destructor does not call what is not there.
        seen = reference.take(case.ask(subject, **request))
        present = bool(seen.deleter)
        reference.delete(seen)
        assert present, f"a tensor in a capsule named {NAMES[seen.kind]} has no deleter"


@check("protocol.manager-context", promise=True)
def check_manager_context(case: Case) -> None:
    subject = case.make()
    for request in ({}, {"max_version": (1, 3)}):
        capsule = case.ask(subject, **request)
        seen = reference.look(capsule)
        assert seen.manager_ctx, f"a tensor in a capsule named {NAMES[seen.kind]} has no manager_ctx"


@check("protocol.byte-offset", promise=True)
def check_byte_offset(case: Case) -> None:
    parent = case.plain((64,))
    subject = case.make(parent[20:36])
    for request in ({}, {"max_version": (1, 3)}):
        capsule = case.ask(subject, **request)
        offset = reference.look(capsule).byte_offset
        assert offset == 0, f"byte_offset {offset}: who ignores it reads from the wrong place"


@check("protocol.strides-present")
def check_strides_present(case: Case) -> None:
    subject = case.make()
    capsule = case.ask(subject, max_version=(1, 3))
    seen = reference.look(capsule)
    if seen.kind == reference.VERSIONED and (seen.major, seen.minor) < (1, 2):
        raise CannotBeAskedError(f"it says version 1.{seen.minor}, in which strides may be missing")
    if seen.kind == reference.LEGACY:
        raise CannotBeAskedError("it gives legacy capsules only: see protocol.versioned")
    assert seen.has_strides, f"strides is NULL in a tensor of version 1.{seen.minor} with {seen.ndim} dimensions"


# ---- streams ----


@check("protocol.stream-untold", cuda=True)
def check_stream_untold(case: Case) -> None:
    subject = case.make()
    case.look(subject, stream=None)
    case.look(subject, stream=-1)


@check("protocol.stream-default", cuda=True)
def check_stream_default(case: Case) -> None:
    subject = case.make()
    case.look(subject, stream=LEGACY)
    case.look(subject, stream=PER_THREAD)


@check("protocol.stream-handle", cuda=True)
def check_stream_handle(case: Case) -> None:
    subject, stream = case.make(), case.driver.create_stream()
    case.look(subject, stream=stream)
    subject.drop()
    case.settle()
    case.driver.destroy_stream(stream)


@check("protocol.stream-zero", cuda=True)
def check_stream_zero(case: Case) -> None:
    assert_refused(case, "stream=0", stream=0)


@check("protocol.stream-negative", cuda=True)
def check_stream_negative(case: Case) -> None:
    assert_refused(case, "stream=-2", stream=-2)


@check("protocol.stream-not-an-integer", promise=True, cuda=True)
def check_stream_not_an_integer(case: Case) -> None:
    for stream in (1.5, True, object()):
        assert_refused(case, f"stream={stream!r}", TypeError, stream=stream)


@check("protocol.stream-on-host")
def check_stream_on_host(case: Case) -> None:
    if case.side is Side.CUDA and not case.producer.serves_host:
        raise CannotBeAskedError(f"{case.producer.name} hands over CUDA memory only")
    device = {"dl_device": (1, 0)} if case.side is Side.CUDA else {}
    assert_refused(case, "stream=1 for the CPU", stream=LEGACY, **device)
