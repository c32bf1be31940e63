"""The documentation's code on a GPU: every page, with the frameworks that are installed here, on the real driver."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from docs_blocks import blocks_of, name_of, pages, run_page

if TYPE_CHECKING:
    from collections.abc import Callable

WITH_PYTHON = [page for page in pages() if blocks_of(page, "python")]
README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_a_page_runs_on_the_gpu(page: Path, tmp_path: Path, fact: Callable[[str], None]) -> None:
    came = run_page(page, "real", tmp_path, timeout=240)
    fact(f"{name_of(page)}: {came['ran']} blocks ran; left out: {'; '.join(came['left_out']) or 'none'}")
    if not came["ran"]:
        pytest.skip("; ".join(came["left_out"]))


def test_the_graph_of_the_readme_owns_the_array(torch: Any) -> None:
    import gc

    import numpy as np

    import dlwrap

    text = README.read_text(encoding="utf-8")
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "torch.cuda.graph(g)" in each]
    a, result, g = np.full(1000, 21, np.float32), torch.empty(1000, device="cuda"), torch.cuda.CUDAGraph()
    exec(compile(block, str(README), "exec"), {"torch": torch, "dlwrap": dlwrap, "a": a, "result": result, "g": g})
    del a
    gc.collect()
    assert dlwrap.stats().graphs == 1
    g.replay()
    torch.cuda.synchronize()
    assert result[0].item() == 42
    g.reset()
    torch.cuda.synchronize()
