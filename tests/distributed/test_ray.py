"""Arrays in Ray's object store, wrapped in actors and tasks: real processes, each with a simulated driver.

Whether the store still holds an object is told by where the next large one lies: in shared memory if there is room, and
in a file on a disk otherwise.
"""

from __future__ import annotations

import os
from unittest.mock import patch

import numpy as np
import pytest
from kernels import eventually, mapping
from started import descendants, environment, running

import dlwrap

ray = pytest.importorskip("ray", reason="ray is not installed")

import ray_work  # noqa: E402 -- it imports ray
from ray_work import MIB, floats  # noqa: E402

# Older versions of Ray close neither the files nor the processes that they open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

STORE, HELD, LARGE = 100, 32, 80  # MiB: the two do not fit together


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, whose processes are all gone afterwards."""
    settings = {
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a FutureWarning
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_oom_grace_period_s": "0",  # before an object goes to a file
    }
    inherited = {name: value for name, value in environment().items() if name != "RAY_ADDRESS"}
    before = descendants()
    with patch.dict(os.environ, {**inherited, **settings}, clear=True):
        ray.init(
            num_cpus=3,
            object_store_memory=STORE * MIB,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
        started = descendants() - before
        try:
            yield
        finally:
            ray.shutdown()
        assert eventually(lambda: not running(started)), running(started)


@pytest.fixture(scope="module")
def workers(cluster):
    """Two actors, which are ended when the module is done."""
    made = [ray.remote(ray_work.Worker).remote() for _ in range(2)]
    yield made
    for worker in made:
        ray.kill(worker)


def has_room() -> bool:
    """Whether the store has room for a large object."""
    array = ray.get(ray.put(floats(LARGE, 9)))
    return mapping(array.ctypes.data)[3].startswith("/dev/shm")


def gets_room() -> bool:
    return eventually(has_room)


def test_an_object_is_wrapped_in_place_and_read_only(workers):
    told = ray.get(workers[0].look.remote(ray.put(floats(4, 1))))
    assert (told["readonly"], told["memory"], told["in place"]) == (True, "pinned", True)


def test_the_bytes_of_the_array_alone_are_page_locked_and_not_the_store(workers):
    told = ray.get(workers[0].look.remote(ray.put(floats(4, 1))))
    assert told["page-locked"] == (0, 4 * MIB)
    size, permissions, folder = told["mapping"]
    assert (size >= STORE * MIB, permissions, folder) == (True, "rw-s", "/dev/shm")
    assert told["flags"] == 3  # not READ_ONLY, which some devices lack: the pages themselves can be written to


def test_an_object_can_be_handed_to_consumers_that_know_no_read_only_arrays(workers):
    told = ray.get(workers[0].look.remote(ray.put(floats(4, 1)), readonly=False))
    assert (told["readonly"], told["in place"]) == (False, True)


def test_an_argument_below_100_kb_is_no_object_and_is_wrapped_all_the_same(workers):
    told = ray.get(workers[0].look.remote(np.ones(10_000, np.float32)))
    assert (told["memory"], told["in place"]) == ("pinned", True)
    assert told["mapping"][2] != "/dev/shm"


def test_an_array_that_is_not_contiguous_is_no_view_of_the_store(workers):
    told = ray.get(workers[0].look.remote(ray.put(floats(2, 1).reshape(512, -1)[:, :512])))
    assert (told["readonly"], told["mapping"][2]) == (False, "")


def test_without_dlwrap_the_store_lets_go_of_an_object_that_nobody_refers_to(workers):
    held = ray.put(floats(HELD, 7))
    assert ray.get(workers[0].read.remote([held])) == 7
    del held
    assert gets_room()


def test_an_object_stays_in_the_store_until_the_gpu_is_done(workers):
    worker, held = workers[0], ray.put(floats(HELD, 7))
    ray.get(worker.begin.remote([held]))
    del held
    assert not has_room()
    assert ray.get(worker.state.remote()) == (1, 1, 7)
    ray.get(worker.finish.remote())
    assert gets_room()


def test_an_object_stays_in_the_store_until_every_worker_is_done(workers):
    held = ray.put(floats(HELD, 7))
    ray.get([worker.begin.remote([held]) for worker in workers])
    del held
    ray.get(workers[0].finish.remote())
    assert not has_room()
    assert ray.get(workers[1].state.remote()) == (1, 1, 7)
    ray.get(workers[1].finish.remote())
    assert gets_room()


def test_an_object_stays_in_the_store_while_its_memory_lingers_page_locked(workers):
    worker, held = workers[0], ray.put(floats(HELD, 7))
    ray.get(worker.linger.remote(3600))
    ray.get(worker.use_and_finish.remote([held]))
    del held
    assert not has_room()
    assert ray.get(worker.state.remote()) == (0, 1, 7)
    ray.get(worker.linger.remote(0))
    assert gets_room()


def test_an_object_that_takes_the_place_of_another_is_wrapped(workers):
    for fill in range(4):
        placed = ray.put(floats(HELD + fill, fill))
        ray.get(workers[0].begin.remote([placed]))
        del placed
        assert ray.get(workers[0].state.remote())[2] == fill
        ray.get(workers[0].finish.remote())
        assert gets_room()


def test_an_object_stays_in_the_store_after_a_task_until_the_gpu_is_done(cluster, tmp_path):
    held, signal = ray.put(floats(HELD, 7)), tmp_path / "let go"
    ray.get(ray.remote(ray_work.use_in_a_task).remote([held], str(signal)))
    del held
    assert not has_room()
    signal.touch()
    assert gets_room()


def kill(worker):
    ray.kill(worker)


def drop(worker):
    """Let the actor end by itself, exit hooks included, as it does when no handle is left."""


@pytest.mark.parametrize("end", [kill, drop])
def test_a_worker_that_ends_while_the_gpu_is_at_work_ends_and_gives_the_object_back(cluster, end):
    worker, held = ray.remote(ray_work.Worker).remote(), ray.put(floats(HELD, 7))
    pid = ray.get(worker.begin.remote([held]))
    del held
    assert not has_room()
    end(worker)
    del worker
    assert eventually(lambda: not running({pid}))
    assert gets_room()


def test_an_object_that_went_to_a_file_is_refused_and_the_error_says_what_to_do(workers):
    held, in_file = ray.put(floats(HELD, 7)), ray.put(floats(LARGE, 8))
    with pytest.raises(dlwrap.CudaError, match=r"a shared writable mapping of a file on a disk; .* or wrap a copy"):
        ray.get(workers[0].look.remote(in_file))
    assert ray.get(workers[0].look.remote(held))["in place"]


def test_a_wrapped_buffer_is_no_result(workers):
    with pytest.raises(TypeError, match=r"cannot pickle or copy a HostWrappedBuffer: pass its \.array"):
        ray.get(workers[0].wrap.remote(np.ones(3)))
