"""The newcomer's path that is timed is the one that README and recipe tell, no step missing."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from benchmarks import newcomer  # noqa: E402

RESULTS = sorted((ROOT / "benchmarks" / "results" / "newcomer").glob("*.json"))


def test_the_first_command_is_the_readme_s():
    command = newcomer.first_command().code
    assert command.split("#")[0].strip() == "./run demo"
    assert command in newcomer.README.read_text()


@pytest.mark.parametrize("gpu", [False, True])
def test_every_block_of_the_recipe_is_a_step_and_only_torch_is_skipped_without_a_gpu(gpu):
    steps = newcomer.recipe_steps(gpu=gpu)
    text = newcomer.RECIPE.read_text()
    assert len(steps) == text.count("```sh\n") + text.count("```python\n")
    assert [step.code for step in steps if step.skipped] == [] if gpu else ["pip install torch\n"]
    assert "pip install .\n" in steps[0].code
    assert [step.file for step in steps if step.file] == ["mapped.py"]
    assert steps[-1].code == "python mapped.py\n"


@pytest.fixture
def shell():
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # its /tmp is another
    shell = newcomer.Shell(folder)
    yield shell
    shell.close()
    shutil.rmtree(folder)


def test_steps_share_a_bare_shell(monkeypatch, request):
    monkeypatch.setenv("OF_THIS_PROCESS", "it")
    shell = request.getfixturevalue("shell")
    saved = newcomer.Step("page", "text $HOME\n", file="saved.txt")
    shown = newcomer.Step("page", 'cat "$where"/saved.txt; echo "$OF_THIS_PROCESS."; cat; ls "$HOME"\n')
    for step in (newcomer.Step("page", "where=$PWD\n"), saved, shown):
        shell.do(step)
    assert shown.said == "text $HOME\n.\n"


def test_a_step_that_fails_is_told_with_what_it_said(shell):
    with pytest.raises(newcomer.LostError, match="no_such_command"):
        shell.do(newcomer.Step("page", "no_such_command\necho never\n"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_committed_walk_did_all_that_is_told_today(path):
    result = json.loads(path.read_text())
    told = [newcomer.first_command(), *newcomer.recipe_steps(gpu=result["gpu"])]
    assert [step["code"] for step in result["steps"][1:]] == [step.code for step in told]
