"""Unpacking and evicting, killed before every change: no half tree has a name, and the next attempt has it done."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.faults.acts import ONE, chosen
from tests.lib.faults import Done, Faults
from tests.lib.node import NODE
from tests.lib.shelf_site import ShelfSite
from warmstart import record as records
from warmstart.cli.maintain import maintain
from warmstart.entry import background
from warmstart.host import process
from warmstart.images import unpacking
from warmstart.images.unpacked import ImageKey
from warmstart.images.unpacks import UNPACKS

WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])


@pytest.fixture
def site(base: Path, capable_host: None, monkeypatch: pytest.MonkeyPatch) -> ShelfSite:
    """Return a node with a shelf."""
    monkeypatch.setattr(process, "set_idle", lambda _: None)
    monkeypatch.setattr(process, "be_idle", lambda: None)
    return ShelfSite(base)


def killed(site: ShelfSite, act: Callable[[], int], stop_at: int = 0, later: float = 0.0) -> Done:
    """Run a program in a child that is killed before its n-th change; `later` by so many seconds."""
    domains = {"store": str(site.base / "store"), "state": str(site.base / "var"), "shelf": str(site.base / "shelf")}
    return Faults(domains, stop_at=stop_at).run(act, {}, later)


def maintained(site: ShelfSite) -> Done:
    """Maintain the node."""

    def maintain_node() -> NoReturn:
        maintain.main(args=["--node", NODE], obj=site.installation, standalone_mode=False)
        sys.exit(0)

    return killed(site, maintain_node)


def half(site: ShelfSite) -> list[str]:
    """Return the trees that have a name and are not whole."""
    trees = [site.shelf / tree for tree in os.listdir(site.shelf) if "." not in tree]
    return [
        str(tree)
        for tree in trees
        if not ((tree / "about.json").exists() and (tree / "tree/usr/greeting").read_text().startswith("hello"))
    ]


@WHOLE
def test_unpacking_killed_before_every_change(site: ShelfSite, whole: bool) -> None:
    """Maintenance alone removes what is left, too."""
    key = site.publish_image(site.image())

    def unpack() -> int:
        return background.main(str(site.base), [UNPACKS.name, NODE, key.tree])

    def prepare() -> None:
        records.forget(site.paths.state, 7)
        shutil.rmtree(site.shelf, ignore_errors=True)
        shutil.rmtree(f"{site.paths.errands}/{UNPACKS.name}", ignore_errors=True)
        assert site.ask(key) == ""

    prepare()
    calls = killed(site, unpack).calls
    assert calls > 20
    wrong = []
    for call in chosen(range(1, calls + 1), 1 if whole else ONE):
        prepare()
        done = killed(site, unpack, call)
        found = half(site)
        if call % 2:
            maintained(site)
            found += site.left()
        if not site.take(key):
            assert site.ask(key) == ""
            assert killed(site, unpack, later=UNPACKS.backoff_s * 2).status == 0
        found += [*half(site), *([] if site.take(key) else ["no tree"])]
        maintained(site)
        found += site.left()
        wrong += [f"before call {call} of {calls}, {done.stopped_at}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)


@WHOLE
def test_an_eviction_killed_before_every_change(site: ShelfSite, whole: bool) -> None:
    """What a run has stays; what was renamed goes."""
    keys = [site.publish_image(site.image(f"image{number}")) for number in range(3)]

    def prepare() -> None:
        for key in keys:
            if not os.path.exists(site.shelf / key.tree):
                assert (site.ask(key), site.unpack(key)) == ("", 0)
        assert site.take(keys[0])
        site.policy_of(keep="1B")

    def prune() -> int:
        unpacking.prune(site.policy, site.paths)
        return 0

    def there() -> list[ImageKey]:
        return [key for key in keys if os.path.exists(site.shelf / key.tree)]

    site.policy_of()
    prepare()
    calls = killed(site, prune).calls
    assert there() == [keys[0]]
    wrong = []
    for call in chosen(range(1, calls + 1), 1 if whole else ONE):
        site.policy_of()
        prepare()
        done = killed(site, prune, call)
        found = [*half(site), *([] if keys[0] in there() else ["what a run has is gone"])]
        assert killed(site, prune).status == 0
        found += [*site.left(), *([] if there() == [keys[0]] else [f"{there()} are left"])]
        wrong += [f"before call {call} of {calls}, {done.stopped_at}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)
    records.forget(site.paths.state, 7)
    assert maintained(site).status == 0
    assert there() == []
