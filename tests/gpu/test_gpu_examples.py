"""The examples run on the GPU, and give what they give without one."""

from __future__ import annotations

import pytest

from run_examples import EXAMPLES, PATHS, SKIPPED, run_example


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_an_example_runs_on_the_gpu(path, fact):
    found = run_example(path)
    if found.status == SKIPPED:
        assert "GPU" not in found.reason, "there is one"
        pytest.skip(found.reason)
    assert found.status == 0, f"{found.printed}\n{found.errors}"
    if found.printed.startswith("no GPU"):
        pytest.skip("its framework has no CUDA")
    written = EXAMPLES / "output" / f"{path.stem}.txt"
    if written.exists() and written.read_text().partition("\n")[2] != found.printed:
        fact(f"{path.stem} prints something else than without a GPU: {found.printed!r}")
