"""Error classes: a code, whose fault it is, and what to do."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from inspect import getsource
from pkgutil import walk_packages
from string import Formatter

import pytest

import warmstart
from warmstart.errors import WarmstartError, by_code

KINDS = ("user", "node", "resource", "store", "policy")


@pytest.fixture(scope="module")
def classes() -> list[type[WarmstartError]]:
    """Return every error class with a code, of every module of the package."""
    for module in walk_packages(warmstart.__path__, "warmstart."):
        import_module(module.name)
    found: list[type[WarmstartError]] = []
    pending: list[type[WarmstartError]] = [WarmstartError]
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        if "code" in cls.__dict__ and cls.__module__.startswith("warmstart."):
            found.append(cls)
    return found


def test_a_code_means_one_error(classes: list[type[WarmstartError]]) -> None:
    """Codes are unique, so an error that crosses a pipe by its code stays the same error."""
    assert len({cls.code for cls in classes}) == len(classes)
    assert all(by_code(cls.code) is cls for cls in classes)


def test_every_error_says_whose_fault_and_what_to_do(classes: list[type[WarmstartError]]) -> None:
    for cls in classes:
        assert cls.kind in KINDS
        assert cls.hint, cls.code
        names = [name for _, name, _, _ in Formatter().parse(cls.template) if name is not None]
        assert all(name.isidentifier() for name in names), cls.code
        assert cls.template.format_map(dict.fromkeys(names, "x"))


def test_every_error_is_raised_with_what_its_template_names(classes: list[type[WarmstartError]]) -> None:
    """Else its message is an error itself, and a hook takes it for a bug."""
    lacking, by_name = [], {cls.__name__: cls for cls in classes}
    for module in [module for name, module in sys.modules.items() if name.startswith("warmstart.")]:
        for call in [node for node in ast.walk(ast.parse(getsource(module))) if isinstance(node, ast.Call)]:
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            cls = getattr(module, name, by_name.get(name))
            given = {keyword.arg for keyword in call.keywords}
            if cls in classes and cls.__init__ is WarmstartError.__init__ and None not in given:  # None: **fields
                named = {field for _, field, _, _ in Formatter().parse(cls.template) if field}
                lacking += [(module.__name__, call.lineno, field) for field in named - given]
    assert not lacking
