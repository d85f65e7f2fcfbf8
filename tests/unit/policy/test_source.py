"""Who may have written what root reads as the policy (docs/threats.md, row 19)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.policy_site import Site
from warmstart.errors import PolicyError
from warmstart.policy import source
from warmstart.policy.invalid import PolicyUnreadable, PolicyUntrusted

MINE = frozenset({0, os.geteuid()})


def refusal(site: Site, owners: frozenset[int] = MINE) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        source.read(str(site.policy), owners)
    return caught.value


@pytest.fixture(autouse=True)
def a_policy(site: Site) -> None:
    """Have a policy and one addition, readable as they are."""
    site.write("version: 1\n")
    site.add("a.yaml", "rules: []\n")
    assert [text for _, text in source.read(str(site.policy), MINE)] == ["version: 1\n", "rules: []\n"]


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
        assert source.read(str(site.policy), MINE)
    else:
        assert refusal(site).fields["path"] == str(site.etc.parent)


def test_another_owner_is_refused(site: Site) -> None:
    error = refusal(site, owners=frozenset({os.geteuid() + 1}))
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
    site.write("#" * (source.LARGEST + 1))
    error = refusal(site)
    assert isinstance(error, PolicyUnreadable)
    assert "larger than 256 KiB" in str(error)


def test_too_many_additions_are_unreadable(site: Site) -> None:
    for number in range(source.MOST_FILES):
        site.add(f"{number}.yaml", "")
    assert "more than 64" in str(refusal(site))


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
    before = source.signature(str(site.policy))
    assert source.signature(str(site.policy)) == before
    change(site)
    assert source.signature(str(site.policy)) != before


def test_descriptors_are_closed(site: Site) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    source.read(str(site.policy), MINE)
    (site.etc / "conf.d").chmod(0o777)
    refusal(site)
    site.etc.chmod(0o777)
    refusal(site)
    move_policy(site)
    refusal(site)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def config_map(site: Site, number: int, text: str = "version: 1\n") -> Path:
    """Put a version of a policy in force as Kubernetes does with a ConfigMap's; return its directory."""
    version = site.etc / f"..2026_{number}"
    (version / "conf.d").mkdir(parents=True)
    (version / "policy.yaml").write_text(text)
    (version / "conf.d/a.yaml").write_text("rules: []\n")
    if not site.policy.is_symlink():
        site.policy.unlink()
        (site.etc / "conf.d/a.yaml").unlink()
        (site.etc / "conf.d").rmdir()
        for name in ("policy.yaml", "conf.d"):
            (site.etc / name).symlink_to(f"..data/{name}")
    (site.etc / "..data_tmp").symlink_to(version.name)
    (site.etc / "..data_tmp").rename(site.etc / "..data")
    return version


def test_a_config_map_is_read_from_its_version_in_force(site: Site) -> None:
    version = config_map(site, 1)
    read = source.read(str(site.policy), MINE)
    assert read == [(f"{version}/policy.yaml", "version: 1\n"), (f"{version}/conf.d/a.yaml", "rules: []\n")]
    before = source.signature(str(site.policy))
    assert before == source.signature(str(site.policy))
    config_map(site, 2, "version: 1 # 2\n")
    assert source.read(str(site.policy), MINE)[0][1] == "version: 1 # 2\n"
    assert not set(before) & set(source.signature(str(site.policy)))


def test_a_config_map_may_be_in_a_directory_for_all_if_its_mount_is_read_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So Kubernetes mounts it. What root reads lies in a directory that is root's alone."""
    version = config_map(site, 1)
    site.etc.chmod(0o777)
    assert refusal(site).fields["path"] == str(site.etc)
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result((0,) * 8 + (os.ST_RDONLY, 255)))
    assert source.read(str(site.policy), MINE)
    version.chmod(0o757)
    assert refusal(site).fields["path"] == str(version)


@pytest.mark.threat(19)
@pytest.mark.parametrize("target", ["..", "../elsewhere", "..2026_1/conf.d", "elsewhere", "/etc"])
def test_a_config_map_names_no_other_directory(site: Site, target: str) -> None:
    config_map(site, 1)
    (site.etc / "..data").unlink()
    (site.etc / "..data").symlink_to(target)
    assert isinstance(refusal(site), PolicyUntrusted)


def test_a_version_that_is_gone_is_named(site: Site) -> None:
    """Kubernetes removes it as soon as another is in force."""
    version = config_map(site, 1)
    version.rename(site.etc / "away")
    error = refusal(site)
    assert isinstance(error, PolicyUnreadable)
    assert error.fields["path"] == str(version)
