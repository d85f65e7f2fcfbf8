"""The package at work in a root file system of `packages/fresh`, where it is installed. Run there by `test_deb`.

WARMSTART_PACKAGES names the directory with the package of this checkout, and below `next` the one of another release.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE, IMPORT, STORE, VALIDATE
from tests.lib.cluster import Cluster
from tests.lib.processes import wait_until
from tests.lib.registry import Registry
from tests.lib.site import Site
from tools.demo.__main__ import Demo, an_image
from warmstart.paths import Installation
from warmstart.policy.keys import VERSION

PACKAGES = Path(os.environ.get("WARMSTART_PACKAGES", "/nonexistent"))
NEXT = "9.9.9"
USR = Installation("/usr")
COMPLETE = """\
. /usr/share/bash-completion/completions/warmstart
COMP_WORDS=(warmstart pol) COMP_CWORD=1
_warmstart_completion warmstart
echo "${COMPREPLY[@]}"
"""
DIRECTORIES = (USR.var, "/var/tmp/warmstart")
FILES = (
    "lib/systemd/system/warmstart-import@.service",
    "lib/systemd/system/warmstart-maintain.timer",
    "lib/systemd/system/warmstart.target",
    "share/bash-completion/completions/warmstart",
    "share/fish/vendor_completions.d/warmstart.fish",
    "share/man/man1/warmstart-cache.1.gz",
    "share/warmstart/enroot/40-warmstart.sh",
    "share/warmstart/enroot/50-warmstart.fstab",
    "share/warmstart/slurm.conf",
    "share/warmstart/slurmd.conf",
    "share/warmstart/warmstart.lua",
    "share/zsh/vendor-completions/_warmstart",
)
PURGED = ("/etc/warmstart", "/etc/logrotate.d/warmstart", "/usr/lib/warmstart", "/usr/libexec/warmstart",
          "/var/log/warmstart", "/var/tmp/warmstart")  # fmt: skip


def dpkg(*arguments: str) -> str:
    """Run dpkg as an admin does; return what it says."""
    done = subprocess.run(["dpkg", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def said(*argv: str) -> str:
    """Run a command that succeeds; return its output."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def install(directory: Path) -> None:
    dpkg("--install", *map(str, directory.glob("warmstart_*.deb")))


def releases() -> list[tuple[str, bool]]:
    """Return the versions that are kept, the latest first, and whether each is in force."""
    lib = Path(USR.lib)
    kept = sorted(lib.glob("python-*"), key=lambda path: [*map(int, path.name.removeprefix("python-").split("."))])
    return [((path / "RELEASE").read_text().strip(), path.samefile(lib / "python")) for path in reversed(kept)]


@pytest.fixture(scope="session")
def cluster(capable_host: None) -> Iterator[Cluster]:
    """Return a cluster whose slurm.conf names the package's hooks."""
    with Cluster(Path("/usr")) as running:
        yield running


@pytest.fixture(scope="session")
def installed(cluster: Cluster, registry: Registry) -> Site:
    """Return the site of the package that is installed."""
    return Site(cluster, registry.url, install=lambda _: None)


def test_what_an_admin_finds() -> None:
    assert [pwd.getpwnam(name).pw_uid for name in (STORE, IMPORT, VALIDATE)] == [901, 902, 903]
    assert [(os.stat(place).st_uid, os.stat(place).st_mode & 0o7777) for place in DIRECTORIES] == [(0, 0o755)] * 2
    assert VERSION in said("warmstart", "--version")
    assert said("warmstart", "policy", "check").startswith("ok")
    assert [name for name in FILES if os.path.getsize(f"/usr/{name}") == 0] == []
    assert said("bash", "-c", COMPLETE) == "policy\n"


def test_the_jobs_of_the_demo(site: Site, registry: Registry) -> None:
    """One import for four jobs; a job loads on another node what one has compiled."""
    demo = Demo(site.cluster, registry, lambda: an_image(site.cluster.base / "image"), print)
    claims = demo.claims(demo.run())
    assert all(claims.values()), claims


def test_an_upgrade_and_a_downgrade_under_a_job(site: Site) -> None:
    """The job ends as if nothing had happened, and what it compiled is harvested; others run in each release."""
    assert releases() == [(VERSION, True)]
    gate = site.cluster.account(ALICE).home / "gate"
    os.mkfifo(gate, 0o666)
    script = f"#!/bin/sh\n{site.cluster.python} {site.jobs}/numba_job.py && cat {gate} && env\n"
    through = site.cluster.submit(script, ALICE, "--nodelist=n3")
    site.cluster.wait_for(through, {"RUNNING"})
    for directory, version in ((PACKAGES / "next", NEXT), (PACKAGES, VERSION)):
        install(directory)
        assert releases()[0] == (version, True)
        other = site.cluster.wait(site.compile_job("numba", ALICE, "n4"), 240)
        assert other.state == "COMPLETED"
        assert site.seeded(other.job_id)
    assert [version for version, _ in releases()] == [VERSION, NEXT, VERSION]
    assert site.cluster.job(through).state == "RUNNING"
    gate.write_text("open\n")
    ended = site.finish(through)
    assert (ended.state, "NUMBA_CACHE_DIR=" in ended.output) == ("COMPLETED", True)
    assert {event["hook"] for event in site.events(through, "hook.finished")} == {"prolog", "epilog"}


def test_a_hook_ends_in_the_release_in_which_it_began(
    site: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """An upgrade while a prolog waits for its image: all files of its release are still there."""
    request = f"--comment=warmstart: image={fresh_image()}"
    policy = site.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("wait: 60s", "wait: 200s"))  # on a busy machine dpkg takes a minute
    with registry.silent():
        job = site.cluster.submit('#!/bin/sh\ntest -s "$WARMSTART_IMAGE"\n', ALICE, "--nodelist=n2", request)
        wait_until("the import", lambda: bool(site.imports()), 60)
        before = os.readlink(f"{USR.lib}/python")
        install(PACKAGES / "next")
        assert os.readlink(f"{USR.lib}/python") != before
    assert site.finish(job).state == "COMPLETED"
    assert len(site.events(job, "image.imported")) == 1


def test_removing_keeps_policy_and_state(installed: Site) -> None:
    """No program, no mount; the policy, what is to be published later, and the accounts."""
    text = Path(USR.policy).read_text()
    told = dpkg("--remove", "warmstart")
    assert "take /usr/libexec/warmstart out of slurm.conf" in told
    assert not any(os.path.exists(path) for path in (USR.lib, "/usr/bin/warmstart", "/usr/share/warmstart"))
    assert installed.finish(installed.cluster.submit("#!/bin/sh\n", ALICE, "--nodelist=n1")).state == "COMPLETED"
    assert not os.path.exists(f"{USR.libexec}/background")
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert [place for place in places if place.startswith(f"{USR.var}/n")] == []
    assert Path(USR.policy).read_text() == text
    assert os.listdir(USR.var)
    install(PACKAGES)
    assert Path(USR.policy).read_text() == text
    assert releases() == [(VERSION, True)]


def test_purging_leaves_only_the_store(installed: Site) -> None:
    """And the accounts, which own it. A store below a directory that goes is found; what a job made is none."""
    forged = Path("/var/tmp/warmstart/7.00000000/tmp/artifacts")
    forged.mkdir(parents=True, exist_ok=True)
    (forged / "maintained").touch()
    misplaced = Path(USR.var, "store")
    (misplaced / "artifacts").mkdir(parents=True)
    (misplaced / "artifacts/maintained").touch()
    told = dpkg("--purge", "warmstart")
    assert f"kept {USR.var}: a store is in it" in told
    assert [path for path in PURGED if os.path.exists(path)] == []
    assert (misplaced / "artifacts/maintained").exists()
    assert list(installed.store.glob("artifacts/*/*/*/*.sqsh"))
    install(PACKAGES)
    (misplaced / "artifacts/maintained").unlink()
    dpkg("--purge", "warmstart")
    left = [path for path in Path(USR.var).rglob("*") if not path.is_dir()]  # the tests' nodes have mounts there
    assert left == []
    assert installed.cluster.account(STORE).uid == 901
