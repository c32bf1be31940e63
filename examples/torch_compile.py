"""Call a function compiled by torch.compile on host memory, in place; needs torch, and gcc for Inductor on a GPU.

Wrap outside of the compiled function: it takes the tensor like any other. Without a GPU it is traced, but not compiled.
"""

import shutil

import numpy as np
from _where import need, skip, torch_device

import dlwrap


def main() -> None:
    """Normalise the rows of a table that stays in host memory, and score them."""
    torch, device = need("torch"), torch_device()
    if device == "cuda" and shutil.which("gcc") is None and shutil.which("cc") is None:
        skip("needs gcc: Inductor and Triton compile with it")

    @torch.compile(backend="inductor" if device == "cuda" else "aot_eager")
    def normalise(rows, weights):
        rows.div_(rows.sum(dim=1, keepdim=True))
        return torch.relu(rows * 2 + 1) @ weights

    table = np.ones((1000, 64), dtype=np.float32)
    weights = torch.ones(64, device=device)
    with dlwrap.wrap(table) as buffer:
        rows = torch.from_dlpack(buffer) if device == "cuda" else torch.from_numpy(table)
        scores = normalise(rows, weights)
        print("scores", scores[:3].tolist())
        del rows, scores
    # Leaving the block waited for the GPU, so that the host may read what the compiled kernel wrote.
    print("table", table[0, :3], table.sum())


if __name__ == "__main__":
    main()
