"""What users of each framework do, without a helper of dlwrap: right values, and the memory is free at the end."""

from __future__ import annotations

import shutil

import _cuda
import numpy as np
import pytest
from _script import run_script

import dlwrap

COUNT = 1 << 12


@pytest.fixture
def array():
    return np.arange(COUNT, dtype=np.float32)


@pytest.fixture
def expected(array):
    return array + 1


def assert_released():
    dlwrap.reclaim(timeout=30)
    assert (dlwrap.stats().live, dlwrap.stats().exports, dlwrap.stats().pinned_bytes) == (0, 0, 0)


# ---- imports by every name ----


@pytest.mark.parametrize("name", ["from_dlpack", "as_tensor", "asarray"])
def test_torch_writes_in_place(torch, array, expected, name):
    tensor = getattr(torch, name)(dlwrap.wrap(array), **({} if name == "from_dlpack" else {"device": "cuda"}))
    tensor += 1
    torch.cuda.synchronize()
    np.testing.assert_array_equal(array, expected)
    del tensor
    assert_released()


@pytest.mark.parametrize("name", ["from_dlpack", "asarray"])
def test_cupy_writes_in_place(cupy, array, expected, name):
    imported = getattr(cupy, name)(dlwrap.wrap(array))
    imported += 1
    cupy.cuda.get_current_stream().synchronize()
    np.testing.assert_array_equal(array, expected)
    del imported
    assert_released()


@pytest.mark.parametrize("module", ["dlpack", "numpy"])
def test_a_jitted_function_of_jax_reads_in_place(jax, array, expected, module):
    buffer = dlwrap.wrap(array)
    imported = getattr(jax, module).from_dlpack(buffer)
    assert imported.unsafe_buffer_pointer() == _cuda.address(array)
    np.testing.assert_array_equal(np.array(jax.jit(lambda x: x + 1)(imported)), expected)
    del imported
    buffer.close(timeout=30)
    assert_released()


@pytest.mark.parametrize("way", ["the buffer itself", "as_cuda_array"])
def test_a_kernel_of_numba_writes_in_place(numba_cuda, array, expected, way):
    @numba_cuda.jit
    def add_one(values):
        i = numba_cuda.grid(1)
        if i < values.size:
            values[i] += 1

    with dlwrap.wrap(array) as buffer:
        add_one[COUNT // 256, 256](buffer if way == "the buffer itself" else numba_cuda.as_cuda_array(buffer))
    np.testing.assert_array_equal(array, expected)
    assert_released()


def test_a_kernel_of_cuda_core_writes_in_place(cuda_core, array, expected):
    source = 'extern "C" __global__ void add(float *v) { v[blockIdx.x * blockDim.x + threadIdx.x] += 1; }'
    device = cuda_core.Device(0)
    device.set_current()
    stream = device.create_stream()
    kernel = cuda_core.Program(source, code_type="c++").compile("cubin").get_kernel("add")
    with dlwrap.wrap(array, device=device) as buffer:
        cuda_core.launch(stream, cuda_core.LaunchConfig(grid=COUNT // 256, block=256), kernel, buffer.ptr)
    np.testing.assert_array_equal(array, expected)
    stream.close()
    assert_released()


# ---- what compiles kernels, in processes of their own ----

NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("cc") is None, reason="needs a C compiler, as Triton does"
)
HEAD = """
import numpy as np
import dlwrap
array = np.arange(4096, dtype=np.float32)
"""
TAIL = """
dlwrap.reclaim(timeout=30)
assert (array == np.arange(4096, dtype=np.float32) + 1).all(), array
stats = dlwrap.stats()
print(stats.live, stats.exports, stats.pinned_bytes, stats.leaked)
"""


def run_program(code):
    assert run_script(HEAD + code + TAIL, timeout=110).splitlines()[-1] == "0 0 0 0"


@NEEDS_COMPILER
def test_inductor_compiles_for_a_wrapped_tensor(torch):
    run_program("""
import torch, warnings
warnings.simplefilter("ignore")
add_one = torch.compile(lambda x: x.add_(torch.ones_like(x) * 2 - 1))
with dlwrap.wrap(array) as buffer:
    tensor = torch.from_dlpack(buffer)
    add_one(tensor)
    del tensor
    torch._dynamo.reset()
""")


@NEEDS_COMPILER
def test_a_kernel_of_triton_writes_in_place(torch, tmp_path):
    pytest.importorskip("triton", reason="needs triton")
    # Triton reads the source of a kernel from its file.
    (tmp_path / "kernels.py").write_text("""
import triton
import triton.language as tl

@triton.jit
def add_one(pointer, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(pointer + offsets, tl.load(pointer + offsets) + 1)
""")
    run_program(f"""
import sys, torch
sys.path.insert(0, {str(tmp_path)!r})
from kernels import add_one
with dlwrap.wrap(array) as buffer:
    tensor = torch.from_dlpack(buffer)
    add_one[(4,)](tensor, BLOCK=1024)
    del tensor
""")


def test_a_kernel_of_warp_writes_in_place(tmp_path):
    pytest.importorskip("warp", reason="needs warp-lang")
    (tmp_path / "kernels.py").write_text("""
import warp as wp

@wp.kernel
def add_one(values: wp.array(dtype=wp.float32)):
    i = wp.tid()
    values[i] = values[i] + 1.0
""")
    run_program(f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import warp as wp
wp.config.quiet = True
from kernels import add_one
with dlwrap.wrap(array) as buffer:
    values = wp.from_dlpack(buffer)
    buffer.record_stream(wp.get_stream("cuda:0"))
    wp.launch(add_one, dim=values.size, inputs=[values], device="cuda:0")
    del values
""")


# ---- devices and streams, the frameworks' own ----

DEVICES = {
    "torch": lambda torch: [torch.device("cuda:0"), torch.device("cuda")],
    "cupy": lambda cupy: [cupy.cuda.Device(0)],
    "jax": lambda jax: jax.devices("gpu")[:1],
    "numba_cuda": lambda cuda: [cuda.gpus[0], cuda.get_current_device()],
    "cuda_core": lambda core: [core.Device(0)],
}
STREAMS = {
    "torch": lambda torch: [torch.cuda.Stream(), torch.cuda.current_stream()],
    "cupy": lambda cupy: [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null],
    "numba_cuda": lambda cuda: [cuda.stream(), cuda.default_stream()],
    "cuda_core": lambda core: [core.Device(0).create_stream()],
}


@pytest.mark.parametrize("framework", DEVICES)
def test_the_devices_of_a_framework_are_taken(request, array, framework):
    for device in DEVICES[framework](request.getfixturevalue(framework)):
        with dlwrap.wrap(array, device=device) as buffer:
            assert buffer.device == 0
    assert_released()


@pytest.mark.parametrize("framework", STREAMS)
def test_the_streams_of_a_framework_are_taken(request, array, framework):
    if framework == "cuda_core":
        request.getfixturevalue(framework).Device(0).set_current()
    for stream in STREAMS[framework](request.getfixturevalue(framework)):
        with dlwrap.wrap(array) as buffer:
            buffer.record_stream(stream)
    assert_released()


def test_jax_refuses_to_be_a_cpu_device(jax, array):
    with pytest.raises(ValueError, match="device must be the CUDA device that uses the memory"):
        dlwrap.wrap(array, device=jax.devices("cpu")[0])
