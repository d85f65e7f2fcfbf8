"""Exports between two clusters: real bundles and tools, as root. Nothing in an export is trusted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.maintenance_site import MaintenanceSite, one
from tests.support.numba_entries import FOLDER, numba_entries, numba_entry
from warmstart.host.deadline import after
from warmstart.repack import transfer
from warmstart.repack.transfer import ExportDamaged, ExportRefused
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Base, content_digest

pytestmark = pytest.mark.usefixtures("capable_host")

DAEMON = "user-1-daemon"  # a user that every Debian has, with this uid


class Two:
    """Two clusters, with a bundle of two entries in the first one."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("h", "t"):
            (base / name).mkdir()
        self.here, self.there = MaintenanceSite(base / "h"), MaintenanceSite(base / "t")
        self.bundle = self.here.publish(numba_entries(1, 2), scope=DAEMON, user="daemon")
        self.entries = set(numba_entries(1, 2))

    def exported(self, name: str) -> Path:
        """Export all bundles."""
        target = self.base / name
        assert self.here.command("cache", "export", str(target)) == 0
        return target

    def imported(self, source: Path, *arguments: str) -> list[dict[str, Any]]:
        """Import into the second cluster. Return the command's result for each bundle."""
        rows: list[dict[str, Any]] = self.there.json("cache", "import", str(source), *arguments)
        return rows


@pytest.fixture
def two(base: Path) -> Two:
    """Give two clusters."""
    return Two(base)


def test_there_and_back(two: Two) -> None:
    """An export arrives once, packed anew, with its producer. A second import adds nothing."""
    source = two.exported("out")
    (row,) = two.imported(source)
    assert (row["entries"], row["known"], row["rejected"], row["problem"]) == (2, 0, {}, "")
    assert set(two.there.seen(DAEMON)) == two.entries
    found = two.there.json("cache", "show", row["bundle"])
    assert found["producer"]["user"] == "daemon"
    assert {origin["bundle"] for origin in found["origins"].values()} == {two.bundle}
    files = {path: file[1] for entry in found["entries"].values() for path, file in entry.items()}
    wanted = {path: hashlib.sha256(data).hexdigest() for e in numba_entries(1, 2).values() for path, data in e.items()}
    assert files == wanted
    (again,) = two.imported(source)
    assert (again["bundle"], again["entries"], again["known"]) == (None, 0, 2)
    assert len(two.there.json("cache", "list")) == 1
    assert [event["bundle"] for event in two.there.events("bundle.imported")] == [row["bundle"]]
    assert [event["bundles"] for event in two.here.events("cache.exported")] == [1]


def test_an_export_goes_through_nothing_of_a_users(two: Two) -> None:
    """Nothing is made below a user's directory or behind a link, which could lead to root's own."""
    home, roots = two.base / "home", two.base / "roots"
    home.mkdir()
    roots.mkdir()
    (home / "link").symlink_to(roots)
    os.chown(home, 1, 1)
    for folder in (home / "new", home / "link"):
        assert two.here.command("cache", "export", str(folder / "out")) == 2
    assert (os.listdir(home), os.listdir(roots)) == (["link"], [])


@pytest.mark.parametrize("name", ["out", "out/", "new/out"])
def test_a_relative_path_is_one_of_where_the_administrator_is(
    two: Two, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Paths are relative to the working directory; missing directories are made."""
    monkeypatch.chdir(two.base)
    assert two.here.command("cache", "export", name) == 0
    (row,) = two.imported(Path(name))
    assert (row["entries"], (two.base / name).exists()) == (2, True)


def test_the_standard_tool_checks_it(two: Two) -> None:
    """Without warmstart an administrator can detect damage. Only root can read it."""
    out = two.exported("out")
    subprocess.run(["/usr/bin/sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=out, check=True)
    assert {oct(path.stat().st_mode & 0o777) for path in [out, *out.rglob("*")]} == {"0o700", "0o600"}


def test_an_export_is_completed_and_never_overwrites(two: Two) -> None:
    """A directory takes new bundles. Another file with our name is refused."""
    out = two.exported("out")
    two.here.publish(numba_entries(3), scope=DAEMON, user="daemon")
    two.exported("out")
    assert len(two.imported(out)) == 2
    manifest = next(out.rglob("*Z-*.json"))
    manifest.write_bytes(b"{}")
    assert two.here.command("cache", "export", str(out)) == 2
    assert manifest.read_bytes() == b"{}"


def test_only_what_was_chosen_is_carried(two: Two) -> None:
    """By scope, by namespace, by bundle, on both sides."""
    other = two.here.publish(numba_entries(9), scope="site")
    assert two.here.command("cache", "export", str(two.base / "site"), "--scope", "site") == 0
    (row,) = two.imported(two.base / "site", "--to", "site")
    assert (row["scope"], set(two.there.seen("site"))) == ("site", set(numba_entries(9)))
    out = two.exported("out")
    assert two.here.command("cache", "export", str(two.base / "x"), other, "no-such-bundle") == 1
    assert [row["bundle"] is None for row in two.imported(out, other, "--to", "site")] == [True]
    assert two.there.command("cache", "import", str(out), "--scope", "account-none") == 1


def test_a_scope_has_to_be_named(two: Two) -> None:
    """Needed for unknown users, users with another uid, and scopes that others read."""
    two.here.publish(numba_entries(4), scope="site")
    two.here.publish(numba_entries(5), scope="account-ml")
    two.here.publish(numba_entries(6), scope="user-99-daemon")
    two.here.publish(numba_entries(7), scope="user-4242-nobody-of-this-name")
    out = two.exported("out")
    rows = two.imported(out)
    assert {row["scope"] for row in rows if not row["problem"]} == {DAEMON}
    assert sum("--to" in row["problem"] for row in rows) == 4
    for to in ("everyone", "site-x", "user-1-x", "account-"):
        assert two.there.command("cache", "import", str(out), "--to", to) == 1
    assert set(two.there.seen(DAEMON)) == two.entries
    assert two.there.seen("site") == {}
    assert two.there.command("cache", "import", str(out), "--scope", "user-99-daemon", "--to", DAEMON) == 0
    assert set(two.there.seen(DAEMON)) == {*two.entries, *numba_entries(6)}
    assert two.there.command("cache", "import", str(out), "--to", "site", "--to-namespace", "mine") == 0
    assert {row["namespace"] for row in two.there.json("cache", "list", "--scope", "site")} == {"mine"}


def test_entries_are_validated_again(two: Two) -> None:
    """An invalid entry is rejected though every hash is right; the rest of its bundle arrives."""
    name, files = numba_entry(8)
    broken = {path: data[:-1] for path, data in files.items()}
    two.here.publish({name: broken, **numba_entries(9)}, scope=DAEMON, user="daemon")
    rows = two.imported(two.exported("out"))
    assert {entry for row in rows for entry in row["rejected"]} == {name}
    assert set(two.there.seen(DAEMON)) == {*two.entries, *numba_entries(9)}
    assert [sum(event["reasons"].values()) for event in two.there.events("entry.rejected")] == [1]


def test_an_import_takes_no_ones_place(base: Path) -> None:
    """What is here stays. Where there is nothing the export's newest version is taken, and jobs go on from it."""
    for name in ("h", "t"):
        (base / name).mkdir()
    here, there = MaintenanceSite(base / "h"), MaintenanceSite(base / "t")
    scope, where = DAEMON, ("trt-rtx", "ns")
    publish_cache(here, scope, b"v1")
    newest = publish_cache(here, scope, b"v1+2", b"v1")
    assert here.command("cache", "export", str(base / "out")) == 0
    rows = there.json("cache", "import", str(base / "out"))
    assert [(row["entries"], row["known"], row["problem"]) for row in rows] == [(0, 1, ""), (1, 0, "")]
    assert rows[1]["source"] == newest
    assert cache_of(there, scope, *where) == (rows[1]["bundle"], b"v1+2")
    grown = publish_cache(there, scope, b"v1+2+mine", b"v1+2")
    publish_cache(here, scope, b"v1+2+3", b"v1+2")
    assert here.command("cache", "export", str(base / "out")) == 0
    assert {row["entries"] for row in there.json("cache", "import", str(base / "out"))} == {0}
    assert cache_of(there, scope, *where) == (grown, b"v1+2+mine")


def publish_cache(site: MaintenanceSite, scope: str, data: bytes, grown_from: bytes = b"") -> str:
    """Publish TensorRT-RTX's one file, grown from what its job was seeded with; return the bundle's id."""
    name = "runtime_cache.bin"
    entries = {name: {name: data}}
    seeded = site.draft({name: {name: grown_from}}, "daemon", 1).entries[name]
    fd = site.packed(entries)
    try:
        with site.client() as client:
            based_on = {name: Base(scope, content_digest(seeded))} if grown_from else {}
            draft = site.draft(entries, "daemon", 1)._replace(based_on=based_on)
            place = Namespace(str(site.store), scope, "trt-rtx", "ns")
            made = client.publish(place, fd, draft, after(20))
    finally:
        os.close(fd)
    assert made.bundle, made
    return made.bundle


def cache_of(site: MaintenanceSite, scope: str, profile: str, namespace: str) -> tuple[str, bytes]:
    """Return the bundle that a job would be seeded from, and the contents of its one file."""
    with site.client() as client:
        (offer,) = client.offers([scope], profile, namespace, after(20)).offers
    bundle = offer.bundle
    squashfs = Path(Namespace(str(site.store), scope, profile, namespace).path, f"{bundle}.sqsh")
    done = subprocess.run(
        ["/usr/bin/unsquashfs", "-cat", str(squashfs), "runtime_cache.bin"], capture_output=True, check=True
    )
    return bundle, done.stdout


def test_an_unknown_profile_and_a_blocked_user_stay_out(two: Two) -> None:
    """This cluster's blocks apply to imports, too."""
    out = two.exported("out")
    two.there.publish(one("x"))
    assert two.there.command("cache", "block", "--user", "daemon", "--reason", "x") == 0
    (row,) = two.imported(out)
    assert "blocked" in row["problem"]
    assert two.there.seen(DAEMON) == {}
    shutil.move(out / DAEMON / "numba", out / DAEMON / "fortran")
    manifest = next(out.rglob("*Z-*.json"))
    manifest.write_text(manifest.read_text().replace('"numba"', '"fortran"'))
    resum(out)
    assert two.there.command("cache", "unblock", "--all") == 0
    (row,) = two.imported(out)
    assert "fortran" in row["problem"]


def resum(out: Path) -> None:
    """Write the list of a changed export anew, as an attacker would."""
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name != "SHA256SUMS"]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out)}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines))


def damage(path: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("what", ["squashfs", "manifest", "truncated", "missing", "link", "fifo"])
def test_a_damaged_file_is_named_and_the_rest_arrives(two: Two, what: str) -> None:
    """Nothing of the damaged bundle is published."""
    other = two.here.publish(numba_entries(5), scope=DAEMON, user="daemon")
    out = two.exported("out")
    path = out / DAEMON / "numba" / "ns" / (two.bundle + (".json" if what == "manifest" else ".sqsh"))
    if what in ("squashfs", "manifest"):
        damage(path)
    elif what == "truncated":
        path.write_bytes(path.read_bytes()[:-4096])
    else:
        path.unlink()
        if what == "link":
            path.symlink_to("/etc/passwd")
        elif what == "fifo":
            os.mkfifo(path)
    rows = {row["problem"] == "": row for row in two.imported(out)}
    assert path.name in rows[False]["problem"]
    assert set(two.there.seen(DAEMON)) == set(numba_entries(5))
    assert rows[True]["bundle"] != other  # packed anew


@pytest.mark.threat(5)
def test_a_foreign_squashfs_is_never_published(two: Two) -> None:
    """All hashes are right, but the bundle has a setuid file, a link and a device: none arrives."""
    out = two.exported("out")
    folder = out / DAEMON / "numba" / "ns"
    path = folder / f"{two.bundle}.sqsh"
    tree = two.base / "tree"
    subprocess.run(["/usr/bin/unsquashfs", "-quiet", "-no-progress", "-dest", tree, path], check=True)
    (tree / "link").symlink_to("/etc/shadow")
    os.mknod(tree / "null", 0o20666, os.makedev(1, 3))
    shutil.copy("/bin/true", tree / "root")
    (tree / "root").chmod(0o4755)
    for file in (tree / FOLDER).iterdir():
        file.chmod(0o4777)
    path.unlink()
    subprocess.run(["/usr/bin/mksquashfs", tree, path, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    data = path.read_bytes()
    manifest = folder / f"{two.bundle}.json"
    text = json.loads(manifest.read_text())
    text.update(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    manifest.write_text(json.dumps(text))
    resum(out)
    (row,) = two.imported(out)
    if row["problem"]:  # unsquashfs as nobody does not make devices
        assert two.there.seen(DAEMON) == {}
        (tree / "null").unlink()
        path.unlink()
        subprocess.run(
            ["/usr/bin/mksquashfs", tree, path, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL
        )
        data = path.read_bytes()
        text.update(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        manifest.write_text(json.dumps(text))
        resum(out)
        (row,) = two.imported(out)
    assert row["entries"] == 2
    published = two.there.directory(DAEMON) / f"{row['bundle']}.sqsh"
    listed = subprocess.run(
        ["/usr/bin/unsquashfs", "-lln", published], check=True, capture_output=True, text=True
    ).stdout
    assert {line.split()[0][0] for line in listed.splitlines() if "squashfs-root" in line} == {"d", "-"}
    assert not {"link", "null", "root"} & {line.rpartition("/")[2] for line in listed.splitlines()}
    assert not any("s" in line.split()[0] for line in listed.splitlines() if "squashfs-root" in line)


def test_names_that_lead_out_are_no_names(two: Two) -> None:
    """A list may have only names of the store's layout."""
    out = two.exported("out")
    for name in ("../../etc/passwd", "/etc/passwd", "a/b/c.json", f"{DAEMON}/numba/../ns/{two.bundle}.json"):
        with (out / "SHA256SUMS").open("a") as sums:
            sums.write(f"{'0' * 64}  {name}\n")
        assert two.there.command("cache", "import", str(out)) == 2
        resum(out)
    assert two.there.command("cache", "import", str(out)) == 0


def test_what_is_no_export_is_refused(two: Two) -> None:
    """An unfinished export, a newer format, a file."""
    out = two.exported("out")
    head = out / "export.json"
    head.write_text('{"format": 2}')
    resum(out)
    with (
        transfer.reading(str(out)) as reader,
        pytest.raises(ExportRefused, match="known is 1"),
    ):
        reader.items()
    (out / "SHA256SUMS").unlink()
    with (
        transfer.reading(str(out)) as reader,
        pytest.raises(ExportDamaged, match="SHA256SUMS"),
    ):
        reader.items()
    (two.base / "file").write_bytes(b"no export")
    assert two.there.command("cache", "import", str(two.base / "file")) == 2
    assert two.there.command("cache", "import", str(two.base / "nowhere")) == 2
    assert two.there.seen(DAEMON) == {}


def test_nobody_elses_directory_is_written_to(two: Two) -> None:
    """Its owner could replace what root writes there."""
    theirs = two.base / "theirs"
    theirs.mkdir()
    os.chown(theirs, 1, 1)
    assert two.here.command("cache", "export", str(theirs)) == 2
    assert os.listdir(theirs) == []
