"""Memory that Dask's workers of one host share, wrapped in each of them, and what comes over a connection."""

from __future__ import annotations

import os
import time
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest

import dlwrap

# A module of it: without the package its name is that of this folder, which the tests can import.
pytest.importorskip("distributed.client", reason="pip install distributed")
distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.timeout(120)

WAIT = 60  # seconds, for what takes one
ROWS = 1_000_000


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=WAIT)
        yield client


@pytest.fixture
def each(client):
    """Call a function in each worker; give what came, in no order."""

    def each(function, *arguments):
        return list(client.run(function, *arguments).values())

    yield each
    client.run(let_go)


@pytest.fixture
def path():
    """Give a file in shared memory with an array of a million ones."""
    path = Path("/dev/shm") / f"dlwrap-test-{os.getpid()}.npy"
    np.save(path, np.ones(ROWS, np.float32))
    yield path
    path.unlink(missing_ok=True)


# ---- what workers do ----


def driver():
    from dlwrap import testing

    dlwrap.configure(linger_seconds=0)
    return testing.activate()


def use(array):
    """Wrap it, and have work on it pending on a held stream."""
    cuda = driver()
    buffer = dlwrap.wrap(array)
    cuda.hold(1)
    cuda.launch(1, array)
    buffer.record_stream(1)
    return buffer.readonly, [found.nbytes for found in cuda.registrations]


def use_file(path, mode):
    return use(np.load(path, mmap_mode=mode))


def use_block(name, dask_worker):
    dask_worker.block = shared_memory.SharedMemory(name)  # until `close_block`
    return use(np.ndarray(ROWS, np.float32, buffer=dask_worker.block.buf))


def close_block(dask_worker):
    try:
        dask_worker.block.close()
    except BufferError:
        return "in use"
    del dask_worker.block
    return "closed"


def pending(path):
    """Give the releases that wait for the GPU, and whether the memory is mapped; both change shortly after a use."""
    deadline = time.monotonic() + WAIT
    while not dlwrap.stats().pending and time.monotonic() < deadline:
        time.sleep(0.001)
    return dlwrap.stats().pending, str(path) in Path("/proc/self/maps").read_text()


def let_go(path="no such file"):
    driver().let_go(1)
    dlwrap.reclaim(WAIT)
    now = dlwrap.stats()
    return now.live + now.pending + now.pinned_bytes + now.leaked, str(path) in Path("/proc/self/maps").read_text()


def total(array):
    """Add up what a kernel would see of an array that came over a connection; it is copied if it came unaligned."""
    driver()
    with dlwrap.wrap(np.require(array, requirements="A")) as buffer:
        return np.asarray(buffer).sum().item()


def wrap_unaligned(array):
    driver()
    room = np.zeros(array.nbytes + 1, np.uint8)  # aligned, so that what follows its first byte is not
    moved = room[1:].view(array.dtype)
    try:
        dlwrap.wrap(moved).close()
    except BufferError as error:
        return str(error)
    return None


# ---- tests ----


@pytest.mark.parametrize(("mode", "readonly"), [("r", True), ("r+", False), ("c", False)])
def test_a_file_in_shared_memory_stays_mapped_in_each_worker_until_its_gpu_is_done(each, path, mode, readonly):
    used = each(use_file, str(path), mode)
    assert [found[0] for found in used] == 2 * [readonly]
    assert all(4 * ROWS <= nbytes <= 4 * ROWS + 4096 for _, (nbytes,) in used)
    path.unlink()
    assert each(pending, path) == 2 * [(1, True)]
    assert each(let_go, path) == 2 * [(0, False)]


def test_workers_write_to_the_same_memory(client, path):
    def write(path, value):
        cuda = driver()
        array = np.load(path, mmap_mode="r+")
        with dlwrap.wrap(array) as buffer:
            cuda.launch(1, array, write=value)
            buffer.record_stream(1)

    def read(path):
        return np.load(path, mmap_mode="r").view(np.uint8)[[0, -1]].tolist()

    one, other = client.scheduler_info()["workers"]
    client.submit(write, str(path), 7, workers=[one]).result(WAIT)
    assert client.submit(read, str(path), workers=[other]).result(WAIT) == [7, 7]


def test_a_block_of_shared_memory_is_not_closed_before_the_gpu_is_done_and_goes_when_unlinked(each):
    block = shared_memory.SharedMemory(create=True, size=4 * ROWS)
    try:
        assert each(use_block, block.name) == 2 * [(False, [4 * ROWS])]
    finally:
        block.close()
        block.unlink()
    assert not Path("/dev/shm", block.name).exists()
    assert each(close_block) == 2 * ["in use"]
    assert each(let_go) == 2 * [(0, False)]
    assert each(close_block) == 2 * ["closed"]


def test_an_array_that_comes_over_a_connection_is_wrapped_once_it_is_aligned(client):
    array = np.ones(ROWS, np.float32)
    one, other = client.scheduler_info()["workers"]
    scattered = client.scatter(array, workers=[one])
    assert [client.submit(total, scattered, workers=[to]).result(WAIT) for to in (one, other)] == [ROWS, ROWS]


def test_an_array_that_came_unaligned_is_refused_with_the_cure(client):
    told = client.submit(wrap_unaligned, np.ones(9, np.float32)).result(WAIT)
    assert "a GPU faults on misaligned 4-byte elements; wrap a.copy()" in told


def test_a_worker_that_is_restarted_at_work_leaves_nothing(client, each, path):
    each(use_file, str(path), "r+")
    path.unlink()
    client.restart(timeout=WAIT, wait_for_workers=True)
    assert each(let_go, path) == 2 * [(0, False)]
