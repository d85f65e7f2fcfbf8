"""The `enroot` importer in its sandbox: real accounts, registry and mksquashfs; a stand-in for enroot."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import processes, registries
from tests.lib.accounts import ALICE, BOB, IMPORT, VALIDATE, Account
from tests.lib.image_place import Place, in_child, processes_of, result
from tests.lib.image_site import CAPS
from tests.lib.registries import PASSWORD
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import become
from warmstart.images import notes, scratch
from warmstart.images.credentials import Login
from warmstart.images.importers.base import ImageForbidden, ImageNotFound
from warmstart.images.importers.enroot import Enroot
from warmstart.images.imports import making, verify
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.images.reference import Reference, parse
from warmstart.images.user import own_images

VERSIONS = ("3.4.1", "4.1.2")


@pytest.fixture(scope="module")
def digest(place: Place) -> str:
    """Push `team/tool:1` as Docker has it; return its digest."""
    return place.push_as_docker(place.layout, "team/tool:1")


def _importer(place: Place, version: str = "4.1.2") -> Enroot:
    return Enroot(place.identity(IMPORT), (place.registry.url,), str(place.enroot(version)))


def _imported(place: Place, version: str, reference: Reference, digest: str) -> list[str]:
    """Import as a producer does, take the image and verify it. Return the names in it."""
    importer = _importer(place, version)
    with scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work:
        assert digest == (reference.digest or importer.resolve(reference, work, after(30)))
        result = importer.import_image(reference, digest, work, after(60))
        fd = making.claim(work.fd, result, importer.identity.uid)
        try:
            verify.check_listing(fd, place.identity(VALIDATE), after(30))
            listed = subprocess.run(
                ["unsquashfs", "-l", f"/proc/self/fd/{fd}"], check=True, capture_output=True, text=True, pass_fds=[fd]
            ).stdout
        finally:
            os.close(fd)
    assert place.left_in_scratch() == []
    return [line.removeprefix("squashfs-root") for line in listed.splitlines()]


@pytest.mark.parametrize("version", VERSIONS)
def test_imports_what_the_registry_has(place: Place, digest: str, version: str) -> None:
    """By a tag that skopeo resolves, and by digest: a whole image of the import account, and no leftovers."""
    for reference in (place.image(), place.image(f"team/tool@{digest}")):
        names = _imported(place, version, reference, digest)
        assert {"/etc/hello", "/etc/rc", "/bin/busybox"} <= set(names)


def test_what_it_makes_is_published_where_root_is_refused(place: Place, digest: str) -> None:
    with place.squashed("published") as store:
        site = place.site(store.path, importer=lambda: _importer(place), recipe="enroot1")
        found = making.obtain(place.image(), site, after(60))
        assert making.obtain(place.image(), site, after(60)) == found._replace(how="reused")
        assert (found.how, found.digest) == ("imported", digest)
        listed = subprocess.run(["unsquashfs", "-l", str(store.file(found.path))], check=True, capture_output=True)
        assert b"squashfs-root/etc/hello" in listed.stdout
    assert place.left_in_scratch() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_there_is_not_found(place: Place, digest: str, version: str) -> None:
    importer = _importer(place, version)
    with scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work:
        with pytest.raises(ImageNotFound):
            importer.resolve(place.image("team/tool:nope"), work, after(30))
        with pytest.raises(ImageNotFound):
            importer.import_image(place.image("team/nope:1"), digest, work, after(30))


def _plant(place: Place, marker: Path) -> dict[str, str]:
    """Give alice an enroot configuration whose netrc is a program. Return her environment."""
    alice: Account = place.accounts[ALICE]
    directory = alice.home / ".config" / "enroot"
    directory.mkdir(parents=True, exist_ok=True)
    host = place.registry.url.partition(":")[0]
    (directory / ".credentials").write_text(f"machine {host} login alice password $(id>{marker}; echo x)\n")
    os.chown(alice.home, alice.uid, alice.gid)
    return {
        **alice.environment(),
        "ENROOT_CONFIG_PATH": str(directory),
        "XDG_CONFIG_HOME": str(directory.parent),
        "ENROOT_ALLOW_HTTP": "y",
        "ENROOT_CACHE_PATH": str(alice.home / "cache"),
        "ENROOT_DATA_PATH": str(alice.home / "data"),
        "ENROOT_RUNTIME_PATH": str(alice.home / "runtime"),
        "BASH_ENV": str(directory / ".credentials"),
    }


@pytest.mark.threat(1)
def test_a_users_netrc_is_never_evaluated(place: Place, digest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = place.base / "evaluated"
    marker.touch()
    marker.chmod(0o666)
    environment = _plant(place, marker)
    output = ["--output", str(place.accounts[ALICE].home / "bait.sqsh")]
    bait = [str(place.enroot()), "import", *output, f"docker://{place.registry.url}#team/tool:1"]
    processes.run_as(place.accounts[ALICE], bait, environment={**environment, "BASH_ENV": ""})
    assert f"uid={place.accounts[ALICE].uid}" in marker.read_text()  # the trap works for those who step into it
    marker.write_text("")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for version in VERSIONS:
        _imported(place, version, place.image(), digest)
    assert marker.read_text() == ""


@pytest.mark.threat(11)
def test_nothing_survives_a_killed_import(place: Place, digest: str) -> None:
    pause = place.enroot().with_name("pause")
    pause.touch()
    uid = place.accounts[IMPORT].uid
    child = in_child(lambda: _imported(place, "4.1.2", place.image(), digest))
    try:
        processes.wait_until("the half image", lambda: bool(_scratch_files(place, "image.sqsh")), 30)
        assert _scratch_files(place, "enroot.*")
        assert processes_of(uid, place.base)
    finally:
        os.kill(child[0], signal.SIGKILL)
        result(child)
        pause.unlink()
    processes.wait_until("the programs' end", lambda: not processes_of(uid, place.base), 10)
    assert _scratch_files(place, "enroot.*")  # what enroot leaks …
    _imported(place, "4.1.2", place.image(), digest)  # … the next import removes, with the file system that it lies on
    assert str(place.base) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture(scope="module")
def private(place: Place, digest: str) -> Iterator[Reference]:
    """Return an image of a registry that demands a user and a password."""
    with registries.private(place.base) as host:
        registries.push_private(host, f"docker://{place.image().canonical()}", "team/secret:1")
        yield parse(f"{host}/team/secret:1")


def _as_user(place: Place, user: str, reference: Reference, login: str = "", version: str = "4.1.2") -> str:
    """Import into a user's own scope, as that user. Return the path, or `ERROR: …`."""
    home, identity = place.accounts[user].home, place.identity(user)

    def work() -> str:
        become(identity)
        os.environ["ENROOT_CONFIG_PATH"] = str(home / ".config" / "enroot")
        importer = Enroot(identity, (reference.registry,))._replace(program=str(place.enroot(version)))
        where = own_images.directory_of(str(home), "7.0", CAPS)
        try:
            return own_images.obtain(reference, where, importer, login, after(60))
        except WarmstartError as error:
            return f"ERROR: {error.code} {error}"

    return str(result(in_child(work)))


def _credentials(place: Place, user: str, text: str) -> None:
    directory = place.accounts[user].home / ".config" / "enroot"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ".credentials").write_text(text)
    (directory / ".credentials").chmod(0o600)
    for path in (directory / ".credentials", directory, directory.parent):
        os.chown(path, place.accounts[user].uid, place.accounts[user].gid)


@pytest.mark.threat(1)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_private_image_is_imported_as_its_user(place: Place, private: Reference, version: str) -> None:
    home, host = place.accounts[ALICE].home, private.registry.partition(":")[0]
    marker = home / f"evaluated-{version}"
    _credentials(
        place, ALICE,
        f"machine {host} login mallory password wrong\n"
        f"machine {host} login carol password $(id -u >{marker}; echo {PASSWORD})\n",
    )  # fmt: skip
    shutil.rmtree(home / notes.FOLDER, ignore_errors=True)
    path = Path(_as_user(place, ALICE, private, "carol", version))
    assert path.parent == home / notes.FOLDER
    assert (path.owner(), path.stat().st_mode & 0o077) == (ALICE, 0)
    assert marker.read_text().strip() == str(place.accounts[ALICE].uid)
    assert [name for name in os.listdir(path.parent) if name.startswith(".import-")] == []
    assert _as_user(place, BOB, private).startswith("ERROR: image-forbidden")


def test_the_shared_import_gets_no_private_image(place: Place, digest: str, private: Reference) -> None:
    for version in VERSIONS:
        importer = _importer(place, version)._replace(insecure=(private.registry,))
        with (
            scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work,
            pytest.raises(ImageForbidden),
        ):
            importer.import_image(private, digest, work, after(30))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sites_credentials_fetch_a_private_image(place: Place, private: Reference, version: str) -> None:
    login = Login(private.registry, "carol", PASSWORD)
    importer = _importer(place, version)._replace(insecure=(private.registry,), login=login)
    with scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work:
        digest = importer.resolve(private, work, after(30))
        assert importer.import_image(private, digest, work, after(60)) in os.listdir(work.fd)
        assert [path.name for path in Path(work.path).rglob("*") if path.name in (".credentials", "auth.json")] == []
        wrong = importer._replace(login=login._replace(secret="wrong"))
        with pytest.raises(ImageForbidden):
            wrong.import_image(private, digest, work, after(30))
        assert [path.name for path in Path(work.path).rglob("*") if path.name in (".credentials", "auth.json")] == []


def test_steps_of_a_user_wait_for_one_import(place: Place) -> None:
    home = place.accounts[ALICE].home
    shutil.rmtree(home / notes.FOLDER, ignore_errors=True)
    first = _as_user(place, ALICE, place.image())
    os.unlink(first)
    lock = os.open(first.removesuffix(".sqsh") + ".lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with opened_dir(str(Path(first).parent)) as directory:
            waiting = own_images.image_lock(directory, Path(first).name.removesuffix(".sqsh"), place.image(), after(0))
            with pytest.raises(ImageWaitExpired), waiting:
                pass
    finally:
        os.close(lock)
    assert _as_user(place, ALICE, place.image()) == first


def _scratch_files(place: Place, pattern: str) -> list[Path]:
    return list((place.base / "workspace").glob(f"import.*/*/{pattern}"))
