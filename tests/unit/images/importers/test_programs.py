"""The importers `oci` and `enroot`: exact command lines, settings, and whose fault each complaint of a program is."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.image_site import CAPS, RULES
from warmstart.errors import WarmstartError
from warmstart.host import namespaces, process
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.host.process import CompletedProgram
from warmstart.images import choice
from warmstart.images.credentials import Login
from warmstart.images.importers import base, client, flatten, manifest, oci, unpacked
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageMalformed,
    ImageNotForMachine,
    ImageNotFound,
    ImportFailed,
    RegistryAnswerUnusable,
    RegistryUnreachable,
    Report,
)
from warmstart.images.importers.enroot import Enroot
from warmstart.images.reference import parse
from warmstart.images.scratch import Caps, ImageTooLarge, Scratch, ScratchUnusable

pytestmark = pytest.mark.threat(1, 11)

DIGEST = f"sha256:{'ab' * 32}"
MANIFEST = b'{"schemaVersion": 2, "config": {}, "layers": []}'
IDENTITY = Identity("warmstart-import", 64211, 64211)
OCI = oci.Oci(IDENTITY, ("reg.io:5000",), mount_point="/cache")
ENROOT = Enroot(IDENTITY, ("reg.io:5000",))
PROGRAM = "/usr/bin/enroot"
PYTHON = os.path.realpath(sys.executable)
UNPACKING = [oci.UMOCI, PYTHON, oci.MKSQUASHFS]
IMAGE = parse("reg.io/a:1")
Answer = Callable[[Sequence[str]], CompletedProgram]
DONE = CompletedProgram(0, b"", b"")


class Programs:
    """Stands in for `process.run_alone`: checks how programs run, records them, and answers."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.started: list[list[str]] = []
        self.env: Mapping[str, str] = {}
        self.watch: Callable[[], None] = lambda: None
        self.answer: Answer = lambda _: DONE

    def run_alone(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,  # noqa: ARG002
        identity: Identity,
        env: Mapping[str, str],
        cwd: str,
        watch: Callable[[], None],
        mounts: int,
        network: bool,
        capabilities: Sequence[str] = (),
    ) -> CompletedProgram:
        begin = argv.index("--") + 1
        limits, command = list(argv[: begin - 1]), list(argv[begin:])
        assert mounts >= 0
        assert (identity, cwd) == (IDENTITY, self.scratch.path)
        assert network == (command[0] in (oci.SKOPEO, PROGRAM))
        assert tuple(capabilities) == (("sys_admin", "mknod") if command[0] == PROGRAM else ())
        assert command[0] == PROGRAM or {*env.values()} == {self.scratch.path}
        is_unpacking = command[0] in UNPACKING and not is_flatten(command)
        assert limits == [base.PRLIMIT, f"--fsize={256 << 30}", "--core=0", *["--cpu=61"] * is_unpacking]
        watch()
        self.env, self.watch = env, watch
        self.started.append(command)
        return self.answer(command)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Programs]:
    """Yield the stand-in, in place, with no pauses between attempts."""
    with opened_dir(str(tmp_path)) as fd:
        stand_in = Programs(Scratch(str(tmp_path), fd, CAPS))
        monkeypatch.setattr(process, "run_alone", stand_in.run_alone)
        monkeypatch.setattr(namespaces, "new_namespace", lambda *_: os.open("/dev/null", os.O_RDONLY))
        monkeypatch.setattr(base, "PAUSES_S", (0.0, 0.0))
        monkeypatch.setattr(client, "read_manifest", lambda _, text, machine, __: manifest.read(text, machine))
        yield stand_in


def is_flatten(argv: Sequence[str]) -> bool:
    return argv[0] == PYTHON and flatten.__name__ in argv[3]


def digest_of(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def phases(told: list[str]) -> Report:
    return lambda phase, _done: told.append(phase)


def showing(*manifests: bytes) -> Answer:
    """Return an answer that shows each manifest in turn, and succeeds with everything else."""
    left = iter(manifests)
    return lambda argv: CompletedProgram(0, next(left) if "--raw" in argv else b"", b"")


def flattening(completed: CompletedProgram) -> Answer:
    """Return an answer that is a program's where layers are flattened, and success elsewhere."""
    return lambda argv: completed if is_flatten(argv) else DONE


def skopeo_says(message: str) -> Answer:
    """Return an answer that fails with a line as logrus writes it."""
    quoted = message.replace('"', '\\"')
    return lambda _: CompletedProgram(1, b"", f'time="2026-01-01T00:00:00Z" level=fatal msg="{quoted}"\n'.encode())


def enroot_says(stderr: str) -> Answer:
    """Return an answer that fails as enroot does: with 1, after lines of progress."""
    text = f"[INFO] Querying registry for permission grant\n{stderr}\n"
    return lambda _: CompletedProgram(1, b"", text.encode())


# What is started, and with which settings.


@pytest.mark.parametrize("importer", [OCI, ENROOT])
def test_resolves_with_rendered_fields(programs: Programs, importer: oci.Oci | Enroot) -> None:
    """Only what is rendered from the fields reaches skopeo; TLS is waived only for listed registries."""
    programs.answer = lambda _: CompletedProgram(0, MANIFEST, b"")
    assert importer.resolve(parse("docker://reg.io:5000/a:1"), programs.scratch, after(9)) == digest_of(MANIFEST)
    assert importer.resolve(parse("reg.io#a"), programs.scratch, after(9)) == digest_of(MANIFEST)
    shared = ["/usr/bin/skopeo", "--tmpdir", programs.scratch.path, "inspect", "--no-creds"]
    assert programs.started == [
        [*shared, "--tls-verify=false", "--raw", "docker://reg.io:5000/a:1"],
        [*shared, "--tls-verify=true", "--raw", "docker://reg.io/a:latest"],
    ]


def test_oci_fetches_by_digest(programs: Programs) -> None:
    told: list[str] = []
    assert OCI.import_image(IMAGE, DIGEST, programs.scratch, after(9), phases(told)) == "image.sqsh"
    assert [argv[0] for argv in programs.started] == [oci.SKOPEO, oci.SKOPEO, PYTHON]
    assert programs.started[0][-2:] == ["--raw", f"docker://reg.io/a@{DIGEST}"]
    assert programs.started[1][-2:] == [f"docker://reg.io/a@{DIGEST}", "oci:layout:import"]
    assert programs.started[2] == flatten.command("layout", "import", "image.sqsh", CAPS, "/cache")
    assert told == ["fetching", "packing"]


@pytest.mark.parametrize(
    ("status", "layout"), [(flatten.UNSUPPORTED, "layout"), (flatten.UNSUPPORTED_ZSTD, "uncompressed")]
)
def test_layers_that_cannot_be_flattened_are_unpacked(programs: Programs, status: int, layout: str) -> None:
    """By umoci, into a tree that mksquashfs packs; it knows no zstd. `flatten` says how much CPU time that may take."""
    told: list[str] = []
    programs.answer = flattening(CompletedProgram(status, b"61\n", b"'f' occurs twice in a layer\n"))
    assert OCI.import_image(IMAGE, DIGEST, programs.scratch, after(9), phases(told)) == "image.sqsh"
    assert [argv[0] for argv in programs.started[3:]] == UNPACKING
    assert f"{layout}:import" in programs.started[3]
    assert programs.started[4] == unpacked.command(layout, "import", "rootfs", "/cache")
    assert told == ["fetching", "packing", "unpacking", "unpacking", "packing"]


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (flatten.TOO_LARGE, b"", ImageTooLarge),
        (flatten.INVALID, b"", ImageMalformed),
        (flatten.OTHER_MACHINE, b"", ImageNotForMachine),
        (flatten.UNSUPPORTED, b"0\n", ImportFailed),  # without a limit of time
        (1, b"", ImportFailed),
    ],
)
def test_an_image_that_is_wrong_is_not_unpacked(
    programs: Programs, status: int, said: bytes, kind: type[WarmstartError]
) -> None:
    """Another program would find the same."""
    programs.answer = flattening(CompletedProgram(status, said, b"a layer is not sha256:ab\n"))
    with pytest.raises(kind):
        OCI.import_image(IMAGE, DIGEST, programs.scratch, after(9))
    assert len(programs.started) == 3


def index_of(image: bytes) -> bytes:
    platform = {"os": "linux", "architecture": "arm64"}
    return json.dumps({"manifests": [{"digest": digest_of(image), "platform": platform}]}).encode()


def test_a_list_names_the_manifest_that_is_fetched(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose layers are known by then; one that is too large is not fetched."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    image = json.dumps({"layers": [{"digest": DIGEST, "size": size} for size in (70, 30)]}).encode()
    index = index_of(image)
    programs.answer = showing(index, image)
    OCI.import_image(IMAGE, digest_of(index), programs.scratch, after(9))
    assert programs.started[2][-2:] == [f"docker://reg.io/a@{digest_of(image)}", "oci:layout:import"]
    programs.answer = showing(index, image)
    with pytest.raises(ImageTooLarge):
        OCI.import_image(IMAGE, digest_of(index), programs.scratch._replace(caps=Caps(99, 9)), after(9))


AMD, ARM = ({"os": "linux", "architecture": name} for name in ("amd64", "arm64"))


@pytest.mark.parametrize(
    "shown",
    [
        {"manifests": [{"digest": DIGEST, "platform": ARM}] * 2},  # skopeo decides, which knows variants of CPUs
        {"manifests": [{"digest": DIGEST, "platform": AMD}]},
        {"manifests": [{"digest": "sha512:00", "platform": ARM}, {"digest": DIGEST, "platform": ARM | {"os": "x"}}]},
        {"manifests": [1, {"platform": []}]},
        {"layers": ["x", {"digest": "../../etc/passwd", "size": 1}]},
        {"layers": [{"digest": DIGEST, "size": -1}]},
        {"layers": [{"digest": DIGEST, "size": 1}] * manifest.MOST_LAYERS},  # no more than there may be
        {"layers": [{"digest": DIGEST, "size": manifest.LARGEST + 1}]},
    ],
)
def test_what_a_manifest_does_not_say_clearly_is_left_to_skopeo(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, shown: object
) -> None:
    """The import goes on without knowing its layers."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    text = json.dumps(shown).encode()
    programs.answer = showing(text)
    OCI.import_image(IMAGE, digest_of(text), programs.scratch, after(9))
    assert programs.started[1][-2:] == [f"docker://reg.io/a@{digest_of(text)}", "oci:layout:import"]


@pytest.mark.threat(46)
@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (json.dumps({"layers": [{}] * (manifest.MOST_LAYERS + 1)}).encode(), manifest.TOO_MANY),
        (json.dumps({"layers": [{"digest": DIGEST, "size": 1, "urls": ["x"]}]}).encode(), manifest.FOREIGN),
        (b'{"layers": []}'.ljust(process.MOST_OUTPUT), "its manifest is too long"),
    ],
)
def test_a_manifest_that_no_image_can_be_made_of_is_not_fetched(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, image: bytes, problem: str
) -> None:
    """Alone, or in a list: the registry is asked for nothing else."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    for shown in ([image], [index_of(image), image]):
        programs.started.clear()
        programs.answer = showing(*shown)
        with pytest.raises(ImageMalformed, match=problem):
            OCI.import_image(IMAGE, digest_of(shown[0]), programs.scratch, after(9))
        assert len(programs.started) == len(shown)


def test_a_manifest_that_is_another_one_is_not_read(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the registry showed has another digest: skopeo fetches what was resolved, or fails."""
    monkeypatch.setattr(client, "read_manifest", None)
    programs.answer = showing(b"{}")
    OCI.import_image(IMAGE, DIGEST, programs.scratch, after(9))
    assert programs.started[1][-2] == f"docker://reg.io/a@{DIGEST}"


def test_enroot_imports_by_digest_or_by_tag(programs: Programs) -> None:
    """A digest stands in the tag's place: 3.x knows no NAME@DIGEST. In a user's own import enroot resolves the tag."""
    result = ENROOT.import_image(parse("reg.io/team/a:1"), DIGEST, programs.scratch, after(9))
    shared = [PROGRAM, "import", "--output", f"{programs.scratch.path}/{result}"]
    assert programs.started == [[*shared, f"docker://reg.io#team/a:{DIGEST}"]]
    assert "ENROOT_ALLOW_HTTP" not in programs.env
    ENROOT.import_image(parse("reg.io:5000/a:1"), "", programs.scratch, after(9))
    assert programs.started[1] == [*shared, "docker://reg.io:5000#a:1"]
    assert programs.env["ENROOT_ALLOW_HTTP"] == "y"


def test_every_path_of_enroot_is_its_own(programs: Programs) -> None:
    """Nothing that enroot reads, writes or sources lies outside of the scratch, whatever our own environment says."""
    ENROOT.import_image(IMAGE, DIGEST, programs.scratch, after(9))
    env = dict(programs.env)
    assert env.pop("PATH") == "/usr/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    assert env.pop("SHELL") == "/bin/bash"
    assert env.pop("ENROOT_SQUASH_OPTIONS").split()[-4:] == ["-comp", "zstd", "-Xcompression-level", "3"]
    assert env.pop("ENROOT_MAX_PROCESSORS").isdecimal()
    names = {"HOME", "TMPDIR", *(f"ENROOT_{name}_PATH" for name in ("RUNTIME", "CONFIG", "CACHE", "DATA", "TEMP"))}
    assert set(env) == names
    assert all(
        env[name] == programs.scratch.path or env[name].startswith(f"{programs.scratch.path}/") for name in names
    )
    assert len({env[name] for name in names}) == 5


def test_a_half_image_of_an_earlier_attempt_is_gone(programs: Programs) -> None:
    """Enroot refuses a file that is there, so the next attempt finds none."""
    seen: list[bool] = []

    def half(argv: Sequence[str]) -> CompletedProgram:
        seen.append(os.path.exists(argv[3]))
        Path(argv[3]).write_text("half")
        return enroot_says("curl: (18) transfer closed")(argv) if len(seen) < 2 else DONE

    programs.answer = half
    ENROOT.import_image(IMAGE, DIGEST, programs.scratch, after(9))
    assert seen == [False, False]


@pytest.mark.threat(31)
def test_the_login_is_gone_before_layers_are_unpacked(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the file and what enroot keeps of it; until then they are there, since enroot tries downloads again."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "fchown", lambda *_: None)  # we may not be root
    importer = ENROOT._replace(login=Login("reg.io", "carol", "open-sesame"))
    found = []

    def fetch_and_unpack(_: Sequence[str]) -> CompletedProgram:
        token = tmp_path / "cache" / ".tokens.0" / "reg.io.7"
        token.parent.mkdir(parents=True)
        token.touch()
        (tmp_path / "enroot.abc").mkdir()
        for begun in ("manifest", "1"):
            (tmp_path / "enroot.abc" / begun).mkdir()
            now[0] += 2
            programs.watch()
            found.append(((tmp_path / "config" / ".credentials").exists(), token.exists()))
        return DONE

    programs.answer = fetch_and_unpack
    importer.import_image(IMAGE, DIGEST, programs.scratch, Deadline(999.0))
    assert found == [(True, True), (False, False)]


# Whose fault it is.


READING = "reading manifest 1 in reg.io/team/timeout: "
PINGING = "pinging container registry reg.io: "
# Seen with skopeo 1.9.3 against docker-registry 2.8 and a server that answers every request with one status.
SKOPEO_SAID = [
    (f"{READING}manifest unknown: manifest unknown", ImageNotFound),
    (f"{READING}name unknown: repository name not known to registry", ImageNotFound),
    (f"{READING}StatusCode: 404, ", ImageNotFound),
    (f"{READING}errors:\\ndenied: requested access to the resource is denied\\n", ImageNotFound),
    (f"{READING}unauthorized: authentication required", ImageForbidden),
    (f"{READING}StatusCode: 403, ", ImageForbidden),
    (f"{READING}toomanyrequests: You have reached your limit", RegistryUnreachable),
    (f"{READING}StatusCode: 429, ", RegistryUnreachable),
    (f"{READING}received unexpected HTTP status: 502 Bad Gateway", RegistryUnreachable),
    (f"{READING}requesting bearer token: invalid status code from registry 404", RegistryUnreachable),
    (f"{READING}requesting bearer token: invalid status code from registry 403", ImageForbidden),
    (f'{PINGING}Get "http://reg.io/v2/": dial tcp 127.0.0.1:80: connection refused', RegistryUnreachable),
    (f'{PINGING}Get "https://reg.io/v2/": dial tcp: lookup reg.io: no such host', RegistryUnreachable),
    (f'{PINGING}Get "http://reg.io/v2/": http: server closed idle connection', RegistryUnreachable),
    (f'{PINGING}Get "https://reg.io/v2/": x509: certificate has expired', RegistryUnreachable),
    (f'{PINGING}Get "https://reg.io/v2/": http: server gave HTTP response to HTTPS client', RegistryUnreachable),
    (f'{PINGING}Get "https://reg.io/v2/": proxyconnect tcp: dial tcp: connection refused', RegistryUnreachable),
    (f"{PINGING}invalid status code from registry 404 (Not Found)", RegistryUnreachable),
    (f"{PINGING}invalid status code from registry 403 (Forbidden)", RegistryUnreachable),
    ("choosing image instance: no image found in manifest list for architecture amd64, OS linux", ImageNotForMachine),
    ("writing blob: write /scratch/x: no space left on device", ScratchUnusable),
    ("something that nobody has seen yet", ImportFailed),
]
URL = "[ERROR] URL http://reg.io/v2/team/429/manifests/503 returned error code:"
# Seen with enroot 3.4.1 and 4.1.2, curl 7.88.1, docker-registry 2.8; statuses as common.sh renders them.
ENROOT_SAID = [
    (f"{URL} 404 Not Found", ImageNotFound),
    (f"{URL} 401 Unauthorized", ImageForbidden),
    (f"{URL} 403 Forbidden", ImageForbidden),
    (f"{URL} 429 ", RegistryUnreachable),
    (f"{URL} 502 Bad Gateway", RegistryUnreachable),
    (f"{URL} 400 Bad Request", ImportFailed),
    ("curl: (7) Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server", RegistryUnreachable),
    ("curl: (6) Could not resolve host: nohost.invalid", RegistryUnreachable),
    ("curl: (28) Operation too slow. Less than 1 bytes/sec transferred the last 30 seconds", RegistryUnreachable),
    ("[INFO] Authenticating with user: <anonymous>", ImageForbidden),
    ("[INFO] Authenticating with user: a\n[INFO] Using credentials from file: /x/.credentials", ImageForbidden),
    (f"[INFO] Using credentials from file: /x/enroot-y/.credentials\n{URL} 401", ImageForbidden),
    ("curl: (22) The requested URL returned error: 404", ImageNotFound),
    ("curl: (22) The requested URL returned error: 503", RegistryUnreachable),
    ("curl: (60) SSL certificate problem: self-signed certificate", RegistryUnreachable),
    ("curl: (35) error:0A00010B:SSL routines::wrong version number", RegistryUnreachable),
    ("curl: (35) OpenSSL SSL_connect: Connection reset by peer in connection to reg.io:443", RegistryUnreachable),
    ("curl: (56) Received HTTP code 502 from proxy after CONNECT", RegistryUnreachable),
    ("curl: (56) CONNECT tunnel failed, response 403", RegistryUnreachable),
    # What fails after a failed download is a consequence.
    ("curl: (56) Recv failure: Connection reset\n[ERROR] Could not process JSON input", RegistryUnreachable),
    ("curl: (23) Failure writing output to destination\ntee: x: No space left on device", ScratchUnusable),
    ("[ERROR] Could not parse digest information from http://reg.io/v2/team/429/manifests/503", ImportFailed),
    ("enroot-mksquashovlfs: failed to create mount namespace: Operation not permitted", ImportFailed),
    ("something that nobody has seen yet", ImportFailed),
]


@pytest.mark.parametrize(("message", "kind"), SKOPEO_SAID)
@pytest.mark.parametrize("prefix", ["Error parsing image name", "initializing source"])
def test_whose_fault_a_complaint_of_skopeo_is(
    programs: Programs, prefix: str, message: str, kind: type[WarmstartError]
) -> None:
    """The class comes from what happened, not from how a user named the image; only outages are tried again."""
    programs.answer = skopeo_says(f'{prefix} "docker://reg.io/team/timeout:1": {message}')
    with pytest.raises(WarmstartError) as raised:
        OCI.resolve(parse("reg.io/team/timeout:1"), programs.scratch, after(9))
    assert type(raised.value) is kind
    assert len(programs.started) == (3 if issubclass(kind, RegistryUnreachable) else 1)


@pytest.mark.parametrize(("stderr", "kind"), ENROOT_SAID)
def test_whose_fault_a_complaint_of_enroot_is(programs: Programs, stderr: str, kind: type[WarmstartError]) -> None:
    """The class comes from curl's and the registry's numbers, not from names; only outages are tried again."""
    programs.answer = enroot_says(stderr)
    with pytest.raises(WarmstartError) as raised:
        ENROOT.import_image(parse("reg.io/team/429:503"), DIGEST, programs.scratch, after(9))
    assert type(raised.value) is kind
    assert "[INFO]" not in str(raised.value)
    assert "[ERROR]" not in str(raised.value)
    assert len(programs.started) == (3 if issubclass(kind, RegistryUnreachable) else 1)


@pytest.mark.parametrize(
    ("skopeo", "enroot", "why"),
    [
        ("x509: certificate has expired", "(60) SSL certificate problem: expired", "its certificate is not accepted"),
        ("http: server gave HTTP response to HTTPS client", "(35) SSL: wrong version number", "it speaks plain HTTP"),
    ],
)
def test_a_registry_without_good_tls_is_told(programs: Programs, skopeo: str, enroot: str, why: str) -> None:
    programs.answer = skopeo_says(f'{PINGING}Get "https://reg.io/v2/": {skopeo}')
    with pytest.raises(RegistryUnreachable, match=why):
        OCI.resolve(IMAGE, programs.scratch, after(9))
    programs.answer = enroot_says(f"curl: {enroot}")
    with pytest.raises(RegistryUnreachable, match=why):
        ENROOT.import_image(IMAGE, DIGEST, programs.scratch, after(9))


@pytest.mark.parametrize(
    "answer", [b"", b"<html></html>", MANIFEST[:-1], b"[]", b"[" * 100_000, b'{"layers": 1}', b'{"fsLayers": []}']
)
def test_an_answer_that_is_no_manifest_has_no_digest(programs: Programs, answer: bytes) -> None:
    """A maintenance page, or the beginning of a manifest that is too long."""
    programs.answer = lambda _: CompletedProgram(0, answer, b"")
    with pytest.raises(RegistryAnswerUnusable):
        OCI.resolve(IMAGE, programs.scratch, after(9))


def test_a_registry_that_comes_back_is_not_an_error(programs: Programs) -> None:
    answers = iter([skopeo_says("connection refused")([]), CompletedProgram(0, MANIFEST, b"")])
    programs.answer = lambda _: next(answers)
    assert OCI.resolve(IMAGE, programs.scratch, after(9)) == digest_of(MANIFEST)


def test_a_registry_is_not_asked_again_beyond_the_deadline(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES_S", (60.0, 60.0))
    programs.answer = skopeo_says("connection refused")
    with pytest.raises(RegistryUnreachable):
        OCI.resolve(IMAGE, programs.scratch, after(5))
    assert len(programs.started) == 1


def test_a_program_that_is_killed_at_its_deadline(programs: Programs) -> None:
    """A silent registry is an outage of its own; a slow import may have many reasons, and is not begun again."""

    def slow(argv: Sequence[str]) -> CompletedProgram:
        raise process.ProgramTooSlow(program=argv[0])

    programs.answer = slow
    with pytest.raises(RegistryUnreachable):
        OCI.resolve(IMAGE, programs.scratch, after(9))
    programs.started.clear()
    with pytest.raises(process.ProgramTooSlow):
        ENROOT.import_image(IMAGE, DIGEST, programs.scratch, after(9))
    assert len(programs.started) == 1


@pytest.mark.parametrize("program", ["umoci", "mksquashfs"])
def test_later_programs_fail_as_themselves(programs: Programs, program: str) -> None:
    """A layer that can't be unpacked is not called missing, even if its last words sound so."""

    def answer(argv: Sequence[str]) -> CompletedProgram:
        status = flatten.UNSUPPORTED if is_flatten(argv) else int(argv[0].endswith(program))
        return CompletedProgram(status, b"61\n", b"blob not found\n")

    programs.answer = answer
    with pytest.raises(ImportFailed) as raised:
        OCI.import_image(IMAGE, DIGEST, programs.scratch, after(9))
    assert raised.value.fields["program"] == program


@pytest.mark.parametrize("missing", [oci.SKOPEO, PROGRAM])
def test_a_program_that_is_missing_is_named(programs: Programs, missing: str) -> None:
    """The registry is not blamed for one that is not installed."""

    def answer(argv: Sequence[str]) -> CompletedProgram:
        said = f"prlimit: failed to execute {missing}: No such file or directory\n" if argv[0] == missing else ""
        return CompletedProgram(127 if said else 0, MANIFEST, said.encode())

    programs.answer = answer
    with pytest.raises(ImportFailed, match=f"{missing} failed: it is not installed"):
        ENROOT.import_image(IMAGE, ENROOT.resolve(IMAGE, programs.scratch, after(9)), programs.scratch, after(9))


# Which importer it is.


@pytest.mark.parametrize(
    ("there", "shared", "own"),
    [
        ((), "oci", "oci"),
        (("umoci",), "oci", "oci"),
        (("enroot",), "enroot", "enroot"),
        (("enroot", "umoci"), "oci", "enroot"),
    ],
)
def test_auto_is_oci_where_its_programs_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: tuple[str, ...], shared: str, own: str
) -> None:
    """`auto` looks for the programs. A user's own imports are enroot's, which has that user's credentials."""
    monkeypatch.setattr(choice, "ENROOT", str(tmp_path / "enroot"))
    monkeypatch.setattr(choice, "UMOCI", str(tmp_path / "umoci"))
    for name in there:
        (tmp_path / name).touch()
    assert (choice.choose(RULES, IDENTITY, "").name, choice.installed("auto")) == (shared, shared)
    assert choice.recipe("auto") == {"oci": "oci2", "enroot": "enroot1"}[shared]
    assert choice.programs("auto") == choice.programs(shared)
    assert choice.installed(choice.of_user(RULES).importer) == own
    assert choice.of_user(RULES._replace(importer="oci")).importer == "oci"


def test_a_name_that_the_policy_would_refuse() -> None:
    with pytest.raises(ValueError, match="docker"):
        choice.choose(RULES._replace(importer="docker"), IDENTITY, "")  # type: ignore[arg-type]
