"""Copying a model and evicting one, killed before every change: a set is whole or has no name, and it goes on."""

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
from tests.lib.wings.models.values import ALICE, SMALL, ModelSite
from warmstart import record as records
from warmstart.cli.maintain import maintain
from warmstart.entry import background
from warmstart.errand import Asker
from warmstart.host import process
from warmstart.wings.models import errands, look, requests
from warmstart.wings.models.requests import COPIES, ModelRequest

WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])
WEIGHTS = b"weights of a model"
LATER_S = 2 * 86_400.0


@pytest.fixture
def site(base: Path, capable_host: None, monkeypatch: pytest.MonkeyPatch) -> ModelSite:
    """Return a node that copies models, where files of a few bytes count as large."""
    monkeypatch.setattr(look, "LEAST", SMALL)
    monkeypatch.setattr(errands, "TURN_S", 0.0)  # each file has a turn of its own
    monkeypatch.setattr(process, "be_idle", lambda: None)
    base.chmod(0o755)
    return ModelSite(base)


def killed(site: ModelSite, act: Callable[[], int], stop_at: int = 0, later: float = 0.0) -> Done:
    """Run a program in a child that is killed before its n-th change; `later` by so many seconds."""
    domains = {"state": str(site.base / "var"), "shelf": str(site.base / "shelf")}
    return Faults(domains, stop_at=stop_at).run(act, {}, later)


def maintained(site: ModelSite) -> None:
    """Maintain the node two days later."""

    def maintain_node() -> NoReturn:
        maintain.main(args=["--node", NODE], obj=site.installation, standalone_mode=False)
        sys.exit(0)

    assert killed(site, maintain_node, later=LATER_S).status == 0


def half(site: ModelSite, files: int) -> list[str]:
    """Return the sets that have a name and are not whole."""
    sets = [path for path in (site.shelf / "sets").glob("*") if "." not in path.name]
    return [str(path) for path in sets if [file.read_bytes() for file in sorted(path.iterdir())] != [WEIGHTS] * files]


def left(site: ModelSite) -> list[str]:
    """Return what is of no set."""
    found = [str(path) for path in (site.shelf / "sets").glob("*.*")]
    return found + [str(path) for path in (site.shelf / "files").glob("*") if path.stat().st_nlink == 1]


@WHOLE
def test_copying_killed_before_every_change(site: ModelSite, whole: bool) -> None:
    """Maintenance removes what is left, too."""
    model = site.model("one", WEIGHTS)
    (model / "second.bin").write_bytes(WEIGHTS)
    site.own(model)

    def copy() -> int:
        return background.main(str(site.base), [COPIES.name, NODE])

    def ask() -> None:
        request = ModelRequest(str(model), ALICE.gid, Asker(7, ALICE.uid, ALICE.name, "test"))
        assert requests.ask(site.paths, request) == ""

    def prepare() -> None:
        shutil.rmtree(site.shelf, ignore_errors=True)
        shutil.rmtree(f"{site.paths.errands}/{COPIES.name}", ignore_errors=True)
        ask()

    prepare()
    calls = killed(site, copy).calls
    assert calls > 20
    wrong = []
    for call in chosen(range(1, calls + 1), 1 if whole else ONE):
        prepare()
        done = killed(site, copy, call)
        found = half(site, 2) if site.shelf.exists() else []
        if not site.shelf.exists() or not site.sets():
            ask()
            assert killed(site, copy, later=COPIES.backoff_s * 2).status == 0
        found += [*half(site, 2), *([] if site.sets() else ["no set"])]
        maintained(site)
        found += [*left(site), *([] if site.sets() else ["it went"])]
        wrong += [f"before call {call} of {calls}, {done.stopped_at}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)


@WHOLE
def test_an_eviction_killed_before_every_change(site: ModelSite, whole: bool) -> None:
    """What a run has stays; what was renamed goes."""
    models = [site.model(name, WEIGHTS) for name in ("one", "two")]

    def prepare() -> None:
        site.policy_of()
        for model in models:
            assert site.copy(model) == ""
        (held,) = site.sets(str(models[0]))
        assert site.take(held.name) == [WEIGHTS]
        site.policy_of(keep="1B")

    def prune() -> int:
        site.prune()
        return 0

    prepare()
    calls = killed(site, prune).calls
    wrong = []
    for call in chosen(range(1, calls + 1), 1 if whole else ONE):
        prepare()
        done = killed(site, prune, call)
        found = [*half(site, 1), *([] if site.sets(str(models[0])) else ["what a run has is gone"])]
        maintained(site)
        found += [*left(site), *([] if len(site.sets()) == 1 else [f"{len(site.sets())} sets are left"])]
        wrong += [f"before call {call} of {calls}, {done.stopped_at}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)
    records.forget(site.paths.state, 7)
    maintained(site)
    assert not os.listdir(site.shelf / "files")
