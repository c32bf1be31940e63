"""`python -m dlwrap`: what a user sees, run as a user runs it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import dlwrap
from dlwrap import _cli_stages, _demo, _info
from dlwrap.__main__ import main

NOT_INSTALLED = "import sys; sys.modules['rich'] = None; "
SIMULATED = "from dlwrap import testing; testing.activate(); "
RUN = "import sys; from dlwrap.__main__ import main; sys.exit(main({arguments}))"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def run_main(*arguments: str, first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return run(first + RUN.format(arguments=list(arguments)), **environment)


def timeline(output: str) -> list[str]:
    """The events of a demo's output, in the order of its lines."""
    known = [value for name, value in vars(_demo).items() if name.isupper() and isinstance(value, str)]
    lines = [line.strip().partition(" ")[2].strip() for line in output.splitlines()]
    return [what for line in lines for what in known if line.startswith(what)]


# info


def test_info_on_the_simulated_driver_shows_each_device_and_why():
    shown = run_main("info", first="from dlwrap import testing; testing.activate().configure(devices=2); ")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "simulated CUDA driver" in shown.stdout
    assert "Device 0" in shown.stdout
    assert "Device 1" in shown.stdout
    assert "PAGEABLE_MEMORY_ACCESS = 0: the memory is page-locked" in shown.stdout
    assert "13.0" in shown.stdout


def test_info_says_pageable_where_the_device_reads_ordinary_memory():
    shown = run_main("info", first="from dlwrap import testing; testing.activate().configure(pageable=True); ")
    assert "PAGEABLE_MEMORY_ACCESS = 1" in shown.stdout


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (dlwrap.CudaError(-1, "NO_DRIVER", "no libcuda", "cuInit"), "nvidia-smi has to list"),
        (dlwrap.CudaError(100, "CUDA_ERROR_NO_DEVICE", "none", "cuInit"), "CUDA_VISIBLE_DEVICES"),
        (dlwrap.CudaError(-1, "NO_BINDINGS", "no module", "import"), "pip install cuda-bindings"),
        (ValueError("range(0)"), "the CUDA driver has no device"),
    ],
)
def test_info_without_a_device_says_why_and_what_to_do(failure, told, monkeypatch, capsys):
    def fail(ordinal):
        raise failure

    monkeypatch.setattr(dlwrap, "support", fail)
    assert main(["info"]) == 0
    shown, errors = capsys.readouterr()
    assert errors == ""
    assert "No CUDA device" in shown
    assert told in shown
    assert "python -m dlwrap demo" in shown


def test_info_lists_versions_and_imports_no_consumer():
    check = (
        f"import sys; {SIMULATED}from dlwrap import _info; report = _info.collect(); print(sorted(report.versions))\n"
    )
    check += "assert not {'torch', 'jax', 'cupy', 'numba', 'tvm_ffi'} & set(sys.modules)"
    shown = run(check)
    assert shown.stderr == ""
    assert shown.stdout.strip() == "['Python', 'cuda-bindings', 'dlwrap', 'numpy']"


def test_a_distribution_that_is_not_installed_has_no_version():
    assert _info._version("a-distribution-that-nobody-has") is None


def test_output_that_is_no_terminal_has_no_escape_codes():
    assert "\x1b" not in run_main("info", first=SIMULATED).stdout


# demo


def test_demo_on_the_simulated_driver_tells_every_step_in_order():
    shown = run_main("demo", "--simulated")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "on the simulated CUDA driver: as asked for" in shown.stdout
    steps = [each for each in timeline(shown.stdout) if each != _demo.LINGERED]
    assert steps == [
        _demo.MADE,
        _demo.WRAPPED,
        _demo.EXPORTED,
        _demo.LAUNCHED,
        _demo.DROPPED,
        _demo.CONSUMER_GONE,
        _demo.STILL_BUSY,
        _demo.DONE,
        _demo.UNREGISTERED,
        _demo.FREED,
    ]


def test_demo_without_cuda_core_holds_a_capsule():
    shown = run_main("demo", "--simulated", first="import sys; sys.modules['cuda.core'] = None; ")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "a bare DLPack capsule" in shown.stdout


def test_demo_says_why_it_is_simulated():
    gone = "from dlwrap import _cli_stages; _cli_stages.find_gpu = lambda: (None, 'no NVIDIA driver'); "
    shown = run_main("demo", first=gone)
    assert shown.returncode == 0
    assert "this machine has no GPU (no NVIDIA driver)" in shown.stdout


def test_demo_says_that_no_consumer_can_use_the_gpu():
    unusable = (
        "from dlwrap import _cli_stages\n"
        "_cli_stages.find_gpu = lambda: ('Test GPU', '')\n"
        "_cli_stages.importlib.util.find_spec = lambda name: None\n"
    )
    broken = "_cli_stages.SimulatedStage = lambda reason: (_ for _ in ()).throw(RuntimeError('loaded'))\n"
    shown = run_main("demo", first=unusable + broken)
    assert shown.returncode == 2
    assert "torch is not installed; cupy is not installed" in shown.stderr
    assert "demo --simulated" in shown.stderr


@pytest.mark.parametrize(
    ("answer", "status", "expected"),
    [
        ("yes NVIDIA H200\n", 0, ("NVIDIA H200", "")),
        ("no NO_DRIVER\n", 0, (None, "no NVIDIA driver")),
        ("no CUDA_ERROR_UNKNOWN\n", 0, (None, "CUDA_ERROR_UNKNOWN")),
        ("", -6, (None, "asking the driver ended with exit status -6")),
    ],
)
def test_a_process_of_its_own_says_whether_there_is_a_gpu(answer, status, expected, monkeypatch):
    ended = subprocess.CompletedProcess([], status, answer, "")
    monkeypatch.setattr(_cli_stages.subprocess, "run", lambda *args, **options: ended)
    assert _cli_stages.find_gpu() == expected


def test_either_a_gpu_is_found_or_a_reason():
    gpu, why_not = _cli_stages.find_gpu()
    assert (gpu is None) == bool(why_not)


def test_demo_tries_the_next_consumer_when_one_cannot_use_the_gpu(monkeypatch):
    no_cuda = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", no_cuda)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(_cli_stages.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(_cli_stages, "find_gpu", lambda: ("Test GPU", ""))
    monkeypatch.setattr(_cli_stages, "SimulatedStage", lambda reason: reason)
    reason = _cli_stages.choose(simulated=False)
    assert reason.startswith(
        "nothing here can use the Test GPU: torch cannot use it: torch.cuda.is_available() is False"
    )
    assert "cupy cannot use it" in reason


def test_demo_leaves_pageable_memory_unregistered():
    shown = run_main(
        "demo", "--simulated", first="from dlwrap import testing; testing.activate().configure(pageable=True); "
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert _demo.UNREGISTERED not in timeline(shown.stdout)


def test_demo_fails_when_the_array_is_freed_before_the_gpu_is_done():
    wrap_a_copy = "import dlwrap; wrap = dlwrap.wrap; dlwrap.wrap = lambda array: wrap(array.copy()); "
    shown = run_main("demo", "--simulated", first=wrap_a_copy)
    assert shown.returncode == 1
    assert "WHILE THE GPU WAS BUSY" in shown.stdout
    assert "VIOLATED: never seen: GPU done" in shown.stdout


def test_demo_fails_when_the_array_is_never_freed():
    keep = "import dlwrap; from dlwrap import _demo; _demo._PATIENCE_SECONDS = 1; wrap, kept = dlwrap.wrap, []\n"
    keep += "def wrap_and_keep(array):\n    kept.append(array)\n    return wrap(array)\ndlwrap.wrap = wrap_and_keep\n"
    shown = run_main("demo", "--simulated", first=keep)
    assert shown.returncode == 1
    assert "VIOLATED: never seen: array freed" in shown.stdout


@pytest.mark.gpu
@pytest.mark.parametrize(("consumer", "other"), [("torch", "cupy"), ("cupy", "torch")])
def test_demo_on_a_gpu_tells_every_step_in_order(consumer, other):
    pytest.importorskip(consumer)
    only = "from dlwrap import _cli_stages as stages; known = stages.importlib.util.find_spec\n"
    only += f"stages.importlib.util.find_spec = lambda name: None if name == {other!r} else known(name)\n"
    shown = run_main("demo", first=only)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "on the GPU" in shown.stdout
    assert f"consumer: {consumer}" in shown.stdout.lower()
    assert timeline(shown.stdout)[-1] == _demo.FREED


@pytest.mark.parametrize(
    ("seen", "complaints"),
    [
        (["a", "b", "c"], ()),
        (["a", "c", "b"], ("too early: c, before: b",)),
        (["c", "a"], ("too early: c, before: a", "never seen: b")),
    ],
)
def test_the_order_of_events_is_checked(seen, complaints):
    assert _demo.check_order(seen, ["a", "b", "c"]) == complaints


@pytest.mark.parametrize(("total", "wrong"), [(2.0 * (1 << 22), False), (1.0, True)])
def test_the_result_is_checked(total, wrong):
    assert bool(_cli_stages._check_sum(total)) is wrong


# the command line itself


def test_without_rich_it_says_what_to_install():
    shown = run_main("info", first=NOT_INSTALLED)
    assert shown.returncode == 2
    assert "pip install 'dlwrap[cli]'" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_importing_dlwrap_imports_no_rich():
    assert run("import sys, dlwrap; sys.exit('rich' in sys.modules)").returncode == 0


def test_a_command_is_required(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "COMMAND" in capsys.readouterr().err


def test_python_m_dlwrap_runs_it():
    shown = subprocess.run(
        [sys.executable, "-m", "dlwrap", "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert shown.returncode == 0
    assert "demo" in shown.stdout
