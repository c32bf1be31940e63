"""The locks of dlwrap, found in its source, for tests that hold one or that look whether one is held."""

from __future__ import annotations

import ast
from pathlib import Path

import dlwrap

# How to get from the lifetime manager to the one object of each class.
_WAY_TO = {"LifetimeManager": "", "PinTable": "pins.", "Sweeper": "_sweeper."}
_OF_ONE_WAIT = "Completion"  # made for a call of close(), reclaim() or synchronize()
_COMMAND_LINE = {"__main__", "_demo", "_cli_render", "_cli_stages"}
_MAKERS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}


def _locks_in_the_source() -> list[tuple[str, str]]:
    """Give the class and the attribute of every lock."""
    found = []
    for path in Path(dlwrap.__file__).parent.glob("*.py"):
        if path.stem not in _COMMAND_LINE:
            classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
            found += [(node.name, name) for node in classes for name in _attributes_that_are_locks(node)]
    return sorted(found)


def _attributes_that_are_locks(node: ast.ClassDef) -> list[str]:
    return [
        target.attr
        for assignment in ast.walk(node)
        if isinstance(assignment, ast.Assign) and _makes_a_lock(assignment.value)
        for target in assignment.targets
        if isinstance(target, ast.Attribute)
    ]


def _makes_a_lock(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and getattr(value.func, "attr", None) in _MAKERS


# From the lifetime manager to each lock that lives as long as it does, by name. A class that is not known fails here.
LOCKS = {
    f"{owner}.{attribute}": f"{_WAY_TO[owner]}{attribute}"
    for owner, attribute in _locks_in_the_source()
    if owner != _OF_ONE_WAIT
}
