"""A store, real accounts, a real registry and a node's directories for tests of images; no Slurm."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.lib import mounts, teardown
from tests.lib.accounts import IMPORT, STORE, VALIDATE, Accounts
from tests.lib.image_site import NO_NODE, RULES
from tests.lib.registry import Registry, build_image
from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images.importers.base import ImportFailed, Report, unreported
from warmstart.images.importers.oci import Oci
from warmstart.images.query import Requester, Site
from warmstart.images.reference import Reference, parse
from warmstart.images.scratch import Scratch
from warmstart.images.store.client import ImageStoreClient

KIND = f"{os.uname().machine}.oci2"
FAKE_ENROOT = Path(__file__).parent / "fakes" / "enroot"


class Store(NamedTuple):
    """A store that refuses all uids but its owner's, including root, as root squash does."""

    path: Path  # as hooks are told
    source: Path  # the same files, where a test may look and do harm

    def file(self, path: str | Path) -> Path:
        """Return the path in the test's view of a path in the hook's view."""
        return self.source / Path(path).relative_to(self.path)


class Place(NamedTuple):
    """A directory with the accounts that own its parts, and a registry with `team/tool:1`."""

    base: Path
    accounts: Accounts
    registry: Registry
    layout: Path

    def identity(self, name: str) -> Identity:
        """Return an account as warmstart sees it."""
        account = self.accounts[name]
        return Identity(name, account.uid, account.gid)

    def new_store(self, name: str) -> Path:
        """Return an empty store of the store's owner."""
        return self.own(self.base / name)

    @contextmanager
    def squashed(self, name: str, *, coherent: bool = False) -> Iterator[Store]:
        """Yield an empty store that root cannot enter, named after a test. `coherent`: see `mounts.squashed`."""
        name = re.sub(r"\W+", "-", name).strip("-")
        source = self.new_store(f"{name}-source")
        with mounts.squashed(self.base, source, self.base / name, self.accounts[STORE], coherent=coherent) as path:
            yield Store(path, source)

    def own(self, path: Path) -> Path:
        """Make a directory that belongs to the store's owner."""
        path.mkdir(exist_ok=True)
        os.chown(path, self.accounts[STORE].uid, self.accounts[STORE].gid)
        return path

    def site(
        self,
        store: Path,
        *,
        node: str = "n1",
        run_id: str = "r1",
        job_id: int = 7,
        **changes: Any,  # noqa: ANN401 - fields of Site
    ) -> Site:
        """Return a node's view of a store. Its worker is not started yet."""
        made = Site(
            store=ImageStoreClient.of(self.identity(STORE), str(store)),
            importer=partial(Oci, self.identity(IMPORT), (self.registry.url,)),
            validator=self.identity(VALIDATE),
            rules=RULES,
            recipe="oci2",
            workspace=str(self.base / "workspace"),
            uses=str(self.base / f"uses-{store.name}"),
            requester=Requester(node, run_id, job_id),
            paths=NO_NODE,
        )
        return made._replace(**changes)

    def image(self, name: str = "team/tool:1") -> Reference:
        """Return a reference into the registry."""
        return parse(f"{self.registry.url}/{name}")

    def push_as_docker(self, layout: Path, name: str) -> str:
        """Push in Docker's format, the only one that Debian's docker-registry shows enroot. Return the digest."""
        digest = layout / "docker-digest"
        subprocess.run(
            ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false", "--format=v2s2",
             f"--digestfile={digest}", f"oci:{layout}:latest", f"docker://{self.registry.url}/{name}"],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        return digest.read_text().strip()

    def enroot(self, version: str = "4.1.2") -> Path:
        """Return the stand-in for enroot, as a version."""
        directory = self.base / f"enroot-{version}"
        if not directory.exists():
            directory.mkdir()
            shutil.copy(FAKE_ENROOT, directory / "enroot")
            (directory / "version").write_text(f"{version}\n")
        return directory / "enroot"

    def left_in_scratch(self) -> list[str]:
        """Return what imports left on the node."""
        return os.listdir(self.base / "workspace")


@contextmanager
def opened_place() -> Iterator[Place]:
    """Yield a registry with `team/tool:1`, accounts and a directory, and remove them afterwards."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-images-", dir="/var/tmp"))
    base.chmod(0o755)
    (base / "log").mkdir()
    watchdog = teardown.watch(base)
    accounts = Accounts(base / "homes")
    try:
        layout = build_image(base / "image", {"/etc/hello": "hello\n", "/etc/shadow": "secret\n"})
        _hide(layout, base / "hidden")
        with Registry(base) as registry:
            registry.push(layout, "latest", "team/tool:1")
            yield Place(base, accounts, registry, layout)
    finally:
        teardown.tear_down(base)
        accounts.close()
        teardown.stop_watching(watchdog)


def _hide(layout: Path, directory: Path) -> None:
    """Add a program to the image that its owner cannot read, as RHEL's sudo."""
    directory.mkdir()
    program = directory / "sudo"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o4111)
    argv = ["umoci", "insert", "--image", f"{layout}:latest", str(program), "/bin/sudo"]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)


def files(store: Path) -> list[str]:
    """Return all files of a store except locks, sorted."""
    found = (str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.endswith(".lock"))


def published_files(store: Path) -> list[str]:
    """Return all files of a store except locks and notes of failures, sorted."""
    return [name for name in files(store) if "/failed/" not in name]


def in_child(function: Callable[[], object]) -> tuple[int, int]:
    """Run a function in a forked child. Return its pid and a descriptor from which its result can be read as JSON."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.write(writer, json.dumps(function()).encode())
    finally:
        os._exit(0)


def result(child: tuple[int, int]) -> Any:  # noqa: ANN401 - whatever the function returned
    """Return the result of a child's function, None if it did not return."""
    pid, reader = child
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    os.waitpid(pid, 0)
    return json.loads(data) if data else None


def processes_of(uid: int, base: Path) -> list[int]:
    """Return the pids of an account's processes that work below `base`, or have a file open there, zombies left out.

    Other processes of the account may belong to tests that run at the same time.
    """
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid != uid or (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            links = [entry / "cwd", *(entry / "fd").iterdir()]
            named = b" ".join([*map(_target, links), (entry / "cmdline").read_bytes()])
        except (FileNotFoundError, ProcessLookupError):
            continue
        pids += [int(entry.name)] if os.fsencode(base) in named else []
    return pids


def _target(link: Path) -> bytes:
    try:
        return os.readlink(os.fsencode(link))
    except FileNotFoundError:
        return b""  # closed since
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # below thousands of folders, in another test
            raise
        return b""


class Ready(NamedTuple):
    """An importer that sleeps, then copies a squashfs made before."""

    identity: Identity
    image: str  # path of the squashfs, readable for all
    seconds: float = 0.0
    before: str = ""  # shell commands
    name: str = "ready"

    def resolve(self, reference: Reference, work: Scratch, deadline: Deadline) -> str:  # noqa: ARG002
        """Return a fixed digest for the reference."""
        return f"sha256:{hashlib.sha256(reference.canonical().encode()).hexdigest()}"

    def import_image(
        self,
        reference: Reference,
        digest: str,  # noqa: ARG002
        work: Scratch,
        deadline: Deadline,
        report: Report = unreported,
    ) -> str:
        """Sleep and copy, as the import account."""
        report("fetching", os.stat(self.image).st_size)
        script = f"{self.before} sleep {self.seconds}; exec cp {self.image} image.sqsh"
        ended = process.run_alone(
            ["/bin/sh", "-c", script],
            deadline=deadline, identity=self.identity, env={"PATH": "/usr/bin:/bin"}, cwd=work.path,
        )  # fmt: skip
        if ended.status != 0:
            raise ImportFailed(image=reference.canonical(), program="/bin/sh", problem=ended.complaint())
        return "image.sqsh"


def squashfs(path: Path, size: int, options: tuple[str, ...] = ()) -> Path:
    """Make a squashfs of a few directories and `size` bytes that do not compress."""
    tree = path.with_suffix(".tree")
    for number in range(20):
        (tree / f"d{number}").mkdir(parents=True)
        (tree / f"d{number}" / "file").write_bytes(os.urandom(size // 20))
    argv = ["mksquashfs", str(tree), str(path), "-no-progress", "-quiet", "-processors", "1", *options]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
    path.chmod(0o644)
    return path


def leftovers(store: Path) -> list[str]:
    """Return what killed or careless producers left in a store: temporary files and notes of producers."""
    found = (str(path.relative_to(store)) for path in store.rglob("*"))
    return sorted(name for name in found if ".tmp-" in name or name.endswith(".producer") or "/.evicted" in name)
