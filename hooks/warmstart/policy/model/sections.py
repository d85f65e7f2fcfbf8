"""Keys about the site as a whole: places, bounds, what slurmctld makes sure of, what a failure does."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from warmstart.policy.model.scalars import Account, Duration, Path, Section, Size, default


class Paths(Section):
    """Where things are."""

    workspace: Path = Field(
        default="/var/tmp/warmstart",
        description="Node-local disk for the jobs' workspaces; its parents must be root's.",
    )
    store: Path = Field(
        description="Directory on the shared file system that holds images and bundles; store_user owns it."
    )
    audit: Path = Field(
        default="/var/log/warmstart/audit.jsonl",
        description="The audit log of this node: one JSON line for every decision.",
    )
    cache: Path = Field(
        default="/var/cache/warmstart",
        description="The constant path: where jobs see their cache, in containers and where `constant_path` says so. "
        "An empty directory of root's.",
    )
    scontrol: Path = Field(
        default="/usr/bin/scontrol",
        description="Gives a node that must drain a reason that people understand; tells `warmstart maintain` "
        "whether a job is over, and on the controller a job's QOS. squeue is looked for beside it.",
    )


class Seed(Section):
    """Bounds on what the prolog brings into a job's cache."""

    fetch_budget: Duration = default("10s", "Time for fetching bundles to the node, per job.")
    max_fetch: Size = default("1GiB", "Bytes of bundles fetched to the node, per job.")
    keep: Size = default("20GiB", "Copies of bundles that maintenance leaves on the node, the last used.")


class Harvest(Section):
    """Bounds on what the epilog takes out of a job's cache."""

    budget: Duration = default("30s", "How long an epilog may hold the node for the harvest.")
    max_size: Size = default("5GiB", "Bytes harvested from one job.")
    max_entries: int = Field(default=50_000, ge=1, description="Entries harvested from one job.")
    spool: Size = default("5GiB", "What the store does not take is kept on the node, up to this much.")
    deferred: int = Field(
        default=8,
        ge=0,
        description="Deferred harvests on a node: runs whose epilogs had no time, and whose caches wait there for "
        "`warmstart maintain`.",
    )
    only_successful: bool = Field(
        default=False,
        description="Harvest only jobs that ended well. Each epilog then asks the controller once.",
    )


class Maintenance(Section):
    """Which bundles maintenance leaves in the store."""

    keep: Duration = default("90d", "A bundle that no node has used for so long is removed.")
    per_user: Size = default("50GiB", "Bundles in one user's scope; those unused for longest go first.")
    per_account: Size = default("500GiB", "Bundles in one account's scope.")
    per_site: Size = default("2TiB", "Bundles in the site's scope.")


class Limits(Section):
    """Bounds on who is served."""

    min_uid: int = Field(default=1000, ge=1, description="Jobs of a lower uid get nothing and give nothing.")
    keep: Duration | None = Field(
        default=None,
        description="How long a job's TMPDIR stays on the node after it, where the job asks for it "
        "(--warm-keep). null: no job may.",
    )


class Trust(Section):
    """What this site's slurmctld makes sure of."""

    account: Literal["claimed", "enforced"] = Field(
        default="claimed",
        description="`enforced` only where AccountingStorageEnforce has associations: "
        "otherwise any user may write any account into a job.",
    )
    qos: Literal["claimed", "enforced"] = Field(
        default="claimed",
        description="`enforced` only where AccountingStorageEnforce has qos: "
        "otherwise a job's QOS is not one that its user was given.",
    )


class Slurmctld(Section):
    """The optional hooks on the controller, which tell the nodes what slurmd does not (docs/slurmctld-hooks.md)."""

    spec_directory: Path | None = Field(
        default=None,
        description="Directory on the shared filesystem where they leave job specs; `user` owns it, 0755. "
        "Without it nodes look for none.",
    )
    user: Account = Field(default="slurm", description="SlurmUser: a spec of any other owner is not believed.")
    deadline: Duration = default("2s", "How long a job waits for slurmctld's answer, and a node's prolog for the spec.")
    conf: Path | None = Field(
        default=None, description="slurm.conf on the controller, where Slurm does not find it by itself."
    )


class OnError(Section):
    """What a failure does to the job; only a fault of the node itself drains it."""

    store: Literal["run-cold", "fail-job"] = Field(
        default="run-cold",
        description="The shared store does not work: the job runs with a cold cache, or fails with a reason.",
    )
    image: Literal["fail-job", "run-without"] = Field(
        default="fail-job",
        description="The image is not available: the job fails with a reason, or runs without WARMSTART_IMAGE.",
    )
    bug: Literal["run-without", "fail-job"] = Field(
        default="run-without",
        description="A bug in warmstart: the job runs without warmstart, or fails with a reason.",
    )
