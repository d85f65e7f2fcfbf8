"""Tags that move, and what a store remembers of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.lib.registry import build_image

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lib.registry import Registry
    from tests.lib.site import Site


def moved(site: Site, registry: Registry, image: str, number: int) -> None:
    """Push another image under a tag; its /etc/number has this number."""
    layout = build_image(site.cluster.base / "images" / f"moved{number}", {"/etc/number": f"{number}\n"})
    registry.push(layout, "latest", image.partition("/")[2])


def is_older(site: Site, image: str, seconds: float, store: Path | None = None) -> None:
    """Let the registry's answer be older, in the site's store or another one."""
    (pointer,) = ((store or site.store) / "images/tags").glob(f"*{image.rpartition('/')[2].replace(':', '=')}*")
    known = json.loads(pointer.read_text())
    pointer.write_text(json.dumps({**known, "resolved": known["resolved"] - seconds}))
