"""Any function of the user's, ``module:function``: it is given a NumPy array and gives an object over its memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from conformance.memory import numbers
from conformance.producers._subject import Producer, Subject
from conformance.reference import CUDA
from conformance.results import Side

if TYPE_CHECKING:
    import numpy as np

    from conformance.drivers._calls import Driver


def make(driver: Driver, name: str) -> Producer:  # noqa: ARG001 -- the user's function finds its own
    """Give the producer; one call tells on which side it hands arrays over."""
    module, _, function = name.partition(":")
    produce = getattr(importlib.import_module(module), function)

    def over(array: np.ndarray) -> Subject:
        return Subject(produce(array), array)

    device, _ = produce(numbers((4,), "float32")).__dlpack_device__()
    side = Side.CUDA if int(device) == CUDA else Side.CPU
    return Producer(name, side, over, (module.partition(".")[0],))
