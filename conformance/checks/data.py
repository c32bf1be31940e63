"""Values, both ways, and the address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.cannot import CannotBeAskedError
from conformance.checks._check import check

if TYPE_CHECKING:
    from conformance.case import Case


def others(like: np.ndarray) -> np.ndarray:
    """Give values that the array does not have."""
    return (np.arange(like.size) + 50).reshape(like.shape).astype(like.dtype)


@check("data.values", every=True)
def check_values(case: Case) -> None:
    subject = case.make(case.plain((11,)))
    values = subject.read()
    read = np.asarray(case.consumer.read(case.take(subject)))
    assert read.tobytes() == values.tobytes(), f"read {read[:6].tolist()}..., not {values[:6].tolist()}..."


@check("data.address", every=True)
def check_address(case: Case) -> None:
    subject = case.make(case.plain((12,)))
    found, expected = case.consumer.address(case.take(subject)), subject.address(case.side)
    assert found == expected, f"at {found:#x}, not {expected:#x}: it was copied"


@check("data.host-writes", every=True)
def check_host_writes(case: Case) -> None:
    subject = case.make(case.plain((13,)))
    taken = case.take(subject)
    values = others(subject.read())
    subject.write(values)
    read = np.asarray(case.consumer.read(taken))
    assert read.tobytes() == values.tobytes(), f"read {read[:6].tolist()}..., not {values[:6].tolist()}..."


@check("data.framework-writes", every=True)
def check_framework_writes(case: Case) -> None:
    for reason in (case.producer.immutable, case.consumer.immutable):
        if reason:
            raise CannotBeAskedError(reason)
    subject = case.make(case.plain((14,)))
    taken = case.take(subject)
    values = others(subject.read())
    case.consumer.write(taken, values)
    read = subject.read()
    assert read.tobytes() == values.tobytes(), f"the array holds {read[:6].tolist()}..., not {values[:6].tolist()}..."


@check("data.neighbours", every=True, in_place=True)
def check_neighbours(case: Case) -> None:
    for reason in (case.consumer.immutable, case.consumer.compact):
        if reason:
            raise CannotBeAskedError(reason)
    parent = case.array((6, 8))
    before = parent.copy()
    subject = case.make(parent[1:5:2, ::4])
    case.consumer.write(case.take(subject), others(parent[1:5:2, ::4]))
    between = np.ones(parent.shape, bool)
    between[1:5:2, ::4] = False
    changed = int(((parent != before) & between).sum())
    assert not changed, f"{changed} elements between those of the view were overwritten"
