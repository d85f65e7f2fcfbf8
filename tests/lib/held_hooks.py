"""A site's hooks that do something else first: they wait for a test, or run in other surroundings."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.lib.installation import write_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lib.site import Site


@contextmanager
def wrapped(site: Site, hook: str, before: str) -> Iterator[None]:
    """Let all nodes run some lines of shell before a hook; in them `$real` is the hook itself."""
    installed = site.cluster.prefix / "libexec/warmstart" / hook
    real = installed.rename(f"{installed}.installed")
    write_hook(site.cluster.prefix, hook, f'real="{real}"\n{before}\nexec "$real"')
    try:
        yield
    finally:
        site.cluster.wait_idle()
        real.rename(installed)


@contextmanager
def held(site: Site, hook: str, node: str) -> Iterator[Callable[[], None]]:
    """Let a node's hooks wait. Yields a function that lets them go on."""
    until = site.cluster.base / f"until.{hook}.{node}"
    with wrapped(site, hook, f'[ "$SLURMD_NODENAME" != {node} ] || while [ ! -e {until} ]; do sleep 0.05; done'):
        try:
            yield until.touch
        finally:
            until.touch()
            site.cluster.wait_idle()
            until.unlink()
