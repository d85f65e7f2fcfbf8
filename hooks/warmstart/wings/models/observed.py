"""What an observed job would read of its models: whether this node has copies of them as they are now."""

from __future__ import annotations

from warmstart.entry.observe import Observed
from warmstart.errors import WarmstartError
from warmstart.host.identity import Identity
from warmstart.wings.models import events, shelf, step
from warmstart.wings.models.client import ModelClient
from warmstart.wings.models.look import shared_by, whose_of
from warmstart.wings.models.offered import WAYS, WORD, offered


def look(observed: Observed) -> None:
    """Audit the models that the job names, if this node could show it copies. Looks with the rights of its user."""
    hook, requested = observed.hook, observed.planned.requested
    policy, job = hook.policy, hook.job
    if WORD not in requested.words or policy.constant_path not in WAYS:
        return
    wanted = step.wanted(policy, job, observed.grant, requested)
    for model in wanted.models:
        path, is_there, files, size, reason = model, False, 0, 0, ""
        try:
            with ModelClient(Identity(job.user, job.uid, job.gid), model) as client:
                seen = client.look(offered(policy).prefixes, observed.deadline)
            rule, _ = shared_by(seen, wanted.shared)
            path, files, size = seen.path, len(seen.files), seen.size
            is_there = shelf.is_on(policy, hook.paths, seen.key(whose_of(rule, job.uid)))
        except WarmstartError as error:
            reason = error.code
        hook.audit.emit(events.MODEL_OBSERVED, model=path, found=is_there, files=files, bytes=size, reason=reason)
