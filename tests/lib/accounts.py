"""The accounts that tests need on the host: three job users and warmstart's three service accounts.

They are real (in /etc/passwd) because slurmd, munge and the hooks look them up there. They have fixed uids and no
login. An account that this module made has a mark in its comment field; only such accounts are removed, and only when
no other cluster on the host still holds them.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from tests.lib import host, processes

if TYPE_CHECKING:
    from pathlib import Path

ALICE = "ws-alice"
BOB = "ws-bob"
CAROL = "ws-carol"
STORE = "warmstart"
IMPORT = "warmstart-import"
VALIDATE = "warmstart-validate"

UIDS = {ALICE: 64201, BOB: 64202, CAROL: 64203, STORE: 64210, IMPORT: 64211, VALIDATE: 64212}
_MARK = "warmstart test account"


class Account(NamedTuple):
    """One account of the host. `home` is in the cluster's directory; the one in passwd does not exist."""

    name: str
    uid: int
    gid: int
    home: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of a login of this account, with nothing inherited from the caller."""
        return {
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "LOGNAME": self.name,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "USER": self.name,
        }


def lookup(name: str, home: Path) -> Account:
    """Return the host's account of that name. Raises KeyError if there is none."""
    entry = pwd.getpwnam(name)
    return Account(name, entry.pw_uid, entry.pw_gid, home)


class Accounts:
    """All test accounts, present until `close`; each with a private home below `homes`."""

    def __init__(self, homes: Path) -> None:
        """Create missing accounts. Raises RuntimeError with the message of useradd."""
        with host.changing():
            # A shared lock, held while the accounts are needed; `remove_unused` takes it exclusively.
            self._holder = host.open_lock("holders")
            fcntl.flock(self._holder, fcntl.LOCK_SH)
            for name, uid in UIDS.items():
                if not _exists(name):
                    _create(name, uid)
        self._accounts = {name: lookup(name, homes / name) for name in UIDS}
        for account in self._accounts.values():
            account.home.mkdir(mode=0o700, parents=True)
            os.chown(account.home, account.uid, account.gid)

    def __getitem__(self, name: str) -> Account:
        return self._accounts[name]

    def close(self) -> None:
        """Release the accounts. The last holder on this host removes those that tests made."""
        os.close(self._holder)
        remove_unused()


def remove_unused() -> None:
    """Remove the marked accounts, unless a cluster still holds them."""
    with host.changing():
        holders = host.open_lock("holders")
        try:
            fcntl.flock(holders, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in UIDS:
                if _exists(name) and pwd.getpwnam(name).pw_gecos == _MARK:
                    processes.kill_of_uid(pwd.getpwnam(name).pw_uid)
                    _run("/usr/sbin/userdel", name)
                    for place in (f"/tmp/{name}", f"/tmp/torchinductor_{name}"):  # of the task prolog
                        shutil.rmtree(place, ignore_errors=True)
        except BlockingIOError:
            return
        finally:
            os.close(holders)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _create(name: str, uid: int) -> None:
    # --system: no home, no subordinate ids, no password ageing.
    _run(
        "/usr/sbin/useradd", "--system", "--uid", str(uid), "--user-group", "--no-create-home",
        "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", "--comment", _MARK, name,
    )  # fmt: skip


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise RuntimeError(f"{argv[0]} {argv[-1]}: {done.stderr.strip()}")
