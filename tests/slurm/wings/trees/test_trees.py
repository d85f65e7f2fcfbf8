"""A tree on the shared file system that a job reads from a packed copy (docs/wings/trees.md)."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.lib import processes, shared_directory, spank
from tests.lib.accounts import ALICE, BOB, CAROL
from tests.lib.cluster import JobResult
from tests.lib.namespaces import JOBS, a_namespace, as_alice, mounts, run_hook
from tests.lib.site import Site

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


shared = partial(shared_directory.shared, key="trees", squashed=True)


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
        assert [event["way"] for event in site.listed("trees", second.job_id)] == ["copy"]
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
        refused = f"warmstart: tree {tree}: Permission denied; the job runs without it"
        assert stranger.output.splitlines() == [refused, "0"]
        assert site.leftovers() == []
    mounted = Path("/proc/self/mountinfo").read_text().splitlines()  # also by other tests
    assert not [line for line in mounted if "/mounted/tree" in line and str(site.cluster.base) in line]


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
        reasons = [event["reason"] for event in site.listed("trees", first.job_id)]
        assert sorted(reasons) == ["no-copy", "nothing-proposed"]
        with site.full_node_cache("n2"):
            cold = run(site, tree, SEVERAL, ALICE, *nodes)
        assert cold.output.splitlines().count("itself") == 2
        assert {event["way"] for event in site.listed("trees", cold.job_id)} == {"itself"}
        second = run(site, tree, SEVERAL, ALICE, *nodes)
        assert second.output.splitlines() == ["squashfs", "squashfs"]
        assert not [*(site.store / "runs").glob(f"*.{second.job_id}.*")]
        assert site.leftovers() == []


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
        (shown,) = site.listed("trees", second.job_id)
        assert (shown["way"], shown["scope"], shown["rule"]) == ("copy", "site", "everyone")
        stranger = run(site, tree, SITE_SHOW, CAROL, "--nodelist=n2")
        refused = f"warmstart: tree {tree}: Permission denied; the job runs without it"
        assert stranger.output.splitlines()[0] == refused
        assert site.listed("trees", stranger.job_id) == []
        assert "one" not in stranger.output.splitlines()
        listed = site.command("cache", "list", "--profile", "whole-trees", "--scope", "site", "--json")
        assert [(copy["scope"], copy["user"]) for copy in json.loads(listed.stdout)] == [("site", "root")]
        (packages / "planted.py").write_text("import os\n")
        bob = site.cluster.account(BOB)
        os.chown(packages / "planted.py", bob.uid, bob.gid)
        third = run(site, tree, SITE_SHOW, BOB, "--nodelist=n2")
        (failed,) = site.events(third.job_id, "tree.pack-failed")
        assert failed["error"]["code"] == "tree-refused"
        fourth = run(site, tree, SITE_SHOW, ALICE, "--nodelist=n2")
        notice, *_, way = fourth.output.splitlines()
        assert (way, site.events(fourth.job_id, "tree.pack-failed")) == ("itself", [])
        assert f"planted.py: it belongs to uid {bob.uid}, whom the rule does not name; so no copy is made" in notice
        site.cluster.wait_idle()
        assert site.leftovers() == []
    site.write_policy()


@pytest.mark.threat(51)
def test_a_tree_in_a_home_that_root_cannot_enter(site: Site) -> None:
    """The first job sees the tree itself, read-only, the second the copy, which it keeps when its epilog has run."""
    ways, left = [], ""
    with shared(site, "tree.namespace", "namespace") as (target, source):
        make_environment(site, source / "env")
        tree = target / "env"
        marker = tree / "lib/python3.11/site-packages/one/__init__.py"
        for job_id in (next(JOBS), next(JOBS)):
            variables = site.variables(job_id, SLURM_JOB_COMMENT=f"warmstart: tree={tree}")
            assert site.run_hook("prolog", variables).returncode == 0
            with a_namespace(site) as namespace:
                assert run_hook(site, job_id, namespace) == []
                (options,) = mounts(site, namespace, tree)
                assert {"ro", "nosuid", "nodev"} <= set(options.split(","))
                kind = as_alice(site, namespace, "/usr/bin/stat", "-f", "-c", "%T", marker)
                ways.append(kind.strip().removesuffix("blk"))
                site.wait_imports()
                (source / "env/lib/python3.11/site-packages/one/__init__.py").write_text("edited\n")
                assert site.run_hook("epilog", variables).returncode == 0
                left = as_alice(site, namespace, "/bin/cat", marker)
        assert site.leftovers() == []
    site.constant.rmdir()
    assert (ways, left) == (["fuse", "squashfs"], "one\n")
