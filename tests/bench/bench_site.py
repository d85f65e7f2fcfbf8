"""A warmstart without a Slurm for the bench: accounts, a store with a big image, hooks by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.clock import Command
from tests.cluster import installation
from tests.cluster.accounts import ALICE, STORE, Accounts
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images import choice, layout
from warmstart.images.client import ImageStoreClient
from warmstart.images.layout import NOBODY, ImageQuery, TagTimes
from warmstart.images.published import Draft
from warmstart.images.reference import parse

IMAGE = "docker://reg.example.com/team/app:1"
DIGEST = f"sha256:{'ab' * 32}"
KIND = f"{os.uname().machine}.{choice.recipe('auto')}"  # what the store tells images of one digest apart by

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl}}
images: {{registries: [reg.example.com]}}
rules:
  - name: everyone
    images: ["{image}"]
"""


class BenchSite(NamedTuple):
    """Where everything is, and who owns it."""

    base: Path
    prefix: Path
    image: Path
    job_env: dict[str, str]
    owner: Identity

    def hook(self, name: str) -> Command:
        """Return the command that runs a hook as slurmd would."""
        return Command([str(self.prefix / "libexec" / "warmstart" / name)], self.job_env)

    def publish(self, digest: str) -> None:
        """Put the image into the store under a digest."""
        fd = os.open(self.image, os.O_RDONLY)
        name = layout.image_name(digest, KIND)
        draft = Draft(digest, parse(IMAGE).canonical(), KIND, "bench", time.time(), "n1", 0, NOBODY)
        try:
            with self._store() as store:
                store.publish_image(fd, name, draft, "bench", after(60))
        finally:
            os.close(fd)

    def point(self) -> None:
        """Let the policy's tag name the image."""
        reference = parse(IMAGE)
        want = ImageQuery(reference, KIND, layout.key_of(reference.canonical()), "", TagTimes(0.0, 0.0))
        with self._store() as store:
            store.point(want, DIGEST, time.time(), "bench", after(60))

    def _store(self) -> ImageStoreClient:
        return ImageStoreClient.of(self.owner, str(self.base / "store"))


@contextmanager
def bench_site(files: int) -> Iterator[BenchSite]:
    """Install warmstart and publish an image of `files` files; gone afterwards."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-bench-", dir="/var/tmp"))
    base.chmod(0o755)
    accounts = Accounts(base / "home")
    try:
        installation.install(base / "prefix")
        installation.write_policy(base / "prefix", POLICY.format(base=base, image=IMAGE))
        owner, alice = accounts[STORE], accounts[ALICE]
        (base / "store").mkdir()
        os.chown(base / "store", owner.uid, owner.gid)
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
        site.publish(DIGEST)
        site.point()
        yield site
    finally:
        accounts.close()
        shutil.rmtree(base)


def _image(base: Path, files: int) -> Path:
    tree = base / "rootfs"
    for number in range(files):
        if number % 1000 == 0:
            (tree / str(number)).mkdir(parents=True)
        (tree / str(number - number % 1000) / str(number)).write_bytes(b"")
    image = base / "image.sqsh"
    options = ["-noappend", "-quiet", "-no-progress", "-all-root"]
    subprocess.run(["/usr/bin/mksquashfs", tree, image, *options], check=True)
    shutil.rmtree(tree)
    return image
