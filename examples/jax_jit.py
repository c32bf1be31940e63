"""Call a jitted JAX function on host memory, in place; needs jax, with CUDA for a GPU.

JAX wants compact arrays that begin at a multiple of 16 bytes, and knows no read-only ones. Its arrays never change, so
that the host must not write while JAX has it.
"""

import numpy as np
from _where import has_gpu, need, simulate

import dlwrap


def main() -> None:
    """Fit a line to samples that stay in host memory."""
    jax = need("jax")
    device = jax.devices("gpu" if has_gpu() and jax.default_backend() == "gpu" else "cpu")[0]
    if device.platform == "cpu":
        simulate()

    @jax.jit
    def fit(x, y):
        slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
        return slope, y.mean() - slope * x.mean()

    # 64 float32 more than asked for, of which those from a multiple of 16 bytes on are used.
    raw = np.empty(4096 + 64, dtype=np.float32)
    x = raw[-raw.ctypes.data % 16 // 4 :][:4096]
    x[:] = np.linspace(0, 1, 4096)
    y = 3 * x + 1
    buffer = dlwrap.wrap(x, device=device if device.platform != "cpu" else 0)
    imported = jax.dlpack.from_dlpack(buffer if device.platform != "cpu" else buffer.array)
    slope, start = fit(imported, y)
    print(f"y = {float(slope):.3f} x + {float(start):.3f}")
    del imported
    buffer.close(timeout=10)


if __name__ == "__main__":
    main()
