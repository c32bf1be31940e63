"""How long the memory is kept, and what a release does to others."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance import reference
from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check
from conformance.consumers.reference import Taken
from conformance.drivers._calls import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.case import Case
    from conformance.producers._subject import Subject

AT_ONCE = 0.25  # seconds, in which what does not wait is done


@check("lifetime.outlives", every=True)
def check_outlives(case: Case) -> None:
    subject = case.make()
    values, taken = subject.read(), case.take(subject)
    if case.consumer.address(taken) != subject.address(case.side):
        raise CannotBeAskedError("it copied the array, and needs nothing more: see data.address")
    subject.drop()
    case.settle()
    assert subject.alive(), "the memory was given back while the framework's array needed it"
    assert np.asarray(case.consumer.read(taken)).tobytes() == values.tobytes(), "the values changed"


@check("lifetime.released", every=True)
def check_released(case: Case) -> None:
    subject = case.make()
    subject.alive()
    taken = case.take(subject)
    subject.drop()
    del taken
    assert case.is_released(subject), f"the host array is kept {case.patience:g} s after the framework's array"


# ---- the GPU ----


def assert_kept_by_the_gpu(case: Case, subject: Subject, let_go: Callable[[], None]) -> None:
    """Assert that the memory stays while work waits; then let that go."""
    subject.drop()
    gc.collect()
    try:
        case.settle()
        assert subject.alive(), "the memory was given back while the GPU worked on it"
    finally:
        let_go()
        case.is_released(subject)


def submit(case: Case, stream: int, subject: Subject) -> Callable[[], None]:
    """Hold a stream with work on the subject's memory."""
    return case.driver.busy(stream, subject.address(case.side), 64)


@check("lifetime.after-the-gpu", every=True, promise=True, cuda=True)
def check_after_the_gpu(case: Case) -> None:
    subject = case.make()
    taken = case.take(subject)
    let_go = submit(case, case.consumer.work_stream(), subject)
    del taken
    assert_kept_by_the_gpu(case, subject, let_go)


@check("lifetime.untold-stream", promise=True, cuda=True)
def check_untold_stream(case: Case) -> None:
    subject, stream = case.make(), case.driver.create_stream()
    taken = Taken(case.ask(subject, stream=-1, max_version=(1, 3)))
    let_go = submit(case, stream, subject)
    del taken
    assert_kept_by_the_gpu(case, subject, let_go)
    case.driver.destroy_stream(stream)


@check("lifetime.destroyed-stream", promise=True, cuda=True)
def check_destroyed_stream(case: Case) -> None:
    subject, stream = case.make(), case.driver.create_stream()
    taken = Taken(case.ask(subject, stream=stream, max_version=(1, 3)))
    let_go = submit(case, stream, subject)
    case.driver.destroy_stream(stream)
    del taken
    assert_kept_by_the_gpu(case, subject, let_go)


@check("lifetime.several-streams", promise=True, cuda=True)
def check_several_streams(case: Case) -> None:
    subject, streams = case.make(), [case.driver.create_stream() for _ in range(2)]
    taken = [Taken(case.ask(subject, stream=stream, max_version=(1, 1))) for stream in streams]
    let_go = submit(case, streams[0], subject)
    del taken
    assert_kept_by_the_gpu(case, subject, let_go)
    for stream in streams:
        case.driver.destroy_stream(stream)


@check("lifetime.dropped-first", promise=True, cuda=True)
def check_dropped_first(case: Case) -> None:
    subject, stream = case.make(), case.driver.create_stream()
    taken = Taken(case.ask(subject, stream=None, max_version=(1, 3)))
    del taken
    case.settle()
    let_go = submit(case, stream, subject)
    assert_kept_by_the_gpu(case, subject, let_go)
    case.driver.destroy_stream(stream)


@check("lifetime.never-blocks", promise=True, cuda=True)
def check_never_blocks(case: Case) -> None:
    subject = case.make()
    taken = Taken(case.ask(subject, stream=PER_THREAD, max_version=(1, 3)))
    let_go = submit(case, PER_THREAD, subject)
    begun = time.monotonic()
    del taken
    subject.drop()
    took = time.monotonic() - begun
    let_go()
    case.is_released(subject)
    assert took < AT_ONCE, f"it took {took:.2f} s"


@check("lifetime.nothing-launched", promise=True, cuda=True)
def check_nothing_launched(case: Case) -> None:
    if not case.driver.simulated:
        raise CannotBeAskedError("only the simulated driver counts the calls")
    stream = case.driver.create_stream()

    def work() -> None:
        subject = case.make()
        taken = Taken(case.ask(subject, stream=stream, max_version=(1, 0)))
        subject.drop()
        del taken
        case.is_released(subject)

    submitted = case.driver.launches_of_others(work)
    case.driver.destroy_stream(stream)
    assert not submitted, f"calls that submit something: {', '.join(submitted)}"


# ---- captures and contexts ----


@check("lifetime.capture-owns", promise=True, cuda=True)
def check_capture_owns(case: Case) -> None:
    subject, stream = case.make(), case.driver.create_stream()
    case.driver.begin_capture(stream)
    taken = Taken(case.ask(subject, stream=stream, max_version=(1, 2)))
    graph = case.driver.end_capture(stream)
    del taken
    subject.drop()
    gc.collect()
    case.settle()
    kept = subject.alive()
    case.driver.destroy_graph(graph)
    case.is_released(subject)
    case.driver.destroy_stream(stream)
    assert kept, "the memory was given back while a graph would use it"


@check("lifetime.capture-unbroken", promise=True, cuda=True)
def check_capture_unbroken(case: Case) -> None:
    stream = case.driver.create_stream()
    case.driver.begin_capture(stream)
    try:
        subject = case.make()
        taken = Taken(case.ask(subject, stream=-1, max_version=(1, 0)))
        del taken
        subject.drop()
        case.settle()
    finally:
        try:
            graph = case.driver.end_capture(stream)
        except RuntimeError as error:
            raise AssertionError(f"the capture was broken: {error}") from error
    case.driver.destroy_graph(graph)
    case.driver.destroy_stream(stream)


@check("lifetime.context-kept", promise=True, cuda=True)
def check_context_kept(case: Case) -> None:
    case.driver.set_context(None)
    try:
        subject = case.make()
        taken = Taken(case.ask(subject, stream=LEGACY, max_version=(1, 3)))
        del taken
        subject.drop()
        case.settle()
        left = case.driver.current_context()
    finally:
        case.driver.set_context(case.driver.primary)
    assert left == 0, f"context {left:#x} was left current"


# ---- close ----


def assert_raises(kind: type[Exception], call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{what} raised nothing")


@check("lifetime.close-refuses", promise=True)
def check_close_refuses(case: Case) -> None:
    subject = case.make()
    taken = Taken(case.ask(subject, max_version=(1, 3)))
    assert_raises(BufferError, subject.offered.close, "close() with a tensor alive")
    del taken


@check("lifetime.close-times-out", promise=True, cuda=True)
def check_close_times_out(case: Case) -> None:
    subject = case.make()
    taken = Taken(case.ask(subject, stream=LEGACY, max_version=(1, 2)))
    let_go = submit(case, LEGACY, subject)
    del taken
    try:
        assert_raises(
            TimeoutError, lambda: subject.offered.close(timeout=case.moment), "close() beside work on the GPU"
        )
    finally:
        subject.drop()
        let_go()
        case.is_released(subject)


@check("lifetime.closed", promise=True)
def check_closed(case: Case) -> None:
    array = case.array()
    subject = case.make(array)
    subject.offered.close()
    assert_raises(BufferError, lambda: case.ask(subject, max_version=(1, 3)), "the export of a closed buffer")
    subject.drop()
    again = case.make(array)
    seen = case.look(again, max_version=(1, 3))
    assert seen.kind == reference.VERSIONED
