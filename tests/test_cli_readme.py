"""The README's code: what needs no GPU runs here, and all of it is Python."""

import re
from pathlib import Path

import pytest

import dlwrap

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_each_python_block_compiles(block):
    compile(block, str(README), "exec")


def test_the_test_in_the_readme_passes(simulated_cuda):
    namespace: dict[str, object] = {}
    (block,) = [block for block in BLOCKS if "simulated_cuda" in block]
    exec(compile(block, str(README), "exec"), namespace)
    namespace["test_an_array_outlives_the_work_on_it"](simulated_cuda)


@pytest.mark.gpu
def test_the_first_example_runs_on_a_gpu(capsys):
    pytest.importorskip("torch")
    exec(compile(BLOCKS[0], str(README), "exec"), {})
    assert capsys.readouterr().out == "[2. 2. 2.]\n"


def test_the_api_table_names_everything_public():
    table = README.read_text(encoding="utf-8").partition("## API")[2]
    assert [name for name in dlwrap.__all__ if name != "__version__" and f"`{name}" not in table] == []
    members = [name for name in vars(dlwrap.HostWrappedBuffer) if not name.startswith("_")]
    assert [name for name in members if f"`.{name}" not in table] == []
