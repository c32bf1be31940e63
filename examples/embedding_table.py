"""Look up and train rows of an embedding table too large for the GPU: only the rows that are asked for cross the bus.

The table stays in host memory, page-locked from birth; `torch.embedding` on the GPU reads it in place.
It needs torch.
"""

import numpy as np
from _where import need, torch_device

import dlwrap

torch = need("torch")
ROWS, WIDTH = 200_000, 64


def main() -> None:
    """Gather rows, and train the ones that were used."""
    device = torch_device()
    table = dlwrap.empty((ROWS, WIDTH), np.float32)
    table[:] = np.arange(ROWS, dtype=np.float32)[:, None] / ROWS

    with dlwrap.wrap(table) as buffer:
        weights = torch.from_dlpack(buffer) if device == "cuda" else torch.from_numpy(table)
        ids = torch.tensor([[3, 99_999], [199_999, 3]], device=device)
        rows = torch.nn.functional.embedding(ids, weights)
        print(f"gathered {tuple(rows.shape)} of a table of {table.nbytes >> 20} MiB")

        # A step of gradient descent on the rows that were used, in place.
        used, where = ids.unique(return_inverse=True)
        gradient = torch.zeros(len(used), WIDTH, device=device).index_add_(
            0, where.reshape(-1), rows.reshape(-1, WIDTH)
        )
        weights.index_add_(0, used, gradient, alpha=-0.5)
        if device == "cuda":
            torch.cuda.synchronize()
        del weights

    for row in (3, 99_999, 199_999, 50_000):
        print(f"row {row}: {row / ROWS:.6f} -> {table[row, 0]:.6f}")


if __name__ == "__main__":
    main()
