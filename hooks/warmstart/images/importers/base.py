"""What an importer is, and what may go wrong with one.

An importer is given fields, never a user's text, and a scratch directory of its own account; it leaves one
squashfs there and is believed in nothing: `possession` and `validity` look at what it left.
"""

from __future__ import annotations

from typing import Protocol

from warmstart.errors import StoreError, UserError
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images.reference import Reference
from warmstart.images.scratch import Scratch


class ImageNotFound(UserError):
    """The registry says that there is no such image, or hides it from who has no access."""

    code = "image-not-found"
    template = "image {image} does not exist, or its registry does not show it to this cluster"
    hint = "check the name and the tag; private images need credentials"


class ImageForbidden(UserError):
    """The registry demands credentials, or refuses those that the cluster has."""

    code = "image-forbidden"
    template = "image {image}: its registry refuses access ({problem})"
    hint = "private images need credentials, the site's or your own"


class RegistryUnreachable(StoreError):
    """The registry does not answer, answers too late, or asks to come back later."""

    code = "registry-unreachable"
    template = "image {image}: its registry does not serve it now ({problem})"
    hint = "is the registry up, and reachable from this node? rate limits pass by themselves"


class RedirectRefused(StoreError):
    """A registry sent the import to a place where none may go."""

    code = "redirect-refused"
    template = "image {image}: {problem}"
    hint = "if that host is the site's own (a mirror, a token service, storage), name it in images.hosts"


class ImportFailed(StoreError):
    """A program of the importer failed for another reason."""

    code = "image-import-failed"
    template = "image {image}: {program} failed: {problem}"
    hint = "try the same by hand (docs/images.md, Import by hand)"


class Importer(Protocol):
    """A way from a reference to a squashfs file."""

    @property
    def name(self) -> str:
        """What the policy calls it."""

    @property
    def identity(self) -> Identity:
        """The account that its programs run as."""

    def resolve(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        """Return the digest that the reference has in its registry now (`sha256:HEX`)."""

    def import_image(self, reference: Reference, digest: str, scratch: Scratch, deadline: Deadline) -> str:
        """Make a squashfs of that content; return its file name in the scratch directory.

        No process of the importer is alive when it returns or raises.
        """
