"""What the prolog renders is what the task prolog prints, and nothing a user wrote is run."""

import os
import subprocess
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.privileges import make_removable
from tests.lib.runs import changed
from warmstart import view
from warmstart.host.files import opened_dir
from warmstart.paths import NOTHING as NONE
from warmstart.paths import Shown
from warmstart.policy.document import PolicyInvalid
from warmstart.run.shown import show
from warmstart.steps import environment
from warmstart.steps.contract import Context
from warmstart.steps.environment import Options

SCRIPT = Path("packaging/libexec/task-prolog.in")
NOTHING = Options({}, {}, ())


def printed(
    tmp_path: Path, user: dict[str, str] | None = None, job: str = "7", step: str = "0"
) -> tuple[int, list[str]]:
    """Run the real task prolog as Slurm would, by a daemon with its title; return its status and lines."""
    script = tmp_path / "task-prolog"
    script.write_text(SCRIPT.read_text().replace("@RUN@", str(tmp_path)))
    env = {"SLURMD_NODENAME": "node", "SLURM_JOB_ID": job, **(user or {})}
    daemon = [f"slurmstepd: [{job}.{step}]", "-c", f"/bin/sh {script}; exit $?"]
    ended = subprocess.run(daemon, executable="/bin/bash", env=env, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    return ended.returncode, [line for line in lines if not line.startswith(f"export {environment.OWN}=")]


def test_every_source_of_variables_reaches_the_job(context: Context, tmp_path: Path) -> None:
    """What steps found out, the profiles' variables and the policy's; the policy wins."""
    record = changed(context.run, path="/w/cache", environment={"TMPDIR": "/w/tmp"})
    options = Options({"NUMBA_CACHE_DIR": "/w/cache/numba", "A": "profile"}, {"A": "policy"}, ("cold today",))
    environment.run(context._replace(run=record), options)
    assert printed(tmp_path) == (
        0,
        [
            f"export WARMSTART_NOTICES={tmp_path}/view/7/notice",
            "export A=policy",
            "export NUMBA_CACHE_DIR=/w/cache/numba",
            "export TMPDIR=/w/tmp",
            "export WARMSTART_CACHE=/w/cache",
        ],
    )


@pytest.mark.parametrize(
    ("image", "images", "written"),
    [
        ("", {}, None),
        ("sha256:1", {"r/a:1": "/a", "r/b:1": "/b"}, "r/a:1 /a\nr/b:1 /b\n"),
        ("claimed:r/c:1", {}, "r/c:1 \n"),
        ("claimed:r/c:1", {"r/a:1": "/a"}, "r/c:1 \nr/a:1 /a\n"),
    ],
)
def test_the_first_image_is_the_one_that_the_caches_belong_to(
    context: Context, image: str, images: dict[str, str], written: str | None
) -> None:
    """Also if it is left to pyxis; without one there is no such file."""
    environment.run(context._replace(run=changed(context.run, image=image, images=images)), NOTHING)
    path = Path(context.paths.view, "7", "images")
    assert (path.read_text() if path.exists() else None) == written


def test_what_the_policy_overrides_is_not_the_users(context: Context, tmp_path: Path) -> None:
    """Whoever set it: a step before, a profile, a rule; what is not named stays the user's."""
    record = context.run._replace(environment={"TMPDIR": "/w/tmp"})
    options = Options({"A": "profile"}, {"B": "policy", "C": "policy"}, (), frozenset({"TMPDIR", "A", "B", "NOT_SET"}))
    environment.run(context._replace(run=record), options)
    user = {"TMPDIR": "/mine", "A": "mine", "B": "mine", "C": "mine"}
    assert printed(tmp_path, user)[1] == ["export A=profile", "export B=policy", "export TMPDIR=/w/tmp"]


def test_the_constant_path_is_used_where_the_cache_is_there(context: Context, tmp_path: Path) -> None:
    """Where it is not mounted, the same variables lead to the job's own path; other values stay as they are."""
    constant = tmp_path / "constant"
    policy = context.policy._replace(paths=context.policy.paths._replace(cache=str(constant)), constant_path="spank")
    cache = f"{context.run.directory}/cache"
    options = Options({"A": f"{constant}/numba", "B": f"{constant}x"}, {}, ())
    record = changed(context.run, path=str(constant))
    environment.run(context._replace(policy=policy, run=record), options)
    os.makedirs(cache)
    moved = [f"export A={cache}/numba", f"export B={constant}x", f"export WARMSTART_CACHE={cache}"]
    assert printed(tmp_path)[1] == moved
    constant.symlink_to(cache)
    there = [f"export A={constant}/numba", f"export B={constant}x", f"export WARMSTART_CACHE={constant}"]
    assert printed(tmp_path)[1] == there


def test_what_is_ours_is_named(context: Context) -> None:
    """For the job's other nodes, and for jobs that it submits; without any variable there is no such line."""
    path, run = Path(context.paths.view, "7", "environment"), context.run.directory
    environment.run(context, NOTHING)
    assert environment.OWN not in path.read_text()
    constant = context.policy.paths.cache
    record = changed(context.run, path=f"{run}/cache", environment={"TMPDIR": f"{run}/tmp"})
    options = Options({"A": constant, "B": f"{constant}x"}, {"C": "b c", "D": "with\ta tab", "WARMSTART_E": "x"}, ())
    environment.run(context._replace(run=record), options)
    own = f"7\t{record.workspace}\t{constant}\tA\tB={constant}x\tC=b c\tTMPDIR\tWARMSTART_CACHE\tWARMSTART_E"
    assert f"!{environment.OWN}={own}\n" in path.read_text()


@pytest.fixture
def linking(context: Context, tmp_path: Path) -> tuple[Context, Path]:
    """Give a context whose policy wants a link in a directory of the node's, and that directory."""
    private = tmp_path / "private"
    private.mkdir()
    paths = context.policy.paths._replace(cache=f"{private}/job")
    return context._replace(policy=context.policy._replace(paths=paths, constant_path="link")), private


def test_the_link_is_made_where_the_job_has_a_directory_of_its_own(
    linking: tuple[Context, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's directory on the node, the user's in the job: only job_container makes it so. The link is made once."""
    context, private = linking
    cache = f"{context.run.directory}/cache"
    os.makedirs(cache)
    monkeypatch.setattr(environment, "_is_roots", lambda directory: directory == str(private))
    environment.run(context, Options({"A": f"{private}/job/numba"}, {}, ()))
    assert [printed(tmp_path)[1], printed(tmp_path)[1]] == [[f"export A={private}/job/numba"]] * 2
    assert os.readlink(private / "job") == cache


@pytest.mark.parametrize("case", ["a user's on the node", "taken", "dangling", "another policy"])
def test_no_link_otherwise(
    linking: tuple[Context, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The job has its own path then; what lies at the constant path stays as it is."""
    context, private = linking
    cache = f"{context.run.directory}/cache"
    os.makedirs(cache)
    monkeypatch.setattr(environment, "_is_roots", lambda _: case != "a user's on the node")
    if case in ("taken", "dangling"):
        (private / "job").symlink_to(tmp_path if case == "taken" else tmp_path / "none")
    if case == "another policy":
        context = context._replace(policy=context.policy._replace(constant_path="namespace"))
    before = os.listdir(private)
    environment.run(context, Options({"A": f"{private}/job/numba"}, {}, ()))
    assert printed(tmp_path)[1] == [f"export A={cache}/numba"]
    assert os.listdir(private) == before


def test_only_a_directory_of_roots_own_is_roots(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    paths = ("/usr", tmp_path / "none", tmp_path / "link")
    assert [environment._is_roots(str(path)) for path in paths] == [True, False, False]


def test_what_the_policy_sets_in_place_of_a_profile_has_no_default(context: Context) -> None:
    defaults = {"A": "~/.a", "B": "~/.b"}
    environment.run(context, Options({"A": "/w/a", "B": "/w/b"}, {"A": "/site"}, (), defaults=defaults))
    lines = Path(context.paths.view, str(context.run.view_id), "environment").read_text().splitlines()
    assert lines[3:6] == ["A=/site", "=B=~/.b", "B=/w/b"]


def test_in_a_container_the_cache_is_only_at_the_constant_path(context: Context, tmp_path: Path) -> None:
    """Pyxis runs the task prolog inside: what names the job's own path names the other one there."""
    constant, cache = str(tmp_path / "constant"), f"{context.run.directory}/cache"
    policy = context.policy._replace(paths=context.policy.paths._replace(cache=constant))
    environment.run(context._replace(policy=policy), Options({"A": f"{cache}/numba", "B": "x"}, {}, ()))
    os.mkdir(constant)
    assert printed(tmp_path, {"A": f"{constant}/numba"})[1] == [f"export A={constant}/numba", "export B=x"]
    os.makedirs(cache)
    assert printed(tmp_path)[1] == [f"export A={cache}/numba", "export B=x"]


@pytest.mark.parametrize("way", ["none", "containers"])
def test_what_cannot_be_reached_is_left_out(
    context: Context, tmp_path: Path, way: Literal["none", "containers"]
) -> None:
    """The cache is at neither path: the user may not enter the workspace, or a container has nothing of it."""
    run = context.run.directory
    record = changed(context.run, path=f"{run}/cache", environment={"TMPDIR": f"{run}/tmp"})
    context = context._replace(policy=context.policy._replace(constant_path=way), run=record)
    constant = context.policy.paths.cache
    environment.run(context, Options({"A": f"{run}/cache/numba", "B": f"{constant}/triton", "C": "x"}, {}, ()))
    outside = ("export C=x", "export APPTAINER_ENV_FILE=", "export WARMSTART_CACHE_VARIABLES=")
    assert [line for line in printed(tmp_path)[1] if not line.startswith(outside)] == []
    led = {
        environment.OWN: f"7\t{record.workspace}\t{constant}\tA\tTMPDIR",
        "A": f"{run}/cache/numba",
        "TMPDIR": f"{run}/tmp",
    }
    assert {"unset A", "unset TMPDIR"} <= {*printed(tmp_path, led)[1]}
    os.makedirs(f"{run}/tmp")
    assert f"export TMPDIR={run}/tmp" in printed(tmp_path)[1]


def test_apptainer_is_told_where_the_cache_is(context: Context, tmp_path: Path) -> None:
    """Variables say it, and which others lead there. What the user set stays; without a cache there are none."""
    policy = context.policy._replace(constant_path="containers")
    constant, cache = policy.paths.cache, f"{context.run.directory}/cache"
    os.makedirs(cache)
    record = changed(context.run, path=constant, environment={"TMPDIR": "/w/tmp"})
    context = context._replace(policy=policy, run=record)
    environment.run(context, Options({"NUMBA_CACHE_DIR": f"{constant}/numba", "B": f"{constant}x"}, {}, ()))
    mount = f"APPTAINER_MOUNT=source={cache},destination={constant}"
    file = f"APPTAINER_ENV_FILE={context.paths.programs}/apptainer-environment"
    names = "WARMSTART_CACHE_VARIABLES=NUMBA_CACHE_DIR WARMSTART_CACHE"
    ours = {f"export {line}" for line in (mount, file, names, f"NUMBA_CACHE_DIR={cache}/numba")}
    assert ours < {*printed(tmp_path)[1]}
    users = {"APPTAINER_MOUNT": "source=/data,destination=/data", "APPTAINER_ENV_FILE": "mine"}
    assert not [line for line in printed(tmp_path, users)[1] if "APPTAINER" in line]
    environment.run(context._replace(run=changed(record, path="")), NOTHING)
    assert printed(tmp_path)[1] == ["export TMPDIR=/w/tmp"]


@pytest.mark.report
def test_who_keeps_the_runs_mounts_from_apptainer_is_told(context: Context, tmp_path: Path) -> None:
    os.makedirs(f"{context.run.directory}/cache")
    with opened_dir(context.run.directory) as fd:
        show(fd, Shown("ro", "job", NONE, NONE, "/l/env", NONE), os.getuid())
    policy = context.policy._replace(constant_path="containers")
    environment.run(context._replace(policy=policy, run=changed(context.run, path="/c")), NOTHING)

    def told(**user: str) -> list[str]:
        _, said = printed(tmp_path, user, step="batch")
        return [line for line in said if line.startswith("print ")]

    assert told() == told(APPTAINER_BIND="/data") == told(APPTAINER_BINDPATH="/l/env:/l/env:ro") == []
    for name in ("APPTAINER_BINDPATH", "SINGULARITY_BINDPATH"):
        (said,) = told(**{name: "/data"})
        assert said.startswith("print warmstart: APPTAINER_BINDPATH or SINGULARITY_BINDPATH is set already: ")
    assert printed(tmp_path, {"APPTAINER_BINDPATH": "/data"})[1][-1].startswith("export ")


def test_apptainer_binds_what_the_run_shows(context: Context, tmp_path: Path) -> None:
    """What a path of Apptainer's cannot say stays as it is."""
    run = context.run.directory
    os.makedirs(f"{run}/cache")
    with opened_dir(run) as fd:
        for target in ("/l/m/a", "/l/m/a:b", "/l/m/a,b", "/l/m/a\x1b"):
            show(fd, Shown("ro", "job", "mounted/m/tree/0", NONE, target, NONE), os.getuid())
        show(fd, Shown("ro", "job", NONE, NONE, "/l/env", NONE), os.getuid())
        show(fd, Shown("ro", "root", "mounted/image", NONE, NONE, NONE), os.getuid())
    record = changed(context.run, path="/c")
    policy = context.policy._replace(constant_path="containers")
    environment.run(context._replace(policy=policy, run=record), NOTHING)
    binds = [f"{run}/mounted/m/tree/0:/l/m/a:ro", "/l/env:/l/env:ro"]
    bind = f"APPTAINER_BINDPATH={','.join(binds)}"
    assert f"export {bind}" in printed(tmp_path)[1]


def test_a_verdict_is_printed_and_fails_the_task(context: Context, tmp_path: Path) -> None:
    view.publish(context.paths.view, context.run, {"verdict": "image refused\nask your admin\n"})
    assert printed(tmp_path) == (1, ["print image refused", "print ask your admin"])


def test_jobs_that_warmstart_does_not_know_see_nothing(context: Context, tmp_path: Path) -> None:
    assert printed(tmp_path, job="8") == (0, [])


def test_a_second_rendering_replaces_the_first(context: Context, tmp_path: Path) -> None:
    """The job can enter the view's directory and not list it; its group and others can read no file."""
    environment.run(context, Options({}, {"A": "1"}, ("x",)))
    make_removable(tmp_path / "view" / "7")
    environment.run(context, Options({}, {"A": "2"}, ()))
    mine = tmp_path / "view" / "7"
    assert sorted(path.name for path in mine.iterdir()) == ["environment", "events"]
    assert (mine.stat().st_mode & 0o777, (mine / "environment").stat().st_mode & 0o607) == (0o711, 0o400)
    assert os.listdir(tmp_path / "view") == ["7"]


@pytest.mark.parametrize(("name", "value"), [("A", "x\ny"), ("A", "x\0"), ("A B", "x"), ("A", "x" * 70000), ("1A", "")])
def test_what_slurm_cannot_carry_is_refused(context: Context, name: str, value: str) -> None:
    """A value ends at a newline there, so what follows would be read as protocol."""
    with pytest.raises(PolicyInvalid, match="environment variable"):
        environment.run(context, Options({}, {name: value}, ()))


@pytest.mark.report
def test_rules_with_more_than_one_variable_can_hold(context: Context, tmp_path: Path) -> None:
    """All of them are set. WARMSTART_OWN has as many values as it has room for; the longest count as the user's."""
    many = {f"SITE_{number:02}": "é" * (1000 + number) for number in range(40)}
    environment.run(context, Options({}, many, ()))
    text = (tmp_path / "view" / "7" / "environment").read_text()
    assert [line for line in text.splitlines()[3:] if environment.OWN not in line] == [
        f"{name}={value}" for name, value in many.items()
    ]
    (own,) = (line for line in text.splitlines() if environment.OWN in line)
    own = own.partition("=")[2]
    assert len(own.encode()) <= environment.LONGEST_VALUE
    kept = [word.partition("=")[0] for word in own.split("\t")[3:]]
    assert kept == sorted(many)[: len(kept)]
    assert 29 < len(kept) < 40


VALUES = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=60)


@pytest.mark.threat(17)
@given(value=VALUES)
@settings(max_examples=30)
def test_values_arrive_byte_for_byte_and_are_never_run(context: Context, tmp_path: Path, value: str) -> None:
    """Quotes, dollars, backslashes, blanks: the line after `=` is the value."""
    environment.run(context, Options({}, {"WARMSTART_X": value, "Y": value}, ()))
    make_removable(tmp_path / "view" / "7")  # for the next example
    script = tmp_path / "task-prolog"
    printed(tmp_path)
    env = {"SLURMD_NODENAME": "node", "SLURM_JOB_ID": "7"}
    out = subprocess.run(["/bin/sh", script], env=env, capture_output=True, check=True).stdout
    own = "" if "\t" in value else f"\tY={value}"
    places = f"{context.run.workspace}\t{context.policy.paths.cache}"
    lines = f"export WARMSTART_OWN=7\t{places}\tWARMSTART_X{own}\nexport WARMSTART_X={value}\nexport Y={value}\n"
    assert out == lines.encode()
