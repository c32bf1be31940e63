"""Launch a Triton kernel on host memory, in place; needs a GPU, torch, triton and gcc.

Triton asks the driver whether the pointer is one that the device can use: page-locked memory is.
"""

import shutil

import numpy as np
from _where import need, need_gpu, skip

import dlwrap

need_gpu()
if shutil.which("gcc") is None and shutil.which("cc") is None:
    skip("needs gcc: Triton compiles its launchers with it")
torch, triton = need("torch"), need("triton")
tl = need("triton.language", "triton")


@triton.jit
def scale(pointer, count, factor, BLOCK: tl.constexpr):  # noqa: N803 -- Triton's habit
    """Multiply elements by a factor."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(pointer + offsets, tl.load(pointer + offsets, mask=mask) * factor, mask=mask)


def main() -> None:
    """Double an array."""
    array = np.arange(10_000, dtype=np.float32)
    with dlwrap.wrap(array, memory="pinned") as buffer:
        tensor = torch.from_dlpack(buffer)
        scale[(triton.cdiv(array.size, 1024),)](tensor, array.size, 2.0, BLOCK=1024)
        del tensor
    # Leaving the block waited for the kernel.
    print(array[:4], array[-1])


if __name__ == "__main__":
    main()
