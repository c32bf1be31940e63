"""What a producer made of an array, and the producer's side of every comparison."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.memory import address, watch
from conformance.results import Side


class Subject:
    """An object that shares the memory of a host array.

    Attributes
    ----------
    offered : object
        What consumers are given.
    """

    def __init__(self, offered: Any, array: np.ndarray) -> None:
        self.offered = offered
        self._array: np.ndarray | None = array
        self._memory = watch(array)

    @property
    def array(self) -> np.ndarray:
        """The host array, until it is dropped."""
        assert self._array is not None
        return self._array

    def address(self, side: Side) -> int:  # noqa: ARG002 -- it differs for some
        """Give the address of the first element, as consumers on that side have to see it."""
        return address(self.array)

    def read(self) -> np.ndarray:
        """Copy the values that the producer sees."""
        return self.array.copy()

    def write(self, values: np.ndarray) -> None:
        """Write by the producer."""
        self.array[...] = values

    def drop(self) -> None:
        """Let go of the producer's object and of the array."""
        self.offered = self._array = None

    def alive(self) -> bool:
        """Tell whether the host array's memory is kept."""
        return self._memory() is not None


def collect(timeout: float) -> None:  # noqa: ARG001 -- producers that release later take it
    """Let Python drop what is in reference cycles."""
    gc.collect()


@dataclass(frozen=True)
class Producer:
    """Who hands arrays over.

    Attributes
    ----------
    name : str
        As in the report.
    side : Side
        Where it hands them over unless it is asked otherwise.
    make : callable
        Make a `Subject` of a NumPy array, with keywords for what only some can; raises CannotBeAskedError for what
        it cannot hand over, and what the producer itself raises for what it refuses.
    packages : tuple of str
        The distributions that may provide it.
    promises : bool
        Whether it makes dlwrap's promises.
    serves_host : bool
        Whether it gives the view of the CPU on demand, beside CUDA.
    in_place : bool
        Whether it shares the memory of the host array it was given.
    immutable : str
        Why nobody may write to what it hands over; empty if one may.
    settle : callable
        Wait, so many seconds at most, for what it releases later.
    """

    name: str
    side: Side
    make: Callable[..., Subject]
    packages: tuple[str, ...]
    promises: bool = False
    serves_host: bool = False
    in_place: bool = True
    immutable: str = ""
    settle: Callable[[float], None] = collect
