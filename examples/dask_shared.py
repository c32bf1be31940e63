"""Workers of Dask read one block of shared memory, each on its GPU, in place; needs dask and distributed.

Only the block's name and numbers pass between the processes. With several GPUs, dask-cuda gives each worker its own.
"""

from functools import partial
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from _where import need, simulate

import dlwrap
from dlwrap import testing

SHAPE = (4, 1024, 256)


def on_gpu() -> bool:
    """Say whether torch finds a GPU."""
    try:
        import torch  # noqa: PLC0415 -- it may not be there
    except ImportError:
        return False
    return torch.cuda.is_available()


def mean(name: str, part: int, gpu: bool) -> float:
    """Take the mean of one part, in a worker; leaving the block of `with` waits for the GPU."""
    rows = np.memmap(f"/dev/shm/{name}", np.float32, "r+", shape=SHAPE)[part]
    if not gpu:
        testing.activate()
    with dlwrap.wrap(rows, extent="view") as buffer:  # page-locks this part alone
        if not gpu:
            return float(buffer.array.mean())
        import torch  # noqa: PLC0415 -- each worker imports it by itself

        return torch.from_dlpack(buffer).mean().item()


def main() -> None:
    """Fill a block, and have two workers read it."""
    distributed = need("distributed", "'dask[distributed]'")
    gpu = on_gpu()
    if not gpu:
        simulate()
    block = SharedMemory(create=True, size=4 * np.prod(SHAPE, dtype=int))
    array = np.ndarray(SHAPE, np.float32, block.buf)
    array[:] = np.arange(SHAPE[0])[:, None, None]
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        means = client.gather(client.map(partial(mean, block.name, gpu=gpu), range(SHAPE[0])))
        print(f"{len(client.ncores())} workers, one block of {block.size >> 20} MiB, means {means}")
    del array
    block.close()
    block.unlink()


if __name__ == "__main__":
    main()
