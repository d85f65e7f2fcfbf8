"""Caches of other tools below a tool's directory: their own profiles name and validate the entries there.

vLLM and SGLang point Triton, Inductor and others at directories of their own cache, whatever the job's variables
say (docs/cache-formats.md, vLLM and SGLang).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from warmstart.profiles import registry
from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles


class NestedCaches(NamedTuple):
    """The caches of other tools: a pattern of each directory with its `/`, and the profile's name."""

    profiles: tuple[tuple[str, str], ...]

    def entry_of(self, path: str) -> str | None:
        """Return the entry of a file in one of the caches, else None."""
        prefix, profile = self._find(path)
        entry = profile.entry_of(path[len(prefix) :]) if profile else None
        return prefix + entry if entry else None

    def holds(self, entry: str) -> bool:
        """Tell whether an entry belongs to another tool."""
        return self._find(entry)[1] is not None

    def validate(self, files: EntryFiles) -> None:
        """Judge an entry of another tool as that tool's profile does."""
        prefix, profile = self._find(files.entry)
        assert profile
        profile.validate(files.below(prefix))

    def relocate(self, directory: int, path: str, entries: list[str]) -> None:
        """Relocate what needs it among the entries; `path` is the whole directory's."""
        for entry in entries:
            profile = self._find(entry)[1]
            if profile and profile.relocate:
                profile.relocate(directory, path, [entry])

    def _find(self, path: str) -> tuple[str, Profile | None]:
        for pattern, name in self.profiles:
            match = re.match(pattern, path)
            if match:
                return match[0], registry.get(name)
        return "", None
