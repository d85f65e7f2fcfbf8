"""Triton's entries from one job's cache to another's: harvested, seeded, and naming the second job's path.

They need root and squashfs-tools but no cluster: the steps run as in a hook, with real uids.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.cache_files import TRITON_RELEASES, triton_kernel
from tests.support.requirements import need_root_and_mksquashfs
from tests.support.runs import a_context, a_policy, a_record
from warmstart.host.files import ensure_path
from warmstart.host.identity import Identity
from warmstart.profiles import triton
from warmstart.steps import harvest, seed, workspace
from warmstart.steps.contract import Context, Outcome
from warmstart.steps.seed import SeedFailed

UID = 64201
SCOPE = f"user-{UID}-ws-alice"
MTIME = 1_700_000_000_000_000_000


@pytest.fixture(autouse=True)
def capable() -> None:
    """Skip, or fail in CI, if this machine cannot run these tests."""
    need_root_and_mksquashfs()


def a_run(base: Path, run_id: str) -> Context:
    """Return the context of a run whose workspace is made, with a directory for Triton."""
    record = a_record(
        run_id=run_id,
        uid=UID,
        gid=UID,
        workspace=f"{base}/workspace",
        publish_scope=SCOPE,
        read_scopes=[SCOPE],
    )
    ensure_path(f"{base}/store/artifacts", 0o700)
    policy = a_policy(base, validate_user=Identity("nobody", 65534, 65534))
    context = a_context(base, record=record, policy=policy)
    outcome = workspace.run(context, workspace.Options(("triton",)))
    return context._replace(record=record._replace(**outcome.record))


def seeded(context: Context) -> tuple[Context, Outcome]:
    """Seed. Return the context of the next steps."""
    outcome = seed.run(context, seed.Options(("triton",)))
    return context._replace(record=context.record._replace(**outcome.record)), outcome


def cache_of(context: Context) -> Path:
    """Return Triton's directory in the job's cache."""
    return Path(context.record.cache) / "triton"


def published(base: Path) -> None:
    """Let a first job compile the kernels of all releases, and harvest it."""
    context, _ = seeded(a_run(base, "aaaaaaaa"))
    for release in TRITON_RELEASES:
        for name, content in triton_kernel(release).items():
            path = cache_of(context) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            os.utime(path, ns=(MTIME, MTIME))
            for made in (path, path.parent):
                os.chown(made, UID, UID)
    options = harvest.Options(30, 1 << 30, 1000)
    outcome = harvest.run(context, options)
    assert (outcome.detail["entries"], outcome.degraded) == (len(TRITON_RELEASES), [])


def test_a_second_job_finds_its_own_path_in_each_group(base: Path) -> None:
    """Every file of a seeded group is named below the second job's cache, exists, and belongs to its user."""
    published(base)
    context, outcome = seeded(a_run(base, "bbbbbbbb"))
    assert outcome.degraded == []
    groups = list(cache_of(context).glob("*/__grp__*.json"))
    assert len(groups) == len(TRITON_RELEASES)
    for group in groups:
        assert group.stat().st_uid == UID
        for name, path in json.loads(group.read_bytes())["child_paths"].items():
            assert Path(path) == group.parent / name
            assert Path(path).is_file()


def test_what_cannot_be_relocated_is_not_seeded_at_all(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry with another job's path is worse than none: the profile is cold, for lack of disk space only."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    published(base)
    monkeypatch.setattr(triton, "replace_file", full)
    context, outcome = seeded(a_run(base, "bbbbbbbb"))
    assert [type(error) for error in outcome.degraded] == [SeedFailed]
    assert "No space left" in str(outcome.degraded[0])
    assert not cache_of(context).exists() or not list(cache_of(context).iterdir())
    assert context.record.seeded["triton"].entries == []


def test_a_directory_that_the_users_other_job_swaps_is_not_followed(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link planted between extraction and relocation: nothing outside is written."""
    published(base)
    outside = base / "outside"
    outside.mkdir()
    os.chown(outside, UID, UID)
    victim = outside / "__grp__k.json"
    victim.write_text('{"child_paths": {"k": "/old/k"}}')
    os.chown(victim, UID, UID)
    relocate = seed._Seeding._relocated  # the moment between two calls has no other name

    def swapped(seeding: seed._Seeding, source: seed._Source, cache: int) -> None:
        entry = f"/proc/self/fd/{cache}/{source.profile.name}/{source.entries[0]}"
        shutil.rmtree(entry)
        os.symlink(outside, entry)
        relocate(seeding, source, cache)

    monkeypatch.setattr(seed._Seeding, "_relocated", swapped)
    _, outcome = seeded(a_run(base, "bbbbbbbb"))
    assert [type(error) for error in outcome.degraded] == [SeedFailed]
    assert victim.read_text() == '{"child_paths": {"k": "/old/k"}}'
