"""Train on a memory-mapped dataset: the GPU reads each batch from the page cache, without a loader or a copy.

It needs torch.
"""

import tempfile
from pathlib import Path

import numpy as np
from _where import need, torch_device

import dlwrap

torch = need("torch")
SAMPLES, FEATURES, BATCH = 8192, 64, 1024


def make_dataset(path: Path) -> None:
    """Write samples of y = x . (0, 1, 0, -1, 0, 1, ...)."""
    random = np.random.default_rng(0)
    file = np.memmap(path, np.float32, "w+", shape=(SAMPLES, FEATURES + 1))
    file[:, :-1] = random.standard_normal((SAMPLES, FEATURES), np.float32)
    file[:, -1] = file[:, :-1] @ np.sin(np.arange(FEATURES, dtype=np.float32) * np.pi / 2)
    file.flush()


def main() -> None:
    """Fit a line by gradient descent, batch by batch."""
    device = torch_device()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.f32"
        make_dataset(path)
        data = np.memmap(path, np.float32, "c", shape=(SAMPLES, FEATURES + 1))
        weights = torch.zeros(FEATURES, device=device)
        with dlwrap.pin(data):  # the file's pages, once; wraps of batches are free then
            for epoch in range(3):
                total = torch.zeros((), device=device)
                for start in range(0, SAMPLES, BATCH):
                    rows = data[start : start + BATCH]
                    batch = torch.from_dlpack(dlwrap.wrap(rows)) if device == "cuda" else torch.from_numpy(rows)
                    x, y = batch[:, :-1], batch[:, -1]
                    error = x @ weights - y
                    weights -= 0.2 * (x.T @ error) / BATCH
                    total += error.square().sum()
                print(f"epoch {epoch}: mean square error {total.item() / SAMPLES:.3f}")
            del batch, x, y
    print("weights:", [round(abs(weight), 1) * (1 if weight > 0 else -1) for weight in weights[1:8:2].tolist()])


if __name__ == "__main__":
    main()
