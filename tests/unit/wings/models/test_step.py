"""What a job gets of the models that it names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.policy_site import offering
from tests.lib.runs import a_context, changed, result
from warmstart.host import detached, linux
from warmstart.host.files import opened_dir
from warmstart.host.identity import WorkerSilent
from warmstart.policy.keys import User
from warmstart.policy.shared import SharedPath
from warmstart.queue import Queue
from warmstart.request import Request, RequestInvalid
from warmstart.run import mounted
from warmstart.run.shown import shown_by
from warmstart.steps.contract import Context, Outcome
from warmstart.wings.models import look as looking
from warmstart.wings.models import shelf, step
from warmstart.wings.models.client import ModelClient
from warmstart.wings.models.requests import COPIES, ModelRequest
from warmstart.wings.models.shelf import About
from warmstart.wings.models.step import Wanted


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models/tiny"
    path.mkdir(parents=True)
    (path / "model.bin").write_bytes(b"weights of a model")
    return path


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return a job's context; nothing is mounted, and no program is started."""
    context = a_context(tmp_path)
    policy = offering(context.policy, models={"prefixes": [f"{tmp_path}/models"]})
    policy = policy._replace(constant_path="spank", paths=policy.paths._replace(shelf=f"{tmp_path}/shelf"))
    monkeypatch.setattr(step, "LOOK_S", 30.0)  # a machine may be busy
    monkeypatch.setattr(linux, "clone", os.dup)
    monkeypatch.setattr(linux, "restrict", lambda _: None)
    monkeypatch.setattr(mounted, "mount_for", lambda _run, name, _fd, _owner: f"mounted/{name}/tree")
    monkeypatch.setattr(detached, "start", lambda *_, **__: None)
    run = changed(context.run, path=f"{tmp_path}/cache")
    os.makedirs(run.directory)
    (tmp_path / "shelf").mkdir()
    return context._replace(policy=policy, run=run)


def copied(context: Context, model: Path, whose: str = "") -> str:
    """Have copies of a model on the node; return the name of their set."""
    seen, whose = looking.look(str(model), [str(model.parent)]), whose or str(context.run.uid)
    shelf.make(context.policy, context.run.node)
    with opened_dir(shelf.path_of(context.policy, context.run.node)) as fd:
        keys = [file.key(whose) for file in seen.files]
        for file, key in zip(seen.files, keys, strict=True):
            Path(f"/proc/self/fd/{fd}/files/{key}").write_bytes(Path(file.path).read_bytes())
        shelf.add(fd, seen.key(whose), About(seen.path, "alice", context.run.uid, "", tuple(keys), seen.size))
    return seen.key(whose)


Ways = list[tuple[str, str]]


def shown(context: Context, *models: Path, shared: tuple[SharedPath, ...] = ()) -> tuple[Outcome, Ways]:
    """Run the step; return its outcome, and how and why each model was shown."""
    outcome = step.run(context, Wanted([*map(str, models)], shared))
    return outcome, [(event["way"], event.get("reason", "")) for event in result(context).get("models", [])]


def test_copies_are_listed_over_their_files(context: Context, model: Path) -> None:
    name = copied(context, model)
    outcome, ways = shown(context, model)
    (line,) = shown_by(context.run.directory)
    file = model / "model.bin"
    assert (line.mode, line.whose, line.source, line.target) == ("ro", "job", "mounted/model-0/tree/0", str(file))
    assert line.seen.split(" ")[:2] == [str(file.stat().st_dev), str(file.stat().st_ino)]
    assert (ways, outcome.notices, outcome.degraded) == ([("copy", "")], (), [])
    assert outcome.detail == {str(model): "read from copies of 1 files, 18 bytes"}
    assert (Path(context.paths.state, "7", f"tree-model-{name}")).exists()
    assert not Queue(context.paths, COPIES).all()


def test_many_have_one_copy_of_what_trusted_users_own(context: Context, model: Path) -> None:
    """A request names the rule. As soon as another can write a file, each user has an own copy again, and is told."""
    mine = (User("ws-alice", os.getuid()),)
    rules = tuple(SharedPath(f"{model.parent}/*", owners, "site", "all") for owners in ((User("x", 1),), mine))
    for _ in range(2):
        shown(context, model, shared=rules)
    queue = Queue(context.paths, COPIES)
    (item,) = queue.all()
    request = queue.read(item, ModelRequest)
    assert request
    assert request.shared == rules[-1]
    assert [(event["reason"], event["rule"]) for event in result(context).get("models", [])] == [
        ("first", "all"),
        ("copying", "all"),
    ]
    copied(context, model, "site")
    outcome, ways = shown(context, model, shared=rules)
    assert ways[-1] == ("copy", "")
    assert outcome.detail == {str(model): "read from copies of 1 files, 18 bytes (rule all)"}
    assert shown(context, model)[1][-1] == ("itself", "first")
    (model / "model.bin").chmod(0o664)
    copied(context, model)
    outcome, _ = shown(context, model, shared=rules)
    assert "this user's own: " in str(outcome.detail)
    assert "can be written by others than its owner" in str(outcome.detail)


def test_a_second_job_has_it_copied(context: Context, model: Path) -> None:
    first, _ = shown(context, model)
    second, ways = shown(context, model)
    assert ways == [("itself", "first"), ("itself", "copying")]
    told = f"model {model} is read from the shared file system: it is"
    assert first.notices == (f"{told} copied to this node when a job names it here again within a day",)
    assert second.notices == (f"{told} being copied to this node for later jobs",)
    assert [item.owner for item in Queue(context.paths, COPIES).all()] == [str(context.run.uid)]
    os.utime(model / "model.bin", (1, 1))
    assert shown(context, model)[1][-1] == ("itself", "first")
    assert shown_by(context.run.directory) == []


def test_a_day_later_it_is_the_first_again(context: Context, model: Path) -> None:
    """Who names a model once a month has it copied never."""
    shown(context, model)
    (note,) = Path(shelf.path_of(context.policy, "n1"), "asked").iterdir()
    os.utime(note, (1, 1))
    assert shown(context, model)[1][-1] == ("itself", "first")


def test_a_copy_is_shown_whatever_becomes_of_another_model(context: Context, model: Path, tmp_path: Path) -> None:
    """One that is not there is a reason of its own, and no failure of the job."""
    copied(context, model)
    outcome, ways = shown(context, tmp_path / "models/gone", model)
    assert ways == [("itself", "model-unusable"), ("copy", "")]
    assert [error.code for error in outcome.degraded] == ["model-unusable"]
    assert shown_by(context.run.directory)[0].source == "mounted/model-1/tree/0"


def test_a_job_has_a_bound(context: Context, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On what its list has: the plugin takes none that is longer, and would show nothing at all."""
    other = model.with_name("other")
    other.mkdir()
    (other / "model.bin").write_bytes(b"other weights of a model")
    for each in (model, other):
        copied(context, each)
    file = str(model / "model.bin")
    monkeypatch.setattr(step, "MOST_LISTED", len(file) + step._BESIDE)
    assert shown(context, model, other)[1] == [("copy", ""), ("itself", "too-many-files")]
    (line,) = Path(context.run.directory, "shown").read_text().splitlines()
    assert len(line) < len(file) + step._BESIDE
    contained = context._replace(policy=context.policy._replace(constant_path="containers"))
    bound = f"{context.run.directory}/mounted/model-0/tree/499:{file}:ro,"
    for room, way in ((len(bound), "copy"), (len(bound) - 1, "itself")):
        monkeypatch.setattr(step, "MOST_BOUND", room)
        assert shown(contained, model)[1][-1][0] == way


def test_a_file_system_that_hangs(context: Context, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> None:
        raise WorkerSilent(what="the file system", problem="no answer before the deadline")

    monkeypatch.setattr(ModelClient, "look", hang)
    outcome, ways = shown(context, model)
    assert ways == [("itself", "model-unusable")]
    assert "no answer before the deadline" in str(outcome.degraded[0])


def test_a_node_that_shows_nothing(context: Context, model: Path) -> None:
    link = context._replace(policy=context.policy._replace(constant_path="link"))
    bare = context._replace(run=changed(context.run, path=""))
    outcomes = [step._show(each, Wanted([str(model)], ())) for each in (link, bare)]
    assert [outcome.detail for outcome in outcomes] == [{}, {}]
    assert "constant_path" in outcomes[0].notices[0]
    assert "no workspace" in outcomes[1].notices[0]
    assert "models" not in result(context)


@pytest.mark.parametrize("value", ["relative", "/", "/a/../b", " ".join(f"/m{number}" for number in range(9))])
def test_what_is_no_path_is_refused(value: str) -> None:
    assert step.asked(Request((), (), words={"model": "/a /b/ /a"})) == ["/a", "/b"]
    with pytest.raises(RequestInvalid):
        step.asked(Request((), (), words={"model": value}))


@pytest.mark.report
def test_what_has_no_copy_is_named(context: Context, model: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (model / "base").symlink_to(tmp_path / "elsewhere")
    left_out = "no copies of what lies below none of models.prefixes, such as base"
    first, _ = shown(context, model)
    assert first.notices[0].endswith(f"when a job names it here again within a day; {left_out}")
    copied(context, model)
    second, _ = shown(context, model)
    assert second.notices == (f"model {model}: {left_out}",)
