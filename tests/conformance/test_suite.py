"""The suite as tests: each rule at each consumer, for arrays that dlwrap hands over."""

from __future__ import annotations

import pytest

from conformance import consumers, drivers, expectations
from conformance.cannot import UnavailableError
from conformance.pool import Worker
from conformance.results import Outcome
from conformance.run import pairs

CASES = sorted(pairs(), key=lambda pair: pair[1])  # one consumer after the other


@pytest.fixture(scope="session")
def driver():
    return drivers.choose("auto")


@pytest.fixture(scope="module")
def worker_of(driver):
    """Start the process of a consumer, when it is first asked for, and end the one before."""
    current: dict[str, Worker | str] = {}

    def stop():
        for worker in current.values():
            if isinstance(worker, Worker):
                worker.stop()
        current.clear()

    def find(label):
        if label not in current:
            stop()
            current[label] = start(label, driver)
        found = current[label]
        if isinstance(found, str):
            pytest.skip(found)
        return found

    yield find
    stop()


def start(label, driver):
    entry = consumers.BY_LABEL[label]
    reason = consumers.obstacle(entry, simulated=driver == "simulated")
    if reason:
        return reason
    worker = Worker({"producer": "dlwrap", "consumer": label, "driver": driver})
    try:
        worker.start()
    except UnavailableError as error:
        return str(error)
    return worker


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("rule", "label"), CASES, ids=[f"{rule} at {label}" for rule, label in CASES])
def test_a_wrapped_array_arrives_right(worker_of, driver, rule, label):
    worker = worker_of(label)
    entry = consumers.BY_LABEL[label]
    who = ("dlwrap", worker.facts["producer_version"]), (label, entry.version)
    fault = expectations.read().find(*who, rule, driver)
    outcome, reason = expectations.settle(*worker.ask(rule), fault)
    if outcome is Outcome.KNOWN_FAULT:
        pytest.xfail(reason)
    if outcome is not Outcome.PASS and outcome is not Outcome.FAIL:
        pytest.skip(reason)
    assert outcome is Outcome.PASS, reason
