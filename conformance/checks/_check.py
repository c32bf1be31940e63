"""Ties each check function to its rule, and says of whom it can be asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.contract import BY_ID
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.case import Case
    from conformance.producers._subject import Producer

    Function = Callable[[Case], None]


@dataclass(frozen=True)
class Check:
    """How a rule is checked: the function raises if the rule is broken.

    Attributes
    ----------
    rule : str
        The rule's identifier.
    function : callable
        Given a `Case`.
    every : bool
        Whether it is asked of each consumer, or of the producer alone, by the reference consumer.
    promise : bool
        Whether dlwrap alone promised it.
    cuda : bool
        Whether it is about CUDA memory only.
    in_place : bool
        Whether it is about the memory of the host array.
    """

    rule: str
    function: Function
    every: bool
    promise: bool
    cuda: bool
    in_place: bool


CHECKS: dict[str, Check] = {}


def check(
    rule: str, *, every: bool = False, promise: bool = False, cuda: bool = False, in_place: bool = False
) -> Callable[[Function], Function]:
    """Make a function the check of a rule."""
    assert rule in BY_ID, f"no rule {rule}"
    assert rule not in CHECKS, f"two checks of {rule}"

    def register(function: Function) -> Function:
        CHECKS[rule] = Check(rule, function, every, promise, cuda, in_place)
        return function

    return register


def why_not_asked(check: Check, producer: Producer, side: Side) -> str:
    """Say why a rule cannot be asked of a producer; an empty text if it can."""
    if side is Side.CUDA and producer.side is not Side.CUDA:
        return f"{producer.name} hands over host memory only"
    if side is Side.CPU and producer.side is not Side.CPU and not producer.serves_host:
        return f"{producer.name} hands over CUDA memory only"
    if check.promise and not producer.promises:
        return f"dlwrap's promise, which {producer.name} never made"
    if check.cuda and side is Side.CPU:
        return "about CUDA memory"
    if check.in_place and not producer.in_place:
        return f"{producer.name} hands over memory of its own, not the host array"
    return ""
