"""A warmstart without a Slurm for the bench: accounts, a store with a big image, hooks by hand."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.lib import installation, packed, teardown
from tests.lib.accounts import ALICE, STORE, Account, Accounts
from tests.lib.gluster import Gluster
from tests.lib.privileges import as_user
from tests.lib.shell_profiles import profiles
from warmstart.caches.store import bundles
from warmstart.caches.store.layout import Namespace
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.host.remove import remove_tree
from warmstart.images import choice
from warmstart.images.reference import parse
from warmstart.images.store import layout, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY, ImageQuery
from warmstart.images.store.published import ImageDraft
from warmstart.run.state import decode

REGISTRY = "reg.example.com"
IMAGE = f"docker://{REGISTRY}/team/app:1"
DIGEST = f"sha256:{'ab' * 32}"
KIND = f"{os.uname().machine}.{choice.recipe('auto')}"  # what the store tells images of one digest apart by

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl}}
images: {{registries: ["http://{registry}"], importer: {importer}}}
"""
PLAIN = f"""\
rules:
  - name: everyone
    images: ["{IMAGE}"]
"""
PROFILES = ("alpha", "beta", "gamma")
# As a site has it: profiles, and rules for other jobs.
USUAL = profiles(**dict.fromkeys(PROFILES, "*/"))
USUAL += "rules:\n"
for _number in range(19):
    USUAL += f"  - {{name: other{_number}, match: {{partition: p{_number}, user: 'u*'}}, profiles: [numba]}}\n"
_CACHED = f"images: ['{IMAGE}'], profiles: [{', '.join(PROFILES)}]"
USUAL += f"  - {{name: most, match: {{partition: main}}, {_CACHED}}}\n"
# How often a process asks for memory, or looks whether another has ended, depends on the moment.
UNCOUNTED = re.compile(
    r"^\d+ +(brk|m(un|re)?map|mprotect|madvise|wait4|waitid|p?select6?|poll|futex|restart_syscall)\("
)


class Command(NamedTuple):
    """A command line and all of its environment."""

    argv: Sequence[str]
    env: Mapping[str, str] = {}

    def run(self) -> None:
        """Run it to its end, which must be a good one."""
        subprocess.run(self.argv, env=dict(self.env), check=True, stdout=subprocess.DEVNULL)

    def calls(self, log: Path) -> list[str]:
        """Run it under strace(1), which writes `log`; return its system calls and those of its children."""
        strace = ["/usr/bin/strace", "-f", "-y", "-qq", "-e", "signal=none", "-o", str(log)]
        Command([*strace, *self.argv], self.env).run()
        return [line for line in log.read_text(errors="replace").splitlines() if "resumed>" not in line]


class BenchSite(NamedTuple):
    """Where everything is, and who owns it."""

    base: Path
    prefix: Path
    image: Path
    job_env: dict[str, str]
    owner: Identity

    def hook(self, name: str, job_id: int = 7, partition: str = "main") -> Command:
        """Return the command that runs a hook as slurmd would. No rule of `USUAL` matches jobs of other partitions."""
        environment = {**self.job_env, "SLURM_JOB_ID": str(job_id), "SLURM_JOB_PARTITION": partition}
        return Command([str(self.prefix / "libexec" / "warmstart" / name)], environment)

    def command(self, *arguments: str) -> Command:
        """Return the command that runs warmstart's command line."""
        return Command([str(self.prefix / "bin" / "warmstart"), *arguments])

    def as_owner(self, *argv: str) -> Command:
        """Return a command that runs as the store's owner."""
        become = ("/usr/bin/setpriv", f"--reuid={self.owner.uid}", f"--regid={self.owner.gid}", "--clear-groups")
        return Command([*become, *argv], {"PATH": "/usr/bin:/bin"})

    def write_policy(self, rest: str, registry: str = REGISTRY, importer: str = "auto") -> None:
        """Write a policy that allows one registry; `rest` is its end."""
        start = POLICY.format(base=self.base, registry=registry, importer=importer)
        installation.write_policy(self.prefix, start + rest)

    def on_store(self, calls: Sequence[str]) -> int:
        """Return how many of these system calls name a path in the store, or a descriptor of it."""
        store = re.escape(str(self.base / "store"))
        return sum(bool(re.search(rf'(?:"|<){store}/', call)) for call in calls)

    def fill_caches(self, count: int, there: int = 0) -> None:
        """Publish so many bundles of an entry each for the profiles in turn, as jobs would; `there` are some."""
        self.hook("prolog").run()
        (path,) = self.prefix.glob("run/warmstart/n1/state/7/run.json")
        own = decode(str(path), path.read_bytes()).own
        self.hook("epilog").run()
        for number in range(there, count):
            profile = PROFILES[number % len(PROFILES)]
            where = Namespace(f"{self.base}/store", own.publish_scope, profile, own.seeded[profile].namespace)
            self.publish_entries(where, {f"entry{number}": {f"entry{number}/kernel.bin": os.urandom(10_000)}})

    def publish_entries(self, where: Namespace, entries: packed.Entries) -> None:
        """Publish a bundle as the store's owner."""
        fd = packed.packed(self.base, entries)
        try:
            assert as_user(self.owner.uid, partial(bundles.publish, where, "bench", fd, packed.draft(entries), 0))
        finally:
            os.close(fd)

    def publish(self, digest: str) -> None:
        """Put the image into the store under a digest."""
        fd = os.open(self.image, os.O_RDONLY)
        name = layout.image_name(digest, KIND)
        draft = ImageDraft(digest, parse(IMAGE).canonical(), KIND, "bench", time.time(), "n1", 0, NOBODY)
        try:
            store = self._store()
            store.run_with(fd, after(60), published.publish_image, store.path, fd, name, draft, "bench")
        finally:
            os.close(fd)

    def point(self) -> None:
        """Let the policy's tag name the image."""
        reference = parse(IMAGE)
        want = ImageQuery(reference, KIND, layout.key_of(reference.canonical()), "", 0.0)
        store = self._store()
        store.run(after(60), published.point, want.key, DIGEST, time.time(), "bench")

    def _store(self) -> ImageStoreClient:
        return ImageStoreClient.of(self.owner, str(self.base / "store"))


MakeStore = Callable[[Path, Account], AbstractContextManager[object]]


@contextmanager
def local_store(base: Path, owner: Account) -> Iterator[None]:
    """Give the store's directory to its owner."""
    os.chown(base / "store", owner.uid, owner.gid)
    yield


@contextmanager
def network_store(base: Path, owner: Account) -> Iterator[None]:
    """Mount a volume of GlusterFS on the store's directory."""
    (base / "log").mkdir()
    with Gluster(base, owner) as servers:
        servers.client("bench", base / "store", alone=False)
        yield


@contextmanager
def bench_site(
    files: int, install: Callable[[Path], None] = installation.install, make_store: MakeStore = local_store
) -> Iterator[BenchSite]:
    """Install warmstart and publish an image of `files` files; gone afterwards."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-bench-", dir="/var/tmp"))
    base.chmod(0o755)
    accounts = Accounts(base / "home")
    with ExitStack() as stack:
        stack.callback(_remove, base)
        stack.callback(teardown.unmount_below, base)
        stack.callback(accounts.close)
        install(base / "prefix")
        owner, alice = accounts[STORE], accounts[ALICE]
        (base / "store").mkdir()
        stack.enter_context(make_store(base, owner))
        env = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_UID": str(alice.uid),
            "SLURM_JOB_GID": str(alice.gid),
            "SLURM_JOB_USER": alice.name,
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_PARTITION": "main",
        }
        image = _image(base, files)
        site = BenchSite(base, base / "prefix", image, env, Identity(owner.name, owner.uid, owner.gid))
        site.write_policy(PLAIN)
        site.publish(DIGEST)
        site.point()
        yield site


def _remove(base: Path) -> None:
    """Remove the site, beside a process that may still remove what a job left."""
    with opened_dir(str(base.parent)) as parent:
        remove_tree(parent, base.name, after(60))


def _image(base: Path, files: int) -> Path:
    """Pack an image of empty files from a tar archive: making them on the disk takes much longer."""
    image = base / "image.sqsh"
    options = ["-tar", "-noappend", "-quiet", "-no-progress", "-all-root"]
    with subprocess.Popen(["/usr/bin/mksquashfs", "-", image, *options], stdin=subprocess.PIPE) as packer:
        assert packer.stdin is not None
        with tarfile.open(fileobj=packer.stdin, mode="w|", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(files):
                archive.addfile(tarfile.TarInfo(f"{number // 1000}/{number}"))
    if packer.returncode != 0:
        raise RuntimeError("mksquashfs failed")
    return image
