"""Run the benchmarks and write what they cost, with date, hardware and versions.

python benchmarks/run.py --out benchmarks/results/2026-01-31-h200.json
python benchmarks/run.py --out FILE.json --quick --only export cold_wrap

Uses the GPU if there is one, else the simulated driver, on which what needs a GPU is recorded as skipped. Each module
runs in a process of its own, and the file is written after each benchmark, so that what fails or hangs takes
nothing with it. Then: python benchmarks/page.py, python benchmarks/plots.py
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # in place of this folder
    sys.path.append(str(ROOT / "tests"))

# Found by the lines above.
from benchmarks._benchmark import Benchmark, Run  # noqa: E402
from benchmarks._device import has_gpu, open_device  # noqa: E402
from benchmarks._timing import SkipBenchmark  # noqa: E402

# Seconds that each may take, in the order in which they run: what decides first.
MODULES = {
    "cpu_exports": 30,
    "cpu_wraps": 60,
    "cpu_native": 60,
    "cpu_memory": 60,
    "cpu_manager": 120,
    "cpu_import": 60,
    "gpu_imports": 60,
    "gpu_copies": 90,
    "gpu_loop": 180,
    "cpu_registering": 90,
    "gpu_peers": 90,
    "cpu_scale": 400,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the benchmarks and write their figures as JSON.")
    parser.add_argument("--out", type=Path, required=True, help="file for the figures")
    parser.add_argument("--only", nargs="*", default=[], help="benchmarks or modules to run")
    parser.add_argument("--quick", action="store_true", help="try everything out; the figures are worth nothing")
    parser.add_argument("--merge", action="store_true", help="keep what else the file has, of the same machine")
    parser.add_argument("--driver", choices=("auto", "real", "simulated"), default="auto")
    parser.add_argument("--seconds", type=float, default=900, help="for the whole run; then the rest is left out")
    parser.add_argument("--module", choices=MODULES, help=argparse.SUPPRESS)  # the process of one module
    options = parser.parse_args()
    if options.module:
        return run_module(options.module, options)
    simulated = options.driver == "simulated" or (options.driver == "auto" and not has_gpu())
    return run_all(options, simulated=simulated)


# ---- the process that runs the others ----


def run_all(options: argparse.Namespace, *, simulated: bool) -> int:
    began = time.monotonic()
    results = {**describe_run(simulated=simulated), "quick": options.quick, "seconds": 0.0, "rows": {}, "curves": {}}
    if options.merge and options.out.exists():
        earlier = json.loads(options.out.read_text())
        if earlier["hardware"] != results["hardware"] or earlier["versions"] != results["versions"]:
            raise SystemExit(f"{options.out} is of another machine, or of other versions: give another file")
        results = {**results, **{key: earlier[key] for key in ("date", "seconds", "rows", "curves")}}
    earlier_seconds = results["seconds"]
    for module, longest in MODULES.items():
        chosen = choose(module, options.only)
        if chosen:
            left = options.seconds - (time.monotonic() - began)
            found = run_process(module, chosen, options, min(longest, left), simulated=simulated)
            results["rows"].update(found["rows"])
            results["curves"].update(found["curves"])
            results["seconds"] = round(earlier_seconds + time.monotonic() - began, 1)
            write(options.out, results)
    failed = [name for figures in (results["rows"], results["curves"]) for name in figures if "error" in figures[name]]
    print(f"{results['seconds']:.0f} s; failed: {', '.join(failed) or 'none'}; {options.out}", flush=True)
    return 1 if failed else 0


def run_process(
    module: str, chosen: list[Benchmark], options: argparse.Namespace, seconds: float, *, simulated: bool
) -> dict[str, Any]:
    """Run some benchmarks of a module; what the process did not come to is an error, or skipped for want of time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, __file__, "--module", module, "--out", str(out)]
        command += ["--driver", "simulated" if simulated else "real", "--only", *(each.name for each in chosen)]
        command += ["--quick"] * options.quick
        reason = {"skipped": "no time was left"}
        if seconds > 0:
            try:
                status = subprocess.run(command, timeout=seconds, check=False).returncode
                reason = {"error": f"the process ended with status {status}"}
            except subprocess.TimeoutExpired:
                slow = {"error": f"not done after {seconds:.0f} s"}
                reason = slow if seconds >= MODULES[module] else reason
        found = json.loads(out.read_text()) if out.exists() else {"rows": {}, "curves": {}}
    rows = [name for benchmark in chosen for name in benchmark.rows]
    curves = [name for benchmark in chosen for name in benchmark.curves]
    return {
        "rows": {**dict.fromkeys(rows, reason), **found["rows"]},
        "curves": {**dict.fromkeys(curves, reason), **found["curves"]},
    }


def choose(module: str, only: list[str]) -> list[Benchmark]:
    """Give the benchmarks of a module that are asked for."""
    benchmarks = benchmarks_of(module)
    if not only or module in only:
        return benchmarks
    return [each for each in benchmarks if not {each.name, *each.rows, *each.curves}.isdisjoint(only)]


def benchmarks_of(module: str) -> list[Benchmark]:
    return list(importlib.import_module(f"benchmarks.{module}").BENCHMARKS)


def describe_run(*, simulated: bool) -> dict[str, Any]:
    from machine import describe_machine  # noqa: PLC0415 -- a module of the tests

    open_device(simulated=simulated)
    machine = describe_machine()
    date, versions = machine.pop("date"), machine.pop("versions")
    return {"date": date, "hardware": {**machine, "processor": processor()}, "versions": versions}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write(path: Path, results: dict[str, Any]) -> None:
    """Write a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(results, indent=1) + "\n")
    unfinished.replace(path)


# ---- the process of one module ----


def run_module(module: str, options: argparse.Namespace) -> int:
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    run = Run(open_device(simulated=options.driver == "simulated"), options.quick)
    results: dict[str, dict[str, Any]] = {"rows": {}, "curves": {}}
    for benchmark in choose(module, options.only):
        began = time.monotonic()
        figures = measure(benchmark, run)
        for kind, names in (("rows", benchmark.rows), ("curves", benchmark.curves)):
            results[kind].update({name: figures[name] for name in names})
        write(options.out, results)
        first = figures[(benchmark.rows + benchmark.curves)[0]]
        outcome = first.get("error") or first.get("skipped") or summary(first)
        print(f"{time.strftime('%X')} {benchmark.name}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    return 0


def measure(benchmark: Benchmark, run: Run) -> dict[str, Any]:
    """Measure, or say why not, for each of its rows and curves."""
    names = benchmark.rows + benchmark.curves
    try:
        return benchmark(run)
    except SkipBenchmark as reason:
        return {name: {"skipped": str(reason)} for name in names}
    except Exception as error:  # noqa: BLE001 -- the others go on
        traceback.print_exc()
        return {name: {"error": f"{type(error).__name__}: {error}"} for name in names}


def summary(figures: dict[str, Any]) -> str:
    if "value" not in figures:
        return "a curve"
    text = f"{figures['value']:g} {figures['unit']}"
    return f"{text}, {figures['ratio']:g} x {figures['against']}" if "ratio" in figures else text


if __name__ == "__main__":
    sys.exit(main())
