"""The `oci` importer: exact command lines, and whose fault each complaint of skopeo is."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import pytest

from tests.lib.image_site import CAPS
from warmstart.errors import WarmstartError
from warmstart.host import namespaces, process
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.host.process import CompletedProgram
from warmstart.images.importers import base, flatten, manifest, oci, unpacked
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageMalformed,
    ImageNotForMachine,
    ImageNotFound,
    ImportFailed,
    RegistryAnswerUnusable,
    RegistryCertificateInvalid,
    RegistryNotEncrypted,
    RegistryUnreachable,
    Report,
)
from warmstart.images.importers.client import ImportUserClient
from warmstart.images.reference import parse
from warmstart.images.scratch import Caps, ImageTooLarge, Scratch, ScratchUnusable

pytestmark = pytest.mark.threat(1)

DIGEST = f"sha256:{'ab' * 32}"
MANIFEST = b'{"schemaVersion": 2, "config": {}, "layers": []}'
SCRATCH = Scratch("/scratch", -1, CAPS)
IMPORTER = oci.Oci(Identity("warmstart-import", 64211, 64211), ("reg.io:5000",), mount_point="/cache")
PYTHON = os.path.realpath(sys.executable)
UNPACKING = ("/usr/bin/umoci", PYTHON, "/usr/bin/mksquashfs")
Answer = Callable[[Sequence[str]], CompletedProgram]


class Programs:
    """Stands in for `process.run_alone`; records what was to be run, and answers."""

    def __init__(self) -> None:
        self.started: list[tuple[list[str], bool]] = []
        self.answer: Answer = lambda _: CompletedProgram(0, b"", b"")

    def run_alone(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,  # noqa: ARG002
        identity: Identity,
        env: Mapping[str, str],
        cwd: str,
        capabilities: Sequence[str],
        watch: Callable[[], None],
        mounts: int,
        network: bool,
    ) -> CompletedProgram:
        assert mounts >= 0
        assert not capabilities
        assert identity == IMPORTER.identity
        assert cwd == "/scratch"
        watch()
        assert set(env.values()) == {"/scratch"}
        begin = argv.index("--") + 1
        assert network == (argv[begin] == oci.SKOPEO)
        assert list(argv[:3]) == ["/usr/bin/prlimit", f"--fsize={256 << 30}", "--core=0"]
        is_unpacking = argv[begin] in UNPACKING and not is_flatten(argv[begin:])
        assert list(argv[3 : begin - 1]) == (["--cpu=61"] if is_unpacking else [])
        self.started.append((list(argv[begin:]), network))
        return self.answer(argv[begin:])


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Return the stand-in, in place, with no pauses between attempts."""
    stand_in = Programs()
    monkeypatch.setattr(process, "run_alone", stand_in.run_alone)
    monkeypatch.setattr(namespaces, "new_namespace", lambda *_: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(base, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(ImportUserClient, "read_manifest", lambda _, text, machine, __: manifest.read(text, machine))
    return stand_in


def saying(message: str) -> Answer:
    """Return an answer that fails with a line as logrus writes it."""
    quoted = message.replace('"', '\\"')
    return lambda _: CompletedProgram(1, b"", f'time="2026-01-01T00:00:00Z" level=fatal msg="{quoted}"\n'.encode())


def test_resolves_with_rendered_fields(programs: Programs) -> None:
    programs.answer = lambda _: CompletedProgram(0, MANIFEST, b"")
    assert IMPORTER.resolve(parse("docker://reg.io:5000/a:1"), SCRATCH, after(9)) == digest_of(MANIFEST)
    assert IMPORTER.resolve(parse("reg.io#a"), SCRATCH, after(9)) == digest_of(MANIFEST)
    shared = ["/usr/bin/skopeo", "--tmpdir", "/scratch", "inspect", "--no-creds"]
    assert programs.started == [
        ([*shared, "--tls-verify=false", "--raw", "docker://reg.io:5000/a:1"], True),
        ([*shared, "--tls-verify=true", "--raw", "docker://reg.io/a:latest"], True),
    ]


def phases(told: list[str]) -> Report:
    return lambda phase, _done: told.append(phase)


def test_fetches_by_digest_and_only_fetching_has_the_network(programs: Programs) -> None:
    told: list[str] = []
    assert IMPORTER.import_image(parse("reg.io/a:1"), DIGEST, SCRATCH, after(9), phases(told)) == "image.sqsh"
    assert [(argv[0], network) for argv, network in programs.started] == [
        ("/usr/bin/skopeo", True),
        ("/usr/bin/skopeo", True),
        (PYTHON, False),
    ]
    assert programs.started[2][0] == flatten.command("layout", "import", "image.sqsh", CAPS, "/cache")
    assert programs.started[0][0][-2:] == ["--raw", f"docker://reg.io/a@{DIGEST}"]
    assert programs.started[1][0][-2:] == [f"docker://reg.io/a@{DIGEST}", "oci:layout:import"]
    assert told == ["fetching", "packing"]


def is_flatten(argv: Sequence[str]) -> bool:
    """Return whether a command line is that of the program `flatten`."""
    return argv[0] == PYTHON and flatten.__name__ in argv[3]


@pytest.mark.parametrize(
    ("status", "layout"), [(flatten.UNSUPPORTED, "layout"), (flatten.UNSUPPORTED_ZSTD, "uncompressed")]
)
def test_layers_that_cannot_be_flattened_are_unpacked(programs: Programs, status: int, layout: str) -> None:
    told: list[str] = []
    unsupported = CompletedProgram(status, b"61\n", b"'f' occurs twice in a layer\n")
    programs.answer = lambda argv: unsupported if is_flatten(argv) else CompletedProgram(0, b"", b"")
    assert IMPORTER.import_image(parse("reg.io/a:1"), DIGEST, SCRATCH, after(9), phases(told)) == "image.sqsh"
    assert [argv[0] for argv, _ in programs.started[3:]] == [*UNPACKING]
    assert f"{layout}:import" in programs.started[3][0]
    assert programs.started[4][0] == unpacked.command(layout, "import", "rootfs", "/cache")
    assert told == ["fetching", "packing", "unpacking", "unpacking", "packing"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (flatten.TOO_LARGE, ImageTooLarge),
        (flatten.INVALID, ImageMalformed),
        (flatten.OTHER_MACHINE, ImageNotForMachine),
        (1, ImportFailed),
    ],
)
def test_an_image_that_is_wrong_is_not_unpacked(programs: Programs, status: int, kind: type[WarmstartError]) -> None:
    failed = CompletedProgram(status, b"", b"a layer is not sha256:ab\n")
    programs.answer = lambda argv: failed if is_flatten(argv) else CompletedProgram(0, b"", b"")
    with pytest.raises(kind):
        IMPORTER.import_image(parse("reg.io/a:1"), DIGEST, SCRATCH, after(9))
    assert len(programs.started) == 3


def showing(manifests: Sequence[bytes]) -> Answer:
    """Return an answer that shows each manifest in turn, and succeeds with everything else."""
    left = iter(manifests)
    return lambda argv: CompletedProgram(0, next(left) if "--raw" in argv else b"", b"")


def digest_of(manifest: bytes) -> str:
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def test_a_list_names_the_manifest_that_is_fetched(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    layers = [{"digest": DIGEST, "size": size} for size in (70, 30)]
    image = json.dumps({"layers": layers}).encode()
    platform = {"os": "linux", "architecture": "arm64"}
    index = json.dumps({"manifests": [{"digest": digest_of(image), "platform": platform}]}).encode()
    programs.answer = showing([index, image])
    IMPORTER.import_image(parse("reg.io/a:1"), digest_of(index), SCRATCH, after(9))
    assert programs.started[2][0][-2:] == [f"docker://reg.io/a@{digest_of(image)}", "oci:layout:import"]
    programs.answer = showing([index, image])
    with pytest.raises(ImageTooLarge):
        IMPORTER.import_image(parse("reg.io/a:1"), digest_of(index), SCRATCH._replace(caps=Caps(99, 9)), after(9))


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
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    platform = {"os": "linux", "architecture": "arm64"}
    index = json.dumps({"manifests": [{"digest": digest_of(image), "platform": platform}]}).encode()
    for shown in ([image], [index, image]):
        programs.started.clear()
        programs.answer = showing(shown)
        with pytest.raises(ImageMalformed, match=problem):
            IMPORTER.import_image(parse("reg.io/a:1"), digest_of(shown[0]), SCRATCH, after(9))
        assert len(programs.started) == len(shown)


def test_a_manifest_that_is_another_one_is_not_read(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImportUserClient, "read_manifest", None)
    programs.answer = showing([b"{}"])
    IMPORTER.import_image(parse("reg.io/a:1"), DIGEST, SCRATCH, after(9))
    assert programs.started[1][0][-2] == f"docker://reg.io/a@{DIGEST}"


@pytest.mark.parametrize("answer", [b"", b"<html></html>", MANIFEST[:-1]])
def test_an_answer_that_is_no_manifest_has_no_digest(programs: Programs, answer: bytes) -> None:
    programs.answer = lambda _: CompletedProgram(0, answer, b"")
    with pytest.raises(RegistryAnswerUnusable):
        IMPORTER.resolve(parse("reg.io/a"), SCRATCH, after(9))


# Seen with skopeo 1.9.3 against docker-registry 2.8 and a server that answers every request with one status.
SAID = [
    ("reading manifest 1 in reg.io/team/timeout: manifest unknown: manifest unknown", ImageNotFound),
    ("reading manifest 1 in reg.io/team/timeout: name unknown: repository name not known to registry", ImageNotFound),
    ("reading manifest 1 in reg.io/team/timeout: StatusCode: 404, ", ImageNotFound),
    (
        "reading manifest 1 in reg.io/team/timeout: errors:\\ndenied: requested access to the resource is denied\\n",
        ImageNotFound,
    ),
    ("reading manifest 1 in reg.io/team/timeout: unauthorized: authentication required", ImageForbidden),
    ("reading manifest 1 in reg.io/team/timeout: StatusCode: 403, ", ImageForbidden),
    ("reading manifest 1 in reg.io/team/timeout: toomanyrequests: You have reached your limit", RegistryUnreachable),
    ("reading manifest 1 in reg.io/team/timeout: StatusCode: 429, ", RegistryUnreachable),
    (
        "reading manifest 1 in reg.io/team/timeout: received unexpected HTTP status: 502 Bad Gateway",
        RegistryUnreachable,
    ),
    (
        'pinging container registry reg.io: Get "http://reg.io/v2/": dial tcp 127.0.0.1:80: connection refused',
        RegistryUnreachable,
    ),
    ('pinging container registry reg.io: Get "https://reg.io/v2/": dial tcp: lookup reg.io: no such host',
     RegistryUnreachable),
    ('pinging container registry reg.io: Get "http://reg.io/v2/": http: server closed idle connection',
     RegistryUnreachable),  # stopped just then
    ('pinging container registry reg.io: Get "https://reg.io/v2/": x509: certificate has expired or is not yet valid',
     RegistryCertificateInvalid),
    ('pinging container registry reg.io: Get "https://reg.io/v2/": http: server gave HTTP response to HTTPS client',
     RegistryNotEncrypted),
    ('pinging container registry reg.io: Get "https://reg.io/v2/": proxyconnect tcp: dial tcp: connection refused',
     RegistryUnreachable),
    ("pinging container registry reg.io: invalid status code from registry 404 (Not Found)", RegistryUnreachable),
    ("pinging container registry reg.io: invalid status code from registry 403 (Forbidden)", RegistryUnreachable),
    ("reading manifest 1 in reg.io/team/timeout: requesting bearer token: invalid status code from registry 404",
     RegistryUnreachable),
    ("reading manifest 1 in reg.io/team/timeout: requesting bearer token: invalid status code from registry 403",
     ImageForbidden),
    (
        'choosing image instance: no image found in manifest list for architecture amd64, variant "", OS linux',
        ImageNotForMachine,
    ),
    ("writing blob: write /scratch/x: no space left on device", ScratchUnusable),
    ("something that nobody has seen yet", ImportFailed),
]  # fmt: skip


@pytest.mark.parametrize(("message", "kind"), SAID)
@pytest.mark.parametrize(
    "prefix",
    [
        'Error parsing image name "docker://reg.io/team/timeout:1": ',
        "initializing source docker://reg.io/team/timeout:1: ",
    ],
)
def test_says_whose_fault_it_is(programs: Programs, prefix: str, message: str, kind: type[WarmstartError]) -> None:
    programs.answer = saying(prefix + message)
    with pytest.raises(WarmstartError) as raised:
        IMPORTER.resolve(parse("reg.io/team/timeout:1"), SCRATCH, after(9))
    assert type(raised.value) is kind
    assert len(programs.started) == (3 if issubclass(kind, RegistryUnreachable) else 1)


def test_a_registry_that_comes_back_is_not_an_error(programs: Programs) -> None:
    answers = iter([saying("connection refused")([]), CompletedProgram(0, MANIFEST, b"")])
    programs.answer = lambda _: next(answers)
    assert IMPORTER.resolve(parse("reg.io/a"), SCRATCH, after(9)) == digest_of(MANIFEST)


def test_does_not_wait_beyond_the_deadline(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES_S", (60.0, 60.0))
    programs.answer = saying("connection refused")
    with pytest.raises(RegistryUnreachable):
        IMPORTER.resolve(parse("reg.io/a"), SCRATCH, after(5))
    assert len(programs.started) == 1


def test_a_silent_registry_is_unreachable(programs: Programs) -> None:
    def slow(argv: Sequence[str]) -> CompletedProgram:
        raise process.ProgramTooSlow(program=argv[0])

    programs.answer = slow
    with pytest.raises(RegistryUnreachable):
        IMPORTER.resolve(parse("reg.io/a"), SCRATCH, after(9))


@pytest.mark.parametrize("program", ["umoci", "mksquashfs"])
def test_later_programs_fail_as_themselves(programs: Programs, program: str) -> None:
    def answer(argv: Sequence[str]) -> CompletedProgram:
        status = flatten.UNSUPPORTED if is_flatten(argv) else int(argv[0].endswith(program))
        return CompletedProgram(status, b"61\n", b"blob not found\n")

    programs.answer = answer
    with pytest.raises(ImportFailed) as raised:
        IMPORTER.import_image(parse("reg.io/a"), DIGEST, SCRATCH, after(9))
    assert raised.value.fields["program"] == program


def test_nothing_is_unpacked_without_a_limit_of_time(programs: Programs) -> None:
    unlimited = CompletedProgram(flatten.UNSUPPORTED, b"0\n", b"'f' occurs twice in a layer\n")
    programs.answer = lambda argv: unlimited if is_flatten(argv) else CompletedProgram(0, b"", b"")
    with pytest.raises(ImportFailed):
        IMPORTER.import_image(parse("reg.io/a"), DIGEST, SCRATCH, after(9))
