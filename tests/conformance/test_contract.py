"""The contract is whole: each rule has one check, words that say what it is, and a producer that breaks it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from conformance.broken import BROKEN
from conformance.checks import CHECKS
from conformance.contract import RULES

GROUPS = {
    "protocol",
    "exchange",
    "device",
    "dtypes",
    "shapes",
    "data",
    "readonly",
    "copy",
    "ownership",
    "lifetime",
    "exit",
}


def test_each_rule_has_a_name_of_its_own():
    assert [name for name, number in Counter(rule.id for rule in RULES).items() if number > 1] == []


def test_each_rule_has_one_check_and_each_check_a_rule():
    assert sorted(CHECKS) == sorted(rule.id for rule in RULES)  # two checks of one rule fail at import
    assert len({check.function for check in CHECKS.values()}) == len(RULES)


def test_each_rule_has_a_producer_that_breaks_it():
    assert sorted(BROKEN) == sorted(rule.id for rule in RULES)


def test_every_group_has_rules():
    assert {rule.group for rule in RULES} == GROUPS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_it_demands_where_that_is_written_and_how_it_is_checked(rule):
    assert rule.id.startswith(f"{rule.group}.")
    assert re.fullmatch(r"[A-Z_\"\w(].*\.", rule.sentence)
    assert re.fullmatch(r"[A-Z].*\.", rule.check)
    assert rule.source.startswith(("DLPack 1.3", "array API standard 2024.12", "dlwrap promise", "CUDA driver manual"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_asked_of_other_producers_unless_it_is_a_promise_of_dlwrap(rule):
    assert CHECKS[rule.id].promise == rule.source.startswith("dlwrap promise")
