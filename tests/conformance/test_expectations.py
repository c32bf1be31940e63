"""Known faults are kept honest: each is of something that exists, and still shows where its versions are installed."""

from __future__ import annotations

import itertools

import pytest
from packaging.specifiers import SpecifierSet

from conformance import consumers, drivers, expectations, producers
from conformance.cannot import UnavailableError
from conformance.contract import BY_ID
from conformance.expectations import ANYBODY, Expectations, Fault, settle, settle_again
from conformance.pool import Worker
from conformance.results import Consumer, Outcome, Report, Result, Side

FAULTS = sorted(expectations.read().faults, key=lambda fault: (fault.producer, fault.consumer))
GROUPS = {
    f"{producer} at {consumer}": list(faults)
    for (producer, consumer), faults in itertools.groupby(FAULTS, lambda fault: (fault.producer, fault.consumer))
}
FAULT = Fault("numpy", "torch (CPU view)", "shapes.reversed", "consumer", ">=2.11,<2.14", "torch aborts")
KNOWN = Expectations([FAULT])
NUMPY, TORCH = ("numpy", "2.4.6"), ("torch (CPU view)", "2.13.0+cpu")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule} of {fault.producer} at {fault.consumer}")
def test_a_known_fault_is_of_something_that_exists(fault):
    assert fault.producer in producers.MODULES or (fault.producer == ANYBODY and fault.of == "consumer")
    assert fault.consumer in consumers.BY_LABEL
    assert fault.rule in BY_ID
    assert fault.of in {"producer", "consumer"}
    assert fault.driver in {"", "simulated", "real"}
    assert len(fault.reason) > 20
    bounds = {each.operator for each in SpecifierSet(fault.versions)}
    assert bounds == {">=", "<"}, "the versions in which it was seen have both ends"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("pair", GROUPS)
def test_a_known_fault_still_shows(pair):
    faults, driver = GROUPS[pair], drivers.choose("auto")
    entry = consumers.BY_LABEL[faults[0].consumer]
    obstacle = consumers.obstacle(entry, simulated=driver == "simulated")
    if obstacle:
        pytest.skip(obstacle)
    producer = "dlwrap" if faults[0].producer == ANYBODY else faults[0].producer
    with Worker({"producer": producer, "consumer": entry.label, "driver": driver, "patience": 1}) as worker:
        try:
            worker.start()
        except UnavailableError as error:
            pytest.skip(str(error))
        versions = {"producer": worker.facts["producer_version"], "consumer": entry.version}
        covered = [each for each in faults if each.covers(versions[each.of]) and each.driver in ("", driver)]
        outcomes = {each.rule: worker.ask(each.rule) for each in covered}
    if not covered:
        pytest.skip(f"not seen in these versions: {versions}")
    gone = {rule: outcome for rule, outcome in outcomes.items() if outcome[0] is not Outcome.FAIL}
    assert gone == {}


def test_a_failure_that_is_known_is_a_known_fault():
    fault = KNOWN.find(NUMPY, TORCH, "shapes.reversed", "simulated")
    assert settle(Outcome.FAIL, "SIGABRT", fault) == (Outcome.KNOWN_FAULT, "torch aborts [SIGABRT]")


def test_an_unexpected_pass_is_a_failure():
    outcome, reason = settle(Outcome.PASS, "", FAULT)
    assert outcome is Outcome.FAIL
    assert "take that entry out" in reason


@pytest.mark.parametrize("outcome", [Outcome.NOT_APPLICABLE, Outcome.NOT_RUN])
def test_what_was_not_asked_stays_so(outcome):
    assert settle(outcome, "why", FAULT) == (outcome, "why")


@pytest.mark.parametrize("outcome", Outcome)
def test_without_a_known_fault_an_outcome_stays_as_it_is(outcome):
    assert settle(outcome, "why", None) == (outcome, "why")


@pytest.mark.parametrize(
    ("producer", "consumer", "rule"),
    [
        (("dlwrap", "0.1.0"), TORCH, "shapes.reversed"),
        (NUMPY, ("jax (CPU view)", "2.13.0"), "shapes.reversed"),
        (NUMPY, TORCH, "shapes.empty"),
        (NUMPY, ("torch (CPU view)", "2.14.0"), "shapes.reversed"),
        (NUMPY, ("torch (CPU view)", "2.10.0"), "shapes.reversed"),
    ],
)
def test_a_fault_is_known_of_nothing_else(producer, consumer, rule):
    assert KNOWN.find(producer, consumer, rule, "simulated") is None


def test_a_fault_of_a_consumer_is_known_whoever_hands_over():
    known = Expectations([Fault(**{**vars(FAULT), "producer": ANYBODY})])
    for producer in (NUMPY, ("a user's", "")):
        assert known.find(producer, TORCH, "shapes.reversed", "simulated") is not None


def test_a_fault_of_one_driver_is_not_known_of_the_other():
    known = Expectations([Fault(**{**vars(FAULT), "driver": "real"})])
    assert known.find(NUMPY, TORCH, "shapes.reversed", "simulated") is None
    assert known.find(NUMPY, TORCH, "shapes.reversed", "real") is not None


@pytest.mark.parametrize("version", ["", "no version"])
def test_what_has_no_version_has_no_known_faults(version):
    assert not FAULT.covers(version)


@pytest.mark.parametrize(
    ("outcome", "version", "settled"),
    [
        pytest.param(Outcome.FAIL, "2.13.0+cpu", Outcome.KNOWN_FAULT, id="a failure that is known by now"),
        pytest.param(Outcome.FAIL, "2.14.0", Outcome.FAIL, id="a failure of another version"),
        pytest.param(Outcome.PASS, "2.13.0+cpu", Outcome.PASS, id="a pass stays one"),
    ],
)
def test_a_report_can_be_settled_again(outcome, version, settled):
    torch = Consumer("torch", version, Side.CPU)
    results = (Result("shapes.reversed", torch.label, outcome, "SIGABRT"),)
    report = Report("2026-01-01", "simulated driver", "numpy", consumers=(torch,), results=results)
    assert [result.outcome for result in settle_again(report, KNOWN).results] == [settled]
