"""Whose functions run as the store's owner: callers name them, and the worker refuses others only when it is asked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from warmstart.store.client import OWNERS_ROOMS

HOOKS = Path(__file__).resolve().parents[2] / "hooks"
FUNCTION_AT = {"run": 1, "run_in": 1, "look": 1, "run_with": 2}  # the clients' calls: which argument is the function


def named(path: Path) -> Iterator[str]:
    """Yield the functions `MODULE:NAME` that a caller of a client names."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTION_AT:
            for function in node.args[FUNCTION_AT[node.func.attr] :][:1]:
                if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                    module = modules.get(function.value.id, "")
                    if (HOOKS / f"{module.replace('.', '/')}.py").is_file():
                        yield f"{module}:{function.attr}"


def is_a_wings_own(path: str, function: str) -> bool:
    """Return whether a wing names a function of its own `stored.py`."""
    return function.startswith(f"{path.rpartition('/')[0].replace('/', '.')}.stored:")


def test_callers_name_functions_of_the_owners_rooms() -> None:
    """Clients of other identities name theirs themselves."""
    callers = [path for path in HOOKS.rglob("*.py") if path.name != "client.py"]
    found = {(str(path.relative_to(HOOKS)), function) for path in callers for function in named(path)}
    others = {(path, function) for path, function in found if not function.startswith(OWNERS_ROOMS)}
    assert {item for item in others if not is_a_wings_own(*item)} == set()
    assert len(found) > 50
