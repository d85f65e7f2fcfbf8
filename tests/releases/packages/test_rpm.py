"""The rpm: built with Debian's rpm for the Python here, its files unpacked and its scripts run in a bare Debian 12."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.requirements import unavailable
from tests.releases.packages.roots import SHARED, run, suite
from warmstart.policy.keys import VERSION

JOB = "SLURM_JOB_ID=7 SLURM_JOB_UID=1000 SLURM_JOB_GID=1000 SLURM_JOB_USER=nobody SLURMD_NODENAME=n1"

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def packages(capable_host: None) -> Iterator[Path]:
    if shutil.which("rpmbuild") is None or shutil.which("rpmlint") is None:
        unavailable("rpm or rpmlint is not installed")
    directory = Path(tempfile.mkdtemp(prefix="packages-", dir=SHARED))
    for target in (directory, directory / "again"):
        run("make", "-s", "rpm", f"VENV={sys.prefix}", f"PACKAGES={target}")
    yield directory
    shutil.rmtree(directory)


def test_two_builds_are_identical(packages: Path) -> None:
    names = sorted(path.name for path in packages.glob("*.rpm"))
    assert [name.partition("-0")[0] for name in names] == ["warmstart", "warmstart-spank"]
    for name in names:
        assert (packages / name).read_bytes() == (packages / "again" / name).read_bytes()


def test_rpmlint_has_nothing_to_say(packages: Path) -> None:
    said = run("rpmlint", "--config", "packaging/package/rpmlint.toml", *packages.glob("*.rpm"))
    assert "0 errors, 0 warnings" in said


def test_installed_upgraded_and_removed(packages: Path) -> None:
    """By rpm itself: a release in force, hooks that run, one more release; then nothing but policy and state."""
    package = next(path for path in packages.glob("warmstart-*.rpm") if "spank" not in path.name)
    with suite("bookworm").fresh() as root:
        root.apt("rpm", "python3", "systemd", "squashfs-tools", "e2fsprogs")
        root.run("rpm", "--install", "--nodeps", package)
        assert VERSION in root.run("warmstart", "--version")
        assert root.run("warmstart", "policy", "check").startswith("ok")
        for hook in ("prolog", "epilog"):
            root.run("sh", "-c", f"env -i {JOB} /usr/libexec/warmstart/{hook}")
        root.run("rpm", "--upgrade", "--force", "--nodeps", package)
        told = root.run("rpm", "--erase", "--nodeps", "warmstart")
        assert "take /usr/libexec/warmstart out of slurm.conf" in told
        # slurm.conf still names the hooks.
        root.run("sh", "-c", f"env -i {JOB} /usr/libexec/warmstart/prolog")
        root.run("sh", "-c", "test ! -e /usr/lib/warmstart -a ! -e /usr/libexec/warmstart/background")
        root.run("test", "-e", "/etc/warmstart/policy.yaml")
