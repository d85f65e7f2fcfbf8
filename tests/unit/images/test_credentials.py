"""The site's credentials: whose file, what may stand in it, and how the import gets them."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from tests.lib.image_site import CAPS
from warmstart.host.identity import Identity
from warmstart.images import credentials
from warmstart.images.credentials import CredentialsUnusable, Login, login_at
from warmstart.images.scratch import Scratch, ScratchUnusable

SECRET = "dckr_pat-1.x~y+z/=="
ME = Identity("me", os.getuid(), os.getgid())


def auth(user: str, secret: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}


def written(directory: Path, auths: object, mode: int = 0o600) -> str:
    path = directory / "credentials.json"
    path.write_text(json.dumps({"auths": auths}))
    path.chmod(mode)
    return str(path)


def test_finds_the_login_of_a_registry(tmp_path: Path) -> None:
    path = written(tmp_path, {"reg.io:5000": auth("$oauthtoken", SECRET), "index.docker.io": auth("hub", "x")})
    assert login_at(path, "reg.io:5000") == Login("reg.io:5000", "$oauthtoken", SECRET)
    assert login_at(path, "docker.io").user == "hub"
    with pytest.raises(CredentialsUnusable, match="has no login for it"):
        login_at(path, "reg.io")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_reach_is_refused(tmp_path: Path, mode: int) -> None:
    """Readable for a group is leaked already, writable is not the site's."""
    with pytest.raises(CredentialsUnusable, match="must belong to root"):
        login_at(written(tmp_path, {"reg.io": auth("a", "b")}, mode), "reg.io")


def test_a_link_or_nothing_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"reg.io": auth("a", "b")})
    (tmp_path / "link").symlink_to(path)
    for name in ("link", "absent"):
        with pytest.raises(CredentialsUnusable):
            login_at(str(tmp_path / name), "reg.io")


@pytest.mark.threat(1)
@pytest.mark.parametrize(
    "secret",
    [
        "$(id>/x)",
        "`id`",
        "a b",
        'a"b',
        "a'b",
        "a;id",
        "a\nmachine evil login x password y",
        "a\\b",
        "a#b",
        "",
        "a&b",
        "<x",
    ],
)
def test_nothing_that_enroot_could_evaluate_gets_through(tmp_path: Path, secret: str) -> None:
    """Row 1 of docs/threats.md, from the site's own side: shell and netrc characters are refused in user and secret."""
    for entry in (auth("carol", secret), auth(secret, "plain")):
        with pytest.raises(CredentialsUnusable, match="characters that are not accepted") as raised:
            login_at(written(tmp_path, {"reg.io": entry}), "reg.io")
        assert not secret or secret not in str(raised.value.as_audit())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"x"', '{"auths": 1}', '{"auths": {"reg.io": 1}}', '{"auths": {"reg.io": {"auth": "!"}}}', "\0"],
)
def test_what_is_no_authfile_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(CredentialsUnusable):
        login_at(str(path), "reg.io")


def test_is_lent_for_as_long_as_it_is_needed(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    work = Scratch(str(tmp_path), fd, CAPS)
    try:
        with credentials.credentials_file(work, ME, "auth.json", "text"):
            status = os.stat(tmp_path / "auth.json")
            assert (status.st_mode & 0o7777, status.st_uid) == (0o600, ME.uid)
            again = credentials.credentials_file(work, ME, "auth.json", "other")
            with pytest.raises(ScratchUnusable), again:
                pass
            assert (tmp_path / "auth.json").read_text() == "text"
        assert os.listdir(tmp_path) == []
    finally:
        os.close(fd)
