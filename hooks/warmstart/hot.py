"""The hot code: what hooks load where everything is warm, in one file that `make install` makes (docs/adr/0022).

Finding, checking and reading seventy modules, each in its own file, takes a thousand system calls. The file holds their
compiled code by name; `install` has hooks take it from there. It is made from the release's own modules and lies beside
them, is never edited, and can be removed: then, and where another Python runs, modules are found as usual.
"""

from __future__ import annotations

import marshal
import os
import sys

from warmstart.lean import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
else:
    from _frozen_importlib import ModuleSpec

NAME = "hot.code"
# What these import, and the modules of the shipped profiles. Anything else that a hook needs it finds as usual.
ROOTS = (
    "warmstart.entry.prolog",
    "warmstart.entry.epilog",
    "warmstart.run_end",
    "warmstart.seed.overlay",
    "warmstart.slurm.spec",
    "warmstart.steps.environment",
    "warmstart.steps.harvest",
    "warmstart.steps.image",
    "warmstart.steps.release",
    "warmstart.steps.rendezvous",
    "warmstart.steps.seed",
    "warmstart.steps.spool",
    "warmstart.steps.workspace",
)

# By name: whether it is a package, its own file relative to the release's directory, its code as `marshal` writes it.
Codes = dict[str, tuple[bool, str, bytes]]


def install(release: str) -> None:
    """Take modules from the file of a release's directory from here on, if this Python can read it."""
    try:
        with open(f"{release}/{NAME}", "rb", buffering=0) as file:
            data = memoryview(file.read())
    except OSError:
        return
    magic = _magic()
    if data[: len(magic)] == magic:
        sys.meta_path.insert(0, _Hot(release, marshal.loads(data[len(magic) :])))  # noqa: S302 - root's, as the modules are


def build(release: str) -> None:
    """Write the file of a release's directory, which has the package. Run by `make install`."""
    from warmstart.profiles import registry

    for name in (*ROOTS, *(f"warmstart.profiles.{name.replace('-', '_')}" for name in registry.names())):
        __import__(name)
    codes: Codes = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == "warmstart" and module.__file__ is not None:
            path = os.path.relpath(module.__file__, release)  # tracebacks find it below sys.path
            with open(module.__file__, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            codes[name] = (hasattr(module, "__path__"), path, marshal.dumps(code))
    with open(f"{release}/{NAME}", "wb") as file:
        file.write(_magic() + marshal.dumps(codes))


def _magic() -> bytes:
    """Return what compiled code of this Python begins with in its own files."""
    import _frozen_importlib_external

    return _frozen_importlib_external.MAGIC_NUMBER


class _Hot:
    """Finds and loads the modules of the file (importlib.abc: MetaPathFinder, Loader)."""

    def __init__(self, release: str, codes: Codes) -> None:
        self._release = release
        self._codes = codes

    def find_spec(
        self,
        name: str,
        _path: Sequence[str] | None = None,
        _target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return what the import system needs to know of a module, None for one that is not in the file."""
        if name not in self._codes:
            return None
        is_package, path, _ = self._codes[name]
        file = f"{self._release}/{path}"
        spec = ModuleSpec(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(file)]
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let the import system make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code."""
        _, path, data = self._codes[module.__name__]
        module.__file__ = f"{self._release}/{path}"
        code: CodeType = marshal.loads(data)  # noqa: S302
        exec(code, module.__dict__)  # noqa: S102 - this is how modules are loaded
