"""A model on the shared file system whose large files a job reads from copies (docs/wings/models.md)."""

from __future__ import annotations

import hashlib
import os
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.lib import shared_directory
from tests.lib.accounts import ALICE
from tests.lib.cluster import JobResult
from tests.lib.namespaces import JOBS, a_namespace, as_alice, run_hook
from tests.lib.site import Site

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


def shared(site: Site, name: str, way: str = "spank") -> AbstractContextManager[tuple[Path, Path]]:
    """Give a directory of ws-alice's with models, as nodes see it and as the file server does."""
    shelf = site.cluster.base / "shelf"
    shelf.mkdir(exist_ok=True)
    return shared_directory.shared(site, name, way, key="models", workspace=f"{site.workspace}\n  shelf: {shelf}")


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
        assert [event["way"] for event in site.listed("models", third.job_id)] == ["copy"]
        elsewhere = run(site, snapshot, "n2")
        assert elsewhere.output.splitlines()[0] == told + again
        assert site.leftovers() == []


@pytest.mark.threat(62)
def test_a_model_of_a_shared_file_system(site: Site) -> None:
    """Each copy over its file, in the namespace alone, as long as the job lives; its user alone gets to them."""
    with shared(site, "model.namespace", "namespace") as (target, source):
        data = os.urandom(SIZE)
        snapshot = target / "hub" / make_snapshot(site, source / "hub", data)
        blob = target / (snapshot / "model.safetensors").relative_to(target)
        seen = []
        for job_id in (next(JOBS), next(JOBS), next(JOBS)):
            variables = site.variables(job_id, SLURM_JOB_COMMENT=f"warmstart: model={snapshot}")
            assert site.run_hook("prolog", variables).returncode == 0
            with a_namespace(site) as namespace:
                assert run_hook(site, job_id, namespace) == []
                kind = as_alice(site, namespace, "/usr/bin/stat", "-L", "-f", "-c", "%T", blob)
                read = as_alice(site, namespace, "/usr/bin/stat", "-L", "-c", "%A %U", blob)
                seen.append((kind.strip().removesuffix("blk"), read.strip()))
                site.wait_imports()
                assert site.run_hook("epilog", variables).returncode == 0
        assert site.leftovers() == []
    site.constant.rmdir()
    assert [kind == "fuse" for kind, _ in seen] == [True, True, False]
    assert seen[-1][1] == "-r--r--r-- root"
    assert ALICE in seen[0][1]
