"""Brings producer, consumer and driver together in this process."""

from __future__ import annotations

import gc
import json

from conformance import consumers as known
from conformance import drivers, producers
from conformance.case import A_MOMENT, PATIENCE, Case


def join(producer: str, consumer: str, driver: str, patience: float = PATIENCE, moment: float = A_MOMENT) -> Case:
    """Load all three by name: the driver first, since a process has one only.

    Raises
    ------
    UnavailableError
        One of them cannot run here.
    """
    loaded = drivers.load(driver)
    loaded.reset()
    taker = known.load(known.BY_LABEL[consumer], loaded)
    case = Case(producers.load(producer, loaded), taker, loaded, patience, moment)
    case.spelling = json.dumps({"producer": producer, "consumer": consumer, "driver": driver})
    gc.collect()
    gc.freeze()  # what was imported stays: every check collects, and need not look at it again
    return case


def change_producer(case: Case, producer: str) -> Case:
    """Judge another producer by the same consumer, in the same process."""
    changed = Case(producers.load(producer, case.driver), case.consumer, case.driver, case.patience, case.moment)
    changed.spelling = json.dumps({**json.loads(case.spelling), "producer": producer})
    return changed
