"""Which registrations without a user have to go, and when."""

from __future__ import annotations

import math

import pytest

from dlwrap import _native
from dlwrap._lingering import Lingering
from dlwrap._registration import Registration


def registration(start, *, idle_since=0.0, nbytes=100, flush=False):
    made = Registration(start, start + nbytes, False, 0)
    made.idle_since, made.flush = idle_since, flush
    return made


@pytest.fixture
def lingering():
    """Registrations that became idle at 0, 1, 2, ... and may stay 10 seconds."""
    lingering = Lingering()
    lingering.seconds, lingering.limit = 10.0, math.inf
    for second in range(10):
        lingering.add(registration(1000 * second, idle_since=float(second)))
    return lingering


def starts(due):
    return [found.start // 1000 for found in due]


@pytest.mark.parametrize(
    ("now", "due", "pause"),
    [
        pytest.param(9.5, [], 0.5, id="none before its time"),
        pytest.param(10.0, [0, 1, 2, 3, 4, 5], 6.0, id="with the first those that have half their time behind them"),
        pytest.param(30.0, list(range(10)), math.inf, id="all"),
    ],
)
def test_what_is_due_takes_along_what_is_half_due(lingering, now, due, pause):
    found, left = lingering.find_due(now)
    assert (starts(found), left) == (due, pause)


def test_the_longest_unused_go_first_where_bytes_are_too_many(lingering):
    lingering.limit = 750
    found, _ = lingering.find_due(9.0)
    assert starts(found) == [0, 1, 2]


def test_what_is_flushed_goes_at_once_and_counts_once(lingering):
    third = list(lingering)[3]
    lingering.flush(third)
    assert (starts(lingering.find_due(9.0)[0]), len(lingering), lingering.nbytes) == ([3], 10, 1000)
    lingering.discard(third)
    assert (lingering.find_due(9.0)[0], len(lingering), lingering.nbytes) == ([], 9, 900)


def test_what_was_marked_before_it_is_added_goes_at_once(lingering):
    lingering.add(registration(50_000, idle_since=9.0, flush=True))
    assert starts(lingering.find_due(9.0)[0]) == [50]


def test_an_interrupt_that_leaves_too_many_bytes_noted_drives_nobody_out(lingering):
    lingering.limit, lingering._at_most = 1000, 1_000_000
    assert lingering.find_due(9.0)[0] == []


def use(found):
    """Use one again, as a wrap does without a word to those that linger."""
    _native.Registrations().use(_native.Loan(0, None), found)


def test_what_is_used_again_neither_lingers_nor_is_due(lingering):
    for found in list(lingering)[:3]:
        use(found)
    assert (len(lingering), lingering.nbytes) == (7, 700)
    assert starts(lingering.find_due(30.0)[0]) == [3, 4, 5, 6, 7, 8, 9]


def test_what_is_used_again_counts_for_nothing_where_bytes_are_too_many(lingering):
    for found in list(lingering)[:3]:
        use(found)
    lingering.limit = 650
    assert starts(lingering.find_due(9.0)[0]) == [3]


def test_what_is_used_again_does_not_go_though_it_was_to_be_flushed(lingering):
    third = list(lingering)[3]
    lingering.flush(third)
    use(third)
    assert starts(lingering.find_due(9.0)[0]) == []


def test_what_was_used_again_is_the_last_to_go(lingering):
    first = next(iter(lingering))
    loan = _native.Loan(0, None)
    _native.Registrations().use(loan, first)
    _native.leave(loan)
    first.idle_since = 10.0
    lingering.add(first)
    assert starts(lingering.find_due(30.0)[0]) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
