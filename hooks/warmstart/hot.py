"""The hot code: what hooks load where everything is warm, in one file that `make install` makes (decision 22).

Finding, checking and reading seventy modules, each in its own file, takes a thousand system calls, and the import
system's work for each takes as long as running the module. The file holds their compiled code by name; `install` has
hooks take it from there. It is made from the release's own modules and lies beside them, is never edited, and can be
removed: then, where another Python runs, and for what is damaged of it, modules are found as usual. The code is without
docstrings, and lies in the order in which it is imported: a job that no rule matches needs its beginning only.
"""

import marshal
import os
import sys
from _imp import source_hash

TYPE_CHECKING = False  # as in `lean`, which comes from the file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec, SourceFileLoader
    from types import CodeType, ModuleType
else:
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import SourceFileLoader

NAME = "hot.code"
# By name: the module's own file, relative to the release's directory; whether it is a package; the modules of the file
# that its body imports; where its code, as `marshal` writes it, begins and ends behind this table, and its hash.
Table = dict[str, tuple[str, bool, tuple[str, ...], int, int, bytes]]
LENGTH = 4  # bytes of the table's length, before it and its hash
_HASH = 8  # bytes
_FIRST = 384 << 10  # bytes: what every hook comes to. More memory takes longer, as the kernel gives it page by page


def magic() -> bytes:
    """Return what compiled code of this Python begins with in its own files."""
    import _frozen_importlib_external

    return _frozen_importlib_external.MAGIC_NUMBER


def install(release: str) -> None:
    """Take modules from the file of a release's directory from here on, if this Python can read it."""
    try:
        fd = os.open(f"{release}/{NAME}", os.O_RDONLY | os.O_CLOEXEC)
        data = os.read(fd, _FIRST)
        os.close(fd)
    except OSError:
        return
    begin = magic()
    if data.startswith(begin):
        checked = len(begin) + LENGTH
        start = checked + _HASH
        end = start + int.from_bytes(data[len(begin) : checked], "little")
        if source_hash(0, data[start:end]) == data[checked:start]:
            table = marshal.loads(data[start:end])  # noqa: S302 - root's, as the modules are
            sys.meta_path.insert(0, _Hot(release, table, data, end))


class _Hot:
    """Finds and loads the modules of the file (importlib.abc: MetaPathFinder, Loader)."""

    def __init__(self, release: str, table: Table, data: bytes, codes: int) -> None:
        """Take the beginning of the file, in which the code begins at `codes`."""
        self._release = release
        self._table = table
        self._codes = codes
        self._data = memoryview(data)

    def find_spec(
        self,
        name: str,
        _path: "Sequence[str] | None" = None,
        _target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        """Return what the import system needs to know of a module, None for one that is not in the file."""
        if name not in self._table:
            return None
        path, is_package, *_ = self._table[name]
        file = f"{self._release}/{path}"
        spec = ModuleSpec(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(file)]
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let the import system make the module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run a module's code, after that of the modules that it imports: it then finds them in `sys.modules`."""
        path, _, imports, *_ = self._table[module.__name__]
        module.__file__ = f"{self._release}/{path}"
        for name in imports:
            if name not in sys.modules:
                self._load(name)
        exec(self._code(module.__name__), module.__dict__)  # noqa: S102 - this is how modules are loaded

    def _code(self, name: str) -> "CodeType":
        """Return a module's code: from the file, or from the module's own where that part is damaged."""
        path, _, _, start, end, checked = self._table[name]
        try:
            written = self._read(self._codes + start, self._codes + end)
        except OSError:
            written = memoryview(b"")
        if source_hash(0, written) == checked:
            return marshal.loads(written)  # type: ignore[no-any-return]  # noqa: S302 - root's, as the modules are
        return SourceFileLoader(name, f"{self._release}/{path}").get_code(name)  # type: ignore[return-value]

    def _read(self, start: int, end: int) -> memoryview:
        """Return a part of the file. It is opened anew: a worker keeps no descriptor that it was not given."""
        if end > len(self._data):
            fd = os.open(f"{self._release}/{NAME}", os.O_RDONLY | os.O_CLOEXEC)
            self._data = memoryview(os.read(fd, os.fstat(fd).st_size))
            os.close(fd)
        return self._data[start:end]

    def _load(self, name: str) -> None:
        """Import a module of the file without the import system, which would take longer than the module itself."""
        parent, _, last = name.rpartition(".")
        if parent not in sys.modules:
            self._load(parent)
        module = type(sys)(name)
        path, is_package, *_ = self._table[name]
        module.__package__ = name if is_package else parent
        if is_package:
            module.__path__ = [os.path.dirname(f"{self._release}/{path}")]
        sys.modules[name] = module
        try:
            self.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        setattr(sys.modules[parent], last, module)
