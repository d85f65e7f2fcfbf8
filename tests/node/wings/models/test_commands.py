"""`warmstart models`: what it lists and removes, and its exit statuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.lib.node import NODE
from tests.lib.wings.models.values import ALICE, ModelSite
from warmstart.host import detached
from warmstart.run import state as runs
from warmstart.wings.models import attempts
from warmstart.wings.models.commands import models

WEIGHTS = b"weights of a model"


def run(here: ModelSite, *arguments: str) -> Result:
    return CliRunner().invoke(models, arguments, obj=here.installation)


def listed(here: ModelSite) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(here, "list", "--json").stdout)
    return found


def test_copies_and_what_waits_are_listed(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (run(here, "list").exit_code, run(here, "rm", "/nowhere").exit_code) == (1, 1)
    model = here.model("one", WEIGHTS)
    here.copy(model)
    (row,) = listed(here)
    assert (row["model"], row["user"], row["files"], row["size"]) == (str(model), ALICE.name, 1, len(WEIGHTS))
    assert (row["node"], row["jobs"], row["scope"]) == (NODE, [], "")

    def fails(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(attempts, "copy_in_child", fails)
    second = here.model("two", WEIGHTS)
    here.copy(second)
    done = run(here, "list")
    assert done.exit_code == 0
    problem = f"{second}/model.bin: Input/output error"
    assert f"{second} waits on {NODE} to be copied for {ALICE.name}: {problem}" in done.output
    assert json.loads(run(here, "rm", str(second), "--json").stdout) == {"removed": 0, "withdrawn": 1, "jobs": []}
    assert "waits" not in run(here, "list").output


def test_what_a_job_has_stays_until_it_is_over(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "start", lambda *_, **__: None)
    model = here.model("one", WEIGHTS)
    here.copy(model)
    (made,) = here.sets()
    assert here.take(made.name) == [WEIGHTS]
    done = run(here, "rm", str(model))
    assert (done.exit_code, "job 7 has a copy, which stays" in done.output) == (1, True)
    assert [row["jobs"] for row in listed(here)] == [[7]]
    runs.forget(here.paths.state, 7)
    assert run(here, "rm", str(model)).exit_code == 0
    assert (here.sets(), here.files()) == ([], [])
    assert [event["reason"] for event in here.events("model.evicted")] == ["removed"]
