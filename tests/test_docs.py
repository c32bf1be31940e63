"""The documentation's code: it runs, page by page, prints what the pages say, and names commands that there are."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex

import pytest

import dlwrap
import dlwrap.testing
from dlwrap import __main__ as command_line
from docs_blocks import DOCS, ROOT, blocks_of, name_of, pages, run_page

PAGES = pages()
WITH_PYTHON = [page for page in PAGES if blocks_of(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_a_page_runs_on_the_simulated_driver(page, tmp_path):
    came = run_page(page, "simulated", tmp_path)
    if not came["ran"]:
        pytest.skip("; ".join(came["left_out"]))


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_each_python_block_compiles(page):
    for block in blocks_of(page, "python"):
        compile("\n" * (block.line - 1) + block.code, str(page), "exec")


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_what_takes_the_simulated_driver_says_so(page):
    for block in blocks_of(page, "python"):
        takes_it = re.search(r"^(\w+ = )?dlwrap\.testing\.activate\(\)|\(simulated_cuda\)", block.code, re.MULTILINE)
        assert takes_it is None or "simulator" in block.needs, f"{page.name}, line {block.line}: on a GPU it would fail"


def commands() -> list[object]:
    found = []
    for page in [*PAGES, ROOT / "README.md"]:
        for block in blocks_of(page, "sh"):
            for number, line in enumerate(block.code.splitlines()):
                words = shlex.split(line, comments=True)
                if words:
                    found.append(pytest.param(page, words, id=f"{page.stem}:{block.line + number}"))
    return found


@pytest.mark.parametrize(("page", "words"), commands())
def test_a_command_that_a_page_shows_exists(page, words):
    match words:
        case [program, "-m", "dlwrap", *arguments] if program.endswith("python"):
            command_line._parser().parse_args(arguments)
        case [program, "-m", "venv" | "pip" | "pytest" | "http.server", *_] if program.endswith(("python", "python3")):
            pass
        case [program, "-m", module, *_] if program.endswith("python"):
            assert importlib.util.find_spec(module.partition(".")[0]) is not None
        case [program, script, *_] if program.endswith("python") and script.endswith(".py"):
            saved = f"Save this as `{script}`" in page.read_text(encoding="utf-8")
            assert saved or (ROOT / script).exists()
        case ["./run", command, *_]:
            assert re.search(rf"^    {command}\)", (ROOT / "run").read_text(), re.MULTILINE)
        case [program, *_]:
            assert program in KNOWN, f"{page.name} shows a command that no test knows: {words}"


# Programs of others, which are not started here.
KNOWN = {".", "cat", "cd", "git", "pip", "pytest", "nvidia-smi", "ulimit", "ls"}


@pytest.mark.parametrize(
    "name",
    [f"dlwrap.{name}" for name in dlwrap.__all__] + [f"dlwrap.testing.{name}" for name in dlwrap.testing.__all__],
)
def test_the_reference_describes_all_that_is_public(name):
    reference = (DOCS / "api.md").read_text(encoding="utf-8")
    assert re.search(rf"^\.\. auto\w+:: {re.escape(name)}$", reference, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Page\n\n```python\nprint(1 + 1)  # 3\n```\n", r"page.md, line 4: '2', not '3'"),
        ("```python\ndef never():\n    print(1)  # 1\n```\n", r"never printed: \['line 3: # 1'\]"),
        (
            "```python\nimport sys, numpy, dlwrap\nsys.kept = dlwrap.wrap(numpy.ones(3))\n```\n",
            r"page\.md leaves Stats",
        ),
    ],
    ids=["printed otherwise", "never printed", "left behind"],
)
def test_the_runner_reports_what_a_page_gets_wrong(tmp_path, text, message):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=message):
        run_page(page, "simulated", tmp_path)


def test_the_runner_leaves_out_what_needs_something_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- needs: gpu no_such_package -->\n```python\n1 / 0\n```\n")
    assert run_page(page, "simulated", tmp_path) == {"ran": 0, "left_out": ["line 3 needs gpu no_such_package"]}


def test_the_runner_runs_tests_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\ndef test_it(simulated_cuda):\n    assert simulated_cuda.pending() == 1\n```\n")
    with pytest.raises(AssertionError, match="pending"):
        run_page(page, "simulated", tmp_path)


FIGURE = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?![\w.,]*\d)")
NOT_FIGURES = re.compile(r"```.*?```|`[^`]*`|\([^)]*\.md[^)]*\)", re.DOTALL)


def test_the_performance_guide_quotes_committed_figures_only():
    guide = NOT_FIGURES.sub("", (DOCS / "performance-guide.md").read_text(encoding="utf-8"))
    committed = set(FIGURE.findall((DOCS / "performance.md").read_text(encoding="utf-8")))
    assert [figure for figure in FIGURE.findall(guide) if figure not in committed] == []


def test_the_timeline_is_drawn_from_what_the_demo_saw_on_the_gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    timeline = importlib.import_module("timeline")
    for theme, colours in timeline.THEMES.items():
        drawn = timeline.draw(timeline.read(timeline.DEMO), colours)
        assert (timeline.PLOTS / f"lifetime-{theme}.svg").read_text() == drawn, "run: python docs/timeline.py"
