"""The tests of other projects can be run on what dlwrap exports, can fail, and docs/peers.md says what came of them."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import dlwrap

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from conformance.peers import run, table  # noqa: E402
from conformance.peers.catalog import PEERS, Known, Peer, find, matches  # noqa: E402
from conformance.peers.exports import DeviceArray, HostArray, Tally  # noqa: E402
from conformance.peers.namespace_of import Namespace  # noqa: E402

COMMITTED = table.latest()

needs_numpy_tests = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0" or find_spec("numpy._core.tests.test_dlpack") is None,
    reason="NumPy came without its tests, or is older than 2.1 and has them elsewhere",
)


# ---- what is committed ----


def test_the_page_is_the_one_that_the_committed_results_give():
    assert table.PAGE.read_text() == table.render(COMMITTED), "run: python -m conformance.peers.table"


@pytest.mark.parametrize("result", [pytest.param(each, id=each["peer"]) for each in COMMITTED])
def test_a_committed_result_has_no_surprise(result):
    assert run.surprises(result) == []


@pytest.mark.parametrize("peer", [pytest.param(peer, id=peer.name) for peer in PEERS])
def test_a_peer_was_run_or_is_listed_as_not_run(peer):
    text = table.render(COMMITTED)
    was_run = peer.name in {result["peer"] for result in COMMITTED}
    assert f"| {peer.name} | {peer.view} | " in text
    assert (f"- {peer.name}: " in text) is not was_run


def test_only_what_needs_a_gpu_was_not_run():
    assert {peer.name for peer in PEERS if not peer.needs_gpu} <= {result["peer"] for result in COMMITTED}


# ---- a run ----


@needs_numpy_tests
@pytest.mark.timeout(240)
def test_numpys_own_tests_give_what_the_catalog_expects(tmp_path):
    assert run.main(["--only", "numpy", "--out", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*-numpy.json"))) == 1


BROKEN = """
import numpy as np
from conformance.peers import exports

working = exports.export_to_host
exports.export_to_host = lambda array, request: working(np.zeros_like(array), request)
"""


@needs_numpy_tests
@pytest.mark.timeout(240)
def test_a_producer_that_hands_over_wrong_values_fails_numpys_tests(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_exports.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p broken_exports")
    assert run.main(["--only", "numpy", "--out", str(tmp_path)]) == 1
    assert "test_non_contiguous failed: AssertionError" in capsys.readouterr().out


def test_without_sources_a_run_says_what_it_needs(capsys):
    peer = find("array-api-tests")
    assert run.main(["--only", peer.name]) == 1
    assert "needs the sources of data-apis/array-api-tests" in capsys.readouterr().out


def test_what_needs_a_gpu_is_not_run_without():
    with pytest.raises(run.CannotRunError, match="needs a GPU"):
        run.run(find("cupy"), None)


# ---- judging ----

SOME = Peer(
    name="some",
    title="Some",
    package="numpy",
    tests=(),
    adapter="host_arrays",
    view="CPU view",
    how="",
    failures=(Known("*::test_known[*]", "boom*", "it is known"),),
)


@pytest.mark.parametrize(
    ("name", "test", "alone", "outcome", "reason"),
    [
        ("t::test_a", {"outcome": "passed", "exports": 2}, "passed", "passed", None),
        ("t::test_a", {"outcome": "passed", "exports": 0}, "passed", "untouched", None),
        ("t::test_known[1]", {"outcome": "failed", "message": "boom: 3"}, "passed", "failed", "it is known"),
        ("t::test_known[1]", {"outcome": "failed", "message": "other"}, "passed", "failed", run.UNEXPLAINED),
        ("t::test_a", {"outcome": "failed", "message": "boom"}, "passed", "failed", run.UNEXPLAINED),
        ("t::test_a", {"outcome": "failed", "message": "boom"}, "failed", "failed", "Fails without dlwrap too"),
        ("t::test_a", {"outcome": "deselected", "reason": "no"}, "deselected", "deselected", "no"),
    ],
)
def test_an_outcome_is_judged_by_what_reached_dlwrap_and_what_is_known(name, test, alone, outcome, reason):
    judged = run._judge(SOME, name, test, {"outcome": alone})
    assert (judged["outcome"], judged.get("reason"), judged["alone"]) == (outcome, reason, alone)


def test_a_pass_in_spite_of_a_known_failure_is_a_surprise(monkeypatch):
    monkeypatch.setattr(run, "find", lambda _name: SOME)
    result = {"peer": "some", "counts": {"passed": 1}, "leaked": 0, "pending": 0}
    result["tests"] = {"t::test_known[1]": {"outcome": "passed"}}
    assert run.surprises(result) == ["t::test_known[1] passed, though the catalog says that it fails: it is known"]


def test_a_leak_and_a_run_that_reached_nothing_are_surprises(monkeypatch):
    monkeypatch.setattr(run, "find", lambda _name: SOME)
    result = {"peer": "some", "counts": {"passed": 0}, "leaked": 1, "pending": 0, "tests": {}}
    assert run.surprises(result) == ["no test reached dlwrap and passed", "1 leaked, 0 pending at the end"]


def test_brackets_in_a_pattern_are_ordinary():
    assert matches("a::test[1]", "a::test[1]")
    assert not matches("a::test1", "a::test[1]")


# ---- the stand-ins ----


@pytest.fixture
def host_numpy():
    return Namespace("numpy", HostArray)


def test_what_the_namespace_makes_exports_by_dlwrap(cuda, host_numpy):
    before = Tally.count
    array = host_numpy.arange(12).reshape(3, 4)[:, ::2]
    assert np.array_equal(np.from_dlpack(array), np.arange(12).reshape(3, 4)[:, ::2])
    assert Tally.count == before + 1
    assert np.from_dlpack(array).ctypes.data == array.ctypes.data


def test_the_namespace_is_numpys_in_all_else(host_numpy):
    assert host_numpy.float32 is np.float32
    assert host_numpy.ndarray is HostArray
    assert type(host_numpy.from_dlpack(np.arange(3))) is np.ndarray
    assert host_numpy.arange(3).flags.owndata
    assert not host_numpy.frombuffer(b"abc", np.uint8).flags.writeable


def test_a_device_array_is_on_the_cuda_device(cuda):
    cuda.configure(pointer_offset=2**20)
    array = np.arange(6).view(DeviceArray)
    assert array.__dlpack_device__() == (2, 0)
    assert array[2:].device_pointer == array.ctypes.data + 2 * array.itemsize + 2**20
    assert array.__cuda_array_interface__["data"] == (array.device_pointer, False)
    assert 'capsule object "dltensor_versioned"' in repr(array.__dlpack__(stream=1, max_version=(1, 0)))
    dlwrap.reclaim(10)
