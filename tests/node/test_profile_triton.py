"""Triton's entries from one job's cache to another's: harvested, and seeded as they are, at the path that they name.

They need root and squashfs-tools but no cluster: the steps run as in a hook, with real uids.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.lib.cache_files import TRITON_RELEASES, triton_kernel
from tests.lib.requirements import need_root_and_mksquashfs
from tests.lib.runs import a_context, a_policy, a_record, events
from warmstart.host.files import ensure_path
from warmstart.host.identity import Identity
from warmstart.steps import harvest, seed, workspace
from warmstart.steps.contract import Context, Outcome

UID = 64201
SCOPE = f"user-{UID}-ws-alice"
MTIME = 1_700_000_000 * 10**9


@pytest.fixture(autouse=True)
def capable() -> None:
    """Skip, or fail in CI, if this machine cannot run these tests."""
    need_root_and_mksquashfs()


def a_run(base: Path, run_id: str) -> Context:
    """Return the context of a run whose workspace is made, with a directory for Triton."""
    record = a_record(
        run_id=run_id,
        restarts=int(run_id, 16),
        uid=UID,
        gid=UID,
        workspace=f"{base}/workspace",
        publish_scope=SCOPE,
        read_scopes=[SCOPE],
    )
    ensure_path(f"{base}/store/artifacts", 0o700)
    policy = a_policy(base, validate_user=Identity("nobody", 65534, 65534), constant_path="enroot")
    context = a_context(base, record=record, policy=policy)
    outcome = workspace.run(context, workspace.Options(("triton",)))
    return context._replace(record=record._replace(**outcome.record))


def seeded(context: Context) -> tuple[Context, Outcome]:
    """Seed. Return the context of the next steps."""
    outcome = seed.run(context, seed.Options(("triton",)))
    return context._replace(record=context.record._replace(**outcome.record)), outcome


def cache_of(context: Context) -> Path:
    """Return Triton's directory in the job's cache, as the node has it."""
    return Path(context.record.run_directory) / "cache/triton"


def built(context: Context, shown: str) -> None:
    """Let a job compile the kernels of all releases; it sees Triton's directory at `shown`."""
    for release in TRITON_RELEASES:
        for name, content in triton_kernel(release).items():
            path = cache_of(context) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            if "__grp__" in name:
                children = json.loads(content)["child_paths"]
                path.write_text(json.dumps({"child_paths": {n: f"{shown}/{path.parent.name}/{n}" for n in children}}))
            os.utime(path, ns=(MTIME, MTIME))
            for made in (path, path.parent):
                os.chown(made, UID, UID)


def harvested(context: Context) -> tuple[int, dict[str, int]]:
    """Harvest; return how many entries were published, and how many were refused for which reason."""
    outcome = harvest.run(context, harvest.Options(30, 1 << 30))
    assert outcome.degraded == []
    reasons = {name: count for event in events(context, "entry.rejected") for name, count in event["reasons"].items()}
    return outcome.detail["entries"], reasons  # type: ignore[return-value]


def test_a_second_job_finds_them_as_they_are(base: Path) -> None:
    first, _ = seeded(a_run(base, "aaaaaaaa"))
    shown = f"{first.record.cache}/triton"
    built(first, shown)
    assert harvested(first) == (len(TRITON_RELEASES), {})
    context, outcome = seeded(a_run(base, "bbbbbbbb"))
    assert outcome.degraded == []
    groups = list(cache_of(context).glob("*/__grp__*.json"))
    assert len(groups) == len(TRITON_RELEASES)
    for group in groups:
        for name, path in json.loads(group.read_bytes())["child_paths"].items():
            assert path == f"{shown}/{group.parent.name}/{name}"
            assert (group.parent / name).is_file()
    assert list(Path(context.record.run_directory, ".seed/triton/upper").iterdir()) == []
    assert harvested(context) == (0, {})


def test_what_was_built_at_a_runs_own_path_is_refused(base: Path) -> None:
    """By a job that did not see its cache at the constant path: for all others its groups are misses."""
    context, _ = seeded(a_run(base, "aaaaaaaa"))
    built(context, str(cache_of(context)))
    assert harvested(context) == (0, {"made-elsewhere": len(TRITON_RELEASES)})


def test_a_group_that_names_another_path_is_replaced(base: Path) -> None:
    """It is a miss at the constant path, so the job builds the kernel again: its version takes the place."""
    first, _ = seeded(a_run(base, "aaaaaaaa"))
    built(first, "/elsewhere")
    assert harvested(first) == (len(TRITON_RELEASES), {})
    second, _ = seeded(a_run(base, "bbbbbbbb"))
    built(second, f"{second.record.cache}/triton")
    assert harvested(second) == (len(TRITON_RELEASES), {})
    third, _ = seeded(a_run(base, "cccccccc"))
    for group in cache_of(third).glob("*/__grp__*.json"):
        assert f'"{third.record.cache}/triton/' in group.read_text()
