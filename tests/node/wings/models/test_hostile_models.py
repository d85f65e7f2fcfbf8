"""A user who makes a model that leads elsewhere, or stands in for another's."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.processes import wait_until
from tests.lib.wings.models.values import ALICE, BOB, ModelSite, snapshot
from warmstart.host.identity import Identity
from warmstart.policy.keys import User
from warmstart.policy.shared import SharedPath
from warmstart.wings.models import client, look

WEIGHTS, SECRET = b"weights of a model", b"a secret of another user"


def copies(here: ModelSite) -> list[bytes]:
    return sorted((here.shelf / "files" / name).read_bytes() for name in here.files() if "." not in name)


@pytest.mark.threat(62)
@pytest.mark.parametrize("case", ["unreadable", "a link", "a file of the system", "another's model"])
def test_what_the_user_may_not_read_is_never_copied(here: ModelSite, case: str) -> None:
    """Root copies what the user's own process has opened, below the model, and nothing else."""
    secret = here.model("bobs", SECRET, user=BOB)
    model = here.model("alices", WEIGHTS)
    link = model / "more.bin"
    if case == "unreadable":
        link.write_bytes(SECRET)
        os.chown(link, BOB.uid, BOB.gid)
        link.chmod(0o600)
        assert "Permission denied" in here.copy(model)
    elif case == "a link":
        link.symlink_to(secret / "model.bin")
        here.copy(model)
    elif case == "a file of the system":
        link.symlink_to("/etc/shadow")
        here.copy(model)
    else:
        model = secret
        assert "Permission denied" in here.copy(model)
    assert SECRET not in copies(here)


@pytest.mark.threat(62)
def test_a_file_that_is_swapped_between_the_look_and_the_open(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out of the user's process has to be open at the path that was looked at."""
    model, opened = here.model("one", WEIGHTS), client.ModelClient.opened

    def swapped(self: client.ModelClient, file: look.ModelFile, *more: object) -> int:
        (model / "model.bin").rename(model / "moved")
        (model / "model.bin").symlink_to("moved")
        return opened(self, file, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(client.ModelClient, "opened", swapped)
    assert here.copy(model)
    assert copies(here) == []


@pytest.mark.threat(62)
def test_another_descriptor_than_was_asked_for(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's process that lies hands over another file of the user's."""
    model = here.model("one", WEIGHTS)
    other = here.model("two", WEIGHTS.upper()) / "model.bin"
    send = client._send_opened

    def lying(channel: int, named: str, file: look.ModelFile) -> None:
        send(
            channel, named, file._replace(path=str(other), inode=other.stat().st_ino, mtime_ns=other.stat().st_mtime_ns)
        )

    lying.__module__, lying.__qualname__ = client.__name__, "_send_opened"
    monkeypatch.setattr(client, "_send_opened", lying)
    assert "is not what was opened there" in here.copy(model)
    assert copies(here) == []


@pytest.mark.threat(62)
def test_a_name_is_no_proof(here: ModelSite) -> None:
    """Who puts other bytes under the SHA-256 of a model that others use gives them nothing."""
    mine = snapshot(here.models / "mine", WEIGHTS)
    blob = (mine / "model.safetensors").resolve()
    blob.write_bytes(WEIGHTS.upper())
    here.own(here.models / "mine")
    assert here.copy(mine)
    right = snapshot(here.models / "right", WEIGHTS)
    here.own(here.models / "right", BOB)
    assert here.copy(right, BOB, job=8) == ""
    assert copies(here) == [WEIGHTS]
    assert [item.about.uid for item in here.sets()] == [BOB.uid]


@pytest.mark.threat(62)
def test_a_hash_is_no_proof_that_one_has_the_content(here: ModelSite) -> None:
    """A gated model's are public: who puts as many other bytes under one gets no copy of another user's file."""
    right = snapshot(here.models / "right", SECRET)
    here.own(here.models / "right", BOB)
    assert here.copy(right, BOB, job=8) == ""
    fake = snapshot(here.models / "fake", SECRET)
    (fake / "model.safetensors").resolve().write_bytes(bytes(len(SECRET)))
    here.own(here.models / "fake")
    assert "is not the one in its name" in here.copy(fake)
    assert [item.about.uid for item in here.sets()] == [BOB.uid]
    (fake / "model.safetensors").resolve().write_bytes(SECRET)
    here.own(here.models / "fake")
    here.due()
    assert here.copy(fake) == ""
    assert copies(here) == [SECRET]
    assert {item.about.uid for item in here.sets()} == {ALICE.uid, BOB.uid}


@pytest.mark.threat(62)
@pytest.mark.parametrize("case", ["others can write it", "it is another's", "it is another file", ""])
def test_what_many_would_be_shown_is_looked_at_by_root(
    here: ModelSite, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the process of the user who asks says of a file."""
    rule = SharedPath(f"{here.models}/*", (User(BOB.name, BOB.uid),), "site", "all")
    model = here.model("one", WEIGHTS, user=BOB, mode=0o666 if case == "others can write it" else 0o644)
    if case == "it is another's":
        here.own(model, ALICE)
    found = look.look(str(model), [str(here.models)])
    (file,) = found.files
    inode = file.inode + (case == "it is another file")
    said = found._replace(files=(file._replace(owner=BOB.uid, is_guarded=True, inode=inode),))
    monkeypatch.setattr(client.ModelClient, "look", lambda *_: said)
    monkeypatch.setattr(client, "_compare", lambda *_: None)
    problem = here.copy(model, ALICE, shared=rule)
    assert ("is not as it was found" in problem, copies(here)) == ((True, []) if case else (False, [WEIGHTS]))


@pytest.mark.threat(62)
def test_a_process_that_hands_over_nothing(here: ModelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root waits for it no longer than for one that hangs."""
    model = here.model("one", WEIGHTS)

    def silent(channel: int, named: str, file: look.ModelFile) -> None:
        assert (channel, named, file.size) == (channel, str(model), len(WEIGHTS))

    silent.__module__, silent.__qualname__ = client.__name__, "_send_opened"
    monkeypatch.setattr(client, "_send_opened", silent)
    monkeypatch.setattr(client, "RECEIVE_S", 0.1)
    assert "timed out" in here.copy(model)
    assert copies(here) == []


@pytest.mark.threat(62)
def test_a_set_is_found_by_its_user_alone(here: ModelSite) -> None:
    """Whoever may not read the originals does not know a set's name, and has none of that name."""
    model = here.model("one", WEIGHTS, mode=0o644)
    assert here.copy(model) == ""
    seen = look.look(str(model), [str(here.models)])
    assert here.take(seen.key(str(ALICE.uid))) == [WEIGHTS]
    assert here.take(seen.key(str(BOB.uid))) is None


@pytest.mark.report
@pytest.mark.threat(62)
@pytest.mark.parametrize("is_users", [True, False])
def test_root_reads_at_no_users_pace(here: ModelSite, *, is_users: bool) -> None:
    """A FUSE file system that a user mounted is not read; the shared one may be of FUSE, too, and root mounted it."""
    entry = pwd.getpwnam("games")  # fusermount wants an account
    user = Identity("games", entry.pw_uid, entry.pw_gid) if is_users else ALICE
    served = here.model("served", WEIGHTS, user=user).rename(here.base / "served")
    model = here.models / "one"
    model.mkdir()
    here.own(model, user)
    become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"] if is_users else []
    options = ["--no-allow-other"] if is_users else ["-o", "allow_other"]
    argv = [*become, "/usr/bin/bindfs", "-f", *options, str(served), str(model)]
    with mounts.fuse_for_all(), subprocess.Popen(argv) as server:
        try:
            wait_until("bindfs", lambda: f" {model} fuse" in Path("/proc/mounts").read_text(), 20)
            problem = here.copy(model, user)
        finally:
            subprocess.run(["umount", str(model)], check=True)
            server.wait(20)
    assert ("on a file system that a user mounted" in problem) == is_users
    assert copies(here) == ([] if is_users else [WEIGHTS])


@pytest.mark.report
@pytest.mark.threat(62)
def test_holes_take_no_room(here: ModelSite) -> None:
    """A file of holes is not copied: it would take its whole size here."""
    model = here.model("one", WEIGHTS)
    with (model / "model.bin").open("r+b") as file:
        file.truncate(64 << 20)
    assert "consists mostly of holes" in here.copy(model)
    assert copies(here) == []


@pytest.mark.report
def test_a_group_that_the_node_does_not_know_is_named(here: ModelSite) -> None:
    """With nss_slurm the job's credential alone has the user's groups: the job can read it, this node's look cannot."""
    model = here.model("one", WEIGHTS, user=BOB, mode=0o640)
    model.chmod(0o750)
    os.chown(model, BOB.uid, grp.getgrnam("games").gr_gid)
    assert "does not know the user as a member of group games" in here.copy(model)
