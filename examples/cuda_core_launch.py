"""Launch a CUDA C++ kernel by cuda.core on the device's address of host memory; needs a GPU and cuda-core."""

import numpy as np
from _where import need, need_gpu

import dlwrap

SOURCE = r"""
extern "C" __global__ void add(float *values, size_t count, float term) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        values[i] += term;
    }
}
"""


def main() -> None:
    """Add one half to an array."""
    need_gpu()
    core = need("cuda.core", "cuda-core")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    kernel = core.Program(SOURCE, code_type="c++").compile("cubin").get_kernel("add")

    array = np.arange(10_000, dtype=np.float32)
    with dlwrap.wrap(array, device=device) as buffer:
        # Reading .ptr makes the release wait for the whole device, so no stream has to be told.
        config = core.LaunchConfig(grid=40, block=256)
        core.launch(stream, config, kernel, buffer.ptr, np.uint64(array.size), np.float32(0.5))
    print(array[:4], array[-1])
    stream.close()


if __name__ == "__main__":
    main()
