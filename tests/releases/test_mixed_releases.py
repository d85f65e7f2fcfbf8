"""Two releases on one store and one node: a rolling upgrade with a job running, and the way back.

The other release is a later one, made of this checkout: with further fields, or with higher format numbers
(docs/store-format.md, Releases).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib import installation
from tests.lib.accounts import ALICE, STORE, Account, Accounts
from tests.lib.numba_entries import numba_entries, write_as

pytestmark = pytest.mark.sweep
REPOSITORY = Path(__file__).resolve().parents[2]
# Each gets a further field: (module, class).
GROWN = (
    ("run/state.py", "Run"),
    ("ending/waiting.py", "Waiting"),
    ("store/manifest.py", "Producer"),
    ("store/manifest.py", "Manifest"),
    ("store/index.py", "Listed"),
    ("images/imports/requests.py", "ImportRequest"),
)
RENUMBERED = ("run/state.py", "store/manifest.py", "store/index.py")
POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl}}
images: {{registries: [reg.example.com]}}
harvest: {{budget: 30s}}
rules:
  - {{name: everyone, profiles: [numba]}}
"""


def copied(tree: Path) -> None:
    """Copy what `make install` takes of this checkout."""
    for name in ("hooks", "packaging", "policies"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "LICENSE"):
        shutil.copy(REPOSITORY / name, tree)


def grown(tree: Path) -> None:
    copied(tree)
    for module, name in GROWN:
        path = tree / "hooks/warmstart" / module
        text, count = re.subn(
            rf"(class {name}\(NamedTuple\):\n.*?)(\n\n(?:    @|\n))",
            r'\1\n    added_later: str = "x"\2',
            path.read_text(), count=1, flags=re.DOTALL,
        )  # fmt: skip
        assert count == 1, module
        path.write_text(text)


def renumbered(tree: Path) -> None:
    copied(tree)
    for module in RENUMBERED:
        path = tree / "hooks/warmstart" / module
        text, count = re.subn(r"^FORMAT = \d$", "FORMAT = 9", path.read_text(), flags=re.MULTILINE)
        assert count == 1, module
        path.write_text(text)


class Node:
    """A node with this release and another one, of which one is in force."""

    def __init__(self, base: Path, alice: Account, other: Callable[[Path], None]) -> None:
        self.base, self.prefix, self.alice = base, base / "prefix", alice
        tree = base / "tree"
        tree.mkdir()
        other(tree)
        self.releases = {}
        for name, source in (("other", tree), ("this", REPOSITORY)):
            argv = ["/usr/bin/make", "-s", "install", f"PREFIX={self.prefix}", f"VENV={sys.prefix}"]
            subprocess.run(argv, cwd=source, check=True, capture_output=True)
            self.releases[name] = os.readlink(self.prefix / "lib/warmstart/python").removeprefix("python-")
        installation.write_policy(self.prefix, POLICY.format(base=base))

    def enter(self, name: str) -> None:
        """Have one of the two in force, as an installation does."""
        lib, libexec = self.prefix / "lib/warmstart", self.prefix / "libexec/warmstart"
        argv = [str(REPOSITORY / "packaging/release"), "enter", str(lib), str(libexec), self.releases[name]]
        subprocess.run(argv, check=True, capture_output=True)

    def command(self, *arguments: str, status: int = 0) -> str:
        """Run the command line; return what it prints."""
        done = subprocess.run(
            [self.prefix / "bin/warmstart", *arguments], env={}, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done
        return done.stdout + done.stderr

    def hook(self, name: str, job: int, node: str = "n1") -> str:
        """Run a hook of a job of alice's; return what slurmd would log."""
        variables = {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_UID": str(self.alice.uid),
            "SLURM_JOB_GID": str(self.alice.gid),
            "SLURM_JOB_USER": ALICE,
            "SLURMD_NODENAME": node,
        }
        done = subprocess.run(
            [self.prefix / "libexec/warmstart" / name],
            env=variables,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, ""), done
        return done.stderr

    def cache(self, job: int) -> Path:
        (run,) = (self.base / "workspace").glob(f"{job}.*")
        return run / "cache/numba"

    def compile(self, job: int, *numbers: int) -> None:
        write_as(self.alice.uid, self.alice.gid, self.cache(job), numba_entries(*numbers))

    def seeded(self, job: int) -> int:
        """Return the number of entries that a job finds."""
        return len(list(self.cache(job).rglob("*.nbi")))

    def left(self) -> list[str]:
        """Return what is left of jobs on the node."""
        var, run = self.prefix / "var/lib/warmstart/n1", self.prefix / "run/warmstart"
        places = [var / "stage", run / "n1/state", run / "n1/queue/endings", self.base / "workspace", run / "view"]
        return [str(path) for place in places if place.is_dir() for path in place.iterdir()]

    def job(self, number: int, *entries: int, expected: int, then: str = "") -> None:
        """Run a job that finds `expected` entries and compiles `entries`; `then` is in force at its end."""
        assert self.hook("prolog", number) == ""
        assert self.seeded(number) == expected
        self.compile(number, *entries)
        if then:
            self.enter(then)
        assert self.hook("epilog", number) == ""
        assert self.left() == []


@contextmanager
def node_with(other: Callable[[Path], None]) -> Iterator[Node]:
    """Yield a node, in a directory of its own below /var/tmp, and a store."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-mixed-", dir="/var/tmp"))
    base.chmod(0o755)
    accounts = Accounts(base / "home")
    try:
        (base / "store").mkdir()
        os.chown(base / "store", accounts[STORE].uid, accounts[STORE].gid)
        yield Node(base, accounts[ALICE], other)
    finally:
        accounts.close()
        subprocess.run(
            ["/bin/sh", "-c", f"grep -o '{base}[^ ]*' /proc/mounts | sort -r | xargs -r umount -l"], check=False
        )
        shutil.rmtree(base)


def test_each_fetches_and_ends_what_the_other_began(capable_host: None) -> None:
    """Upgrade and rollback under a running job, a run that waits, an import's request, the logs, maintenance."""
    with node_with(grown) as node:
        node.enter("other")
        node.job(1, 1, expected=0)
        node.job(2, 2, expected=1, then="this")  # upgraded while it ran
        node.job(3, 3, expected=2)
        node.job(4, 4, expected=3, then="other")  # rolled back while it ran
        node.job(5, 5, expected=4)
        for job, (first, second) in enumerate((("other", "this"), ("this", "other")), 6):
            node.enter(first)
            assert node.hook("prolog", job) == ""
            node.compile(job, job)
            (node.base / "store").rename(node.base / "gone")
            node.hook("epilog", job)
            assert [path for path in node.left() if "/endings/" in path]
            (node.base / "gone").rename(node.base / "store")
            node.enter(second)
            node.command("maintain", "--node", "n1")
            assert node.left() == []
        for name in ("this", "other"):
            node.enter(name)
            node.command("maintain", "--store")
            assert len(json.loads(node.command("cache", "list", "--json").splitlines()[0])) > 0
            node.job(10 + len(name), expected=7)
        events = [json.loads(line) for line in (node.base / "audit/audit.jsonl").read_text().splitlines()]
        assert {event.get("job_id") for event in events if event["event"] == "hook.finished"} >= {1, 2, 3, 4, 5, 6, 7}
        assert not [event for event in events if event["event"] == "node.drained"]
        assert not [event for event in events if "traceback" in event]


def test_what_has_a_newer_format_is_refused_and_stays(capable_host: None) -> None:
    with node_with(renumbered) as node:
        node.enter("other")
        node.job(1, 1, expected=0)
        assert node.hook("prolog", 2) == ""
        node.compile(2, 2)
        node.enter("this")
        assert "has format 9, known is 1" in node.hook("epilog", 2)
        assert node.cache(2).exists()
        assert node.hook("prolog", 3) == ""
        assert node.seeded(3) == 0
        assert node.hook("epilog", 3) == ""
        node.command("maintain", "--store")
        node.enter("other")
        assert node.hook("epilog", 2) == ""
        node.job(4, expected=2)
