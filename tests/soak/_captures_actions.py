"""What the program does with dlwrap while a stream is captured: every way in, and every way out."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dlwrap
from capsules import look, take
from patience import SECONDS
from soak._captures_world import LEGACY, PER_THREAD, WORDS, OwnedStream, World, using

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable, Iterator

    import numpy as np

    from soak._captures_ledger import Ledger, Watched

# How an array is told to be used. The first three are tracked, the others mean a device-wide wait, but for the last.
TOLD = (
    "on the capturing stream",
    "on another stream",
    "on the legacy stream",
    "on the capturing stream, by its handle",
    "on another stream, by its handle",
    "on the per-thread stream",
    "on no stream",
    "by its pointer",
    "by the CUDA array interface",
    "not at all",
)
_WEIGHTS = (8, 4, 6, 2, 2, 2, 2, 1, 1, 3)
SHORT = (0.0, 2e-4, 1e-3)  # seconds, of a time-out that may or may not be enough


@dataclass(frozen=True)
class Plan:
    """One round: which stream is captured and how, and what is busy before.

    Attributes
    ----------
    number : int
        Of the round, from 1 on.
    stream : OwnedStream
        The one to capture.
    other : OwnedStream
        One that is not captured.
    mode : str
        Of the capture.
    busy, other_busy : bool
        Whether the two work on something when the capture begins.
    """

    number: int
    stream: OwnedStream
    other: OwnedStream
    mode: str
    busy: bool
    other_busy: bool

    def __str__(self) -> str:
        return f"round {self.number}, {self.mode}, {self.kind}"

    @property
    def kind(self) -> str:
        return "blocking" if self.stream.is_blocking else "non-blocking"


@dataclass
class Item:
    """A wrapped array and what holds it."""

    watched: Watched
    buffer: dlwrap.HostWrappedBuffer
    capsules: list[Any] = field(default_factory=list)

    @property
    def pointer(self) -> int:
        """The device's address, as the last capsule tells it."""
        return int(look(self.capsules[-1]).tensor.data)


@contextlib.contextmanager
def unless_captured() -> Iterator[None]:
    """Take it as an answer that a stream cannot be waited for because it is captured."""
    try:
        yield
    except (RuntimeError, BufferError) as error:
        if "it is being captured" not in str(error):
            raise


class Actor:
    """A thread's part in the soak."""

    def __init__(self, world: World, ledger: Ledger, rng: random.Random) -> None:
        self.world = world
        self.ledger = ledger
        self.rng = rng
        self.items: list[Item] = []
        self._inside: Counter[str] = ledger.counter()
        self._lingering: list[np.ndarray] = []
        self._ending = False

    # ---- the parts of an action ----

    def count(self, name: str, act: Callable[[], Any]) -> Any:
        """Act, and count it if the same capture was open before and after."""
        before = self.ledger.open_round
        try:
            return act()
        finally:
            if before and self.ledger.open_round == before:
                self._inside[name] += 1

    def wrap(self, how: str, array: np.ndarray | None = None) -> Item:
        """Wrap a new array, or one given, that nothing but dlwrap will hold."""
        array = self.world.array(self.rng) if array is None else array
        buffer = self.count("wraps", lambda: dlwrap.wrap(array))
        return Item(self.ledger.watch(array, how), buffer)

    def tell(self, item: Item, told: str, plan: Plan) -> None:
        """Use an item in one of the ways of `TOLD`."""
        if told == "not at all":
            return
        item.watched.waits_for |= told == TOLD[0]
        self.count("exports", lambda: self._tell(item, told, plan))

    def _tell(self, item: Item, told: str, plan: Plan) -> None:
        buffer = item.buffer
        stream = plan.stream if "capturing" in told else plan.other
        version = self.rng.choice((None, (1, 0), (1, 3)))
        if told == "by its pointer":
            assert buffer.ptr
        elif told == "by the CUDA array interface":
            assert buffer.__cuda_array_interface__["data"][0]
        elif told in TOLD[:2]:
            if self.rng.random() < 0.3:
                buffer.record_stream(stream)
            else:
                with using(stream):
                    item.capsules.append(buffer.__dlpack__(stream=stream.handle, max_version=version))
        else:
            named = {TOLD[2]: LEGACY, TOLD[5]: PER_THREAD, TOLD[6]: self.rng.choice((None, -1))}
            handle = named.get(told, stream.handle)
            item.capsules.append(buffer.__dlpack__(stream=handle, max_version=version))

    def choose_told(self) -> str:
        told = self.rng.choices(TOLD, _WEIGHTS)[0]
        # Whoever uses a stream while another thread ends its capture cannot know what it gets: not even a program's own
        # launch there would be right.
        return "not at all" if self._ending and "capturing" in told else told

    def drop_capsules(self, item: Item) -> None:
        """Let every importer go: unused capsules, and used ones whose deleter runs without the GIL."""
        self.rng.shuffle(item.capsules)
        while item.capsules:
            capsule = item.capsules.pop()
            if self.rng.random() < 0.5:
                take(capsule).delete()

    def drop(self, item: Item) -> None:
        """Let every holder go, the wrapper first or last."""
        self.ledger.dropping(item.watched)
        if self.rng.random() < 0.5:
            del item.buffer
        self.drop_capsules(item)
        vars(item).clear()

    def close(self, item: Item, timeout: float | None) -> str:
        """Close and drop; say what came of it: "done", "timed out", or "owned" by a graph."""
        self.drop_capsules(item)
        self.ledger.dropping(item.watched)
        try:
            self.count("closes", lambda: item.buffer.close(timeout))
        except TimeoutError:
            return "timed out"
        except BufferError as error:
            if "captured graph" not in str(error):
                raise
            return "owned"
        finally:
            vars(item).clear()
        return "done"

    # ---- before the capture ----

    def prepare(self, plan: Plan) -> None:
        """Wrap and export arrays that will be given up while the stream captures, with work on some of them."""
        self._ending = False
        for _ in range(self.rng.randrange(1, 4)):
            told = self.choose_told()
            item = self.wrap(f"used {told}, before")
            self.tell(item, told, plan)
            if told in TOLD[:2] and item.capsules:
                stream = plan.stream if told == TOLD[0] else plan.other
                self.world.write(stream.handle, item.pointer, 1)
            if self.rng.random() < 0.2:
                self.tell(item, self.choose_told(), plan)
            self.items.append(item)

    # ---- while it begins, is open, or ends ----

    def act(self, plan: Plan, phase: str) -> None:
        """Do one or two things at random; only while the capture ends may they wait for it without a time-out."""
        self._ending = phase == "end"
        actions = _AT_THE_END if self._ending else _ANYTIME
        for _ in range(self.rng.randrange(1, 3)):
            self.rng.choice(actions)(self, plan)

    def drop_what_is_left(self) -> None:
        while self.items:
            self.drop(self.items.pop())

    def _take_item(self, plan: Plan) -> Item:
        """Take one that was prepared, or make one."""
        if self.items:
            return self.items.pop(self.rng.randrange(len(self.items)))
        told = self.choose_told()
        item = self.wrap(f"used {told}, beside")
        self.tell(item, told, plan)
        return item

    def drop_one(self, plan: Plan) -> None:
        self.drop(self._take_item(plan))

    def wrap_export_drop(self, plan: Plan) -> None:
        told = self.choose_told()
        item = self.wrap(f"used {told}, beside")
        self.tell(item, told, plan)
        self.drop(item)

    def export_once_more(self, plan: Plan) -> None:
        if self.items:
            self.tell(self.rng.choice(self.items), self.choose_told(), plan)

    def close_for_a_while(self, plan: Plan) -> None:
        self.close(self._take_item(plan), self.rng.choice(SHORT))

    def close_in_vain(self, plan: Plan) -> None:
        item = self._take_item(plan)
        if item.capsules:
            with contextlib.suppress(BufferError):
                item.buffer.close(SECONDS)
        self.drop(item)

    def reclaim_for_a_while(self, plan: Plan) -> None:
        with contextlib.suppress(TimeoutError):
            self.count("reclaims", lambda: dlwrap.reclaim(self.rng.choice(SHORT)))

    def pin_for_a_while(self, plan: Plan) -> None:
        array = self.world.array(self.rng)
        pin = self.count("pins", lambda: dlwrap.pin(array))
        item = self.wrap("a part of a pinned array", array[8:16])
        self.tell(item, self.choose_told(), plan)
        self.drop(item)
        with contextlib.suppress(TimeoutError):
            self.count("unpins", lambda: pin.close(self.rng.choice(SHORT)))

    def be_refused(self, plan: Plan) -> None:
        array = self.world.array(self.rng)
        half = dlwrap.wrap(array[: WORDS // 2], extent="view")
        try:
            dlwrap.wrap(array[WORDS // 4 :], extent="view")
        except BufferError:
            del half
        else:
            raise AssertionError("two overlapping ranges were page-locked")

    def wrap_again(self, plan: Plan) -> None:
        """Use an array whose page-lock may linger, or be on its way out."""
        if len(self._lingering) < 4:
            self._lingering.append(self.world.array(self.rng))
        array = self.rng.choice(self._lingering)
        dlwrap.wrap(array)

    def flush_by_configure(self, plan: Plan) -> None:
        self.count("configures", lambda: dlwrap.configure(linger_seconds=self.rng.choice((0, 0, 0.001, 0.05))))

    def collect(self, plan: Plan) -> None:
        """Drop a buffer in a reference cycle, and have it found."""
        item = self._take_item(plan)
        cycle: list[Any] = [item.buffer, *item.capsules]
        cycle.append(cycle)
        vars(item).clear()
        del cycle
        self.count("collections", lambda: gc.collect(self.rng.randrange(3)))

    def look_around(self, plan: Plan) -> None:
        dlwrap.stats()
        dlwrap.support()

    def close_to_the_end(self, plan: Plan) -> None:
        if self.close(self._take_item(plan), SECONDS) == "timed out":
            self.ledger.fault("hang", f"{plan}: close() of another thread did not end")

    def synchronize(self, plan: Plan) -> None:
        item = self._take_item(plan)
        with unless_captured():
            item.buffer.synchronize()
        self.drop(item)

    def copy(self, plan: Plan) -> None:
        item = self._take_item(plan)
        with unless_captured():
            item.buffer.__dlpack__(copy=True)
        self.drop(item)

    def reclaim_to_the_end(self, plan: Plan) -> None:
        self.count("reclaims", lambda: dlwrap.reclaim(SECONDS))


_ANYTIME = (
    *[Actor.drop_one] * 6,
    *[Actor.wrap_export_drop] * 4,
    *[Actor.close_for_a_while] * 3,
    Actor.export_once_more,
    Actor.close_in_vain,
    Actor.reclaim_for_a_while,
    Actor.pin_for_a_while,
    Actor.be_refused,
    Actor.wrap_again,
    Actor.flush_by_configure,
    Actor.collect,
    Actor.look_around,
)
_AT_THE_END = (
    *_ANYTIME,
    Actor.close_to_the_end,
    Actor.close_to_the_end,
    Actor.synchronize,
    Actor.copy,
    Actor.reclaim_to_the_end,
)
