"""The acts of a node: its hooks, what hooks leave to the background, and maintenance.

One node in memory has a store with images and with bundles of two users, and a neighbour's job that nothing may touch.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

# What hooks import late is imported here once, and not in each of thousands of children.
import filelock  # noqa: F401
import prometheus_client  # noqa: F401
import structlog  # noqa: F401

from tests.faults.acts import LATER_S, Act
from tests.lib.faults import STORE, Done, Fault
from tests.lib.image_place import Ready, squashfs
from tests.lib.image_site import NO_NODE, RULES
from tests.lib.node import NODE, Node, account
from tests.lib.numba_entries import numba_entries
from tests.lib.runs import a_job
from tests.lib.wing_hooks import of_wings
from warmstart.caches.store import generations
from warmstart.caches.store.layout import ENDING, Namespace
from warmstart.ending import release, waiting
from warmstart.ending.waiting import ENDINGS
from warmstart.entry import background
from warmstart.harvest.live import LIVE
from warmstart.host.deadline import after
from warmstart.host.files import ensure_path, opened_dir
from warmstart.host.remove import remove_tree
from warmstart.images import choice, unpacks
from warmstart.images.imports import making, requests
from warmstart.images.imports.requests import ImportRequest
from warmstart.images.query import Requester, Site
from warmstart.images.reference import parse
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.unpacked import ImageKey
from warmstart.images.unpacks import UNPACKS
from warmstart.job import Job
from warmstart.policy.current import current_policy
from warmstart.queue import Asker, Kind, Queue
from warmstart.steps import harvest, unpack
from warmstart.steps.environment import OWN

IMAGE, WANTED = "reg.example.com/team/tool:1", "reg.example.com/team/wanted:1"
OTHER_IMAGE = "reg.example.com/team/other:1"  # which no job has
KIND = f"{os.uname().machine}.oci2"
MADE = "made"  # the copy of a node where nothing but its making has happened
UNPACK_S = 3.0  # that a prolog waits in vain, again and again
AN_HOUR_S = 3600.0  # then what a job has written is harvested while it runs, and queue are tried again
# No sweep takes as long as `while_running`, so a neighbour's harvest is due in all cases or in none.
TEXT = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl, scontrol: {base}/scontrol,
         cache: {base}/constant/cache, shelf: {base}/shelf}}
store_user: daemon
import_user: bin
validate_user: sys
constant_path: namespace
images: {{registries: [reg.example.com], importer: oci, wait: 3s, tag_ttl: 30d,
          unpack: {{any_disk: true}}}}
seed: {{fetch_budget: 3s}}
harvest: {{budget: 30s, while_running: 50m}}
rules:
  - name: everyone
    profiles: [numba, torch-extensions]
    images: ["docker://reg.example.com/team/tool:1"]
"""
OF_WINGS = of_wings()
# The node's hooks, what hooks leave to the background, both kinds of maintenance, and programs of wings.
HOOKS = (
    "prolog",
    "epilog",
    "job-container",
    "import",
    "unpack",
    "background",
    "live",
    "maintain",
    "maintain-store",
    "hand over",
    "hand over without a store",
    "end a run",
    "give up a run",
    *(name for wing in OF_WINGS for name in wing.acts),
)
# Of each job, or of each of its images: `make test` takes more than one case of these.
OFTEN = ("prolog", "epilog", "import", "maintain")
# What drains a node: errors of its own disks that no user can cause.
NODE_FAULTS = ("EIO", "EROFS")
OF_THE_NODE = ("state", "runs", "workspace", "constant path")
# Hooks whose status Slurm acts upon. That of the others tells a person or systemd.
DRAINING = ("prolog", "epilog", "hand over", "hand over without a store")
# CloneNSScript and slurmctld's hooks always end with 0: another status would fail or requeue the job.
ALWAYS_0 = ("job-container", *(name for wing in OF_WINGS for name in wing.acts))
# If one of these is killed, nothing that the job has compiled is lost.
HARVESTING = ("epilog", "hand over", "hand over without a store", "end a run")


class SweptNode(Node):
    """The node below a directory that only root can change."""

    def __init__(self, top: Path) -> None:
        self._top, self._saved = top, top / "saved"
        base = top / "live"
        for name, owner in (("store", "daemon"), ("constant", "root"), ("shelf", "root")):
            (base / name).mkdir(parents=True)
            os.chown(base / name, *account(owner)[1:])
        for wing in OF_WINGS:
            wing.make(base)
        rules = [f"    {wing.rule}\n" for wing in OF_WINGS if wing.rule]
        more = "".join([*rules, *(wing.policy for wing in OF_WINGS)]).format(base=base, top=top)
        super().__init__(base, more, text=TEXT)
        asked = " ".join(wing.words for wing in OF_WINGS if wing.words).format(top=top)
        self.job = a_job(id=90_000_007, comment=f"warmstart: {asked}" if asked else "")  # ids that no cluster has
        self.neighbour = a_job(id=90_000_008, uid=64202, gid=64202, user="ws-bob")
        self.knows(self.neighbour.id)
        self._before: dict[str, Callable[[], None]] = {
            "background": self._need_background,
            "maintain": self._need_maintenance,
            "maintain-store": self._need_store_maintenance,
            **{hook: partial(self.succeed, first) for wing in OF_WINGS for hook, first in wing.before.items()},
        }
        self._image = squashfs(top / "ready.sqsh", 40_000)
        self._trees = {image: self._publish_image(image) for image in (IMAGE, OTHER_IMAGE)}
        ensure_path(self.paths.state, 0o700)  # makes it a node
        self._to_unpack = IMAGE
        self._ask()
        self.succeed("unpack")
        self._to_unpack = OTHER_IMAGE
        for number, job in enumerate((self.job, self.neighbour)):
            self.succeed("prolog", job)
            self.compile(number, job)
            self.succeed("background")
            self.succeed("epilog", job)
        self.succeed("prolog", self.neighbour)
        self._unmount()
        self._saved.mkdir()
        self._copy(self.base, self._saved / MADE)

    def _publish_image(self, reference: str) -> ImageKey:
        site = Site(
            store=ImageStoreClient.of(account("daemon"), str(self.store)),
            importer=self._importer,
            validator=account("sys"),
            rules=RULES,
            recipe="oci2",
            workspace=str(self.workspace),
            uses=str(self._top / "uses"),
            requester=Requester("n0", "r1", 1),
            paths=NO_NODE,
        )
        return ImageKey(making.obtain(parse(reference), site, after(60)).name)

    def _importer(self, *_: object) -> Ready:
        return Ready(account("bin"), str(self._image))

    @property
    def domains(self) -> dict[str, str]:
        """The parts of the installation that a fault can be in."""
        parts = {wing.part: str(self.base / wing.part) for wing in OF_WINGS if wing.part}
        return {**super().domains, **parts, "constant path": str(self.base / "constant")}

    def programs(self) -> dict[str, Callable[[], int]]:
        """Return the programs, those of wings and of the background too."""
        prefix = str(self.base)
        own = super().programs()
        return {
            **own,
            "import": self._import,
            "unpack": lambda: background.main(prefix, [UNPACKS.name, NODE, self._trees[self._to_unpack].tree]),
            "live": self._attempt(LIVE),
            "hand over": lambda: self._without_time(own["epilog"]),
            "hand over without a store": own["epilog"],
            "end a run": self._attempt(ENDINGS),
            "give up a run": self._attempt(ENDINGS),
            **{hook: partial(main, prefix) for wing in OF_WINGS for hook, main in wing.acts.items()},
        }

    def _import(self) -> int:
        choice.choose = self._importer  # type: ignore[assignment] # only in this child
        return background.main(str(self.base), ["imports", NODE, self._wanted])

    def _attempt(self, kind: Kind) -> Callable[[], int]:
        """Return what makes an attempt at what waits of the job, in its process."""
        keys = [item.key for item in Queue(self.paths, kind).all() if item.key.startswith(f"{self.job.id}.")]
        return lambda: max((background.main(str(self.base), [kind.name, NODE, key]) for key in keys), default=0)

    @staticmethod
    def _without_time(epilog: Callable[[], int]) -> int:
        options = harvest.Options
        with mock.patch.object(harvest, "Options", lambda _budget, *more: options(0.0, *more)):
            return epilog()

    def hook(
        self, name: str, job: Job | None = None, fault: Fault | None = None, stop_at: int = 0, later: float = 0.0
    ) -> Done:
        """Run a program for the job, or another one, `later` by so many seconds; some always run later."""
        own = {"maintain-store": LATER_S, "live": AN_HOUR_S, "give up a run": waiting.LONGEST_S + 60}
        with mock.patch.object(unpack, "UNPACK_S", UNPACK_S):
            return self.run(name, job or self.job, fault=fault, stop_at=stop_at, later=later or own.get(name, 0.0))

    def succeed(self, hook: str, job: Job | None = None) -> None:
        """Run a hook without a fault, which succeeds."""
        done = self.hook(hook, job)
        assert done.status == 0, done.stderr

    def compile(self, number: int, job: Job | None = None) -> None:
        """Write an entry into the job's cache, as the job, and one that the validator turns away."""
        self.work(job or self.job, numba_entries(number))
        self.work(job or self.job, {"ext": {"py311_cpu/ext/ext.so": b"x"}}, "torch-extensions")

    # Where a hook is next.

    def prepare(self, hook: str) -> None:
        """Bring the node back as it was made, and to where a hook is next.

        What comes before the hook and leaves no mount is done once, and copied from then on.
        """
        saved = self._saved / (hook if hook in self._before else MADE)
        if not saved.exists():
            self._restore(self._saved / MADE)
            self._before[hook]()
            self._unmount()
            self._copy(self.base, saved)
        self._restore(saved)
        super().close()
        if hook in {"epilog", "hand over", "hand over without a store", "job-container", "maintain", "live"}:
            self.succeed("prolog")
            self.compile(2)
            if hook == "live":  # the second one of the job
                self.succeed("live")
                self.compile(3)
        elif hook in {"end a run", "give up a run"}:
            self._need_waiting()
        elif hook == "import":
            self._request()
        elif hook == "unpack":
            self._ask()

    def _restore(self, saved: Path) -> None:
        self._unmount()
        with opened_dir(str(self._top)) as top:
            remove_tree(top, self.base.name, after(30))
        self._copy(saved, self.base)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)

    def _unmount(self) -> None:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [point for line in lines if (point := line.split()[4]).startswith(f"{self.base}/")]
        for point in sorted(points, reverse=True):  # what lies below another one first
            subprocess.run(["umount", "-l", point], check=True)

    def _request(self) -> None:
        request = ImportRequest(
            reference=WANTED, kind=KIND, private="", user=self.job.user, uid=self.job.uid, cluster="test",
            job_id=self.job.id, asked=time.time(),
        )  # fmt: skip
        assert requests.submit(self.paths, request) == ""
        self._wanted = request.key

    def _ask(self) -> None:
        """Have the image unpacked."""
        policy = current_policy(self.installation, keep=True).policy
        key, asker = self._trees[self._to_unpack], Asker(self.job.id, self.job.uid, self.job.user, "test")
        with mock.patch.object(Queue, "start_due"):
            assert unpacks.ask(policy, self.paths, self._to_unpack, key, asker) == ""

    def _run_job(self, number: int, epilog: str = "epilog", **changes: object) -> None:
        job = self.job._replace(**changes)  # type: ignore[arg-type]
        self.succeed("prolog", job)
        self.compile(number)
        self.succeed(epilog, job)

    def _need_background(self) -> None:
        """Leave a run of which the epilog had no time to remove anything."""
        with mock.patch.object(release, "AT_ONCE_S", 0.0):
            self._run_job(2)
        assert Queue(self.paths, ENDINGS).all()

    def _need_waiting(self) -> None:
        """Leave a run of which the epilog had no time to harvest anything."""
        self._run_job(2, "hand over")
        assert Queue(self.paths, ENDINGS).all()

    def _need_maintenance(self) -> None:
        """Leave a run that waits, as the store was away. A run without an epilog comes beside it."""
        self.succeed("prolog")
        self.compile(3)
        self.lose_store()
        self.succeed("epilog")
        self.find_store()
        assert Queue(self.paths, ENDINGS).all()

    def lose_store(self) -> None:
        """Have the store away until it is found."""
        self.store.rename(self.store.with_name("store.away"))

    def find_store(self) -> None:
        """Have the store back, if it was away."""
        away = self.store.with_name("store.away")
        if away.exists():
            away.rename(self.store)

    def _need_store_maintenance(self) -> None:
        """Leave many small bundles, and what publishers left that died."""
        for number in range(2, 6):
            self._run_job(number)
        (namespace,) = (self.store / f"caches/user-{self.job.uid}-{self.job.user}/numba").iterdir()
        for name in (".tmp-n1-0a1b2c3d-7-0123456789abcdef", f"{'0' * 64}.sqsh"):
            (namespace / name).write_bytes(b"half")
            os.chown(namespace / name, *account("daemon")[1:])

    # What is there afterwards.

    def neighbours(self) -> dict[str, tuple[object, ...]]:
        """Return every file that belongs to others than the job: kind, mode, owner, content."""
        other = self.neighbour
        tops = (
            *self.workspace.glob(f"{other.id}.*"),
            Path(self.paths.state, str(other.id)),
            Path(self.paths.view, str(other.id)),
            *self.store.glob(f"caches/user-{other.uid}-{other.user}/*/*/*.*"),
            self.base / "etc",
        )
        found: dict[str, tuple[object, ...]] = {}
        for path in (path for top in tops for path in (top, *sorted(top.rglob("*")))):
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
            found[str(path.relative_to(self.base))] = (oct(status.st_mode), status.st_uid, content)
        return found

    def left(self) -> list[str]:
        """Return what is wrong when the job is over."""
        places = [*(self.base / wing.part for wing in OF_WINGS if wing.part), self.store / ENDING]
        return self.problems(self.job.id) + [f"{path}: is left" for place in places for path in place.glob("*")]

    def compiled(self) -> set[str]:
        """Return what later jobs of the user are offered of Numba."""
        scope = f"user-{self.job.uid}-{self.job.user}"
        spaces = self.store.glob(f"caches/{scope}/numba/*")
        client = self.client()
        where = [Namespace(str(self.store), scope, "numba", space.name) for space in spaces]
        found = [client.worker.run(after(20), generations.read, place).names for place in where]
        return {entry for names in found for of_row in names for entry in of_row}

    def job_over(self) -> None:
        """Do what slurmctld does when the job is over."""
        for wing in OF_WINGS:
            if wing.part and os.listdir(self.base / wing.part):
                self.hook(wing.over)


class HookAct(Act):
    """A hook, or another program of the node."""

    def __init__(self, node: SweptNode, hook: str) -> None:
        self._node, self._hook = node, hook

    def prepare(self) -> None:
        """Bring the node to where the hook is next."""
        self._node.prepare(self._hook)
        self._before, self._known = self._node.neighbours(), len(self._node.events())
        if self._hook == "hand over without a store":
            self._node.lose_store()

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        """Run the hook."""
        return self._node.hook(self._hook, fault=fault, stop_at=stop_at)

    def check(self, done: Done, fault: Fault | None) -> list[str]:
        """Return what is wrong: nothing in the store is half, nothing is left at last, others have what they had."""
        self._node.find_store()
        wrong = self._taken(done, fault) if fault else []
        wrong += self._node.problems(settled=False)
        wrong += [f"maintenance leaves {problem}" for problem in self._recover()]
        if fault is None and self._hook in HARVESTING and not numba_entries(2).keys() <= self._node.compiled():
            wrong.append("what the job has compiled is lost")
        if self._node.neighbours() != self._before:
            wrong.append("others' files have changed")
        return wrong

    def _recover(self) -> list[str]:
        """Run the hook again, and what comes after it; then maintenance, if something is left. Return what is."""
        node = self._node
        if self._hook == "epilog":
            node.job_over()
        if not node.left():
            return []
        node.hook(self._hook)
        if any(node.workspace.glob(f"{node.job.id}.*")) or os.path.exists(f"{node.paths.state}/{node.job.id}"):
            node.hook("epilog")
        node.job_over()
        for name, later in (("maintain", AN_HOUR_S), ("maintain", LATER_S), ("maintain-store", LATER_S)):
            if node.left():
                node.hook(name, later=later)
        return node.left()

    def _taken(self, done: Done, fault: Fault) -> list[str]:
        """Return what is wrong with how the hook took a fault: class, status, a job that got half of what it should."""
        wrong, events = [], self._node.events()[self._known :]
        crashes = [event["traceback"] for event in events if "traceback" in event]
        if crashes or "Traceback" in done.stderr:
            lines = ("".join(crashes) or done.stderr).strip().splitlines()
            wrong.append(f"taken for a bug: {' | '.join(line.strip() for line in lines[-8:])}")
        is_of_node = fault.site.domain in OF_THE_NODE and fault.error in NODE_FAULTS
        if done.status is None:
            wrong.append("it was killed")
        elif done.status and self._hook in ALWAYS_0:
            wrong.append(f"status {done.status}")
        elif done.status and self._hook in DRAINING and not is_of_node:
            wrong.append(f"drains the node: {done.stderr.strip()}")
        kinds = {event["error"]["kind"] for event in events if event.get("error")}
        kinds |= {failure["kind"] for event in events for failure in event.get("failures", ())}
        if fault.site.domain == STORE and "node" in kinds:
            wrong.append("the store's failure is called the node's")
        return wrong + (self._half_prepared() if self._hook == "prolog" else [])

    def _half_prepared(self) -> list[str]:
        """Return what the job's variables name that is not there or not the job's."""
        node, wrong = self._node, []
        view = Path(node.paths.view, str(node.job.id), "environment")
        lines = view.read_text().splitlines() if view.exists() else []
        for line in lines[3:]:
            name, _, value = line.lstrip("!").partition("=")
            if name == OWN:  # names and values
                continue
            constant = str(node.base / "constant/cache")
            if value.startswith(constant):
                value = lines[2] + value.removeprefix(constant)
            if value.startswith(str(node.base)) and not Path(value).exists():
                wrong.append(f"the job's {name} is missing: {value}")
        return wrong


@contextmanager
def a_swept_node() -> Iterator[SweptNode]:
    """Give the node, in memory if overlays work there. Its path is short: TMPDIR has to leave room for sockets."""
    top = Path(tempfile.mkdtemp(prefix="ws-", dir="/var/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "warmstart-tests", str(top)], check=True)
    try:
        os.setxattr(top, "user.overlay.probe", b"1")
    except OSError:  # before Linux 6.6
        subprocess.run(["umount", str(top)], check=True)
        top.chmod(0o755)
    try:
        node = SweptNode(top)
        try:
            yield node
        finally:
            node.close()
    finally:
        if os.path.ismount(top):
            subprocess.run(["umount", "-l", str(top)], check=True)
        with opened_dir(str(top.parent)) as parent:
            remove_tree(parent, top.name, after(60))
