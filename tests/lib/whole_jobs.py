"""Jobs whose nodes hand in what they harvest, without Slurm."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.lib.node import Node
from warmstart.entry import background
from warmstart.host.deadline import after
from warmstart.store import parts
from warmstart.store.parts import RunParts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.lib.node import Content
    from warmstart.store.manifest import Base


class WholeJob:
    """Job 7 of the user a with uid 1, whose nodes hand in real bundles; no Slurm, but needs root."""

    def __init__(self, base: Path, nodelist: str = "n[1-2]", site: Node | None = None) -> None:
        self.site = site or Node(base)
        self.nodelist = nodelist
        self.run = RunParts(str(self.site.store), parts.name_of(1, "c", 7, 0))
        self.paths = self.site.installation.node("n1")
        os.makedirs(self.paths.state, mode=0o700, exist_ok=True)

    def hand_in(
        self,
        node: str,
        entries: Mapping[str, Content],
        *,
        namespace: str = "ns",
        based_on: dict[str, Base] | None = None,
        last: bool = True,
    ) -> str:
        """Let a node hand in entries, and nothing more if they are the `last`. Return the part's id."""
        draft = self.site.draft(entries)
        draft = draft._replace(producer=draft.producer._replace(node=node), based_on=based_on or {})
        where = self.site.namespace()._replace(name=namespace)
        fd = self.site.packed(entries)
        try:
            with self.site.client() as client:
                part = client.hand_in(self.run, where, fd, draft, self.nodelist, after(20))
        finally:
            os.close(fd)
        if last:
            self.finish(node)
        return part

    def finish(self, node: str) -> None:
        """Let a node say that it hands in nothing more."""
        with self.site.client() as client:
            client.run_in(after(20), parts.finish, self.run, node, self.nodelist)

    def merge(self) -> int:
        """Run the program that the last node starts; return its exit status."""
        return background.main(self.site.installation.prefix, ["parts", "n1"])

    def left(self) -> list[str]:
        """Return what is left of what nodes handed in."""
        top = self.site.store / "parts"
        return [str(path.relative_to(top)) for path in sorted(top.rglob("*"))]
