"""The native table of page-locked ranges: who finds what, and who uses it; no driver is needed."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlwrap import _driver
from dlwrap._native import GONE, LIVE, REGISTERING, UNREGISTERING, Loan, Registrations, leave
from dlwrap._registration import Registration


def claim(table, start, stop, **options):
    """Put a new range in; give it and its first user."""
    made, loan = Registration(start, stop, options.pop("read_only", False), 0, **options), Loan(0, None)
    assert table.claim(loan, made) == []
    return made, loan


@pytest.fixture
def table():
    return Registrations()


@pytest.fixture
def lock(cuda):
    """What puts memory in and has the simulated driver page-lock it; gives the range and its first user."""

    def lock(table, array, **options):
        start = array.__array_interface__["data"][0]
        made, loan = claim(table, start, start + array.nbytes, hold=array, **options)
        _driver.page_lock(table, made)
        locked.append(made)
        return made, loan

    locked = []
    yield lock
    for made in locked:
        with _driver.primary_context(0):
            _driver.unregister(made.start)


def test_what_is_claimed_is_registering_and_used_by_its_maker(table):
    made, loan = claim(table, 100, 200)
    assert (made.state, made.users, loan.pin) == (REGISTERING, 1, made)
    assert (table.overlapping(0, 1000), table.locked) == ([made], 0)


@pytest.mark.parametrize(("start", "stop"), [(100, 200), (150, 160), (0, 101), (199, 300), (0, 300)])
def test_what_overlaps_cannot_be_claimed(table, start, stop):
    made, _ = claim(table, 100, 200)
    loan, other = Loan(0, None), Registration(start, stop, False, 0)
    assert table.claim(loan, other) == [made]
    assert (loan.pin, other.users) == (None, 0)


def test_neighbours_do_not_overlap(table):
    ranges = [claim(table, start, start + 100)[0] for start in (200, 100, 300)]
    assert table.overlapping(150, 350) == sorted(ranges, key=lambda made: made.start)
    assert table.overlapping(200, 200) == []


def test_what_is_not_page_locked_yet_is_not_shared(table):
    claim(table, 100, 200)
    assert table.share(Loan(0, None), 100, 200, False) is None
    assert table.find(100, 200, False) is None


@pytest.mark.parametrize(
    ("inside", "read_only", "writable", "shared"),
    [
        pytest.param((0, 0), False, True, True, id="all of it"),
        pytest.param((8, -8), False, True, True, id="a part"),
        pytest.param((-8, 0), False, True, False, id="from before"),
        pytest.param((0, 8), False, True, False, id="to behind"),
        pytest.param((0, 0), True, True, False, id="a writer of what may only be read"),
        pytest.param((0, 0), True, False, True, id="a reader of what may only be read"),
    ],
)
def test_who_shares_a_live_range(cuda, table, lock, inside, read_only, writable, shared):
    made, _ = lock(table, cuda.host_array(64), read_only=read_only)
    loan = Loan(0, None)
    bytes_ = (made.start + inside[0], made.stop + inside[1], writable)
    assert table.find(*bytes_) is (made if shared else None)
    assert table.share(loan, *bytes_) is (made if shared else None)
    assert (loan.pin, made.users) == ((made, 2) if shared else (None, 1))


def test_a_live_range_counts_its_bytes_until_it_is_taken_out(cuda, table, lock):
    made, _ = lock(table, cuda.host_array(64))
    assert (made.state, table.locked) == (LIVE, made.stop - made.start)
    table.remove(made)
    assert (made.state, table.locked, table.overlapping(0, 2**64 - 1)) == (GONE, 0, [])


def test_what_is_used_cannot_be_unregistered(cuda, table, lock):
    made, loan = lock(table, cuda.host_array(64))
    assert not table.begin_unregister(made)
    assert leave(loan) is made
    assert table.begin_unregister(made)
    assert made.state == UNREGISTERING
    assert table.share(loan, made.start, made.stop, False) is None


def test_who_left_can_leave_again_and_change_nothing(cuda, table, lock):
    made, loan = lock(table, cuda.host_array(64))
    table.share(other := Loan(0, None), made.start, made.stop, True)
    assert (leave(loan), leave(loan), made.users) == (made, None, 1)
    leave(other)
    assert made.users == 0


def test_a_loan_uses_one_range_at_a_time(table):
    _, loan = claim(table, 100, 200)
    with pytest.raises(ValueError, match="already"):
        table.claim(loan, Registration(300, 400, False, 0))
    with pytest.raises(ValueError, match="already"):
        table.share(loan, 100, 200, False)
    with pytest.raises(ValueError, match="already"):
        table.use(loan, Registration(300, 400, False, 0))


@pytest.mark.parametrize("bad", [Registration(100, 100, False, 0), Registration(100, 200, False, 0, adopted=True)])
def test_only_what_is_new_and_not_empty_is_claimed(table, bad):
    with pytest.raises(ValueError, match="new range"):
        table.claim(Loan(0, None), bad)


def test_taking_out_what_is_not_in_takes_nothing_else_out(table):
    made, _ = claim(table, 100, 200)
    table.remove(Registration(150, 160, False, 0))
    assert table.overlapping(0, 1000) == [made]


def test_a_table_keeps_its_ranges_and_lets_them_go_with_it():
    class Memory:
        pass

    table, memory = Registrations(), Memory()
    alive = weakref.ref(memory)
    claim(table, 100, 200, hold=memory)
    del memory
    gc.collect()
    assert alive() is not None
    del table
    assert alive() is None


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.share(None, 1, 2, False),
        lambda table: table.claim(Loan(0, None), None),
        lambda table: table.use(Loan(0, None), object()),
        lambda table: table.remove(1),
        lambda table: table.begin_unregister("x"),
        lambda table: table.page_lock(Loan(0, None), 0),
        leave,
        lambda table: table.overlapping("a", "b"),
    ],
)
def test_wrong_arguments_are_type_errors(table, call):
    with pytest.raises(TypeError):
        call(table)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8), st.booleans()), max_size=60), st.integers(0, 40))
def test_the_table_finds_what_a_list_would_find(steps, probe):
    table, model = Registrations(), []
    for start, length, take_out in steps:
        made = Registration(start, start + length, False, 0)
        found = [other for other in model if other.start < made.stop and made.start < other.stop]
        found.sort(key=lambda other: other.start)
        assert table.overlapping(made.start, made.stop) == found
        if take_out and found:
            table.remove(found[0])
            model.remove(found[0])
        else:
            assert table.claim(Loan(0, None), made) == found
            model += [] if found else [made]
    assert table.overlapping(probe, 2**64 - 1) == sorted(
        (made for made in model if made.stop > probe), key=lambda made: made.start
    )
