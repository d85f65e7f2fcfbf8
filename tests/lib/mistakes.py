"""An admin's mistakes, and what tells of each: tests/node/test_mistakes.py plants them in a good `Site`.

Paths are relative to the site's directory. In texts of Slurm's and enroot's files `@` is the directory of the hooks,
and `~` that of the site. What slurmctld runs with is the file `config`, which a stand-in for scontrol prints.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.lib.runs import a_run
from warmstart.audit.line import timestamp
from warmstart.doctor import installed
from warmstart.ending import waiting
from warmstart.ending.waiting import ENDINGS
from warmstart.harvest.live import LIVE
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.store.published import RememberedFailure
from warmstart.paths import Installation
from warmstart.policy import keys
from warmstart.policy.current import current_policy
from warmstart.queue import Asker, Item, Queue

HOOKS = ("prolog", "epilog", "task-prolog")
POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/log/audit.jsonl, scontrol: {base}/scontrol}}
store_user: daemon
import_user: bin
validate_user: sys
limits: {{min_uid: 5}}
images:
  registries: [reg.example.com]
  credentials:
    file: {base}/auth.json
    repositories: [{{name: team, repository: reg.example.com/team/*, match: {{user: games}}}}]
rules:
  - name: everyone
    profiles: [numba]
  - name: ci
    match: {{partition: ci, user: games}}
    scope: site
    publish: {{users: [games]}}
"""
SLURM = """\
AccountingStorageEnforce=none
AccountingStorageType=accounting_storage/none
BatchStartTimeout=360 sec
Epilog=@/epilog
JobContainerType=(null)
Prolog=@/prolog
PrologEpilogTimeout=290
PrologFlags=Alloc,DeferBatch
PluginDir=/none
PlugStackConfig=(null)
SLURM_CONF=/none/slurm.conf
SLURM_VERSION=22.05.8
SlurmdTimeout=300 sec
TaskProlog=@/task-prolog
"""
SCONTROL = """\
case "$*" in
"show config") cat ~/config ;;
*partition) echo "PartitionName=ci AllocNodes=ALL MaxNodes=4 Nodes=n[1-4] State=UP" ;;
esac
"""
VAR, RUN, LIBEXEC = "prefix/var/lib/warmstart", "prefix/run/warmstart", "prefix/libexec/warmstart"
WRITTEN, OFF = "prefix/etc/warmstart/policy.yaml", "prefix/etc/warmstart/off"
LONG_S = 7200


class Site(NamedTuple):
    """A good installation of root's below a directory that only root can change."""

    base: Path
    installation: Installation

    @classmethod
    def make(cls, base: Path) -> Site:
        """Make one; its store has been used and maintained."""
        site = cls(base, Installation(str(base / "prefix")))
        for path in (
            site.libexec,
            Path(site.installation.etc),
            site.store / "caches",
            base / "workspace",
            base / "log",
        ):
            path.mkdir(parents=True)
        for name in HOOKS:
            (site.libexec / name).write_text("#!/bin/sh\n")
            (site.libexec / name).chmod(0o755)
        (base / "scontrol").write_text(site.text(f"#!/bin/sh\n{SCONTROL}"))
        (base / "squeue").write_text("#!/bin/sh\n")
        for name in ("scontrol", "squeue"):
            (base / name).chmod(0o755)
        (base / "auth.json").write_text('{"auths": {"reg.example.com": {"auth": "YTpi"}}}')
        (base / "auth.json").chmod(0o600)
        (base / "config").write_text(site.text(SLURM))
        Path(site.installation.policy).write_text(POLICY.format(base=base))
        current_policy(site.installation, keep=True)
        (site.store / "caches" / "maintained").touch()
        paths = site.installation.node("n1")
        for directory in (paths.root, paths.state):
            os.makedirs(directory)
        for file in (paths.began, paths.maintained):
            Path(file).touch()
        site.give(site.store, 1)
        return site

    @property
    def libexec(self) -> Path:
        return self.base / LIBEXEC

    @property
    def store(self) -> Path:
        return self.base / "store"

    def give(self, path: Path, uid: int) -> None:
        for found in (path, *path.rglob("*")):
            os.chown(found, uid, uid)

    def close_store(self) -> None:
        """Let only its owner into the store, which has an image."""
        (self.store / "images").mkdir()
        (self.store / "images/x.sqsh").touch()
        self.give(self.store, 1)
        self.store.chmod(0o700)

    def behind(self, name: str) -> None:
        """Move a directory of the site's, and lead to it by a link."""
        (self.base / name).rename(self.base / "moved")
        (self.base / name).symlink_to("moved")

    def behind_a_link(self, uid: int, mode: int = 0o755) -> None:
        """Move the store below a directory of that mode, and lead to it by a link of that user."""
        above = self.base / "real"
        above.mkdir()
        self.store.rename(above / "store")
        above.chmod(mode)
        (self.base / "link").symlink_to(above)
        os.chown(self.base / "link", uid, uid, follow_symlinks=False)
        self.edit(f"store: {self.store}", f"store: {self.base}/link/store")

    def edit(self, old: str, new: str) -> None:
        path = Path(self.installation.policy)
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def conf(self, old: str, new: str) -> None:
        path = self.base / "config"
        assert self.text(old) in path.read_text()
        path.write_text(path.read_text().replace(self.text(old), self.text(new)))

    def text(self, text: str) -> str:
        return text.replace("@", str(self.libexec)).replace("~", str(self.base))

    def let_write(self, hook: str) -> None:
        """Let a user's group change the site's own script around a hook."""
        script = self.base / f"site-{hook}"
        script.write_text(self.text(f"#!/bin/sh\n@/{hook} || exit $?\nlogger done\n"))
        script.chmod(0o775)
        self.conf(f"=@/{hook}\n", f"={script}\n")

    def mount(self, path: Path, options: str) -> None:
        """Put a small file system over a directory, with its content; whoever tests unmounts it."""
        kept = {name: (path / name).read_bytes() for name in os.listdir(path) if (path / name).is_file()}
        owner = path.stat().st_uid
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(path)], check=True)
        for name, content in kept.items():
            (path / name).write_bytes(content)
        os.chown(path, owner, owner)
        if options == "full":
            with suppress(OSError), open(path / "filler", "wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
        else:
            subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


Plant = Callable[[Site], object]


def all_of(*plants: Plant) -> Plant:
    return lambda site: [plant(site) for plant in plants]


def nothing(_: Site) -> None:
    """Plant nothing."""


def policy(old: str, new: str) -> Plant:
    return lambda site: site.edit(old, site.text(new))


def key(text: str) -> Plant:
    return policy("rules:\n", f"{text}\nrules:\n")


def conf(old: str, new: str) -> Plant:
    return lambda site: site.conf(old, new)


def line(text: str) -> Plant:
    return conf("SLURM_CONF=", f"{text}\nSLURM_CONF=")


def file(path: str, text: str, mode: int = 0o644) -> Plant:
    def write(site: Site) -> None:
        (site.base / path).parent.mkdir(parents=True, exist_ok=True)
        (site.base / path).write_text(site.text(text))
        (site.base / path).chmod(mode)

    return write


def script(path: str, text: str) -> Plant:
    return file(path, f"#!/bin/sh\n{text}\n", 0o755)


def gone(*paths: str) -> Plant:
    return all_of(*(_without(path) for path in paths))


def _without(path: str) -> Plant:
    return lambda site: os.unlink(site.base / path)


def _no_hook_ran(site: Site) -> None:
    for place in (VAR, RUN):
        shutil.rmtree(site.base / place / "n1")


def mode(path: str, bits: int) -> Plant:
    return lambda site: (site.base / path).chmod(bits)


def owner(path: str, uid: int = 5) -> Plant:
    return lambda site: os.chown(site.base / path, uid, uid)


def old(path: str, since: float | None = None) -> Plant:
    return lambda site: os.utime(site.base / path, (time.time() - LONG_S if since is None else since,) * 2)


def disk(path: str, options: str) -> Plant:
    """Put a small file system over a directory: `ro`, `noexec`, `full`."""
    return lambda site: site.mount(site.base / path, options)


def shared(path: str) -> Plant:
    """Put a file system over a directory that is none of this node's disks."""
    return lambda site: subprocess.run(["bindfs", str(site.base / path), str(site.base / path)], check=True)


def slurm(release: str) -> Plant:
    """Have another release of Slurm."""
    return conf("SLURM_VERSION=22.05.8", f"SLURM_VERSION={release}")


SECTIONS = 64  # where the section headers of a plugin begin


def plugin(release: tuple[int, int], name: bytes = b"plugin_version") -> bytes:
    """Return a plugin of Slurm: an ELF file with three sections (symbols, names, data) and one symbol."""
    names, value = b"\0" + name + b"\0", (release[0] << 16 | release[1] << 8 | 5).to_bytes(4, "little")
    symbol = installed._SYMBOL.pack(1, 0, 0, 2, 0x1000, 4)
    at = SECTIONS + 3 * installed._SECTION.size
    places = [at, at + len(symbol), at + len(symbol) + len(names)]
    sections = [
        installed._SECTION.pack(0, 11, 0, 0, places[0], len(symbol), 1, 0, 8, 24),
        installed._SECTION.pack(0, 3, 0, 0, places[1], len(names), 0, 0, 1, 0),
        installed._SECTION.pack(0, 1, 0, 0x1000, places[2], 4, 0, 0, 4, 0),
    ]
    header = installed._HEADER.pack(b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, SECTIONS, 0, 64, 0, 0, 64, 3, 1)
    return b"".join([header, *sections, symbol, names, value])


def spank(lines: str, release: tuple[int, int] = (22, 5)) -> Plant:
    """Load SPANK plugins; the file of warmstart's is for that release, and for this installation's state."""

    def write(site: Site) -> None:
        (site.base / "warmstart.so").write_bytes(plugin(release) + f"\0{site.installation.runtime}\0".encode())
        (site.base / "plugstack.conf").write_text(site.text(lines))

    return write


def constant_path(value: str, cache: str = "/var/cache/warmstart") -> Plant:
    return all_of(key(f"constant_path: {value}"), policy("paths: {", f"paths: {{cache: {cache}, "))


def containers(kind: str, lines: str = "") -> Plant:
    """Have Slurm make mount namespaces for jobs, with this file of settings."""
    name = "namespace.yaml" if "linux" in kind else "job_container.conf"
    return all_of(conf("JobContainerType=(null)", kind), file(name, lines) if lines else nothing)


def _renumber(site: Site) -> None:
    """Put the policy into force with another uid of an account than it has now."""
    in_force = current_policy(site.installation).policy
    other = in_force.import_user._replace(uid=in_force.import_user.uid + 1000)
    Path(site.installation.compiled_policy).write_bytes(keys.encode(in_force._replace(import_user=other)))


def _killed_hooks(site: Site) -> None:
    """Let two hooks have been killed; not one long ago, elsewhere, or over."""
    now = time.time()

    def begun(ago: float, run: str, event: str = "hook.started", node: str = "n1") -> str:
        line = {"ts": timestamp(now - ago), "event": event, "hook": "prolog", "run_id": run, "node": node, "job_id": 7}
        return f"{json.dumps({**line, 'outcome': 'ok'} if event == 'hook.finished' else line)}\n"

    lines = [begun(2 * 86400, "0a"), begun(4000, "0b"), begun(3600, "0c"), begun(3600, "0d", node="n2")]
    lines += [begun(3600, "0e"), begun(3599, "0e", "hook.finished")]
    (site.base / "log/audit.jsonl").write_text("".join(lines))


def _waiting(name: str, seconds: float, text: str = "") -> Plant:
    """Let a file of the node's, a bundle, wait for so long."""

    def write(site: Site) -> None:
        path = Path(site.installation.node("n1").root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (time.time() - seconds,) * 2)

    return write


def _removal(site: Site) -> None:
    queue = Queue(site.installation.node("n1"), ENDINGS)
    waiting.put(queue, Item("1", int(time.time() - LONG_S), 1, a_run().name), a_run(), 0, is_done=True)


def _live(site: Site) -> None:
    for job, ago in ((7, 600), (8, LONG_S)):
        item = Item("1", int(time.time()) - ago, 0, f"{job}.0a1b2c3d")
        Queue(site.installation.node("n1"), LIVE).put(item, Asker(7, 1, "a", "c"))


def _stuck_import(site: Site) -> None:
    request = ImportRequest(
        reference="reg.io/b:1", kind="k", private="", user="a", uid=1, cluster="c", job_id=7, asked=time.time() - LONG_S
    )
    item = Item("1", int(time.time()) - LONG_S, 0, request.key)
    Queue(site.installation.node("n1"), IMPORTS).put(item, request)


def _failed_import(code: str) -> Plant:
    failure = RememberedFailure(code, {}, "no such thing")
    return lambda site: requests.remember_failure(site.installation.node("n1"), "0a", failure)


def _unmounted(site: Site) -> None:
    site.store.rename(site.base / "elsewhere")
    site.store.mkdir()


def _used_for_long(site: Site) -> None:
    """Let the store have been in use for long, and nobody have maintained it."""
    (site.store / "caches/maintained").unlink()
    (site.store / "caches/site").mkdir()
    site.give(site.store, 1)
    os.utime(site.store / "caches/site", (1, 1))


NO_RULES = policy(POLICY[POLICY.index("rules:") :].replace("{{", "{").replace("}}", "}"), "")
# What `warmstart policy check` says where slurm.conf shows that a policy cannot mean what it says. What is wrong in
# itself is in tests/unit/policy/test_mistakes.py.
IN_POLICY: tuple[tuple[str, Plant], ...] = (
    ("did you mean registries?", policy("registries:", "registeries:")),
    (
        "no node 'n[10-12]' on this cluster",
        policy("match: {partition: ci,", "match: {node: 'n[10-12]', partition: ci,"),
    ),
    ("no partition 'cl' on this cluster", policy("partition: ci", "partition: cl")),
    ("no user 'gamse' on this cluster", policy("ci, user: games}", "ci, user: gamse}")),
    ("Slurm kills the prolog after 290 s", policy("images:\n", "images:\n  wait: 10m\n")),
    ("Slurm kills the epilog after 290 s", key("harvest: {budget: 10m}")),
    ("No such file or directory", gone(WRITTEN)),
)


Row = tuple[Any, ...]  # a status, a word, and what plants the mistake


class Mistake(NamedTuple):
    """A mistake, by the check of `warmstart doctor` that tells of it: as what, and with which word."""

    check: str
    status: str
    word: str
    plant: Plant


TMPFS, NEW_TMPFS = "JobContainerType=job_container/tmpfs", "NamespaceType=namespace/tmpfs"
LINUX = "NamespaceType=namespace/linux"
CLONE = "CloneNSScript=@/job-container"
OURS = script(f"{LIBEXEC}/job-container", "")
BESIDE = conf("Prolog=@/prolog", "Prolog[0]=/bin/true\nProlog[1]=@/prolog")  # as from 24.05 on
TWICE = conf("Prolog=@/prolog", "Prolog[0]=@/prolog\nProlog[1]=@/prolog")
NO_TASK_PROLOG = conf("TaskProlog=@/task-prolog\n", "")
PYXIS = "required spank_pyxis.so\n"
PLUGIN = "optional ~/warmstart.so workspace=~/workspace\n"
ENROOT_HOOK = script("enroot/hooks.d/40-warmstart.sh", "")
ENROOT_MOUNTS = file("enroot/mounts.d/50.fstab", f"@ @ none bind\n~/{RUN}/view ~/{RUN}/view none bind\n")
BOTH = all_of(ENROOT_HOOK, ENROOT_MOUNTS)
NODES = """\
defaults:
  base_path: /srv/c  # of all nodes
  dirs: /srv/private
node_confs:
  - nodes: [n1]
    options: {clone_ns_script: @/job-container%s}
"""
NAMESPACE = all_of(constant_path("namespace"), slurm("24.11.5"), OURS)
NEWER = all_of(constant_path("namespace"), slurm("25.11.2"), OURS)

IN_DOCTOR: dict[str, list[Row]] = {
    "policy.in-force": [
        ("wrong", "no rules", NO_RULES),
        ("critical", "no policy is in force", gone(WRITTEN, f"{VAR}/policy.json")),
        ("wrong", "damaged", file(f"{VAR}/policy.json", "{")),
        ("advice", "does not exist", gone(f"{VAR}/policy.json")),
        ("ok", "", gone(f"{VAR}/policy.json"), _no_hook_ran),
    ],
    "node": [("unknown", "no policy is in force", gone(WRITTEN, f"{VAR}/policy.json"))],
    "store": [("unknown", "no policy is in force", gone(WRITTEN, f"{VAR}/policy.json"))],
    "slurm": [
        ("unknown", "no policy is in force", gone(WRITTEN, f"{VAR}/policy.json")),
        ("unknown", "Unable to contact", script("scontrol", "echo Unable to contact slurmctld >&2; exit 1")),
    ],
    "policy.mode": [
        ("wrong", "has existed for 2h", file(OFF, ""), old(OFF)),
        ("advice", "mode: observe", key("mode: observe")),
        ("advice", "these rules", policy("name: everyone", "mode: observe\n    name: everyone")),
    ],
    "node.accounts": [("wrong", "when the policy was compiled", _renumber)],
    "node.permissions": [
        ("critical", "change code that root runs", owner(f"{LIBEXEC}/prolog")),
        ("critical", "change code that root runs", file("prefix/lib/warmstart/a/warmstart/b.py", "", 0o664)),
        ("critical", "change warmstart's state", mode(VAR, 0o777)),
        ("wrong", "change the workspaces", owner("workspace")),
        ("wrong", "is a link", lambda site: site.behind("workspace")),
        ("wrong", "change the audit log", owner("log")),
        (
            "wrong",
            "change paths.shelf",
            policy("paths: {", "paths: {shelf: ~/shelf, "),
            file("shelf/x", ""),
            owner("shelf"),
        ),
        ("critical", "change the site's logins", mode("auth.json", 0o644)),
    ],
    "node.disks": [
        ("critical", "so the state of runs cannot be written", disk(RUN, "ro")),
        ("wrong", "the disk of the state of runs", disk(RUN, "full")),
        ("wrong", "so warmstart's state cannot be written", disk(VAR, "ro")),
        ("wrong", "the disk of warmstart's state", disk(VAR, "full")),
        ("wrong", "so the audit log cannot be written", disk("log", "ro")),
        ("wrong", "nodes that share it lose lines", shared("log")),
        ("wrong", "hooks do not write the audit log", file("log/audit.jsonl", "", 0o660)),
        ("wrong", "no local file system", shared("workspace")),
        ("advice", "uses memory", disk("workspace", "rw")),
        ("wrong", "the disk of workspaces", disk("workspace", "full")),
        ("wrong", "no disk", policy("paths: {", "paths: {shelf: ~/shelf, "), file("shelf/x", ""), disk("shelf", "rw")),
        ("wrong", "there is no directory", policy("paths: {", "paths: {shelf: ~/none, ")),
    ],
    "node.imports": [
        ("wrong", "No such file", gone("auth.json")),
        ("wrong", "is not an authfile", file("auth.json", "{", 0o600)),
        ("wrong", "no login", file("auth.json", '{"auths": {"b": {"auth": "YTpi"}}}', 0o600)),
        ("wrong", "does not answer", policy("images:\n", "images:\n  proxy: localhost:9\n")),
        ("wrong", "no such thing", _failed_import("registry-unreachable")),
        ("advice", "no such thing", _failed_import("image-not-found")),
    ],
    "node.programs": [
        ("advice", "no job counts as successful", gone("squeue")),
        ("wrong", "no job counts as successful", gone("squeue"), key("harvest: {only_successful: true}")),
    ],
    "node.killed-hooks": [
        ("advice", "2 hooks were killed in the last day, the last was the prolog of job 7", _killed_hooks),
    ],
    "node.maintenance": [("wrong", "has never succeeded", gone(f"{VAR}/n1/maintained"), old(f"{VAR}/n1/began"))],
    "node.backlog": [
        ("wrong", "endings: 1 wait, the oldest for 2h", _removal),
        ("wrong", "imports: 1 wait", _stuck_import),
        ("wrong", "live: 1 wait", _live),
    ],
    "job.access": [
        ("critical", "cannot run the task prolog", mode(LIBEXEC, 0o700)),
        ("advice", "only members of group 0", mode(LIBEXEC, 0o750)),
        ("wrong", "is mounted noexec", disk("workspace", "noexec")),
        ("wrong", "cannot use its workspace", mode("workspace", 0o700)),
        ("wrong", "cannot read images", Site.close_store),
        ("wrong", "cannot read images", file("store/images/x.sqsh", "", 0o600)),
        ("ok", "", file("store/images/x.sqsh", "")),
    ],
    "store.mount": [
        ("critical", "the store is not mounted", _unmounted),
        ("critical", "No such file or directory", lambda site: site.store.rename(site.base / "x")),
        ("critical", "Permission denied", mode(".", 0o700)),
        ("critical", "cannot make files in", disk("store", "ro")),
    ],
    "store.space": [("wrong", "nothing is imported", disk("store", "full"))],
    "store.owner": [
        ("critical", "is owned by uid 5", lambda site: site.give(site.store, 5)),
        ("critical", "was squashed", lambda site: site.give(site.store, 65534)),
    ],
    "store.permissions": [
        ("critical", "put code into every job", mode("store", 0o775)),
        ("critical", "put code into every job", mode(".", 0o777)),
        ("ok", "", mode(".", 0o1777)),
        ("critical", "link (uid 5)", lambda site: site.behind_a_link(5)),
        ("critical", "put code into every job", lambda site: site.behind_a_link(0, 0o777)),
        ("ok", "", lambda site: site.behind_a_link(0)),
    ],
    "store.maintenance": [
        ("wrong", "has never succeeded", _used_for_long),
        ("wrong", "last succeeded", old("store/caches/maintained", 1)),
        ("advice", "not succeeded yet", gone("store/caches/maintained")),
    ],
    "slurm.hooks": [
        ("wrong", "is not set and does not run", conf("Prolog=@/prolog\n", "Prolog=(null)\n")),
        ("wrong", "does not run", conf("Prolog=@/prolog", "Prolog=/bin/true")),
        ("advice", "reverse order", conf("Prolog=@/prolog", "Prolog=@/pro*")),
        ("critical", "matches no file, which drains the node", conf("Prolog=@/prolog", "Prolog=@/none.d/*")),
        ("critical", "missing or not executable", gone(f"{LIBEXEC}/prolog")),
        (
            "critical",
            "is missing",
            conf("Prolog=@/prolog", "Prolog=~/p"),
            script("p", "exec @/prolog"),
            gone(f"{LIBEXEC}/prolog"),
        ),
        ("ok", "", BESIDE),
        ("wrong", "2 times", TWICE),
        # Where slurmctld sends hooks, a script without a directory lies beside slurm.conf in slurmd's cache.
        ("ok", "", conf("Prolog=@/prolog", "Prolog=p.sh"), script("p.sh", "exec @/prolog")),
        ("wrong", "does not run", conf("Prolog=@/prolog", "Prolog=p.sh"), script("p.sh", "")),
        ("wrong", "nothing is harvested", conf("Epilog=@/epilog\n", "")),
        ("critical", "missing or not executable", gone(f"{LIBEXEC}/epilog")),
        ("critical", "every task of every job fails", conf("/task-prolog", "/nosuch")),
        ("critical", "every task of every job fails", gone(f"{LIBEXEC}/task-prolog")),
        ("wrong", "no environment", NO_TASK_PROLOG),
        ("advice", "only from SPANK", spank(PYXIS), ENROOT_HOOK, NO_TASK_PROLOG),
        ("ok", "", spank(PLUGIN), NO_TASK_PROLOG),
        ("critical", "change what root runs for each job", lambda site: site.let_write("prolog")),
        ("wrong", "hidden from jobs", conf("Prolog=@/prolog", "Prolog=/tmp/prolog")),
    ],
    "slurm.prolog-flags": [
        ("wrong", "lacks DeferBatch", conf(",DeferBatch", "")),
        ("wrong", "lacks Alloc", conf("Alloc,", "")),
        ("ok", "", conf("Alloc,", "Alloc,Contain,")),
        ("wrong", "NoHold", conf("DeferBatch", "DeferBatch,NoHold")),
        ("advice", "charged to the job", conf("DeferBatch", "DeferBatch,RunInJob")),
        ("wrong", "before the prolog", conf("DeferBatch", "DeferBatch,RunInJob"), containers(LINUX)),
        ("advice", "Serial", conf("DeferBatch", "DeferBatch,Serial")),
        # All of a job's nodes are warm, or none: the promise is told to be broken.
        ("wrong", "a job on several nodes is cold", conf("Alloc,", "")),
        ("wrong", "have agreed", conf(",DeferBatch", "")),
        ("wrong", "have agreed", conf("DeferBatch", "DeferBatch,NoHold")),
    ],
    "slurm.times": [
        ("wrong", "kills the prolog after 60 s", conf("=290", "=60")),
        ("wrong", "kills the prolog after 270 s", conf("=290", "=270")),
        ("wrong", "SlurmdTimeout", conf("=290", "=300")),
        ("wrong", "prologs have no timeout", conf("=290", "=65534")),
        ("wrong", "epilogs have no timeout", conf("PrologEpilogTimeout", "PrologTimeout")),
        ("wrong", "kills the epilog", conf("=290", "=60")),
        ("wrong", "a reconfigure meanwhile requeues its job", conf("=360", "=290")),
    ],
    "slurm.pyxis": [
        ("critical", "pyxis runs TaskProlog inside of containers", spank(PYXIS)),
        ("critical", "is missing: every task", spank(PYXIS), ENROOT_HOOK),
        ("critical", "is missing: every task", spank(PYXIS), ENROOT_HOOK, file("enroot/mounts.d/50.fstab", "# @ @\n")),
        ("ok", "", spank(PYXIS), BOTH),
        ("ok", "", spank(PYXIS), ENROOT_HOOK, NO_TASK_PROLOG),
        ("wrong", "cannot see the job's cache", spank(PYXIS), ENROOT_MOUNTS),
        ("wrong", "or get the job's environment", spank(PYXIS), NO_TASK_PROLOG),
        ("critical", "by way of slurmstepd", spank(PYXIS), BOTH, slurm("24.11.5")),
        ("critical", "by way of slurmstepd", spank(PYXIS), BOTH, slurm("25.05.1")),
        ("ok", "", spank(PYXIS), BOTH, slurm("24.11.7")),
        ("ok", "", spank(PYXIS), ENROOT_HOOK, NO_TASK_PROLOG, slurm("24.11.5")),
    ],
    "slurm.spank": [
        ("ok", "", spank(PLUGIN)),
        ("ok", "", spank(PYXIS + PLUGIN)),
        ("wrong", "is not on this node", spank(PLUGIN), gone("warmstart.so")),
        ("critical", "every srun and every step", spank("required /nosuch/warmstart.so\n")),
        ("wrong", "it was built for Slurm 24.11", spank(PLUGIN, (24, 11))),
        ("wrong", "not a plugin", spank(PLUGIN), file("warmstart.so", "#!/bin/sh\n")),
        ("wrong", "2 times", spank(PLUGIN * 2)),
        ("wrong", "its workspace is", spank("optional ~/warmstart.so\n")),
        ("wrong", "another root", spank("required chroot.so /jail\n" + PLUGIN)),
        ("advice", "before pyxis", spank(PLUGIN + PYXIS)),
        ("advice", "before pyxis", spank(PLUGIN + "include plug.d/*\n"), file("plug.d/a.conf", PYXIS)),
        ("wrong", "is not on this node", spank("optional warmstart.so workspace=~/workspace\n")),
        ("ok", "", spank("optional warmstart.so workspace=~/workspace\n"), conf("PluginDir=/none", "PluginDir=~")),
    ],
    "slurm.namespace": [
        ("unknown", "sets no base path", containers(TMPFS)),
        ("ok", "", containers(TMPFS, "AutoBasePath=true BasePath=/srv/c\n")),
        ("wrong", "below /tmp", containers(TMPFS, "BasePath=/dev/shm/x\n")),
        ("wrong", "prefix is below", containers(TMPFS, "BasePath=~\n")),
        ("wrong", "prefix is below", containers(TMPFS, "BasePath=/srv/c Dirs=/opt,~/prefix\n")),
        ("wrong", "/var/cache", NAMESPACE, containers(TMPFS, f"BasePath=/srv/c {CLONE} Dirs=/tmp,/var/cache\n")),
        ("unknown", "sets no base path", containers(LINUX)),
        ("unknown", "", containers(LINUX, "node_confs: [\n")),
        ("wrong", "prefix is below", containers(LINUX, NODES % ", dirs: '/srv/private,~'")),
        ("wrong", "prefix is below", containers(LINUX, NODES % ", dir_confs: [{path: ~, tmpfs: true}]")),
    ],
    "slurm.constant-path": [
        ("advice", "this node supports spank", spank(PLUGIN)),
        ("ok", "", spank(PLUGIN), gone("warmstart.so")),
        ("wrong", "is not loaded", constant_path("spank")),
        ("ok", "", constant_path("spank"), spank(PLUGIN)),
        ("wrong", "does not load the SPANK plugin", constant_path("spank"), spank(PLUGIN, (24, 11))),
        ("wrong", "Slurm 22.05 runs no CloneNSScript", constant_path("namespace")),
        ("wrong", "not warmstart's on all nodes", NAMESPACE),
        ("wrong", "not warmstart's on all nodes", NAMESPACE, containers(TMPFS, "BasePath=/c CloneNSScript=/other\n")),
        ("wrong", "missing", NAMESPACE, containers(TMPFS, f"BasePath=/c {CLONE}\n"), gone(f"{LIBEXEC}/job-container")),
        ("ok", "", NAMESPACE, containers(TMPFS, f"BasePath=/c {CLONE}\n")),
        ("advice", "supports namespace", slurm("24.11.5"), OURS, containers(TMPFS, f"BasePath=/c {CLONE}\n")),
        ("wrong", "of its own", NEWER, containers(TMPFS, f"BasePath=/c\n{CLONE}\n")),
        ("wrong", "of its own", NEWER, containers(NEW_TMPFS, f"{CLONE} BasePath=/c\n")),
        (
            "wrong",
            "on all nodes",
            NEWER,
            containers(TMPFS, f"NodeName=a BasePath=/c\nNodeName=b BasePath=/c {CLONE}\n"),
        ),
        (
            "ok",
            "",
            NEWER,
            containers(TMPFS, f"AutoBasePath=true\nNodeName=a BasePath=/c {CLONE}\nNodeName=b BasePath=none\n"),
        ),
        ("wrong", "on all nodes", NEWER, containers(LINUX), file("job_container.conf", f"BasePath=/c {CLONE}\n")),
        ("ok", "", NEWER, containers(LINUX, NODES % "")),
        ("wrong", "on all nodes", NEWER, containers(LINUX, (NODES % "").replace("@", "/other"))),
        ("wrong", "of its own", constant_path("link", "/tmp/.ws")),
        ("ok", "", constant_path("link", "/tmp/.ws"), containers(TMPFS, "BasePath=/srv/c\n")),
        ("wrong", "of its own", constant_path("link", "/usr/ws"), containers(TMPFS, "BasePath=/srv/c\n")),
        ("ok", "", constant_path("link", "/usr/ws"), containers(TMPFS, "BasePath=/c Dirs=/tmp,/usr\n")),
        ("wrong", "of its own", constant_path("link", "/usr/share/ws"), containers(TMPFS, "BasePath=/c Dirs=/usr\n")),
        ("wrong", "/no/such", constant_path("link", "/no/such/ws"), containers(TMPFS, "BasePath=/c Dirs=/no/such\n")),
        ("wrong", "/bin", constant_path("link", "/bin/ws"), containers(TMPFS, "BasePath=/c Dirs=/bin\n")),
        ("ok", "", constant_path("containers")),
        ("wrong", "bind", constant_path("containers"), file("apptainer.conf", "user bind control = no\n")),
        (
            "ok",
            "",
            constant_path("containers"),
            file("apptainer.conf", "# user bind control = no\nmount tmp = no\nuser bind control = yes\n"),
        ),
        ("wrong", "40-warmstart.sh", constant_path("enroot")),
        ("ok", "", constant_path("enroot"), ENROOT_HOOK),
    ],
}
MISTAKES = [
    Mistake(check, status, word, all_of(*plants)) for check, rows in IN_DOCTOR.items() for status, word, *plants in rows
]
# What else a row of docs/threats.md says to be told.
THREATS = (
    (19, Mistake("policy.in-force", "critical", "last good policy", policy("registries", "registeries"))),
    (19, Mistake("node.permissions", "critical", "change the policy", mode(WRITTEN, 0o666))),
    (19, Mistake("node.permissions", "critical", "change the policy", mode("prefix/etc/warmstart", 0o777))),
    (22, Mistake("node.maintenance", "wrong", "last succeeded 2h ago on n1", old(f"{VAR}/n1/maintained"))),
    (22, Mistake("node.maintenance", "advice", "not succeeded yet", gone(f"{VAR}/n1/maintained"))),
)
