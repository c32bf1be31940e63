"""Builds the two C libraries; everything else is in pyproject.toml."""

import os
import sysconfig
from glob import glob

from setuptools import Extension, setup

free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
abi3 = not free_threaded
# For coverage and sanitizers (.ci/run, .ci/sanitize); an instrumented library needs the sanitizer's runtime preloaded.
sanitizers = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
sanitize = os.environ.get("DLWRAP_SANITIZE")
extra = os.environ.get("DLWRAP_CFLAGS", "").split()
extra += [*sanitizers[sanitize], "-O1", "-g", "-fno-omit-frame-pointer"] if sanitize else []
warnings = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wshadow", "-fvisibility=hidden"]

native = Extension(
    "dlwrap._native",
    sorted(glob("src/dlwrap/*.c")),
    depends=glob("src/dlwrap/*.h"),
    define_macros=[("Py_LIMITED_API", "0x030A0000")] if abi3 else [],
    extra_compile_args=warnings + extra,
    extra_link_args=["-pthread", *extra],
    py_limited_api=abi3,
)

# Not a Python module: a libcuda.so.1 of our own, found by its SONAME once it is loaded.
simulated_driver = Extension(
    "dlwrap.testing._simcuda",
    sorted(glob("src/dlwrap/testing/simcuda/*.c")),
    depends=glob("src/dlwrap/testing/simcuda/*.h"),
    extra_compile_args=warnings + extra,
    extra_link_args=["-pthread", "-Wl,-soname,libcuda.so.1", "-ldl", *extra],
    py_limited_api=abi3,
)

setup(
    ext_modules=[native, simulated_driver],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if abi3 else {},
)
