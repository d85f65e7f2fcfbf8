"""A node with a shelf and a store with real squashfs images, without Slurm. Needs root."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from tests.lib.node import NODE, Node
from tests.lib.runs import a_run
from warmstart.entry import background
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.images.store import published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import Charged
from warmstart.images.store.published import ImageDraft
from warmstart.images.unpacked import ImageKey, Unpacked, take
from warmstart.images.unpacking import Tree, on_node
from warmstart.images.unpacks import UNPACKS, _waiting, ask
from warmstart.queue import Asker, Queue
from warmstart.run import state as runs
from warmstart.run.state import Run

KIND = f"{os.uname().machine}.oci2"
MKSQUASHFS = "/usr/bin/mksquashfs"
PLAIN = ("-noappend", "-quiet", "-no-progress")


class ShelfSite(Node):
    """An installation below `base`, whose node n1 keeps unpacked images in `base/shelf`."""

    def __init__(self, base: Path, keep: str = "1GiB", any_disk: bool = False) -> None:
        super().__init__(base)
        self.policy_of(keep=keep, any_disk=any_disk)
        (base / "shelf").mkdir()
        Path(self.paths.state).mkdir(parents=True, mode=0o700)

    def policy_of(self, keep: str = "1GiB", any_disk: bool = False) -> None:
        """Write the policy anew."""
        path = Path(self.installation.policy)
        text = path.read_text().partition("images:")[0].replace(f"shelf: {self.base}/shelf, ", "")
        text = text.replace("paths: {", f"paths: {{shelf: {self.base}/shelf, ")
        path.write_text(f"{text}images: {{unpack: {{keep: {keep}, any_disk: {str(any_disk).lower()}}}}}\n")

    @property
    def shelf(self) -> Path:
        """Where its trees lie."""
        return self.base / "shelf" / NODE / "images"

    def pack(self, content: Path, *options: str) -> Path:
        """Make a squashfs of a directory."""
        image = content.with_suffix(".sqsh")
        subprocess.run([MKSQUASHFS, content, image, *PLAIN, *options], check=True, capture_output=True)
        return image

    def image(self, name: str = "app", **files: str) -> Path:
        """Make an image with files, by default one."""
        content = self.base / name
        (content / "usr").mkdir(parents=True)
        for path, text in (files or {"greeting": f"hello from {name}\n"}).items():
            (content / "usr" / path).write_text(text)
        return self.pack(content)

    def publish_image(self, image: Path, private: str = "", *, files: int = 0, unpacked: int = 0) -> ImageKey:
        """Publish an image; its digest is made of its name, and it says that it has so much."""
        digest = "sha256:" + f"{image.stem}-".encode().hex().ljust(64, "0")[:64]
        name = f"{digest[7:]}.{KIND}"
        draft = ImageDraft(
            digest, f"reg.io/{image.stem}:1", KIND, "oci", time.time(), NODE, 7, Charged(), files, unpacked
        )
        client = self.client()
        with image.open("rb") as file:
            store = ImageStoreClient(client.worker, str(self.store))
            store = store.private(private, after(20)) if private else store
            store.run_with(
                file.fileno(), after(20), published.publish_image, store.path, file.fileno(), name, draft, "t"
            )
        return ImageKey(name, private)

    def ask(self, key: ImageKey, uid: int = 5001) -> str:
        """Have an image unpacked, as a job of a user does that does not wait; no program is started."""
        with mock.patch.object(Queue, "start_due"):
            return ask(self.policy, self.paths, f"reg.io/{key.image[:8]}", key, Asker(7, uid, f"u{uid}", "c"))

    def unpack(self, key: ImageKey) -> int:
        """Do the item for an image, in this process."""
        return background.main(str(self.base), [UNPACKS.name, NODE, key.tree])

    def job(self, job_id: int = 7) -> Run:
        """Return the run of a job that runs, which is written."""
        self.knows(job_id)
        run = a_run(job_id=job_id)
        os.makedirs(f"{self.paths.state}/{job_id}", mode=0o700, exist_ok=True)
        runs.save(self.paths.state, run)
        return run

    def take(self, key: ImageKey, job_id: int = 7) -> Unpacked | None:
        """Take a tree for a job."""
        return take(str(self.shelf), key, self.paths, self.job(job_id), after(5))

    @contextmanager
    def awaited(self, key: ImageKey) -> Iterator[None]:
        """Have somebody wait for an image."""
        with opened_dir(str(self.shelf)) as fd, _waiting(fd, key.tree, after(5)):
            yield

    def trees(self) -> list[Tree]:
        """Return what is there."""
        return on_node(self.policy, self.paths)

    def left(self) -> list[str]:
        """Return what lies on the shelf besides trees."""
        return sorted(name for name in os.listdir(self.shelf) if "." in name) if self.shelf.exists() else []

    def problem(self) -> str:
        """Return how the last attempt failed."""
        return str(self.events("image.unpack-failed")[-1]["error"]["reason"])
