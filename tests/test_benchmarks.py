"""The benchmarks run, their goals are measured, and docs/performance.md says what the committed results say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from benchmarks import _results, page, run  # noqa: E402
from benchmarks._timing import compare, race_once  # noqa: E402
from benchmarks.goals import GOALS, Goal  # noqa: E402

SIMULATED, GPU = _results.latest(gpu=False), _results.latest(gpu=True)
COMMITTED = [pytest.param(each, id=page.column_of(each)) for each in (SIMULATED, GPU) if each is not None]
BENCHMARKS = [benchmark for module in run.MODULES for benchmark in run.benchmarks_of(module)]

# Without those that import a framework, start many interpreters, or count to large numbers in any case.
SHORT = ["cpu_exports", "cpu_wraps", "cpu_native", "cpu_memory", "cpu_manager", "cpu_registering", "gpu_loop"]


@pytest.mark.skipif(not COMMITTED, reason="no results are committed")
def test_the_page_is_the_one_that_the_committed_results_give():
    assert page.PAGE.read_text() == page.render(SIMULATED, GPU), "run: python benchmarks/page.py"


@pytest.mark.parametrize("results", COMMITTED)
@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.row}-{goal.figure}")
def test_each_goal_has_a_measurement_or_a_reason_why_not(goal, results):
    row = results["rows"][goal.row]
    assert row.get("skipped") or row.get("error") or isinstance(row[goal.figure], int | float)


@pytest.mark.parametrize("path", [path for path, _ in page.PLOTS.values()])
@pytest.mark.skipif(not COMMITTED, reason="no results are committed")
def test_a_plot_that_the_page_shows_is_there(path):
    assert f"({path})" not in page.render(SIMULATED, GPU) or (page.PAGE.parent / path).exists()


def test_each_row_and_curve_has_one_benchmark_and_each_goal_a_row():
    counts = Counter(name for benchmark in BENCHMARKS for name in benchmark.rows + benchmark.curves)
    assert set(counts.values()) == {1}
    assert {goal.row for goal in GOALS} <= {name for benchmark in BENCHMARKS for name in benchmark.rows}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The results of a quick run on the simulated driver."""
    out = tmp_path_factory.mktemp("benchmarks") / "quick.json"
    command = [sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--driver", "simulated", "--out", out]
    done = subprocess.run([*command, "--only", *SHORT], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


def test_what_needs_no_gpu_runs_on_the_simulated_driver(quick):
    assert quick["hardware"]["gpu"] == "simulated driver"
    measured = {name for name, row in quick["rows"].items() if "value" in row}
    skipped = {name: row["skipped"] for name, row in quick["rows"].items() if "skipped" in row}
    assert measured | set(skipped) == {
        name for module in SHORT for benchmark in run.benchmarks_of(module) for name in benchmark.rows
    }
    assert measured >= {"export", "warm_wrap", "memory_pending", "manager_idle", "release_latency", "cold_wrap_small"}
    assert skipped["loop_throughput"] == "needs a GPU"


def test_the_page_shows_figures_reasons_and_misses(quick):
    quick["rows"]["export"] |= {"ratio": 3.0}
    text = page.render(quick, None)
    assert "**3 x (" in text
    assert f"{GOALS[0].what}: simulated driver 2.0 times as much" in text
    assert "- (needs a GPU)" in text


def test_the_plots_can_be_drawn(quick):
    pytest.importorskip("matplotlib")
    from benchmarks import plots

    assert list(plots.draw(quick, None)) == ["plots/registering.svg"]


def test_a_failed_benchmark_is_recorded_and_harms_no_other(tmp_path):
    out = tmp_path / "results.json"
    command = [sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--driver", "simulated", "--out", out]
    done = subprocess.run(
        [*command, "--only", "exchange_view", "--seconds", "0"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert json.loads(out.read_text())["rows"] == {"exchange_view": {"skipped": "no time was left"}}


@pytest.mark.parametrize(
    ("at_least", "measured", "met"), [(False, 2.0, True), (False, 2.1, False), (True, 2.0, True), (True, 1.9, False)]
)
def test_a_goal_is_met_up_to_its_bound(at_least, measured, met):
    goal = Goal("the time", "row", "value", 2.0, "us", at_least)
    assert goal.is_met({"value": measured}) is met
    assert met or goal.miss({"value": measured}) in {"5 % over", "5 % short"}


def test_contestants_take_turns_and_a_ratio_is_of_one_turn():
    order: list[str] = []
    times = {"a": iter([10.0, 100.0, 1000.0]), "b": iter([5.0, 50.0, 500.0])}

    def contestant(name):
        def run_once():
            order.append(name)
            return next(times[name])

        return run_once

    samples = race_once({name: contestant(name) for name in times}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert compare(samples, "ns", against="b")["ratio"] == 2.0
