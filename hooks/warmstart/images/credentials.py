"""The site's own credentials at registries: read by root from root's file, given to an import's own directory.

The file is what `skopeo login --authfile` writes (containers-auth.json(5)). They are never in an argument, a log or
the audit. enroot evaluates text (docs/threats.md, row 1), so what is not of a few plain characters is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warmstart.errors import StoreError
from warmstart.host.files import open_regular, read_up_to, unlink_if_there, write_all
from warmstart.host.identity import Identity
from warmstart.images.reference import DOCKER_HUB
from warmstart.images.scratch import Scratch

LONGEST = 1 << 16
_USER = re.compile(r"[A-Za-z0-9._$@+=/|-]{1,128}\Z")
_SECRET = re.compile(r"[A-Za-z0-9._@+=/|~!%^*:,-]{1,4096}\Z")  # no $: enroot would have a shell evaluate it
_HUB = ("https://index.docker.io/v1/", "index.docker.io", DOCKER_HUB)


class CredentialsUnusable(StoreError):
    """The site's credentials can't be used; says nothing of what is in them."""

    code = "credentials-unusable"
    template = "the site's credentials for {registry} can't be used: {problem}"
    hint = "docs/private-images.md: a file of root's alone, as `skopeo login --authfile` writes it"


class Login(NamedTuple):
    """A user and a secret at one registry."""

    registry: str
    user: str
    secret: str


def login_at(path: str, registry: str) -> Login:
    """Return the site's login at a registry; `CredentialsUnusable`."""
    auths = _read(path, registry)
    for name in _HUB if registry == DOCKER_HUB else (registry,):
        entry = auths.get(name)
        if isinstance(entry, dict) and isinstance(entry.get("auth"), str):
            return _login(registry, entry["auth"])
    raise CredentialsUnusable(registry=registry, problem=f"{path} has none")


@contextmanager
def lent(work: Scratch, identity: Identity, name: str, text: str) -> Iterator[None]:
    """Have a file in the scratch that only the import account can read, for the length of a `with`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with work.errors():
        fd = os.open(name, flags, 0o600, dir_fd=work.fd)
        try:
            write_all(fd, text.encode())
            os.fchown(fd, identity.uid, identity.gid)
        finally:
            os.close(fd)
    try:
        yield
    finally:
        unlink_if_there(name, work.fd)


def for_skopeo(login: Login) -> str:
    """Return an authfile."""
    auth = base64.b64encode(f"{login.user}:{login.secret}".encode()).decode()
    return json.dumps({"auths": {login.registry: {"auth": auth}}})


def for_enroot(login: Login) -> str:
    """Return enroot's netrc: the registry's name chooses the user; the token service has a name of its own."""
    host = "registry-1.docker.io" if login.registry == DOCKER_HUB else login.registry.partition(":")[0]
    return "".join(f"{whom} login {login.user} password {login.secret}\n" for whom in (f"machine {host}", "default"))


def _read(path: str, registry: str) -> dict[str, object]:
    try:
        fd = open_regular(path)
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise CredentialsUnusable(registry=registry, problem=f"{path} is not root's alone (0600)")
            data = json.loads(read_up_to(fd, LONGEST))
        finally:
            os.close(fd)
        auths = data["auths"]
    except OSError as error:
        raise CredentialsUnusable(registry=registry, problem=f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        # Without its cause, whose text may quote the file.
        raise CredentialsUnusable(registry=registry, problem=f"{path} is not an authfile") from None
    return auths if isinstance(auths, dict) else {}


def _login(registry: str, auth: str) -> Login:
    try:
        user, colon, secret = base64.b64decode(auth, validate=True).decode("ascii").partition(":")
    except (binascii.Error, ValueError):
        raise CredentialsUnusable(registry=registry, problem="their encoding is damaged") from None
    if not colon or not _USER.match(user) or not _SECRET.match(secret):
        raise CredentialsUnusable(registry=registry, problem="user or secret has characters that are not taken")
    return Login(registry, user, secret)
