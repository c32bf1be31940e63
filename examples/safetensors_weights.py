"""Run a model on weights that stay in a safetensors file: one mapping, one page-lock, no copy anywhere.

It needs torch.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from _where import need, torch_device

import dlwrap

torch = need("torch")


def write_weights(path: Path) -> None:
    """Write two layers by hand; `safetensors.numpy.save_file` does the same."""
    random = np.random.default_rng(0)
    layers = {
        "first.weight": random.standard_normal((128, 64)).astype(np.float32),
        "first.bias": np.zeros(128, np.float32),
        "second.weight": random.standard_normal((10, 128)).astype(np.float32),
    }
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, array in layers.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in layers.values()))


def main() -> None:
    """Use each tensor where it lies."""
    device = torch_device()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_weights(path)
        # "c" maps copy-on-write, so that every driver can page-lock it, and torch may think it can write.
        with dlwrap.open_safetensors(path, mode="c") as file, dlwrap.pin(file.data) as pin:
            print(f"{len(file)} tensors, {pin.nbytes} bytes page-locked at once, metadata {file.metadata}")
            weights = {
                name: torch.from_dlpack(dlwrap.wrap(array)) if device == "cuda" else torch.from_numpy(array)
                for name, array in file.items()
            }
            x = torch.eye(64, device=device)[:4]
            hidden = torch.relu(x @ weights["first.weight"].T + weights["first.bias"])
            logits = hidden @ weights["second.weight"].T
            print(f"logits {tuple(logits.shape)}, best class of each: {logits.argmax(dim=1).tolist()}")
            del weights


if __name__ == "__main__":
    main()
