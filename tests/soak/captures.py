"""No stream capture is broken, whatever dlwrap does meanwhile on any thread: many adversarial rounds.

In each round one thread captures a stream, in one of the three modes. Worker threads use dlwrap in every way they can
while the capture begins, is open, and ends; the capturing thread does so too. Then the graph is launched, and what it
wrote is compared. With ``--simulator`` on the simulated driver, else on device 0.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import math
import random
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import dlwrap
import dlwrap.testing
from patience import SECONDS
from soak._captures_actions import SHORT, TOLD, Actor, Item, Plan
from soak._captures_ledger import Ledger
from soak._captures_world import BLOCKING, MODES, NON_BLOCKING, VALUES, WORDS, World, framework
from soak._report import Outcome, report

if TYPE_CHECKING:
    from collections.abc import Callable


BATCH = 50  # rounds between two checks that everything is gone
STREAMS = 3  # of each kind
HALF = WORDS // 2
_GRAPHS_OWN = hasattr(dlwrap, "keep_alive")
_SWITCH_INTERVALS = (5e-5, 5e-4, 5e-3)  # seconds; how often Python changes threads, by batch
_JITTER = 2e-4  # seconds, at most, before a capture begins or ends
_WATCHDOG = 120  # seconds for a batch; then every stack is printed and the program ends


@dataclass
class Target:
    """Memory that a graph writes to, by the device's address, and what must be there afterwards."""

    array: np.ndarray
    pointer: int
    expected: np.ndarray = field(default_factory=lambda: np.zeros(WORDS, np.uint32))


class CapturingThread(Actor):
    """Captures, uses dlwrap in between, and runs the graph."""

    def __init__(self, world: World, ledger: Ledger, rng: random.Random) -> None:
        super().__init__(world, ledger, rng)
        self._memory: dict[int, np.ndarray] = {}
        self._kept: list[Item] = []
        self._targets: list[Target] = []
        self._nodes = 0

    def prepare_target(self, plan: Plan) -> None:
        """Wrap memory that was there before the capture."""
        stream = plan.stream.handle
        array = self._memory.get(stream)
        if array is None:
            array = self._memory[stream] = self.world.array(self.rng)
        array[:] = 0
        buffer = dlwrap.wrap(array)
        item = Item(self.ledger.watch(array[:], "a view of a target"), buffer)
        self.tell(item, "on the capturing stream", plan)
        if not item.capsules:  # recorded, but not exported
            item.capsules.append(buffer.__dlpack__(stream=1))
        self._nodes = 0
        self._kept, self._targets = [item], [Target(array, item.pointer)]

    def capture(self, plan: Plan) -> None:
        """What goes into the graph, and what is done with dlwrap in between."""
        self._write(plan, self._targets[0])
        self._keep_one_more(plan)
        self._write(plan, self._targets[1])
        early, late = self.rng.choice(_INSIDE), self.rng.choice(_INSIDE)
        if early in _WAITS_FOR_NOTHING:
            early(self, plan)
        self.let_go(plan)
        late(self, plan)
        self._write(plan, self.rng.choice(self._targets))
        if _GRAPHS_OWN and self.rng.random() < 0.5:
            self.drop(self._kept.pop())
        self.world.check_capture(plan.stream)

    def let_go(self, plan: Plan) -> None:
        for stream, busy in ((plan.stream, plan.busy), (plan.other, plan.other_busy)):
            if busy:
                self.world.let_go(stream)

    def run(self, graph: Any, plan: Plan) -> None:
        """Run the graph, and compare."""
        nodes = self.world.run_graph(graph, plan.stream)
        if nodes != self._nodes:
            self.ledger.fault("wrong graph", f"{plan}: the graph has {nodes} nodes, not {self._nodes}")
        for target in self._targets:
            if not np.array_equal(target.array, target.expected):
                self.ledger.fault("wrong value", f"{plan}: {target.array}, expected {target.expected}")

    def give_up(self) -> None:
        """Let the graph's memory go."""
        self._targets = []
        while self._kept:
            self.drop(self._kept.pop())

    def _write(self, plan: Plan, target: Target) -> None:
        """Capture nodes that write to all of a target, then to its second half."""
        for first in (0, HALF):
            value = self.rng.randrange(VALUES)
            writer = self.rng.choice(self.world.writers)
            self.world.write(plan.stream.handle, target.pointer + 4 * first, value, WORDS - first, writer)
            target.expected[first:] = value
            self._nodes += 1

    def _keep_one_more(self, plan: Plan) -> None:
        """Wrap and export, while capturing, an array that the graph will use."""
        array = self.world.array(self.rng)
        item = self.wrap("used by the graph", array)
        self.tell(item, TOLD[0], plan)
        if not item.capsules:
            item.capsules.append(item.buffer.__dlpack__(max_version=(1, 0)))
        self._kept.append(item)
        self._targets.append(Target(array, item.pointer))

    def _wrap_told(self, told: str, plan: Plan) -> Item:
        item = self.wrap(f"used {told}, by the capturing thread")
        self.tell(item, told, plan)
        return item

    def drop_on_the_stream(self, plan: Plan) -> None:
        self.drop(self._wrap_told(TOLD[0], plan))

    def close_on_the_stream(self, plan: Plan) -> None:
        if self.close(self._wrap_told(TOLD[0], plan), self.rng.choice(SHORT)) == "done":
            self.ledger.fault("released too early", f"{plan}: close() returned before the capture ended")

    def close_on_legacy(self, plan: Plan) -> None:
        """Beside the capture of a blocking stream nobody may ask about the legacy one, so that it may take longer."""
        if plan.stream.is_blocking:
            self.close(self._wrap_told("on the legacy stream", plan), self.rng.choice(SHORT))
        else:
            self._close_to_the_end("on the legacy stream", plan)

    def close_unused(self, plan: Plan) -> None:
        self._close_to_the_end("not at all", plan)

    def close_device_wide(self, plan: Plan) -> None:
        self._close_to_the_end("on no stream", plan)

    def close_on_another_stream(self, plan: Plan) -> None:
        self._close_to_the_end("on another stream", plan)

    def _close_to_the_end(self, told: str, plan: Plan) -> None:
        found = self.close(self._wrap_told(told, plan), SECONDS)
        if found != "done":
            self.ledger.fault("hang", f"{plan}: close() within the capture: {found}, used {told}")


_WAITS_FOR_NOTHING: tuple[Callable[[CapturingThread, Plan], None], ...] = (
    CapturingThread.drop_on_the_stream,
    CapturingThread.close_on_the_stream,
    CapturingThread.reclaim_for_a_while,
)
_INSIDE = (
    *_WAITS_FOR_NOTHING,
    CapturingThread.close_on_legacy,
    CapturingThread.close_unused,
    CapturingThread.close_device_wide,
    CapturingThread.close_on_another_stream,
)


class Soak:
    """The threads, and the rounds that they do together."""

    def __init__(self, world: World, seed: int, workers: int) -> None:
        self.world = world
        self.ledger = Ledger()
        self.rounds: Counter[str] = Counter()
        self.broken: set[int] = set()
        self.ended = 0
        self._rng = random.Random(seed)
        self._main = CapturingThread(world, self.ledger, random.Random(f"{seed}/main"))
        self._streams = [world.create_stream(flags) for flags in (BLOCKING, NON_BLOCKING) for _ in range(STREAMS)]
        self._plan: Plan | None = None
        self._meet = threading.Barrier(workers + 1, timeout=3 * SECONDS)
        self._open = threading.Event()
        self._leaked = dlwrap.stats().leaked
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(Actor(world, self.ledger, random.Random(f"{seed}/{number}")),),
                name=f"worker-{number}",
                daemon=True,
            )
            for number in range(workers)
        ]

    def run(self, rounds: int, seconds: float, *, watchdog: bool) -> None:
        """Do so many rounds, or fewer: when the seconds are over, too many faults were found, or a thread hangs."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.start()
        try:
            for number in range(1, rounds + 1):
                if watchdog and number % BATCH == 1:
                    faulthandler.dump_traceback_later(_WATCHDOG, exit=True)
                self._do_round(self._make_plan(number))
                if number % BATCH == 0 or number == rounds:
                    self._check_all_gone(number)
                    if time.monotonic() > end:
                        break
                    self._vary()
                if self.ledger.is_over:
                    break
            self._plan = None
            self._meet.wait()
        except threading.BrokenBarrierError:
            self.ledger.fault("hang", f"round {self.ended + 1}: a thread did not come to the meeting point")
        finally:
            faulthandler.cancel_dump_traceback_later()
            for thread in self._threads:
                thread.join(SECONDS)

    def _make_plan(self, number: int) -> Plan:
        rng = self._rng
        stream, other = rng.sample(self._streams, 2)
        return Plan(number, stream, other, rng.choice(MODES), rng.random() < 0.5, rng.random() < 0.3)

    # ---- the capturing thread ----

    def _do_round(self, plan: Plan) -> None:
        self._plan = plan
        self._meet.wait()
        main = self._main
        main.prepare_target(plan)
        for stream, busy in ((plan.stream, plan.busy), (plan.other, plan.other_busy)):
            if busy:
                self.world.keep_busy(stream)
        self._meet.wait()
        graph = None
        try:
            self._jitter()
            self.world.begin_capture(plan.stream, plan.mode)
            self.ledger.open_round = plan.number
            self._open.set()
            main.capture(plan)
        except Exception as error:  # noqa: BLE001 -- whatever the capturing thread meets is a capture broken
            self._note_broken(plan, error)
        finally:
            main.let_go(plan)
            self._open.set()
        self._meet.wait()
        try:
            self._jitter()
            self.ledger.open_round = 0
            graph = self.world.end_capture(plan.stream)
            main.run(graph, plan)
        except Exception as error:  # noqa: BLE001 -- likewise
            self._note_broken(plan, error)
        self._open.clear()
        self._meet.wait()
        main.give_up()
        self.rounds[f"{plan.mode}, {plan.kind}"] += 1
        self.ended = plan.number

    def _note_broken(self, plan: Plan, error: Exception) -> None:
        self.broken.add(plan.number)
        self.ledger.fault("capture broken", f"{plan}: {_where(error)}")

    def _jitter(self) -> None:
        if self._rng.random() < 0.5:
            time.sleep(self._rng.random() * _JITTER)

    def _check_all_gone(self, number: int) -> None:
        """Check, between two rounds, that everything the program let go was released."""
        gc.collect()
        deadline = time.monotonic() + SECONDS / 2
        try:
            dlwrap.reclaim(SECONDS)
            # A real driver lets go what a graph owned a moment after the graph's end.
            while self.ledger.count_watched() and time.monotonic() < deadline:
                time.sleep(1e-3)
                dlwrap.reclaim(SECONDS)
        except (TimeoutError, dlwrap.DLWrapError) as error:
            self.ledger.fault("array not released", f"after round {number}: reclaim: {error!r}")
        self.ledger.check_all_gone(f"after round {number}")
        found = asdict(dlwrap.stats())
        leaked, self._leaked = self._leaked, found["leaked"]
        if any(value != (leaked if name == "leaked" else 0) for name, value in found.items()):
            self.ledger.fault("stats not zero", f"after round {number}: {found}, {leaked} leaked before")
        if self.world.simulator is not None:
            self.world.simulator.clear_calls()

    def _vary(self) -> None:
        sys.setswitchinterval(self._rng.choice(_SWITCH_INTERVALS))
        dlwrap.configure(linger_seconds=self._rng.choice((0, 0.001, 0.1)))

    # ---- the workers ----

    def _work(self, actor: Actor) -> None:
        """Take part in each round; the body of a thread."""
        try:
            self.world.enter_thread()
            while True:
                self._meet.wait()
                plan = self._plan
                if plan is None:
                    return
                self._guard(plan, lambda: actor.prepare(plan))  # noqa: B023 -- called at once
                self._meet.wait()
                self._guard(plan, lambda: actor.act(plan, "begin"))  # noqa: B023
                self._open.wait(SECONDS)
                self._guard(plan, lambda: actor.act(plan, "open"))  # noqa: B023
                self._meet.wait()
                self._guard(plan, lambda: actor.act(plan, "end"))  # noqa: B023
                self._guard(plan, actor.drop_what_is_left)
                self._meet.wait()
        except threading.BrokenBarrierError:
            return

    def _guard(self, plan: Plan, act: Callable[[], None]) -> None:
        """Act; what is raised unexpectedly is a fault, and no thread ends by it."""
        try:
            act()
        except Exception as error:  # noqa: BLE001
            self.ledger.fault("unexpected error", f"{plan}: {threading.current_thread().name}: {_where(error)}")


def _where(error: Exception) -> str:
    """Name an error and the last places it passed."""
    places = traceback.extract_tb(error.__traceback__)[-3:]
    return f"{error!r} in " + " < ".join(f"{place.name}:{place.lineno}" for place in reversed(places))


def soak(
    rounds: int,
    seed: int,
    *,
    simulator: dlwrap.testing.SimulatedDriver | None,
    seconds: float = math.inf,
    workers: int = 4,
    watchdog: bool = False,
) -> Outcome:
    """Do adversarial rounds; every way to break a capture, or to lose an array, is a fault."""
    began = time.monotonic()
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()  # what was there before makes collections slow
    world = World(simulator)
    soak = Soak(world, seed, workers)
    try:
        with framework():
            soak.run(rounds, seconds, watchdog=watchdog)
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)
        dlwrap.configure()
    if not soak.ledger.kinds["hang"]:
        world.close()
    took = time.monotonic() - began
    kinds = soak.ledger.kinds
    return Outcome(
        rounds=soak.ended,
        faults=soak.ledger.faults,
        figures={
            "rounds by mode and kind of stream": dict(sorted(soak.rounds.items())),
            "begun and ended within an open capture": dict(sorted(soak.ledger.inside.items())),
            "arrays released": soak.ledger.released,
            "captures broken": len(soak.broken),
            "arrays not released": kinds["array not released"],
            "arrays released too early": kinds["released too early"],
            "wrong graphs": kinds["wrong graph"],
            "wrong values": kinds["wrong value"],
            "hangs": kinds["hang"],
            "kinds of node": list(world.writers),
            "ms per round": round(1e3 * took / max(1, soak.ended), 2),
        },
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end earlier, after so many")
    parser.add_argument("--workers", type=int, default=4, help="threads beside the capturing one")
    parser.add_argument("--simulator", action="store_true", help="run on the simulated driver")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    simulator = dlwrap.testing.activate() if arguments.simulator else None
    parameters = {"rounds": arguments.rounds, "seed": seed, "workers": arguments.workers}
    faulthandler.enable()
    return report(
        "captures",
        parameters,
        lambda: soak(
            arguments.rounds,
            seed,
            simulator=simulator,
            seconds=arguments.seconds,
            workers=arguments.workers,
            watchdog=True,
        ),
        arguments.out,
    )


if __name__ == "__main__":
    sys.exit(main())
