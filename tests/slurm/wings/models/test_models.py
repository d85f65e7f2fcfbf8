"""A model on the shared file system whose large files a job reads from copies (docs/wings/models.md)."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lib import mounts, processes, spank
from tests.lib.accounts import ALICE, BOB, CAROL
from tests.lib.cluster import JobResult
from tests.lib.site import Site

RULES = """\
models: {{prefixes: ["{prefix}"]}}
rules:
  - name: everyone
"""
SIZE = (16 << 20) + 5
READ = """\
#!/bin/sh
cd {snapshot} || exit 3
sha256sum <model.safetensors
cat config.json
echo more >../../blobs/more && ln -s ../../blobs/more "new-$SLURM_JOB_ID" && cat "new-$SLURM_JOB_ID"
grep -c ' {top}/blobs/' /proc/self/mountinfo
[ -w model.safetensors ] || echo read-only
"""


@contextmanager
def shared(site: Site, name: str, way: str = "spank") -> Iterator[tuple[Path, Path]]:
    """Yield a directory of ws-alice's as a network file system shows it, and the same directory below that.

    With a policy that offers copies of models there, shown in that way.
    """
    base, account = site.cluster.base, site.cluster.account(ALICE)
    source = base / f"{name}.source"
    source.mkdir(mode=0o700)
    os.chown(source, account.uid, account.gid)
    with ExitStack() as stack:
        target = stack.enter_context(mounts.served(base, source, base / f"{name}.shared"))
        if way == "spank":
            spank.need()
            stack.enter_context(spank.loaded(site))
        rules = RULES.format(prefix=target)
        (base / "shelf").mkdir(exist_ok=True)
        site.write_policy(rules, constant=way, workspace=f"{site.workspace}\n  shelf: {base}/shelf")
        stack.callback(site.write_policy)
        yield target, source
        site.cluster.wait_idle()


def make_snapshot(site: Site, cache: Path, data: bytes) -> Path:
    """Make a model in a cache as huggingface_hub does, a user's; return the snapshot's path in the cache."""
    top = cache / "models--team--tiny"
    snapshot = top / "snapshots" / "0123abc"
    for path in (top / "blobs", snapshot):
        path.mkdir(parents=True, exist_ok=True)
    blob = hashlib.sha256(data).hexdigest()
    (top / "blobs" / blob).write_bytes(data)
    (top / "blobs" / "abc").write_text("{}\n")
    for name, target in (("model.safetensors", blob), ("config.json", "abc")):
        (snapshot / name).unlink(missing_ok=True)
        (snapshot / name).symlink_to(f"../../blobs/{target}")
    account = site.cluster.account(ALICE)
    subprocess.run(["/bin/chown", "-Rh", f"{account.uid}:{account.gid}", str(cache)], check=True)
    return snapshot.relative_to(cache)


def run(site: Site, snapshot: Path, node: str = "n1", script: str = READ) -> JobResult:
    """Run a job that names a model, until nothing works in the background."""
    text = script.format(snapshot=snapshot, top=snapshot.parent.parent)
    comment = f"--comment=warmstart: model={snapshot}"
    return site.finish(site.cluster.submit(text, ALICE, comment, f"--nodelist={node}"))


def test_the_third_job_on_a_node_reads_copies(site: Site) -> None:
    """At the files' own paths; what the job downloads goes to the cache. Root cannot even look at that file system."""
    with shared(site, "model.first") as (target, source):
        data = os.urandom(SIZE)
        snapshot = target / "hub" / make_snapshot(site, source / "hub", data)
        digest = f"{hashlib.sha256(data).hexdigest()}  -"
        told = f"warmstart: model {snapshot} is read from the shared file system: it is "
        first = run(site, snapshot)
        again = "copied to this node when a job names it here again within a day"
        assert first.output.splitlines() == [told + again, digest, "{}", "more", "0"]
        second = run(site, snapshot)
        being = "being copied to this node for later jobs"
        assert second.output.splitlines() == [told + being, digest, "{}", "more", "0"]
        (copied,) = site.events(second.job_id, "model.copied")
        assert (copied["files"], copied["bytes"], copied["fetched_bytes"]) == (1, SIZE, SIZE)
        third = run(site, snapshot)
        assert third.output.splitlines() == [digest, "{}", "more", "1", "read-only"]
        assert [event["way"] for event in site.events(third.job_id, "model.shown")] == ["copy"]
        elsewhere = run(site, snapshot, "n2")
        assert elsewhere.output.splitlines()[0] == told + again
        assert site.leftovers() == []


PLAIN = "#!/bin/sh\nsha256sum <{snapshot}/model.bin\n"
WATCH = """\
#!/bin/sh
sha256sum <{snapshot}/model.bin
touch {snapshot}/ready
for _ in $(seq 200); do
    [ ! -e {snapshot}/replaced ] || break
    sleep 0.1
done
sleep 1.5
sha256sum <{snapshot}/model.bin
"""


def test_a_file_that_is_replaced_or_removed_under_a_running_job(site: Site) -> None:
    """On another client: it reads one of both whole, as its file system has it, and the next job what is there."""
    with shared(site, "model.watch") as (target, source):
        data, other = os.urandom(SIZE), os.urandom(SIZE)
        digests = [f"{hashlib.sha256(each).hexdigest()}  -" for each in (data, other)]
        account = site.cluster.account(ALICE)
        top, model = source / "plain", target / "plain"
        top.mkdir()
        for name, content in (("model.bin", data), ("new", other)):
            (top / name).write_bytes(content)
        for path in (top, top / "model.bin", top / "new"):
            os.chown(path, account.uid, account.gid)
        (top / "new").rename(source / "new")
        for _ in range(2):
            run(site, model, script=PLAIN)
        comment = f"--comment=warmstart: model={model}"
        job = site.cluster.submit(WATCH.format(snapshot=model), ALICE, comment, "--nodelist=n1")
        processes.wait_until("a job that reads", (top / "ready").exists, 60)
        (source / "new").rename(top / "model.bin")
        (top / "replaced").touch()
        before, after = site.finish(job).output.splitlines()
        assert (before, after in digests) == (digests[0], True)
        assert [event["way"] for event in site.events(job, "model.shown")] == ["copy"]
        told, found = run(site, model, script=PLAIN).output.splitlines()
        assert ("read from the shared file system" in told, found) == (True, digests[1])
        (top / "model.bin").unlink()
        gone = run(site, model, script="#!/bin/sh\necho ran\n")
        assert gone.output.splitlines()[1:] == ["ran"]
        assert "it has no file of 16 MiB or more" in gone.output
        assert site.leftovers() == []


RULE = """\
models: {{prefixes: ["{prefix}"]}}
rules:
  - {{name: everyone, models: [{{path: "{prefix}/*", owners: [ws-carol], scope: site}}]}}
"""
DEVICE = "#!/bin/sh\nsha256sum <{file}\nexec stat -c %i {file}\n"


def test_two_nodes_and_three_users_by_a_rule(site: Site) -> None:
    """Each node copies what Carol owns once, for all. Who may not read it has none of it."""
    spank.need()
    prefix = site.cluster.base / "model.rule"
    model, file = prefix / "tiny", prefix / "tiny/model.bin"
    model.mkdir(parents=True)
    file.write_bytes(bytes(SIZE))
    carol = site.cluster.account(CAROL)
    subprocess.run(["/bin/chown", "-R", f"{carol.uid}:{carol.gid}", str(prefix)], check=True)
    digest, inode = f"{hashlib.sha256(bytes(SIZE)).hexdigest()}  -", str(file.stat().st_ino)
    with spank.loaded(site):
        rules, base = RULE.format(prefix=prefix), site.cluster.base
        (base / "shelf").mkdir(exist_ok=True)
        site.write_policy(rules, constant="spank", workspace=f"{site.workspace}\n  shelf: {base}/shelf")
        comment, script = f"--comment=warmstart: model={model}", DEVICE.format(file=file)
        copies: dict[str, list[str]] = {"n1": [], "n2": []}
        for users in ((ALICE, BOB), (BOB, CAROL), (CAROL, ALICE)):
            jobs = dict(zip(copies, users, strict=True))
            ids = {
                node: site.cluster.submit(script, user, comment, f"--nodelist={node}") for node, user in jobs.items()
            }
            for node, job in ids.items():
                found = site.finish(job).output.splitlines()[-2:]
                assert found[0] == digest
                copies[node].append("itself" if found[1] == inode else "copy")
            site.wait_imports()
        assert [*copies.values()] == [["itself", "itself", "copy"]] * 2
        assert {event["rule"] for event in site.audit("--event", "model.copied")} >= {"everyone"}
        file.chmod(0o600)
        comment = f"--comment=warmstart: model={model}"
        refused = site.finish(site.cluster.submit("#!/bin/sh\necho ran\n", ALICE, comment, "--nodelist=n1"))
        assert "Permission denied" in refused.output
        assert [event["way"] for event in site.events(refused.job_id, "model.shown")] == ["itself"]
        assert site.leftovers() == []
    site.write_policy()
