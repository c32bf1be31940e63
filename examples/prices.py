"""Update a memory-mapped file's array on the GPU, in place, a few elements out of many; needs torch.

The file is mapped copy-on-write, so the changes are seen by this program only.
"""

import tempfile
from pathlib import Path

import numpy as np
from _where import need, torch_device

import dlwrap


def main() -> None:
    """Add tax to a hundred prices out of a million."""
    torch, device = need("torch"), torch_device()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prices.npy"
        np.save(path, np.full(1_000_000, 100, dtype=np.float32))
        prices = np.load(path, mmap_mode="c")
        chosen = torch.arange(0, 1_000_000, 10_000, device=device)
        with dlwrap.wrap(prices) as buffer:
            tensor = torch.from_dlpack(buffer) if device == "cuda" else torch.from_numpy(prices)
            tensor[chosen] *= 1.25
            del tensor
        # Leaving the block waited for the GPU.
        print(prices[:20_000:10_000], prices[1], f"{(prices == 125).sum()} changed")


if __name__ == "__main__":
    main()
