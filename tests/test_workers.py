"""Worker processes beside wrapped arrays: multiprocessing by each method, executors, and torch's DataLoader.

A child by fork uses the arrays and is refused wraps; a child by spawn or forkserver may wrap by itself. Every program
here has to end with status 0 and without a word on stderr.
"""

from __future__ import annotations

import copy
import importlib.util
import pickle

import numpy as np
import pytest

import dlwrap
import scripts
from scripts import outcome

QUIET = (0, "")
METHODS = ["fork", "spawn", "forkserver"]
# Python 3.12 and later warn of any fork beside threads, and dlwrap has two; torch warns beside the TypeError.
MUTED = ("-W", "ignore:This process:DeprecationWarning", "-W", "ignore:Got pickle error:UserWarning")

PROGRAM = """
import multiprocessing, pickle
import test_workers as work
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.shared_memory import SharedMemory

context = multiprocessing.get_context({method!r})
kept = array(fill=2, shape=8)
buffer = work.inherited = dlwrap.wrap(kept)
buffer.record_stream(1)
pending = dlwrap.wrap(array())
cuda.hold(1)
cuda.launch(1, pending.array)
pending.record_stream(1)
del pending
"""
END = """
cuda.let_go(1)
buffer.close(20)
dlwrap.reclaim(20)
print("end:", cuda.registrations, dlwrap.stats().leaked)
"""
CLEAN_END = "end: [] 0"


def lines_of(method: str, code: str) -> list[str]:
    done = scripts.run(PROGRAM.format(method=method) + code + END, *MUTED)
    assert outcome(done) == QUIET
    return done.stdout.splitlines()


# ---- what children do; spawned ones import this module ----

inherited = None


def add_up(array):
    return float(array.sum())


def add_up_the_inherited(_):
    return float(np.asarray(inherited).sum())


def fill(name, value):
    """Write to shared memory that the parent has wrapped."""
    from multiprocessing.shared_memory import SharedMemory

    shared = SharedMemory(name)
    np.frombuffer(shared.buf, np.uint8)[:] = value
    shared.close()


def wrap(fill_with):
    """Wrap in this process, which has to be a fresh one or be refused."""
    buffer = dlwrap.wrap(np.full(8, fill_with, np.float32))
    capsule = buffer.__dlpack__(stream=1)
    total = float(np.asarray(buffer).sum())
    del capsule
    buffer.close(20)
    return total, dlwrap.stats().leaked


def simulate_and_wrap(fill_with):
    from dlwrap import testing

    testing.activate()
    return wrap(fill_with)


class Rows:
    """A map-style dataset over an array, or over a wrapped buffer."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.asarray(self.source)[index]


class RowsThatWrap(Rows):
    def __getitem__(self, index):
        total, leaked = simulate_and_wrap(index)
        assert leaked == 0
        return total


# ---- multiprocessing ----


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_computes_on_arrays_that_are_wrapped_in_the_parent_by(method):
    told = lines_of(method, "with context.Pool(1) as pool: print(pool.map(work.add_up, 4 * [buffer.array]))")
    assert told == ["[16.0, 16.0, 16.0, 16.0]", CLEAN_END]


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_that_is_closed_and_joined_ends_by(method):
    told = lines_of(
        method,
        """
pool = context.Pool(2)
print(pool.map(work.add_up, 4 * [buffer.array]))
pool.close()
pool.join()
""",
    )
    assert told == ["[16.0, 16.0, 16.0, 16.0]", CLEAN_END]


@pytest.mark.parametrize("method", METHODS)
def test_an_executor_computes_on_arrays_that_are_wrapped_in_the_parent_by(method):
    told = lines_of(
        method,
        """
with ProcessPoolExecutor(1, mp_context=context) as executor: print(*executor.map(work.add_up, 2 * [buffer.array]))
""",
    )
    assert told == ["16.0 16.0", CLEAN_END]


@pytest.mark.parametrize("method", METHODS)
def test_a_process_ends_well_by(method):
    told = lines_of(
        method,
        """
child = context.Process(target=work.add_up, args=[buffer.array])
child.start()
child.join(50)
print(child.exitcode)
""",
    )
    assert told == ["0", CLEAN_END]


def test_a_pool_by_fork_uses_the_inherited_buffer():
    told = lines_of("fork", "with context.Pool(2) as pool: print(pool.map(work.add_up_the_inherited, range(3)))")
    assert told == ["[16.0, 16.0, 16.0]", CLEAN_END]


@pytest.mark.parametrize("method", METHODS)
def test_children_write_to_shared_memory_that_the_parent_has_wrapped_by(method):
    told = lines_of(
        method,
        """
shared = SharedMemory(create=True, size=64)
wrapped = dlwrap.wrap(shared.buf)
child = context.Process(target=work.fill, args=[shared.name, 7])
child.start()
child.join(50)
print(child.exitcode, set(wrapped.array.tolist()))
cuda.let_go(1)
wrapped.close(20)
del wrapped
shared.close()
shared.unlink()
""",
    )
    assert told == ["0 {7}", CLEAN_END]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    "call",
    [
        "with context.Pool(1) as pool: print(pool.map(work.simulate_and_wrap, [1, 2]))",
        "with ProcessPoolExecutor(1, mp_context=context) as it: print([*it.map(work.simulate_and_wrap, [1, 2])])",
    ],
    ids=["Pool", "executor"],
)
def test_a_child_wraps_by_itself_by(method, call):
    assert lines_of(method, call) == ["[(8.0, 0), (16.0, 0)]", CLEAN_END]


@pytest.mark.parametrize("call", ["wrap", "simulate_and_wrap"])
def test_a_child_by_fork_hands_the_refusal_to_its_parent(call):
    told = lines_of(
        "fork",
        f"""
with context.Pool(1) as pool:
    try: pool.apply(work.{call}, [1])
    except RuntimeError as error: print(error)
""",
    )
    assert told == ["cannot wrap in a forked child: CUDA does not survive fork(); start children by spawn", CLEAN_END]


# ---- what crosses a process boundary, and what does not ----


@pytest.fixture(params=["HostWrappedBuffer", "Pin"])
def lent(request, cuda):
    """A buffer and a pin in turn."""
    make = dlwrap.wrap if request.param == "HostWrappedBuffer" else dlwrap.pin
    with make(cuda.host_array(8)) as made:
        yield made


COPIES = {
    **{f"pickle protocol {number}": lambda lent, number=number: pickle.dumps(lent, number) for number in range(6)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_refused_with_a_cure_by(lent, how):
    with pytest.raises(TypeError, match=f"cannot pickle or copy a {type(lent).__name__}: pass .*array"):
        COPIES[how](lent)
    assert dlwrap.stats().live == 1


def test_the_array_of_a_buffer_may_be_pickled(cuda):
    with dlwrap.wrap(cuda.host_array(8, fill=3)) as buffer:
        assert pickle.loads(pickle.dumps(buffer.array)).tolist() == 8 * [3]


# ---- torch's DataLoader ----

LOADER = """
from torch.utils.data import DataLoader
def load(dataset, **options):
    options = {{"batch_size": 4, "num_workers": 2, "multiprocessing_context": {method!r}, **options}}
    return [batch.tolist() for batch in DataLoader(dataset, **options)]
"""
BATCHES = "[[2.0, 2.0, 2.0, 2.0], [2.0, 2.0, 2.0, 2.0]]"


def load(method: str, code: str) -> list[str]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    return lines_of(method, LOADER.format(method=method) + code)


@pytest.mark.parametrize(
    ("method", "options"),
    [("fork", ""), ("fork", ", persistent_workers=True"), ("spawn", ", num_workers=1, persistent_workers=True")],
    ids=["fork", "fork, persistent", "spawn, persistent"],
)
def test_data_loader_workers_read_an_array_that_is_wrapped_in_the_parent_by(method, options):
    assert load(method, f"print(load(work.Rows(kept){options}))") == [BATCHES, CLEAN_END]


def test_data_loader_workers_by_fork_read_a_buffer():
    assert load("fork", "print(load(work.Rows(buffer)))") == [BATCHES, CLEAN_END]


def test_a_dataset_with_a_buffer_is_refused_by_spawn_with_a_cure():
    told = load(
        "spawn",
        """
try: load(work.Rows(buffer))
except TypeError as error: print(error)
""",
    )
    assert told == [
        "cannot pickle or copy a HostWrappedBuffer: pass its .array, and wrap that where it is used",
        CLEAN_END,
    ]


def test_data_loader_workers_by_spawn_wrap_by_themselves():
    told = load("spawn", "print(load(work.RowsThatWrap(None), num_workers=1))")
    assert told == ["[[0.0, 8.0, 16.0, 24.0], [32.0, 40.0, 48.0, 56.0]]", CLEAN_END]


def test_the_parent_wraps_the_batches_that_workers_by_fork_bring():
    told = load(
        "fork",
        """
cuda.let_go(1)
for batch in DataLoader(work.Rows(kept), batch_size=4, num_workers=2, multiprocessing_context="fork"):
    with dlwrap.wrap(batch.numpy()) as wrapped: print(wrapped.array.tolist())
""",
    )
    assert told == [*2 * ["[2.0, 2.0, 2.0, 2.0]"], CLEAN_END]
