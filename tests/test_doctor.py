"""`python -m dlwrap doctor` and `--json`: each finding from its facts, the self-test, and what a program reads."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import dlwrap
from dlwrap import _doctor, _driver, _findings
from dlwrap.__main__ import main
from dlwrap._findings import DeviceFacts, Facts, SelfTest, find
from test_cli import NOT_INSTALLED, SIMULATED, run_main

GIB = 2**30
SUPPORT = dlwrap.DeviceSupport(0, "Test GPU", "pinned", "", False, False, True, True, 13000)
READS_ALL = dataclasses.replace(SUPPORT, memory="pageable", pageable_memory_access=True)
TEST = SelfTest("pinned", 64 * 2**20, 20.0, 50.0, 50.0, 8.0)
DEVICE = DeviceFacts(READS_ALL, 0, TEST)
WELL = Facts((DEVICE,), kernel="6.8.0-40", kernel_driver="580.1", open_modules=True, bindings="13.3.1")


def facts(**changed):
    """Facts of a machine without a flaw, but for these."""
    device = {name: changed.pop(name) for name in ("support", "compute_mode", "test") if name in changed}
    whole = dataclasses.replace(WELL, devices=(dataclasses.replace(DEVICE, **device),)) if device else WELL
    return dataclasses.replace(whole, **changed)


def support(**changed):
    return dataclasses.replace(SUPPORT, **changed)


def slow(**changed):
    return dataclasses.replace(TEST, **changed)


FINDINGS = [
    ("no-driver", "error", {"obstacle": "no libcuda", "obstacle_name": "NO_DRIVER"}, "nvidia-smi"),
    ("no-bindings", "error", {"obstacle": "no module", "obstacle_name": "NO_BINDINGS"}, "pip install cuda-bindings"),
    ("no-device", "error", {"obstacle": "none", "obstacle_name": "CUDA_ERROR_NO_DEVICE"}, "CUDA_VISIBLE_DEVICES"),
    ("no-cuda", "error", {"obstacle": "odd", "obstacle_name": "CUDA_ERROR_UNKNOWN"}, "nvidia-smi"),
    ("simulated", "info", {"simulated": True}, "--simulated"),
    ("bindings-old", "error", {"bindings": "12.9.0"}, "cuda-bindings>=12.9.1"),
    ("bindings-new", "warning", {"bindings": "14.0.0"}, "<14"),
    ("fork", "info", {"start_method": "fork", "python": (3, 13)}, "spawn"),
    ("wsl", "warning", {"is_wsl": True}, ".wslconfig"),
    ("memory-low", "warning", {"memory_available": GIB - 1}, "limit"),
    ("memory-limit", "info", {"memory_limit": 4 * GIB}, "--memory"),
    ("driver-old", "error", {"support": support(driver_version=11080, pageable_memory_access=True)}, "525"),
    ("mode-prohibited", "error", {"compute_mode": 2}, "nvidia-smi -c DEFAULT"),
    ("mode-exclusive", "warning", {"compute_mode": 3}, "nvidia-smi -c DEFAULT"),
    ("no-memory-kind", "error", {"support": support(memory=None, host_register=False)}, "copy"),
    ("hmm-off", "info", {"support": SUPPORT}, "uvm_disable_hmm"),
    ("read-only-register", "warning", {"support": support(read_only_host_register=False)}, "mode 'c'"),
    ("file-mappings", "info", {"support": SUPPORT}, "mode 'c' or 'r'"),
    ("self-test-failed", "error", {"test": SelfTest("pinned", 1, failure="wrong bytes")}, "info"),
    ("memlock", "info", {"memlock": 8 * 2**20}, "ulimit -l"),
    ("slow-page-lock", "warning", {"test": slow(page_lock_gbs=3.9)}, "pin()"),
    ("slow-link", "warning", {"test": slow(read_gbs=5.9)}, "nvidia-smi -q"),
]


def test_a_machine_without_a_flaw_has_no_finding():
    assert find(WELL) == ()


@pytest.mark.parametrize(("name", "severity", "changed", "cure"), FINDINGS, ids=[each[0] for each in FINDINGS])
def test_each_finding_comes_of_its_facts_with_a_cure(name, severity, changed, cure):
    (found,) = [each for each in find(facts(**changed)) if each.id == name]
    assert found.severity == severity
    assert cure in found.cure
    assert found.text
    about_device = not changed.keys().isdisjoint({"support", "compute_mode", "test", "memlock"})
    assert found.device == (0 if about_device else None)


@pytest.mark.parametrize(
    ("changed", "absent"),
    [
        ({"bindings": "12.9.1"}, "bindings-old"),
        ({"bindings": "13.99"}, "bindings-new"),
        ({"start_method": "fork", "python": (3, 14)}, "fork"),
        ({"memory_available": GIB}, "memory-low"),
        ({"compute_mode": 0}, "mode-exclusive"),
        ({"memlock": 64 * 2**20}, "memlock"),
        ({"test": slow(page_lock_gbs=4.0)}, "slow-page-lock"),
        ({"test": slow(read_gbs=6.0)}, "slow-link"),
        ({"test": slow(read_gbs=0.1, page_lock_gbs=0.1), "simulated": True}, "slow-link"),
        ({"test": slow(memory="pageable", page_lock_gbs=None)}, "slow-page-lock"),
    ],
)
def test_at_the_limit_there_is_no_finding(changed, absent):
    assert absent not in {each.id for each in find(facts(**changed))}


@pytest.mark.parametrize(
    ("changed", "needs"),
    [
        ({"machine": "aarch64"}, "x86-64"),
        ({"open_modules": False}, "open kernel modules"),
        ({"open_modules": None}, "cannot tell"),
        ({"kernel": "6.1.23-generic"}, "Linux 6.1.24 or newer (this is 6.1.23-generic)"),
        ({"kernel": "5.15.0"}, "5.15.0"),
        ({"kernel_driver": "525.60.13"}, "driver 535 or newer"),
        ({"is_wsl": True}, "without WSL"),
    ],
)
def test_hmm_off_says_which_condition_does_not_hold(changed, needs):
    (found,) = [each for each in find(facts(support=SUPPORT, **changed)) if each.id == "hmm-off"]
    assert needs in found.cure


def test_a_self_test_without_memory_to_lock_names_the_limit():
    test = SelfTest("pinned", 1, failure="no more", failure_name="CUDA_ERROR_OUT_OF_MEMORY")
    (found,) = [each for each in find(facts(test=test, memlock=2**16)) if each.id == "self-test-failed"]
    assert "64.0 KiB" in found.cure


def test_the_worst_comes_first():
    found = find(facts(compute_mode=2, memory_available=1, memory_limit=1))
    assert [each.severity for each in found] == ["error", "warning", "info"]


def test_each_finding_that_there_is_has_a_row_in_the_table():
    source = Path(_findings.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'"([a-z]+(?:-[a-z]+)+|simulated|fork|wsl|memlock)", "?(?:error|warning|info)', source))
    names |= {name for name, _cure in _findings._NO_DEVICE.values()} | {"no-cuda"}
    assert names - {each[0] for each in FINDINGS} == set()
    assert len(names) > 20


# ---- the self-test ----


@pytest.mark.parametrize("pageable", [False, True])
def test_the_self_test_passes_and_leaves_nothing(pageable, cuda):
    cuda.configure(devices=2, pageable=pageable)
    diagnosis = _doctor.examine()
    assert diagnosis.is_well
    assert [each.test.failure for each in diagnosis.facts.devices] == [None, None]
    for each in diagnosis.facts.devices:
        assert (each.test.page_lock_gbs is None) == pageable
        assert each.test.read_gbs > 0
    assert cuda.registrations == []


def test_a_device_that_writes_nothing_fails_the_self_test(cuda, monkeypatch):
    monkeypatch.setattr(_driver, "copy", lambda target, source, nbytes: None)
    (device,) = _doctor.examine().facts.devices
    assert "what the device wrote" in device.test.failure


@pytest.mark.parametrize("function", ["cuMemHostRegister", "cuMemAlloc", "cuMemsetD8", "cuMemcpy"])
def test_a_device_that_refuses_a_call_fails_the_self_test_and_keeps_nothing(cuda, function):
    cuda.fail(function, 2)
    diagnosis = _doctor.examine()
    assert not diagnosis.is_well
    dlwrap.reclaim(20)
    assert cuda.registrations == []
    assert diagnosis.facts.devices[0].test.failure_name == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n", "580.159.04", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\n", "535.54.03", False),
        ("", None, None),
    ],
)
def test_the_driver_says_its_version_and_whether_it_is_open(text, version, is_open):
    assert (_doctor._kernel_driver(text), _doctor._has_open_modules(text)) == (version, is_open)


def test_the_memory_of_the_machine_is_read():
    assert _doctor._memory_available("MemTotal: 9 kB\nMemAvailable:   2 kB\n") == 2048
    assert _doctor._memory_available("") is None
    assert _doctor._chosen("always [madvise] never\n") == "madvise"
    assert (_doctor._limit(2**63 - 4096), _doctor._limit(-1), _doctor._limit(5)) == (None, None, 5)


# ---- as a user runs it ----


def test_doctor_on_the_simulated_driver_shows_figures_and_findings():
    shown = run_main("doctor", "--simulated")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "GB/s" in shown.stdout
    assert "info: hmm-off (device 0)" in shown.stdout
    assert "cure: " in shown.stdout
    assert "dlwrap works here." in shown.stdout


def test_doctor_without_a_device_fails(monkeypatch, capsys):
    def fail(ordinal):
        raise dlwrap.CudaError(-1, "NO_DRIVER", "no libcuda", "cuInit")

    monkeypatch.setattr(dlwrap, "support", fail)
    assert main(["doctor"]) == 1
    assert "error: no-driver" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (["info"], {"schema", "devices", "obstacle", "obstacle_name", "advice", "simulated", "versions", "consumers"}),
        (["demo", "--simulated"], {"schema", "ok", "where", "consumer", "events", "violations"}),
        (["doctor", "--simulated"], {"schema", "ok", "facts", "findings"}),
    ],
)
def test_json_is_one_object_with_the_documented_fields_and_needs_no_rich(arguments, fields):
    shown = run_main(*arguments, "--json", first=NOT_INSTALLED + SIMULATED)
    assert (shown.returncode, shown.stderr) == (0, "")
    read = json.loads(shown.stdout)
    assert read.keys() == fields
    assert read["schema"] == f"dlwrap.{arguments[0]}/1"
    assert read.get("ok", True) is True


def test_each_finding_in_json_has_id_severity_device_text_and_cure():
    read = json.loads(run_main("doctor", "--simulated", "--json").stdout)
    assert {tuple(each) for each in read["findings"]} == {("id", "severity", "device", "text", "cure")}
    assert read["facts"]["devices"][0]["test"]["read_gbs"] > 0
