"""The `enroot` importer in its sandbox: real accounts, registry and mksquashfs; a stand-in for enroot."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib import config, image_place, processes, registries, teardown
from tests.lib.accounts import ALICE, BOB, IMPORT, VALIDATE, Account, Accounts
from tests.lib.image_site import CAPS
from tests.lib.registries import PASSWORD
from tests.lib.registry import Registry, build_image
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity, become
from warmstart.images import notes, scratch
from warmstart.images.credentials import Login
from warmstart.images.importers import oci
from warmstart.images.importers.base import ImageForbidden, ImageNotFound, ImportFailed, RegistryUnreachable
from warmstart.images.importers.enroot import Enroot
from warmstart.images.imports import making, verify
from warmstart.images.reference import Reference, parse
from warmstart.images.user import own_images

FAKE = Path(__file__).resolve().parents[1] / "lib" / "fakes" / "enroot"
VERSIONS = ("3.4.1", "4.1.2")


class Place(NamedTuple):
    """A directory with accounts, a registry with `team/tool:1`, and one enroot for each version."""

    base: Path
    accounts: Accounts
    registry: Registry
    digest: str

    def identity(self, name: str = IMPORT) -> Identity:
        return Identity(name, self.accounts[name].uid, self.accounts[name].gid)

    def program(self, version: str) -> Path:
        return self.base / f"enroot-{version}" / "enroot"

    def importer(self, version: str) -> Enroot:
        return Enroot(self.identity(), (self.registry.url,), str(self.program(version)))

    def image(self, name: str = "team/tool:1") -> Reference:
        return parse(f"{self.registry.url}/{name}")

    def left_in_scratch(self) -> list[str]:
        return os.listdir(self.base / "workspace")


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    base = Path(tempfile.mkdtemp(prefix="warmstart-enroot-", dir="/var/tmp"))
    base.chmod(0o755)
    (base / "log").mkdir()
    watchdog = teardown.watch(base)
    accounts = Accounts(base / "homes")
    try:
        for version in VERSIONS:
            directory = base / f"enroot-{version}"
            directory.mkdir()
            shutil.copy(FAKE, directory / "enroot")
            (directory / "version").write_text(f"{version}\n")
        layout = build_image(base / "image", {"/etc/hello": "hello\n"})
        with Registry(base) as registry:
            yield Place(base, accounts, registry, _push_as_docker(registry, layout, "team/tool:1"))
    finally:
        teardown.tear_down(base)
        accounts.close()
        teardown.stop_watching(watchdog)


def _push_as_docker(registry: Registry, layout: Path, name: str) -> str:
    """Push in Docker's format, the only one that Debian's docker-registry shows enroot. Returns the digest."""
    digest = layout / "docker-digest"
    subprocess.run(
        ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false", "--format=v2s2",
         f"--digestfile={digest}", f"oci:{layout}:latest", f"docker://{registry.url}/{name}"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return digest.read_text().strip()


def _imported(place: Place, version: str, reference: Reference, digest: str = "") -> list[str]:
    """Import as a producer does, take the image and verify it. Return the names in it."""
    importer = place.importer(version)
    with scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work:
        digest = digest or importer.resolve(reference, work, after(30))
        assert digest == place.digest
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
def test_imports_what_the_registry_has(place: Place, version: str) -> None:
    for reference in (place.image(), place.image(f"team/tool@{place.digest}")):
        names = _imported(place, version, reference, reference.digest)
        assert {"/etc/hello", "/etc/rc", "/bin/busybox"} <= set(names)


def test_what_it_makes_is_published_where_root_is_refused(place: Place) -> None:
    shared = image_place.Place(place.base, place.accounts, place.registry, place.base)
    with shared.squashed("published") as store:
        site = shared.site(store.path, importer=lambda: place.importer("4.1.2"), recipe="enroot1")
        with site.store:
            found = making.obtain(place.image(), site, after(60))
            assert making.obtain(place.image(), site, after(60)) == found._replace(how="reused")
        assert (found.how, found.digest) == ("imported", place.digest)
        listed = subprocess.run(["unsquashfs", "-l", str(store.file(found.path))], check=True, capture_output=True)
        assert b"squashfs-root/etc/hello" in listed.stdout
    assert place.left_in_scratch() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_there_is_not_found(place: Place, version: str) -> None:
    importer = place.importer(version)
    with scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work:
        with pytest.raises(ImageNotFound):
            importer.resolve(place.image("team/tool:nope"), work, after(30))
        with pytest.raises(ImageNotFound):
            importer.import_image(place.image("team/nope:1"), place.digest, work, after(30))


def test_a_registry_that_is_down_is_unreachable(place: Place) -> None:
    down = f"127.0.0.1:{config.free_ports(1)[0]}"
    importer = place.importer("4.1.2")._replace(insecure=(down,))
    with (
        scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work,
        pytest.raises(RegistryUnreachable),
    ):
        importer.resolve(parse(f"{down}/team/tool:1"), work, after(1))


def test_an_insecure_registry_is_one_that_the_policy_names(place: Place) -> None:
    importer = place.importer("4.1.2")._replace(insecure=())
    with (
        scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work,
        pytest.raises(RegistryUnreachable),
    ):
        importer.resolve(place.image(), work, after(1))


def test_a_missing_enroot_is_said(place: Place) -> None:
    importer = place.importer("4.1.2")._replace(program="/nonexistent/enroot")
    with (
        scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work,
        pytest.raises(ImportFailed, match="/nonexistent/enroot failed: it is not installed"),
    ):
        importer.import_image(place.image(), place.digest, work, after(30))


def test_a_missing_skopeo_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci, "SKOPEO", "/nonexistent/skopeo")
    importer = place.importer("4.1.2")
    with (
        scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work,
        pytest.raises(ImportFailed, match="/nonexistent/skopeo failed: it is not installed"),
    ):
        importer.resolve(place.image(), work, after(30))


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
def test_a_users_netrc_is_never_evaluated(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = place.base / "evaluated"
    marker.touch()
    marker.chmod(0o666)
    environment = _plant(place, marker)
    output = ["--output", str(place.accounts[ALICE].home / "bait.sqsh")]
    bait = [str(place.program("4.1.2")), "import", *output, f"docker://{place.registry.url}#team/tool:1"]
    processes.run_as(place.accounts[ALICE], bait, environment={**environment, "BASH_ENV": ""})
    assert f"uid={place.accounts[ALICE].uid}" in marker.read_text()  # the trap works for those who step into it
    marker.write_text("")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for version in VERSIONS:
        _imported(place, version, place.image())
    assert marker.read_text() == ""


@pytest.mark.threat(11)
def test_nothing_survives_a_killed_import(place: Place) -> None:
    pause = place.program("4.1.2").parent / "pause"
    pause.touch()
    uid = place.accounts[IMPORT].uid
    child = os.fork()
    if not child:
        try:
            _imported(place, "4.1.2", place.image())
        except WarmstartError:
            os._exit(1)
        os._exit(0)
    try:
        processes.wait_until("the half image", lambda: bool(_scratch_files(place, "image.sqsh")), 30)
        assert _scratch_files(place, "enroot.*")
        assert image_place.processes_of(uid, place.base)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pause.unlink()
    processes.wait_until("the programs' end", lambda: not image_place.processes_of(uid, place.base), 10)
    assert _scratch_files(place, "enroot.*")  # what enroot leaks …
    _imported(place, "4.1.2", place.image())  # … the next import removes, with the file system that it lies on
    assert str(place.base) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture(scope="module")
def private(place: Place) -> Iterator[Reference]:
    """Return an image of a registry that demands a user and a password."""
    with registries.private(place.base) as host:
        registries.push_private(host, f"docker://{place.image().canonical()}", "team/secret:1")
        yield parse(f"{host}/team/secret:1")


def _as_user(place: Place, user: str, reference: Reference, login: str = "", version: str = "4.1.2") -> str:
    """Import into a user's own scope, as that user. Return the path, or `ERROR: …`."""
    account = place.accounts[user]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            become(Identity(user, account.uid, account.gid))
            os.environ["ENROOT_CONFIG_PATH"] = str(account.home / ".config" / "enroot")
            importer = Enroot(Identity(user, account.uid, account.gid), (reference.registry,))
            importer = importer._replace(program=str(place.program(version)))
            where = own_images.directory_of(str(account.home), "7.0", CAPS)
            try:
                answer = own_images.obtain(reference, where, importer, login, after(60))
            except WarmstartError as error:
                answer = f"ERROR: {error.code} {error}"
            os.write(writer, answer.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer


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


def test_the_shared_import_gets_no_private_image(place: Place, private: Reference) -> None:
    for version in VERSIONS:
        importer = place.importer(version)._replace(insecure=(private.registry,))
        with (
            scratch.opened(str(place.base / "workspace"), "r1", importer.identity, CAPS) as work,
            pytest.raises(ImageForbidden),
        ):
            importer.import_image(private, place.digest, work, after(30))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sites_credentials_fetch_a_private_image(place: Place, private: Reference, version: str) -> None:
    login = Login(private.registry, "carol", PASSWORD)
    importer = place.importer(version)._replace(insecure=(private.registry,), login=login)
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
            with pytest.raises(own_images.UserImportBusy), waiting:
                pass
    finally:
        os.close(lock)
    assert _as_user(place, ALICE, place.image()) == first


def _scratch_files(place: Place, pattern: str) -> list[Path]:
    return list((place.base / "workspace").glob(f"import.*/*/{pattern}"))
