"""An admin's mistakes, and what tells of each: tests/node/test_mistakes.py plants them.

A mistake is planted in a good `Site` by one function. `says` is a part of the message, without paths of the site.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from warmstart.paths import Installation
from warmstart.policy import compiled
from warmstart.policy.current import current_policy

CHECK, DOCTOR = "policy check", "doctor"
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
ClusterName=c
NodeName=n[1-4]
PartitionName=ci Nodes=n1
Prolog=@/prolog
Epilog=@/epilog
TaskProlog=@/task-prolog
PrologFlags=Alloc,DeferBatch
PrologEpilogTimeout=290
BatchStartTimeout=360
"""


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
            site.store / "artifacts",
            base / "workspace",
            base / "log",
        ):
            path.mkdir(parents=True)
        for name in HOOKS:
            (site.libexec / name).write_text("#!/bin/sh\n")
            (site.libexec / name).chmod(0o755)
        (base / "scontrol").write_text("#!/bin/sh\necho slurm-wlm 22.05.8\n")
        (base / "squeue").write_text("#!/bin/sh\n")
        for name in ("scontrol", "squeue"):
            (base / name).chmod(0o755)
        (base / "auth.json").write_text('{"auths": {"reg.example.com": {"auth": "YTpi"}}}')
        (base / "auth.json").chmod(0o600)
        (base / "slurm.conf").write_text(SLURM.replace("@", str(site.libexec)))
        Path(site.installation.policy).write_text(POLICY.format(base=base))
        current_policy(site.installation, keep=True)
        for name in ("maintained", "id"):
            (site.store / "artifacts" / name).write_text("0123456789abcdef" if name == "id" else "")
        Path(site.installation.store_id).write_text("0123456789abcdef")
        os.makedirs(site.installation.node("n1").state)
        Path(site.installation.node("n1").maintained).touch()
        site.give(site.store, 1)
        return site

    @property
    def libexec(self) -> Path:
        """The directory of the hooks."""
        return self.base / "prefix/libexec/warmstart"

    @property
    def store(self) -> Path:
        """The policy's store."""
        return self.base / "store"

    def module(self) -> Path:
        """Put one file where the modules are, and return its path."""
        path = Path(self.installation.lib, "python-1/warmstart/start.py")
        path.parent.mkdir(parents=True)
        path.touch()
        return path

    def give(self, path: Path, uid: int) -> None:
        """Change the owner of a tree."""
        for found in (path, *path.rglob("*")):
            os.chown(found, uid, uid)

    def close_store(self) -> None:
        """Let only its owner into the store, which has an image."""
        (self.store / "images").mkdir()
        (self.store / "images/x.sqsh").touch()
        self.give(self.store, 1)
        self.store.chmod(0o700)

    def old_scope(self) -> None:
        """Let the store have been in use for long, and nobody have maintained it."""
        os.unlink(self.store / "artifacts/maintained")
        (self.store / "artifacts/site").mkdir()
        self.give(self.store, 1)
        os.utime(self.store / "artifacts/site", (1, 1))

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
        """Edit the policy."""
        path = Path(self.installation.policy)
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def conf(self, old: str, new: str) -> None:
        """Edit slurm.conf."""
        path = self.base / "slurm.conf"
        old, new = (text.replace("@", str(self.libexec)) for text in (old, new))
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def renumber(self) -> None:
        """Put the policy into force with another uid of an account than it has now."""
        policy = current_policy(self.installation).policy
        other = policy.import_user._replace(uid=policy.import_user.uid + 1000)
        Path(self.installation.compiled_policy).write_bytes(compiled.encode(policy._replace(import_user=other)))

    def wrap(self, hook: str, end: str) -> None:
        """Have Slurm run a script of the site's, which calls the hook with that end of the line, and then goes on."""
        script = self.base / f"site-{hook}"
        script.write_text(f"#!/bin/sh\n{self.libexec}/{hook} {end}\nlogger done\n")
        script.chmod(0o755)
        self.conf(f"=@/{hook}\n", f"={script}\n")

    def let_write(self, hook: str) -> None:
        """Let a user's group change the site's own script around a hook."""
        self.wrap(hook, "|| exit $?")
        (self.base / f"site-{hook}").chmod(0o775)

    def share(self, path: Path) -> None:
        """Put a file system over a directory that is none of this node's disks."""
        subprocess.run(["bindfs", str(path), str(path)], check=True)

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


class Mistake(NamedTuple):
    """One mistake: where, what, how to plant it, which command tells of it, and with which words."""

    where: str
    what: str
    command: str
    says: str
    plant: Callable[[Site], object]


def _policy(what: str, says: str, old: str, new: str) -> Mistake:
    return Mistake("policy", what, CHECK, says, lambda site: site.edit(old, new))


def _slurm(what: str, says: str, old: str, new: str) -> Mistake:
    return Mistake("slurm.conf", what, DOCTOR, says, lambda site: site.conf(old, new))


def _node(what: str, says: str, plant: Callable[[Site], object]) -> Mistake:
    return Mistake("node", what, DOCTOR, says, plant)


def _close_programs(site: Site) -> None:
    site.libexec.chmod(0o700)


def _store(what: str, says: str, plant: Callable[[Site], object]) -> Mistake:
    return Mistake("store", what, DOCTOR, says, plant)


def _foreign_encoding(site: Site) -> None:
    Path(site.installation.policy).write_bytes(
        Path(site.installation.policy).read_bytes() + "# caf\xe9\n".encode("latin-1")
    )


def _unread(site: Site) -> None:
    (Path(site.installation.etc) / "conf.d").mkdir()
    (Path(site.installation.etc) / "conf.d/x.yml").write_text("rules: []\n")


def _pyxis(site: Site) -> None:
    (site.base / "plugstack.conf").write_text("required spank_pyxis.so\n")


def _waiting(site: Site) -> None:
    journal = Path(site.installation.node("n1").journal)
    journal.mkdir()
    (journal / "prolog-ab-1.done").touch()
    os.utime(journal / "prolog-ab-1.done", (1, 1))


def _old_node(site: Site) -> None:
    paths = site.installation.node("n1")
    os.unlink(paths.maintained)
    os.utime(paths.root, (1, 1))


def _unmounted(site: Site) -> None:
    site.store.rename(site.base / "elsewhere")
    site.store.mkdir()


def _replaced(site: Site) -> None:
    _unmounted(site)
    (site.store / "artifacts").mkdir()
    site.give(site.store, 1)


RULES = "rules:\n"
PUBLISH = "    publish: {users: [games]}\n"
MISTAKES = (
    _policy("a misspelt key", "unknown key; did you mean registries?", "registries:", "registeries:"),
    _policy("a tab", "a tab where YAML allows spaces only", "rules:\n  -", "rules:\n\t-"),
    Mistake("policy", "another encoding than UTF-8", CHECK, "byte 0xe9 is not UTF-8", _foreign_encoding),
    _policy(
        "`yes` for `true`", "expected true or false, got 'yes'", RULES, "harvest: {only_successful: yes}\nrules:\n"
    ),
    _policy(
        "a duration without a unit",
        "is not a duration; write a number and s, m, h or d",
        RULES,
        "seed: {fetch_budget: '10'}\nrules:\n",
    ),
    _policy("a size in other units", "is not a size; write a number and one of", RULES, "seed: {keep: 1GB}\nrules:\n"),
    _policy("a relative path", "is not an absolute path", "store: /", "store: ./"),
    _policy(
        "an account that does not exist", "no account 'nosuch' on this node", "import_user: bin", "import_user: nosuch"
    ),
    _policy("one account for two roles", "each account needs its own", "import_user: bin", "import_user: daemon"),
    _policy("a profile that does not exist", "no profile 'nunba'; did you mean numba?", "[numba]", "[nunba]"),
    _policy(
        "a host list of nodes that do not exist",
        "no node 'n[10-12]' on this cluster",
        "match: {partition: ci,",
        "match: {node: 'n[10-12]', partition: ci,",
    ),
    _policy(
        "a variable of the shell in `env`", "no shell expands $ there", "[numba]", "[numba]\n    env: {P: '$HOME/x'}"
    ),
    _policy("`override` of what nothing sets", "nothing sets NOSUCH", "[numba]", "[numba]\n    override: [NOSUCH]"),
    _policy(
        "a profile of the site's own that no rule gives",
        "no rule gives own: only jobs that ask for it get it",
        RULES,
        "profiles: {own: {variables: {OWN_CACHE: '{dir}'}, entries: ['*.bin'], relocation: relocatable}}\nrules:\n",
    ),
    _policy(
        "a profile without the path that it needs",
        "torch-extensions needs a constant path, and constant_path is none",
        "[numba]",
        "[numba, torch-extensions]",
    ),
    _policy(
        "a lease of hours",
        "an image in use can be evicted",
        "images:\n",
        "images:\n  keep: {lease: 2h}\n",
    ),
    _policy(
        "a bare `*`",
        "a value cannot begin with * unless it is in quotes: '*'",
        "match: {partition: ci,",
        "match: {node: *, partition: ci,",
    ),
    _policy("an empty match", "match is empty: the rule is for every job", "profiles: [numba]", "match: {}"),
    _policy(
        "a scope that nobody publishes to",
        "no rule publishes into scope site",
        PUBLISH,
        "",
    ),
    _policy("`PATH` in `env`", "PATH is every program's", "[numba]", "[numba]\n    env: {PATH: /opt/bin}"),
    _policy(
        "a profile's own variable in `env`",
        "NUMBA_CACHE_DIR is where the tool of profile numba finds its cache",
        "[numba]",
        "[numba]\n    env: {NUMBA_CACHE_DIR: /scratch/numba}",
    ),
    _policy(
        "a wait that Slurm does not allow",
        "Slurm kills the prolog after 290 s",
        "images:\n",
        "images:\n  wait: 10m\n",
    ),
    _policy(
        "a harvest that Slurm does not allow",
        "Slurm kills the epilog after 290 s",
        RULES,
        "harvest: {budget: 10m}\nrules:\n",
    ),
    _policy(
        "an account to match where nothing keeps accounts",
        "this cluster keeps no account",
        "profiles: [numba]",
        "profiles: [numba]\n    match: {account: ml}",
    ),
    _policy("two rules with one name", "another rule has the name everyone", "name: ci", "name: everyone"),
    _policy(
        "an image of a registry that is not allowed",
        "is not in images.registries",
        "profiles: [numba]",
        "images: ['docker://docker.io/x/y:1']",
    ),
    _policy(
        "a right for whoever claims an account",
        "may not depend on a claimed attribute",
        "match: {partition: ci",
        "match: {account: ml, partition: ci",
    ),
    _policy(
        "a rule for a partition that does not exist",
        "no partition 'cl' on this cluster",
        "partition: ci",
        "partition: cl",
    ),
    _policy(
        "a rule for a user that does not exist",
        "no user 'gamse' on this cluster",
        "match: {partition: ci, user: games}",
        "match: {partition: ci, user: gamse}",
    ),
    _policy("a regular expression", "looks like a regular expression", "partition: ci", "partition: 'ci.*'"),
    _policy(
        "a last rule that takes publishing away",
        "revokes the publish of rule ci",
        PUBLISH,
        PUBLISH + "  - {name: last, scope: user}\n",
    ),
    _policy(
        "no rules",
        "no rules: no job gets anything",
        POLICY[POLICY.index("rules:") :].replace("{{", "{").replace("}}", "}"),
        "",
    ),
    Mistake("policy", "`conf.d/x.yml`", CHECK, "is not read: names in conf.d end in .yaml", _unread),
    Mistake(
        "policy",
        "a file that is not there",
        CHECK,
        "No such file or directory",
        lambda site: os.unlink(site.installation.policy),
    ),
    _slurm(
        "a later `Prolog=` line",
        "the last of 2 lines; before Slurm 24.05 only the last one counts",
        "Epilog=",
        "Prolog=/etc/slurm/other\nEpilog=",
    ),
    _slurm("no `Prolog`", "Prolog is not set and does not run", "Prolog=@/prolog\n", ""),
    _slurm("a glob that matches nothing", "matches no file, which drains the node", "/epilog\n", "/none.d/*\n"),
    _slurm(
        "a missing include",
        "no daemon of Slurm can start with it",
        "ClusterName=c\n",
        "ClusterName=c\ninclude hooks.conf\n",
    ),
    _slurm("`PrologFlags` without `DeferBatch`", "PrologFlags lacks DeferBatch", ",DeferBatch", ""),
    _slurm("a prolog that Slurm kills too early", "Slurm kills the prolog after 60 s", "=290", "=60"),
    _slurm("`BatchStartTimeout` below the prolog's", "a reconfigure meanwhile requeues its job", "=360", "=60"),
    _slurm(
        "a `TaskProlog` that is not there",
        "is missing, or users cannot execute it: every task of every job fails",
        "/task-prolog",
        "/nosuch",
    ),
    Mistake(
        "slurm.conf",
        "pyxis without the mounts of the task prolog",
        DOCTOR,
        "pyxis runs TaskProlog inside of containers",
        _pyxis,
    ),
    Mistake(
        "slurm.conf",
        "hooks that are not installed",
        DOCTOR,
        "is missing or not executable",
        lambda site: os.unlink(site.libexec / "epilog"),
    ),
    Mistake(
        "slurm.conf",
        "an own prolog that a group can write",
        DOCTOR,
        "others than root can change what root runs for each job",
        lambda site: site.let_write("prolog"),
    ),
    _node(
        "an audit directory that a user owns",
        "others than root can change the audit log",
        lambda site: os.chown(site.base / "log", 5, 5),
    ),
    _node(
        "one audit file for all nodes",
        "nodes that write one file lose lines",
        lambda site: site.share(site.base / "log"),
    ),
    _node(
        "an account that was given another uid",
        "it had other ids when the policy was compiled",
        lambda site: site.renumber(),
    ),
    Mistake(
        "slurm.conf",
        "a required plugin that is not there",
        DOCTOR,
        "every srun and every step of a job fails",
        lambda site: (site.base / "plugstack.conf").write_text("required /nosuch/warmstart.so\n"),
    ),
    _node("closed programs", "a job's user cannot run the task prolog", _close_programs),
    _node(
        "a workspace without exec",
        "is mounted noexec: jobs can load no library",
        lambda site: site.mount(site.base / "workspace", "noexec"),
    ),
    _node(
        "a workspace that is closed to users",
        "a job's user cannot use its workspace",
        lambda site: (site.base / "workspace").chmod(0o700),
    ),
    _node(
        "a workspace that a user owns",
        "others than root can change",
        lambda site: os.chown(site.base / "workspace", 5, 5),
    ),
    _node(
        "hooks that a user owns",
        "others than root can change code that root runs",
        lambda site: os.chown(site.libexec / "prolog", 5, 5),
    ),
    _node(
        "modules that a group can write",
        "others than root can change code that root runs",
        lambda site: site.module().chmod(0o664),
    ),
    _node(
        "a dead proxy",
        "images.proxy localhost:9 does not answer",
        lambda site: site.edit("images:\n", "images:\n  proxy: localhost:9\n"),
    ),
    _node(
        "`constant_path: namespace` on Slurm 22.05",
        "Slurm 22.05 runs no CloneNSScript",
        lambda site: site.edit(RULES, "constant_path: namespace\nrules:\n"),
    ),
    _node("a forgotten `off`", "hooks do nothing", lambda site: Path(site.installation.off_switch).touch()),
    _node("a broken edit of the policy", "the last good policy is in force", lambda site: site.edit("numba", "nunba")),
    _node(
        "a policy that others can write",
        "policy.yaml: can be written by others",
        lambda site: os.chmod(site.installation.policy, 0o666),
    ),
    _node(
        "credentials that are not there",
        "the site's credentials for reg.example.com cannot be used",
        lambda site: os.unlink(site.base / "auth.json"),
    ),
    _node(
        "credentials that others can read",
        "they have the site's logins",
        lambda site: os.chmod(site.base / "auth.json", 0o644),
    ),
    _node("credentials that are none", "is not an authfile", lambda site: (site.base / "auth.json").write_text("{")),
    _node(
        "a read-only disk of the state",
        "so warmstart's state cannot be written",
        lambda site: site.mount(Path(site.installation.var), "ro"),
    ),
    _node(
        "a full disk of the state",
        "the disk of warmstart's state",
        lambda site: site.mount(Path(site.installation.var), "full"),
    ),
    _node(
        "a read-only disk of the audit log",
        "so the audit log cannot be written",
        lambda site: site.mount(site.base / "log", "ro"),
    ),
    _node(
        "a state that others can write",
        "others than root can change",
        lambda site: os.chmod(site.installation.var, 0o777),
    ),
    _node("no maintenance", "maintenance has never succeeded", _old_node),
    _node("no `squeue`", "no job counts as successful", lambda site: os.unlink(site.base / "squeue")),
    _node("events that nobody moves into the log", "1 journals wait for the audit log, the oldest for", _waiting),
    _store("not mounted", "the store is not mounted", _unmounted),
    _store(
        "not there", "No such file or directory, as daemon", lambda site: site.store.rename(site.base / "elsewhere")
    ),
    _store("a local directory in its place", "something else is in its place", _replaced),
    _store(
        "another store in its place",
        "that this node has used",
        lambda site: (site.store / "artifacts/id").write_text("fedcba9876543210"),
    ),
    _store("read-only", "cannot make files in", lambda site: site.mount(site.store, "ro")),
    _store("full", "nothing is imported", lambda site: site.mount(site.store, "full")),
    _store("given to somebody else", "is owned by uid 5, not by daemon", lambda site: site.give(site.store, 5)),
    _store("made by a squashed root", "root made it and was squashed", lambda site: site.give(site.store, 65534)),
    _store("group-writable", "can put code into every job that reads", lambda site: site.store.chmod(0o775)),
    _store(
        "a parent that others can write",
        "others can put another store in its place",
        lambda site: site.base.chmod(0o777),
    ),
    _store(
        "closed to jobs' users",
        "a job's user cannot read images",
        lambda site: site.close_store(),
    ),
    _store(
        "behind a link of somebody's",
        "link (uid 5)",
        lambda site: site.behind_a_link(5),
    ),
    _store(
        "behind a link, below a directory that others can write",
        "others can put another store in its place",
        lambda site: site.behind_a_link(0, 0o777),
    ),
    _store(
        "never maintained",
        "the store's maintenance has never succeeded",
        lambda site: site.old_scope(),
    ),
)
