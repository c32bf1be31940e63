"""On a GPU: the doctor finds it well, the logger and the report tell of real tensors, and neither breaks a capture."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time

import numpy as np
import pytest
from _subject import Subject

import dlwrap

LOGGER = logging.getLogger("dlwrap")
LEGACY = "the legacy default stream"


class Recorder(logging.Handler):
    def __init__(self):
        super().__init__()
        self.told = []

    def emit(self, record):
        self.told.append(record.dlwrap | {"text": record.getMessage()})

    def find(self, event, nbytes):
        return [each for each in self.told if (each["event"], each["nbytes"]) == (event, nbytes)]


@pytest.fixture
def recorder(nothing_left):
    added = Recorder()
    LOGGER.addHandler(added)
    LOGGER.setLevel(logging.DEBUG)
    yield added
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.removeHandler(added)


@pytest.fixture
def tracing(nothing_left):
    dlwrap.start_tracing()
    yield
    dlwrap.stop_tracing()


def run_doctor(*arguments):
    # Not `-W error`: cuda.bindings may warn at import, which is none of our business.
    command = [sys.executable, "-m", "dlwrap", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_doctor_finds_the_gpu_well(fact):
    shown = run_doctor()
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "dlwrap works here." in shown.stdout
    fact(shown.stdout)


def test_the_doctors_json_has_a_self_test_of_each_device():
    shown = run_doctor("--json")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    read = json.loads(shown.stdout)
    assert read["ok"] is True
    assert read["facts"]["simulated"] is False
    assert read["facts"]["kernel_driver"]
    assert read["facts"]["open_modules"] in {True, False}
    assert len(read["facts"]["devices"]) >= 1
    for device in read["facts"]["devices"]:
        test = device["test"]
        assert test["failure"] is None
        assert min(test["read_gbs"], test["write_gbs"], test["pageable_copy_gbs"]) > 0.1
        assert (test["page_lock_gbs"] is None) == (test["memory"] == "pageable")


def test_the_logger_tells_of_a_torch_import_and_its_release(torch, recorder):
    array = np.ones(12345, np.uint8)
    tensor = torch.from_dlpack(dlwrap.wrap(array))
    tensor.add_(1)
    del tensor
    dlwrap.reclaim(timeout=30)
    assert array[0] == 2
    assert len(recorder.find("wrap", 12345)) == 1
    exports = recorder.find("export", 12345)
    assert exports
    assert all("stream 0x1" in each["text"] for each in exports)
    # Records of dlwrap's own threads come through a thread that nobody waits for.
    wait_until(lambda: recorder.find("release", 12345))
    (released,) = recorder.find("release", 12345)
    assert released["seconds"] >= 0


def test_a_release_that_waited_for_a_kernel_says_how_long(latch, recorder):
    subject = Subject()
    buffer = dlwrap.wrap(subject.take())
    nbytes, pointer = buffer.nbytes, buffer.array.__array_interface__["data"][0]
    capsule = buffer.__dlpack__(stream=1, max_version=(1, 0))
    latch.launch(1, pointer, nbytes // 4)
    del buffer, capsule
    subject.assert_held_by(latch)  # that takes 0.2 s
    subject.assert_released_after(latch)
    wait_until(lambda: recorder.find("release", nbytes))
    assert recorder.find("release", nbytes)[0]["seconds"] > 0.15


def test_the_report_names_the_buffer_of_a_live_torch_tensor(torch, tracing):
    tensor = torch.from_dlpack(dlwrap.wrap(np.ones(1000, np.float32)))
    (held,) = [each for each in dlwrap.report() if each.state == "live"]
    assert (held.kind, held.nbytes, held.exports, held.device) == ("wrap", 4000, 1, 0)
    assert held.memory == dlwrap.support(0).memory
    assert held.address == tensor.data_ptr()  # host and device see it at one address here
    assert held.waits_for == (LEGACY,)
    assert held.traceback[-1].name == "test_the_report_names_the_buffer_of_a_live_torch_tensor"
    del tensor


def test_the_report_says_what_a_pending_release_waits_for(latch):
    subject = Subject()
    buffer = dlwrap.wrap(subject.take())
    pointer, count = buffer.array.__array_interface__["data"][0], buffer.array.size
    capsule = buffer.__dlpack__(stream=1, max_version=(1, 0))
    latch.launch(1, pointer, count)
    del buffer, capsule
    subject.assert_held_by(latch)
    (held,) = [each for each in dlwrap.report() if each.state == "pending"]
    assert held.waits_for == (LEGACY,)
    subject.assert_released_after(latch)


def test_while_somebody_listens_no_capture_is_broken(torch, recorder, tracing):
    array = np.ones(1000, np.float32)
    result = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(torch.from_dlpack(dlwrap.wrap(array)), 2, out=result)
    graph.replay()
    torch.cuda.synchronize()
    assert float(result.sum()) == 2000
    (held,) = [each for each in dlwrap.report() if each.state == "live"]
    assert (held.graphs, held.exports) == (1, 0)
    del graph


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1e-3)
