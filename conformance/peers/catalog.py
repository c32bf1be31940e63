"""The peers: which of their tests are run, how dlwrap becomes their producer, and why some fail or are left out."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Known:
    """A failure that is known.

    Attributes
    ----------
    test, message : str
        Patterns of the test's name and of what it fails with.
    reason : str
        Why.
    always : bool
        Whether it must fail; not so where a peer draws its cases at random.
    """

    test: str
    message: str
    reason: str
    always: bool = True


@dataclass(frozen=True)
class Peer:
    """Tests of another project, run on what dlwrap exports.

    Attributes
    ----------
    name : str
        What the command and the results call it.
    title, package : str
        The project, and its distribution, whose version is noted.
    repository, ref : str
        Where its tests are published, and the tag or commit that fits; empty where the package itself has them.
    tests : tuple of str
        Files below the repository's folder, or modules of the installed package.
    adapter : str
        The module in `conformance.peers.adapters`.
    view : str
        What dlwrap gives: "CPU view" or "CUDA".
    how : str
        How dlwrap becomes the producer.
    needs_gpu : bool
        Whether the tests launch kernels, or need a build with CUDA.
    imported_before : tuple of str
        Modules that must be themselves, with the real NumPy, before stand-ins take its place.
    environment, environment_alone : mapping
        Variables that the tests want, with and without dlwrap.
    left_out, left_out_simulated : mapping of str to str
        By pattern of test name, why a test is not run, or not on the simulated driver.
    failures : tuple of Known
        What fails, and why.
    """

    name: str
    title: str
    package: str
    tests: tuple[str, ...]
    adapter: str
    view: str
    how: str
    repository: str = ""
    ref: str = ""
    needs_gpu: bool = False
    imported_before: tuple[str, ...] = ("numpy.random", "numpy.testing", "numpy.typing")
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_alone: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    left_out_simulated: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[Known, ...] = ()

    @property
    def is_installed(self) -> bool:
        """Whether the tests come with the package."""
        return not self.repository

    @property
    def folder(self) -> str:
        """The repository's folder among the sources."""
        return self.repository.rpartition("/")[2]

    def why_left_out(self, test: str, *, gpu: bool) -> str:
        """Give the reason why a test is not run; empty if it is."""
        return _reason(self.left_out, test) or ("" if gpu else _reason(self.left_out_simulated, test))

    def why_failed(self, test: str, message: str) -> str:
        """Give the reason why a test fails with this message; empty if none is known."""
        known = (each for each in self.failures if matches(test, each.test) and matches(message, each.message))
        return next((each.reason for each in known), "")

    def why_must_fail(self, test: str) -> str:
        """Give the reason why a test cannot pass; empty if it may."""
        return next((known.reason for known in self.failures if known.always and matches(test, known.test)), "")


def matches(name: str, pattern: str) -> bool:
    """Tell whether a test's name fits a pattern with ``*``; brackets are ordinary characters."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _reason(reasons: Mapping[str, str], test: str) -> str:
    return next((reason for pattern, reason in reasons.items() if matches(test, pattern)), "")


_ARRAYS = "NumPy arrays that the tests make are of a subclass, whose `__dlpack__` is that of `dlwrap.wrap(array)`"
_HOST_ARRAYS = f"{_ARRAYS}, as CPU view"
_TENSORS = "`Tensor.__dlpack__` is that of `dlwrap.wrap(a)`{}, where `a` is a NumPy view of the tensor's memory"
_STRIDE_OF_ONE = (
    "The test wants the stride 3 of a dimension of size 1 kept; dlwrap gives such a dimension, whose stride says "
    "nothing, that of a compact array"
)
_MISALIGNED = "The data lies at an address that is no multiple of its item size; NumPy exports it, dlwrap does not"
_NO_RECORDS = "Makes arrays of records, which DLPack has not and dlwrap refuses"

_TORCH = {
    "title": "torch",
    "package": "torch",
    "repository": "pytorch/pytorch",
    "ref": "01f9ef32eae5",
    "tests": ("test/test_dlpack.py",),
    "adapter": "torch_tensors",
}
_JAX = {
    "title": "JAX",
    "package": "jax",
    "repository": "jax-ml/jax",
    "ref": "jax-v0.10.2",
    "tests": ("tests/array_interoperability_test.py",),
    "imported_before": ("jax.dlpack", "jax.numpy", "jax._src.test_util", "absl.testing.absltest"),
}
_TVM_FFI = {"package": "apache-tvm-ffi", "repository": "apache/tvm-ffi", "ref": "0.1.15.post2"}

PEERS = (
    Peer(
        name="numpy",
        title="NumPy",
        package="numpy",
        tests=("numpy._core.tests.test_dlpack",),
        adapter="host_arrays",
        view="CPU view",
        how=_HOST_ARRAYS,
        failures=(
            Known(
                "*::test_*_refcount*",
                "assert (* - *) == 1",
                "The test wants the array dropped inside the deleter; dlwrap's manager drops it a moment later, "
                "once the GPU is done",
                always=False,  # the moment may be short
            ),
            Known(
                "*::test_dunder_dlpack_stream",
                "*DID NOT RAISE*",
                "The test wants an error for a stream; a wrapped buffer is a CUDA buffer, which takes streams, and "
                "pays them no heed for a CPU view",
            ),
        ),
    ),
    Peer(
        name="array-api-tests",
        title="array-api-tests",
        package="numpy",
        repository="data-apis/array-api-tests",
        ref="55fcc60179ef",
        tests=("array_api_tests/test_dlpack.py",),
        adapter="array_api",
        view="CPU view",
        how="The namespace under test is NumPy's, with such arrays",
        environment={"ARRAY_API_TESTS_MODULE": "conformance.peers.array_api_namespace"},
        environment_alone={"ARRAY_API_TESTS_MODULE": "numpy"},
    ),
    Peer(
        name="torch",
        view="CPU view",
        how=_TENSORS.format(", as CPU view"),
        left_out={"*CUDA::*": "Run as torch-cuda"},
        failures=(
            Known(
                "*::test_dlpack_invalid_cpu_stream_cpu",
                "ValueError: stream must not be 0*",
                "The test wants torch's own error for stream 0; dlwrap refuses it with a `ValueError`",
            ),
            Known(
                "*::test_unsupported_device_error_cpu",
                "*does not match*cannot export to dl_device=*",
                "The test wants torch's own words; dlwrap refuses the device with a `BufferError` too",
            ),
            Known(
                "*::test_dlpack_normalize_strides_cpu",
                "AssertionError: Scalars are not equal!*",
                _STRIDE_OF_ONE,
            ),
        ),
        **_TORCH,
    ),
    Peer(
        name="torch-cuda",
        view="CUDA",
        how="Tensors that the tests make lie over wrapped memory; " + _TENSORS.format(""),
        needs_gpu=True,
        left_out={"*CPU::*": "Run as torch"},
        failures=(
            Known(
                "*::test_dlpack_invalid_*_cuda",
                "ValueError: stream must not be 0*",
                "The test wants torch's own error for stream 0; dlwrap refuses it with a `ValueError`",
            ),
            Known(
                "*::test_unsupported_device_error_cuda",
                "*does not match*cannot export to dl_device=*",
                "The test wants torch's own words; dlwrap refuses the device with a `BufferError` too",
            ),
            Known(
                "*::test_dlpack_normalize_strides_cuda",
                "AssertionError: Scalars are not equal!*",
                _STRIDE_OF_ONE,
            ),
            Known(
                "*::test_dlpack_convert_default_stream_cuda",
                "AssertionError: True is not false*",
                "The test wants the consumer's stream to wait for the producer's; a host array has no stream, and "
                "dlwrap launches nothing on the consumer's",
            ),
            Known(
                "*::test_dlpack_cuda_per_thread_stream_cuda",
                "AssertionError: BufferError not raised*",
                "The test wants the per-thread default stream refused; dlwrap takes it, and waits for the device",
            ),
            Known(
                "*_narrow_precision_cuda_float8_e5m2",
                "TypeError: data type '<f1' not understood*",
                "NumPy cannot lay such an array out anew; the adapter did so until it was mended, after this run",
                always=False,
            ),
        ),
        **_TORCH,
    ),
    Peer(
        name="jax",
        adapter="host_arrays",
        view="CPU view",
        how=_HOST_ARRAYS,
        failures=(
            Known(
                "*::testNumpyToJax*",
                "BufferError: cannot export address * a GPU faults on misaligned *",
                _MISALIGNED,
                always=False,  # the cases are drawn at random
            ),
        ),
        environment={"JAX_PLATFORMS": "cpu"},
        environment_alone={"JAX_PLATFORMS": "cpu"},
        **_JAX,
    ),
    Peer(
        name="jax-cuda",
        adapter="device_arrays",
        view="CUDA",
        how=_ARRAYS,
        needs_gpu=True,
        failures=(
            Known(
                "*::testNumpyToJax*",
                "BufferError: cannot export address * a GPU faults on misaligned *",
                _MISALIGNED,
                always=False,  # the cases are drawn at random, here and below
            ),
            Known(
                "*::testNumpyToJax*",
                "AssertionError: ValueError not raised *",
                "The test wants `copy=False` refused, because an array of NumPy has to be copied to the GPU; a wrapped "
                "one has not",
                always=False,
            ),
            Known(
                "*::testNumpyToJax*",
                "*JaxRuntimeError: UNIMPLEMENTED: PJRT C API*",
                "JAX's runtime says that it has not implemented what its `from_dlpack` asks of it for this memory; not "
                "looked into further",
                always=False,
            ),
        ),
        **_JAX,
    ),
    Peer(
        name="tvm-ffi",
        title="tvm-ffi",
        tests=("tests/python/test_tensor.py",),
        adapter="host_arrays",
        view="CPU view",
        how=_HOST_ARRAYS,
        **_TVM_FFI,
    ),
    Peer(
        name="tvm-ffi-exchange",
        title="tvm-ffi, C exchange API",
        tests=("tests/python/test_tensor.py", "tests/python/test_container_dlpack_conversion.py"),
        adapter="tvm_ffi_tensors",
        imported_before=("tvm_ffi.testing",),
        view="CUDA",
        how="`HostWrappedBuffer` takes the place of `torch.Tensor`, `dlwrap.wrap(numpy.arange(n))` that of "
        "`torch.arange(n)`",
        **_TVM_FFI,
    ),
    Peer(
        name="cuda-core",
        title="cuda.core",
        package="cuda-core",
        repository="NVIDIA/cuda-python",
        ref="c5d14171ab4b",
        tests=("cuda_core/tests/test_utils.py",),
        adapter="cuda_core",
        imported_before=("cuda.core.utils",),
        view="both",
        how=_HOST_ARRAYS + "; others, as memory of the CUDA device, stand in for the arrays of CuPy and numba",
        left_out={"*::test_struct_array": _NO_RECORDS},
        failures=(
            Known(
                "*::TestViewCPU::*[in_arr4]",
                "assert 0 == *",
                "The test wants the address of an array without elements; dlwrap gives NULL, as the DLPack header says",
            ),
            Known(
                "*::test_view_sliced_external_negative_offset*",
                "BufferError: cannot export strides (-4,): *",
                "dlwrap refuses negative strides, on which torch aborts; NumPy and CuPy export them",
            ),
        ),
    ),
    Peer(
        name="numba-cuda",
        title="numba-cuda",
        package="numba-cuda",
        tests=("numba.cuda.tests.cudapy.test_cuda_array_interface",),
        adapter="numba_cuda",
        view="CUDA",
        how="`cuda.to_device` and `cuda.device_array` give device arrays over wrapped memory, taken by the CUDA array "
        "interface; there are no tests of DLPack",
        left_out={
            "*::test_produce_*": "Looks at numba's own arrays: streams that they were made on, managed memory",
            "*::test_from_dtype_caching*": _NO_RECORDS,
        },
        left_out_simulated={
            f"*::{name}*": "Launches a kernel: only on a GPU"
            for name in (
                "test_array_views",
                "test_gufunc",
                "test_kernel",
                "test_launch",
                "test_ufunc",
                "test_zero_size",
            )
        },
        failures=(
            Known(
                "*::test_consume_stream",
                "*no attribute 'external'",
                "The test wants the stream that the array was made on; dlwrap launches nothing, and tells none",
            ),
            Known(
                "*::test_consume_sync", "*Called 0 times.", "The test wants a wait for that stream; dlwrap tells none"
            ),
            Known(
                "*::test_ownership",
                "AssertionError: 0 != 1",
                "The test counts the deallocations that numba makes; the memory is not numba's",
            ),
        ),
    ),
    Peer(
        name="cupy",
        title="CuPy",
        package="cupy-cuda13x",
        repository="cupy/cupy",
        ref="v14.2.0",
        tests=("tests/cupy_tests/core_tests/test_dlpack.py",),
        adapter="cupy_arrays",
        view="CUDA",
        how="Arrays that the tests make lie over wrapped memory, and their `__dlpack__` is the buffer's",
        needs_gpu=True,
        left_out={
            "*::TestDLTensorMemory::*": "Counts the blocks of CuPy's own memory pool",
            "*::TestDLPackConversion::*": "Exports by the method `toDlpack` of CuPy's own arrays",
        },
    ),
)

NOT_ASKED = {
    "tvm-ffi, `test_dlpack_exchange_api.py`": "compiles an extension that calls torch's own table",
    "tvm-ffi, `test_current_work_stream_gpu.py`": "calls torch's own table",
    "tvm-ffi, other files": "make a tensor of a NumPy array now and then, to test something else",
    "cuda.core, tests of `StridedMemoryView.__dlpack__`": "judge cuda.core as the producer",
    "array-api-tests, other files": "hand over no arrays",
}


def find(name: str) -> Peer:
    """Give the peer of this name."""
    return next(peer for peer in PEERS if peer.name == name)
