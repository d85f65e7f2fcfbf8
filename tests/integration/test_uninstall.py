"""`make uninstall` removes programs and mounts; policy and state stay."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("capable_host")

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = (
    "bin/warmstart",
    "lib/tmpfiles.d/warmstart.conf",
    "lib/warmstart/python",
    "libexec/warmstart/prolog",
    "share/warmstart/site.yaml",
)
KEPT = ("etc/warmstart/policy.yaml", "var/lib/warmstart/policy.json", "var/lib/warmstart/n1/spool/one/bundle.sqsh")


@pytest.fixture
def prefix(tmp_path: Path) -> Iterator[Path]:
    """Return a prefix as an installation leaves it after a job: one copy of a bundle is mounted."""
    for name in (*PROGRAMS, *KEPT, "bin/another", "lib/another"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    state = tmp_path / "var/lib/warmstart/n1"
    copy, layer = state / "bundles/aa.sqsh", state / "layers/aa"
    copy.parent.mkdir()
    layer.mkdir(parents=True)
    subprocess.run(["/usr/bin/mksquashfs", tmp_path / "etc", copy, "-quiet", "-no-progress"], check=True)
    subprocess.run(["/bin/mount", "-o", "loop,ro", copy, layer], check=True)
    yield tmp_path
    if os.path.ismount(layer):
        subprocess.run(["/bin/umount", layer], check=True)


def uninstall(prefix: Path) -> str:
    """Run `make uninstall`. Return its output."""
    command = ["/usr/bin/make", "-s", "uninstall", f"PREFIX={prefix}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout


def test_the_programs_go_and_nothing_stays_mounted(prefix: Path) -> None:
    """Other software, policy and state stay. A second run does nothing."""
    said = uninstall(prefix)
    assert [name for name in PROGRAMS if (prefix / name).exists()] == []
    assert all((prefix / name).exists() for name in (*KEPT, "bin/another", "lib/another"))
    assert not os.path.ismount(prefix / "var/lib/warmstart/n1/layers/aa")
    assert f"kept the policy in {prefix}/etc/warmstart and the state in {prefix}/var/lib/warmstart" in said
    assert uninstall(prefix) == said
