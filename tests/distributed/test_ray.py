"""Arrays of Ray's object store, wrapped in actors, tasks and the driver: each test begins and ends with a free store.

That an object stays in the store is seen by its bytes: while the GPU is at work they are what they were, however much
else is put there; afterwards something else is put in their place.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import time

import numpy as np
import pytest

import dlwrap

ray = pytest.importorskip("ray", reason="pip install ray")

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore::FutureWarning")]

MIB = 2**20
STORE = 80 * MIB  # 75 MiB are the least that Ray takes
OBJECT = 8 * MIB
WAIT = 60  # seconds, for what takes one


@pytest.fixture(scope="module", autouse=True)
def _ray_session():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=STORE,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


class User:
    """Wraps what it is given, and has work on it pending on a held stream."""

    def __init__(self):
        from dlwrap import testing

        self.cuda = testing.activate()
        dlwrap.configure(linger_seconds=0)

    def use(self, array):
        buffer = dlwrap.wrap(array)
        self.cuda.hold(1)
        self.cuda.launch(1, array)
        buffer.record_stream(1)
        return buffer.readonly, [found.nbytes for found in self.cuda.registrations]

    def use_within(self, holder):
        return self.use(holder["x"] if isinstance(holder, dict) else holder.x)

    def lend(self, array):
        """Give the bytes that a kernel would read, and what is page-locked for it."""
        with dlwrap.wrap(array) as buffer:
            return np.asarray(buffer).sum().item(), buffer.readonly, [found.nbytes for found in self.cuda.registrations]

    def fails(self, array):
        try:
            dlwrap.wrap(array)
        except dlwrap.CudaError as error:
            return str(error)
        return None

    def pending(self):
        """Give the releases that wait for the GPU; they begin shortly after a buffer's end."""
        deadline = time.monotonic() + WAIT
        while not dlwrap.stats().pending and time.monotonic() < deadline:
            time.sleep(0.001)
        return dlwrap.stats().pending

    def let_go(self):
        self.cuda.let_go(1)
        dlwrap.reclaim(WAIT)
        now = dlwrap.stats()
        return now.live, now.pending, now.pinned_bytes, now.leaked, len(self.cuda.registrations)


NOTHING = (0, 0, 0, 0, 0)


@pytest.fixture
def start():
    """Start actors, which are killed at the end."""
    actors = []

    def start(count=1):
        actors.extend(ray.remote(num_cpus=0)(User).remote() for _ in range(count))
        return actors[-count:]

    yield start
    for actor in actors:
        ray.kill(actor)


class Witness:
    """Puts an object into the store, and looks at the bytes at its address from then on."""

    def __init__(self):
        self.ref = ray.put(np.full(OBJECT, 1, np.uint8))
        self._mapped = ray.get(ray.put(np.zeros(MIB, np.uint8)))  # keeps the store mapped here
        self._start = ray.get(self.ref).ctypes.data

    def unchanged(self):
        """Whether the bytes are what they were, after more than the store holds was put there."""
        others = [ray.put(np.full(OBJECT, 2, np.uint8)) for _ in range(STORE // OBJECT + 1)]
        found = set(ctypes.string_at(self._start, OBJECT)[::4096])
        del others
        return found == {1}

    def is_freed(self):
        return any(not self.unchanged() for _ in range(20))


def test_an_object_stays_in_the_store_until_the_gpu_of_each_actor_is_done(start):
    first, second = start(2)
    witness = Witness()
    assert ray.get([actor.use.remote(witness.ref) for actor in (first, second)]) == 2 * [(True, [OBJECT])]
    del witness.ref
    assert ray.get([first.pending.remote(), second.pending.remote()]) == [1, 1]
    assert witness.unchanged()
    assert ray.get(first.let_go.remote()) == NOTHING
    assert witness.unchanged()
    assert ray.get(second.let_go.remote()) == NOTHING
    assert witness.is_freed()


def test_an_object_of_an_actor_that_is_killed_at_work_is_freed(start):
    (actor,) = start()
    witness = Witness()
    ray.get(actor.use.remote(witness.ref))
    del witness.ref
    assert witness.unchanged()
    ray.kill(actor)
    assert witness.is_freed()


def use_in_a_task(array):
    user = User()
    used = user.use(array)
    return used, user.pending()


def test_a_task_may_end_while_its_work_is_pending_and_its_worker_exit():
    witness = Witness()
    task = ray.remote(max_calls=1)(use_in_a_task)  # a fresh worker, which exits after it
    assert ray.get(task.remote(witness.ref)) == ((True, [OBJECT]), 1)
    del witness.ref
    assert witness.is_freed()


@dataclasses.dataclass
class Sample:
    x: np.ndarray


FORMS = {
    "an array": lambda: np.ones(MIB, np.float32),
    "an array in Fortran's order": lambda: np.ones((4, MIB // 4), np.float32, order="F"),
    "bytes": lambda: np.ones(4 * MIB, np.uint8),
}


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_only_the_object_is_page_locked_not_the_store(start, make):
    array = make()
    (actor,) = start()
    assert ray.get(actor.lend.remote(ray.put(array))) == (array.sum(), True, [array.nbytes])


def test_an_array_too_small_for_the_store_is_wrapped_all_the_same(start):
    (actor,) = start()
    assert ray.get(actor.lend.remote(np.ones(100, np.float32))) == (100, True, [400])


@pytest.mark.parametrize("holder", [lambda x: {"x": x}, Sample], ids=["a dict", "a dataclass"])
def test_an_array_inside_a_value_is_used_in_place(start, holder):
    (actor,) = start()
    assert ray.get(actor.use_within.remote(ray.put(holder(np.ones(OBJECT, np.uint8))))) == (True, [OBJECT])
    assert ray.get(actor.let_go.remote()) == NOTHING


def test_what_a_task_returns_is_wrapped_in_the_driver(cuda):
    array = ray.get(ray.remote(lambda: np.ones(MIB, np.float32)).remote())
    with dlwrap.wrap(array) as buffer:
        assert buffer.readonly
        assert [(found.start, found.nbytes) for found in cuda.registrations] == [(array.ctypes.data, 4 * MIB)]
        with pytest.raises(BufferError, match="read-only"):
            buffer.__dlpack__(stream=1)  # a legacy capsule


def test_an_object_that_a_full_store_put_on_disk_is_refused_with_a_cure(start):
    (actor,) = start()
    refs = [ray.put(np.ones(40 * MIB, np.uint8)) for _ in range(3)]
    held = [ray.get(ref) for ref in refs]  # nothing can be spilled, so that the rest lies in files
    told = [text for text in ray.get([actor.fails.remote(ref) for ref in refs]) if text]
    assert told
    assert all("shared writable mapping of a file on a disk" in text and "wrap a copy" in text for text in told)
    del held
