"""The examples run without a GPU, or say why not, and print what was written down."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from run_examples import EXAMPLES, PATHS, SKIPPED, run_example

on_each = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@on_each
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU: see tests/gpu/test_gpu_examples.py")
def test_an_example_prints_what_was_written_down(path):
    found = run_example(path)
    if found.status == SKIPPED:
        assert found.reason.startswith("needs "), found.printed
        pytest.skip(found.reason)
    assert found.status == 0, f"{found.printed}\n{found.errors}"
    assert found.printed == (EXAMPLES / "output" / f"{path.stem}.txt").read_text()


@on_each
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) < 60


@on_each
def test_an_example_says_what_it_shows_and_what_it_needs(path):
    assert "needs" in ast.get_docstring(ast.parse(path.read_text()))


@on_each
def test_an_example_is_listed(path):
    assert f"| `{path.name}` |" in (EXAMPLES / "README.md").read_text()


def test_no_output_is_left_of_an_example_that_is_gone():
    written = {path.stem for path in EXAMPLES.glob("output*/*.txt")}
    assert written <= {path.stem for path in PATHS}
