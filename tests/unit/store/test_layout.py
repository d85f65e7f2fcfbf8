"""Names of the store: paths, ids, scopes and directories."""

import os
from pathlib import Path

import pytest

from tests.lib.runs import a_job
from warmstart.caches.store.layout import Namespace, make_namespace
from warmstart.policy.match import scope_key
from warmstart.store import layout


@pytest.mark.parametrize(
    "path",
    [
        *("a", "a/b.c", "m/f.<locals>.g-1.py311.nbi", "a b/c", "x" * 255, f"{'x' * 255}/" * 3 + "y" * 255, "-rf"),
        *(" a", "a ", "#a", "a#b", "a\\b", "x=1,seed=2", "proj@v1", "[exp]", "Ünï/größe", "Δt", "ñ" * 127),
        *("\udcff\udc80", "..."),
    ],
)
def test_any_name_without_control_characters_is_plain(path: str) -> None:
    assert layout.is_plain_path(path)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/a", "a/", "a//b", ".", "a/./b", "..", "a/../b", "a\nb", "a\tb", "a\n", "a\0b", "a\x7f", "a\x85"),
        *("x" * 256, "ñ" * 128, f"{'x' * 204}/" * 5 + "y"),
        *("\ud800", "\udfff", "\udcc3\udc9c"),  # bytes that no name has, or that are another text's
    ],
)
def test_odd_paths_are_not(path: str) -> None:
    assert not layout.is_plain_path(path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0", "é", ".hidden", "a" * 201])
def test_no_name_leads_out_of_the_store(name: str, tmp_path: Path) -> None:
    for parts in ((name, "p", "n"), ("s", name, "n"), ("s", "p", name)):
        with pytest.raises(ValueError, match="not a valid name"):
            _ = Namespace(str(tmp_path), *parts).path


def test_a_namespace_is_made_for_its_owner_alone_and_no_store_is(tmp_path: Path) -> None:
    """An unmounted store must not become a directory on the node's disk."""
    with pytest.raises(FileNotFoundError):
        make_namespace(Namespace(str(tmp_path / "store"), "s", "p", "n"))
    assert list(tmp_path.iterdir()) == []
    os.close(make_namespace(Namespace(str(tmp_path), "s", "p", "n")))
    assert (tmp_path / "caches").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "caches/s/p/n").stat().st_mode & 0o7777 == 0o755


def test_a_scope_of_any_user_and_account_has_a_place(tmp_path: Path) -> None:
    job = a_job(user="ann@example.com", account="équipe 7")
    for scope in ("user", "account", "site"):
        assert Namespace(str(tmp_path), scope_key(scope, job), "numba", "ns").path.startswith(str(tmp_path))
