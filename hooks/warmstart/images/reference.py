"""Parse image references. Only text rendered from the parsed fields is used anywhere else, never the user's own.

Hot path. Grammar: the OCI distribution specification and distribution/reference (docker.io defaults), plus
enroot's `[docker://]REGISTRY#NAME[:TAG]`. Stricter than both: no IPv6 literal, sha256 only, and a user name
(`docker://USER@REGISTRY#NAME`) only where the caller splits it off.
"""

from __future__ import annotations

from warmstart.errors import UserError
from warmstart.lean import Iterable, NamedTuple

LONGEST = 512  # characters
LONGEST_REPOSITORY = 255  # distribution/reference, NameTotalLengthMax
SCHEME = "docker://"
DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"
_PATHS = ("/", "./", "../", "~")
_FILES = (".sqsh", ".squashfs", ".sif")  # names of Docker Hub that nobody means
_A_FILE = "it looks like a file: a file's path begins with / or ./, and is told pyxis or Apptainer alone"

# Sets instead of patterns, which would load `re` on the hot path; a test compares them with the grammar's patterns.
_DIGITS = frozenset("0123456789")
_HEX = _DIGITS | frozenset("abcdef")
_LOWER = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyz")
_ALNUM = _LOWER | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_IN_LABEL = _LOWER | frozenset("-")
_IN_COMPONENT = _LOWER | frozenset("._-")
_IN_TAG = _ALNUM | frozenset("_.-")
_IN_LOGIN = _ALNUM | frozenset("._$-")
_LONGEST_LABEL, _LONGEST_TAG, _LONGEST_LOGIN = 63, 128, 128


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
    if "://" in rest:
        raise _invalid(text, "of all schemes only docker:// leads to a registry")
    if rest.startswith(_PATHS):
        raise _invalid(text, _A_FILE)
    rest, at, digest = rest.partition("@")
    if at and not is_digest(digest):
        if "#" in digest or "/" in digest:
            raise _invalid(text, "a user name is not allowed in it")
        raise _invalid(text, "what follows the @ is not sha256: and 64 hexadecimal digits")
    registry, repository = _split_registry(text, rest)
    if rest == repository and not at and rest.endswith(_FILES) and ":" not in rest:
        raise _invalid(text, _A_FILE)
    repository, colon, tag = repository.partition(":")
    if colon and not _is_tag(tag):
        raise _invalid(text, "what follows the last colon is not a tag")
    registry = _registry(text, registry)
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if len(repository) > LONGEST_REPOSITORY or not all(map(_is_component, repository.split("/"))):
        raise _invalid(text, "the image's name is not lower-case letters, digits and single separators")
    return Reference(registry, repository, "" if digest else tag or DEFAULT_TAG, digest)


def split_login(text: str) -> tuple[str, str]:
    """Return the user name of enroot's `[docker://]USER@REGISTRY#NAME`, "" if there is none, and the text without it.

    The name says which of a user's own credentials to use. It can be an e-mail address in enroot, but not here.
    """
    name, at, rest = text.removeprefix(SCHEME).partition("@")
    named = at and 0 < len(name) <= _LONGEST_LOGIN and _IN_LOGIN.issuperset(name) and "#" in rest.partition("@")[0]
    return (name, rest) if named else ("", text)


def is_digest(text: str) -> bool:
    """Return whether the text is a digest that warmstart accepts: `sha256:` and 64 lower-case hexadecimal digits."""
    return len(text) == 71 and text.startswith("sha256:") and _HEX.issuperset(text[7:])


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
    host, colon, port = registry.partition(":")
    # isascii: lower() maps some other letters to ASCII ones (the Kelvin sign to k).
    plain = name.isascii() and len(registry) <= 259 and all(map(_is_label, host.split(".")))
    # A bare word before enroot's # would later be read as the first part of a Docker Hub name.
    if not plain or (colon and not _is_port(port)) or not _is_host(registry):
        raise _invalid(text, "the registry is not HOST or HOST:PORT")
    # Other names of Docker Hub.
    return DOCKER_HUB if registry in {"index.docker.io", "registry-1.docker.io"} else registry


def _is_label(text: str) -> bool:
    """Return whether this is one part of a host's name."""
    return 0 < len(text) <= _LONGEST_LABEL and _IN_LABEL.issuperset(text) and "-" not in (text[0], text[-1])


def _is_port(text: str) -> bool:
    return 0 < len(text) <= 5 and _DIGITS.issuperset(text) and text[0] != "0" and int(text) <= 65535


def _is_component(text: str) -> bool:
    """Return whether this is one part of a repository: letters and digits, between them `.`, `_`, `__` or dashes."""
    separators = "".join(" " if char in _LOWER else char for char in text)
    return (
        _IN_COMPONENT.issuperset(text)
        and separators[:1] == separators[-1:] == " "
        and all(run in {".", "_", "__"} or not run.strip("-") for run in separators.split(" "))
    )


def _is_tag(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_TAG and _IN_TAG.issuperset(text) and text[0] not in ".-"


def _invalid(text: str, problem: str) -> ImageReferenceInvalid:
    return ImageReferenceInvalid(text=ascii(text[:120]), problem=problem)
