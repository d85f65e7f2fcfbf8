"""`warmstart doctor`: checks of the policy and the node, and the command itself."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from tests.lib.command_line import answer, installed, run
from tests.lib.hook_lines import finished, started
from warmstart.audit.line import timestamp
from warmstart.cli import doctor
from warmstart.doctor import node, permissions, store, trials, units
from warmstart.doctor.finding import SKIP, Check, Finding, Result, check
from warmstart.doctor.finding import run as run_checks
from warmstart.doctor.node import Node
from warmstart.harvest.live import LIVE
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.namespaces import Mount
from warmstart.images import choice
from warmstart.images.importers import layer_reader
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.queue import Asker, Item, Queue, at_work


@pytest.fixture
def site(tmp_path: Path) -> Installation:
    """Return an installation with a compiled policy."""
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


def found(check: Check[Node], subject: Node) -> list[tuple[str, str, str]]:
    return [tuple(result)[1:] for result in run_checks([check], subject)]  # type: ignore[misc]


def statuses(check: Check[Node], subject: Node) -> list[str]:
    return [status for status, _, _ in found(check, subject)]


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
    assert found(node.accounts, where) == [("ok", "", "")]
    people["i"] = 900
    (compiled, words, change), (shared, why, _) = found(node.accounts, where)
    assert (compiled, "hooks use 901:901" in words) == ("wrong", True)
    assert f"touch {where.installation.policy}" in change  # the accounts may be right
    assert (shared, "shares uid" in why) == ("wrong", True)


@pytest.mark.report
def test_each_account_is_mended_alone(subject: tuple[Node, dict[str, int], dict[str, list[int]]]) -> None:
    where, people, groups = subject
    del people["i"]
    groups["v"] = [0]
    (_, _, missing), (_, _, privileged) = found(node.accounts, where)
    assert "`useradd --system --uid 901 --no-create-home --shell /usr/sbin/nologin i`" in missing
    assert privileged == "take it out of these groups: `gpasswd -d v root`"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes all disks of the node of a kind, with some GiB and thousands of inodes free."""

    def make(kind: str = "ext4", free: float = 50, inodes: float = 50) -> None:
        seen = SimpleNamespace(
            f_bavail=int(free * 1024),
            f_blocks=100 << 10,
            f_frsize=1 << 20,
            f_favail=int(inodes * 1000),
            f_files=100_000,
            f_flag=0,
        )
        monkeypatch.setattr(os, "statvfs", lambda _: seen)
        monkeypatch.setattr(node, "mount_of", lambda _: Mount(kind, "/scratch"))

    return make


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_workspaces_and_the_log_are_on_no_file_server(here: Node, disk: Callable[..., None], kind: str) -> None:
    """A job that hangs there would hang its epilog; of lines that several nodes append, some would be lost."""
    disk(kind)
    assert [(status, words.partition(" (")[0]) for status, words, _ in found(node.disks, here)] == [
        ("wrong", "the audit log"), ("wrong", "workspaces")]  # fmt: skip


@pytest.mark.parametrize(("free", "inodes", "status"), [(50, 50, "ok"), (4, 50, "wrong"), (50, 4, "wrong")])
def test_bytes_and_inodes_count(here: Node, disk: Callable[..., None], free: int, inodes: int, status: str) -> None:
    disk(free=free, inodes=inodes)
    assert statuses(node.disks, here) == [status]


def test_a_full_disk_is_told_once(here: Node, disk: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """For each that writes there; and nothing is tried on it."""
    disk(free=0.01)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert statuses(node.disks, here) == ["wrong"] * 4
    assert found(trials.seeding, here) == []


@pytest.mark.report
@pytest.mark.parametrize(("setting", "status"), [("1\n", "ok"), ("0\n", "wrong")])
def test_without_leases_no_import_is_proved(
    here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, status: str
) -> None:
    monkeypatch.setattr(node, "LEASES", str(tmp_path / "leases-enable"))
    (tmp_path / "leases-enable").write_text(setting)
    assert statuses(node.imports, here) == [status]
    none = here.policy._replace(images=here.policy.images._replace(registries=()))
    assert found(node.imports, here._replace(policy=none)) == []


@pytest.fixture
def slurm_here(here: Node, tmp_path: Path) -> Node:
    """Return the node with a squeue."""
    (tmp_path / "squeue").touch()
    (tmp_path / "squeue").chmod(0o755)
    return here._replace(
        policy=here.policy._replace(paths=here.policy.paths._replace(scontrol=str(tmp_path / "scontrol")))
    )


def test_programs(slurm_here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing programs are listed; others show their version."""
    monkeypatch.setattr(node, "PROGRAMS", ("/bin/sh",))
    monkeypatch.setattr(choice, "programs", lambda _: ("/bin/true",))
    monkeypatch.setattr(node, "_version", lambda program: f"{program} 1")
    assert statuses(node.programs, slurm_here) == ["ok"]
    monkeypatch.setattr(node, "PROGRAMS", ("/bin/sh", "/no/such/mksquashfs"))
    ((status, words, change),) = found(node.programs, slurm_here)
    assert (status, words.partition(";")[0]) == ("wrong", "missing: /no/such/mksquashfs")
    assert "apt-get install squashfs-tools" in change
    monkeypatch.setattr(node, "PROGRAMS", ("/bin/sh",))
    monkeypatch.setattr(layer_reader, "ZSTD_LIBRARY", "libzstd.so.0")
    monkeypatch.setitem(node.PACKAGES, "libzstd.so.0", "libzstd0")
    ((status, words, _),) = found(node.programs, slurm_here)
    assert (status, words.partition(";")[0]) == ("wrong", "missing: libzstd.so.0")


@pytest.mark.parametrize("script", ["#!/no/such/interpreter", "#!/bin/sh\nexit 127", "#!/bin/sh\nkill -9 $$"])
def test_a_program_that_does_not_run(
    slurm_here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    """It is there, and can be executed; its interpreter or a library is not."""
    program = tmp_path / "skopeo"
    program.write_text(f"{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(choice, "programs", lambda _: (str(program),))
    monkeypatch.setattr(node, "PROGRAMS", ())
    ((status, words, _),) = found(node.programs, slurm_here)
    assert (status, words.partition(";")[0]) == ("wrong", f"{program} cannot be run")


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
    (tmp_path / "fstab").write_text(fstab.format(local=local))
    monkeypatch.setattr(node, "mount_of", lambda _: Mount("ext4", "/scratch"))
    monkeypatch.setattr(node, "mounts", lambda: [Mount("ext4", "/"), *([Mount("xfs", str(local))] if mounted else [])])
    policy = here.policy._replace(paths=here.policy.paths._replace(shelf=f"{local}/shelf"))
    (told,) = [row for row in found(node.disks, here._replace(policy=policy)) if "free" not in row[1]]
    assert (told[0], told[2]) == ("wrong" if change else "ok", change.format(local=local)), told


def test_the_importer_is_told_and_why(slurm_here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node, "_version", lambda program: program)
    monkeypatch.setattr(node, "PROGRAMS", ())
    monkeypatch.setattr(choice, "programs", lambda _: ())
    monkeypatch.setattr(choice, "ENROOT", "/bin/sh")
    monkeypatch.setattr(choice, "UMOCI", str(tmp_path / "umoci"))

    def told(importer: Literal["auto", "enroot"]) -> str:
        policy = slurm_here.policy._replace(images=slurm_here.policy.images._replace(importer=importer))
        ((_, words, _),) = found(node.programs, slurm_here._replace(policy=policy))
        return words.partition(";")[0]

    assert told("auto") == f"the importer is enroot (images.importer is auto, and {tmp_path}/umoci is not there)"
    (tmp_path / "umoci").touch()
    assert told("auto") == f"the importer is oci (images.importer is auto, and {tmp_path}/umoci is there)"
    assert told("enroot") == "the importer is enroot"


@pytest.mark.parametrize(("flags", "statuses"), [(os.ST_RDONLY, []), (0, ["critical"])])
def test_all_may_write_where_a_config_map_is_mounted_read_only(
    site: Installation, monkeypatch: pytest.MonkeyPatch, flags: int, statuses: list[str]
) -> None:
    etc = Path(site.etc)
    (etc / "..1").mkdir()
    Path(site.policy).rename(etc / "..1/policy.yaml")
    (etc / "..data").symlink_to("..1")
    Path(site.policy).symlink_to("..data/policy.yaml")
    etc.chmod(0o777)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    (place,) = (place for place in permissions.places(site, None) if place.what == "change the policy")
    place = place._replace(owners=(0, os.getuid()))  # who runs the tests stands for root
    assert [finding.status for finding in permissions.told(place, permissions.look(place))] == statuses


def test_every_program_has_a_package() -> None:
    programs = [*node.PROGRAMS, *choice.programs("oci"), *choice.programs("enroot")]
    assert {os.path.basename(program) for program in programs} <= {*node.PACKAGES}


def test_what_is_at_work_is_not_late(here: Node) -> None:
    """Nobody has started an import and a harvest for hours, because others are being made."""
    place = here.installation.node("n1")
    os.makedirs(place.state)
    request = ImportRequest(reference="a:1", kind="k", private="", user="a", uid=1, cluster="c", job_id=7, asked=0.0)
    Queue(place, IMPORTS).put(Item("1", int(time.time()) - 7200, 0, request.key), request)
    Queue(place, LIVE).put(Item("1", int(time.time()) - 7200, 0, "7.0a1b2c3d"), Asker(7, 1, "a", "c"))
    assert statuses(node.backlog, here) == ["wrong", "wrong"]
    with at_work(place, IMPORTS.name), at_work(place, LIVE.name):
        assert statuses(node.backlog, here) == ["ok"]


def test_a_hook_was_killed_that_is_not_at_work_and_wrote_no_last_line(here: Node) -> None:
    """It is told at once, and not if it is at work."""
    os.makedirs(here.installation.node("n1").state)
    log, lately = Path(here.policy.paths.audit), timestamp(time.time() - 5)
    log.parent.mkdir()
    first, other = started(ts=lately), started(job_id=8, run_id="0d", ts=lately)
    log.write_text("".join(f"{json.dumps(line)}\n" for line in (first, other, finished(other, ts=lately))))
    at_work = ["/bin/sh", "-c", "echo; read _", f"{here.installation.lib}/python/warmstart/start.py", "entry.prolog"]
    pipe = subprocess.PIPE
    with subprocess.Popen(at_work, stdin=pipe, stdout=pipe, env={"A": "b", "SLURM_JOB_ID": "7"}) as hook:
        assert hook.stdout
        hook.stdout.readline()  # Popen returns before the kernel shows the new program's arguments
        assert statuses(node.killed_hooks, here) == ["ok"]
        hook.kill()
    ((status, told, _),) = found(node.killed_hooks, here)
    assert (status, "the prolog of job 7 on n1" in told) == ("advice", True)


def test_without_systemd_a_supervisor_has_to_run_what_units_would(
    here: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(units, "SYSTEMD", str(tmp_path / "none"))
    os.makedirs(here.installation.node("n1").state)
    assert f"{here.installation.libexec}/timers" in found(node.maintenance, here)[0][2]


def test_another_user_learns_that_it_takes_root(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    told = run_checks([trials.seeding, trials.access], here) + doctor._store(here.installation, here.policy)
    assert [(result.status, result.change) for result in told] == [("unknown", "run it as root")] * 3


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

    told = run_checks([check("a")(denied), check("b")(broken), check("c")(hangs)], None)
    assert [(row.status, row.change) for row in told[:2]] == [("unknown", change), ("unknown", "")]
    assert told[2].status == "wrong"


def test_what_is_well_needs_no_words_and_what_is_not_used_no_row() -> None:
    told = run_checks([check("a")(lambda _: []), check("b")(lambda _: [SKIP])], None)
    assert told == [Result("a", "ok", "", "")]


def test_a_store_that_hangs_costs_one_deadline(site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check reports it; the others are not tried."""

    def hangs(*_: object) -> None:
        raise WorkerSilent(what="f", problem="no answer")

    policy = current_policy(site).policy
    monkeypatch.setattr(store, "opened", hangs)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert {row.check: row.status for row in doctor._store(site, policy)} == {"store.mount": "critical"}


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


def test_a_slurmctld_that_does_not_answer(site: Installation) -> None:
    """Its checks are unknown, in one row, and no node is taken out of service for it."""
    policy = current_policy(site).policy
    (told,) = doctor._slurm(site, policy._replace(paths=policy.paths._replace(scontrol="/no/such/scontrol")))
    assert (told.check, told.status) == ("slurm", "unknown")
    assert told.found.startswith(f"{len(doctor.SLURM)} checks were not made: cannot ask slurmctld")
    assert doctor.status_of([told]) == 1


def _broken(*_: object) -> object:
    raise KeyError("x")


def _half(_: object) -> Iterator[Finding]:
    yield Finding("wrong", "half")
    _broken()


GROUPS: list[tuple[object, str]] = [(doctor, "POLICY"), (doctor, "NODE"), (doctor, "SLURM")]
if os.geteuid() == 0:  # who alone becomes the store's owner
    GROUPS.append((store, "CHECKS"))


@pytest.fixture
def answers(site: Installation, programs: Path) -> None:
    """Have a slurmctld that answers."""
    scontrol = programs / "scontrol"
    scontrol.write_text("#!/bin/sh\necho AccountingStorageEnforce = none\n")
    scontrol.chmod(0o755)
    policy = Path(site.policy)
    policy.write_text(policy.read_text().replace("paths: {", f"paths: {{scontrol: {scontrol}, "))


@pytest.mark.report
@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("find", [_broken, _half])
@pytest.mark.parametrize("group", GROUPS)
def test_a_bug_in_a_check_is_one_finding(
    site: Installation,
    group: tuple[object, str],
    find: Callable[[object], Iterator[Finding]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which names the place; what this check found before, and all other checks, are told."""
    whole, (first, *others) = doctor.examine(site), getattr(*group)
    monkeypatch.setattr(*group, (check(first.name)(find), *others))
    told = doctor.examine(site)
    of_it = [tuple(row)[1:] for row in told if row.check == first.name]
    bug = f"a bug in this check: KeyError('x') ({Path(__file__).name}:{_broken.__code__.co_firstlineno + 1})"
    half = [("wrong", "half", "")] if find is _half else []
    assert of_it == [*half, ("unknown", bug, "report it")]
    assert {row.check for row in told} == {row.check for row in whole}


@pytest.mark.report
@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize(
    ("place", "named"),
    [
        ((doctor, "Node"), "node"),
        ((store, "opened"), "store"),
        ((doctor, "Slurm"), "slurm"),
        ((doctor, "current_policy"), "node"),
    ],
)
def test_a_bug_beside_the_checks_leaves_the_other_parts(
    site: Installation, place: tuple[object, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*place, _broken)
    told = {row.check: row.status for row in doctor.examine(site)}
    assert told[named] == "unknown"
    assert {"policy.in-force", "node.permissions"} <= told.keys()
    if place[0] is doctor and place[1] == "Slurm":
        assert "node.accounts" in told
