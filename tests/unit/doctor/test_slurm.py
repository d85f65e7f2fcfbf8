"""`warmstart doctor` on Slurm's settings and files: what it advises, and what tests/lib/mistakes.py has not."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.command_line import POLICY, installed
from warmstart.cli import doctor
from warmstart.doctor import constant_path, containers, permissions, slurm, slurm_files
from warmstart.doctor import installed as slurm_installed
from warmstart.doctor.finding import Result, check, run
from warmstart.doctor.slurm import Slurm
from warmstart.doctor.slurm_files import Plugin
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.slurm import commands
from warmstart.slurm.facts import Settings

SETTINGS = """\
AccountingStorageEnforce = none
BatchStartTimeout = 360 sec
Epilog = @/epilog
Prolog[0] = @/prolog
PrologEpilogTimeout = 290
PrologFlags = Alloc,DeferBatch
SLURM_CONF = /etc/slurm/slurm.conf
SlurmdTimeout = 300 sec
TaskProlog = @/task-prolog
"""
Told = Callable[..., dict[str, Result]]
Stopping = Callable[[str, "str | None"], Result]


@pytest.fixture
def site(tmp_path: Path) -> Installation:
    libexec = tmp_path / "prefix/libexec/warmstart"
    libexec.mkdir(parents=True)
    for name in ("prolog", "epilog", "task-prolog"):
        (libexec / name).write_text("#!/bin/sh\n")
        (libexec / name).chmod(0o755)
    return installed(tmp_path / "prefix", POLICY)


@pytest.fixture
def told(site: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Return a function that returns the last finding of each check, for edited settings of slurmctld and plugins."""
    for module in (slurm, containers):
        monkeypatch.setattr(module, "HIDDEN", ("/nowhere",))  # pytest's own directory is below /tmp
    monkeypatch.setattr(slurm_installed, "built_for", lambda _: (22, 5))
    if os.geteuid():  # the files are those of who runs the tests
        monkeypatch.setattr(permissions, "look", lambda _: permissions.Seen([], []))
    monkeypatch.setattr(slurm, "SYSTEMD", str(tmp_path / "none"))

    def results(
        old: str = "", new: str = "", *, plugins: str = "", version: tuple[int, ...] = (22, 5)
    ) -> dict[str, Result]:
        text = (SETTINGS.replace(old, new) if old else SETTINGS + new).replace("@", site.libexec)
        assert not old or old in SETTINGS
        (tmp_path / "plugstack.conf").write_text(plugins)
        subject = Slurm(
            commands.parse_settings(text),
            site,
            current_policy(site).policy,
            version,
            str(tmp_path),
            tuple(slurm_files.plugins(str(tmp_path / "plugstack.conf"))),
            str(tmp_path / "enroot"),
        )
        found = run((*slurm.CHECKS, *containers.CHECKS, *constant_path.CHECKS), subject)
        return {result.check: result for result in found}

    return results


def test_what_slurmctld_tells_is_enough(told: Told) -> None:
    assert {name: result.status for name, result in told().items()} == {
        "slurm.hooks": "ok", "slurm.prolog-flags": "ok", "slurm.times": "ok", "slurm.constant-path": "ok"}  # fmt: skip


@pytest.mark.report
@pytest.mark.parametrize("shelf", [None, "/local"])
@pytest.mark.parametrize(
    "times",
    ["", "PrologEpilogTimeout=280", "PrologEpilogTimeout=60", "PrologEpilogTimeout=900\nBatchStartTimeout=10",
     "PrologTimeout=5\nEpilogTimeout=5", "PrologTimeout=290\nBatchStartTimeout=360",
     "SlurmdTimeout=0\nPrologEpilogTimeout=20"],
)  # fmt: skip
def test_times_that_are_advised_agree(site: Installation, times: str, shelf: str | None) -> None:
    """Each hint, followed word by word, leaves nothing wrong, also where a node unpacks images."""
    policy = current_policy(site).policy
    policy = policy._replace(
        paths=policy.paths._replace(shelf=shelf), images=policy.images._replace(registries=("docker.io",))
    )
    for hint in [found.change for found in slurm.clashes(settings(times), policy)]:
        said = hint.removeprefix("set ").partition(";")[0].replace(", ", "\n")
        told = {line.partition("=")[0] for line in said.splitlines()}
        kept = [line for line in times.splitlines() if line.partition("=")[0] not in told]
        left = [*slurm.clashes(settings("\n".join([*kept, said])), policy)]
        assert left == [], (hint, left)


def settings(times: str) -> Settings:
    """Return these settings, and Slurm's defaults of the others."""
    defaults = {
        "AccountingStorageEnforce": "none", "BatchStartTimeout": "10 sec", "PrologEpilogTimeout": "65534",
        "SlurmdTimeout": "300 sec",
    }  # fmt: skip
    given = dict(line.split("=") for line in times.splitlines())
    return commands.parse_settings("\n".join(f"{key} = {value}" for key, value in {**defaults, **given}.items()))


@pytest.mark.report
def test_a_shelf_without_images_takes_no_time(site: Installation) -> None:
    policy = current_policy(site).policy
    policy = policy._replace(paths=policy.paths._replace(shelf="/local"), images=policy.images._replace(registries=()))
    assert [*slurm.clashes(settings("PrologEpilogTimeout=280\nBatchStartTimeout=360"), policy)] == []


@pytest.mark.report
@pytest.mark.parametrize(
    ("shown", "times", "status"),
    [
        ("TimeoutStopUSec=1min 30s", "PrologEpilogTimeout=280", "wrong"),  # systemd's default
        ("TimeoutStopUSec=5min", "PrologEpilogTimeout=280", "ok"),
        ("TimeoutStopUSec=4min 40s", "PrologEpilogTimeout=280", "wrong"),
        ("TimeoutStopUSec=4min 40s 500ms", "PrologEpilogTimeout=280", "ok"),
        ("TimeoutStopUSec=5min", "PrologTimeout=100\nEpilogTimeout=310", "wrong"),
        ("TimeoutStopUSec=infinity", "PrologEpilogTimeout=280", "ok"),
        ("TimeoutStopUSec=1w", "PrologEpilogTimeout=280", "ok"),
        ("TimeoutStopUSec=5min", "", "wrong"),  # a hook may take for ever
        ("TimeoutStopUSec=infinity", "", "ok"),  # that there is none is told besides
        (None, "PrologEpilogTimeout=280", "unknown"),
    ],
)
def test_slurmd_may_finish_a_hook_when_it_is_stopped(
    stopping: Stopping, shown: str | None, times: str, status: str
) -> None:
    """Killed in a prolog it never tells slurmctld of its end, and the job waits for ever."""
    found = stopping(times, f"ActiveState=active\n{shown}" if shown else None)
    assert found.status == status
    if status == "wrong" and times:
        (seconds,) = re.findall(r"TimeoutStopSec=(\d+)", found.change)
        assert stopping(times, f"ActiveState=active\nTimeoutStopUSec={seconds}s").status == "ok"


@pytest.mark.report
def test_how_long_slurmd_may_stop_is_told_of_systemd_alone(
    stopping: Stopping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = "ActiveState=inactive\nTimeoutStopUSec=1min 30s"
    assert stopping("PrologEpilogTimeout=280", none).status == "ok"
    monkeypatch.setattr(slurm, "SYSTEMD", str(tmp_path / "none"))
    assert stopping("PrologEpilogTimeout=280", None).status == "ok"


@pytest.mark.report
def test_the_shipped_times_agree(stopping: Stopping) -> None:
    directory = Path(__file__).resolve().parents[3] / "packaging/slurm"
    drop_in = (directory / "slurmd.conf").read_text()
    (seconds,) = re.findall(r"^\[Service\]\nTimeoutStopSec=(\d+)$", drop_in, re.MULTILINE)
    shown = f"ActiveState=active\nTimeoutStopUSec={seconds}s"
    times = re.findall(r"^\w+Timeout=\d+$", (directory / "warmstart.conf").read_text(), re.MULTILINE)
    assert times
    assert stopping("\n".join(times), shown).status == "ok"


@pytest.fixture
def stopping(site: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stopping:
    """Return a function that returns what doctor finds beside some times, and what systemctl shows (None: it cannot).

    A program stands in for it.
    """
    program = tmp_path / "systemctl"
    asked = "show --property=ActiveState,TimeoutStopUSec slurmd.service"
    monkeypatch.setattr(slurm, "SYSTEMD", str(tmp_path))
    monkeypatch.setattr(slurm, "SYSTEMCTL", str(program))

    def found(times: str, shown: str | None) -> Result:
        program.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] && ' + (f"echo '{shown}'\n" if shown else "false\n"))
        program.chmod(0o755)
        subject = Slurm(settings(times), site, current_policy(site).policy, (22, 5), "/none")
        (result,) = run([check("slurmd")(slurm._slurmd_stop)], subject)
        return result

    return found


HIGH_LEVEL = "    -o subdir=PATH         mount subdirectory PATH of ARCHIVE"
LOW_LEVEL = f"{HIGH_LEVEL}\n    -o timeout=N           idle N seconds for automatic unmount"


class Needs(NamedTuple):
    """What a node has for pyxis's `use_squashfuse`."""

    uses: str = "1"
    programs: Mapping[str, str] = {"squashfuse": HIGH_LEVEL}  # what each says on `--help`
    conf: str = ""
    mode: int | None = 0o666  # of the device


@pytest.mark.parametrize(
    ("has", "status"),
    [
        (Needs(), ["ok"]),
        (Needs("0", {}, mode=0o600), ["ok"]),
        (Needs("yes", {}), ["wrong"]),
        (Needs(mode=0o660), ["wrong"]),
        (Needs(mode=None), ["wrong"]),
        (Needs(programs={"squashfuse": LOW_LEVEL}), ["wrong"]),
        (Needs(programs={"squashfuse_ll": ""}), ["wrong"]),  # to which `squashfuse` is a link
        (Needs(conf="ENROOT_NATIVE_OVERLAYFS  no\n"), ["wrong"]),
        (Needs(conf="#ENROOT_NATIVE_OVERLAYFS no\n"), ["ok"]),
        (Needs("1", {"squashfuse": HIGH_LEVEL, "fuse-overlayfs": ""}, "ENROOT_NATIVE_OVERLAYFS=false\n"), ["ok"]),
        (Needs("1", {}, "ENROOT_NATIVE_OVERLAYFS n\n", None), ["wrong"] * 3),
    ],
)
def test_what_pyxis_needs_to_start_images_without_unpacking(
    site: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: Needs, status: list[str]
) -> None:
    """Where pyxis is told to: a program, which is not the one that cannot be killed, a device, and an overlay."""
    places, device = tmp_path / "bin", tmp_path / "fuse"
    places.mkdir()
    (tmp_path / "enroot/enroot.conf.d").mkdir(parents=True)
    (tmp_path / "enroot/enroot.conf.d/a.conf").write_text(has.conf)
    for name, text in has.programs.items():
        (places / name).write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 2\n")
        (places / name).chmod(0o755)
    if "squashfuse_ll" in has.programs:
        (places / "squashfuse").symlink_to("squashfuse_ll")
    if has.mode is not None:
        device.touch()
        device.chmod(has.mode)
    monkeypatch.setattr(containers, "PROGRAMS", str(places))
    monkeypatch.setattr(containers, "FUSE", str(device))
    plugin = Plugin("spank_pyxis.so", (f"use_squashfuse={has.uses}",))
    subject = Slurm(
        settings(""), site, current_policy(site).policy, (22, 5), "/none", (plugin,), str(tmp_path / "enroot")
    )
    mounted(site, tmp_path)
    assert [result.status for result in run([containers.pyxis], subject)] == status


def test_the_first_of_enroots_settings_counts(tmp_path: Path) -> None:
    (tmp_path / "enroot.conf.d").mkdir()
    assert containers.enroot_setting(str(tmp_path), "ENROOT_A") == ""
    (tmp_path / "enroot.conf.d/a.conf").write_text("ENROOT_A c\n")
    (tmp_path / "enroot.conf").write_text("ENROOT_A\nENROOT_AB x\n  ENROOT_A = b\n")
    assert containers.enroot_setting(str(tmp_path), "ENROOT_A") == "b"


def test_jobs_with_another_root_have_our_mounts(
    told: Told, site: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mounted in slurmd's root appears in the other one, too: the mounts are of one group."""
    library = tmp_path / "warmstart.so"
    library.write_bytes(f"\0{site.runtime}\0".encode())
    plugins = f"required chroot.so /jail\noptional {library} workspace=/var/tmp/w\n"
    outside = dict.fromkeys((site.runtime, site.var, "/var/tmp/w"), "1")
    inside = {f"/jail{place}": "1" for place in outside}
    for known, status in (({}, "wrong"), (outside, "wrong"), (inside, "wrong"), ({**outside, **inside}, "ok")):
        monkeypatch.setattr(containers, "groups", lambda known=known: known)
        assert told(plugins=plugins)["slurm.spank"].status == status
    monkeypatch.setattr(containers, "groups", lambda: {**outside, **inside, "/jail/var/tmp/w": "2"})
    assert told(plugins=plugins)["slurm.spank"].status == "wrong"


def way(site: Installation, constant_path: str, cache: str = "/var/cache/warmstart") -> None:
    lines = POLICY.replace("paths: {", f"paths: {{cache: {cache}, ")
    assert lines != POLICY
    Path(site.policy).write_text(f"constant_path: {constant_path}\n{lines}")


TMPFS = "JobContainerType = job_container/tmpfs\n"


@pytest.mark.parametrize("place", ["SLURM_CONF", "slurmctld's", "PREFIX/etc"])
def test_slurms_files_are_found(
    site: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Beside the slurm.conf that commands are told, slurmctld names, or the policy's Slurm has under its prefix."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(slurm_files, "PLACES", ("/none",))
    conf = tmp_path / "slurm/etc" if place == "PREFIX/etc" else tmp_path / "elsewhere"
    conf.mkdir(parents=True)
    (conf / "slurm.conf").touch()
    (conf / "plugstack.conf").write_text("required /none/warmstart.so\n")
    told = conf if place == "slurmctld's" else "/none"
    if place == "SLURM_CONF":
        monkeypatch.setenv("SLURM_CONF", str(conf / "slurm.conf"))
    says = f"echo AccountingStorageEnforce = none; echo SLURM_CONF = {told}/slurm.conf"
    scontrol = script(tmp_path / "slurm/bin/scontrol", says)
    policy = current_policy(site).policy
    policy = policy._replace(paths=policy.paths._replace(scontrol=str(scontrol)))
    found = {result.check: result.status for result in doctor._slurm(site, policy)}
    assert found["slurm.spank"] == "critical"


def test_a_line_ends_at_a_nul(tmp_path: Path) -> None:
    """As for Slurm, whose lines are C strings: a file cannot be named by what comes after it, nor with it."""
    (tmp_path / "plugstack.conf").write_bytes(b"include \0x/*.conf\nrequired a.so\0 b\n")
    assert slurm_files.plugins(str(tmp_path / "plugstack.conf")) == [Plugin("a.so", (), required=True)]


def script(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


HOOKS = {"prolog": "Prolog[0]", "epilog": "Epilog", "task-prolog": "TaskProlog"}


def of_hook(told: Told, hook: str, value: object) -> Result:
    return told(f"{HOOKS[hook]} = @/{hook}\n", f"{HOOKS[hook]} = {value}\n")["slurm.hooks"]


@pytest.mark.report
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_hook_of_another_installation_is_told_as_that(
    told: Told, tmp_path: Path, *, hook: str, wrapped: bool
) -> None:
    """Not as if nothing were prepared; and which doctor judges it."""
    theirs = script(tmp_path / "opt/libexec/warmstart" / hook)
    found = of_hook(told, hook, script(tmp_path / "site", f"exec {theirs}") if wrapped else theirs)
    assert (found.status, f"another installation, {tmp_path}/opt" in found.found) == ("wrong", True), found
    assert f"`{tmp_path}/opt/bin/warmstart doctor`" in found.change
    assert "nothing is" not in found.found
    assert "no environment" not in found.found


@pytest.mark.report
@pytest.mark.parametrize("hook", HOOKS)
def test_a_site_keeps_its_own_script(told: Told, site: Installation, tmp_path: Path, hook: str) -> None:
    """The hint does not name ours in its place, which would end what it does."""
    own, key = script(tmp_path / "mine"), HOOKS[hook].removesuffix("[0]")
    found = of_hook(told, hook, own)
    assert (found.status, f"set {key}" in found.change) == ("wrong", False), found
    script(own, re.findall("`([^`]+)`", found.change)[0])
    assert of_hook(told, hook, own).status == "ok"
    assert of_hook(told, hook, "(null)").change == f"set {key}={site.libexec}/{hook}"


@pytest.mark.report
def test_a_script_that_is_not_there_drains_the_node(told: Told, tmp_path: Path) -> None:
    """Whoever's it is: an installation before this one has been removed."""
    found = of_hook(told, "prolog", f"{tmp_path}/opt/libexec/warmstart/prolog")
    assert (found.status, "which drains the node" in found.found) == ("critical", True), found


@pytest.mark.report
@pytest.mark.parametrize(
    ("now", "advised"),
    [("Alloc,X11", "Alloc,X11,DeferBatch"), ("DeferBatch", "DeferBatch,Alloc"), ("(null)", "Alloc,DeferBatch")],
)
def test_flags_that_are_advised_are_all_there_are(told: Told, now: str, advised: str) -> None:
    found = told("Alloc,DeferBatch", now)["slurm.prolog-flags"]
    assert found.change == f"set PrologFlags={advised}"
    assert told("Alloc,DeferBatch", advised)["slurm.prolog-flags"].status == "ok"


@pytest.mark.report
def test_directories_that_are_advised_keep_those_of_now(told: Told, site: Installation, tmp_path: Path) -> None:
    way(site, "link", "/usr/ws")
    for line, advised in (("", "/tmp,/dev/shm,/usr"), ("Dirs=/tmp,/opt", "/tmp,/opt,/usr")):
        (tmp_path / "job_container.conf").write_text(f"BasePath=/srv/c {line}\n")
        assert f"Dirs={advised} " in told("", TMPFS)["slurm.constant-path"].change


@pytest.mark.report
def test_each_misfit_of_the_plugin_says_what_to_write(told: Told, site: Installation, tmp_path: Path) -> None:
    library = tmp_path / "warmstart.so"
    library.write_bytes(f"\0{site.runtime}\0".encode())
    found = told(plugins=f"optional {library} workspace=/elsewhere\n")["slurm.spank"]
    assert (found.status, found.change) == ("wrong", "write workspace=/var/tmp/w"), found
    line = f"optional {library} workspace=/var/tmp/w"
    assert told(plugins=f"{line}\n")["slurm.spank"].status == "ok"


@pytest.mark.report
@pytest.mark.parametrize("run", ["/run/warmstart", "/usr/local{run}", ""])
def test_a_plugin_that_was_built_for_another_prefix(told: Told, site: Installation, tmp_path: Path, run: str) -> None:
    """It finds no job's view, and says nothing: each bare step has no cache."""
    library = tmp_path / "warmstart.so"
    library.write_bytes(f"\0{run.format(run=site.runtime)}\0".encode())
    line = f"optional {library} workspace=/var/tmp/w"
    found = told(plugins=f"{line}\n")["slurm.spank"]
    assert (found.status, found.change) == ("wrong", f"write run={site.runtime}"), found
    assert told(plugins=f"{line} run={site.runtime}\n")["slurm.spank"].status == "ok"
    assert told(plugins=f"{line} run=/elsewhere\n")["slurm.spank"].status == "wrong"


@pytest.mark.report
def test_an_importer_that_is_none_of_ours(told: Told, site: Installation, tmp_path: Path) -> None:
    ours = script(Path(site.libexec, "pyxis-importer"))
    mounted(site, tmp_path)

    def found(importer: Path | str) -> Result:
        return told(plugins=f"required spank_pyxis.so importer={importer}\n")["slurm.pyxis"]

    assert found(ours).status == "ok"
    assert found(script(tmp_path / "sites-own")).status == "ok"
    for missing in (tmp_path / "none", tmp_path, "pyxis-importer"):
        assert (found(missing).status, f"importer={ours}" in found(missing).change) == ("critical", True)
    theirs = script(tmp_path / "opt/libexec/warmstart/pyxis-importer")
    assert (found(theirs).status, f"another installation, {tmp_path}/opt" in found(theirs).found) == ("wrong", True)
    ours.chmod(0o700)
    assert found(ours).status == "critical"


def mounted(site: Installation, tmp_path: Path) -> Path:
    """Have enroot mount both directories, and run the hook of this installation; return the hook."""
    hooks, mounts = tmp_path / "enroot/hooks.d", tmp_path / "enroot/mounts.d"
    mounts.mkdir(parents=True)
    places = (f"{site.prefix}/libexec/warmstart", site.view)
    (mounts / "50.fstab").write_text("".join(f"{place} {place} none x-create=dir,bind,ro\n" for place in places))
    script(Path(site.prefix, "share/warmstart/enroot/40-warmstart.sh"), "this release's")
    return script(hooks / "40-warmstart.sh", "this release's")


@pytest.mark.report
def test_an_enroot_hook_of_another_release(told: Told, site: Installation, tmp_path: Path) -> None:
    hook, pyxis = mounted(site, tmp_path), "required spank_pyxis.so\n"
    assert told(plugins=pyxis)["slurm.pyxis"].status == "ok"
    script(hook, "an older one's")
    found = told(plugins=pyxis)["slurm.pyxis"]
    assert (found.status, "another release or installation" in found.found) == ("wrong", True), found
    subprocess.run(["sh", "-euc", re.findall("`([^`]+)`", found.change)[0]], check=True)
    assert told(plugins=pyxis)["slurm.pyxis"].status == "ok"
    way(site, "enroot")
    script(hook, "an older one's")
    assert told(plugins=pyxis)["slurm.constant-path"].status == "wrong"
