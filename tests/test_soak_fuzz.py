"""The short form of soak/fuzz.py: random bytes, without coverage."""

from __future__ import annotations

import pytest

from exporters import lend
from soak import fuzz


@pytest.mark.parametrize("seed", [1, 2])
def test_the_native_part_does_what_the_model_says_whatever_the_bytes_are(seed):
    outcome = fuzz.run_random(seed, seconds=2)
    assert outcome.faults == []
    assert outcome.rounds > 20


def test_a_key_that_is_given_twice_is_a_fault():
    native = fuzz.load(fuzz.dlwrap._native.__file__)
    program = fuzz.Program(native, b"")
    lend(native, 7)
    with pytest.raises(AssertionError, match="an earlier program left keys behind"):
        program.run()
