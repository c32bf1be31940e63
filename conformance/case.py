"""One check of one producer at one consumer: what check functions work with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance import reference
from conformance.cannot import CannotBeAskedError
from conformance.consumers.reference import Reference, Taken
from conformance.dtypes import numpy_type
from conformance.memory import nbytes_of, numbers, plain_bytes, shaped
from conformance.results import Side

if TYPE_CHECKING:
    from conformance.consumers._consumer import Consumer
    from conformance.drivers._calls import Driver
    from conformance.producers._subject import Producer, Subject

A_MOMENT = 0.1  # seconds in which what must not end would end
PATIENCE = 5.0  # seconds within which what has to end ends
NEWEST = (1, 3)
HOST = (1, 0)


class OnHost:
    """Asks for the view of the CPU, on behalf of frameworks that do not ask themselves."""

    def __init__(self, offered: Any) -> None:
        self._offered = offered

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST

    def __dlpack__(self, **request: Any) -> object:
        return self._offered.__dlpack__(**{**request, "dl_device": HOST})


class Case:
    """Makes arrays, has the producer hand them over and the consumer take them.

    Attributes
    ----------
    producer, consumer, driver
        Who takes part.
    side : Side
        Where the consumer takes the array.
    patience : float
        Seconds within which what has to end ends.
    moment : float
        Seconds in which what must not end would end.
    spelling : str
        How another process finds the same three.
    """

    spelling = ""

    def __init__(
        self,
        producer: Producer,
        consumer: Consumer,
        driver: Driver,
        patience: float = PATIENCE,
        moment: float = A_MOMENT,
    ) -> None:
        self.producer = producer
        self.consumer = consumer
        self.driver = driver
        self.patience = patience
        self.moment = moment
        self.side = producer.side if consumer.side is Side.BOTH else consumer.side
        self._reference = Reference(self.side, driver)

    # ---- arrays ----

    def array(self, shape: tuple[int, ...] = (16,), dtype: str = "float32") -> np.ndarray:
        """Make an array over watched memory, with numbers in it."""
        made = shaped(self.driver.memory(nbytes_of(shape, numpy_type(dtype))), shape, numpy_type(dtype))
        made[...] = numbers(shape, numpy_type(dtype))
        return made

    def zeros(self, count: int) -> np.ndarray:
        """Make zeros that take up memory only where they are touched."""
        return plain_bytes(count)

    def make(self, array: np.ndarray | None = None, **options: Any) -> Subject:
        """Have the producer make its object of an array; by default of one that every producer can hand over."""
        return self.producer.make(self.plain() if array is None else array, **options)

    def plain(self, shape: tuple[int, ...] = (16,)) -> np.ndarray:
        """Make an array of float32, or of what this producer has instead."""
        return self.array(shape, "int8" if self.producer.name == "cuda.core" else "float32")

    # ---- hand over and take ----

    def offer(self, subject: Subject) -> Any:
        """Give what this consumer is given."""
        if self.side is Side.CPU and self.producer.serves_host and not self.consumer.asks_for_host:
            return OnHost(subject.offered)
        return subject.offered

    def take(self, subject: Subject) -> Any:
        """Have the consumer take it."""
        return self.consumer.take(self.offer(subject))

    def ask(self, subject: Subject, **request: Any) -> Any:
        """Ask the producer for a capsule."""
        return subject.offered.__dlpack__(**request)

    def look(self, subject: Subject, **request: Any) -> reference.Seen:
        """Ask for a capsule and look into it; it must not be used afterwards."""
        return reference.look(self.ask(subject, **request))

    def look_versioned(self, subject: Subject, **request: Any) -> reference.Seen:
        """Look into a versioned capsule.

        Raises
        ------
        CannotBeAskedError
            The producer gives legacy capsules all the same, which a rule of its own judges.
        """
        seen = self.look(subject, **{"max_version": NEWEST, **request})
        if seen.kind != reference.VERSIONED:
            raise CannotBeAskedError("it gives legacy capsules only: see protocol.versioned")
        return seen

    def read(self, taken: Taken) -> np.ndarray:
        """Read by the reference consumer."""
        return self._reference.read(taken)

    def table(self, subject: Subject) -> int:
        """Find the exchange table."""
        kind = type(subject.offered)
        if not hasattr(kind, "__dlpack_c_exchange_api__"):
            raise CannotBeAskedError(f"{kind.__name__} has no __dlpack_c_exchange_api__")
        api, _ = reference.find_table(kind)
        if not api:
            raise CannotBeAskedError("its exchange table cannot be found: see exchange.table")
        return api

    # ---- time ----

    def settle(self) -> None:
        """Give whoever frees too early the time to do so."""
        self.producer.settle(self.moment)

    def is_released(self, subject: Subject) -> bool:
        """Wait until the host array is gone; False if it stays."""
        deadline = time.monotonic() + self.patience
        while subject.alive():
            if time.monotonic() > deadline:
                return False
            self.producer.settle(self.moment)
            time.sleep(0.005)
        return True
