"""Take one safeguard away at a time, in a copy of the tree, and see whether a test notices.

python tests/soak/mutations.py --out FILE.json [name ...]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import dlwrap.testing
from soak._report import Outcome, report

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 300


@dataclass(frozen=True)
class Mutation:
    """A safeguard, and what is left without it.

    Attributes
    ----------
    name : str
        The safeguard that is taken away.
    file : str
        Below ``src/dlwrap``.
    old, new : str
        The text that makes the safeguard, there exactly once, and what takes its place.
    tests : tuple of str
        Files, or tests, of which at least one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = [
    Mutation(
        "the capture check before an event is recorded",
        "_calls.c",
        "    int code = is_capturing(stream, capturing);\n    if (code != 0 || *capturing != 0) {\n",
        "    int code = 0;\n    if (code != 0) {\n",
        ("tests/test_lifetime.py",),
    ),
    Mutation(
        "the capture check after an event was recorded",
        "_calls.c",
        "    return is_capturing(stream, capturing);\n}",
        "    return 0;\n}",
        ("tests/test_native.py", "tests/test_soak_captures.py"),
    ),
    Mutation(
        "the wait for the event",
        "_waits.py",
        "            if not _driver.is_event_done(recording.event):\n                return False\n",
        "            _driver.is_event_done(recording.event)\n",
        ("tests/test_lifetime.py",),
    ),
    Mutation(
        "the wait for the device",
        "_barrier.py",
        "    _driver.use_primary_context(device)\n",
        "    return\n",
        ("tests/test_lifetime.py",),
    ),
    Mutation(
        "the hold on the object that owns the stream",
        "_streams.py",
        "    return TrackedStream(handle, device, owner) if owner is not None",
        "    return TrackedStream(handle, device, None) if owner is not None",
        ("tests/test_lifetime.py", "tests/test_streams.py"),
    ),
    Mutation(
        "the hold on the array until it is unregistered",
        "_pinning.py",
        "made = Registration(wanted.start, wanted.stop, not layout.writable_memory, device, layout.hold)",
        "made = Registration(wanted.start, wanted.stop, not layout.writable_memory, device)",
        ("tests/test_lifetime.py", "tests/test_pinning.py"),
    ),
    Mutation(
        "the hold of a captured graph",
        "_graphs.py",
        "    user_object = give_to_graph(capture.graph, exporter)\n",
        "    user_object = 0\n",
        ("tests/test_graphs.py",),
    ),
    Mutation(
        "the relaxed capture mode of the calling thread",
        "_driver.py",
        "return _paired(exchange, _module().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED, exchange)",
        "return contextlib.nullcontext()",
        ("tests/test_lifetime.py", "tests/test_driver.py"),
    ),
    Mutation(
        "the relaxed capture mode of a thread that page-locks memory",
        "_calls.c",
        "    int mode = RELAXED;\n",
        "    int mode = 0;\n",
        ("tests/test_lifetime.py",),
    ),
    Mutation(
        "the check that nobody uses a range before it is unregistered",
        "_registration.c",
        "    bool begun = range->state == LIVE && range->users == 0;\n",
        "    bool begun = range->state == LIVE;\n",
        ("tests/test_registrations.py",),
    ),
    Mutation(
        "the relaxed capture mode of dlwrap's own threads",
        "_driver.py",
        '    _call("cuThreadExchangeStreamCaptureMode", _module()',
        '    _call("cuCtxGetCurrent") or (_module()',
        ("tests/test_lifetime.py", "tests/test_driver.py"),
    ),
    Mutation(
        "the guard after a fork",
        "_lifetime.py",
        "os.register_at_fork(after_in_child=_follow_fork)\n",
        "",
        ("tests/test_fork.py",),
    ),
    Mutation(
        "the stop before the interpreter ends",
        "_lifetime.py",
        "atexit.register(_stop_at_exit)\n",
        "",
        ("tests/test_exit.py",),
    ),
    Mutation(
        "the care of a capsule's destructor for a pending exception",
        "_exporter.c",
        "    const char *name = PyCapsule_GetName(capsule);\n    if (name != NULL",
        "    PyErr_Clear();\n    const char *name = PyCapsule_GetName(capsule);\n    if (name != NULL",
        ("tests/test_native.py",),
    ),
    Mutation(
        "the leak of what may still be in use",
        "_lifetime.py",
        "        _native.leak(lease)\n        self._note_leak(failure, lease)\n",
        "        self._note_leak(failure, lease)\n        lease.hold = None\n",
        ("tests/test_lifetime.py", "tests/test_faults.py"),
    ),
]


def copy_tree(into: Path) -> None:
    """Copy what git knows or would take, and the libraries that are built."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    built = [str(path.relative_to(ROOT)) for path in ROOT.glob("src/dlwrap/**/*.so")]
    for name in filter(None, [*names, *built]):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)


def is_noticed(mutation: Mutation) -> bool:
    """Run the tests without the safeguard; give whether they failed, as opposed to could not be run."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        source = tree / "src" / "dlwrap" / mutation.file
        text = source.read_text()
        if text.count(mutation.old) != 1:
            raise LookupError(f"{mutation.file} has {text.count(mutation.old)} times the text of: {mutation.name}")
        source.write_text(text.replace(mutation.old, mutation.new))
        if mutation.file.endswith(".c"):
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--build-temp", "build"]
            subprocess.run(build, cwd=tree, check=True)
        return run_tests(tree, mutation.tests)


def run_tests(tree: Path, tests: tuple[str, ...]) -> bool:
    """Run tests of a copy until the first fails; give whether one did, an abort or a hang included."""
    path = f"import sys; sys.path.insert(0, {str(tree / 'src')!r}); import pytest; "
    program = f"{path}sys.exit(pytest.main(['-x', '-q', '-p', 'no:cacheprovider', '--timeout=60', *{list(tests)!r}]))"
    # The children of the tests must find the copy as well.
    environment = {"PYTHONPATH": str(tree / "src"), "PATH": "/usr/bin:/bin"}
    try:
        status = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=LONGEST_SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return True
    # 1: a test failed; negative: the simulated driver aborted. Others, such as 4, tell that nothing was tested.
    return status == 1 or status < 0


def run(names: list[str]) -> Outcome:
    """Try the mutations of these names, or all."""
    outcome = Outcome(0)
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    for mutation in chosen:
        print(mutation.name, flush=True)
        outcome.rounds += 1
        if not is_noticed(mutation):
            outcome.faults.append(f"no test notices that this is missing: {mutation.name}")
    outcome.figures["safeguards"] = [mutation.name for mutation in chosen]
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the safeguards to try; all by default")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    dlwrap.testing.activate()  # what the tests run on, and so the report names
    return report("mutations", {}, lambda: run(arguments.names), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
