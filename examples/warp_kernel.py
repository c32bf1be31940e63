"""Launch a Warp kernel on host memory, in place; needs warp-lang. Without a GPU Warp's CPU device runs it."""

import numpy as np
from _where import has_gpu, need, simulate

import dlwrap

wp = need("warp", "warp-lang")
wp.config.quiet = True
wp.config.log_level = getattr(wp, "LOG_ERROR", None)  # what newer ones call it


@wp.kernel
def fall(heights: wp.array(dtype=wp.float32), seconds: wp.float32):
    """Let points fall until they reach the ground."""
    i = wp.tid()
    heights[i] = wp.max(heights[i] - 0.5 * 9.81 * seconds * seconds, 0.0)


def main() -> None:
    """Let points fall for one second."""
    wp.init()  # before the simulated driver is there, on which Warp would try to compile
    device = "cuda:0" if has_gpu() else "cpu"
    if device == "cpu":
        simulate()
    heights = np.linspace(0, 10, 1001, dtype=np.float32)
    with dlwrap.wrap(heights) as buffer:
        # On a GPU Warp tells its stream, and so the release waits for what it runs.
        points = wp.from_dlpack(buffer if device != "cpu" else buffer.array)
        wp.launch(fall, dim=points.size, inputs=[points, 1.0], device=device)
        del points
    print(f"{(heights == 0).sum()} on the ground, the highest at {heights.max():.3f} m")


if __name__ == "__main__":
    main()
