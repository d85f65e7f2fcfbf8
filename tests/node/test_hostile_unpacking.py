"""Images made to harm the node that unpacks them: names, links, devices, sizes, and a program that is taken over."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lib.shelf_site import ShelfSite
from warmstart.host import process
from warmstart.images import unpacking

pytestmark = pytest.mark.threat(61)


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "set_idle", lambda _: None)


@pytest.fixture
def site(base: Path, capable_host: None) -> ShelfSite:
    return ShelfSite(base)


def content(site: ShelfSite) -> Path:
    (site.base / "hostile").mkdir()
    return site.base / "hostile"


def unpacked(site: ShelfSite, image: Path) -> Path | None:
    key = site.publish_image(image)
    assert (site.ask(key), site.unpack(key)) == ("", 0)
    assert site.left() == []
    tree = site.take(key)
    return Path(tree.path) if tree else None


def taken_over(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have unsquashfs do what a shell script says when it unpacks."""
    real = unpacking._Unpacking._alone

    def alone(self: unpacking._Unpacking, making: int, argv: list[str], **named: Any) -> process.CompletedProgram:  # noqa: ANN401
        return real(self, making, ["/bin/sh", "-c", script] if "-force" in argv else argv, **named)

    monkeypatch.setattr(unpacking._Unpacking, "_alone", alone)


def test_devices_set_id_bits_and_attributes_are_left_out(site: ShelfSite) -> None:
    """`user.overlay.*` has a meaning for an overlay above; the rest no container of a user has either."""
    made = content(site)
    (made / "setuid").write_text("#!/bin/sh\n")
    (made / "setuid").chmod(0o6755)
    os.mknod(made / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(made / "disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    os.mkfifo(made / "fifo")
    (made / "opaque").mkdir()
    os.setxattr(made / "opaque", "user.overlay.opaque", b"y")
    os.setxattr(made / "setuid", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    tree = unpacked(site, site.pack(made))
    assert tree
    assert sorted(os.listdir(tree)) == ["fifo", "opaque", "setuid"]
    assert stat.S_IMODE((tree / "setuid").stat().st_mode) == 0o755
    assert [os.listxattr(tree / name) for name in ("opaque", "setuid")] == [[], []]


def test_links_lead_nowhere_while_it_is_unpacked(site: ShelfSite) -> None:
    made = content(site)
    victim = site.base / "victim"
    victim.write_text("mine")
    for name, target in (("absolute", str(victim)), ("above", "../../../../etc/passwd"), ("proc", "/proc/self/root")):
        (made / name).symlink_to(target)
    tree = unpacked(site, site.pack(made))
    assert tree
    assert os.readlink(tree / "absolute") == str(victim)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_names_that_no_directory_can_have_are_refused(site: ShelfSite, name: str) -> None:
    made = content(site)
    (made / ("x" * len(name))).write_text("forged")
    image = site.pack(made, "-noI", "-noId")
    forged = image.read_bytes().replace(b"x" * len(name), name.encode())
    assert forged != image.read_bytes()
    image.write_bytes(forged)
    assert unpacked(site, image) is None
    assert "unsquashfs" in site.problem()


def test_one_large_sparse_file_is_too_large(site: ShelfSite) -> None:
    """It counts with its whole length: nobody knows before whether it stays sparse."""
    made = content(site)
    with (made / "sparse").open("wb") as file:
        file.truncate(2 << 30)
    assert unpacked(site, site.pack(made)) is None
    assert "more than images.unpack.keep" in site.problem()


def test_more_files_than_the_disk_has_inodes_for(site: ShelfSite) -> None:
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "nr_inodes=1000", "none", site.base / "shelf"], check=True)
    site.policy_of(any_disk=True)
    made = content(site)
    for number in range(1200):
        (made / str(number)).touch()
    assert unpacked(site, site.pack(made)) is None
    assert "no inodes" in site.problem()


def test_a_hundred_images_of_one_user(site: ShelfSite) -> None:
    image = site.image("theirs")
    theirs = site.publish_image(image)
    assert (site.ask(theirs, 5002), site.unpack(theirs)) == ("", 0)
    keys = [theirs._replace(image=f"{number:064}.{theirs.image.partition('.')[2]}") for number in range(100)]
    assert sum(site.ask(key, 5001) == "" for key in keys) == 16
    assert site.ask(theirs._replace(private="x"), 5002) == ""
    assert [tree.about.uid for tree in site.trees()] == [5002]


@pytest.mark.parametrize("many", [":", "[ $i -lt 9 ]"], ids=["without end", "at once"])
def test_an_image_that_has_more_than_its_listing_says(
    site: ShelfSite, monkeypatch: pytest.MonkeyPatch, many: str
) -> None:
    taken_over(monkeypatch, f"cd /shown; i=0; while {many}; do i=$((i + 1)); : >$i; done")
    assert unpacked(site, site.image()) is None
    assert "more than its listing says" in site.problem()


def test_a_program_that_is_taken_over_sees_its_directory_alone(
    site: ShelfSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_over(
        monkeypatch,
        "cd /shown; ls -A / >root; ls -A /proc | grep -c '^[0-9]' >processes; cat /proc/net/dev | wc -l >devices;"
        "echo >/x; echo >/usr/x; mkdir ../y; ls /dev /etc /var /home >others 2>/dev/null;"
        "cat /proc/self/status | grep -E '^(CapEff|CapBnd|NoNewPrivs)' | tr -d '\\n\\t' >rights; exit 0",
    )
    tree = unpacked(site, site.image(**{f"file{number}": "" for number in range(20)}))
    assert tree, site.problem()
    programs = {name for name in os.listdir("/") if name.startswith(("lib", "usr", "bin", "sbin"))}
    assert {*(tree / "root").read_text().split()} <= programs | {"proc", "shown"}
    assert (tree / "others").read_text() == ""
    assert (tree / "devices").read_text().strip() == "3"  # two lines of heads, and the loopback
    assert int((tree / "processes").read_text()) < 8
    assert (tree / "rights").read_text() == f"CapEff:{0:016x}CapBnd:{0:016x}NoNewPrivs:1"
    assert not Path("/usr/x").exists()


def test_nobody_but_root_can_reach_or_write_a_tree(site: ShelfSite) -> None:
    tree = unpacked(site, site.image())
    assert tree
    account = site.policy.import_user
    for command in (f"cat {tree}/usr/greeting", f"ls {tree}", f"touch {tree}/x", f"ls {site.shelf.parent}"):
        done = subprocess.run(
            ["/bin/sh", "-c", command], user=account.uid, group=account.gid, extra_groups=[], capture_output=True,
            check=False,
        )  # fmt: skip
        assert b"Permission denied" in done.stderr, command
