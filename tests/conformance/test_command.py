"""The command, and what becomes of a consumer or a producer that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import pool
from conformance.cannot import UnavailableError
from conformance.contract import RULES
from conformance.expectations import Expectations, Fault
from conformance.pool import Worker
from conformance.results import Outcome, Report, Result
from conformance.run import run

HERE = Path(__file__).parent
FAST = ["data.values", "data.address", "protocol.versioned"]


@pytest.fixture
def found(monkeypatch):
    """Let the suite's processes find the producers of this folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


def command(*arguments):
    root = HERE.parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "conformance", "--driver", "simulated", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        timeout=100,
    )


def only(*rules):
    return [part for rule in rules for part in ("--rule", rule)]


def test_status_0_tells_that_all_is_as_expected(found, tmp_path):
    done = command("--consumer", "reference", "--consumer", "numpy", *only(*FAST), "--report", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = Report.read(tmp_path / "dlwrap.json")
    assert report.passed
    assert {result.outcome for result in report.results} == {Outcome.PASS}
    assert {(result.rule, result.consumer) for result in report.results} == {
        ("data.values", "reference"),
        ("data.values", "numpy (CPU view)"),
        ("data.address", "reference"),
        ("data.address", "numpy (CPU view)"),
        ("protocol.versioned", "reference"),
    }
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_status_1_tells_of_a_failure(found):
    done = command("--producer", "broken:data.values", "--consumer", "reference", *only(*FAST))
    assert done.returncode == 1
    assert "data.values" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "no.such"], "no rule"),
        (["--consumer", "nobody"], "no consumer"),
        (["--producer", "nobody"], "no producer"),
        (["--producer", "no_such_module:f"], "no_such_module"),
    ],
)
def test_status_2_tells_that_nothing_was_run(arguments, said):
    done = command(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_contract_can_be_listed():
    done = command("--list")
    assert done.returncode == 0
    assert [rule.id for rule in RULES if f"  {rule.id}\n" not in done.stdout] == []


def test_a_function_of_the_users_is_judged(found):
    report = run("faulty_producers:in_place", "simulated", consumers=["reference"], rules=FAST)
    assert [result.outcome for result in report.results] == [Outcome.PASS] * 3


def test_a_function_of_the_users_fails_where_it_copies(found):
    report = run("faulty_producers:copied", "simulated", consumers=["reference"], rules=FAST)
    failed = [result.rule for result in report.results if result.outcome is Outcome.FAIL]
    assert failed == ["data.address"]
    assert not report.passed


def test_promises_of_dlwrap_are_not_asked_of_others(found):
    report = run("faulty_producers:in_place", "simulated", consumers=["reference"], rules=["ownership.without-gil"])
    (result,) = report.results
    assert result.outcome is Outcome.NOT_APPLICABLE
    assert "never made" in result.reason


def test_an_unexpected_pass_fails(found):
    known = Expectations([Fault("dlwrap", "reference", "data.values", "consumer", ">=0,<99", "was seen once")])
    report = run("dlwrap", "simulated", consumers=["reference"], rules=["data.values"], known_faults=known)
    assert [result.outcome for result in report.results] == [Outcome.FAIL]
    assert not report.passed


def test_what_is_absent_is_not_run_and_says_why():
    report = run("dlwrap", "simulated", consumers=["cupy (CUDA)"], rules=["data.values"])
    (result,) = report.results
    assert result == Result("data.values", "cupy (CUDA)", Outcome.NOT_RUN, report.consumers[0].reason)
    assert result.reason


def test_a_process_that_aborts_fails_its_check_and_the_next_goes_on(found):
    with Worker({"producer": "faulty_producers:Aborting", "consumer": "reference", "driver": "simulated"}) as worker:
        outcome, reason = worker.ask("data.values")
        assert outcome is Outcome.FAIL
        assert "SIGABRT" in reason
        assert worker.ask("protocol.device-pair") == (Outcome.PASS, "")


def test_a_process_that_hangs_fails_its_check_and_the_next_goes_on(found, monkeypatch):
    monkeypatch.setattr(pool, "CHECKING", 2.0)
    with Worker({"producer": "faulty_producers:Aborting", "consumer": "reference", "driver": "simulated"}) as worker:
        outcome, reason = worker.ask("protocol.no-arguments")
        assert outcome is Outcome.FAIL
        assert "hung" in reason
        assert worker.ask("protocol.device-pair") == (Outcome.PASS, "")


def test_a_producer_that_cannot_run_says_so():
    worker = Worker({"producer": "no_such_module:f", "consumer": "reference", "driver": "simulated"})
    with pytest.raises(UnavailableError, match="no_such_module"):
        worker.start()
