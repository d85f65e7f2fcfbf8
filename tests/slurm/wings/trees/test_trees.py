"""A tree on the shared file system that a job reads from a packed copy (docs/wings/trees.md)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lib import mounts, processes, spank
from tests.lib.accounts import ALICE, BOB, CAROL
from tests.lib.cluster import JobResult
from tests.lib.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = """\
trees:
  prefixes: ["{prefix}"]
rules:
  - name: everyone
"""
SHOW = """\
#!/bin/sh
cd {tree}/lib/python3.11/site-packages || exit 3
cat one/__init__.py; wc -c <one/empty.py; cat .hidden; readlink abs; ./one/run.sh; stat -c '%A %U' one/run.sh .
[ "$(stat -c %d:%i one/same)" = "$(stat -c %d:%i one/run.sh)" ] || cmp one/same one/run.sh && echo same
touch one/new 2>&1 | grep -o Read-only
grep -c ' {tree} ' /proc/self/mountinfo
grep -q ' {tree} .* squashfs ' /proc/self/mountinfo && echo copy || echo itself
"""
ALIKE = [
    "one",
    "0",
    "hidden",
    "/etc/hostname",
    "ran",
    "-rwxr-x--- ws-alice",
    "drwxr-xr-x ws-alice",
    "same",
    "Read-only",
]


def make_environment(site: Site, tree: Path) -> Path:
    """Make what looks like an environment of pip, of a user's; return its `site-packages`."""
    packages = tree / "lib" / "python3.11" / "site-packages"
    (packages / "one").mkdir(parents=True)
    (tree / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (packages / "one" / "__init__.py").write_text("one\n")
    (packages / "one" / "empty.py").write_text("")
    (packages / ".hidden").write_text("hidden\n")
    (packages / "abs").symlink_to("/etc/hostname")
    (packages / "one" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (packages / "one" / "run.sh").chmod(0o750)
    os.link(packages / "one" / "run.sh", packages / "one" / "same")
    account = site.cluster.account(ALICE)
    subprocess.run(["/bin/chown", "-Rh", f"{account.uid}:{account.gid}", str(tree)], check=True)
    return packages


@contextmanager
def shared(site: Site, name: str, way: str = "spank") -> Iterator[tuple[Path, Path]]:
    """Yield a directory of ws-alice's that refuses all other uids, root's too, and the same directory as root sees it.

    With a policy that offers trees there, shown in that way.
    """
    base, account = site.cluster.base, site.cluster.account(ALICE)
    source = base / f"{name}.source"
    source.mkdir(mode=0o700)
    os.chown(source, account.uid, account.gid)
    with ExitStack() as stack:
        target = stack.enter_context(mounts.squashed(base, source, base / f"{name}.shared", account))
        if way == "spank":
            spank.need()
            stack.enter_context(spank.loaded(site))
        site.write_policy(RULES.format(prefix=target), constant=way)
        stack.callback(site.write_policy)
        yield target, source
        site.cluster.wait_idle()


def run(site: Site, tree: Path, script: str = SHOW, user: str = ALICE, *arguments: str, word: str = "") -> JobResult:
    """Run a job that asks for a tree, until nothing works in the background."""
    comment = f"--comment=warmstart: tree={word or tree}"
    return site.finish(site.cluster.submit(script.format(tree=tree), user, comment, *arguments))


def told(tree: Path) -> str:
    """Return what a job is told that reads the tree itself while it is packed."""
    how = "is read from the shared file system, read-only; a copy is packed in the background"
    return f"warmstart: tree {tree} {how}"


@pytest.mark.threat(50)
def test_the_first_job_reads_the_tree_itself_and_the_second_its_copy(site: Site) -> None:
    """Both read-only, at the same path, with the same files; root cannot even look at that file system."""
    with shared(site, "tree.first") as (target, source):
        packages, tree = make_environment(site, source / "env"), target / "env"
        first = run(site, tree, SHOW, ALICE, "--nodelist=n1")
        assert first.output.splitlines() == [told(tree), *ALIKE, "1", "itself"]
        (packed,) = site.events(first.job_id, "tree.packed")
        assert (packed["files"], packed["left_out"]) == (11, 0)
        second = run(site, tree, SHOW, ALICE, "--nodelist=n2")
        assert second.output.splitlines() == [*ALIKE, "1", "copy"]
        assert [event["way"] for event in site.events(second.job_id, "tree.shown")] == ["copy"]
        (packages / "two").mkdir()  # as an installation does
        changed = str(packages.stat().st_mtime_ns)
        mirror = tree / packages.relative_to(source / "env")
        look = ["stat", "-c", "%.9Y", str(mirror)]  # a FUSE file system keeps what it knows of a directory for a second
        processes.wait_until(
            "the change", lambda: site.cluster.run(look, ALICE).stdout.strip().replace(".", "") == changed, 10
        )
        third = run(site, tree, SHOW, ALICE, "--nodelist=n2")
        assert third.output.splitlines()[-1] == "itself"
        assert len(site.events(third.job_id, "tree.packed")) == 1
        stranger = run(site, tree, "#!/bin/sh\ngrep -c ' {tree} ' /proc/self/mountinfo\n", BOB)
        assert stranger.output.splitlines() == [
            f"warmstart: tree {tree}: Permission denied; the job runs without it",
            "0",
        ]
        assert site.leftovers() == []
    mounted = Path("/proc/self/mountinfo").read_text().splitlines()  # also by other tests
    assert not [line for line in mounted if "/mounted/tree" in line and str(site.cluster.base) in line]


REPLACE = """\
#!/bin/sh
cat {tree}/lib/python3.11/site-packages/one/__init__.py
cp -a {tree} {tree}.new && echo new >{tree}.new/lib/python3.11/site-packages/one/__init__.py
{replace} && mv {tree}.new {tree}  # as another node would: here the tree is a mount
cat {tree}/lib/python3.11/site-packages/one/__init__.py
srun sh -c 'cat {tree}/lib/python3.11/site-packages/one/__init__.py; grep -c " {tree} " /proc/self/mountinfo || true'
"""


@pytest.mark.parametrize("replace", ["mv {source} {source}.old", "rm -r {source}"])
def test_all_tasks_see_the_directory_that_took_the_trees_place(site: Site, replace: str) -> None:
    """Those that run lose their mount with the old one, so those that start later get none; and the job is told."""
    with shared(site, f"tree.{replace.partition(' ')[0]}") as (target, source):
        make_environment(site, source / "env")
        tree = target / "env"
        assert run(site, tree, SHOW, ALICE, "--nodelist=n1").output.splitlines()[-1] == "itself"
        script = REPLACE.replace("{replace}", replace.replace("{source}", f"{source}/env"))
        lines = run(site, tree, script, ALICE, "--nodelist=n1").output.splitlines()
        assert [line for line in lines if not line.startswith("warmstart: ")] == ["one", "new", "new", "0"]
        (said,) = [line for line in lines if line.startswith("warmstart: ")]
        assert "another directory is at the path" in said


SEVERAL = """\
#!/bin/sh
srun sh -c 'grep -o " {tree} ro.* squashfs" /proc/self/mountinfo | grep -o squashfs || echo itself'
"""


def test_all_nodes_of_a_job_have_the_copy_or_none_has(site: Site) -> None:
    """The head node decides; a node whose disk is full makes all read the tree itself."""
    with shared(site, "tree.several") as (target, source):
        make_environment(site, source / "env")
        tree, nodes = target / "env", ("--nodelist=n1,n2",)
        first = run(site, tree, SEVERAL, ALICE, *nodes)
        assert first.output.splitlines().count("itself") == 2  # the notice may come between
        reasons = [event["reason"] for event in site.events(first.job_id, "tree.shown")]
        assert sorted(reasons) == ["no-copy", "nothing-proposed"]
        with site.full_node_cache("n2"):
            cold = run(site, tree, SEVERAL, ALICE, *nodes)
        assert cold.output.splitlines().count("itself") == 2
        assert {event["way"] for event in site.events(cold.job_id, "tree.shown")} == {"itself"}
        second = run(site, tree, SEVERAL, ALICE, *nodes)
        assert second.output.splitlines() == ["squashfs", "squashfs"]
        assert not [*(site.store / "runs").glob(f"*.{second.job_id}.*")]
        assert site.leftovers() == []


LITTLE = """\
trees: {{prefixes: ["{prefix}"], keep: 1KiB}}
maintenance: {{per_user: 1KiB}}
rules:
  - name: everyone
"""
HOLD = """\
#!/bin/sh
cat {tree}/lib/python3.11/site-packages/one/__init__.py
touch {tree}/../reads
until [ -e {tree}/../end ]; do sleep 0.1; done
cat {tree}/lib/python3.11/site-packages/one/run.sh >/dev/null && echo whole
"""


def age(path: Path) -> None:
    """Have a copy last used five hours ago."""
    then = time.time() - 5 * 3600
    os.utime(path, (then, then))


def listed(site: Site, tree: Path) -> list[dict[str, Any]]:
    """Return the copies of a tree that `warmstart trees list` shows."""
    found: list[dict[str, Any]] = json.loads(site.command("trees", "list", "--json").stdout)
    return [row for row in found if row["tree"] == str(tree)]


def test_what_a_running_job_reads_goes_after_the_job(site: Site) -> None:
    """Neither its node nor the store evicts it before, however little they may keep; the command says who has it."""
    with shared(site, "tree.held") as (target, source):
        make_environment(site, source / "env")
        tree = target / "env"
        packed = site.events(run(site, tree, SHOW, ALICE, "--nodelist=n1").job_id, "tree.packed")
        (row,) = listed(site, tree)
        assert (row["tree"], row["user"], row["state"], row["here"]) == (str(tree), ALICE, "newest", [])
        assert [(row["bundle"], row["files"])] == [(event["bundle"], event["files"]) for event in packed]
        comment = f"--comment=warmstart: tree={tree}"
        job = site.cluster.submit(HOLD.format(tree=tree), ALICE, comment, "--nodelist=n2")
        processes.wait_until("a job that reads its tree", (source / "reads").exists, 60)
        assert [row["here"] for row in listed(site, tree)] == [["n2"]]
        (stored,) = site.store.rglob(f"{row['bundle']}.sqsh")
        copy = site.var / "n2" / "bundles" / f"{hashlib.sha256(stored.read_bytes()).hexdigest()}.sqsh"
        site.write_policy(LITTLE.format(prefix=target), constant="spank")
        for path in (copy, stored):
            age(path)
        assert site.command("maintain", "--node", "n2").returncode == 0
        assert site.command("maintain", "--store").returncode == 0
        assert (copy.exists(), stored.exists()) == (True, True)
        (source / "end").touch()
        assert site.finish(job).output.splitlines() == ["one", "whole"]
        for path in (copy, stored):
            age(path)
        assert site.command("maintain", "--store").returncode == 0
        assert site.command("maintain", "--node", "n2").returncode == 0
        assert (copy.exists(), stored.exists()) == (False, False)
        assert listed(site, tree) == []


def test_an_edit_in_place_is_read_after_a_removal(site: Site) -> None:
    """Which no marker shows: before it jobs read the old file, then the tree itself, then a new copy."""
    show = "#!/bin/sh\ncat {tree}/lib/python3.11/site-packages/one/__init__.py\n"
    with shared(site, "tree.removed") as (target, source):
        packages, tree = make_environment(site, source / "env"), target / "env"
        run(site, tree, show)
        (packages / "one" / "__init__.py").write_text("two\n")
        assert run(site, tree, show).output == "one\n"
        assert site.command("trees", "rm", str(tree)).returncode == 0
        assert run(site, tree, show).output.splitlines() == [told(tree), "two"]
        again = run(site, tree, show)
        assert (again.output, site.events(again.job_id, "tree.shown")[0]["way"]) == ("two\n", "copy")
        assert site.command("trees", "rm", str(tree)).returncode == 0
        assert listed(site, tree) == []


SITE_RULES = """\
trees:
  prefixes: ["{base}"]
rules:
  - name: everyone
    trees:
      - {{path: "{base}/closed/*", owners: [root], scope: site}}
"""
SITE_SHOW = """\
#!/bin/sh
cat {tree}/lib/python3.11/site-packages/one/__init__.py
stat -c '%A %U' {tree}/lib/python3.11/site-packages/one/run.sh
grep -q ' {tree} .* overlay ' /proc/self/mountinfo && echo copy || echo itself
"""


@pytest.mark.threat(54, 55)
def test_the_site_has_one_copy_of_a_tree_of_roots(site: Site) -> None:
    """One user's job packs it, and another's on another node reads it; not one who may not read the tree itself.

    A file that somebody has planted keeps it from being packed, and jobs are told which.
    """
    spank.need()
    base = site.cluster.base / "tree.site"
    tree = base / "closed" / "env"
    packages = make_environment(site, tree)
    subprocess.run(["/bin/chown", "-Rh", "root:root", str(tree)], check=True)
    subprocess.run(["/bin/chmod", "-R", "go-w,a+rX", str(tree)], check=True)
    os.chown(tree.parent, 0, site.cluster.account(CAROL).gid)
    tree.parent.chmod(0o705)  # closed to ws-carol's group, and open to all others
    with spank.loaded(site):
        site.write_policy(SITE_RULES.format(base=base), constant="spank")
        first = run(site, tree, SITE_SHOW, ALICE, "--nodelist=n1")
        assert first.output.splitlines() == [told(tree), "one", "-rwxr-xr-x root", "itself"]
        (packed,) = site.events(first.job_id, "tree.packed")
        assert (packed["scope"], packed["left_out"]) == ("site", 0)
        second = run(site, tree, SITE_SHOW, BOB, "--nodelist=n2")
        assert second.output.splitlines() == ["one", "-rwxr-xr-x root", "copy"]
        (shown,) = site.events(second.job_id, "tree.shown")
        assert (shown["way"], shown["scope"], shown["rule"]) == ("copy", "site", "everyone")
        stranger = run(site, tree, SITE_SHOW, CAROL, "--nodelist=n2")
        assert stranger.output.splitlines()[0] == (
            f"warmstart: tree {tree}: Permission denied; the job runs without it"
        )
        assert site.events(stranger.job_id, "tree.shown") == []
        assert "one" not in stranger.output.splitlines()
        listed = json.loads(
            site.command("cache", "list", "--profile", "whole-trees", "--scope", "site", "--json").stdout
        )
        assert [(copy["scope"], copy["user"]) for copy in listed] == [("site", "root")]
        (packages / "planted.py").write_text("import os\n")
        bob = site.cluster.account(BOB)
        os.chown(packages / "planted.py", bob.uid, bob.gid)
        third = run(site, tree, SITE_SHOW, BOB, "--nodelist=n2")
        (failed,) = site.events(third.job_id, "tree.pack-failed")
        assert failed["error"]["code"] == "tree-not-shared"
        fourth = run(site, tree, SITE_SHOW, ALICE, "--nodelist=n2")
        notice, *_, way = fourth.output.splitlines()
        assert (way, site.events(fourth.job_id, "tree.pack-failed")) == ("itself", [])
        assert f"planted.py: it belongs to uid {bob.uid}, whom the rule does not name; so no copy is made" in notice
        site.cluster.wait_idle()
        assert site.leftovers() == []
    site.write_policy()


def test_a_damaged_copy_is_found(site: Site) -> None:
    """By maintenance, which compares the bytes; a whole one stays, and is neither compacted nor exported."""
    with shared(site, "tree.verify") as (target, source):
        make_environment(site, source / "env")
        job = run(site, target / "env")
        (packed,) = site.events(job.job_id, "tree.packed")
        assert site.command("cache", "verify", packed["bundle"]).returncode == 0
        assert site.command("cache", "compact").returncode == 0
        assert site.command("cache", "promote", packed["bundle"], "--to", "site").returncode == 2
        (squashfs,) = site.store.rglob(f"{packed['bundle']}.sqsh")
        squashfs.chmod(0o644)
        with squashfs.open("r+b") as file:
            file.write(b"x")
        assert site.command("cache", "verify", packed["bundle"]).returncode == 1
        assert not squashfs.exists()


@pytest.mark.sweep
@pytest.mark.threat(50)
def test_a_hostile_tree_stops_no_job(site: Site) -> None:
    """Its own job runs, and another user's tree is packed; nothing is left of either."""
    with shared(site, "tree.hostile") as (target, source):
        packages = make_environment(site, source / "env")
        account = site.cluster.account(ALICE)
        make_environment(site, source / "ordinary")
        os.mkfifo(packages / "fifo")
        os.mknod(packages / "zero", 0o020666, os.makedev(1, 5))
        (packages / "out").symlink_to("/etc/shadow")
        (packages / os.fsdecode(b"\xff\n")).write_text("x")
        (packages / "sparse").touch()
        os.truncate(packages / "sparse", 1 << 40)
        subprocess.run(["/bin/chown", "-Rh", f"{account.uid}:{account.gid}", str(source / "env")], check=True)
        for name in ("env", "ordinary"):
            job = run(site, target / name, SHOW, ALICE, "--nodelist=n1")
            assert job.output.splitlines() == [told(target / name), *ALIKE, "1", "itself"]
        (failed,) = [event for event in site.audit("--event", "tree.pack-failed") if str(target) in event["tree"]]
        assert (failed["tree"], failed["error"]["code"]) == (str(target / "env"), "tree-too-large")
        assert run(site, target / "ordinary", SHOW, ALICE, "--nodelist=n1").output.splitlines()[-1] == "copy"
        assert site.leftovers() == []
        assert [name for name in os.listdir(site.var / "n1" / "work" / "trees") if not name.endswith(".json")] == []
