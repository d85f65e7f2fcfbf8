"""Private images: the site's credentials fetch them for those they are bound to, and for nobody else.

The store refuses root's uid, so tests look into the directory behind it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib import registries
from tests.lib.accounts import ALICE, BOB, STORE
from tests.lib.registries import PASSWORD
from tests.lib.registry import build_image
from tests.lib.site import Site

pytestmark = pytest.mark.threat(10)


@pytest.fixture(scope="module")
def private(installed: Site) -> Iterator[str]:
    """Return HOST:PORT of a registry that requires a user and a password, with `team/secret:1`."""
    base = installed.cluster.base
    with registries.private(base) as host:
        layout = build_image(base / f"private-image-{host.rpartition(':')[2]}", {"/etc/secret": "secret\n"})
        registries.push_private(host, f"oci:{layout}:latest", "team/secret:1")
        yield host


class Shared(NamedTuple):
    """The store of the policy, and the same directory where root may look."""

    path: Path
    source: Path


@pytest.fixture
def store(site: Site, request: pytest.FixtureRequest) -> Iterator[Shared]:
    """Return an empty store that refuses every uid but its owner's."""
    with site.squashed_store(request.node.name) as (path, source):
        yield Shared(path, source)


@pytest.fixture
def team(site: Site, store: Shared, private: str) -> Site:
    """Return the site with that store and credentials at that registry, bound to alice."""
    file = site.etc / "credentials.json"
    auth = base64.b64encode(f"carol:{PASSWORD}".encode()).decode()
    file.write_text(json.dumps({"auths": {private: {"auth": auth}}}))
    file.chmod(0o600)
    site.write_policy(store=str(store.path))
    policy = site.etc / "policy.yaml"
    text = policy.read_text()
    more = f"""\
  credentials:
    file: {file}
    repositories: [{{name: team, repository: "{private}/team/*", match: {{user: {ALICE}}}}}]
"""
    text = text.replace(f'["http://{site.registry}"]', f'["http://{site.registry}", "http://{private}"]')
    policy.write_text(text.replace("  tag_ttl: 24h\n", f"  tag_ttl: 24h\n{more}"))
    return site


def prepared(site: Site, image: str, user: str, job_id: int) -> dict[str, str]:
    """Run the prolog of a job that requests an image. Return its task prolog's output, and `verdict`."""
    variables = site.variables(job_id, user=user, SLURM_JOB_COMMENT=f"warmstart: image={image}")
    done = site.run_hook("prolog", variables)
    assert done.returncode == 0, done.stderr
    view = site.view("n1", job_id)
    if (view / "verdict").exists():
        return {"verdict": (view / "verdict").read_text()}
    lines = (view / "environment").read_text().splitlines()[3:]
    return dict(line.removeprefix("!").split("=", 1) for line in lines)


def read_by(site: Site, user: str, path: str | Path) -> bool:
    """Return whether a user can read a file."""
    return site.cluster.run(["/usr/bin/head", "-c1", str(path)], user, node="n1").returncode == 0


def test_whoever_it_is_bound_to_has_a_copy_of_his_own(team: Site, store: Shared, private: str) -> None:
    """Fetched once, kept where only the store's owner reads, copied for each job."""
    image = f"{private}/team/secret:1"
    for job_id, imports in ((7001, 1), (7002, 0)):
        seen = Path(prepared(team, image, ALICE, job_id)["WARMSTART_IMAGE"])
        path = team.on_host("n1", seen)
        try:
            assert seen.parent.parent == team.workspace
            assert (path.owner(), path.stat().st_mode & 0o7777) == (ALICE, 0o400)
            listed = subprocess.run(["unsquashfs", "-l", path], check=True, capture_output=True, text=True).stdout
            assert "/etc/secret" in listed
            assert read_by(team, ALICE, seen)
            assert not read_by(team, BOB, seen)
            team.wait_imports()  # the import's own events may come after the hook
            assert len(team.events(job_id, "image.imported")) == imports
            assert len(team.images(job_id, "reused")) == 1 - imports
            if job_id == 7002:
                importer = team.cluster.prefix / "libexec" / "warmstart" / "pyxis-importer"
                environment = {"SLURM_JOB_ID": "7002", "SLURM_STEP_ID": "0"}
                argv = [str(importer), "get", f"docker://{image}"]
                got = team.cluster.run(argv, ALICE, env=environment, node="n1")
                assert got.stdout == f"{seen}\n", got.stderr
        finally:
            team.run_hook("epilog", team.variables(job_id))
        assert not path.exists()
    kept = list((store.source / "private").rglob("*.sqsh"))
    assert [path.relative_to(store.source).parts[:3] for path in kept] == [("private", "team", "images")]
    assert (store.source / "private").stat().st_mode & 0o7777 == 0o700
    assert (store.source / "private").owner() == STORE
    for user in (ALICE, BOB):
        assert not read_by(team, user, kept[0])


def test_nobody_else_gets_it_by_tag_or_digest(team: Site, store: Shared, private: str) -> None:
    """A hit in a scope that the job cannot read is a miss, and the site's credentials are not used for it."""
    mine = Path(prepared(team, f"{private}/team/secret:1", ALICE, 7003)["WARMSTART_IMAGE"])
    try:
        (kept,) = (store.source / "private").rglob("*.sqsh")
        digest = f"sha256:{kept.name.partition('.')[0]}"
        for job_id, reference in ((7004, "team/secret:1"), (7005, f"team/secret@{digest}")):
            try:
                verdict = prepared(team, f"{private}/{reference}", BOB, job_id)
                assert "refuses access" in verdict["verdict"], verdict
            finally:
                team.run_hook("epilog", team.variables(job_id, user=BOB))
        # His refusal is not remembered for those who may.
        again = prepared(team, f"{private}/team/secret:1", ALICE, 7006)
        assert "WARMSTART_IMAGE" in again, again
        team.run_hook("epilog", team.variables(7006))
    finally:
        team.run_hook("epilog", team.variables(7003))
    assert not mine.exists()


def test_credentials_are_nowhere(team: Site, store: Shared, private: str) -> None:
    """Neither in the audit, the store, the compiled policy nor the import's leftovers."""
    shown = prepared(team, f"{private}/team/secret:1", ALICE, 7003)
    team.run_hook("epilog", team.variables(7003))
    secret = base64.b64encode(f"carol:{PASSWORD}".encode()).decode()
    places = [json.dumps(shown), json.dumps(team.audit()), (team.var / "policy.json").read_text()]
    places += [path.read_text() for path in store.source.rglob("*.json")]
    assert not [text[:80] for text in places if PASSWORD in text or secret in text]
    assert [name for name in os.listdir(team.workspace / "n1") if name.startswith("import.")] == []


def test_a_file_that_others_can_read_is_not_used(team: Site, private: str) -> None:
    """The job gets a sentence that does not show the file's contents."""
    (team.etc / "credentials.json").chmod(0o644)
    try:
        verdict = prepared(team, f"{private}/team/secret:1", ALICE, 7003)["verdict"]
    finally:
        team.run_hook("epilog", team.variables(7003))
    assert "must belong to root, mode 0600" in verdict
    assert PASSWORD not in verdict
