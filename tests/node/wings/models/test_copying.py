"""Copies of models on a node: who has one, when it goes, and what is left of what failed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import pytest

from tests.lib.wings.models.values import ALICE, BOB, ModelSite, snapshot
from warmstart.host.files import opened_dir
from warmstart.policy.keys import User
from warmstart.policy.shared import SharedPath
from warmstart.queue import Queue
from warmstart.run import state as runs
from warmstart.wings.models import attempts, client, shelf
from warmstart.wings.models.client import copy_in_child
from warmstart.wings.models.requests import COPIES, ModelRequest

WEIGHTS = b"weights of a model"
OLD = (1, 1)


def rule_of(here: ModelSite) -> SharedPath:
    """Return a rule by which the site has one copy of what Alice owns."""
    return SharedPath(f"{here.models}/*", (User(ALICE.name, ALICE.uid),), "site", "all")


def age(here: ModelSite) -> None:
    for path in (here.shelf / "sets").iterdir():
        os.utime(path, OLD)


def test_a_copy_is_roots_and_nobody_can_write_it(here: ModelSite) -> None:
    """Its model is its user's alone. What goes off the clock is audited under the job that asked."""
    model = here.model("one", WEIGHTS)
    assert here.copy(model) == ""
    (made,) = here.sets(str(model))
    assert (made.about.user, made.about.uid, made.about.size) == (ALICE.name, ALICE.uid, len(WEIGHTS))
    assert here.take(made.name) == [WEIGHTS]
    (file,) = (here.shelf / "files").iterdir()
    status = file.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode), status.st_nlink) == (0, 0o444, 2)
    assert stat.S_IMODE(here.shelf.stat().st_mode) == 0o700
    (event,) = here.events("model.copied")
    assert (event["job_id"], event["uid"], event["fetched_bytes"]) == (7, ALICE.uid, len(WEIGHTS))
    assert here.copy(model) == ""
    assert len(here.events("model.copied")) == 1


def test_many_have_one_copy_by_a_rule(here: ModelSite) -> None:
    """It counts as its owner's, whoever asked. A file that others can write is copied for its user alone."""
    model = here.model("one", WEIGHTS, mode=0o644)
    rule = rule_of(here)
    assert here.copy(model, BOB, job=8, shared=rule) == ""
    (made,) = here.sets(str(model))
    assert (made.about.user, made.about.uid, made.about.scope) == (ALICE.name, ALICE.uid, "site")
    assert here.copy(model, ALICE, shared=rule) == ""
    assert [event["rule"] for event in here.events("model.copied")] == ["all"]
    (model / "model.bin").chmod(0o666)
    os.utime(model / "model.bin", OLD)
    assert here.copy(model, BOB, job=8, shared=rule) == ""
    assert [item.about.scope for item in here.sets(str(model))] == ["site", ""]
    assert len(here.files()) == 2


def during(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object], *, before: bool = True) -> None:
    """Have something happen before or after the bytes of each file are copied; it is told their number."""

    def copy(source: int, target: int, size: int, rate: int) -> str:
        if before:
            act(size)
        digest = copy_in_child(source, target, size, rate)
        if not before:
            act(size)
        return digest

    monkeypatch.setattr(attempts, "copy_in_child", copy)


def test_users_take_turns(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two files: who has a small model does not wait for a large one, which goes on where it was."""
    monkeypatch.setattr(attempts, "TURN_S", 0.0)
    copied: list[int] = []
    during(monkeypatch, copied.append)
    large = here.model("large", *[WEIGHTS] * 4)
    small = here.model("small", WEIGHTS * 2, user=BOB)
    here.ask(large)
    here.ask(small, BOB, 8)
    here.run_queue()
    assert (len(copied), copied.index(2 * len(WEIGHTS)) <= 1) == (5, True)
    assert [(event["model"], event["fetched_bytes"]) for event in here.events("model.copied")] == [
        (str(small), 2 * len(WEIGHTS)),
        (str(large), 4 * len(WEIGHTS)),
    ]
    assert here.waiting() == []


def test_what_is_withdrawn_meanwhile_is_not_gone_on_with(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no other turn, and the room that it had is given back."""
    monkeypatch.setattr(attempts, "TURN_S", 0.0)

    def withdraw(_: int) -> None:
        for item in here.waiting():
            Queue(here.paths, COPIES).drop(item.key)

    during(monkeypatch, withdraw)
    here.ask(here.model("one", WEIGHTS, WEIGHTS))
    here.run_queue()
    assert (here.waiting(), here.sets()) == ([], [])
    (file,) = here.files()
    assert not file.endswith(".copying")


def test_a_model_has_its_room_before_another_begins(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that together have none would otherwise both be copied in part, and neither whole."""
    monkeypatch.setattr(attempts, "TURN_S", 0.0)
    here.policy_of(keep=f"{3 * len(WEIGHTS)}B")
    for name, user, job in (("first", ALICE, 7), ("second", BOB, 8)):  # two owners take turns
        here.ask(
            here.model(name, WEIGHTS, WEIGHTS, mode=0o644), user, job, rule_of(here)
        )  # by a rule there is no user's share
    here.run_queue()
    assert len(here.sets()) == 1  # whichever came first
    (failed,) = here.events("model.copy-failed")
    assert "what jobs have used within a day stays" in failed["error"]["reason"]
    assert len(here.files()) == 2


def test_what_changes_meanwhile_is_not_kept(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    model = here.model("one", WEIGHTS)
    with monkeypatch.context() as patch:
        during(patch, lambda _: os.utime(model / "model.bin"), before=False)
        assert "has changed" in here.copy(model)
    assert here.sets() == []
    here.due()
    assert here.copy(model) == ""  # what is there then
    assert len(here.files()) == 1


def test_an_attempt_goes_on_where_the_last_one_failed(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    model = here.model("one", WEIGHTS, WEIGHTS * 2)

    def fail(size: int) -> None:
        if size == len(WEIGHTS) * 2:
            raise OSError(5, "Input/output error")

    during(monkeypatch, fail)
    assert "Input/output error" in here.copy(model)
    assert here.sets() == []
    problems = []

    def look(_: int) -> None:
        (item,) = here.waiting()
        request = Queue(here.paths, COPIES).read(item, ModelRequest)
        problems.append(request.problem if request else "")

    during(monkeypatch, look)
    here.due()
    assert here.copy(model) == ""
    assert problems == [""]  # who asks meanwhile hears that it is tried
    (event,) = here.events("model.copied")
    assert (event["bytes"], event["fetched_bytes"]) == (3 * len(WEIGHTS), 2 * len(WEIGHTS))


def test_what_a_run_has_or_had_within_a_day_stays(here: ModelSite) -> None:
    """A new model does not drive out one in use: it is not copied, and the reason is told."""
    here.policy_of(keep="60B")
    first, second = here.model("one", WEIGHTS), here.model("two", WEIGHTS)
    assert here.copy(first) == ""
    assert "what jobs have used within a day stays" in here.copy(second)
    (made,) = here.sets(str(first))
    assert here.take(made.name)
    age(here)
    here.due()
    assert "what jobs have used within a day stays" in here.copy(second)
    runs.forget(here.paths.state, 7)
    here.due()
    assert here.copy(second) == ""
    assert not here.sets(str(first))
    assert [event["model"] for event in here.events("model.evicted")] == [str(first)]


def test_the_oldest_of_whoever_has_most_goes_first(here: ModelSite) -> None:
    """Its copies go with it, but for what another set has."""
    models = [here.model(name, WEIGHTS + name.encode()) for name in ("a1", "a2")]
    other = here.model("b1", WEIGHTS, user=BOB)
    for model in models:
        assert here.copy(model) == ""
    assert here.copy(other, BOB) == ""
    age(here)
    here.policy_of(keep="45B")
    assert here.prune() == 1
    left = {item.about.model for item in here.sets()}
    assert left in ({str(models[0]), str(other)}, {str(models[1]), str(other)})
    assert len(here.files()) == 2


def test_nothing_is_begun_that_has_no_room_on_the_disk(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "room", lambda _: 1)
    assert "has no room for" in here.copy(here.model("one", WEIGHTS))
    assert here.files() == []


def test_too_large_a_model_drives_out_nothing(here: ModelSite) -> None:
    small, large = here.model("small", b"weights!"), here.model("large", WEIGHTS)
    here.policy_of(keep="20B")
    assert here.copy(small) == ""
    age(here)
    assert "more than half of models.keep" in here.copy(large)
    assert here.sets(str(small))


def test_what_is_of_no_set_goes_after_a_day(here: ModelSite) -> None:
    """And what was being made when a process died, and notes."""
    assert here.copy(here.model("one", WEIGHTS)) == ""
    kept = here.files()
    for name in ("files/left", "files/x.copying", "asked/key"):
        path = here.shelf / name
        path.touch()
        os.utime(path, OLD)
    for name in ("a.fresh", "b.gone"):
        (here.shelf / "sets" / name).mkdir()
        os.utime(here.shelf / "sets" / name, OLD)
    (here.shelf / "files/recent").touch()
    assert here.prune() == 0
    assert here.files() == sorted([*kept, "recent"])
    assert len(list((here.shelf / "sets").iterdir())) == 1
    assert not list((here.shelf / "asked").iterdir())


@pytest.mark.report
@pytest.mark.threat(62)
def test_a_user_has_a_share_of_the_room(here: ModelSite) -> None:
    here.policy_of(keep=f"{4 * len(WEIGHTS)}B")
    for name in ("a1", "a2"):
        assert here.copy(here.model(name, WEIGHTS)) == ""
    assert "a user's half of models.keep" in here.copy(here.model("a3", WEIGHTS))
    assert here.copy(here.model("b1", WEIGHTS, user=BOB), BOB) == ""


@pytest.mark.report
@pytest.mark.threat(62)
def test_a_copy_has_the_holes_of_its_file(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take no room on the disk, and none of models.keep; its hash is the whole file's."""
    monkeypatch.setattr(client, "_BLOCK", 1 << 20)
    data = {0: os.urandom(5 << 19), 4 << 20: os.urandom(2 << 20)}  # a hole of 1.5 MiB after each
    whole = b"".join(part + bytes(3 << 19) for part in data.values())
    model = snapshot(here.models / "hub", whole)
    with (model / "model.safetensors").resolve().open("wb") as file:
        for offset, part in data.items():
            file.seek(offset)
            file.write(part)
        file.truncate(len(whole))
    here.own(here.models / "hub")
    assert here.copy(model) == ""
    (made,) = here.sets()
    assert here.take(made.name) == [whole]
    with opened_dir(str(here.shelf)) as fd:
        assert 9 << 19 <= shelf.total(fd) < len(whole) - (2 << 20)


@pytest.mark.report
def test_a_file_that_an_hour_is_not_enough_for(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first minute tells; others wait no longer for it, and its user hears why it is never copied."""
    here.policy_of(rate="1MiB")
    model = here.model("one", bytes(40 << 20))
    with monkeypatch.context() as patch:
        patch.setattr(client, "_BLOCK", 1 << 16)
        patch.setattr(client, "PACE_S", 0.1)
        patch.setattr(client, "LONGEST_S", 30.0)
        assert f"{model}/model.bin: too slow to be copied, an hour is not enough for it" in here.copy(model)
    assert here.files() == []
    here.policy_of(rate="1GiB")
    here.due()
    assert here.copy(model) == ""
