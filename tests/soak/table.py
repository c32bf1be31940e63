"""Writes docs/reliability.md, each promise with how often it held, from the results that are committed.

python tests/soak/table.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "conformance" / "results"
LONG_RUNS = RESULTS / "reliability"  # <simulator or gpu>-<name>.json
PAGE = ROOT / "docs" / "reliability.md"


@dataclass(frozen=True)
class Promise:
    """What is promised, and what tests it.

    Attributes
    ----------
    text : str
        The promise.
    simulator, gpu : tuple of str
        Modules of the tests.
    long_runs : tuple of str
        Names of the long runs.
    """

    text: str
    simulator: tuple[str, ...]
    gpu: tuple[str, ...]
    long_runs: tuple[str, ...]


PROMISES = [
    Promise(
        "Nothing blocks in a deleter or finaliser, on any thread, also during and after finalisation",
        ("test_native", "test_collections", "test_slow_driver", "test_exit"),
        ("test_gpu_exits",),
        ("threads",),
    ),
    Promise(
        "The order wait, unregister, drop; nothing is dropped that the GPU may still use",
        ("test_lifetime", "test_pinning", "test_states", "test_soak_threads"),
        ("test_gpu_lifetimes", "test_gpu_memory"),
        ("threads", "states", "captures"),
    ),
    Promise(
        "Nothing is launched on the user's streams; an event is the only mark",
        ("test_lifetime", "test_streams"),
        ("test_gpu_lifetimes", "test_gpu_captures"),
        ("captures",),
    ),
    Promise(
        "No capture is broken, in any mode, by any thread",
        ("test_driver", "test_collections", "test_soak_captures"),
        ("test_gpu_captures", "test_driver_facts"),
        ("captures",),
    ),
    Promise(
        "A captured graph owns what its work uses, until it, its clones and its executables are gone",
        ("test_graphs", "test_sim_user_objects"),
        ("test_gpu_graphs",),
        ("captures",),
    ),
    Promise(
        "A destroyed stream's handle is never touched",
        ("test_streams", "test_lifetime", "test_states"),
        ("test_gpu_lifetimes",),
        ("threads", "states"),
    ),
    Promise(
        "Leak rather than dangle: after failed calls, at exit, after a fork; counted, warned of once",
        ("test_faults", "test_exit", "test_fork", "test_workers"),
        ("test_gpu_exits",),
        (),
    ),
    Promise(
        "close() never hangs; a slow driver call holds up nobody who does not need it",
        ("test_buffer", "test_control", "test_slow_driver"),
        ("test_gpu_lifetimes",),
        ("threads",),
    ),
    Promise(
        "A failed or interrupted wrap or export leaves nothing behind; context and capture mode are as they were",
        ("test_faults", "test_interrupts", "test_native_memory", "test_driver", "test_bad_input"),
        ("test_gpu_memory",),
        ("fuzz",),
    ),
    Promise(
        "What is exported is what NumPy says the array is",
        ("test_layout", "test_layout_random", "test_cpu_views", "test_consumers"),
        ("test_gpu_imports", "test_gpu_host_views"),
        ("fuzz",),
    ),
    Promise(
        "Memory stays flat, and nothing is left registered or lent",
        ("test_soak_memory",),
        ("test_gpu_memory",),
        ("memory",),
    ),
    Promise(
        "Without any one of the safeguards a test fails",
        (),
        (),
        ("mutations",),
    ),
]


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def latest_gpu_tests() -> tuple[Path, dict[str, Any]]:
    """Find the latest results of tests/gpu/run.py."""
    path = max(RESULTS.glob("*/results.json"), key=lambda found: read(found)["date"])
    return path, read(path)


def long_runs() -> dict[str, dict[str, dict[str, Any]]]:
    """Read the long runs: by where they ran, by name."""
    found: dict[str, dict[str, dict[str, Any]]] = {"simulator": {}, "gpu": {}}
    for path in sorted(LONG_RUNS.glob("*.json")):
        where, _, name = path.stem.partition("-")
        found[where][name] = read(path)
    return found


def count_tests(modules: tuple[str, ...], files: dict[str, dict[str, int]]) -> str:
    """Say how many tests of these modules passed, and what else became of some."""
    total = {outcome: sum(files.get(name, {}).get(outcome, 0) for name in modules) for outcome in OUTCOMES}
    others = [f"{number} {outcome}" for outcome, number in total.items() if number and outcome != "passed"]
    return ", ".join([f"{total['passed']:,} tests passed", *others])


OUTCOMES = ("passed", "failed", "error", "skipped")


def count_gpu_files(results: dict[str, Any]) -> dict[str, dict[str, int]]:
    files: dict[str, dict[str, int]] = {}
    for test in results["tests"]:
        counts = files.setdefault(test["id"].partition("::")[0], dict.fromkeys(OUTCOMES, 0))
        counts[test["outcome"]] += 1
    return files


def describe_runs(names: tuple[str, ...], runs: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{name}: {runs[name]['rounds']:,} rounds, {len(runs[name]['faults'])} faults" for name in names if name in runs
    ]


def render() -> str:
    """Give the page."""
    runs = long_runs()
    path, gpu = latest_gpu_tests()
    suite = runs["simulator"]["suite"]
    gpu_files = count_gpu_files(gpu)
    lines = [
        "# What was tested, how often, and what came of it",
        "",
        "Written by `python tests/soak/table.py` from the results in `conformance/results`; do not edit.",
        "",
        "| promise | on the simulated driver | on the GPU |",
        "|---|---|---|",
    ]
    for promise in PROMISES:
        simulated = [count_tests(promise.simulator, suite["figures"]["files"])] if promise.simulator else []
        real = [count_tests(promise.gpu, gpu_files)] if promise.gpu else []
        simulated += describe_runs(promise.long_runs, runs["simulator"])
        real += describe_runs(promise.long_runs, runs["gpu"])
        lines.append(f"| {promise.text} | {'; '.join(simulated) or '-'} | {'; '.join(real) or '-'} |")
    lines += [
        "",
        "A test may count for several promises. All tests without a GPU: "
        f"{count_tests(tuple(suite['figures']['files']), suite['figures']['files'])}, {machine_of(suite)}, "
        f"{suite['seconds']:.0f} s. All tests on the GPU: {count_tests(tuple(gpu_files), gpu_files)}, "
        f"{machine_of(gpu)} "
        f"(`{path.parent.relative_to(ROOT)}/results.md`).",
        "",
        "## Long runs",
        "",
        "`python tests/soak/<name>.py` does each again; `--help` tells how. The short forms are tests.",
        "",
        "| run | where | parameters | rounds | faults | seconds | figures |",
        "|---|---|---|---|---|---|---|",
    ]
    for results in runs.values():
        lines += [describe_run(name, result) for name, result in results.items() if name != "suite"]
    faults = [
        f"- {result['name']}: {fault}"
        for each in runs.values()
        for result in each.values()
        for fault in result["faults"]
    ]
    return "\n".join([*lines, *(["", "## Faults", "", *faults] if faults else [])]) + "\n"


def describe_run(name: str, result: dict[str, Any]) -> str:
    cells = (
        name,
        machine_of(result),
        flatten(result["parameters"]),
        f"{result['rounds']:,}",
        str(len(result["faults"])),
        f"{result['seconds']:,.0f}",
        flatten(result["figures"]),
    )
    return f"| {' | '.join(cells)} |"


def flatten(values: dict[str, Any]) -> str:
    """Write values in one line."""
    parts = []
    for name, value in values.items():
        if isinstance(value, dict):
            text = f"({flatten(value)})"
        elif isinstance(value, list):
            text = ", ".join(map(str, value))
        else:
            text = f"{value:,}" if isinstance(value, int | float) and name != "seed" else str(value)
        parts.append(f"{name.replace('_', ' ')} {text}")
    return "; ".join(parts).replace("|", "/") or "-"


def machine_of(result: dict[str, Any]) -> str:
    return f"{result['gpu']}, CPython {result['versions']['python']}, {result['date'][:10]}"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render())
