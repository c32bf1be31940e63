"""The code of the documentation: finds the blocks of a page, and runs its Python in order, in one namespace.

python tests/docs_blocks.py PAGE {simulated,real}

A block whose needs are not met is left out: words on the line above its fence, as in ``<!-- needs: gpu torch -->``.
"gpu" is the real driver, "simulator" the simulated one, everything else a package. A comment behind a ``print(...)`` is
what it has to print, with "..." for what is not told. Functions named ``test_...`` get the fixture ``simulated_cuda``.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import inspect
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import time
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TIMEOUT = 90  # seconds, for what takes a few

_FENCE = re.compile(
    r"^(?:[ ]*<!-- needs:(?P<needs>[^>]*)-->\n)?(?P<indent>[ ]*)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One fenced block: the line of its first code line, its language, its code, and what it needs."""

    line: int
    language: str
    code: str
    needs: tuple[str, ...]


def pages() -> list[Path]:
    """List the pages of the documentation."""
    return sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)


def blocks_of(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            text[: found.start("code")].count("\n") + 1,
            found["language"],
            textwrap.dedent(found["code"]),
            tuple((found["needs"] or "").split()),
        )
        for found in _FENCE.finditer(text)
        if found["language"] == language
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


def run_page(page: Path, where: str, folder: Path, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Run a page in a program of its own, in an empty folder; give what ran and what was left out."""
    import dlwrap

    path = os.pathsep.join([str(Path(dlwrap.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, __file__, str(page), where],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])


class Page:
    """Runs the blocks of one page, and compares what they print with what the page says."""

    def __init__(self, path: Path, driver: Any) -> None:
        self.path = path
        self.ran = 0
        self.left_out: list[str] = []
        self._driver = driver
        self._namespace: dict[str, Any] = {"__name__": "__main__", "__expect__": self._expect}
        self._expected: dict[int, str] = {}

    def run(self) -> None:
        for block in blocks_of(self.path, "python"):
            unmet = [word for word in block.needs if not self._has(word)]
            if unmet:
                self.left_out.append(f"line {block.line} needs {' '.join(unmet)}")
            else:
                self._run_block(block)
                self.ran += 1
        never = [f"line {line}: # {text}" for line, text in self._expected.items()]
        assert not never, f"{self.path.name}: never printed: {never}"
        self._namespace.clear()

    def _has(self, word: str) -> bool:
        if word in ("gpu", "simulator"):
            return (word == "simulator") is (self._driver is not None)
        return importlib.util.find_spec(word) is not None

    def _run_block(self, block: Block) -> None:
        # Empty lines before it, so that errors name the lines of the page.
        source = "\n" * (block.line - 1) + block.code
        tree = ast.fix_missing_locations(_Prints(comments_of(source), self._expected).visit(ast.parse(source)))
        known = set(self._namespace)
        exec(compile(tree, str(self.path), "exec"), self._namespace)
        for name in set(self._namespace) - known:
            if name.startswith("test_") and inspect.isfunction(self._namespace[name]):
                self._run_test(self._namespace[name])

    def _run_test(self, function: Any) -> None:
        from dlwrap import testing

        with testing.simulated_cuda() as driver:
            function(driver)

    def _expect(self, line: int, expected: str) -> Any:
        def printed(*values: Any, **options: Any) -> None:
            out = io.StringIO()
            print(*values, **{**options, "file": out})
            found = " ".join(out.getvalue().split())
            pattern = ".*".join(map(re.escape, " ".join(expected.split()).split("...")))
            assert re.fullmatch(pattern, found), f"{self.path.name}, line {line}: {found!r}, not {expected!r}"
            self._expected.pop(line, None)

        return printed


class _Prints(ast.NodeTransformer):
    """Makes each ``print(...)`` with a comment behind it compare."""

    def __init__(self, comments: dict[int, str], expected: dict[int, str]) -> None:
        self._comments = comments
        self._expected = expected

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
            line = call.end_lineno or call.lineno
            if line in self._comments:
                text = self._expected[line] = self._comments[line]
                arguments: list[ast.expr] = [ast.Constant(line), ast.Constant(text)]
                expect = ast.Call(ast.Name("__expect__", ast.Load()), arguments, [])
                call.func = ast.copy_location(expect, call.func)
        return node


def comments_of(source: str) -> dict[int, str]:
    """Find the comments by line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def settle() -> Any:
    """Wait until nothing is held, since drivers and frameworks let go late, on threads of their own."""
    import dlwrap

    deadline = time.monotonic() + 3
    while True:
        gc.collect()
        dlwrap.reclaim(timeout=30)
        if not dlwrap.stats().live or time.monotonic() > deadline:
            return dlwrap.stats()
        time.sleep(0.01)


def main(path: str, where: str) -> int:
    import dlwrap
    import dlwrap.testing

    warnings.simplefilter("error", dlwrap.DLWrapWarning)
    driver = dlwrap.testing.activate() if where == "simulated" else None
    page = Page(Path(path), driver)
    page.run()
    left = settle()
    assert (left.live, left.exports, left.pending, left.leaked) == (0, 0, 0, 0), f"{page.path.name} leaves {left}"
    if driver is not None:
        driver.assert_clean()
    print(json.dumps({"ran": page.ran, "left_out": page.left_out}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
