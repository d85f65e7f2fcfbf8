"""`warmstart doctor`: checks of the policy and the node, and the command itself."""

from __future__ import annotations

import base64
import json
import os
import pwd
import re
import socket
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.command_line import POLICY, answer, installed, run
from tests.lib.node import OsAs
from tests.lib.runs import a_record
from warmstart import wing
from warmstart.audit.line import timestamp
from warmstart.cli import doctor
from warmstart.doctor import constant_path, containers, job_side, kernel, node, slurm, store, units
from warmstart.doctor import policy as site_policy
from warmstart.doctor.finding import CRITICAL_CHECKS, Finding, Result
from warmstart.doctor.finding import run as run_checks
from warmstart.doctor.node import Node
from warmstart.errand import Errand, Errands, at_work
from warmstart.harvest import deferred
from warmstart.harvest.deferred import REMOVALS
from warmstart.harvest.live import ROUNDS, Watched
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.namespaces import Mount
from warmstart.images import choice, credentials
from warmstart.images.importers import layer_reader
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.store.published import RememberedFailure
from warmstart.paths import Installation
from warmstart.policy.compiled import Credentials, PrivateRepository
from warmstart.policy.current import current_policy

DOCS = Path(__file__).resolve().parents[3] / "docs" / "operations" / "doctor.md"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """Return an installation with a compiled policy. The user who runs the tests stands for root."""
    monkeypatch.setattr(site_policy, "ROOT_ALONE", frozenset({0, os.getuid()}))
    installation = installed(tmp_path / "prefix")
    current_policy(installation, keep=True)
    return installation


@pytest.fixture
def here(site: Installation, tmp_path: Path) -> Node:
    """Return the node of that installation, with a workspace."""
    policy = current_policy(site).policy
    (tmp_path / "work").mkdir()
    paths = policy.paths._replace(workspace=str(tmp_path / "work"), audit=str(tmp_path / "log" / "audit.jsonl"))
    return Node(site, policy._replace(paths=paths))


def policy_statuses(site: Installation) -> dict[str, str]:
    """Return the statuses of the policy's checks."""
    return {result.check: result.status for result in run_checks(site_policy.CHECKS, site)}


def one(check: Callable[[Node], object], subject: Node) -> Result:
    """Return the finding of one check of a node."""
    (found,) = run_checks({"x": check}, subject)  # type: ignore[dict-item]
    return found


def test_a_good_policy(site: Installation) -> None:
    """Nothing to change."""
    assert set(policy_statuses(site).values()) == {"ok"}


@pytest.mark.threat(19)
def test_a_broken_edit_is_critical_and_says_why(site: Installation) -> None:
    """The last good policy is in force, perhaps with withdrawn rights."""
    Path(site.policy).write_text(POLICY.replace("registries", "registeries"))
    found = next(result for result in run_checks(site_policy.CHECKS, site) if result.check == "policy.in-force")
    assert found.status == "critical"
    assert "last good policy" in found.found
    assert "registeries: unknown key" in found.found


def test_no_policy_is_critical(tmp_path: Path) -> None:
    """Without a policy the node and the store are not checked."""
    site = Installation(str(tmp_path))
    found = {result.check: result.status for result in doctor.examine(site, "/dev/null")}
    assert found["policy.in-force"] == "critical"
    assert (found["node"], found["store"]) == ("unknown", "unknown")


@pytest.mark.threat(19)
def test_a_policy_that_others_can_write(site: Installation) -> None:
    """The file or its directory: either makes them root."""
    Path(site.policy).chmod(0o666)
    assert policy_statuses(site)["policy.files"] == "critical"
    Path(site.policy).chmod(0o644)
    Path(site.etc).chmod(0o777)
    assert policy_statuses(site)["policy.files"] == "critical"


def test_a_compiled_form_that_is_damaged_or_missing(site: Installation) -> None:
    """Every hook would have to compile."""
    Path(site.compiled_policy).write_text("{")
    assert policy_statuses(site)["policy.compiled"] == "wrong"
    Path(site.compiled_policy).unlink()
    assert policy_statuses(site)["policy.compiled"] == "ok"  # no hook has run
    os.makedirs(site.node("n1").state)
    assert policy_statuses(site)["policy.compiled"] == "advice"


def test_the_switch(site: Installation) -> None:
    """A forgotten `off` is wrong, with its age."""
    Path(site.off_switch).touch()
    os.utime(site.off_switch, (time.time() - 7200,) * 2)
    found = next(result for result in run_checks(site_policy.CHECKS, site) if result.check == "policy.off")
    assert (found.status, "existed for 2h" in found.found) == ("wrong", True)


def test_a_policy_without_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives nothing to anybody."""
    monkeypatch.setattr(site_policy, "ROOT_ALONE", frozenset({0, os.getuid()}))
    assert policy_statuses(installed(tmp_path, POLICY.partition("rules:")[0]))["policy.in-force"] == "wrong"


@pytest.mark.parametrize(
    ("more", "status"),
    [("", "ok"), ("mode: observe\n", "advice"), ("  - {name: watch, mode: observe}\n", "advice")],
)
def test_jobs_that_are_only_observed(tmp_path: Path, more: str, status: str) -> None:
    """All, or those of a rule: easily forgotten."""
    assert policy_statuses(installed(tmp_path, POLICY + more))["policy.mode"] == status


def test_accounts(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three accounts that exist, have the uids that hooks use, and no privileges."""
    people = {name: (number, number) for number, name in enumerate(("w", "i", "v"), 900)}
    groups = {"w": [900]}
    monkeypatch.setattr(pwd, "getpwnam", lambda n: SimpleNamespace(pw_name=n, pw_uid=people[n][0], pw_gid=people[n][1]))
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: groups.get(name, [gid]))
    users = {key: Identity(name, *people[name]) for key, name in zip(node.ACCOUNTS, people, strict=True)}
    subject = here._replace(policy=here.policy._replace(**users))  # type: ignore[arg-type]
    assert one(node.accounts, subject).status == "ok"
    groups["w"] = [0]
    assert "privileged" in one(node.accounts, subject).found
    groups["w"] = [900]
    people["i"] = (900, 900)
    compiled, shared = node.accounts(subject)
    assert (compiled.status, "hooks use 901:901: it had other ids" in compiled.found) == ("wrong", True)
    assert f"touch {here.installation.policy}" in compiled.change  # the accounts may be right
    assert (shared.status, "shares uid" in shared.found) == ("wrong", True)
    people["i"] = (905, 905)
    assert [found.found for found in node.accounts(subject)] == [compiled.found.replace("900:900", "905:905")]
    people["i"] = (901, 901)
    del people["v"]
    assert "does not exist" in one(node.accounts, subject).found


@pytest.mark.report
def test_each_account_is_mended_alone(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two that are good are not to be made again."""
    people = {"w": (900, 900), "v": (902, 902)}
    monkeypatch.setattr(pwd, "getpwnam", lambda n: SimpleNamespace(pw_name=n, pw_uid=people[n][0], pw_gid=people[n][1]))
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, *([0] if name == "v" else [])])
    users = {
        key: Identity(name, uid, uid)
        for key, (name, uid) in zip(node.ACCOUNTS, (("w", 900), ("i", 901), ("v", 902)), strict=True)
    }
    subject = here._replace(policy=here.policy._replace(**users))  # type: ignore[arg-type]
    missing, privileged = node.accounts(subject)
    assert "`useradd --system --uid 901 --no-create-home --shell /usr/sbin/nologin i`" in missing.change
    assert privileged.change == "take it out of these groups: `gpasswd -d v root`"


def test_directories_that_must_be_roots(tmp_path: Path) -> None:
    """A mode or an owner that lets others in is reported, also in a parent."""
    (good,) = node._owned_by_root(["/etc"], "wrong", "x")
    assert good.status == "ok"
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    place.parent.chmod(0o777)
    (bad,) = node._owned_by_root([str(place)], "critical", "x")
    assert (bad.status, f"{place.parent} (uid" in bad.found) == ("critical", True)


@pytest.mark.parametrize(
    ("kind", "place", "file_system", "limits"),
    [
        ("ext4", "/", "ok", "advice"),
        ("xfs", "/scratch", "ok", "ok"),
        ("nfs4", "/scratch", "wrong", "ok"),
        ("fuse.sshfs", "/scratch", "wrong", "ok"),
        ("tmpfs", "/scratch", "advice", "ok"),
    ],
)
def test_where_workspaces_are(
    here: Node, monkeypatch: pytest.MonkeyPatch, *, kind: str, place: str, file_system: str, limits: str
) -> None:
    """On a local disk, preferably a file system of their own."""
    monkeypatch.setattr(node, "mount_of", lambda _: (kind, place))
    assert (one(node.file_system, here).status, one(node.limits, here).status) == (file_system, limits)


@pytest.mark.report
@pytest.mark.parametrize(("setting", "statuses"), [("1\n", ["ok"]), ("0\n", ["ok", "wrong"])])
def test_without_leases_no_import_is_proved(
    here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, statuses: list[str]
) -> None:
    """The system may have none at all, whatever the disk is."""
    monkeypatch.setattr(node, "mount_of", lambda _: ("ext4", "/"))
    monkeypatch.setattr(node, "LEASES", str(tmp_path / "leases-enable"))
    (tmp_path / "leases-enable").write_text(setting)
    assert [found.status for found in run_checks({"x": node.file_system}, here)] == statuses


@pytest.mark.parametrize(
    ("flags", "free", "inodes", "found"),
    [
        (0, 1 << 20, 5000, ["ok"]),
        (os.ST_RDONLY, 1 << 20, 5000, ["critical", "wrong"]),
        (0, 10, 5000, ["wrong", "wrong"]),
        (0, 1 << 20, 10, ["wrong", "wrong"]),
    ],
)
def test_disks_of_state_and_audit_log(
    here: Node, monkeypatch: pytest.MonkeyPatch, *, flags: int, free: int, inodes: int, found: list[str]
) -> None:
    """Read-only or full; the state's matters more."""
    seen = SimpleNamespace(f_flag=flags, f_bavail=free, f_frsize=4096, f_favail=inodes, f_files=10000)
    monkeypatch.setattr(os, "statvfs", lambda _: seen)
    assert [result.status for result in run_checks({"x": node.disks}, here)] == found


LOGIN = json.dumps({"auths": {"reg.example.com": {"auth": base64.b64encode(b"a:b").decode()}}})


@pytest.mark.parametrize(
    ("content", "mode", "status", "words"),
    [
        (LOGIN, 0o600, "ok", "a login for each registry"),
        (None, 0o600, "wrong", "No such file"),
        ("{", 0o600, "wrong", "is not an authfile"),
        (LOGIN, 0o644, "critical", "others than root can read"),
        (LOGIN.replace("reg.", "other."), 0o600, "wrong", "no login"),
    ],
)
def test_credentials(
    here: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    content: str | None,
    mode: int,
    status: str,
    words: str,
) -> None:
    """Missing, garbage, or readable by others."""
    file = tmp_path / "auth.json"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    private = PrivateRepository("team", "reg.example.com/team/*", ())
    images = here.policy.images._replace(credentials=Credentials(str(file), (private,)))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(credentials, "os", OsAs(os.getuid()))
    monkeypatch.setattr(node, "weakness_of_secret", lambda seen: bool(seen.st_mode & 0o077))  # root or not
    found = one(node.credentials, here._replace(policy=here.policy._replace(images=images)))
    assert (found.status, words in found.found) == (status, True), found


def test_room_for_workspaces(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and inodes both count."""
    for free, inodes, status in ((50, 50, "ok"), (4, 50, "wrong"), (50, 4, "wrong")):
        seen = SimpleNamespace(f_bavail=free, f_blocks=100, f_frsize=1 << 30, f_favail=inodes * 1000, f_files=100_000)
        monkeypatch.setattr(os, "statvfs", lambda _, seen=seen: seen)
        assert one(node.space, here).status == status


def test_programs(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing programs are listed; others show their version."""
    monkeypatch.setattr(node, "PROGRAMS", ("/bin/sh",))
    monkeypatch.setattr(choice, "programs", lambda _: ("/bin/true",))
    monkeypatch.setattr(node, "_version", lambda program: f"{program} 1")
    assert one(node.tools, here).status == "ok"
    monkeypatch.setattr(node, "PROGRAMS", ("/bin/sh", "/no/such/mksquashfs"))
    found = one(node.tools, here)
    assert (found.status, found.found.partition(";")[0]) == ("wrong", "missing: /no/such/mksquashfs")
    assert "apt-get install squashfs-tools" in found.change
    monkeypatch.setattr(node, "PROGRAMS", ("/bin/sh",))
    monkeypatch.setattr(layer_reader, "ZSTD_LIBRARY", "libzstd.so.0")
    monkeypatch.setitem(node.PACKAGES, "libzstd.so.0", "libzstd0")
    found = one(node.tools, here)
    assert (found.status, found.found.partition(";")[0]) == ("wrong", "missing: libzstd.so.0")


@pytest.mark.parametrize("script", ["#!/no/such/interpreter", "#!/bin/sh\nexit 127", "#!/bin/sh\nkill -9 $$"])
def test_a_program_that_does_not_run(here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """It is there, and can be executed; its interpreter or a library is not."""
    program = tmp_path / "skopeo"
    program.write_text(f"{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(choice, "programs", lambda _: (str(program),))
    monkeypatch.setattr(node, "PROGRAMS", ())
    found = one(node.tools, here)
    assert (found.status, found.found.partition(";")[0]) == ("wrong", f"{program} cannot be run")


@pytest.mark.parametrize(
    ("kind", "any_disk", "status"), [("ext4", False, "ok"), ("tmpfs", False, "wrong"), ("overlay", True, "ok")]
)
def test_where_images_are_unpacked(
    here: Node, monkeypatch: pytest.MonkeyPatch, kind: str, any_disk: bool, status: str
) -> None:
    """Nowhere, on a disk, and on none."""
    assert one(node.shelf, here).status == "ok"
    policy = here.policy
    images = policy.images._replace(unpack=policy.images.unpack._replace(any_disk=any_disk))
    named = policy._replace(paths=policy.paths._replace(shelf="/srv"), images=images)
    monkeypatch.setattr(node, "mount_of", lambda _: Mount(kind, "/"))
    found = one(node.shelf, here._replace(policy=named))
    assert (found.status, "/srv" in found.found) == (status, True)


@pytest.mark.report
@pytest.mark.parametrize(
    ("fstab", "mounted", "there", "change"),
    [
        ("/dev/sdb1 {local} xfs defaults 0 2\n", False, True, "`mount {local}`"),
        ("/dev/sdb1 {local} xfs defaults 0 2\n", True, True, ""),
        ("#/dev/sdb1 {local} xfs defaults 0 2\n\n/dev/sdc1 /other xfs\n", False, True, ""),
        ("", False, False, "mount its disk, then `install -d -m 755 {local}/shelf`"),
    ],
)
def test_a_shelf_whose_disk_is_not_mounted(
    here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, fstab: str, mounted: bool, there: bool, change: str
) -> None:
    """Neither the mount point without its disk nor a directory that is missing there is a shelf."""
    local = tmp_path / "local"
    (local / "shelf" if there else local).mkdir(parents=True)
    monkeypatch.setattr(node, "FSTAB", str(tmp_path / "fstab"))
    monkeypatch.setattr(node, "_owned_by_root", lambda *_: iter([Finding("ok", "only root can change it")]))
    (tmp_path / "fstab").write_text(fstab.format(local=local))
    monkeypatch.setattr(node, "mount_of", lambda _: Mount("ext4", "/"))
    monkeypatch.setattr(node, "mounts", lambda: [Mount("ext4", "/"), *([Mount("xfs", str(local))] if mounted else [])])
    policy = here.policy._replace(paths=here.policy.paths._replace(shelf=f"{local}/shelf"))
    found = one(node.shelf, here._replace(policy=policy))
    assert (found.status, found.change) == ("wrong" if change else "ok", change.format(local=local)), found


def test_the_proxy(here: Node) -> None:
    """There need be none; what is named must be there."""
    assert one(node.proxy, here).status == "ok"
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        images = here.policy.images._replace(proxy=address)
        named = here._replace(policy=here.policy._replace(images=images))
        assert one(node.proxy, named).status == "ok"
    assert one(node.proxy, named).status == "wrong"


def test_a_full_disk_is_told_by_its_own_check(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by advice to load modules, or to be root."""
    full = SimpleNamespace(f_bavail=1, f_blocks=1000, f_frsize=4096, f_favail=9000, f_files=9000, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert one(node.space, here).status == "wrong"
    checks = (kernel.seeding, kernel.image_limits, job_side.execution)
    assert [finding for check in checks for finding in check(here)] == []


@pytest.mark.parametrize(("code", "status"), [("registry-unreachable", "wrong"), ("image-not-found", "advice")])
def test_a_registry_that_fails_fails_for_all(
    here: Node, monkeypatch: pytest.MonkeyPatch, code: str, status: str
) -> None:
    """A user's typing error is no fault of the site."""
    os.makedirs(here.installation.node("n1").state)
    monkeypatch.setattr(requests, "failures", lambda _: [RememberedFailure(code, {}, "x")])
    assert one(node.imports, here).status == status


def test_the_importer_is_told_and_why(here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the policy leaves it to the node."""
    monkeypatch.setattr(node, "_version", lambda program: program)
    monkeypatch.setattr(node, "PROGRAMS", ())
    monkeypatch.setattr(choice, "programs", lambda _: ())
    monkeypatch.setattr(choice, "ENROOT", "/bin/sh")
    monkeypatch.setattr(choice, "UMOCI", str(tmp_path / "umoci"))

    def told(importer: str) -> str:
        policy = here.policy._replace(images=here.policy.images._replace(importer=importer))
        return one(node.tools, here._replace(policy=policy)).found.partition(";")[0]

    assert told("auto") == f"the importer is enroot (images.importer is auto, and {tmp_path}/umoci is not there)"
    (tmp_path / "umoci").touch()
    assert told("auto") == f"the importer is oci (images.importer is auto, and {tmp_path}/umoci is there)"
    assert told("enroot") == "the importer is enroot"


def test_every_program_has_a_package() -> None:
    """Whoever misses one learns what to install."""
    programs = [*node.PROGRAMS, *choice.programs("oci"), *choice.programs("enroot")]
    assert {os.path.basename(program) for program in programs} <= {*node.PACKAGES}


def test_journals_and_spools_that_wait(here: Node) -> None:
    """Recent ones are normal; old ones are reported."""
    place = here.installation.node("n1")
    for directory in (place.state, place.journal, f"{place.spool}/1.2.3.numba"):
        os.makedirs(directory)
    assert "0 journals" in one(node.journals, here).found
    assert "0 bundles" in one(node.spool, here).found
    journal, bundle = Path(place.journal, "prolog-r1-1.done"), Path(place.spool, "1.2.3.numba", "bundle.sqsh")
    journal.touch()
    bundle.write_text("x" * 2048)
    assert (one(node.journals, here).status, one(node.spool, here).status) == ("ok", "ok")
    assert "1 bundles (2KiB)" in one(node.spool, here).found
    os.utime(journal, (time.time() - 360,) * 2)
    assert one(node.journals, here).status == "advice"
    for path in (journal, bundle):
        os.utime(path, (time.time() - 7200,) * 2)
    assert (one(node.journals, here).status, one(node.spool, here).status) == ("wrong", "wrong")


def test_hooks_that_were_killed_are_told(here: Node) -> None:
    """For a day: in journals that wait, and in the audit log. Not bugs, whose traceback says more, nor other hosts'."""
    place = here.installation.node("n1")
    os.makedirs(place.state)
    assert one(node.killed_hooks, here).status == "ok"
    log = Path(here.policy.paths.audit)
    log.parent.mkdir(parents=True)
    crash = {"event": "hook.crashed", "hook": "epilog", "run_id": "0a", "node": "n1", "job_id": 6, "reason": "killed"}
    old, recent = timestamp(time.time() - 2 * 86400), timestamp(time.time() - 3600)
    bug = {key: value for key, value in crash.items() if key != "reason"}
    lines = [{"ts": old, **crash}, {"ts": recent, **bug, "traceback": "x"}, {"ts": recent, **crash, "node": "n2"}]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert one(node.killed_hooks, here).status == "ok"
    with log.open("a") as file:
        file.write(f"{json.dumps({'ts': recent, **crash})}\n")
    found = one(node.killed_hooks, here)
    assert (found.status, found.found) == (
        "advice", f"1 hooks were killed in the last day, the last was the epilog of job 6 on n1 at {recent}",
    )  # fmt: skip
    journal = Path(place.journal, "prolog-r1-4999999.open")
    journal.parent.mkdir()
    journal.write_text(json.dumps({"ts": time.time(), "event": "hook.started", "node": "n1", "job_id": 7}) + "\n")
    assert (
        "2 hooks were killed in the last day, the last was the prolog of job 7 on n1"
        in one(node.killed_hooks, here).found
    )
    log.chmod(0)
    if os.getuid() != 0:
        assert one(node.killed_hooks, here).status == "unknown"


def test_stuck_and_failed_imports_are_told(here: Node) -> None:
    """One that waits for its turn is normal; one that maintenance should have started, or a failure, is not."""
    place = here.installation.node("n1")
    os.makedirs(place.state)
    assert one(node.imports, here).status == "ok"
    request = ImportRequest(
        reference="reg.io/a:1", kind="k", private="", user="a", uid=1, cluster="c", job_id=7,
        asked=time.time(),
    )  # fmt: skip
    assert requests.submit(place, request) == ""
    assert "1 imports wait" in one(node.imports, here).found
    old = request._replace(reference="reg.io/b:1")
    Errands(place, IMPORTS).put(Errand("1", int(time.time()) - 3600, 0, old.key), old)
    with at_work(place, IMPORTS.name):
        assert "2 imports wait" in one(node.imports, here).found
    found = one(node.imports, here)
    assert (found.status, found.found) == ("wrong", "nobody makes the import of reg.io/b:1")
    for waiting in (request, old):
        Errands(place, IMPORTS).drop(waiting.key)
    error = requests.ImportAbandoned(image="reg.io/a:1", node="n1", problem="it was cancelled")
    requests.remember_failure(place, request.image, RememberedFailure.of(error))
    found = one(node.imports, here)
    assert (found.status, "import of image reg.io/a:1 on node n1 was given up" in found.found) == ("advice", True)


def test_jobs_that_nobody_harvests_while_they_run(here: Node) -> None:
    """Their rounds were due three intervals of the timer ago. Without the policy's key nothing is said."""
    place = here.installation.node("n1")
    os.makedirs(place.state)
    live = here._replace(policy=here.policy._replace(harvest=here.policy.harvest._replace(while_running=900)))
    for job, ago in ((7, 600), (8, 1000)):
        Errands(place, ROUNDS).put(Errand("1", int(time.time()) - ago, 0, f"{job}.0a1b2c3d"), Watched("/none", 0.0))
    with at_work(place, ROUNDS.name):
        assert one(node.rounds, live).status == "ok"
    found = one(node.rounds, live)
    assert (found.status, found.found) == ("wrong", "nobody harvests jobs while they run: 8")
    assert run_checks({"x": node.rounds}, here) == []


def test_removals_that_last_are_told(here: Node) -> None:
    """That something waits is normal, for an hour."""
    place = here.installation.node("n1")
    os.makedirs(place.state)
    deferred.defer(place, REMOVALS, a_record(), time.time() - 60)
    found = one(node.removals, here)
    assert (found.status, found.found) == ("ok", "directories of 1 jobs that are over are being removed")
    deferred.defer(place, REMOVALS, a_record(), time.time() - 7200)
    found = one(node.removals, here)
    assert (found.status, found.found.endswith("the oldest for 2h")) == ("wrong", True)


@pytest.mark.threat(22)
def test_overdue_maintenance_is_told(here: Node) -> None:
    """Three intervals after the last success; on a new node after three intervals without one."""
    assert one(node.maintenance, here).status == "ok"  # no hook has run here
    places = [here.installation.node(name) for name in ("n1", "n2")]
    for place in places:
        os.makedirs(place.state)
    assert one(node.maintenance, here).status == "advice"
    os.utime(places[1].root, (time.time() - 2 * 3600,) * 2)
    found = one(node.maintenance, here)
    assert (found.status, found.found) == ("wrong", "maintenance has never succeeded on n2")
    for place in places:
        Path(place.maintained).touch()
    assert one(node.maintenance, here).status == "ok"
    os.utime(places[0].maintained, (time.time() - 2 * 3600,) * 2)
    found = one(node.maintenance, here)
    assert (found.status, found.found) == ("wrong", "maintenance last succeeded 2h ago on n1")


UNIT = r"warmstart\.target"


@pytest.mark.parametrize("has_systemd", [True, False])
def test_units_are_named_where_systemd_runs(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_systemd: bool
) -> None:
    """In a pod a supervisor has to run what does their work."""
    monkeypatch.setattr(units, "SYSTEMD", str(tmp_path if has_systemd else tmp_path / "none"))
    place, long_ago = here.installation.node("n1"), time.time() - 7200
    waiting = [place.maintained, f"{place.journal}/prolog-r1-1.done", f"{place.spool}/1.2.3.numba/bundle.sqsh"]
    os.makedirs(place.state)
    deferred.defer(place, REMOVALS, a_record(), long_ago)
    request = ImportRequest(
        reference="reg.io/b:1", kind="k", private="", user="a", uid=1, cluster="c", job_id=7, asked=long_ago
    )
    Errands(place, IMPORTS).put(Errand("1", int(long_ago), 0, request.key), request)

    def changes() -> list[str]:
        checks = (node.maintenance, node.journals, node.spool, node.removals, node.imports)
        return [one(check, here).change for check in checks]

    told = changes()[:1]  # maintenance has not succeeded yet
    for path in waiting:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
    for age in (400, 7200):  # journals are late, and then nobody comes for them
        for path in waiting:
            os.utime(path, (time.time() - age,) * 2)
        told += changes()
    told = [change for change in told if change]
    assert len(told) == 9
    assert all(bool(re.search(UNIT, change)) is has_systemd for change in told)
    assert all(f"{here.installation.libexec}/timers" in change for change in told) is not has_systemd


def test_how_jobs_ended_matters_where_the_policy_says_so(here: Node, tmp_path: Path) -> None:
    """The status depends on whether a rule, the policy or only a job's request needs squeue."""
    policy = here.policy._replace(paths=here.policy.paths._replace(scontrol=str(tmp_path / "scontrol")))
    found = one(kernel.job_ends, here._replace(policy=policy))
    assert (found.status, "of files is harvested" in found.found) == ("advice", True)
    careful = policy._replace(rules=(policy.rules[0]._replace(profiles=("numba", "files")),))
    everything = policy._replace(harvest=policy.harvest._replace(only_successful=True))
    for wrong in (careful, everything):
        assert one(kernel.job_ends, here._replace(policy=wrong)).status == "wrong"
    (tmp_path / "squeue").touch(0o755)
    for fine in (policy, careful, everything):
        assert one(kernel.job_ends, here._replace(policy=fine)).status == "ok"


def test_mounts_are_tried_by_root_in_a_directory_of_roots(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others could otherwise replace the mount point."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for check in (kernel.seeding, kernel.image_limits):
        assert one(check, here).status == "unknown"


@pytest.mark.parametrize(("uid", "change"), [(1000, "run it as root"), (0, "")])
def test_a_check_that_fails_itself_is_unknown(monkeypatch: pytest.MonkeyPatch, uid: int, change: str) -> None:
    """It neither crashes nor is ok; a hang is wrong. Root is not told to be root."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)

    def denied(_: None) -> list[Finding]:
        raise PermissionError(13, "Permission denied", "/x")

    def broken(_: None) -> list[Finding]:
        raise OSError(5, "Input/output error", "/x")

    def hangs(_: None) -> list[Finding]:
        raise WorkerSilent(what="f", problem="no answer")

    found = run_checks({"a": denied, "b": broken, "c": hangs}, None)
    assert [(r.status, r.change) for r in found[:2]] == [("unknown", change), ("unknown", "")]
    assert found[2].status == "wrong"


def test_a_store_that_hangs_costs_one_deadline(site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check reports it; the others are not tried."""

    def hangs(*_: object) -> None:
        raise WorkerSilent(what="f", problem="no answer")

    policy = current_policy(site).policy
    monkeypatch.setattr(store, "opened", hangs)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = {r.check: r.status for r in doctor._store(site, policy)}
    assert found == {"store.reachable": "critical"}


def test_what_a_user_cannot_do_is_said(site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can check the store."""
    policy = current_policy(site).policy
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = {r.check: (r.status, r.change) for r in doctor._store(site, policy)}
    assert found["store"] == ("unknown", "run it as root")


@pytest.mark.parametrize(
    ("check", "status", "code"),
    [
        ("a.b", "ok", 0), ("a.b", "advice", 0), ("a.b", "unknown", 1), ("a.b", "wrong", 1), ("a.b", "critical", 2),
        ("store.owner", "unknown", 2),
    ],
)  # fmt: skip
def test_exit_statuses(site: Installation, monkeypatch: pytest.MonkeyPatch, check: str, status: str, code: int) -> None:
    """Scripts use the status, people the table; what a critical check cannot see is critical."""
    monkeypatch.setattr(doctor, "examine", lambda *_: [Result(check, status, "found this", "do that")])
    shown = run(site, "doctor", "--all")
    assert (shown.exit_code, "found this. To do: do that" in shown.stdout) == (code, True)
    assert run(site, "doctor").stdout.splitlines()[-1] == f"1 {status}"
    finding = {"check": check, "status": status, "found": "found this", "change": "do that"}
    assert answer(site, "doctor") == {"ok": code == 0, "status": code, "findings": [finding]}


def test_problems_come_first_and_what_is_ok_is_one_number(site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst on top, and a line at the end."""
    kinds = ("ok", "advice", "critical", "ok", "wrong")
    monkeypatch.setattr(doctor, "examine", lambda *_: [Result(f"a.{kind}", kind, kind, "") for kind in kinds])
    lines = run(site, "doctor").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["critical", "wrong", "advice"]
    assert lines[-1] == "1 critical, 1 wrong, 1 advice, 2 ok"


def test_a_bug_is_status_3(site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was examined, and the status does not say otherwise."""

    def broken(*_: object) -> list[Result]:
        raise ZeroDivisionError

    monkeypatch.setattr(doctor, "examine", broken)
    assert run(site, "doctor").exit_code == 3


def test_a_slurm_conf_that_is_not_there(site: Installation) -> None:
    """A wrong path is wrong usage; without any file its checks are unknown, in one row."""
    assert run(site, "doctor", "--slurm-conf", "/no/such").exit_code == 3
    (found,) = doctor._slurm(site, None, "/no/such")
    assert (found.check, found.status) == ("slurm", "unknown")
    number = len([*doctor.SLURM, *containers.CHECKS, *constant_path.CHECKS])
    assert found.found.startswith(f"{number} checks were not made: /no/such")


def test_the_documentation_has_every_check() -> None:
    """And no other; the pages of wings have theirs."""
    groups = (
        site_policy.CHECKS,
        doctor.NODE,
        store.CHECKS,
        slurm.CHECKS,
        containers.CHECKS,
        constant_path.CHECKS,
    )
    code = [name for group in groups for name in group]
    row = r"^\| `([a-z]+\.[a-z-]+)` \|"
    documented = re.findall(row, DOCS.read_text(), re.MULTILINE)
    parts = {name: wing.load(f"{name}.checks").CHECKS for name in wing.found() if wing.has(name, "checks")}
    of_wings = {name: [*part.node, *part.store, *part.slurm] for name, part in parts.items()}
    assert documented == [name for name in code if name not in {*chain(*of_wings.values())}]
    for name, known in of_wings.items():
        page = DOCS.parents[1] / "wings" / f"{name}.md"
        assert re.findall(row, page.read_text(), re.MULTILINE) == known
    assert CRITICAL_CHECKS - {"node", "store", "slurm", "slurm.tasks"} <= {*documented}


def _broken(*_: object) -> object:
    raise KeyError("x")


def _half(_: object) -> Iterator[Finding]:
    yield Finding("wrong", "half")
    _broken()


GROUPS = [site_policy.CHECKS, doctor.NODE, doctor.SLURM, doctor.TASKS]
if os.geteuid() == 0:  # who alone becomes the store's owner
    GROUPS.append(doctor.STORE)


@pytest.mark.report
@pytest.mark.parametrize("check", [_broken, _half])
@pytest.mark.parametrize("group", GROUPS)
def test_a_bug_in_a_check_is_one_finding(
    site: Installation,
    group: dict[str, object],
    check: Callable[[object], object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Which names the place; what this check found before, and all other checks, are told."""
    conf = tmp_path / "slurm.conf"
    conf.touch()
    whole = doctor.examine(site, str(conf))
    name = next(iter(group))
    monkeypatch.setitem(group, name, check)
    found = doctor.examine(site, str(conf))
    of_it = [(r.status, r.found, r.change) for r in found if r.check == name]
    bug = f"a bug in this check: KeyError('x') ({Path(__file__).name}:{_broken.__code__.co_firstlineno + 1})"
    half = [("wrong", "half", "")] if check is _half else []
    assert of_it == [*half, ("unknown", bug, "report it")]
    assert {r.check for r in found} == {r.check for r in whole}


@pytest.mark.report
@pytest.mark.parametrize(
    ("place", "named"),
    [
        ((doctor, "Node"), "node"),
        ((store, "opened"), "store"),
        ((doctor, "Slurm"), "slurm"),
        ((containers, "tasks"), "slurm.tasks"),
        ((doctor, "current_policy"), "node"),
    ],
)
def test_a_bug_beside_the_checks_leaves_the_other_parts(
    site: Installation, place: tuple[object, str], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What one part begins with is nothing to the others."""
    conf = tmp_path / "slurm.conf"
    conf.touch()
    monkeypatch.setattr(*place, _broken)
    found = {result.check: result for result in doctor.examine(site, str(conf))}
    assert found[named].status == "unknown"
    others = {"node": "slurm.conf", "store": "node.code", "slurm": "node.code", "slurm.tasks": "slurm.conf"}
    assert {"policy.in-force", others[named]} <= found.keys()
