"""Fuzzes the native part: bytes are read as a sequence of operations on it, and a model says what must come of them.

`python tests/soak/fuzz.py --seconds 180` is guided by coverage, under the address and undefined-behaviour sanitizers;
that needs clang and the package atheris. Without them, or with `--random`, the bytes are random.

`record` and `hold_by_graph` are left out: they call through addresses that they are given, which is what they are for.
So is a deleter that is called again after its export's memory serves another export: nothing can tell that apart.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import operator
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import dlwrap.testing
from capsules import look, take
from exporters import lend, released_keys
from soak._report import Outcome, report

SOURCES = [str(path) for path in sorted(Path(dlwrap.__file__).parent.glob("*.c"))]
SANITIZERS = "-fsanitize=address,undefined,float-cast-overflow,fuzzer-no-link"
REFUSALS = (TypeError, ValueError, OverflowError, BufferError, MemoryError)
SEVERAL = 6
MASK = 2**64 - 1
LONGEST = 400  # bytes of one input


class NotAnInteger:
    """Says that it is an index, and fails."""

    def __index__(self) -> int:
        raise TypeError("no index")


ODD: list[Any] = [
    *(
        None,
        True,
        "x",
        b"",
        1.5,
        [],
        (),
        (1,),
        (2, 32, 1),
        (2, 32),
        ("x", 1, 1),
        (256, 32, 1),
        (2, -1, 1),
        (2, 32, 65536),
    ),
    *(-1, 0, 1, 255, 2**31 - 1, 2**31, 2**32, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), 2**64, 2**200),
    *((2**63,), (-1, 2), (1, "x"), (0,) * 70, NotAnInteger(), object()),
]
INFINITE, NO_NUMBER = float("inf"), float("nan")
SECONDS = [0, 0.0, -0.0, 1e-9, 0.5, 3, 1e8, 1e300, INFINITE, NO_NUMBER, -1, -1e300, -INFINITE, True]
SECONDS += ["x", None, b"1", NotAnInteger(), 10**400]


class Input:
    """Reads decisions from bytes; zeros after the end."""

    def __init__(self, data: bytes) -> None:
        self._rest = deque(data)

    def __bool__(self) -> bool:
        return bool(self._rest)

    def below(self, number: int) -> int:
        return (self._rest.popleft() if self._rest else 0) % number

    def pick(self, things: list[Any]) -> Any:
        return things[self.below(len(things))]

    def integer(self) -> int:
        """Give 64 bits."""
        return int.from_bytes(bytes(self.below(256) for _ in range(8)), "little")


class Lease:
    """What the model knows of an exporter: its key, who holds it, and what exports have to say."""

    def __init__(self, exporter: Any, arguments: tuple[Any, ...]) -> None:
        self.exporter = exporter
        self.key = arguments[0]
        self.on_device, self.on_host = (operator.index(number) & MASK for number in arguments[1:3])
        self.device = operator.index(arguments[3])
        code, bits, lanes = map(operator.index, arguments[4])
        self.dtype = (code, bits, lanes & 0xFFFF)
        self.shape, self.strides = (tuple(map(operator.index, extents)) for extents in arguments[5:7])
        self.read_only = bool(arguments[7])
        self.exports = 0
        self.closed = False


class Program:
    """Does what an input says to a copy of the native part, and to the model.

    Raises
    ------
    AssertionError
        They disagree.
    """

    def __init__(self, native: Any, data: bytes) -> None:
        self.native = native
        self.input = Input(data)
        self.leases: list[Lease] = []  # whose exporter is there
        self.capsules: list[tuple[Any, Lease]] = []  # not consumed
        self.imported: list[tuple[Any, Lease]] = []  # consumed
        self.husks: list[Any] = []  # capsules without an export
        self.live = 0
        self.released: list[int] = []

    def run(self) -> None:
        """Do everything, then drop everything."""
        assert self.native.wait(0) == [], "an earlier program left keys behind"
        operations = [
            self.make,
            self.make,
            self.make_oddly,
            self.export,
            self.export,
            self.export_oddly,
            self.consume,
            self.delete,
            self.delete_unconsumed,
            self.drop_capsule,
            self.drop_husk,
            self.drop_exporter,
            self.close,
            self.wait,
            self.wait_oddly,
            self.call_oddly,
        ]
        while self.input:
            self.input.pick(operations)()
            self.check()
        while self.capsules:
            self.drop_capsule()
        while self.imported:
            self.delete()
        while self.leases:
            self.drop_exporter()
        self.husks.clear()
        self.wait()
        self.check()

    def check(self) -> None:
        assert self.native.live_exports() == self.live, f"{self.native.live_exports()} live exports, not {self.live}"
        for lease in self.leases:
            assert lease.exporter.closed == lease.closed, "closed is wrong"
            assert lease.exporter.exports == lease.exports, f"{lease.exporter.exports} exports, not {lease.exports}"

    # ---- exporters ----

    def make(self) -> None:
        extents = tuple(self.input.below(5) for _ in range(self.input.below(6)))
        dtype = (self.input.below(15), self.input.pick([8, 16, 32, 64, 128]), 1)
        numbers = [self.input.integer() for _ in range(3)]
        self._make((*numbers, self.input.below(8), dtype, extents, extents[::-1], self.input.below(2)))

    def make_oddly(self) -> None:
        arguments = [1, 0x1000, 0x2000, 0, (2, 32, 1), (3,), (1,), False]
        for _ in range(1 + self.input.below(3)):
            arguments[self.input.below(8)] = self.input.pick(ODD)
        self._make(tuple(arguments))

    def _make(self, arguments: tuple[Any, ...]) -> None:
        if len(self.leases) < SEVERAL:
            made = attempt(lend, self.native, *arguments)
            if made is not None:
                self.leases.append(Lease(made, arguments))

    def drop_exporter(self) -> None:
        if self.leases:
            lease = self.leases.pop(self.input.below(len(self.leases)))
            lease.exporter = None
            if not lease.closed:
                self._release_unless_held(lease)

    def close(self) -> None:
        if not self.leases:
            return
        lease = self.input.pick(self.leases)
        forbidding = self.native.give_up(lease.exporter)
        assert forbidding == (0 if lease.closed else lease.exports), f"close() says {forbidding}"
        if not lease.closed and forbidding == 0:
            lease.closed = True
            self.released.append(lease.key)

    def _release_unless_held(self, lease: Lease) -> None:
        if lease.exports == 0 and lease.exporter is None:
            self.released.append(lease.key)

    # ---- exports ----

    def export(self) -> None:
        self._export(self.input.pick([-1, 0, 1, 3, 4, 2**31 - 1, -(2**31)]), self.input.below(2), self.input.below(2))

    def export_oddly(self) -> None:
        self._export(*(self.input.pick(ODD) for _ in range(3)))

    def _export(self, minor: Any, on_host: Any, copied: Any) -> None:
        if not self.leases or len(self.capsules) >= SEVERAL:
            return
        lease = self.input.pick(self.leases)
        capsule = attempt(self.native.make_capsule, lease.exporter, minor, on_host, copied)
        if capsule is None:
            return
        assert not lease.closed, "a closed exporter exports"
        lease.exports += 1
        self.live += 1
        self.capsules.append((capsule, lease))
        seen, minor = look(capsule), operator.index(minor)
        address = lease.on_host if on_host else lease.on_device
        assert (seen.tensor.data or 0) == address, "an export has another address"
        assert seen.device == ((1, 0) if on_host else (2, lease.device)), "an export names another device"
        assert (seen.dtype, seen.shape, seen.strides) == (lease.dtype, lease.shape, lease.strides), "another layout"
        if minor >= 0:
            expected = (1, min(minor, 3), lease.read_only + 2 * bool(copied))
            assert (seen.managed.major, seen.managed.minor, seen.managed.flags) == expected, "another version or flags"

    def consume(self) -> None:
        if self.capsules:
            capsule, lease = self.capsules.pop(self.input.below(len(self.capsules)))
            self.imported.append((take(capsule, clear_destructor=self.input.below(2) == 1), lease))
            if self.input.below(2):
                self.husks.append(capsule)

    def delete(self) -> None:
        if self.imported:
            imported, lease = self.imported.pop(self.input.below(len(self.imported)))
            for _ in range(1 + self.input.below(3)):
                imported.delete()
            self._end_export(lease)

    def delete_unconsumed(self) -> None:
        if self.capsules:
            capsule, lease = self.capsules.pop(self.input.below(len(self.capsules)))
            look(capsule).delete()
            self.husks.append(capsule)
            self._end_export(lease)

    def drop_capsule(self) -> None:
        if self.capsules:
            capsule, lease = self.capsules.pop(self.input.below(len(self.capsules)))
            del capsule
            self._end_export(lease)

    def drop_husk(self) -> None:
        if self.husks:
            self.husks.pop(self.input.below(len(self.husks)))

    def _end_export(self, lease: Lease) -> None:
        lease.exports -= 1
        self.live -= 1
        self._release_unless_held(lease)

    # ---- the released list ----

    def wait(self) -> None:
        released, self.released = self.released, []
        keys = released_keys(self.native)
        assert keys == released, f"wait() gives {keys}, and released were {released}"

    def wait_oddly(self) -> None:
        self.native.wake()  # so that no wait lasts
        keys = attempt(released_keys, self.native, self.input.pick(SECONDS))
        if keys is not None:
            released, self.released = self.released, []
            assert keys == released, f"wait() gives {keys}, and released were {released}"

    def call_oddly(self) -> None:
        """Call with the wrong number of arguments, or with names."""
        exporter = self.input.pick([lease.exporter for lease in self.leases]) if self.leases else self.native
        functions = [self.native.Exporter, self.native.lend, self.native.live_exports, self.native.wake]
        functions += [] if exporter is self.native else [self.native.make_capsule, self.native.give_up]
        arguments = [self.input.pick(ODD) for _ in range(self.input.pick([1, 2, 4, 5]))]
        names = {"key": 1, "x": 2} if self.input.below(2) else {}
        assert attempt(self.input.pick(functions), *arguments, **names) is None, "wrong arguments were taken"


def attempt(function: Any, *arguments: Any, **names: Any) -> Any:
    """Give the result, or None if the arguments were refused as they may be."""
    try:
        return function(*arguments, **names)
    except REFUSALS:
        return None


# ---- the native part, once more ----


def load(library: str) -> Any:
    """Load a copy of the native part, whose released list no lifetime manager takes from."""
    with tempfile.TemporaryDirectory() as folder:
        loader = importlib.machinery.ExtensionFileLoader("_native", shutil.copy(library, folder))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_native", loader))
        loader.exec_module(module)
        return module


def build(clang: str, folder: Path) -> Path:
    """Build the native part with the sanitizers and the fuzzer's counters."""
    library = folder / "_native.so"
    flags = ["-std=c11", "-O1", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-DPy_LIMITED_API=0x030A0000"]
    include = f"-I{sysconfig.get_path('include')}"
    fatal = "-fno-sanitize-recover=all"
    subprocess.run([clang, *flags, SANITIZERS, fatal, include, *SOURCES, "-o", str(library)], check=True)
    return library


# ---- ways to come by inputs ----


def run_random(seed: int, seconds: float) -> Outcome:
    """Run random inputs for so long, to the first fault."""
    native, random_bytes, rounds = load(dlwrap._native.__file__), random.Random(seed), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = random_bytes.randbytes(random_bytes.randrange(LONGEST))
        try:
            Program(native, data).run()
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is a fault
            return Outcome(rounds, [f"{type(error).__name__}: {error}; input {data.hex()}"])
        rounds += 1
    return Outcome(rounds, figures={"guided_by_coverage": False})


def run_guided(seed: int, seconds: int, clang: str) -> Outcome:
    """Run inputs that the fuzzer finds for so long, to the first fault, in a process of its own."""
    import atheris

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        library = build(clang, folder)
        environment = {
            **os.environ,
            "LD_PRELOAD": str(Path(atheris.path()) / "asan_with_fuzzer.so"),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={LONGEST}", f"-artifact_prefix={folder}/"]
        command = [sys.executable, __file__, "--library", str(library), *options, "-print_final_stats=1"]
        done = subprocess.run(
            [*command, str(folder / "corpus")], env=environment, capture_output=True, text=True, check=False
        )
        return read_guided(done, folder)


def read_guided(done: subprocess.CompletedProcess[str], folder: Path) -> Outcome:
    """Make an outcome of what the fuzzer printed."""

    def last(pattern: str) -> int:
        return int(([0, *re.findall(pattern, done.stderr)])[-1])

    faults = []
    if done.returncode != 0:
        said = re.findall(
            r"(?:ERROR: AddressSanitizer|runtime error|AssertionError|Error): .*", done.stderr + done.stdout
        )
        inputs = [path.read_bytes().hex() for path in folder.glob("*-*") if path.is_file()]
        faults = ["; ".join([*dict.fromkeys(said or [done.stderr[-2000:]]), *(f"input {each}" for each in inputs)])]
    figures = {
        "guided_by_coverage": True,
        "edges_covered": last(r"cov: (\d+)"),
        "inputs_kept": last(r"corp: (\d+)"),
        "inputs_per_second": last(r"average_exec_per_sec:\s+(\d+)"),
        "sanitizers": SANITIZERS,
    }
    return Outcome(last(r"number_of_executed_units:\s+(\d+)"), faults, figures)


def fuzz(library: str, options: list[str]) -> None:
    """Be the fuzzer's process."""
    import atheris

    native = load(library)
    atheris.Setup([sys.argv[0], *options], lambda data: Program(native, data).run())
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31))
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--random", action="store_true", help="random bytes, on the native part as it is installed")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    given, options = parser.parse_known_args()
    if given.library:
        fuzz(given.library, options)
        return 0
    clang = shutil.which("clang")
    guided = clang is not None and importlib.util.find_spec("atheris") is not None and not given.random
    parameters = {"seed": given.seed, "seconds": given.seconds, "guided": guided}
    print(f"seed {given.seed}", flush=True)
    dlwrap.testing.activate()  # names the machine in the report; nothing here calls a driver
    return report(
        "fuzz",
        parameters,
        lambda: run_guided(given.seed, given.seconds, clang) if guided else run_random(given.seed, given.seconds),
        given.out,
    )


if __name__ == "__main__":
    sys.exit(main())
