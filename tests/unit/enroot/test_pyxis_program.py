"""pyxis's importer as pyxis calls it: what the shell answers from the job's view, and what it leaves to Python."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.runs import a_context, changed
from warmstart.entry.pyxis_importer import parse_uri
from warmstart.images.user import own_images
from warmstart.steps import environment
from warmstart.steps.environment import Options

PROGRAM = Path("packaging/libexec/pyxis-importer.in")
TAG = "reg.example.com:5000/team/app:1"
DIGEST = f"reg.example.com/a@sha256:{'ab' * 32}"
HUB = "docker.io/library/ubuntu:latest"
SERVED = (TAG, DIGEST, HUB, "docker.io/team/app:latest", "localhost/x:1")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with the program, job 7's view, and its images. Python is a program that says what it gets."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nshift 3\necho python "$@"\n')
    python.chmod(0o755)
    program = tmp_path / "pyxis-importer"
    text = PROGRAM.read_text()
    for name, value in (("PYTHON", python), ("PREFIX", tmp_path), ("ETC", tmp_path / "etc"), ("RUN", tmp_path)):
        text = text.replace(f"@{name}@", str(value))
    program.write_text(text)
    program.chmod(0o755)
    (tmp_path / "etc").mkdir()
    for number in range(len(SERVED)):
        (tmp_path / f"{number}.sqsh").touch()
    knows(tmp_path, *range(len(SERVED)))
    return tmp_path


def knows(place: Path, *numbers: int) -> None:
    """Write the view of job 7 with these images; the job's caches belong to the first one."""
    context, images = a_context(place), {SERVED[number]: str(place / f"{number}.sqsh") for number in numbers}
    record = changed(context.run, image=f"sha256:{'ab' * 32}", images=images)
    environment.run(context._replace(run=record), Options({}, {}, ()))


def run(place: Path, *arguments: str, job: str = "7", step: str = "0") -> str:
    env = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step, "SLURMD_NODENAME": "another"}
    done = subprocess.run([place / "pyxis-importer", *arguments], env=env, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode().removesuffix("\n")


@pytest.mark.parametrize(
    ("uri", "number"),
    [
        ("docker://reg.example.com:5000/team/app:1", 0),
        ("docker://reg.example.com:5000#team/app:1", 0),
        (f"docker://{DIGEST}", 1),
        ("docker://ubuntu", 2),
        ("docker://ubuntu:latest", 2),
        ("docker://docker.io#library/ubuntu", 2),
        ("docker://team/app", 3),
        ("docker://localhost/x:1", 4),
    ],
)
def test_the_prologs_images_are_found_without_python(place: Path, uri: str, number: int) -> None:
    """However the user writes the reference. Not the job's second one: Python notes that the caches are not its own."""
    knows(place, number, 4 if number != 4 else 0)
    assert run(place, "get", uri) == f"{place}/{number}.sqsh"
    knows(place, 4 if number != 4 else 0, number)
    assert run(place, "get", uri) == f"python get {uri}"


@pytest.mark.parametrize(
    "uri",
    [
        "docker://reg.example.com:5000/team/app:2",
        "docker://carol@reg.example.com:5000#team/app:1",
        "docker://team/app:1",
        "docker://docker.io/team#app:latest",
        "docker://reg.example.com:5000/team/app:1 x",
        "docker://*",
        "docker://",
        "",
    ],
)
def test_other_images_are_left_to_python(place: Path, uri: str) -> None:
    """Another tag, somebody's credentials, another registry, no reference."""
    assert run(place, "get", uri) == f"python get {uri}"


@pytest.mark.parametrize("case", ["off", "gone", "another job", "no job", "a forged job", "no view of ours"])
def test_without_a_view_or_an_image_python_decides(place: Path, case: str) -> None:
    job = {"another job": "8", "no job": "", "a forged job": "../view/7"}.get(case, "7")
    if case == "off":
        (place / "etc/off").touch()
    elif case == "gone":
        (place / "0.sqsh").unlink()
    elif case == "no view of ours":
        (place / "view/7/images").rename(place / "view/7/x")
    assert run(place, "get", f"docker://{TAG}", job=job) == f"python get docker://{TAG}"


MANGLED = st.tuples(st.sampled_from(SERVED), st.sampled_from(".:#@/ "), st.integers(0, 30)).map(
    lambda drawn: drawn[0][: drawn[2]] + drawn[1] + drawn[0][drawn[2] + 1 :]
)


@given(text=st.text("docker:/@#abu.l1\n ", max_size=30) | MANGLED)
@settings(max_examples=50)
def test_the_shell_serves_no_other_image_than_python_would(place: Path, text: str) -> None:
    """What it takes for one of the job's images is a reference to that image, and has no login."""
    answer = run(place, "get", f"docker://{text}")
    if answer.startswith("python get"):
        return
    request = parse_uri(f"docker://{text}")
    assert (answer, request.login) == (f"{place}/{SERVED.index(request.reference.canonical())}.sqsh", "")


@pytest.fixture
def made() -> Iterator[Path]:
    """Yield a directory in /var/tmp like those that `get` makes for a job without a workspace."""
    path = Path(own_images.FALLBACK, f"{own_images._fallback_prefix('4000000007.3')}x")
    path.mkdir(mode=0o700)
    yield path
    path.rmdir()


def test_release_starts_python_only_if_there_is_something_to_remove(place: Path, made: Path) -> None:
    assert run(place, "release", job="4000000008", step="3") == ""
    assert run(place, "release", job="4000000007", step="3") == "python release"
    assert run(place, "release", job="4000000007", step="33") == ""
    assert run(place, "release", job="4000000007", step="*") == "python release"
    assert run(place, "release", job="", step="3") == "python release"


@pytest.mark.parametrize("arguments", [[], ["get"], ["get", "a", "b"], ["put", "a"], ["release", "a"]])
def test_wrong_usage_is_pythons(place: Path, arguments: list[str]) -> None:
    assert run(place, *arguments) == " ".join(["python", *arguments])
