"""Our declarations of the DLPack ABI, against the header that the apache-tvm-ffi wheel ships."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import dlwrap

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi ships the DLPack header to compare with")

OURS = Path(dlwrap.__file__).with_name("_dlpack.h")
THEIRS = Path(tvm_ffi.__file__).parent / "include" / "dlpack" / "dlpack.h"
FIELDS = {
    "DLPackVersion": ("major", "minor"),
    "DLDevice": ("device_type", "device_id"),
    "DLDataType": ("code", "bits", "lanes"),
    "DLTensor": ("data", "device", "ndim", "dtype", "shape", "strides", "byte_offset"),
    "DLManagedTensor": ("dl_tensor", "manager_ctx", "deleter"),
    "DLManagedTensorVersioned": ("version", "manager_ctx", "deleter", "flags", "dl_tensor"),
    "DLPackExchangeAPIHeader": ("version", "prev_api"),
    "DLPackExchangeAPI": (
        "header",
        "managed_tensor_allocator",
        "managed_tensor_from_py_object_no_sync",
        "managed_tensor_to_py_object_no_sync",
        "dltensor_from_py_object_no_sync",
        "current_work_stream",
    ),
}
CONSTANTS = {
    "DLPACK_MAJOR": "DLPACK_MAJOR_VERSION",
    "DLPACK_MINOR": "DLPACK_MINOR_VERSION",
    "DL_CPU": "kDLCPU",
    "DL_CUDA": "kDLCUDA",
    "DL_FLAG_READ_ONLY": "DLPACK_FLAG_BITMASK_READ_ONLY",
    "DL_FLAG_IS_COPIED": "DLPACK_FLAG_BITMASK_IS_COPIED",
}


def describe(header: Path, constants: list[str], folder: Path) -> list[str]:
    """Compile a program against a header that prints sizes, offsets and constants."""
    lines = [f'printf("{struct} %zu\\n", sizeof({struct}));' for struct in FIELDS]
    lines += [
        f'printf("{struct}.{field} %zu\\n", offsetof({struct}, {field}));'
        for struct, fields in FIELDS.items()
        for field in fields
    ]
    lines += [f'printf("%d\\n", (int){constant});' for constant in constants]
    source, program = folder / "abi.c", folder / "abi"
    body = "\n".join(lines)
    source.write_text(f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{\n{body}\n}}\n')
    subprocess.run(["cc", "-o", program, source], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_sizes_offsets_and_constants_are_those_of_the_dlpack_header(tmp_path):
    ours = describe(OURS, list(CONSTANTS), tmp_path)
    theirs = describe(THEIRS, list(CONSTANTS.values()), tmp_path)
    assert ours == theirs
    assert len(ours) == len(FIELDS) + sum(map(len, FIELDS.values())) + len(CONSTANTS)
