"""The deb of each Debian release: built in its root file system, installed in a bare one without a network, at work."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.requirements import unavailable
from tests.releases.packages.installed import NEXT
from tests.releases.packages.roots import NODE, SHARED, Suite, run, suite

# Built in another directory, by another venv: neither may be in a package. Then as another release.
AGAIN = """\
cp -r . /var/tmp/again && cd /var/tmp/again && make -s deb VENV=/opt/venv PACKAGES={packages}/again
sed -i "s/^version = .*/version = {next}/" setup.cfg
sed -i 's/^VERSION = .*/VERSION = "{next}"/' hooks/warmstart/policy/keys.py
make -s deb VENV=/opt/venv PACKAGES={packages}/next
rm -r /var/tmp/again
"""

HERE = Path(__file__).resolve().parent
OF_WINGS = sorted(os.path.relpath(path, HERE) for path in HERE.parent.glob("wings/*/package.py"))

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module", params=["bookworm", "trixie", "sid"])
def debian(capable_host: None, request: pytest.FixtureRequest) -> Suite:
    return suite(request.param)


@pytest.fixture(scope="module")
def packages(debian: Suite) -> Iterator[Path]:
    """Return the packages, built there: below `again` another build of them, below `next` another release's."""
    directory = Path(tempfile.mkdtemp(prefix="packages-", dir=SHARED))
    debian.build("make", "-s", "deb", f"PACKAGES={directory}")
    debian.build("sh", "-euc", AGAIN.format(packages=directory, next=NEXT))
    yield directory
    shutil.rmtree(directory)


def test_two_builds_are_identical(packages: Path) -> None:
    names = sorted(path.name for path in packages.glob("*.deb"))
    assert [name.partition("_")[0] for name in names] == ["warmstart-spank", "warmstart"]
    for name in names:
        assert (packages / name).read_bytes() == (packages / "again" / name).read_bytes()


def test_lintian_has_nothing_to_say(packages: Path) -> None:
    if shutil.which("lintian") is None:
        unavailable("lintian is not installed")
    for package in packages.glob("*.deb"):
        assert run("lintian", "--allow-root", "--fail-on=warning", package) == ""


def test_installed_without_a_network(debian: Suite, packages: Path) -> None:
    with debian.fresh() as root:
        root.apt(*packages.glob("warmstart_*.deb"))
        root.apt(*NODE, *packages.glob("warmstart-spank_*.deb"))
        assert " passed" in root.pytest("installed.py", packages)


def test_what_a_release_runs_on_a_bare_host(debian: Suite, packages: Path) -> None:
    with debian.fresh() as root:
        said = root.run(HERE / "works", packages)
        assert ["n1", "1", "hook.finished", "ok"] in [line.split()[1:5] for line in said.splitlines()], said[-2000:]


def test_ten_minutes(debian: Suite, packages: Path) -> None:
    with debian.fresh() as root:
        root.apt(*NODE)
        root.apt(*packages.glob("warmstart_*.deb"))
        assert " passed" in root.pytest("ten_minutes.py", packages)


@pytest.mark.report
def test_its_units_and_drop_in_do_their_work(debian: Suite, packages: Path) -> None:
    with debian.fresh() as root:
        root.apt("systemd", *NODE, "passwd", *packages.glob("warmstart_*.deb"))
        assert " passed" in root.pytest("under_systemd.py", packages)


@pytest.mark.parametrize("path", OF_WINGS)
def test_a_wings_units_do_their_work(debian: Suite, packages: Path, path: str) -> None:
    with debian.fresh() as root:
        root.apt("systemd", *NODE, "passwd", *packages.glob("warmstart_*.deb"))
        assert " passed" in root.pytest(path, packages)


def test_the_ansible_role(debian: Suite, packages: Path) -> None:
    with debian.fresh() as root:
        root.apt(*NODE, "ansible-core", "python3-apt", "squashfs-tools", "systemd")
        assert " passed" in root.pytest("by_ansible.py", packages)
