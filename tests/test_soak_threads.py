"""The short form of tests/soak/threads.py."""

from __future__ import annotations

import random

from soak.threads import ACTIONS, PHASES, soak


def test_python_threads_and_foreign_threads_break_no_promise():
    seed = random.randrange(1 << 31)
    outcome = soak(seed, seconds=4)
    assert outcome.faults == [], f"seed {seed}"
    assert outcome.rounds > 10 * len(ACTIONS) * len(PHASES)
