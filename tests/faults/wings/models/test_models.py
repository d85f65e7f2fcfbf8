"""Models' copies: the job of the swept node names a model, and copying and evicting are acts."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.acts import LATER_S, ONE, WHOLE, Act, deaths, failures
from tests.faults.hooks import SweptNode
from tests.lib.faults import Done, Fault
from tests.lib.wings.models.values import ALICE, SMALL, ModelSite
from warmstart.entry import background
from warmstart.host import process
from warmstart.host.files import ensure_path
from warmstart.queue import Asker
from warmstart.run import state as runs
from warmstart.wings.models import attempts, look, requests
from warmstart.wings.models.requests import COPIES, ModelRequest

WEIGHTS = b"weights of a model"


def test_the_job_of_the_sweeps_names_a_model(swept: SweptNode) -> None:
    swept.prepare("epilog")
    assert any("models" in line for line in swept.results())


@pytest.fixture
def site(base: Path, capable_host: None, monkeypatch: pytest.MonkeyPatch) -> ModelSite:
    """Return a node that copies models, where files of a few bytes count as large."""
    monkeypatch.setattr(look, "LEAST", SMALL)
    monkeypatch.setattr(attempts, "TURN_S", 0.0)  # each file has a turn of its own
    monkeypatch.setattr(process, "be_idle", lambda: None)
    return ModelSite(base)


class ModelAct(Act):
    """What changes the shelf. Of a set that has a name all files are whole, and no file is of no set."""

    def __init__(self, site: ModelSite) -> None:
        self.site = site

    @abstractmethod
    def act(self) -> int:
        """Do it."""

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        return self.site.run(self.act, fault=fault, stop_at=stop_at)

    def half(self) -> list[str]:
        sets = [path for path in (self.site.shelf / "sets").glob("*") if "." not in path.name]
        return [f"{path} is half" for path in sets if {file.read_bytes() for file in path.iterdir()} != {WEIGHTS}]

    def maintained(self) -> list[str]:
        """Maintain the node four days later; return what is left then."""
        assert self.site.run("maintain", later=LATER_S).status == 0
        left = [*(self.site.shelf / "sets").glob("*.*")]
        left += [path for path in (self.site.shelf / "files").glob("*") if path.stat().st_nlink == 1]
        return [f"{path} is left" for path in left]


class Copying(ModelAct):
    """A model of two files is copied to an empty shelf."""

    def __init__(self, site: ModelSite) -> None:
        super().__init__(site)
        ensure_path(site.paths.root, 0o755)  # no run makes it anew
        self._model = site.model("one", WEIGHTS, WEIGHTS)

    def _ask(self) -> str:
        request = ModelRequest(str(self._model), ALICE.gid, Asker(7, ALICE.uid, ALICE.name, "test"))
        return requests.ask(self.site.paths, request)

    def prepare(self) -> None:
        shutil.rmtree(self.site.shelf, ignore_errors=True)
        Path(self.site.policy.paths.audit).unlink(missing_ok=True)
        shutil.rmtree(f"{self.site.paths.queue}/{COPIES.name}", ignore_errors=True)
        assert self._ask() == ""

    def act(self) -> int:
        (item,) = self.site.waiting()
        return background.main(str(self.site.base), [COPIES.name, self.site.name, item.key])

    def check(self, _done: Done, _fault: Fault | None) -> list[str]:
        wrong = self.half()
        for _ in range(2):  # a turn for each of its files
            if not self.site.shelf.exists() or not self.site.sets():
                self._ask()
                assert self.site.run(self.act, later=COPIES.backoff_s * 2).status == 0
        wrong += [*self.half(), *self.maintained()]
        return wrong if self.site.sets() else [*wrong, "there is no set"]


class Evicting(ModelAct):
    """A run has one of two sets, and none is to be kept."""

    def __init__(self, site: ModelSite) -> None:
        super().__init__(site)
        self._models = [site.model(name, WEIGHTS) for name in ("one", "two")]

    def prepare(self) -> None:
        self.site.policy_of()
        for model in self._models:
            assert self.site.copy(model) == ""
        (held,) = self.site.sets(str(self._models[0]))
        assert self.site.take(held.name) == [WEIGHTS]
        self.site.policy_of(keep="1B")

    def act(self) -> int:
        self.site.prune()
        return 0

    def check(self, _done: Done, _fault: Fault | None) -> list[str]:
        wrong = self.half()
        if not self.site.sets(str(self._models[0])):
            wrong.append("what a run has is gone")
        wrong += self.maintained()
        return wrong if len(self.site.sets()) == 1 else [*wrong, f"{len(self.site.sets())} sets are left"]


@WHOLE
@pytest.mark.parametrize("sweep", [deaths, failures])
def test_copying(site: ModelSite, sweep: Callable[[Act, int], list[str]], whole: bool) -> None:
    wrong = sweep(Copying(site), 1 if whole else ONE)
    assert not wrong, "\n".join(wrong)


@WHOLE
@pytest.mark.parametrize("sweep", [deaths, failures])
def test_evicting(site: ModelSite, sweep: Callable[[Act, int], list[str]], whole: bool) -> None:
    act = Evicting(site)
    wrong = sweep(act, 1 if whole else ONE)
    assert not wrong, "\n".join(wrong)
    runs.forget(site.paths.state, 7)
    assert act.maintained() == []
    assert not os.listdir(site.shelf / "files")
