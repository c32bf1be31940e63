"""For each rule a producer that breaks exactly that one: dlwrap, wrong in one way.

They are asked for as ``--producer broken:RULE``, and prove that the suite can fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.broken import fields, lifetimes, requests, tables
from conformance.broken._variant import BROKEN

if TYPE_CHECKING:
    from conformance.drivers._calls import Driver
    from conformance.producers._subject import Producer

__all__ = ["BROKEN", "make"]

_ALL = (fields, requests, tables, lifetimes)


def make(driver: Driver, rule: str) -> Producer:
    """Give the producer that breaks a rule.

    Raises
    ------
    ValueError
        There is none.
    """
    if rule not in BROKEN:
        raise ValueError(f"no producer breaks {rule!r}")
    return BROKEN[rule](driver)
