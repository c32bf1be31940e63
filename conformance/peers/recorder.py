"""A pytest plugin that runs one peer's tests under its adapter, and writes down what came of each.

python -m pytest -p conformance.peers.recorder --peer NAME --record FILE.json [--alone] [--gpu]
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dlwrap
import dlwrap.testing
from conformance.peers.catalog import find
from conformance.peers.exports import Tally

_SECONDS = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("peers")
    group.addoption("--peer", help="which peer of the catalog")
    group.addoption("--record", type=Path, help="where the outcomes are written")
    group.addoption("--alone", action="store_true", help="without the adapter: what the peer makes of its own tests")
    group.addoption("--gpu", action="store_true", help="on the real driver")


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.gpu:
        dlwrap.testing.activate()
    config.pluginmanager.register(_Recorder(config), "peers-recorder")


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._peer = find(config.option.peer)
        adapter = importlib.import_module(f"conformance.peers.adapters.{self._peer.adapter}")
        config.pluginmanager.register(adapter)  # for its fixtures
        self._adapter = ModuleType("none") if config.option.alone else adapter
        self._patches = pytest.MonkeyPatch()
        if hasattr(self._adapter, "patch"):
            self._adapter.patch(self._patches)
        self._tests: dict[str, dict[str, Any]] = {}

    # ---- importing ----

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """Let stand-ins take the place of modules while a file of tests is imported."""
        if not isinstance(collector, pytest.Module):
            return (yield)
        with self._stand_ins():
            report = yield
        if report.passed and hasattr(self._adapter, "after_importing"):
            self._adapter.after_importing(collector.obj)
        return report

    @contextlib.contextmanager
    def _stand_ins(self) -> Iterator[None]:
        for name in self._peer.imported_before:
            importlib.import_module(name)
        with pytest.MonkeyPatch.context() as patches:
            if hasattr(self._adapter, "while_importing"):
                for name, module in self._adapter.while_importing().items():
                    patches.setitem(sys.modules, name, module)
            yield

    # ---- running ----

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        gpu = config.option.gpu
        left_out = {item.nodeid: self._peer.why_left_out(name_of(item.nodeid), gpu=gpu) for item in items}
        for name, reason in left_out.items():
            if reason:
                self._tests[name_of(name)] = {"outcome": "deselected", "reason": reason}
        config.hook.pytest_deselected(items=[item for item in items if left_out[item.nodeid]])
        items[:] = [item for item in items if not left_out[item.nodeid]]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = Tally.count
        result = yield
        self._tests[name_of(item.nodeid)]["exports"] = Tally.count - before
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(name_of(report.nodeid), {"outcome": "passed"})
        if report.failed:
            test |= {"outcome": "failed", "message": _message_of(report)}
        elif report.skipped and test["outcome"] == "passed":
            test |= {"outcome": "skipped", "message": _skip_reason(report)}

    def pytest_sessionfinish(self) -> None:
        self._patches.undo()
        gc.collect()  # what dies after this is of the interpreter's end
        with contextlib.suppress(TimeoutError):
            dlwrap.reclaim(_SECONDS)
        result = {"tests": self._tests, "leaked": dlwrap.stats().leaked, "pending": dlwrap.stats().pending}
        self._config.option.record.write_text(json.dumps(result))


def name_of(nodeid: str) -> str:
    """Name a test without the folders that it lies in."""
    path, _, rest = nodeid.partition("::")
    return f"{os.path.basename(path)}::{rest}"


def _message_of(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return _first_line(crash.message if crash is not None else str(report.longrepr))


def _skip_reason(report: pytest.TestReport) -> str:
    return _first_line(report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr))


def _first_line(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return lines[0][:300]
