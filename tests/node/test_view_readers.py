"""The task prolog, the SPANK plugin and the enroot hook read one view, and agree on which variables are the user's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.lib import spank

JOB = 64201  # a uid; it needs no account
NODE = "n1"
PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
Read = Callable[[dict[str, str]], dict[str, str]]


@pytest.fixture(scope="module")
def base(capable_host: None) -> Iterator[Path]:
    """Yield a directory of root's with a run's cache in it."""
    path = Path(tempfile.mkdtemp(prefix="ws-readers-", dir="/var/tmp"))
    path.chmod(0o755)
    cache = path / "workspace" / "7.0a1b2c3d" / "cache"
    cache.mkdir(parents=True)
    os.chown(cache, JOB, JOB)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def readers(base: Path) -> dict[str, Read]:
    """Yield the three; each maps the environment of a task of job 7 to the one that it gets."""
    spank.need()
    scripts = {}
    for name in ("libexec/task-prolog", "enroot/40-warmstart.sh"):
        scripts[name] = base / Path(name).name
        scripts[name].write_text((PACKAGING / f"{name}.in").read_text().replace("@RUN@", str(base / "state")))
    harness = spank.build(base, sanitize=True)
    settings = [f"run={base}/state", f"workspace={base}/workspace", f"cache={base}/constant"]

    def run(argv: list[str], environment: dict[str, str]) -> list[str]:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, cwd="/")
        return done.stdout.splitlines()

    def task_prolog(environment: dict[str, str]) -> dict[str, str]:
        seen = dict(environment)
        for line in run(["/bin/sh", str(scripts["libexec/task-prolog"])], environment):
            verb, _, rest = line.partition(" ")
            assert verb in ("export", "unset")
            if verb == "unset":
                seen.pop(rest, None)
            else:
                seen[rest.partition("=")[0]] = rest.partition("=")[2]
        return seen

    def plugin(environment: dict[str, str]) -> dict[str, str]:
        lines = run([str(harness), "task", str(JOB), "7", *settings], environment)
        return {line.partition("=")[0]: line.partition("=")[2] for line in lines}

    def enroot_hook(environment: dict[str, str]) -> dict[str, str]:
        container, mounts = base / "environ", base / "fstab"
        container.write_text("")
        mounts.write_text("")
        enroot = {"ENROOT_ENVIRON": str(container), "ENROOT_MOUNTS": str(mounts)}
        run(["/bin/sh", str(scripts["enroot/40-warmstart.sh"])], {**environment, **enroot})
        brought = dict(line.split("=", 1) for line in container.read_text().splitlines())
        seen = {**environment, **brought}  # as pyxis does
        return {name: value for name, value in seen.items() if value}

    return {"task prolog": task_prolog, "plugin": plugin, "enroot hook": enroot_hook}


def write_view(base: Path, *lines: str) -> None:
    """Write job 7's view, and that its run shows its cache, if it is there."""
    path = base / "state/view/7/environment"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = [f"{base}/workspace", f"{base}/constant", f"{base}/workspace/7.0a1b2c3d/cache"]
    path.write_text("".join(f"{line}\n" for line in (*header, *lines)))
    os.chown(path, JOB, JOB)
    path.with_name("images").write_text("")
    if (run := Path(header[2]).parent).is_dir():
        (run / "shown").write_text(f"rw\troot\tcache\t-\t{base}/constant\t-\n")


def task(**environment: str) -> dict[str, str]:
    """Return the environment of a task, with what the memory checkers need."""
    return {"SLURMD_NODENAME": NODE, "SLURM_JOB_ID": "7", "ASAN_OPTIONS": "detect_leaks=0", **environment}


def agreed(readers: dict[str, Read], environment: dict[str, str], names: list[str]) -> dict[str, str]:
    """Return the values of some variables, on which the readers must agree."""
    found = {who: {name: seen[name] for name in names if name in seen} for who, seen in
             ((who, read(environment)) for who, read in readers.items())}  # fmt: skip
    first, *others = found.values()
    assert all(other == first for other in others), (found, environment)
    return first


@pytest.mark.report
def test_what_we_have_set_elsewhere_is_not_the_users(base: Path, readers: dict[str, Read]) -> None:
    """By another node of the job, or by the submitting job, whatever is in the value; in every combination."""
    theirs = {"SITE_LIST": "hfi 1,  x=y ", "SITE_PORT": "29999"}
    own = {"SITE_LIST": "ours", "SITE_PORT": "20001"}
    places = f"{base}/workspace\t{base}/constant"
    words = "\t".join(f"{name}={value}" for name, value in theirs.items())
    named = [f"{job}\t{places}\t{words}\tA/B=\tSITE_NONE=1" for job in (6, 7, 77)]
    broken = ["6", "6\t$(id)", "6\t/\t/", f"6 {words}", f"6\t{places}\tSITE_LIST\tSITE_PORT=2999"]
    for mark in (None, "", "!"):
        write_view(base, *([] if mark is None else [f"{mark}{name}={value}" for name, value in own.items()]))
        for list_, port, known in product(("", theirs["SITE_LIST"], "x"), ("", "29999"), ("", *named, *broken)):
            given = {"SITE_LIST": list_, "SITE_PORT": port, "WARMSTART_OWN": known}
            given = {name: value for name, value in given.items() if value}
            ours = {name for name in own if known in named and given.get(name) == theirs[name]}
            stays = ours if known.startswith("7\t") and mark is None else set()
            users = {name: given[name] for name in own if name in given and (name not in ours or name in stays)}
            expected = {**users, **own} if mark == "!" else {**({} if mark is None else own), **users}
            assert agreed(readers, task(**given), list(own)) == expected, (mark, given)


@pytest.mark.report
def test_however_long_it_is(base: Path, readers: dict[str, Read]) -> None:
    long = {f"SITE_{number}": "x" * 4000 for number in range(15)}
    own = "\t".join(f"{name}={value}" for name, value in long.items())
    write_view(base, "SITE_0=ours")
    given = task(**long, WARMSTART_OWN=f"6\t{base}/workspace\t{base}/constant\t{own}")
    assert agreed(readers, given, list(long)) == {"SITE_0": "ours"}
    left = {f"{'N' * 100}_{number}": "/home/a" for number in range(100)}
    given = task(**left, WARMSTART_UNSET=" ".join(left))
    both = {who: read for who, read in readers.items() if who != "enroot hook"}
    assert agreed(both, given, list(left)) == {}


def test_both_name_what_the_user_set(base: Path, readers: dict[str, Read]) -> None:
    """For root, by empty files in the cache, wherever that is seen; where none can be made the task has its variables.

    What is as we would set it, inherited, or overridden is not named.
    """
    cache, constant = base / "workspace" / "7.0a1b2c3d" / "cache", base / "constant"
    constant.mkdir(exist_ok=True)
    write_view(base, *(f"{name}={constant}/{name.lower()}" for name in ("A", "B", "C")), "!D=ours", "ON=1", "SAME=1")
    inherited = f"{base}/workspace/6.1/cache/b"
    given = task(A="/tmp/a", B=inherited, D="x", ON="0", SAME="1", OTHER="1")

    def named(who: str, where: Path) -> list[str]:
        for left in where.iterdir():
            left.unlink()
        for _ in range(2):
            seen = readers[who](given)
            assert (seen["A"], seen["ON"]) == ("/tmp/a", "0")
        assert all(path.stat().st_size == 0 for path in where.iterdir())
        return sorted(path.name for path in where.iterdir())

    assert named("task prolog", cache) == named("enroot hook", cache) == [".own-A", ".own-ON"]
    away = cache.rename(cache.with_name("away"))
    try:
        assert named("task prolog", constant) == [".own-A", ".own-ON"]
        for left in constant.iterdir():
            left.unlink()
        constant.rmdir()
        assert readers["task prolog"](given)["ON"] == "0"
    finally:
        away.rename(cache)


def test_what_a_container_got_in_place_of_a_cache_is_unset(base: Path, readers: dict[str, Read]) -> None:
    """There, and where the caches are, it is not the user's; enroot's hook, which can unset nothing, names it."""
    constant = base / "constant"
    names = ["NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "OTHER"]
    given = {"NUMBA_CACHE_DIR": "/home/a/n", "TRITON_CACHE_DIR": "/home/a/t", "OTHER": "/mine"}
    given["WARMSTART_UNSET"] = "NUMBA_CACHE_DIR TRITON_CACHE_DIR $(id) 1 A/../B"
    write_view(base, f"TRITON_CACHE_DIR={constant}x")
    has_the_cache = {"TRITON_CACHE_DIR": f"{constant}x", "OTHER": "/mine"}
    of_the_hook = {**has_the_cache, "NUMBA_CACHE_DIR": "/home/a/n"}
    for who, read in readers.items():
        seen = read(task(**given))
        expected = of_the_hook if who == "enroot hook" else has_the_cache
        assert {name: seen[name] for name in names if name in seen} == expected, who
    shutil.rmtree(base / "state")
    (base / "state" / "view").mkdir(parents=True)
    for who, read in readers.items():
        seen = read(task(**given))
        assert [name for name in names if name in seen] == (names if who == "enroot hook" else ["OTHER"]), who


@pytest.mark.threat(59)
def test_what_leads_into_another_nodes_workspace_is_forgotten(base: Path, readers: dict[str, Read]) -> None:
    """Without a view of this run nothing of the batch host's is left; what the user has set since stays.

    The other two do it after enroot's hook, which can unset nothing.
    """
    readers = {who: read for who, read in readers.items() if who != "enroot hook"}
    shutil.rmtree(base / "state", ignore_errors=True)
    (base / "state" / "view").mkdir(parents=True)
    workspace, constant = base / "workspace", base / "constant"
    run = workspace / "7.0b1b2c3d"
    names = "NUMBA_CACHE_DIR TMPDIR TRITON_CACHE_DIR WARMSTART_CACHE A/../B"
    led = task(
        WARMSTART_OWN="\t".join(["7", str(workspace), str(constant), *names.split(), "MASTER_ADDR=n9", "SITE=no"]),
        WARMSTART_CACHE=f"{run}/cache",
        NUMBA_CACHE_DIR=f"{constant}/numba",
        TMPDIR=f"{run}/tmp",
        TRITON_CACHE_DIR="/home/a/triton",
        OTHER=f"{workspace}/mine",
        MASTER_ADDR="n9",
    )
    assert agreed(readers, led, [*names.split()[:4], "OTHER", "MASTER_ADDR"]) == {
        "TRITON_CACHE_DIR": "/home/a/triton",
        "OTHER": f"{workspace}/mine",
        "MASTER_ADDR": "n9",  # where the job's tasks meet
    }
    for text in ("", f"7\t{workspace}", f"7\t{workspace}\t{constant}", "7\t/\t/\tHOME\t*\t[\t$(id)"):
        assert agreed(readers, task(WARMSTART_OWN=text, HOME="/home/a"), ["HOME"]) == {"HOME": "/home/a"}


@pytest.mark.threat(59)
def test_a_view_that_was_cut_off(base: Path, readers: dict[str, Read]) -> None:
    run, head = base / "workspace" / "7.0a1b2c3d", base / "workspace" / "7.0b1b2c3d"
    lines = ("A=ours", f"NUMBA_CACHE_DIR={run}/cache/numba", f"TMPDIR={run}/tmp")
    led = task(
        WARMSTART_OWN=f"7\t{base}/workspace\t{base}/constant\tNUMBA_CACHE_DIR\tTMPDIR",
        NUMBA_CACHE_DIR=f"{head}/cache/numba",
        TMPDIR=f"{head}/tmp",
    )
    write_view(base, *lines)
    view = base / "state" / "view" / "7" / "environment"
    text = view.read_bytes()
    for end in range(0, len(text), 5):
        view.write_bytes(text[:end])
        whole = text[:end].decode().rpartition("\n")[0].splitlines()[3:]
        for who, read in readers.items():
            seen = read(led)
            expected = dict(line.split("=") for line in whole)
            if who == "enroot hook":
                inherited = {name: led[name] for name in ("NUMBA_CACHE_DIR", "TMPDIR")}
                shown = {"NUMBA_CACHE_DIR": f"{base}/constant/numba"} if "NUMBA_CACHE_DIR" in expected else {}
                expected = {**inherited, **expected, **shown}
            found = {name: seen[name] for name in ("A", "NUMBA_CACHE_DIR", "TMPDIR") if name in seen}
            assert found == expected, (who, text[:end])


def test_a_verdict_ends_the_step(base: Path, readers: dict[str, Read]) -> None:
    verdict = base / "state" / "view" / "7" / "verdict"
    write_view(base)
    verdict.write_text("warmstart: no\n")
    os.chown(verdict, JOB, JOB)
    for read in readers.values():
        with pytest.raises(subprocess.CalledProcessError) as ended:
            read(task())
        assert "warmstart: no" in ended.value.stdout + ended.value.stderr
    verdict.unlink()


@pytest.mark.threat(34)
def test_a_private_tmpdir_takes_no_tools_cache_away(base: Path, readers: dict[str, Read], tmp_path: Path) -> None:
    place, own = base / "tmp", base / "workspace" / "7.0a1b2c3d" / "tmp"
    place.mkdir(mode=0o1777, exist_ok=True)
    place.chmod(0o1777)
    script = base / "task-prolog"
    script.write_text(script.read_text().replace('"/tmp/', f'"{place}/').replace("=/tmp/", f"={place}/"))
    read = readers["task prolog"]
    inductor = {"TORCHINDUCTOR_CACHE_DIR": f"{place}/torchinductor_root"}
    others = {
        "QUACK_CACHE_DIR": f"{place}/root/quack_cache",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": f"{place}/root/flash_attention_cute_dsl_cache",
        "FLEX_ATTENTION_CUTE_DSL_CACHE_DIR": f"{place}/root/flex_attention_cute_dsl_cache",
        "CUTE_DSL_CACHE_DIR": f"{place}/root/cutlass_python_cache",
    }

    def seen(*lines: str, **given: str) -> dict[str, str]:
        write_view(base, *lines)
        found = read(task(LOGNAME="root", **given))
        return {name: found[name] for name in (*inductor, *others) if name in found}

    assert seen(f"TMPDIR={own}") == {**inductor, **others}
    assert (place / "root").stat().st_mode & 0o777 == 0o700
    assert seen(f"TMPDIR={own}") == {**inductor, **others}, "the directories are there"
    assert seen(f"TMPDIR={own}", TMPDIR="/scratch") == {}, "the user's TMPDIR stays, and what is below it"
    assert seen("A=1") == {}
    assert seen(f"TMPDIR={own}", QUACK_CACHE_DIR="/q") == {**inductor, **others, "QUACK_CACHE_DIR": "/q"}
    shown = f"{base}/constant/inductor"
    assert seen(f"TMPDIR={own}", f"TORCHINDUCTOR_CACHE_DIR={shown}") == {
        "TORCHINDUCTOR_CACHE_DIR": f"{base}/workspace/7.0a1b2c3d/cache/inductor",
        **others,
    }
    inherited = {**inductor, **others}  # by a job that one of these submitted, or a container's step of it
    assert seen(f"TMPDIR={own}", **inherited) == inherited
    ours = seen(f"TMPDIR={own}", f"QUACK_CACHE_DIR={base}/constant/cute-dsl/quack", **inherited)
    assert ours["QUACK_CACHE_DIR"].endswith("/cache/cute-dsl/quack"), "the profile's place wins"
    assert seen(f"TMPDIR={own}", TMPDIR="/scratch", **inherited) == {}
    cache = base / "workspace" / "7.0a1b2c3d" / "cache"
    cache.rename(base / "elsewhere")
    assert seen(f"TMPDIR={own}", **inherited) == {}, "a container has its own /tmp"
    (base / "elsewhere").rename(cache)
    shutil.rmtree(place / "root")
    os.chown(place / "torchinductor_root", JOB, JOB)  # somebody else was here first
    (place / "root").symlink_to(tmp_path)
    assert seen(f"TMPDIR={own}") == {}


def test_which_variables_are_the_users(base: Path, readers: dict[str, Read]) -> None:
    write_view(base, "A=ours", "!B=ours")
    inherited = [f"{base}/workspace/6.00000000/tmp", f"{base}/constant/numba", f"{base}/constant", ""]
    users = ["mine", f"{base}/constantly", f"{base}/workspace", f"{base}/workspaces"]
    for value in (*inherited, *users):
        given = {"A": value, "B": value} if value else {}
        expected = {"A": "ours" if value in inherited else value, "B": "ours"}
        assert agreed(readers, task(**given), ["A", "B"]) == expected, value


@pytest.mark.parametrize("what", ["APPTAINER_MOUNT", "APPTAINER_BINDPATH", "much"])
def test_a_mount_of_what_the_submitting_job_was_shown(base: Path, readers: dict[str, Read], what: str) -> None:
    """Apptainer starts nothing where it is told to bind what is not there; the user's own stays."""
    variable, bound = {
        "APPTAINER_MOUNT": (what, "source={},destination=/c"),
        "APPTAINER_BINDPATH": (what, "{}:/c:ro"),
        "much": ("APPTAINER_BINDPATH", "{}:/c:ro" + ",/a:/b:ro" * 3000),
    }[what]
    ours, gone = (bound.format(f"{base}/workspace/{run}/x") for run in ("7.0a1b2c3d", "6.0"))
    added, users = f"{gone},/data:/data", bound.format("/data")

    def seen(read: Read, value: str, job: int = 6) -> dict[str, str]:
        places = f"{base}/workspace\t{base}/constant"
        own = {"WARMSTART_OWN": f"{job}\t{places}\t{variable}={gone}\tWARMSTART_TREE"}
        return read(task(**{variable: value}, **own, WARMSTART_TREE="/l/env"))

    for read in (readers["task prolog"], readers["plugin"]):  # in enroot's containers there is no Apptainer
        shutil.rmtree(base / "state", ignore_errors=True)
        for value in (gone, added):
            assert {variable, "WARMSTART_TREE", "WARMSTART_OWN"}.isdisjoint(seen(read, value))
            there = seen(read, value, 7)
            assert (variable in there, there["WARMSTART_TREE"]) == (False, "/l/env")
        assert seen(read, users)[variable] == users
        write_view(base, "!WARMSTART_TREE=x", f"{variable}={ours}")
        assert [seen(read, value)[variable] for value in (gone, added, users)] == [ours, ours, users]
        assert [seen(read, value, 7)[variable] for value in (gone, added, users)] == [ours, ours, users]
        assert seen(read, gone)["WARMSTART_TREE"] == "x"


@pytest.mark.report
def test_a_tmpdir_that_is_not_there_is_nobodys_wish(base: Path, readers: dict[str, Read]) -> None:
    write_view(base, "TMPDIR=/")
    two = {who: readers[who] for who in ("task prolog", "plugin")}
    own = base / "own"
    own.mkdir()
    os.chown(own, JOB, JOB)
    (own / "file").touch()
    for place in (str(own), f"{own}/new"):
        assert agreed(two, task(TMPDIR=place), ["TMPDIR"]) == {"TMPDIR": place}
    for place in ("/run/user/of-a-login/tmp", f"{own}/no/new", f"{own}/file"):
        assert agreed(two, task(TMPDIR=place), ["TMPDIR"]) == {"TMPDIR": "/"}


@pytest.mark.report
def test_what_is_set_under_apptainers_older_name_is_the_users(base: Path, readers: dict[str, Read]) -> None:
    write_view(
        base, "APPTAINER_BINDPATH=/ours:/ours", "APPTAINER_MOUNT=ours", "APPTAINER_ENV_FILE=ours", "BINDPATH=ours"
    )
    names = ["APPTAINER_BINDPATH", "APPTAINER_MOUNT", "APPTAINER_ENV_FILE", "BINDPATH"]
    two = {who: readers[who] for who in ("task prolog", "plugin")}
    given = task(SINGULARITY_BINDPATH="/o", SINGULARITY_BIND="/o", SINGULARITY_ENV_FILE="/o")
    assert agreed(two, given, names) == {"APPTAINER_MOUNT": "ours", "BINDPATH": "ours"}
    given = task(SINGULARITY_BINDPATH=f"{base}/workspace/6.1/x:/y", APPTAINER_BIND="/o")
    assert agreed(two, given, names).keys() == {*names}
