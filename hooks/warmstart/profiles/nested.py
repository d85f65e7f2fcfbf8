"""Caches of other tools inside a tool's directory. Those tools' profiles name and validate the entries there.

vLLM and SGLang make Triton, Inductor and others use directories in their own cache, regardless of the job's variables
(docs/cache-formats.md, vLLM and SGLang).
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING, Callable, NamedTuple
from warmstart.profiles import registry
from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles


class NestedCaches(NamedTuple):
    """The nested caches: pairs of a pattern for the directory, with a trailing `/`, and the profile's name.

    `own` names the entries of the tool that has them.
    """

    own: Callable[[str], str | None]
    profiles: tuple[tuple[str, str], ...]

    def entry_of(self, path: str) -> str | None:
        """Return the entry of a file, the tool's own or in one of the caches, or None."""
        if entry := self.own(path):
            return entry
        prefix, profile = self._find(path)
        entry = profile.entry_of(path[len(prefix) :]) if profile else None
        return prefix + entry if entry else None

    def holds(self, entry: str) -> bool:
        """Return whether an entry is in a nested cache."""
        return self._find(entry)[1] is not None

    def validate(self, files: EntryFiles) -> None:
        """Validate an entry of a nested cache with its own profile."""
        prefix, profile = self._find(files.entry)
        assert profile
        profile.validate(files.below(prefix))

    def _find(self, path: str) -> tuple[str, Profile | None]:
        import re

        for pattern, name in self.profiles:
            match = re.match(pattern, path)
            if match:
                return match[0], registry.get(name)
        return "", None
