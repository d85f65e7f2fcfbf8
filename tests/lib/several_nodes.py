"""Jobs of real Slurm on several nodes: a profile of which all show the same, and what is told of each node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.lib.shell_profiles import profiles

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lib.site import Site

RULES = f"{profiles(alpha='*.bin')}    in_step: true\nrules: [{{name: all, profiles: [alpha]}}]\n"


def agreed(site: Site, job_id: int) -> dict[str, dict[str, Any]]:
    """Return what each node's log says of the agreement: profiles that are cold, why, and for which nodes."""
    return {
        line["node"]: {name: cache for name, cache in line["caches"].items() if "nodes" in cache}
        for line in site.events(job_id, "hook.finished")
        if "agreed_ms" in line
    }


def left(site: Site, job_id: int) -> list[Path]:
    """Return what the nodes of a job have left of their meeting in the store."""
    return [*(site.store / "runs").glob(f"*.{job_id}.*")]


def handed_in(site: Site, job_id: int) -> list[dict[str, Any]]:
    """Return the parts that a job's nodes handed in."""
    return [cache for cache in site.caches(job_id) if "handed_in" in cache]


def _caches(site: Site, job_id: int) -> list[dict[str, Any]]:
    lines = [*site.events(job_id, "hook.finished"), *site.events(job_id, "harvest.finished")]
    return [
        {**cache, "profile": name, "node": line["node"]}
        for line in lines
        for name, cache in line.get("caches", {}).items()
    ]
