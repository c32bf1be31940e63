"""A layer of a graph neural network whose features stay in a file: the GPU reads the rows of sampled neighbours only.

The file is mapped copy-on-write, so that any driver can page-lock it.
It needs torch.
"""

import tempfile
from pathlib import Path

import numpy as np
from _where import need, torch_device

import dlwrap

torch = need("torch")
NODES, FEATURES, BATCH, NEIGHBOURS = 50_000, 32, 256, 10


def main() -> None:
    """Aggregate sampled neighbours of mini-batches of nodes."""
    device = torch_device()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, (np.arange(NODES * FEATURES, dtype=np.float32) % 7).reshape(NODES, FEATURES))
        features = np.load(path, mmap_mode="c")

        # `pin` keeps the file's pages locked for all batches; each wrap inside is free.
        with dlwrap.pin(features), dlwrap.wrap(features) as buffer:
            on_gpu = torch.from_dlpack(buffer) if device == "cuda" else torch.from_numpy(features)
            weight = torch.full((FEATURES, 4), 1 / FEATURES, device=device)
            for step in range(3):
                neighbours = torch.from_numpy(random.integers(0, NODES, (BATCH, NEIGHBOURS))).to(device)
                sampled = on_gpu[neighbours.reshape(-1)].reshape(BATCH, NEIGHBOURS, FEATURES)
                hidden = torch.relu(sampled.mean(dim=1) @ weight)
                read = neighbours.unique().numel() * FEATURES * 4
                print(f"batch {step}: hidden {tuple(hidden.shape)}, mean {hidden.mean().item():.4f}, {read} bytes read")
            del on_gpu
    print(f"features in all: {NODES * FEATURES * 4} bytes")


if __name__ == "__main__":
    main()
