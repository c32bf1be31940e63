"""Dask's workers of one host use one array in shared memory in place; needs distributed, and torch for the GPU.

A file in /dev/shm is memory. Workers get its name, not the array: what Dask sends is a copy, and often not aligned.
"""

import os
from pathlib import Path

import numpy as np
from _where import has_gpu, need

import dlwrap

ROWS, COLUMNS = 100_000, 64


def total(path: str, first: int, gpu: bool) -> float:
    """Sum every second column, in a worker."""
    if not gpu:
        from dlwrap import testing  # noqa: PLC0415 -- in the worker's process, before anything of CUDA

        testing.activate()
    table = np.load(path, mmap_mode="r+")  # the same memory in each worker
    with dlwrap.wrap(table) as buffer:
        use = need("torch").from_dlpack if gpu else np.asarray
        return float(use(buffer)[:, first::2].sum())


def main() -> None:
    """Write an array to shared memory, and have two workers use it."""
    distributed, gpu = need("distributed"), has_gpu()
    if not gpu:
        print("no GPU: on the CPU, with the simulated CUDA driver of dlwrap")
    path = Path("/dev/shm") / f"table-{os.getpid()}.npy"
    table = np.lib.format.open_memmap(path, "w+", np.float32, (ROWS, COLUMNS))  # 26 MB, once
    try:
        table[:] = 1
        with (
            distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster) as client,
        ):
            futures = [client.submit(total, str(path), first, gpu) for first in (0, 1)]
            print(client.gather(futures))
    finally:
        path.unlink()  # the name only: the memory stays as long as somebody uses it


if __name__ == "__main__":
    main()
