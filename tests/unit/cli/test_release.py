"""`warmstart release`: what `packaging/install` keeps, and the way back to it."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from itertools import count
from pathlib import Path

import pytest

from tests.support.command_line import POLICY, answer, run
from tests.support.entry_site import OsAs
from warmstart.cli import release
from warmstart.paths import Installation
from warmstart.policy.compiled import VERSION

REPOSITORY = Path(__file__).parents[3]
# A venv whose pip links what this interpreter has, and whose interpreter does nothing: nothing is fetched or compiled.
PIP = f"""#!/bin/sh
while [ "$1" != --target ]; do shift; done
mkdir -p "$2"
ln -sf {sysconfig.get_path("purelib")}/* "$2"
"""


class Host:
    """An installation under a directory, and releases of it that are installed one after the other."""

    def __init__(self, root: Path) -> None:
        self.installation = Installation(f"{root}/opt/pre-fix")
        self._root = str(root)
        self._programs = root / "programs"
        self._seconds = count(1_800_000_000)
        venv = root / "venv/bin"
        for path, text in (
            (venv / "pip", PIP),
            (venv / "python", "#!/bin/sh\necho /bin/true\n"),
            (self._programs / "date", f"#!/bin/sh\ncat {root}/now\n"),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        self._venv, self._now = venv.parent, root / "now"

    def install(self) -> str:
        """Install this checkout; return the release's id."""
        self._now.write_text(f"{next(self._seconds)}\n")
        here = (self.installation.prefix, self.installation.etc, self.installation.var)
        prefix, etc, var = (path.removeprefix(self._root) for path in here)
        argv = ["packaging/install", str(self._venv), "/bin/true", prefix, self._root, etc, var]
        environment = {"PATH": f"{self._programs}:/usr/bin:/bin"}
        subprocess.run(argv, cwd=REPOSITORY, env=environment, check=True, capture_output=True)
        Path(self.installation.policy).write_text(POLICY)
        return os.readlink(f"{self.installation.lib}/python").removeprefix("python-")

    def listed(self) -> list[tuple[str, bool]]:
        """Return the releases that the command shows, and whether each is in force."""
        return [(found["release"], found["in_force"]) for found in answer(self.installation, "release", "list")]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return a host, as root."""
    monkeypatch.setattr(release, "os", OsAs(0))
    return Host(tmp_path)


def test_there_and_back(host: Host) -> None:
    """All programs and links of a release; what is kept is the one before and one more, and what is in force."""
    ids = [host.install() for _ in range(2)]
    lib, program = Path(host.installation.lib), Path(host.installation.libexec, "task-prolog")
    (lib / f"libexec-{ids[0]}" / "task-prolog").write_text("the first one's")
    assert host.listed() == [(ids[1], True), (ids[0], False)]
    assert VERSION in run(host.installation, "release", "list").stdout
    assert run(host.installation, "release", "rollback").exit_code == 0
    assert host.listed() == [(ids[1], False), (ids[0], True)]
    assert {os.readlink(lib / part) for part in release.PARTS} == {f"{part}-{ids[0]}" for part in release.PARTS}
    assert (program.read_text(), program.stat().st_mode & 0o777) == ("the first one's", 0o755)
    assert sorted(os.listdir(program.parent)) == sorted(os.listdir(lib / f"libexec-{ids[0]}"))
    assert run(host.installation, "release", "rollback").exit_code == 2
    assert run(host.installation, "release", "rollback", ids[1]).exit_code == 0
    assert "the first one's" not in program.read_text()
    ids += [host.install() for _ in range(2)]
    assert host.listed() == [(ids[3], True), (ids[2], False), (ids[1], False)]
    assert run(host.installation, "release", "rollback", ids[1]).exit_code == 0
    ids += [host.install(), host.install()]
    assert [found for found, _ in host.listed()] == [ids[5], ids[4], ids[3]]


def test_what_is_in_force_when_another_is_installed_stays(host: Host) -> None:
    """However old it is: hooks run in it."""
    ids = [host.install() for _ in range(3)]
    assert run(host.installation, "release", "rollback", ids[0]).exit_code == 0
    ids.append(host.install())
    assert [found for found, _ in host.listed()] == [ids[3], ids[2], ids[1], ids[0]]


def test_a_release_that_cannot_read_the_policy_is_not_entered(host: Host) -> None:
    """It would give jobs nothing. The admin may insist."""
    old, new = host.install(), host.install()
    schema = Path(host.installation.lib, f"python-{old}", "warmstart/policy/load.py")
    schema.write_text("def compile_policy(path, owners): raise ValueError('mode: unknown key')\n")
    refused = run(host.installation, "release", "rollback")
    assert (refused.exit_code, "does not accept the policy: mode: unknown key" in refused.stderr) == (2, True)
    assert host.listed() == [(new, True), (old, False)]
    assert run(host.installation, "release", "rollback", "--force").exit_code == 0
    assert host.listed() == [(new, False), (old, True)]


def test_half_a_release_is_none(host: Host) -> None:
    """One that an older installer left without its programs, or that is not kept at all."""
    old, _ = host.install(), host.install()
    os.rename(f"{host.installation.lib}/libexec-{old}", f"{host.installation.lib}/libexec-gone")
    for arguments in ((), (old,), ("../..",)):
        result = run(host.installation, "release", "rollback", *arguments)
        assert (result.exit_code, "release list" in result.stderr) == (2, True)
    assert len(host.listed()) == 1


def test_only_root_may(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is for all."""
    host.install()
    monkeypatch.setattr(release, "os", OsAs(1000))
    result = run(host.installation, "release", "rollback")
    assert (result.exit_code, "needs root" in result.stderr) == (2, True)
