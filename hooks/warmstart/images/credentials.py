"""The site's credentials at registries. Root reads them from a file of root's and lends them to one import.

The file has the format of `skopeo login --authfile` (containers-auth.json(5)). Credentials never appear in arguments,
logs or the audit. enroot evaluates text (docs/threats.md, row 1), so only a few plain characters are accepted.
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
from warmstart.host import wire
from warmstart.host.files import open_regular, read_up_to, unlink_if_there, write_all
from warmstart.host.identity import Identity
from warmstart.images.reference import DOCKER_HUB
from warmstart.images.scratch import Scratch

LONGEST = 1 << 16  # bytes
_USER = re.compile(r"[A-Za-z0-9._$@+=/|-]{1,128}\Z")
_SECRET = re.compile(r"[A-Za-z0-9._@+=/|~!%^*:,-]{1,4096}\Z")  # no $: enroot would have a shell evaluate it
_HUB = ("https://index.docker.io/v1/", "index.docker.io", DOCKER_HUB)


class CredentialsUnusable(StoreError):
    """The site's credentials cannot be used. The message never quotes them."""

    code = "credentials-unusable"
    template = "the site's credentials for {registry} cannot be used: {problem}"
    hint = "write the file with `skopeo login --authfile`, readable by root alone (docs/guides/private-images.md)"


class Login(NamedTuple):
    """User name and secret at one registry."""

    registry: str
    user: str
    secret: str


def login_at(path: str, registry: str) -> Login:
    """Return the login at a registry from the file at `path`; `CredentialsUnusable` if there is none."""
    auths = _read(path, registry)
    for name in _HUB if registry == DOCKER_HUB else (registry,):
        entry = auths.get(name)
        if isinstance(entry, dict) and isinstance(entry.get("auth"), str):
            return _login(registry, entry["auth"])
    raise CredentialsUnusable(registry=registry, problem=f"{path} has no login for it")


@contextmanager
def credentials_file(work: Scratch, identity: Identity, name: str, text: str) -> Iterator[None]:
    """Put a file with `text` into the scratch, readable by the import account alone, for the duration of a `with`."""
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
    """Return the text of an authfile with this login (containers-auth.json(5))."""
    auth = base64.b64encode(f"{login.user}:{login.secret}".encode()).decode()
    return json.dumps({"auths": {login.registry: {"auth": auth}}})


def for_enroot(login: Login) -> str:
    """Return the text of enroot's credentials file (netrc): an entry for the registry, and one for its token service.

    enroot finds the user by the registry's name. The token service has another name, so its entry is the default.
    """
    host = "registry-1.docker.io" if login.registry == DOCKER_HUB else login.registry.partition(":")[0]
    return "".join(f"{entry} login {login.user} password {login.secret}\n" for entry in (f"machine {host}", "default"))


def _read(path: str, registry: str) -> dict[str, object]:
    try:
        fd = open_regular(path)
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise CredentialsUnusable(registry=registry, problem=f"{path} must belong to root, mode 0600")
            content = wire.parse(read_up_to(fd, LONGEST))
        finally:
            os.close(fd)
        auths = content["auths"]
    except OSError as error:
        raise CredentialsUnusable(registry=registry, problem=f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        # `from None`, because the cause may quote the file.
        raise CredentialsUnusable(registry=registry, problem=f"{path} is not an authfile") from None
    return auths if isinstance(auths, dict) else {}


def _login(registry: str, auth: str) -> Login:
    try:
        user, colon, secret = base64.b64decode(auth, validate=True).decode("ascii").partition(":")
    except (binascii.Error, ValueError):
        raise CredentialsUnusable(registry=registry, problem="they are not valid base64 and ASCII") from None
    if not colon or not _USER.match(user) or not _SECRET.match(secret):
        raise CredentialsUnusable(registry=registry, problem="user or secret has characters that are not accepted")
    return Login(registry, user, secret)
