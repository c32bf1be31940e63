"""Brings producer, consumer and driver together in this process."""

from __future__ import annotations

import json

from conformance import drivers, producers
from conformance import consumers as known
from conformance.case import PATIENCE, Case


def join(producer: str, consumer: str, driver: str, patience: float = PATIENCE) -> Case:
    """Load all three by name: the driver first, since a process has one only.

    Raises
    ------
    UnavailableError
        One of them cannot run here.
    """
    loaded = drivers.load(driver)
    loaded.reset()
    taker = known.load(known.BY_LABEL[consumer], loaded)
    case = Case(producers.load(producer, loaded), taker, loaded, patience)
    case.spelling = json.dumps({"producer": producer, "consumer": consumer, "driver": driver})
    return case
