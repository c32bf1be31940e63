"""Two Ray actors use one object of the store in place, on the GPU if there is one; needs ray, and torch for the GPU.

The object lies in shared memory once, and stays there until the work of both is done, whoever still refers to it.
"""

import os

import numpy as np
from _where import has_gpu, need

import dlwrap

GPU = has_gpu()


class Shard:
    """Sums its half of the columns of an array; each actor is a process, and wraps by itself."""

    def __init__(self, first: int) -> None:
        if not GPU:
            from dlwrap import testing  # noqa: PLC0415 -- in the actor's process, before anything of CUDA

            testing.activate()
        self.first = first

    def total(self, table: np.ndarray) -> tuple[float, str]:
        """Sum every second column, and tell whether the memory may be written to."""
        with dlwrap.wrap(table) as buffer:
            use = need("torch").from_dlpack if GPU else np.asarray
            found = float(use(buffer)[:, self.first :: 2].sum())
            return found, "read-only" if buffer.readonly else "writable"


def main() -> None:
    """Put an array into the store, and have two actors use it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = need("ray")
    if not GPU:
        print("no GPU: on the CPU, with the simulated CUDA driver of dlwrap")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    actor = ray.remote(num_gpus=0.5 if GPU else 0)(Shard)  # both on one GPU
    actors = [actor.remote(first) for first in (0, 1)]
    table = ray.put(np.ones((100_000, 64), np.float32))  # 26 MB, once
    for total, kind in ray.get([actor.total.remote(table) for actor in actors]):
        print(f"{total:.0f} from {kind} memory")
    ray.shutdown()


if __name__ == "__main__":
    main()
