"""Dask's workers on one block of shared memory, and with arrays that arrive serialised: real processes.

Each has a simulated driver of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from kernels import eventually
from started import descendants, environment, running

# Not the package itself: without it, this folder would be found under its name.
distributed = pytest.importorskip("distributed.client", reason="distributed, of Dask, is not installed")

import dask_work as work  # noqa: E402

from distributed import LocalCluster  # noqa: E402

OPENERS = [work.open_block, work.map_file]


@pytest.fixture(scope="module")
def client():
    """A cluster of two worker processes, which are gone afterwards."""
    before = descendants()
    with (
        patch.dict(os.environ, environment(), clear=True),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as connected,
    ):
        connected.run(work.simulate)
        workers = descendants() - before
        yield connected
    assert len(workers) >= 2
    assert eventually(lambda: not running(workers)), running(workers)


@pytest.fixture
def on(client):
    """Calls a function on one of the workers, 0 or 1."""
    addresses = sorted(client.scheduler_info()["workers"])

    def call(worker, function, *arguments):
        return client.submit(function, *arguments, workers=[addresses[worker]], pure=False).result(20)

    return call


@pytest.fixture
def block():
    """A block of shared memory full of sevens."""
    memory = SharedMemory(create=True, size=work.NBYTES)
    np.frombuffer(memory.buf, np.float32)[:] = 7
    yield memory
    memory.close()
    memory.unlink()


@pytest.mark.parametrize("opener", OPENERS)
def test_workers_wrap_a_block_in_place(client, on, block, opener):
    for worker in (0, 1):
        told = on(worker, work.begin, opener, block.name)
        assert told == {"readonly": False, "page-locked": (0, work.NBYTES), "read-only flag": False}
    np.frombuffer(block.buf, np.float32)[0] = 8
    assert [on(worker, work.state) for worker in (0, 1)] == [(1, 8), (1, 8)]
    assert [on(worker, work.end) for worker in (0, 1)] == [False, False]


@pytest.mark.parametrize("opener", OPENERS)
def test_the_memory_of_a_block_stays_until_every_gpu_is_done_even_if_it_is_unlinked(client, on, opener):
    memory = SharedMemory(create=True, size=work.NBYTES)
    np.frombuffer(memory.buf, np.float32)[:] = 7
    for worker in (0, 1):
        on(worker, work.begin, opener, memory.name)
    memory.close()
    memory.unlink()
    assert on(0, work.state) == (1, 7)
    assert not on(0, work.end)
    assert on(1, work.state) == (1, 7)
    assert not on(1, work.end)


def test_a_block_that_is_mapped_to_read_is_page_locked_as_such(client, on, block):
    told = on(0, work.begin, work.map_file_to_read, block.name)
    assert (told["readonly"], told["read-only flag"]) == (True, True)
    assert not on(0, work.end)


def test_a_block_refuses_to_be_closed_under_the_gpu(client, on, block):
    on(0, work.begin, work.open_array, block.name)
    with pytest.raises(BufferError, match="exported pointers exist"):
        on(0, work.close_block)
    assert on(0, work.end)
    on(0, work.close_block)


def test_an_array_that_arrives_serialised_is_held_until_the_gpu_is_done(client, on):
    told = on(0, work.begin_with, np.full(work.SHAPE, 7, np.float32))
    assert told == {"readonly": False, "in place": True, "mean": 7}
    assert (on(0, work.is_alive), on(0, work.state)) == (True, (1, 7))
    on(0, work.end)
    assert not on(0, work.is_alive)


def test_an_array_of_the_cluster_is_held_after_its_future_is_gone(client, on):
    address = sorted(client.scheduler_info()["workers"])[1]
    array = client.scatter(np.full(work.SHAPE, 7, np.float32), workers=[address], hash=False)
    assert on(1, work.begin_with, array)["in place"]
    key = array.key
    del array
    assert eventually(lambda: key not in client.who_has())
    assert (on(1, work.is_alive), on(1, work.state)) == (True, (1, 7))
    on(1, work.end)
    assert eventually(lambda: not on(1, work.is_alive))


def test_no_process_complains_of_the_block_when_all_is_closed():
    done = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).parents[2] / "examples" / "dask_shared.py"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("means [0.0, 1.0, 2.0, 3.0]\n")
