"""Parse image references. Only text rendered from the parsed fields is used anywhere else, never the user's own.

Hot path. Grammar: the OCI distribution specification and distribution/reference (docker.io defaults), plus
enroot's `[docker://]REGISTRY#NAME[:TAG]`. Stricter than both: no IPv6 literal, sha256 only, and a user name
(`docker://USER@REGISTRY#NAME`) only where the caller splits it off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from warmstart.errors import UserError

LONGEST = 512  # characters
LONGEST_REPOSITORY = 255  # distribution/reference, NameTotalLengthMax
SCHEME = "docker://"
DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_REGISTRY = re.compile(rf"{_LABEL}(?:\.{_LABEL})*(?::[1-9][0-9]{{0,4}})?\Z")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_LOGIN = re.compile(r"(?:docker://)?([A-Za-z0-9._$-]{1,128})@(?=[^@]*#)")


class ImageReferenceInvalid(UserError):
    """The text does not name an image in a registry."""

    code = "image-reference-invalid"
    template = "{text} is not an image reference: {problem}"
    hint = "write REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST"


class ImageRefused(UserError):
    """The registry is not in the policy's allow-list (images.registries)."""

    code = "image-refused"
    template = "image {image} is refused: registry {registry} is not one that this cluster allows ({allowed})"
    hint = "use an image from an allowed registry, or ask the administrators to allow this one"


class Reference(NamedTuple):
    """An image in a registry; exactly one of `tag` and `digest` is set, the other is ""."""

    registry: str  # HOST or HOST:PORT, lower case
    repository: str
    tag: str
    digest: str  # sha256:HEX; a tag beside a digest is dropped, since the digest decides

    def canonical(self) -> str:
        """Return the canonical text: the only spelling that is shown, stored and passed to importers."""
        return f"{self.registry}/{self.repository}{f'@{self.digest}' if self.digest else f':{self.tag}'}"

    def at(self, digest: str) -> str:
        """Return the canonical reference by digest to an image of this repository."""
        return f"{self.registry}/{self.repository}@{digest}"


class PyxisImage(NamedTuple):
    """The image of pyxis's `--container-image`, which pyxis or its importer can import as the job's user.

    `has_login`: the user said whose credentials to use. `user_scope` is the user's own scope in the store.
    """

    reference: Reference
    has_login: bool
    user_scope: str


def parse(text: str) -> Reference:
    """Parse a reference from a user or the policy; `ImageReferenceInvalid` if the text is not one."""
    if len(text) > LONGEST:
        raise _invalid(text, f"longer than {LONGEST} characters")
    rest = text.removeprefix(SCHEME)
    rest, at, digest = rest.partition("@")
    if at and not is_digest(digest):
        if "#" in digest or "/" in digest:
            raise _invalid(text, "a user name is not allowed in it")
        raise _invalid(text, "what follows the @ is not sha256: and 64 hexadecimal digits")
    registry, repository = _split_registry(text, rest)
    repository, colon, tag = repository.partition(":")
    if colon and not _TAG.match(tag):
        raise _invalid(text, "what follows the last colon is not a tag")
    registry = _registry(text, registry)
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if len(repository) > LONGEST_REPOSITORY or not _REPOSITORY.match(repository):
        raise _invalid(text, "the image's name is not lower-case letters, digits and single separators")
    return Reference(registry, repository, "" if digest else tag or DEFAULT_TAG, digest)


def split_login(text: str) -> tuple[str, str]:
    """Return the user name of enroot's `[docker://]USER@REGISTRY#NAME`, "" if there is none, and the text without it.

    The name says which of a user's own credentials to use. It can be an e-mail address in enroot, but not here.
    """
    match = _LOGIN.match(text)
    return (match.group(1), text[match.end() :]) if match else ("", text)


def is_digest(text: str) -> bool:
    """Return whether the text is a digest that warmstart accepts: `sha256:` and 64 lower-case hexadecimal digits."""
    return _DIGEST.match(text) is not None


def check_allowed(reference: Reference, registries: Iterable[str]) -> None:
    """Raise `ImageRefused` unless the reference's registry is one of `registries` (HOST or HOST:PORT)."""
    allowed = [registry.lower() for registry in registries]
    if reference.registry not in allowed:
        names = ", ".join(allowed) or "none"
        raise ImageRefused(image=reference.canonical(), registry=reference.registry, allowed=names)


def _split_registry(text: str, rest: str) -> tuple[str, str]:
    if "#" in rest:  # enroot's form
        registry, _, repository = rest.partition("#")
        if not registry:
            raise _invalid(text, "there is no registry before the #")
        return registry, repository
    first, slash, repository = rest.partition("/")
    if slash and _is_host(first):
        return first, repository
    return DOCKER_HUB, rest


def _is_host(name: str) -> bool:
    """Return whether this is a host and not the first part of a Docker Hub name; as distribution/reference does."""
    return "." in name or ":" in name or name == "localhost"


def _registry(text: str, name: str) -> str:
    registry = name.lower()
    port = registry.partition(":")[2]
    # isascii: lower() maps some other letters to ASCII ones (the Kelvin sign to k).
    plain = name.isascii() and len(registry) <= 259 and _REGISTRY.match(registry)
    # A bare word before enroot's # would later be read as the first part of a Docker Hub name.
    if not plain or int(port or 1) > 65535 or not _is_host(registry):
        raise _invalid(text, "the registry is not HOST or HOST:PORT")
    # Other names of Docker Hub.
    return DOCKER_HUB if registry in {"index.docker.io", "registry-1.docker.io"} else registry


def _invalid(text: str, problem: str) -> ImageReferenceInvalid:
    return ImageReferenceInvalid(text=ascii(text[:120]), problem=problem)
