"""The short form of the long run of memory; `python tests/soak/memory.py` is the long one."""

from __future__ import annotations

import dlwrap
from soak import memory


def test_memory_stays_flat_and_nothing_is_left(cuda):
    dlwrap.configure()  # ranges linger, as they do by default
    outcome = memory.run(cuda, cycles=4000, crowd=1000)
    assert outcome.faults == []
    assert outcome.rounds >= 4000


def test_a_thing_that_stays_lent_is_a_fault(cuda):
    outcome = memory.Outcome(0)
    kept = dlwrap.wrap(cuda.host_array(4))
    memory.check_nothing_left("one", outcome)
    assert outcome.faults[0].startswith("one: left Stats(live=1")
    kept.close()


def test_growth_is_a_fault(cuda, monkeypatch):
    kept = []
    monkeypatch.setattr(memory, "WAYS", [(lambda cuda, array: kept.append(bytearray(1 << 16)), 1.0, False)])
    outcome = memory.Outcome(0)
    memory.run_cycles(cuda, 1000, outcome)
    assert "bytes more after 1000 cycles" in outcome.faults[0]
