"""A DataLoader's workers choose the rows, the GPU gathers them from a memory-mapped file; needs torch.

Only indices and labels pass between the processes: the features are mapped and wrapped once, in the one that trains.
Workers start by "spawn", because neither CUDA nor dlwrap survives a fork.
"""

import tempfile
from pathlib import Path

import numpy as np
from _where import need, torch_device

import dlwrap

ROWS, COLUMNS = 10_000, 256


class Samples:
    """A map-style dataset of (row, label); it never touches the features."""

    def __len__(self) -> int:
        """Give the number of samples."""
        return 512

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Give the row of a sample, and its label; here a worker would read and decode."""
        return index * 19 % ROWS, index % 2


def main() -> None:
    """Sum up what a training loop would take in."""
    torch, device = need("torch"), torch_device()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], COLUMNS, axis=1))
        features = np.load(path, mmap_mode="c")
        loader = torch.utils.data.DataLoader(Samples(), batch_size=128, num_workers=1, multiprocessing_context="spawn")
        total = torch.zeros((), device=device)
        with dlwrap.wrap(features) as buffer:
            table = torch.from_dlpack(buffer) if device == "cuda" else torch.from_numpy(features)
            for rows, labels in loader:
                batch = table[rows.to(device)]  # 128 KiB over the bus, of 10 MB
                total += (batch.mean(dim=1) * labels.to(device)).sum()
            print(f"{len(loader)} batches of {tuple(batch.shape)}, total {total.item():.0f}")
            del table, batch


if __name__ == "__main__":
    main()
