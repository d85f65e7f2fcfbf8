"""The `enroot` importer: command lines, settings, and whose fault a complaint is."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.lib.image_site import CAPS
from warmstart.errors import WarmstartError
from warmstart.host import namespaces, process
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.host.process import CompletedProgram
from warmstart.images.credentials import Login
from warmstart.images.importers import base, manifest, oci
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageNotFound,
    ImportFailed,
    RegistryCertificateInvalid,
    RegistryNotEncrypted,
    RegistryUnreachable,
)
from warmstart.images.importers.client import ImportUserClient
from warmstart.images.importers.enroot import Enroot
from warmstart.images.reference import parse
from warmstart.images.scratch import Scratch, ScratchUnusable

pytestmark = pytest.mark.threat(11)

DIGEST = f"sha256:{'ab' * 32}"
MANIFEST = b'{"schemaVersion": 2, "config": {}, "layers": []}'


IDENTITY = Identity("warmstart-import", 64211, 64211)


IMPORTER = Enroot(IDENTITY, ("reg.io:5000",))


Answer = Callable[[Sequence[str]], CompletedProgram]


class Programs:
    """Stands in for `process.run_alone`: records and answers."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.started: list[list[str]] = []
        self.env: Mapping[str, str] = {}
        self.watch: Callable[[], None] | None = None
        self.answer: Answer = lambda _: CompletedProgram(0, MANIFEST, b"")

    def run_alone(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,  # noqa: ARG002
        identity: Identity,
        env: Mapping[str, str],
        cwd: str,
        watch: Callable[[], None] | None,
        mounts: int,
        network: bool,
        capabilities: Sequence[str] = (),
    ) -> CompletedProgram:
        assert mounts >= 0
        assert (identity, cwd, network) == (IDENTITY, self.directory, True)
        assert list(argv[:4]) == ["/usr/bin/prlimit", f"--fsize={256 << 30}", "--core=0", "--"]
        if argv[4] == oci.SKOPEO:
            assert not capabilities
        else:
            assert (argv[4], tuple(capabilities)) == ("/usr/bin/enroot", ("sys_admin", "mknod"))
        self.env = env
        self.watch = watch
        self.started.append(list(argv[4:]))
        return self.answer(argv[4:])


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Programs:
    """Return the stand-in, in place, with no pauses between attempts."""
    stand_in = Programs(tmp_path)
    monkeypatch.setattr(process, "run_alone", stand_in.run_alone)
    monkeypatch.setattr(namespaces, "new_namespace", lambda *_: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(base, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(ImportUserClient, "read_manifest", lambda _, text, machine, __: manifest.read(text, machine))
    return stand_in


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield Scratch(str(tmp_path), fd, CAPS)
    os.close(fd)


def saying(stderr: str) -> Answer:
    """Return an answer that fails as enroot does: with 1, after lines of progress."""
    text = f"[INFO] Querying registry for permission grant\n{stderr}\n"
    return lambda _: CompletedProgram(1, b"", text.encode())


def test_asks_skopeo_for_the_digest(programs: Programs, scratch: Scratch) -> None:
    digest = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
    assert IMPORTER.resolve(parse("docker://reg.io:5000/a:1"), scratch, after(9)) == digest
    assert [argv[0] for argv in programs.started] == [oci.SKOPEO]
    assert "--tls-verify=false" in programs.started[0]


def test_imports_by_digest(programs: Programs, scratch: Scratch) -> None:
    result = IMPORTER.import_image(parse("reg.io/team/a:1"), DIGEST, scratch, after(9))
    uri = f"docker://reg.io#team/a:{DIGEST}"
    assert programs.started == [["/usr/bin/enroot", "import", "--output", f"{scratch.path}/{result}", uri]]
    assert "ENROOT_ALLOW_HTTP" not in programs.env
    IMPORTER.import_image(parse("reg.io:5000/a:1"), DIGEST, scratch, after(9))
    assert programs.env["ENROOT_ALLOW_HTTP"] == "y"


def test_imports_a_tag_where_nobody_resolved_it(programs: Programs, scratch: Scratch) -> None:
    IMPORTER.import_image(parse("reg.io/team/a:1"), "", scratch, after(9))
    assert programs.started[0][-1] == "docker://reg.io#team/a:1"


def test_every_path_is_its_own(programs: Programs, scratch: Scratch) -> None:
    IMPORTER.import_image(parse("reg.io/a"), DIGEST, scratch, after(9))
    env = dict(programs.env)
    assert env.pop("PATH") == "/usr/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    assert env.pop("SHELL") == "/bin/bash"
    assert env.pop("ENROOT_SQUASH_OPTIONS").split()[-4:] == ["-comp", "zstd", "-Xcompression-level", "3"]
    assert env.pop("ENROOT_MAX_PROCESSORS").isdecimal()
    names = {"HOME", "TMPDIR", *(f"ENROOT_{name}_PATH" for name in ("RUNTIME", "CONFIG", "CACHE", "DATA", "TEMP"))}
    assert set(env) == names
    assert all(env[name] == scratch.path or env[name].startswith(f"{scratch.path}/") for name in names)
    assert len({env[name] for name in names}) == 5


@pytest.mark.parametrize("missing", [oci.SKOPEO, "/usr/bin/enroot"])
def test_a_program_that_is_missing_is_named(programs: Programs, scratch: Scratch, missing: str) -> None:
    def answer(argv: Sequence[str]) -> CompletedProgram:
        said = f"prlimit: failed to execute {missing}: No such file or directory\n" if argv[0] == missing else ""
        return CompletedProgram(127 if said else 0, MANIFEST, said.encode())

    programs.answer = answer
    with pytest.raises(ImportFailed, match=f"{missing} failed: it is not installed"):
        IMPORTER.import_image(
            parse("reg.io/a"), IMPORTER.resolve(parse("reg.io/a"), scratch, after(9)), scratch, after(9)
        )


URL = "http://reg.io/v2/team/429/manifests/503"


# Seen with enroot 3.4.1 and 4.1.2, curl 7.88.1, docker-registry 2.8; statuses as common.sh renders them.
SAID = [
    (f"[ERROR] URL {URL} returned error code: 404 Not Found", ImageNotFound),
    (f"[ERROR] URL {URL} returned error code: 401 Unauthorized", ImageForbidden),
    (f"[ERROR] URL {URL} returned error code: 403 Forbidden", ImageForbidden),
    (f"[ERROR] URL {URL} returned error code: 429 ", RegistryUnreachable),
    (f"[ERROR] URL {URL} returned error code: 502 Bad Gateway", RegistryUnreachable),
    (f"[ERROR] URL {URL} returned error code: 400 Bad Request", ImportFailed),
    ("curl: (7) Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server", RegistryUnreachable),
    ("curl: (6) Could not resolve host: nohost.invalid", RegistryUnreachable),
    ("curl: (28) Operation too slow. Less than 1 bytes/sec transferred the last 30 seconds", RegistryUnreachable),
    ("[INFO] Authenticating with user: <anonymous>", ImageForbidden),
    ("[INFO] Authenticating with user: a\n[INFO] Using credentials from file: /x/.credentials", ImageForbidden),
    (
        f"[INFO] Using credentials from file: /x/enroot-y/.credentials\n[ERROR] URL {URL} returned error code: 401",
        ImageForbidden,
    ),
    ("curl: (22) The requested URL returned error: 404", ImageNotFound),
    ("curl: (22) The requested URL returned error: 503", RegistryUnreachable),
    ("curl: (60) SSL certificate problem: self-signed certificate", RegistryCertificateInvalid),
    ("curl: (35) error:0A00010B:SSL routines::wrong version number", RegistryNotEncrypted),
    ("curl: (35) OpenSSL SSL_connect: Connection reset by peer in connection to reg.io:443", RegistryUnreachable),
    ("curl: (56) Received HTTP code 502 from proxy after CONNECT", RegistryUnreachable),
    ("curl: (56) CONNECT tunnel failed, response 502", RegistryUnreachable),
    ("curl: (56) CONNECT tunnel failed, response 403", RegistryUnreachable),
    ("curl: (23) Failure writing output to destination\ntee: x: No space left on device", ScratchUnusable),
    ("[ERROR] Could not parse digest information from http://reg.io/v2/team/429/manifests/503", ImportFailed),
    ("enroot-mksquashovlfs: failed to create mount namespace: Operation not permitted", ImportFailed),
    ("something that nobody has seen yet", ImportFailed),
]


@pytest.mark.parametrize(("stderr", "kind"), SAID)
def test_says_whose_fault_it_is(programs: Programs, scratch: Scratch, stderr: str, kind: type[WarmstartError]) -> None:
    programs.answer = saying(stderr)
    with pytest.raises(WarmstartError) as raised:
        IMPORTER.import_image(parse("reg.io/team/429:503"), DIGEST, scratch, after(9))
    assert type(raised.value) is kind
    assert "[INFO]" not in str(raised.value)
    assert "[ERROR]" not in str(raised.value)
    assert len(programs.started) == (3 if issubclass(kind, RegistryUnreachable) else 1)


def test_the_first_complaint_counts(programs: Programs, scratch: Scratch) -> None:
    programs.answer = saying("curl: (56) Recv failure: Connection reset by peer\n[ERROR] Could not process JSON input")
    with pytest.raises(RegistryUnreachable):
        IMPORTER.import_image(parse("reg.io/a"), DIGEST, scratch, after(9))


def test_a_half_image_of_an_earlier_attempt_is_gone(programs: Programs, scratch: Scratch) -> None:
    seen: list[bool] = []

    def half(argv: Sequence[str]) -> CompletedProgram:
        seen.append(os.path.exists(argv[3]))
        Path(argv[3]).write_text("half")
        return saying("curl: (18) transfer closed")(argv) if len(seen) < 2 else CompletedProgram(0, b"", b"")

    programs.answer = half
    IMPORTER.import_image(parse("reg.io/a"), DIGEST, scratch, after(9))
    assert seen == [False, False]


@pytest.mark.threat(31)
def test_the_login_is_gone_before_layers_are_unpacked(
    programs: Programs, scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the file and what enroot keeps of it; until then they are there, since enroot tries downloads again."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "fchown", lambda *_: None)  # we may not be root
    importer = IMPORTER._replace(login=Login("reg.io", "carol", "open-sesame"))
    found = []

    def fetch_and_unpack(_: Sequence[str]) -> CompletedProgram:
        token = tmp_path / "cache" / ".tokens.0" / "reg.io.7"
        token.parent.mkdir(parents=True)
        token.touch()
        (tmp_path / "enroot.abc").mkdir()
        for unpacked in ("manifest", "1"):
            (tmp_path / "enroot.abc" / unpacked).mkdir()
            now[0] += 2
            assert programs.watch is not None
            programs.watch()
            found.append(((tmp_path / "config" / ".credentials").exists(), token.exists()))
        return CompletedProgram(0, b"", b"")

    programs.answer = fetch_and_unpack
    importer.import_image(parse("reg.io/a"), DIGEST, scratch, Deadline(999.0))
    assert found == [(True, True), (False, False)]


def slow(argv: Sequence[str]) -> CompletedProgram:
    raise process.ProgramTooSlow(program=argv[0])


def test_a_slow_import_is_not_begun_again(programs: Programs, scratch: Scratch) -> None:
    programs.answer = slow
    with pytest.raises(process.ProgramTooSlow):
        IMPORTER.import_image(parse("reg.io/a"), DIGEST, scratch, after(9))
    assert len(programs.started) == 1
