"""Update a memory-mapped file's array on the GPU, in place; run it with torch on a machine with a GPU.

The file is mapped copy-on-write, so the changes are seen by this program only.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import dlwrap


def main() -> None:
    """Add tax to a hundred prices out of a million."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prices.npy"
        np.save(path, np.full(1_000_000, 100, dtype=np.float32))
        prices = np.load(path, mmap_mode="c")
        chosen = torch.arange(0, 1_000_000, 10_000, device="cuda")
        with dlwrap.wrap(prices) as buffer:
            tensor = torch.from_dlpack(buffer)
            tensor[chosen] *= 1.25
            del tensor
        # Leaving the block waited for the GPU.
        print(prices[:20_000:10_000], prices[1], f"{(prices == 125).sum()} changed")


if __name__ == "__main__":
    main()
