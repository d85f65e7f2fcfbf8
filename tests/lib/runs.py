"""Sample values that unit tests share."""

import json
import os
from pathlib import Path
from typing import Any

from tests.lib import image_site
from tests.lib.policy_site import defaults
from warmstart.audit.line import HOOK_FINISHED
from warmstart.audit.log import Log
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.job import Job
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.run.state import Run
from warmstart.steps.contract import Context, Outcome
from warmstart.store.client import StoreClient

CACHE = "/var/cache/warmstart"


def a_job(**changes: object) -> Job:
    """Return a plain one-node job with some fields changed."""
    job = Job(
        id=7,
        uid=64201,
        gid=64201,
        user="ws-alice",
        node="n1",
        cluster="test",
        partition="main",
        account="",
        nodelist="n1",
        het_id=None,
        comment="",
        pyxis_image="",
    )
    return job._replace(**changes)  # type: ignore[arg-type]


def a_run(**changes: object) -> Run:
    """Return that job's first run, before any step, with some fields of it or of its own caches changed."""
    run = Run(
        run_id="0a1b2c3d",
        job_id=7,
        view_id=7,
        uid=os.getuid(),
        gid=os.getgid(),
        user="ws-alice",
        account="",
        partition="main",
        cluster="test",
        node="n1",
    )
    return changed(run, **changes)


def changed(run: Run, **changes: object) -> Run:
    """Return a run with some fields of it or of its own caches changed."""
    own = {name: changes.pop(name) for name in [*changes] if name not in Run._fields}
    return run._replace(own=run.own._replace(**own), **changes)  # type: ignore[arg-type]


def ran(outcome: Outcome) -> Run:
    """Return the run with what a step has added."""
    assert outcome.run
    return outcome.run


def a_context(root: Path, **changes: object) -> Context:
    """Return a context whose state, store and workspace lie below `root`."""
    paths = NodePaths(str(root / "node"), str(root / "node"), "/nowhere")
    for directory in (paths.root, paths.state, paths.view):
        os.makedirs(directory, mode=0o711, exist_ok=True)
    record = a_run(workspace=f"{root}/workspace")
    os.makedirs(os.path.join(paths.state, str(record.job_id)), mode=0o700, exist_ok=True)
    policy = a_policy(root)
    audit = Log(policy.paths.audit, {"hook": "prolog", "run_id": "0a1b2c3d"})
    store = StoreClient(policy.store_user, policy.paths.store, "n1-0a1b2c3d")
    context = Context(policy, paths, record, audit, after(30), store)
    return context._replace(**changes)  # type: ignore[arg-type]


def a_policy(root: Path, **changes: object) -> Policy:
    """Return a policy without rules whose paths lie below `root`, with some fields changed."""
    me = Identity("me", os.getuid(), os.getgid())
    policy = defaults()
    paths = {"workspace": f"{root}/workspace", "store": f"{root}/store", "audit": f"{root}/audit.jsonl"}
    policy = policy._replace(
        store_user=me,
        import_user=me,
        validate_user=me,
        paths=policy.paths._replace(**paths),
        images=image_site.RULES._replace(registries=("reg.example.com",), tag_ttl=3600),
        harvest=policy.harvest._replace(max_size=1 << 30),
        profiles=(),
    )
    return policy._replace(**changes)  # type: ignore[arg-type]


def events(context: Context, name: str) -> list[dict[str, Any]]:
    """Return the log's lines of one name."""
    log = Path(context.policy.paths.audit)
    lines = log.read_text().splitlines() if log.exists() else []
    return [event for line in lines if (event := json.loads(line))["event"] == name]


def result(context: Context) -> dict[str, Any]:
    """Return what the steps would have in the hook's last line. Writes it."""
    context.audit.finish(outcome="ok")
    return events(context, HOOK_FINISHED)[-1]
