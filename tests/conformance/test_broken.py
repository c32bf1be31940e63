"""The suite can fail: for each rule there is a producer that breaks exactly that one."""

from __future__ import annotations

import pytest

from conformance.contract import RULES
from conformance.pool import Worker
from conformance.results import Outcome

NAMES = {"producer": "dlwrap", "consumer": "reference", "driver": "simulated", "patience": 0.5, "moment": 0.02}
# The rules of the group exit start an interpreter each: they are asked of those who might break them.
MAY_BREAK_EXITS = ("exit", "ownership")


@pytest.fixture(scope="module")
def worker():
    with Worker(NAMES) as started:
        yield started


@pytest.mark.parametrize("broken", [rule.id for rule in RULES])
def test_a_broken_producer_fails_exactly_its_rule(worker, broken):
    worker.change_producer(f"broken:{broken}")
    asked = [rule.id for rule in RULES if rule.group != "exit" or broken.startswith(MAY_BREAK_EXITS)]
    outcomes = {rule: worker.ask(rule) for rule in asked}
    failed = {rule: reason for rule, (outcome, reason) in outcomes.items() if outcome is Outcome.FAIL}
    assert list(failed) == [broken]
    assert failed[broken]
