"""The suite can fail: for each rule there is a producer that breaks exactly that one."""

from __future__ import annotations

import pytest

from conformance.contract import RULES
from conformance.pool import Worker
from conformance.results import Outcome

NAMES = {"producer": "dlwrap", "consumer": "reference", "driver": "simulated", "patience": 0.5, "moment": 0.02}
# Rules that take an interpreter each, or 2 GiB of memory, and who might break them: of others they are not asked.
COSTLY = {"exit": ("exit", "ownership"), "shapes.large": ("shapes", "data")}


def may_break(broken, rule):
    return all(broken.startswith(suspects) for costly, suspects in COSTLY.items() if rule.startswith(costly))


@pytest.fixture(scope="module")
def worker():
    with Worker(NAMES) as started:
        yield started


@pytest.mark.parametrize("broken", [rule.id for rule in RULES])
def test_a_broken_producer_fails_exactly_its_rule(worker, broken):
    worker.change_producer(f"broken:{broken}")
    asked = [rule.id for rule in RULES if may_break(broken, rule.id)]
    outcomes = {rule: worker.ask(rule) for rule in asked}
    failed = {rule: reason for rule, (outcome, reason) in outcomes.items() if outcome is Outcome.FAIL}
    assert list(failed) == [broken]
    assert failed[broken]
