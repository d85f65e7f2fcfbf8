"""Who may have written what root reads as the policy (docs/threats.md, row 19)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.policy_site import Site
from warmstart.errors import PolicyError
from warmstart.policy import load
from warmstart.policy.load import PolicyUnreadable, PolicyUntrusted


def refusal(site: Site) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        load.texts(str(site.policy))
    return caught.value


@pytest.fixture(autouse=True)
def a_policy(site: Site) -> None:
    """Have a policy and one addition, readable as they are."""
    site.write("version: 1\n")
    site.add("a.yaml", "rules: []\n")
    assert [text for _, text in load.texts(str(site.policy))] == ["version: 1\n", "rules: []\n"]


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
@pytest.mark.parametrize("name", ["policy.yaml", "conf.d/a.yaml"])
def test_a_file_that_others_can_write_is_refused(site: Site, name: str, mode: int) -> None:
    (site.etc / name).chmod(mode)
    error = refusal(site)
    assert isinstance(error, PolicyUntrusted)
    assert str(error).startswith(f"{site.etc / name}: can be written")


@pytest.mark.threat(19)
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
@pytest.mark.parametrize("name", [".", "conf.d"])
def test_a_directory_that_others_can_write_is_refused(site: Site, name: str, mode: int) -> None:
    """Who can write the directory can swap the file; sticky does not help, since names can be added."""
    (site.etc / name).chmod(mode)
    error = refusal(site)
    assert isinstance(error, PolicyUntrusted)
    assert error.fields["path"] == os.path.normpath(site.etc / name)


@pytest.mark.parametrize(("mode", "believed"), [(0o775, False), (0o757, False), (0o1777, True), (0o755, True)])
def test_a_directory_above_may_be_shared_if_it_is_sticky(site: Site, mode: int, believed: bool) -> None:
    site.etc.parent.chmod(mode)
    if believed:
        assert load.texts(str(site.policy))
    else:
        assert refusal(site).fields["path"] == str(site.etc.parent)


def test_another_owner_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(site.policy, 1, 1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    error = refusal(site)
    assert isinstance(error, PolicyUntrusted)
    assert "belongs to uid" in str(error)


def move_policy(site: Site) -> None:
    site.policy.rename(site.etc / "real.yaml")
    site.policy.symlink_to("real.yaml")


def move_addition(site: Site) -> None:
    (site.etc / "conf.d/b.yaml").symlink_to("a.yaml")


def move_conf_d(site: Site) -> None:
    (site.etc / "conf.d").rename(site.etc / "real.d")
    (site.etc / "conf.d").symlink_to("real.d")


def move_etc(site: Site) -> None:
    site.etc.rename(site.etc.with_name("real"))
    site.etc.symlink_to("real")


def make_fifo(site: Site) -> None:
    """Put a FIFO in policy.yaml's place; opening one must not hang."""
    site.policy.unlink()
    os.mkfifo(site.policy, 0o644)


def make_directory(site: Site) -> None:
    (site.etc / "conf.d/b.yaml").mkdir()


@pytest.mark.parametrize("change", [move_policy, move_addition, move_conf_d, move_etc, make_fifo, make_directory])
def test_links_and_other_kinds_are_refused(site: Site, change: Callable[[Site], None]) -> None:
    change(site)
    error = refusal(site)
    assert isinstance(error, PolicyUntrusted)
    assert "symbolic link" in str(error)


def test_a_huge_policy_is_unreadable(site: Site) -> None:
    site.write("#" * (load.LARGEST + 1))
    error = refusal(site)
    assert isinstance(error, PolicyUnreadable)
    assert "larger than 256 KiB" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda site: site.write("version: 22\n"),
        lambda site: site.policy.chmod(0o600),
        lambda site: site.policy.unlink(),
        lambda site: site.add("b.yaml", ""),
        lambda site: site.add("a.yaml", "rules: [ ]\n"),
        lambda site: (site.etc / "conf.d/a.yaml").unlink(),
        lambda site: (site.etc / "conf.d").rename(site.etc / "gone"),
    ],
)
def test_every_change_has_another_signature(site: Site, change: Callable[[Site], object]) -> None:
    before = load.signature(str(site.policy))
    assert load.signature(str(site.policy)) == before
    change(site)
    assert load.signature(str(site.policy)) != before


def test_descriptors_are_closed(site: Site) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    load.texts(str(site.policy))
    (site.etc / "conf.d").chmod(0o777)
    refusal(site)
    site.etc.chmod(0o777)
    refusal(site)
    move_policy(site)
    refusal(site)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
