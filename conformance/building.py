"""Compiles the C parts of the suite at first use, into a cache folder, named by their contents."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

from conformance.cannot import UnavailableError


def build(sources: list[Path], command: list[str], suffix: str, *, watched: list[Path] | None = None) -> Path:
    """Compile sources by a command that ends before ``-o OUTPUT SOURCES``; give the file.

    Parameters
    ----------
    sources, watched : list of Path
        What is compiled, and what else the result depends on.
    command : list of str
        The compiler and its options.
    suffix : str
        The end of the file's name.

    Raises
    ------
    UnavailableError
        There is no compiler, or it refused.
    """
    contents = b"".join(path.read_bytes() for path in [*sources, *(watched or [])])
    key = hashlib.sha256(contents + repr([command, platform.machine()]).encode()).hexdigest()[:16]
    target = _cache() / key / (sources[0].stem + suffix)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        try:
            done = subprocess.run(
                [*command, "-o", str(made), *map(str, sources)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise UnavailableError(f"needs a compiler: {error}") from error
        if done.returncode:
            raise UnavailableError(f"{sources[0].name} does not compile: {done.stderr.strip().splitlines()[-1]}")
        made.replace(target)  # in one step: another process may be waiting for it
    return target


def _cache() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(folder).expanduser() / "dlwrap-conformance"
