"""A package's configuration: accounts whose uids were taken are told, because all nodes need the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "packaging/package/configure"
ACCOUNTS = "# the three\nu warmstart 901 owner\nu warmstart-import 902 imports\nu warmstart-validate 903 validation\n"
# Makes the accounts that are missing: 902 is taken by somebody.
SYSUSERS = """\
for pair in warmstart:901 warmstart-import:998 warmstart-validate:903; do
    grep -q "^${pair%%:*}:" "$USERS" 2>/dev/null || echo "$pair" >>"$USERS"
done
"""


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def configure(tmp_path: Path) -> Path:
    """Return the script with all its paths below a directory, where its programs are stand-ins."""
    for place in ("etc/warmstart", "usr/share/warmstart", "usr/lib/sysusers.d", "bin"):
        (tmp_path / place).mkdir(parents=True)
    for name in ("python", "cli", "libexec"):
        (tmp_path / "usr/lib/warmstart/packaged" / name).mkdir(parents=True)
    (tmp_path / "etc/warmstart/policy.yaml").touch()
    (tmp_path / "usr/lib/warmstart/packaged/python/RELEASE").touch()
    (tmp_path / "usr/lib/sysusers.d/warmstart.conf").write_text(ACCOUNTS)
    script(tmp_path / "usr/lib/warmstart/packaged/release", "")
    script(tmp_path / "bin/systemd-sysusers", SYSUSERS)
    script(tmp_path / "bin/systemd-tmpfiles", "")
    script(tmp_path / "bin/id", 'sed -n "s/^$2://p" "$USERS" 2>/dev/null | grep .')
    script(
        tmp_path / "configure",
        SCRIPT.read_text().replace("/etc/", f"{tmp_path}/etc/").replace("/usr/", f"{tmp_path}/usr/"),
    )
    return tmp_path / "configure"


def told(configure: Path) -> str:
    path = f"{configure.parent}/bin:{os.environ['PATH']}"
    environment = {"PATH": path, "USERS": f"{configure.parent}/users"}
    done = subprocess.run(["/bin/sh", configure], env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.mark.report
def test_an_account_that_got_another_uid_is_told_once(configure: Path) -> None:
    first = told(configure)
    assert "warmstart-import has uid 998 here, as 902 is taken" in first
    assert "same uids on all nodes" in first
    assert "901" not in first
    assert "has uid" not in told(configure)


@pytest.mark.report
def test_the_sites_numbers_count(configure: Path) -> None:
    own = configure.parent / "etc/sysusers.d/warmstart.conf"
    own.parent.mkdir()
    own.write_text(ACCOUNTS.replace("902", "998").replace("903", "904"))
    found = told(configure)
    assert "warmstart-validate has uid 903 here, as 904 is taken" in found
    assert "warmstart-import" not in found
