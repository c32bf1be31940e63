"""docs/reliability.md says what the committed results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak import table

TESTS = Path(__file__).parent


def test_the_page_is_the_one_that_the_committed_results_give():
    assert table.PAGE.read_text() == table.render(), "run: python tests/soak/table.py"


@pytest.mark.parametrize("promise", table.PROMISES, ids=lambda promise: promise.text)
def test_what_a_promise_names_exists_and_has_results(promise):
    runs = table.long_runs()
    suite = runs["simulator"]["suite"]["figures"]["files"]
    gpu = table.count_gpu_files(table.latest_gpu_tests()[1])
    assert [name for name in promise.simulator if not suite.get(name, {}).get("passed")] == []
    assert [name for name in promise.gpu if not gpu.get(name, {}).get("passed")] == []
    assert [name for name in promise.long_runs if name not in {**runs["simulator"], **runs["gpu"]}] == []


def test_a_fault_in_a_result_is_shown(monkeypatch):
    runs = table.long_runs()
    next(iter(runs["gpu"].values()))["faults"] = ["the array was gone"]
    monkeypatch.setattr(table, "long_runs", lambda: runs)
    assert "the array was gone" in table.render()
    assert "1 faults" in table.render()
