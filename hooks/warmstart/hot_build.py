"""Makes the file of the hot code (`hot`) from a release's own modules. Run by `make install`, never by a hook."""

from __future__ import annotations
import __future__

import ast
import marshal
import os
import sys
from _imp import source_hash
from collections.abc import Iterator

from warmstart import hot
from warmstart.hot import LENGTH, NAME, Table, magic

# What these import, in this order. Anything else that a hook needs it finds as usual.
ROOTS = (
    "warmstart.entry.prolog",
    "warmstart.entry.epilog",
    "warmstart.policy.current",
    "warmstart.runner",
    "warmstart.steps.workspace",
    "warmstart.steps.image",
    "warmstart.images.ahead",
    "warmstart.steps.seed",
    "warmstart.seed.node_cache",
    "warmstart.seed.overlay",
    "warmstart.steps.environment",
    "warmstart.ending.release",
    "warmstart.steps.harvest",
)


def build(release: str) -> None:
    """Write the file of a release's directory, which has the package. Run by `make install`."""
    for name in ROOTS:
        __import__(name)
    from warmstart import wing  # after these, in whose order the code lies

    wings = [f"warmstart.wings.{module}" for part in ("step", "end", "informs") for module in wing.with_part(part)]
    for name in wings:
        __import__(name)
    files = {
        name: module.__file__
        for name, module in sys.modules.items()
        if name.startswith("warmstart.") and name not in {__name__, hot.__name__} and module.__file__ is not None
    }
    table: Table = {}
    codes = bytearray()
    begun = set()

    def add(name: str) -> None:
        """Add a module behind those that it imports, as `exec_module` comes to them."""
        if name not in files or name in begun:
            return
        begun.add(name)
        path = os.path.relpath(files[name], release)  # tracebacks find it below sys.path
        with open(files[name], "rb") as file:
            tree = ast.parse(file.read(), path)
        imports = tuple(other for other in _imports(tree) if other in files)
        for other in (name.rpartition(".")[0], *imports):
            add(other)
        # As a flag, and not as the import of a module, which would have to be found.
        tree.body = [node for node in tree.body if getattr(node, "module", "") != "__future__"]
        code = compile(tree, path, "exec", __future__.annotations.compiler_flag, dont_inherit=True, optimize=2)
        start = len(codes)
        written = marshal.dumps(code)
        codes.extend(written)
        is_package = hasattr(sys.modules[name], "__path__")
        table[name] = path, is_package, imports, start, len(codes), source_hash(0, written)

    for name in files:
        add(name)
    head = marshal.dumps(table)
    with open(f"{release}/{NAME}", "wb") as file:
        file.write(magic() + len(head).to_bytes(LENGTH, "little") + source_hash(0, head) + head + codes)


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield what the body of a module imports; of `from a import b` both a and a.b, which need not be a module."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
