"""`warmstart adopt`: take over an image that a launcher left."""

from __future__ import annotations

from collections.abc import Iterator

import click

from warmstart.cli.images import obtain
from warmstart.cli.output import json_option
from warmstart.errors import UserError
from warmstart.host.deadline import Deadline
from warmstart.images.imports import making
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import Reference
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.policy.match import Grant
from warmstart.request import Request


class NothingToAdopt(UserError):
    """No launcher's image can be taken over for a reference."""

    code = "nothing-to-adopt"
    template = "image {image} is not adopted: {problem}"
    hint = "launchers.adopt in the policy names directories and owners (docs/wings/launchers.md)"


@click.command()
@click.argument("reference")
@json_option
@click.pass_obj
def adopt(installation: Installation, reference: str, as_json: bool) -> None:
    """Copy the image that another launcher left for REFERENCE in one of the policy's directories. For root.

    The image may be of any age, whereas jobs adopt only images no older than images.tag_ttl.

    Exit status: 0 the image is in the store; 1 no image may be adopted; 2 wrong usage.
    """
    obtain(installation, reference, "adopting", adopted, as_json)


def adopted(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Adopt the image that a launcher left for a tag, however old it is. Raises `NothingToAdopt`."""
    image = making.adopt(reference, site, deadline)
    if isinstance(image, str):
        problem = image or "the policy names no directory that has it, or its name could mean another image, too"
        raise NothingToAdopt(image=reference.canonical(), problem=problem)
    return image


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say nothing of a job."""
    yield from ()
