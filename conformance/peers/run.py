"""Runs the DLPack tests of other projects on what dlwrap exports, each in its own process; keeps what came of them.

python -m conformance.peers.run --sources DIR [--only NAME ...] [--out FOLDER] [--gpu]

DIR has a folder for each repository, such as DIR/cupy; tests that come with an installed package need none.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from conformance.peers.catalog import PEERS, Peer, find

ROOT = Path(__file__).parents[2]
OUT = ROOT / "conformance" / "results" / "peers"
OUTCOMES = ("passed", "untouched", "failed", "skipped", "deselected")
UNEXPLAINED = "unexplained"
_SECONDS = 600.0


class CannotRunError(Exception):
    """These tests cannot be run here; the text says why."""


def main(arguments: list[str] | None = None) -> int:
    """Run the peers that are asked for; fail if a test fails without a known reason, or passes in spite of one."""
    options = _parse(arguments)
    if options.settle:
        return 1 if sum(settle(path) for path in options.settle) else 0
    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for peer in PEERS if options.only is None else map(find, options.only):
        try:
            result = run(peer, options.sources, gpu=options.gpu)
        except CannotRunError as obstacle:
            print(f"{peer.name:18} not run: {obstacle}")
            status = status if options.only is None else 1
            continue
        side = "gpu-" if options.gpu else ""
        out = options.out / f"{result['date'][:10]}-{side}{peer.name}.json"
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{peer.name:18} {', '.join(f'{number} {outcome}' for outcome, number in result['counts'].items())}")
        for surprise in surprises(result):
            print(f"  {surprise}")
            status = 1
    return status


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the DLPack tests of other projects on what dlwrap exports.")
    parser.add_argument("--sources", type=Path, help="a folder with the peers' repositories, each in its own folder")
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="these peers; by default all")
    parser.add_argument("--out", type=Path, default=OUT, help="where the results are written")
    parser.add_argument("--gpu", action="store_true", help="on the real driver, with builds for CUDA")
    parser.add_argument(
        "--settle", nargs="+", type=Path, metavar="FILE.json", help="only look failures up that are known by now"
    )
    return parser.parse_args(arguments)


def settle(path: Path) -> int:
    """Look the unexplained failures of a result up among those known by now; give how many surprises are left."""
    result = json.loads(path.read_text())
    for name, test in result["tests"].items():
        if test.get("reason") == UNEXPLAINED:
            test["reason"] = find(result["peer"]).why_failed(name, test["message"]) or UNEXPLAINED
    path.write_text(json.dumps(result, indent=1) + "\n")
    left = surprises(result)
    print(*left, sep="\n")
    return len(left)


def run(peer: Peer, sources: Path | None, *, gpu: bool = False) -> dict[str, Any]:
    """Run a peer's tests with dlwrap as their producer, and alone, and give what came of them.

    Raises
    ------
    CannotRunError
        The package or the sources are missing, or the tests need a GPU.
    """
    if peer.needs_gpu and not gpu:
        raise CannotRunError("needs a GPU: run it there with --gpu")
    try:
        version = importlib.metadata.version(peer.package)
    except importlib.metadata.PackageNotFoundError:
        raise CannotRunError(f"{peer.package} is not installed") from None
    ours, alone = (_record(peer, sources, alone=alone, gpu=gpu) for alone in (False, True))
    tests = {name: _judge(peer, name, test, alone["tests"].get(name, {})) for name, test in ours["tests"].items()}
    return {
        "peer": peer.name,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "driver": _driver() if gpu else "simulated driver",
        "versions": {
            peer.package: version,
            **{name: importlib.metadata.version(name) for name in ("dlwrap", "numpy", "pytest")},
            "python": platform.python_version(),
        },
        "tests_of": f"{peer.package} {version}" if peer.is_installed else _ref(peer, sources),
        "counts": _count(test["outcome"] for test in tests.values()),
        "alone": _count(test.get("alone", "skipped") for test in tests.values()),
        "leaked": ours["leaked"],
        "pending": ours["pending"],
        "tests": tests,
    }


def surprises(result: dict[str, Any]) -> list[str]:
    """Say what differs from what the catalog expects."""
    peer = find(result["peer"])
    found = []
    for name, test in result["tests"].items():
        if test["outcome"] == "failed" and test["reason"] == UNEXPLAINED:
            found.append(f"{name} failed: {test['message']}")
        if test["outcome"] == "passed" and (reason := peer.why_must_fail(name)):
            found.append(f"{name} passed, though the catalog says that it fails: {reason}")
    if not result["counts"]["passed"]:
        found.append("no test reached dlwrap and passed")
    if result["leaked"] or result["pending"]:
        found.append(f"{result['leaked']} leaked, {result['pending']} pending at the end")
    return found


# ---- one run ----


def _record(peer: Peer, sources: Path | None, *, alone: bool, gpu: bool) -> dict[str, Any]:
    """Run pytest over a peer's tests in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes.json"
        files = _installed(peer, Path(folder)) if peer.is_installed else _published(peer, sources)
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")  # in place of the peer's own settings
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conformance.peers.recorder"),
            *("-c", f"{folder}/pytest.ini", "--rootdir", str(files[0].parent), "--peer", peer.name),
            *("--record", str(out), *(["--alone"] if alone else []), *(["--gpu"] if gpu else []), *map(str, files)),
        ]
        environment = {
            **os.environ,
            **(peer.environment_alone if alone else peer.environment),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if not out.exists():
            raise CannotRunError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        recorded: dict[str, Any] = json.loads(out.read_text())
        if not recorded["tests"]:
            raise CannotRunError(f"no tests were found: {(done.stdout + done.stderr)[-2000:]}")
        return recorded


def _installed(peer: Peer, folder: Path) -> list[Path]:
    """Give a file that takes in the tests of an installed package."""
    files = [folder / f"{module.rpartition('.')[2]}.py" for module in peer.tests]
    for path, module in zip(files, peer.tests, strict=True):
        path.write_text(f"from {module} import *\n")
    return files


def _published(peer: Peer, sources: Path | None) -> list[Path]:
    if sources is None:
        raise CannotRunError(f"needs the sources of {peer.repository}: --sources DIR, with DIR/{peer.folder}")
    files = [(sources / peer.folder / path).resolve() for path in peer.tests]
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        raise CannotRunError(f"missing: {', '.join(missing)}")
    return files


def _ref(peer: Peer, sources: Path | None) -> str:
    """Name the tag or commit of the sources; where they are no checkout, the one that they should be of."""
    folder = str(sources) + "/" + peer.folder
    git = ("git", "-C", folder)
    if not Path(folder, ".git").exists():
        return peer.ref
    for question in ("describe", "--tags", "--exact-match"), ("rev-parse", "--short=12", "HEAD"):
        answer = subprocess.run([*git, *question], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return answer.stdout.strip()
    return peer.ref


def _judge(peer: Peer, name: str, test: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """Add what became of a test without dlwrap, and why it fails; one that never reached dlwrap did not pass."""
    judged = {**test, "alone": alone.get("outcome", "skipped")}
    if judged["outcome"] == "passed" and not judged.get("exports"):
        judged["outcome"] = "untouched"
    if judged["outcome"] == "failed":
        judged["reason"] = peer.why_failed(name, judged["message"]) or (
            "Fails without dlwrap too" if judged["alone"] == "failed" else UNEXPLAINED
        )
    return judged


def _count(outcomes: Any) -> dict[str, int]:
    counts = Counter(outcomes)
    return {outcome: counts[outcome] for outcome in OUTCOMES}


def _driver() -> str:
    import dlwrap

    support = dlwrap.support(0)
    return f"{support.name}, CUDA {support.driver_version // 1000}.{support.driver_version % 1000 // 10}"


if __name__ == "__main__":
    sys.exit(main())
