"""Actors of Ray read one array of the object store, each on its GPU, in place; needs ray.

The array lies in the store's shared memory once, however many actors use it, and stays until the last GPU is done.
"""

import numpy as np
from _where import need, simulate

import dlwrap

ray = need("ray")


def count_gpus() -> int:
    """Say how many GPUs torch finds."""
    try:
        import torch  # noqa: PLC0415 -- each actor imports it by itself
    except ImportError:
        return 0
    return torch.cuda.device_count()


class Reader:
    """Reads rows of an array; Ray gives it the array as read-only views of the store."""

    def __init__(self) -> None:
        """Use the actor's own GPU, the only one that it sees."""
        if not count_gpus():
            from dlwrap import testing  # noqa: PLC0415 -- nobody needs it on a GPU

            testing.activate()

    def mean(self, table: np.ndarray, first: int, step: int) -> float:
        """Take the mean of some rows; leaving the block of `with` waits for the GPU."""
        with dlwrap.wrap(table) as buffer:
            if not count_gpus():
                return float(buffer.array[first::step].mean())
            import torch  # noqa: PLC0415

            return torch.from_dlpack(buffer)[first::step].mean().item()


def main() -> None:
    """Put a table into the store, and have two actors read it."""
    gpus = count_gpus()
    if not gpus:
        simulate()
    ray.init(num_cpus=2, num_gpus=gpus, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    table = ray.put(np.repeat(np.arange(4096, dtype=np.float32)[:, None], 256, axis=1))
    reader = ray.remote(num_gpus=min(gpus, 2) / 2)(Reader)
    readers = [reader.remote() for _ in range(2)]
    means = ray.get([each.mean.remote(table, first, 2) for first, each in enumerate(readers)])
    print(f"{len(readers)} actors, one table of 4 MiB in the store, means {means}")
    ray.shutdown()


if __name__ == "__main__":
    main()
