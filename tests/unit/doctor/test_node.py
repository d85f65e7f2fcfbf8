"""`warmstart doctor`: checks of the policy and the node, and the command itself."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from tests.lib.command_line import answer, installed, run
from warmstart.cli import doctor
from warmstart.doctor import constant_path, containers, job_side, kernel, node, store, units
from warmstart.doctor import policy as site_policy
from warmstart.doctor.finding import Finding, Result
from warmstart.doctor.finding import run as run_checks
from warmstart.doctor.node import Node
from warmstart.errand import Errand, Errands, at_work
from warmstart.harvest.live import ROUNDS, Watched
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.namespaces import Mount
from warmstart.images import choice
from warmstart.images.importers import layer_reader
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.paths import Installation
from warmstart.policy.current import current_policy


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


def one(check: Callable[[Node], object], subject: Node) -> Result:
    (found,) = run_checks({"x": check}, subject)  # type: ignore[dict-item]
    return found


@pytest.fixture
def subject(here: Node, monkeypatch: pytest.MonkeyPatch) -> tuple[Node, dict[str, int], dict[str, list[int]]]:
    """Return a node with accounts `w`, `i` and `v` (900 to 902), their uids and their groups, which may be changed."""
    people, groups = {"w": 900, "i": 901, "v": 902}, dict[str, list[int]]()
    monkeypatch.setattr(pwd, "getpwnam", lambda n: SimpleNamespace(pw_name=n, pw_uid=people[n], pw_gid=people[n]))
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, *groups.get(name, [])])
    users = {key: Identity(name, uid, uid) for key, (name, uid) in zip(node.ACCOUNTS, people.items(), strict=True)}
    return here._replace(policy=here.policy._replace(**users)), people, groups  # type: ignore[arg-type]


def test_an_account_that_shares_its_uid_had_another_one_when_the_policy_was_compiled(
    subject: tuple[Node, dict[str, int], dict[str, list[int]]],
) -> None:
    where, people, _ = subject
    assert one(node.accounts, where).status == "ok"
    people["i"] = 900
    compiled, shared = node.accounts(where)
    assert (compiled.status, "hooks use 901:901" in compiled.found) == ("wrong", True)
    assert f"touch {where.installation.policy}" in compiled.change  # the accounts may be right
    assert (shared.status, "shares uid" in shared.found) == ("wrong", True)


@pytest.mark.report
def test_each_account_is_mended_alone(subject: tuple[Node, dict[str, int], dict[str, list[int]]]) -> None:
    where, people, groups = subject
    del people["i"]
    groups["v"] = [0]
    missing, privileged = node.accounts(where)
    assert "`useradd --system --uid 901 --no-create-home --shell /usr/sbin/nologin i`" in missing.change
    assert privileged.change == "take it out of these groups: `gpasswd -d v root`"


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_a_workspace_on_a_file_server_is_wrong(here: Node, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(node, "mount_of", lambda _: Mount(kind, "/scratch"))
    assert one(node.file_system, here).status == "wrong"


@pytest.mark.report
@pytest.mark.parametrize(("setting", "statuses"), [("1\n", ["ok"]), ("0\n", ["ok", "wrong"])])
def test_without_leases_no_import_is_proved(
    here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, statuses: list[str]
) -> None:
    monkeypatch.setattr(node, "mount_of", lambda _: ("ext4", "/"))
    monkeypatch.setattr(node, "LEASES", str(tmp_path / "leases-enable"))
    (tmp_path / "leases-enable").write_text(setting)
    assert [found.status for found in run_checks({"x": node.file_system}, here)] == statuses


@pytest.mark.parametrize(("free", "inodes", "status"), [(50, 50, "ok"), (4, 50, "wrong"), (50, 4, "wrong")])
def test_bytes_and_inodes_count(
    here: Node, monkeypatch: pytest.MonkeyPatch, free: int, inodes: int, status: str
) -> None:
    seen = SimpleNamespace(f_bavail=free, f_blocks=100, f_frsize=1 << 30, f_favail=inodes * 1000, f_files=100_000)
    monkeypatch.setattr(os, "statvfs", lambda _: seen)
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


def test_a_full_disk_is_told_by_its_own_check(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(f_bavail=1, f_blocks=1000, f_frsize=4096, f_favail=9000, f_files=9000, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert one(node.space, here).status == "wrong"
    checks = (kernel.seeding, job_side.execution)
    assert [finding for check in checks for finding in check(here)] == []


def test_the_importer_is_told_and_why(here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node, "_version", lambda program: program)
    monkeypatch.setattr(node, "PROGRAMS", ())
    monkeypatch.setattr(choice, "programs", lambda _: ())
    monkeypatch.setattr(choice, "ENROOT", "/bin/sh")
    monkeypatch.setattr(choice, "UMOCI", str(tmp_path / "umoci"))

    def told(importer: Literal["auto", "enroot"]) -> str:
        policy = here.policy._replace(images=here.policy.images._replace(importer=importer))
        return one(node.tools, here._replace(policy=policy)).found.partition(";")[0]

    assert told("auto") == f"the importer is enroot (images.importer is auto, and {tmp_path}/umoci is not there)"
    (tmp_path / "umoci").touch()
    assert told("auto") == f"the importer is oci (images.importer is auto, and {tmp_path}/umoci is there)"
    assert told("enroot") == "the importer is enroot"


def test_every_program_has_a_package() -> None:
    programs = [*node.PROGRAMS, *choice.programs("oci"), *choice.programs("enroot")]
    assert {os.path.basename(program) for program in programs} <= {*node.PACKAGES}


def test_what_is_at_work_is_not_late(here: Node) -> None:
    """Nobody has started an import and a round for an hour, because others are being made."""
    place = here.installation.node("n1")
    os.makedirs(place.state)
    live = here._replace(policy=here.policy._replace(harvest=here.policy.harvest._replace(while_running=900)))
    request = ImportRequest(reference="a:1", kind="k", private="", user="a", uid=1, cluster="c", job_id=7, asked=0.0)
    Errands(place, IMPORTS).put(Errand("1", int(time.time()) - 3600, 0, request.key), request)
    Errands(place, ROUNDS).put(Errand("1", int(time.time()) - 3600, 0, "7.0a1b2c3d"), Watched("/none", 0.0))
    assert (one(node.imports, here).status, one(node.rounds, live).status) == ("wrong", "wrong")
    with at_work(place, IMPORTS.name), at_work(place, ROUNDS.name):
        assert (one(node.imports, here).status, one(node.rounds, live).status) == ("ok", "ok")


def test_without_systemd_a_supervisor_has_to_run_what_units_would(
    here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(units, "SYSTEMD", str(tmp_path / "none"))
    os.makedirs(here.installation.node("n1").state)
    assert f"{here.installation.libexec}/timers" in one(node.maintenance, here).change


def test_another_user_learns_that_it_takes_root(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = [one(check, here) for check in (kernel.seeding, job_side.programs)]
    found += doctor._store(here.installation, here.policy)
    assert [(result.status, result.change) for result in found] == [("unknown", "run it as root")] * 3


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
    conf = tmp_path / "slurm.conf"
    conf.touch()
    monkeypatch.setattr(*place, _broken)
    found = {result.check: result for result in doctor.examine(site, str(conf))}
    assert found[named].status == "unknown"
    others = {"node": "slurm.conf", "store": "node.code", "slurm": "node.code", "slurm.tasks": "slurm.conf"}
    assert {"policy.in-force", others[named]} <= found.keys()
