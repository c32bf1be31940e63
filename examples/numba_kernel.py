"""Give a wrapped buffer to a numba kernel as it is; needs numba-cuda.

The buffer stays open until the kernel is done: numba keeps nothing of it. Without a GPU numba's own simulator runs the
kernel on the host array.
"""

import os

import numpy as np
from _where import has_gpu, need, simulate

import dlwrap

GPU = has_gpu()
if not GPU:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # numba reads it when it is imported
    simulate()
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
need("numba_cuda", "numba-cuda")
cuda = need("numba.cuda", "numba-cuda")


@cuda.jit
def add_one(values):
    """Add one to each element."""
    i = cuda.grid(1)
    if i < values.size:
        values[i] += 1


def main() -> None:
    """Add one to an array on the GPU."""
    array = np.arange(1000, dtype=np.float32)
    with dlwrap.wrap(array, memory="pinned") as buffer:
        add_one[8, 128](buffer if GPU else array)
    # Leaving the block waited for the kernel.
    print(array[:4], array[-1])


if __name__ == "__main__":
    main()
