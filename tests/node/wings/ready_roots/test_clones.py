"""What a job is shown of its unpacked image: once, for each image, and not without a record."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.runs import a_context, changed, result
from tests.lib.wings.ready_roots.enroots import JOB, OWNER
from warmstart import shelf
from warmstart.host.files import opened_dir
from warmstart.images import unpacked, unpacks
from warmstart.images.reference import parse
from warmstart.images.unpacked import ImageKey
from warmstart.run import mounted
from warmstart.run import state as runs
from warmstart.run.shown import shown_by
from warmstart.run.state import CLAIMED
from warmstart.step_image import StepImage
from warmstart.steps import unpack as core_step
from warmstart.steps.contract import Context, Outcome
from warmstart.store.client import StoreClient
from warmstart.wings.ready_roots import clones, step, step_image, trial
from warmstart.wings.ready_roots import unpack as unpack_part
from warmstart.wings.ready_roots.settings import OWN
from warmstart.wings.ready_roots.step import VARIABLE, Options

REFERENCE = "reg.example.com/app:1"


@pytest.fixture
def context() -> Iterator[Context]:
    """Yield a context of a job on a node that has unpacked the job's image."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-clones-", dir="/var/tmp"))
    base.chmod(0o711)
    made = a_context(base)
    policy = made.policy._replace(paths=made.policy.paths._replace(shelf=str(base / "shelf")))
    wings = tuple(known._replace(used=known.name == "ready_roots") for known in policy.wings)
    policy = policy._replace(wings=wings)
    record = changed(
        made.run,
        uid=JOB[0],
        gid=JOB[1],
        image=f"sha256:{'ab' * 32}",
        path="/var/cache/warmstart",
        images={REFERENCE: stored(policy.paths.store, "image")},
    )
    os.makedirs(record.directory, mode=0o711)
    os.makedirs(f"{made.paths.state}/7", mode=0o700, exist_ok=True)
    runs.save(made.paths.state, record)
    store = StoreClient(policy.store_user, policy.paths.store, "n1-0a1b2c3d")
    context = made._replace(policy=policy, run=record, store=store)
    unpack(context, first(context), "tree")
    try:
        yield context
    finally:
        with opened_dir(record.directory) as run:
            mounted.take_down(run)
        assert str(base) not in Path("/proc/self/mountinfo").read_text()
        shutil.rmtree(base)


def first(context: Context) -> ImageKey:
    ((name, path),) = context.run.images.items()
    return clones.key_of(context.policy, StepImage(name, context.run.own.image, path))


def stored(store: str, name: str) -> str:
    path = Path(store, "images", f"{name}.sqsh")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
    return str(path)


def unpack(context: Context, key: ImageKey, text: str) -> None:
    tree = Path(unpacked.shelf_of(context.policy, "n1"), key.tree, "tree")
    tree.mkdir(parents=True)
    (tree / "which").write_text(text)
    subprocess.run(["/bin/chown", "-R", "{}:{}".format(*OWNER), tree], check=True)


def listed(context: Context) -> list[str]:
    return [item.source for item in shown_by(context.run.directory)]


def test_a_job_is_shown_the_tree_of_its_image(context: Context) -> None:
    """By the image's file, below a name that says nothing; a second prolog's step shows nothing more."""
    done = step.run(context, Options(()))
    (item,) = shown_by(context.run.directory)
    file = os.stat(context.run.images[REFERENCE])
    assert (item.seen, item.target) == (f"{file.st_dev} {file.st_ino}", "-")
    path = Path(done.environment[VARIABLE])
    assert path == Path(context.run.directory, item.source)
    assert ((path / "which").read_text(), (path / "which").stat().st_uid) == ("tree", JOB[0])
    assert shelf.held(context.paths.state) == {first(context).tree: [7]}
    own = os.stat(f"{context.run.directory}/{OWN}")
    assert (own.st_uid, own.st_mode & 0o777) == (JOB[0], 0o700)
    assert step.run(context, Options(())).environment == done.environment
    assert len(listed(context)) == 1
    assert "app" not in Path("/proc/self/mountinfo").read_text().split(str(path.parent))[1].split()[0]


def test_without_a_tree_the_job_says_so_and_nothing_is_shown(context: Context) -> None:
    """Containers have their directory: from what they start is told."""
    shutil.rmtree(unpacked.shelf_of(context.policy, "n1"))
    done = step.run(context, Options(()))
    assert done.environment == {}
    line = result(context)
    assert line["told"] == {"ready-root": {REFERENCE: "not unpacked on this node"}}
    assert listed(context) == []
    assert os.path.isdir(f"{context.run.directory}/{OWN}")


def test_a_job_without_an_image_of_ours_or_a_workspace_has_none(context: Context) -> None:
    for record in (
        changed(context.run, image=f"{CLAIMED}{REFERENCE}"),
        changed(context.run, path=""),
        context.run._replace(images={}),
    ):
        assert step.run(context._replace(run=record), Options(())) == Outcome()


def test_a_node_that_cannot_unpacks_nothing_and_is_tried_once_after_a_boot(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def cannot(_: object) -> trial.Tried:
        tries.append(1)
        return trial.Tried("Invalid argument", "Invalid argument")

    monkeypatch.setattr(trial, "tried", cannot)
    for _ in range(2):
        done = core_step.run(context, core_step.Options(parse(REFERENCE), "", 1.0))
        assert done == Outcome(detail={"reason": unpack_part.CANNOT})
    assert (len(tries), shelf.held(context.paths.state)) == (1, {})


def test_a_private_image_has_the_tree_of_its_scope(context: Context) -> None:
    """Never that of the same digest in another one; the job has a copy of it under another name."""
    copy = f"{context.run.directory}/copy.sqsh"
    Path(copy).write_text("private")
    image = StepImage(REFERENCE, context.run.own.image, copy, private="team")
    record = context.run._replace(images={REFERENCE: copy})
    context = context._replace(run=record)
    options = Options(((parse(REFERENCE), "team"),))
    assert step.run(context, options).environment == {}
    unpack(context, clones.key_of(context.policy, image), "private")
    done = step.run(context, options)
    assert Path(done.environment[VARIABLE], "which").read_text() == "private"
    assert clones.key_of(context.policy, image._replace(private="other")) != clones.key_of(context.policy, image)


def test_a_step_is_shown_the_tree_of_its_own_image(context: Context) -> None:
    """While the job runs, once; not of a run that is over, and not of more than nine images."""
    for number in range(clones.MOST + 2):
        digest, path = f"sha256:{number:064x}", stored(context.policy.paths.store, str(number))
        image = StepImage(f"reg.example.com/{number}:1", digest, path)
        unpack(context, clones.key_of(context.policy, image), str(number))
        for _ in range(2):
            assert not step_image.provide(context, image, [], context.deadline)
    which = [Path(context.run.directory, source, "which").read_text() for source in listed(context)]
    assert which == [str(number) for number in range(clones.MOST)]
    runs.save(context.paths.state, context.run._replace(run_id="other"))
    Path(context.run.directory, "shown").unlink()
    step_image.provide(context, image, [], context.deadline)
    assert not os.path.exists(f"{context.run.directory}/shown")


@pytest.mark.parametrize("propagation", ["private", "slave"])
def test_a_step_in_a_namespace_of_its_own_sees_the_tree(context: Context, propagation: str) -> None:
    """Where the node's later mounts come, too, as with the SPANK plugin: only the outer one of the two does."""
    image = StepImage("reg.example.com/1:1", f"sha256:{1:064x}", stored(context.policy.paths.store, "1"))
    unpack(context, clones.key_of(context.policy, image), "own")
    base = os.path.dirname(context.policy.paths.store)
    subprocess.run(["/usr/bin/mount", "--bind", base, base], check=True)
    try:
        subprocess.run(["/usr/bin/mount", "--make-shared", base], check=True)
        script = f"echo; read line; cat {context.run.directory}/mounted/*/tree/which"
        argv = ["/usr/bin/unshare", "--mount", "--propagation", propagation, "/bin/sh", "-c", script]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY)
            step_image.provide(context, image, [namespace], context.deadline)
            os.close(namespace)
            seen, _ = process.communicate("\n")
        assert seen == "own"
    finally:
        subprocess.run(["/usr/bin/umount", "-R", "-l", base], check=True)


@pytest.mark.parametrize(("why", "comes"), [(unpacks.TOO_LONG, True), ("unsquashfs: no", False)])
def test_later_steps_ask_for_a_tree_that_is_on_its_way_alone(
    context: Context, monkeypatch: pytest.MonkeyPatch, why: str, comes: bool
) -> None:
    monkeypatch.setattr(unpacks, "obtain", lambda *_: why)
    image = StepImage("reg.example.com/1:1", f"sha256:{1:064x}", stored(context.policy.paths.store, "1"))
    assert step_image.provide(context, image, [], context.deadline) is comes
    assert listed(context) == []
