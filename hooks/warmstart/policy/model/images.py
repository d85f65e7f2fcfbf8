"""Keys about images: which, from where, for whom."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from warmstart.policy.model.match import Match
from warmstart.policy.model.scalars import (
    Account,
    Destination,
    Duration,
    Glob,
    Label,
    Path,
    Percent,
    Proxy,
    Registry,
    Section,
    Size,
    default,
)


class Adopt(Section):
    """A directory from which images that other launchers made are taken over."""

    directory: Path = Field(description="Nobody but its owners, store_user and root may write it or a parent.")
    owners: Annotated[list[Account], Field(min_length=1)] = Field(
        description="Users whose files are taken; each must exist on the node."
    )


class Keep(Section):
    """How much of the store's file system images may take, and which go first."""

    high: Percent = default("85%", "Share of the store's file system in use above which images are evicted.")
    low: Percent = default("70%", "Share at which eviction ends; least recently used first.")
    floor: Percent = default("2%", "Share that stays free: an import that would take it fails with store-full.")
    lease: Duration = default(
        "7d",
        "How long a node's last use protects an image from eviction; longer than the longest job.",
    )
    user: Size | None = Field(
        default=None,
        description="Bytes of images that one user's jobs may have brought in; the user's own oldest ones go first.",
    )
    account: Size | None = Field(default=None, description="The same for an account. Needs trust.account: enforced.")


class PrivateRepository(Section):
    """Images that the site's own credentials fetch, and the jobs that may have them."""

    name: Label = Field(description="The directory of the store that holds them; unique.")
    repository: Glob = Field(description="REGISTRY/REPOSITORY, a glob from the first slash on: reg.example.com/team/*")
    match: Match = Field(description="The jobs that may read them: by verified attributes alone.")


class Credentials(Section):
    """The site's own credentials at registries; docs/private-images.md."""

    file: Path = Field(description="What `skopeo login --authfile` writes; root's, 0600, not below the policy's store.")
    repositories: Annotated[list[PrivateRepository], Field(min_length=1)] = Field(
        description="What they are used for, and for whom. The first that fits a job and an image counts."
    )


class Images(Section):
    """Which images may be imported, and how."""

    importer: Literal["auto", "enroot", "oci"] = Field(
        default="auto",
        description="What imports images: `enroot`; `oci` (skopeo, umoci, mksquashfs); "
        "`auto`: enroot where /usr/bin/enroot is, else oci.",
    )
    registries: list[Registry] = Field(
        default_factory=list,
        description="Allow-list: an image of any other registry is refused. Docker Hub is docker.io.",
    )
    insecure: list[Registry] = Field(
        default_factory=list,
        description="Of `registries`, those reached over plain http. For test registries only.",
    )
    hosts: list[Destination] = Field(
        default_factory=list,
        description="Other hosts of the site that a registry may send an import to (mirrors, token services, storage). "
        "Public addresses need no entry; private ones, loopback and link-local are refused without one.",
    )
    proxy: Proxy | None = Field(
        default=None,
        description="The site's HTTP proxy, for imports: HOST:PORT. Hooks inherit no variable that says it.",
    )
    max_size: Size = default(
        "100GiB", "Bytes that one import may take on a node: its layers, what they expand to, and the result."
    )
    max_files: int = Field(
        default=1_000_000, ge=1000, description="Files and directories that one import may make on a node."
    )
    tag_ttl: Duration = default("24h", "How long a tag is trusted before the registry is asked again.")
    wait: Duration = default(
        "4m",
        "How long a job waits while another one imports its image; below Slurm's PrologEpilogTimeout.",
    )
    remember_failures: Duration = default(
        "30s",
        "How long a registry's definitive answer (no such image, no access), or its silence about a tag that is "
        "known, is not asked for again.",
    )
    verify: Literal["superblock", "full"] = Field(
        default="superblock",
        description="What is looked at when an image is used: its superblock, or every byte (once per file).",
    )
    lock: Literal["private", "beside"] = Field(
        default="private",
        description="`beside`: an import also takes NAME.sqsh.lock in `names`, as flock(1) launchers do.",
    )
    names: Path | None = Field(
        default=None,
        description="Directory where other launchers look for images as NAME.sqsh; links are kept there "
        "if only store_user can write it.",
    )
    adopt: list[Adopt] = Field(
        default_factory=list,
        description="Where images that other launchers made are taken over from, by copy, for references by tag.",
    )
    keep: Keep = Field(default_factory=Keep, description="Which images stay when space gets short.")
    credentials: Credentials | None = Field(
        default=None, description="The site's own credentials, and the private images that they fetch."
    )
