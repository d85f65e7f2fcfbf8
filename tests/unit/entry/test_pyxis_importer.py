"""pyxis's importer, as the job's user: the store's image, the job's own copy, or an import of the user's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.node import NODE, NUMBA, Node
from tests.lib.superblocks import image
from warmstart import view, wing
from warmstart.entry import pyxis_importer
from warmstart.entry.pyxis_importer import parse_uri
from warmstart.errors import WarmstartError
from warmstart.images.choice import recipe
from warmstart.images.importers import enroot
from warmstart.images.importers.base import Importer
from warmstart.images.reference import Reference
from warmstart.images.store import uses
from warmstart.images.user import own_images
from warmstart.images.user.own_images import Directory, Made
from warmstart.paths import CACHES
from warmstart.policy.keys import Match
from warmstart.store.layout import StoreFailed

HEX = "ab" * 32
BY_DIGEST = f"docker://reg.example.com/a@sha256:{HEX}"


class Step:
    """A step of job 7 on a node, and what is imported for its user: references, each with the login."""

    def __init__(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        self.imported: list[tuple[str, str]] = []
        self._prefix = node.installation.prefix
        self._capsys = capsys

    def get(self, uri: str) -> tuple[int, str, str]:
        status = pyxis_importer.main(self._prefix, ["get", uri])
        shown = self._capsys.readouterr()
        return status, shown.out, shown.err

    def obtain(
        self, reference: Reference, _directory: Directory, importer: Importer, login: str, _deadline: object
    ) -> str:
        assert importer.identity.uid == os.getuid()
        self.imported.append((reference.canonical(), login))
        return "/own.sqsh"


@pytest.fixture
def step(node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Step:
    made = Step(node, capsys)
    node.environ(SLURM_JOB_ID="7", SLURM_STEP_ID="0")
    monkeypatch.setattr(own_images, "obtain", made.obtain)
    return made


def stored(site: Node) -> str:
    kind = f"{os.uname().machine}.{recipe(site.policy.images.importer)}"
    path = site.store / "images" / f"{HEX}.{kind}.sqsh"
    path.parent.mkdir()
    path.write_bytes(image())
    return str(path)


def test_an_image_that_may_go_is_copied(node: Node, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not used for long, so it may be evicted while the job runs."""
    path = stored(node)

    def copied(_reference: Reference, _directory: object, source: str, _deadline: object) -> str:
        assert source == path
        return "/copy.sqsh"

    monkeypatch.setattr(own_images, "copied", copied)
    status, out, err = step.get(BY_DIGEST)
    assert (status, out, "copying it for you alone" in err, step.imported) == (0, "/copy.sqsh\n", True, [])


@pytest.mark.parametrize("case", ["missing", "damaged", "login"])
def test_what_the_store_does_not_serve_is_the_users_own(node: Node, step: Step, case: str) -> None:
    path = stored(node)
    if case == "missing":
        os.unlink(path)
    elif case == "damaged":
        Path(path).write_bytes(b"x")
    uri = BY_DIGEST.replace("docker://", "docker://carol@").replace("/a@", "#a@") if case == "login" else BY_DIGEST
    status, out, err = step.get(uri)
    assert (status, out, "importing it for you alone" in err) == (0, "/own.sqsh\n", True)
    assert step.imported == [(f"reg.example.com/a@sha256:{HEX}", "carol" if case == "login" else "")]


@pytest.mark.parametrize("case", ["off", "no warm", "observed", "no rule", "observed, odd variables", "in no registry"])
def test_where_warmstart_stays_out_of_the_way_enroot_imports(
    node: Node, step: Step, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """With the user's own settings, whatever the store has and the policy allows; `release` leaves nothing."""
    stored(node)
    elsewhere = NUMBA._replace(match=Match(node=("n2",)))
    policy = node.policy
    if case == "off":
        Path(node.installation.off_switch).touch()
    elif case == "no warm":
        wish = Path(node.paths.view, "7", view.LEFT_ALONE)
        wish.parent.mkdir(parents=True)
        wish.touch()
    elif case == "no rule":
        node.write(policy._replace(rules=(elsewhere,)))
    elif "observed" in case:
        node.write(policy._replace(mode="observe"))
    if "odd" in case:
        node.environ(SLURM_HET_JOB_ID="x")
    program = node.base / "enroot"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$ENROOT_OWN $*" >"$3"\n')
    program.chmod(0o755)
    monkeypatch.setattr(enroot, "PROGRAM", str(program))
    monkeypatch.setattr(own_images, "FALLBACK", str(node.base))
    node.environ(ENROOT_OWN="mine")
    uri = "dockerd://local/a:1" if case == "in no registry" else "docker://elsewhere.example.org#a:1"
    status, out, err = step.get(uri)
    path = Path(out.strip())
    assert (status, err, step.imported) == (0, "", [])
    assert path.read_text() == f"mine import --output {path} {uri}\n"
    assert path.parent.name.startswith(f"warmstart-step-{os.getuid()}-7.0-")
    for number, remains in (("1", True), ("0", False), ("0", False)):
        node.environ(SLURM_STEP_ID=number)
        assert pyxis_importer.main(node.installation.prefix, ["release"]) == 0
        assert path.parent.exists() is remains
    program.write_text("#!/bin/sh\necho '[ERROR] no such image' >&2\nexit 1\n")
    status, out, err = step.get(uri)
    assert (status, out, "no such image" in err) == (1, "", True)


def test_a_rule_for_this_node_serves_from_the_store(node: Node, step: Step) -> None:
    canary = NUMBA._replace(match=Match(node=(NODE,)), mode="enforce")
    node.write(node.policy._replace(rules=(canary,), mode="observe"))
    path = stored(node)
    uses.record(str(node.store), Path(path).name.removesuffix(".sqsh"), NODE)
    os.makedirs(node.paths.state)
    node.environ(SLURMD_NODENAME="n2")
    assert step.get(BY_DIGEST) == (0, f"{path}\n", "")


def test_without_a_policy_it_does_what_pyxis_would(node: Node, step: Step) -> None:
    os.unlink(node.installation.compiled_policy)
    status, out, err = step.get("docker://elsewhere.example.org/a:1")
    assert (status, out, "without a policy" in err) == (0, "/own.sqsh\n", True)
    assert step.imported == [("elsewhere.example.org/a:1", "")]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("docker://evil.example.com/a:1", "registry evil.example.com is not one that this cluster allows"),
        ("docker://UPPER", "is not an image reference"),
        ("docker://podman://local", "is not an image reference"),
        ("docker://a$(id)@b#c", "is not an image reference"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused(step: Step, uri: str, words: str) -> None:
    status, out, err = step.get(uri)
    assert (status, out, step.imported) == (1, "", [])
    assert words in err
    assert all(line.startswith("warmstart: ") for line in err.splitlines())


@pytest.mark.parametrize("has", [True, False])
def test_a_wing_may_have_a_way_to_an_image(node: Node, step: Step, monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    made = "/store/a.sqsh"

    def make(_installation: object, _reference: object, _policy: object, find: Callable[[], str]) -> Made | None:
        return Made(find() or made) if has else None

    maker = SimpleNamespace(make=make)
    monkeypatch.setattr(wing, "with_part", lambda part: [f"x.{part}"])
    monkeypatch.setattr(wing, "load", {"x.maker": maker}.get)
    noted: list[str] = []
    monkeypatch.setattr(pyxis_importer, "_note_use", lambda _, path: noted.append(path))
    assert step.get(BY_DIGEST)[:2] == (0, f"{made if has else '/own.sqsh'}\n")
    assert (noted, len(step.imported)) == ([made] if has else [], not has)


class Job:
    """A job with caches, and a wing that makes more of them."""

    def __init__(self, site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.view = site.base / "7.0a1b2c3d", Path(site.paths.view, "7")
        for directory in (self.root / "tmp", self.root / "cache", self.view):
            directory.mkdir(parents=True)
        (self.view / "environment").write_text(f"{site.base}\n/constant\n{self.root}/cache\n")
        self.asked = 0
        self.made: Made | WarmstartError | None = None
        self.finds: list[Callable[[], str]] = []
        monkeypatch.setattr(wing, "with_part", lambda part: [f"x.{part}"])
        monkeypatch.setattr(wing, "load", {"x.maker": SimpleNamespace(make=self.make)}.get)

    def make(self, _installation: object, _reference: object, _policy: object, find: Callable[[], str]) -> Made | None:
        self.asked += 1
        self.finds.append(find)
        if isinstance(self.made, WarmstartError):
            raise self.made
        return self.made

    @property
    def note(self) -> str | None:
        path = self.root / "cache/.steps/0"
        return path.read_text() if path.exists() else None

    def show(self, text: str) -> None:
        (self.view / view.caches_of(BY_DIGEST.removeprefix("docker://"), "")).write_text(text)
        (self.root / CACHES / text.partition(" ")[0]).mkdir(parents=True)

    def left(self, name: str) -> str | None:
        path = self.root / "tmp/warmstart-images" / name
        return path.read_text() if path.exists() else None


def test_the_hook_is_told_which_caches_a_step_has(node: Node, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    path, job = stored(node), Job(node, monkeypatch)
    uses.record(str(node.store), Path(path).name.removesuffix(".sqsh"), NODE)
    job.made = Made(path, "c0ffee00")
    assert step.get(BY_DIGEST)[1] == f"{path}\n"
    assert (job.note, job.asked) == ("c0ffee00\n", 1)
    job.show(f"0ddba11d {path}\n")
    assert step.get(BY_DIGEST)[1] == f"{path}\n"
    assert (job.note, job.asked, step.imported) == ("0ddba11d\n", 1, [])
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    assert step.get(BY_DIGEST)[1] == f"{path}\n"
    assert (job.note, job.asked) == ("c0ffee00\n", 2)  # what a step on other nodes has may differ


@pytest.mark.parametrize("made", [Made("/made", "c0ffee00"), Made("/made"), None, StoreFailed(what="x", problem="y")])
def test_a_step_that_may_get_more_asks_and_has_no_less(
    node: Node, step: Step, monkeypatch: pytest.MonkeyPatch, made: Made | WarmstartError | None
) -> None:
    path, job = stored(node), Job(node, monkeypatch)
    job.show(f"0ddba11d {path}\n{view.MORE}")
    job.made = made
    has_caches = isinstance(made, Made) and made.caches
    expected = ("/made\n", "c0ffee00\n") if has_caches else (f"{path}\n", "0ddba11d\n")
    assert (step.get(BY_DIGEST)[1], job.note) == expected
    assert (job.asked, step.imported) == (1, [])


COLD = (
    f"warmstart: image {BY_DIGEST.removeprefix('docker://')} has no caches of its own on {NODE}: tools keep what they "
    "compile where they do without warmstart; to have it warm, name it at submission as the job's first image "
    "(--warm-image, or image= in the comment)\n"
)
HAS = "=A=~/a\nA=~/own\n"  # of a profile of ours


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ((BY_DIGEST, None, "", HAS), COLD),
        ((BY_DIGEST, Made("/made"), "reg.example.com/b:1 /b.sqsh\n", HAS), COLD),  # root makes no more of them
        ((BY_DIGEST, Made("/made", "c0ffee00"), "", HAS), None),
        ((BY_DIGEST, None, "", ""), None),  # the job has none for any image
        (("docker://reg.example.com/a:1", None, "reg.example.com/a:1 \n", HAS), None),
        (("dockerd://a", None, "", HAS), None),
        ((BY_DIGEST, None, "", "A=/constant/a\n"), COLD),  # of a profile of the site's own, without known defaults
        ((BY_DIGEST, None, "", "!A=/constant/a\n"), COLD),
        ((BY_DIGEST, None, "", "WARMSTART_FILES=/constant/files/x\nB=/constantly/b\n"), None),
    ],
)
def test_what_would_make_an_image_warm_is_noted(
    node: Node, step: Step, monkeypatch: pytest.MonkeyPatch, case: tuple[str, Made | None, str, str], told: str | None
) -> None:
    monkeypatch.setattr(own_images, "plain", lambda *_: "/plain.sqsh")
    job = Job(node, monkeypatch)
    uri, job.made, known, profiles = case
    if known:
        (job.view / "images").write_text(known)
    with (job.view / "environment").open("a") as file:
        file.write(f"{profiles}!WARMSTART_CACHE=/constant\n")
    assert step.get(uri)[0] == 0
    assert job.left(".cold") == told
    if told:
        (job.root / "tmp/warmstart-images/.cold").write_text("first\n")
        assert step.get(uri.replace("/a", "/c"))[0] == 0
        assert job.left(".cold") == "first\n"


@pytest.mark.parametrize("fails", [True, False])
def test_a_stored_image_needs_no_caches(node: Node, step: Step, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """The step has it where nobody makes caches, or making them fails; without an image the failure is the step's."""
    path, job = stored(node), Job(node, monkeypatch)
    uses.record(str(node.store), Path(path).name.removesuffix(".sqsh"), NODE)
    job.made = StoreFailed(what="x", problem="y") if fails else None
    assert step.get(BY_DIGEST)[1] == f"{path}\n"
    os.unlink(path)
    status, out, _ = step.get(BY_DIGEST)
    assert (status, out) == ((1, "") if fails else (0, "/own.sqsh\n"))
    assert (job.note, len(step.imported)) == (None, 0 if fails else 1)


@pytest.mark.parametrize("days", [0, 2])
def test_root_notes_the_use_of_a_job_that_can_leave_no_note(
    node: Node, step: Step, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """It has no workspace: a wing is asked for a stored image, too, unless a use was recorded within a day.

    The step is served what it would be without, whether somebody answers or nobody has time.
    """
    rules = node.policy.images
    node.write(node.policy._replace(images=rules._replace(keep=rules.keep._replace(lease=7 * 86400))))
    path, job = stored(node), Job(node, monkeypatch)
    os.unlink(job.view / "environment")
    name = Path(path).name.removesuffix(".sqsh")
    uses.record(str(node.store), name, NODE)
    used = time.time() - days * 86400
    os.utime(node.store / "images/leases" / name, (used, used))
    for made in (Made("/other.sqsh"), None, StoreFailed(what="x", problem="y")):
        job.asked, job.made = 0, made
        assert step.get(BY_DIGEST)[:2] == (0, f"{path}\n")
        assert (job.asked, step.imported) == (1 if days else 0, [])
    assert all(find() == path for find in job.finds)


def test_a_registry_that_the_policy_lost_is_not_there_now(node: Node, step: Step) -> None:
    """The image is in the store, and another submission would be refused as this one was."""
    stored(node)
    images = node.policy.images._replace(registries=("other.example.com",))
    node.write(node.policy._replace(images=images))
    view = Path(node.paths.view, "7")
    view.mkdir(parents=True)
    told = f"warmstart: image reg.example.com/a@sha256:{HEX} is refused: …\nwarmstart: use an image …\n"
    (view / "verdict").write_text(told)
    assert step.get(BY_DIGEST) == (1, "", told)
    assert step.imported == []


def test_whoever_names_a_login_asks_nobody(node: Node, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image that the user's own credentials give access to is not the one that all may read."""
    monkeypatch.setattr(wing, "with_part", lambda _: pytest.fail("asked"))
    assert step.get("docker://carol@reg.example.com#a:1")[1] == "/own.sqsh\n"


@pytest.mark.parametrize(
    ("known", "uri", "noted"),
    [
        ("reg.example.com/a:1 /store/a.sqsh\n", "docker://reg.example.com#a:1", False),
        ("reg.example.com/b:1 /own.sqsh\n", "docker://reg.example.com/a:1", False),  # another name of the same file
        ("reg.example.com/a:1 \n", "docker://carol@reg.example.com#a:1", False),  # left to pyxis by the prolog
        ("reg.example.com/b:1 /b.sqsh\nreg.example.com/a:1 /a.sqsh\n", "docker://reg.example.com/a:1", True),
        (None, "docker://reg.example.com/a:1", False),  # then no container has the caches
    ],
)
def test_a_container_that_the_caches_are_not_for_is_noted(
    node: Node, step: Step, known: str | None, uri: str, noted: bool
) -> None:
    """They belong to the first image that the prolog knew."""
    job, view = node.base / "7.0a1b2c3d", Path(node.paths.view, "7")
    for directory in (job / "tmp", job / "cache", view):
        directory.mkdir(parents=True)
    (view / "environment").write_text(f"{node.base}\n/constant\n{job}/cache\n")
    if known is not None:
        (view / "images").write_text(known)
    assert step.get(uri)[0] == 0
    assert (job / "cache/.steps/0").exists() is noted


SENTENCES = {
    f"image reg.example.com/a@sha256:{HEX} is still missing after 9 s of waiting; its import goes on": True,
    f"image reg.example.com/a@sha256:{HEX}: its registry does not serve it now (503)": True,
    f"image reg.example.com/a@sha256:{HEX[:-1]} is still missing": False,
    "image reg.example.com/b:1 is still missing after 9 s of waiting": False,
    "the job's comment has 'bogus', which is not a valid request to warmstart": False,
}


@pytest.mark.parametrize(("sentence", "waited"), SENTENCES.items())
def test_a_job_that_must_fail_imports_nothing(node: Node, step: Step, sentence: str, waited: bool) -> None:
    """It is told why; and if that was for want of this image, that it is there now, in the place of the advice.

    So it is after warmstart was switched off, too: its tasks are told the verdict then.
    """
    stored(node)
    view = Path(node.paths.view, "7")
    view.mkdir(parents=True)
    (view / "verdict").write_text(f"warmstart: {sentence}\nwarmstart: submit the job again later\n")
    arrived = f"image reg.example.com/a@sha256:{HEX} is there now: submit the job again"
    told = f"warmstart: {sentence}\nwarmstart: {arrived if waited else 'submit the job again later'}\n"
    assert step.get(BY_DIGEST) == (1, "", told)
    Path(node.installation.off_switch).touch()
    assert step.get(BY_DIGEST) == (1, "", told)
    assert step.imported == []


@pytest.mark.parametrize(
    ("job", "step", "expected"),
    [("7", "0", "7.0"), ("../7", "0", "none.0"), ("", "x", "none.none"), ("\u0667", "1", "none.1")],
)
def test_a_forged_step_leads_nowhere(node: Node, job: str, step: str, expected: str) -> None:
    node.environ(SLURM_JOB_ID=job, SLURM_STEP_ID=step)
    assert pyxis_importer._step() == expected


@pytest.mark.parametrize("arguments", [[], ["get"], ["get", "a", "b"], ["put", "a"]])
def test_wrong_usage(node: Node, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    before = os.umask(0o022)
    assert pyxis_importer.main(node.installation.prefix, arguments) == 2
    os.umask(before)
    assert pyxis_importer.USAGE in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "reference", "login"),
    [
        ("docker://reg.io#a/b:1", "reg.io/a/b:1", ""),
        ("docker://carol@reg.io#a/b:1", "reg.io/a/b:1", "carol"),
        ("docker://$oauthtoken@nvcr.io#nvidia/x:1", "nvcr.io/nvidia/x:1", "$oauthtoken"),
        (f"docker://reg.io/a@sha256:{HEX}", f"reg.io/a@sha256:{HEX}", ""),
    ],
)
def test_a_login_is_part_of_enroots_form_only(uri: str, reference: str, login: str) -> None:
    """Where a digest stands, `@` means something else."""
    found = parse_uri(uri)
    assert (found.reference.canonical(), found.login) == (reference, login)


@given(st.text("docker://@#$:ab.é\n", max_size=40))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        found = parse_uri(f"docker://{text}")
    except WarmstartError:
        return
    assert found.reference.canonical().isascii()
    assert found.login.isascii()
