"""An installation whose hooks run as root in forked children, with real mounts, and a neighbour that nothing may touch.

No Slurm: its variables are set, and `scontrol` and `squeue` are scripts. A sweep runs one hook again and again, each
time with another fault; before each time `prepare` brings the site back as it was, so that cases do not depend on each
other.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

# What hooks import late is imported here once, and not in each of thousands of children.
import filelock  # noqa: F401
import prometheus_client  # noqa: F401
import structlog  # noqa: F401

from tests.lib import command_line, judge
from tests.lib.faults import Done, Fault, Faults
from tests.lib.image_place import Ready, squashfs
from tests.lib.image_site import NO_NODE, RULES
from tests.lib.numba_entries import numba_entries, write_as
from tests.lib.wing_hooks import of_wings
from warmstart import run_end
from warmstart.cli.maintain import maintain
from warmstart.entry import (
    background,
    epilog,
    flush,
    job_container,
    prolog,
)
from warmstart.errand import Asker, Errands
from warmstart.errands import registry
from warmstart.harvest.deferred import REMOVALS
from warmstart.harvest.live import ROUNDS
from warmstart.host.deadline import after
from warmstart.host.files import ensure_path, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.images import choice, unpacks
from warmstart.images.imports import making, requests
from warmstart.images.imports.requests import ImportRequest
from warmstart.images.query import Requester, Site
from warmstart.images.reference import parse
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.unpacked import ImageKey
from warmstart.images.unpacks import UNPACKS
from warmstart.paths import SPARE, Installation, NodePaths
from warmstart.policy.current import current_policy
from warmstart.steps import unpack

NODE = "n1"
JOB, NEIGHBOUR = 90_000_007, 90_000_008  # ids that no cluster of another test has
USER, OTHER = ("ws-alice", 64201), ("ws-bob", 64202)
IMAGE, WANTED = "reg.example.com/team/tool:1", "reg.example.com/team/wanted:1"
OTHER_IMAGE = "reg.example.com/team/other:1"  # which no job has
KIND = f"{os.uname().machine}.oci2"
MADE = "made"  # the copy of a site where nothing but its making has happened
LATER_S = 2 * 86_400.0  # what those left that died stays for a day, at most
UNPACK_S = 3.0  # that a prolog waits in vain, again and again
SETTLED_S = 3600.0  # then what a job has written is harvested while it runs
POLICY = """\
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
harvest: {{budget: 30s, while_running: 10m}}
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
    "rounds",
    "flush",
    "maintain",
    "maintain-store",
    *(name for wing in OF_WINGS for name in wing.acts),
)


EventKey = tuple[str, str, str]


def _key(event: dict[str, Any]) -> EventKey:
    """Return what an event has in a journal and in the log alike: the log has its time as text."""
    return event["event"], event.get("run_id", ""), event.get("step", "")


class HookSite:
    """The site below a directory that only root can change."""

    def __init__(self, top: Path) -> None:
        """Make the site: a store with an image and bundles of two users, and the neighbour's job between its hooks."""
        self._top = top
        self.base, self._saved = top / "live", top / "saved"
        self._without_fault: dict[str, Done] = {}
        self._before: dict[str, Callable[[], None]] = {
            "background": self._need_background,
            "flush": self._need_flush,
            "maintain": self._need_maintenance,
            "maintain-store": self._need_store_maintenance,
            **{hook: partial(self.run, first) for wing in OF_WINGS for hook, first in wing.before.items()},
        }
        self.store, self.workspace = self.base / "store", self.base / "workspace"
        for name, owner in (("store", "daemon"), ("audit", "root"), ("constant", "root"), ("shelf", "root")):
            (self.base / name).mkdir(parents=True)
            os.chown(self.base / name, *pwd.getpwnam(owner)[2:4])
        for wing in OF_WINGS:
            wing.make(self.base)
        self._script("scontrol", "exit 0")
        # The neighbour's job runs, and no other is known.
        running = f"echo '{NEIGHBOUR}|RUNNING|normal|{NEIGHBOUR}|N/A|0|'"
        unknown = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
        self._script("squeue", f'case "$*" in *--jobs={NEIGHBOUR}*) {running} ;; *) {unknown} ;; esac')
        rules = [f"    {wing.rule}\n" for wing in OF_WINGS if wing.rule]
        policy = "".join([POLICY, *rules, *(wing.policy for wing in OF_WINGS)]).format(base=self.base, top=top)
        self.installation = command_line.installed(self.base, policy)
        self._image = squashfs(top / "ready.sqsh", 40_000)
        self._trees = {image: self._publish_image(image) for image in (IMAGE, OTHER_IMAGE)}
        ensure_path(self.paths.state, 0o700)  # makes it a node
        self._to_unpack = IMAGE
        self._ask()
        self.run("unpack")
        self._to_unpack = OTHER_IMAGE
        for number, (user, job) in enumerate(((USER, JOB), (OTHER, NEIGHBOUR))):
            self.run("prolog", job, user)
            self.work(number, job)
            self.run("background")
            self.run("epilog", job, user)
        self.run("prolog", NEIGHBOUR, OTHER)
        self._unmount()
        self._saved.mkdir()
        self._copy(self.base, self._saved / MADE)
        # Joining a namespace is how a hook mounts the cache for a job.
        argv = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--propagation=private", "sleep", "infinity"]
        self._namespace = subprocess.Popen(argv)

    def _script(self, name: str, text: str) -> None:
        path = self.base / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def _identity(self, name: str) -> Identity:
        return Identity(name, *pwd.getpwnam(name)[2:4])

    def _publish_image(self, reference: str) -> ImageKey:
        site = Site(
            store=ImageStoreClient.of(self._identity("daemon"), str(self.store)),
            importer=self._importer,
            validator=self._identity("sys"),
            rules=RULES,
            recipe="oci2",
            workspace=str(self.base / "workspace"),
            uses=str(self._top / "uses"),
            requester=Requester("n0", "r1", 1),
            paths=NO_NODE,
        )
        with site.store:
            return ImageKey(making.obtain(parse(reference), site, after(60)).name)

    def _importer(self, *_: object) -> Ready:
        return Ready(self._identity("bin"), str(self._image))

    @property
    def paths(self) -> NodePaths:
        """The node's directories."""
        return Installation(str(self.base)).node(NODE)

    @property
    def domains(self) -> dict[str, str]:
        """The parts of the site that a fault can be in."""
        names = {"policy": "etc", "state": "var", "constant path": "constant"}
        parts = (
            "store",
            "workspace",
            "audit",
            "policy",
            "state",
            "shelf",
            *(wing.part for wing in OF_WINGS if wing.part),
            "constant path",
        )
        return {part: str(self.base / names.get(part, part)) for part in parts}

    def prepare(self, hook: str) -> None:
        """Bring the site back as it was made, and to where a hook is next.

        What comes before the hook and leaves no mounts is done once, and copied from then on.
        """
        saved = self._saved / (hook if hook in self._before else MADE)
        if not saved.exists():
            self._restore(self._saved / MADE)
            self._before[hook]()
            self._unmount()
            self._copy(self.base, saved)
        self._restore(saved)
        if hook in {"epilog", "job-container", "maintain", "rounds"}:
            self.run("prolog")
            self.work(2)
            if hook == "rounds":  # one that absorbs what the one before has taken
                self.run("rounds")
                self.work(3)
                errands = Errands(self.paths, ROUNDS)
                errands.hasten(next(errand for errand in errands.all() if errand.key.startswith(f"{JOB}.")))
        elif hook == "import":
            self._request()
        elif hook == "unpack":
            self._ask()

    def without_fault(self, hook: str) -> Done:
        """Return what a hook does that nothing happens to."""
        if hook not in self._without_fault:
            self.prepare(hook)
            self._without_fault[hook] = self.hook(hook)
        return self._without_fault[hook]

    def _restore(self, saved: Path) -> None:
        self._unmount()
        with opened_dir(str(self._top)) as top:
            remove_tree(top, self.base.name, after(30))
        self._copy(saved, self.base)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)

    def _request(self) -> None:
        request = ImportRequest(
            reference=WANTED, kind=KIND, private="", user=USER[0], uid=USER[1], cluster="test",
            job_id=JOB, asked=time.time(),
        )  # fmt: skip
        assert requests.submit(self.paths, request) == ""
        self._key = request.key

    def _ask(self) -> None:
        """Have the image unpacked."""
        policy = current_policy(self.installation, keep=True).policy
        key, asker = self._trees[self._to_unpack], Asker(JOB, USER[1], USER[0], "test")
        with mock.patch.object(Errands, "start_due"):
            assert unpacks.ask(policy, self.paths, self._to_unpack, key, asker) == ""

    def _need_background(self) -> None:
        """Leave a run of which the epilog had no time to remove anything."""
        self.run("prolog")
        self.work(2)
        at_once, run_end.AT_ONCE_S = run_end.AT_ONCE_S, 0.0
        self.run("epilog")
        run_end.AT_ONCE_S = at_once
        assert Errands(self.paths, REMOVALS).all()

    def _need_flush(self) -> None:
        """Leave the journals of a job, and the report that its epilog owes."""
        self.run("prolog")
        self.work(2)
        self.run("epilog")
        assert any(name.startswith(".epilog") for name in os.listdir(self.paths.journal))

    def _need_maintenance(self) -> None:
        """Leave a bundle in the spool. A run without an epilog comes beside it."""
        self.run("prolog")
        self.work(3)
        with self.without_store():
            self.run("epilog")
        assert os.listdir(self.paths.spool)

    def _need_store_maintenance(self) -> None:
        """Leave many small bundles, and what publishers left that died."""
        for number in range(2, 6):
            self.run("prolog")
            self.work(number)
            self.run("epilog")
        (namespace,) = (self.store / f"artifacts/user-{USER[1]}-{USER[0]}/numba").iterdir()
        for name in (".tmp-n1-0a1b2c3d-7-0123456789abcdef", "20200101T000000.000000Z-0123456789abcdef.sqsh"):
            (namespace / name).write_bytes(b"half")
            os.chown(namespace / name, *pwd.getpwnam("daemon")[2:4])

    @contextmanager
    def without_store(self) -> Iterator[None]:
        """Have no store for a `with`."""
        away = self.store.with_name("store.away")
        self.store.rename(away)
        yield
        away.rename(self.store)

    def _unmount(self) -> None:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [point for line in lines if (point := line.split()[4]).startswith(f"{self.base}/")]
        for point in sorted(points, reverse=True):  # what lies below another one first
            subprocess.run(["umount", "-l", point], check=True)

    def run(self, hook: str, job: int = JOB, user: tuple[str, int] = USER) -> None:
        """Run a hook without a fault, which succeeds."""
        done = self.hook(hook, job, user)
        assert done.status == 0, done.stderr

    def hook(
        self,
        name: str,
        job: int = JOB,
        user: tuple[str, int] = USER,
        *,
        fault: Fault | None = None,
        stop_at: int = 0,
        later: float = 0.0,
    ) -> Done:
        """Run one of `HOOKS` for a job, `later` by that many seconds; some always run later."""
        prefix = str(self.base)
        acts: dict[str, Callable[[], int]] = {
            "prolog": lambda: prolog.main(prefix),
            "epilog": lambda: epilog.main(prefix),
            "job-container": lambda: job_container.main(prefix),
            "import": lambda: self._import(prefix),
            "unpack": lambda: background.main(prefix, [UNPACKS.name, NODE, self._trees[self._to_unpack].tree]),
            "background": lambda: max(background.main(prefix, [what, NODE]) for what in registry.kinds()),
            "rounds": lambda: background.main(prefix, [ROUNDS.name]),
            "flush": lambda: flush.main(prefix),
            "maintain": lambda: self._maintain("--node", NODE),
            "maintain-store": lambda: self._maintain("--store"),
            **{hook: partial(main, prefix) for wing in OF_WINGS for hook, main in wing.acts.items()},
        }
        asked = " ".join(wing.words for wing in OF_WINGS if wing.words)
        environment = {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_UID": str(user[1]),
            "SLURM_JOB_GID": str(user[1]),
            "SLURM_JOB_USER": user[0],
            "SLURM_JOB_PARTITION": "main",
            "SLURM_JOB_NODELIST": NODE,
            "SLURM_CLUSTER_NAME": "test",
            "SLURMD_NODENAME": NODE,
            **({"SLURM_JOB_COMMENT": f"warmstart: {asked.format(top=self._top)}"} if asked and job == JOB else {}),
        }
        if name == "job-container":
            environment["SLURM_NS"] = f"/proc/{self._namespace.pid}/ns/mnt"
        seconds = later or {"maintain-store": LATER_S, "rounds": SETTLED_S}.get(name, 0.0)
        with mock.patch.object(unpack, "UNPACK_S", UNPACK_S):
            return Faults(self.domains, fault, stop_at).run(acts[name], environment, seconds)

    def _import(self, prefix: str) -> int:
        choice.choose = self._importer  # type: ignore[assignment] # only in this child
        return background.main(prefix, ["imports", NODE, self._key])

    def _maintain(self, *arguments: str) -> NoReturn:
        maintain.main(args=list(arguments), obj=self.installation)  # exits

    def work(self, number: int, job: int = JOB) -> None:
        """Write an entry into the job's cache, as the job, and one that the validator turns away."""
        (run,) = self.workspace.glob(f"{job}.*")
        uid = (run / "tmp").stat().st_uid
        write_as(uid, uid, run / "cache/numba", numba_entries(number))
        write_as(uid, uid, run / "cache/torch-extensions", {"ext": {"py311_cpu/ext/ext.so": b"x"}})

    def view(self, job: int = JOB) -> dict[str, str]:
        """Return the files that the job's task prolog reads."""
        return {path.name: path.read_text() for path in Path(self.paths.view, str(job)).glob("*")}

    def events(self, known: Counter[EventKey] | None = None) -> list[dict[str, Any]]:
        """Return the events of the node and the controller, in a log or still in a journal; without those `known`."""
        found = [
            self.base / "audit/audit.jsonl",
            *sorted(Path(self.paths.journal).glob("*")),
            *sorted(self.base.glob("var/lib/warmstart-slurmctld/journal/*")),
        ]
        lines = [line for path in found if path.exists() for line in path.read_text().splitlines()]
        events = [json.loads(line) for line in lines if line]  # a file of the reserve ends in empty lines
        left, new = Counter(known or {}), []
        for event in events:
            if left[_key(event)]:
                left[_key(event)] -= 1
            else:
                new.append(event)
        return new

    def known_events(self) -> Counter[EventKey]:
        """Return what `events` takes. Hooks move events from journals to the log, so their order tells nothing."""
        return Counter(map(_key, self.events()))

    def neighbours(self) -> dict[str, tuple[object, ...]]:
        """Return every file that belongs to others than the job: kind, mode, owner, content."""
        tops = (
            *self.workspace.glob(f"{NEIGHBOUR}.*"),
            Path(self.paths.state, str(NEIGHBOUR)),
            Path(self.paths.view, str(NEIGHBOUR)),
            *self.store.glob(f"artifacts/user-{OTHER[1]}-{OTHER[0]}/*/*/[0-9]*"),
            self.base / "etc",
        )
        found: dict[str, tuple[object, ...]] = {}
        for path in (path for top in tops for path in (top, *sorted(top.rglob("*")))):
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
            found[str(path.relative_to(self.base))] = (oct(status.st_mode), status.st_uid, content)
        return found

    def problems(self, *, settled: bool) -> list[str]:
        """Return what the independent reader finds. Unless `settled`, what the job has on the node is not wrong."""
        found = judge.store_problems(self.store, settled=settled)
        if settled:
            found += judge.node_problems(self.workspace, self.base / "var/lib/warmstart", Path(self.paths.root), JOB)
            found += judge.shelf_problems(self.base / "shelf")
            found += [
                f"{path}: is left" for wing in OF_WINGS if wing.part for path in (self.base / wing.part).glob("*")
            ]
        return [problem.replace(str(self.base), "").lstrip("/") for problem in found]

    def close(self) -> None:
        """End its processes."""
        self._namespace.kill()
        self._namespace.wait()
        shutil.rmtree(f"{SPARE}{self._top}", ignore_errors=True)


@contextmanager
def a_hook_site() -> Iterator[HookSite]:
    """Give a site, in memory if overlays work there. Its path is short: TMPDIR has to leave room for sockets."""
    top = Path(tempfile.mkdtemp(prefix="ws-", dir="/var/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "warmstart-tests", str(top)], check=True)
    try:
        os.setxattr(top, "user.overlay.probe", b"1")
    except OSError:  # before Linux 6.6
        subprocess.run(["umount", str(top)], check=True)
        top.chmod(0o755)
    try:
        site = HookSite(top)
        try:
            yield site
        finally:
            site.close()
    finally:
        if os.path.ismount(top):
            subprocess.run(["umount", "-l", str(top)], check=True)
        with opened_dir(str(top.parent)) as parent:
            remove_tree(parent, top.name, after(60))
