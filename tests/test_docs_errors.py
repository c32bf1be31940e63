"""The page of errors: what it quotes is in the source, and what the source raises is on the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dlwrap

PACKAGE = Path(dlwrap.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
GAP = "…"
C_RAISES = re.compile(r"PyErr_(?:SetString|Format)\(\s*\w+,\s*((?:\"(?:[^\"\\]|\\.)*\"\s*)+)")

# Raised where no user can cause or see it.
INTERNAL = {
    "torch.cuda.is_available() is False": "the demo goes on to the next framework",
    "the address on device … is not known yet": "the native part asks the driver then",
    "unregister takes a tuple of at most 64 addresses": "called by dlwrap alone, as those below",
    "a number is out of range": "",
    "dtype must be (code, bits, lanes)": "",
    "shape and strides must have the same length": "",
    "lend takes a type of exporters, a layout, loan, device pointer, readonly, context, pageable": "",
    "needs an Exporter": "",
    "needs a Loan": "",
    "needs a type": "",
    "device must be an ordinal": "",
    "needs Registrations": "",
    "needs a Registration": "",
    "this loan uses a range already": "",
    "only a new range, and not an empty one, can be put in": "",
    "wrap takes an array and five options": "",
}


def quotes() -> list[str]:
    """List what the page quotes: its headings in code, and the lines of its text blocks."""
    text = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^### `(.+)`$", text, re.MULTILINE)
    return headings + "\n".join(re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)).split("\n")


def text_of(node: ast.AST, constants: dict[str, str]) -> str | None:
    """Give a string of the source, with a gap for each value in it that is no constant of its module."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value
            if isinstance(part, ast.Constant)
            else constants.get(part.value.id, GAP)
            if isinstance(part.value, ast.Name)
            else GAP
            for part in node.values
        )
    return None


def strings(node: ast.AST, constants: dict[str, str]) -> Iterator[str]:
    """List the strings in a piece of source, those inside f-strings not apart."""
    text = text_of(node, constants)
    if text is not None:
        yield text
        return
    for child in ast.iter_child_nodes(node):
        yield from strings(child, constants)


def constants_of(tree: ast.Module) -> dict[str, str]:
    """Find the strings that are named by a module."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = text_of(node.value, found)
            if text is not None:
                found[node.targets[0].id] = text
    return found


@cache
def modules() -> list[tuple[str, ast.Module]]:
    return [(path.name, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(PACKAGE.rglob("*.py"))]


def from_c() -> list[str]:
    found = []
    for path in sorted(PACKAGE.glob("*.c")):
        for literals in C_RAISES.findall(path.read_text(encoding="utf-8")):
            text = "".join(re.findall(r"\"((?:[^\"\\]|\\.)*)\"", literals))
            found.append(re.sub(r"%\w", GAP, text))
    return found


@cache
def all_texts() -> set[str]:
    return {text for _, tree in modules() for text in strings(tree, constants_of(tree))} | set(from_c())


@cache
def patterns() -> list[re.Pattern[str]]:
    texts = [text for text in quotes() if is_message(text)] + list(INTERNAL)
    return [re.compile(".*".join(map(re.escape, text.split(GAP)))) for text in texts]


def is_message(text: str) -> bool:
    return " " in text.replace(GAP, "") and len(text) > 12


def raised() -> dict[str, list[str]]:
    """Find the messages that each ``raise`` may have: its own, or those of the function of its module that makes it."""
    found = {}
    for name, tree in modules():
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        constants = constants_of(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and node.exc is not None:
                texts = [text for text in messages_of(node.exc, functions, constants, 2) if is_message(text)]
                if texts:
                    found[f"{name}: {ast.unparse(node)[:80]}"] = texts
    return found | {f"C: {text}": [text] for text in from_c()}


def messages_of(
    node: ast.AST, functions: dict[str, ast.FunctionDef], constants: dict[str, str], depth: int
) -> Iterator[str]:
    yield from strings(node, constants)
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in functions and depth:
            body = functions[call.func.id].body
            described = ast.get_docstring(functions[call.func.id]) is not None
            for statement in body[1:] if described else body:
                yield from messages_of(statement, functions, constants, depth - 1)


@pytest.mark.parametrize("quote", quotes())
def test_what_the_page_quotes_is_in_the_source(quote):
    # A gap on the page may stand for several values and the words between them.
    pattern = re.compile(".+".join(map(re.escape, quote.split(GAP))))
    assert any(pattern.search(text) for text in all_texts())


@pytest.mark.parametrize(("where", "texts"), [pytest.param(*each, id=each[0]) for each in sorted(raised().items())])
def test_what_the_source_raises_is_on_the_page(where, texts):
    assert any(pattern.search(text) for pattern in patterns() for text in texts), (
        f"docs/errors.md tells of none: {texts}"
    )


@pytest.mark.parametrize("text", INTERNAL)
def test_what_is_left_out_as_internal_is_still_there(text):
    assert text in all_texts()


def test_no_message_is_quoted_twice():
    headings = re.findall(r"^### `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(set(headings)) == sorted(headings)
