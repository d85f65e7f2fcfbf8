"""A directory of a user's on a shared file system, with a policy by which jobs are shown copies of what is below it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lib import mounts, spank
from tests.lib.accounts import ALICE
from tests.lib.site import Site


@contextmanager
def shared(
    site: Site, name: str, way: str = "spank", *, key: str, squashed: bool = False, **policy: str
) -> Iterator[tuple[Path, Path]]:
    """Yield the directory as nodes see it, and as the file server does; `key` is the policy's, and `way` that to jobs.

    If it is `squashed`, it refuses all uids but ws-alice's, root's too.
    """
    base, account = site.cluster.base, site.cluster.account(ALICE)
    source, target = base / f"{name}.source", base / f"{name}.shared"
    source.mkdir(mode=0o700)
    os.chown(source, account.uid, account.gid)
    with ExitStack() as stack:
        mounted = mounts.squashed(base, source, target, account) if squashed else mounts.served(base, source, target)
        stack.enter_context(mounted)
        if way == "spank":
            spank.need()
            stack.enter_context(spank.loaded(site))
        site.write_policy(f'{key}: {{prefixes: ["{target}"]}}\nrules: [{{name: everyone}}]\n', constant=way, **policy)
        stack.callback(site.write_policy)
        yield target, source
        site.cluster.wait_idle()
