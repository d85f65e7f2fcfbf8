"""pyxis-importer, called as pyxis does: as the job's user, in the job's environment, inside and outside of jobs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import SETPRIV
from tests.lib.registry import Registry
from tests.lib.site import Site

# pyxis 0.24, pyxis_slurmstepd.c: what it keeps from an importer; everything else of the job's environment passes.
DENIED = frozenset({
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "PMIX_RANK",
    "PMI_FD", "ENROOT_LIBRARY_PATH", "ENROOT_SYSCONF_PATH", "ENROOT_RUNTIME_PATH", "ENROOT_CACHE_PATH",
    "ENROOT_DATA_PATH", "ENROOT_TEMP_PATH", "ENROOT_ZSTD_OPTIONS", "ENROOT_TRANSFER_RETRIES",
    "ENROOT_CONNECT_TIMEOUT", "ENROOT_MAX_CONNECTIONS", "ENROOT_ALLOW_HTTP",
})  # fmt: skip
Get = Callable[..., "subprocess.CompletedProcess[str]"]


def as_pyxis(site: Site, *arguments: str, user: str = ALICE, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the importer as pyxis does in a step of job 7007: the stepd's own PATH, the job's environment, PYXIS_*."""
    account = site.cluster.account(user)
    job = {**account.environment(), "SLURM_JOB_ID": "7007", "SLURM_STEP_ID": "0", **environment}
    env = {name: value for name, value in job.items() if name not in DENIED}
    drop = [SETPRIV, f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
    importer = site.cluster.prefix / "libexec" / "warmstart" / "pyxis-importer"
    return subprocess.run(
        [*site.cluster.enter("n1"), *drop, importer, *arguments],
        env={**env, "PATH": "/usr/bin:/bin", "PYXIS_VERSION": "0.24.0", "SLURM_JOB_UID": str(account.uid)},
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd="/",
        timeout=120,
    )  # fmt: skip


def got(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one path that a `get` printed."""
    assert done.returncode == 0, done.stderr
    path, newline, rest = done.stdout.partition("\n")
    assert (newline, rest) == ("\n", "")
    return path


def stored(site: Site) -> set[str]:
    images = site.store / "images"
    return {path.name for path in images.glob("*.sqsh")} if images.is_dir() else set()


@pytest.fixture
def in_store(site: Site, fresh_image: Callable[[], str]) -> Iterator[str]:
    """Return an image that the prolog of job 7007 has imported for alice; the job is on node n1."""
    image = fresh_image()
    variables = site.variables(7007, SLURM_JOB_COMMENT=f"warmstart: image={image}")
    done = site.run_hook("prolog", variables)
    assert done.returncode == 0, done.stderr
    yield image
    site.run_hook("epilog", variables)


@pytest.fixture
def own_place(site: Site) -> Iterator[Callable[[str], Path]]:
    """Return a function that finds a user's one directory in /var/tmp; all are removed before and after."""

    def places(user: str) -> list[Path]:
        return list(Path("/var/tmp").glob(f"warmstart-images-{site.cluster.account(user).uid}-*"))

    def own(user: str) -> Path:
        (path,) = places(user)
        return path

    def remove() -> None:
        for path in (*places(ALICE), *places(BOB)):
            shutil.rmtree(path)

    remove()
    yield own
    remove()


@pytest.fixture
def of_another_job(site: Site, fresh_image: Callable[[], str]) -> Iterator[str]:
    """Return an image of the store that job 7007's own prolog did not ask for; that job has a workspace on node n1."""
    image = fresh_image()
    for job in (7006, 7007):
        asked = f"warmstart: image={image}" if job == 7006 else ""
        done = site.run_hook("prolog", site.variables(job, SLURM_JOB_COMMENT=asked))
        assert done.returncode == 0, done.stderr
    yield image
    for job in (7006, 7007):
        site.run_hook("epilog", site.variables(job))


def test_no_variable_is_believed(site: Site, in_store: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    tmp_path.chmod(0o777)
    for name in ("json.py", "sitecustomize.py", "usercustomize.py"):
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'w')\n")
    lies = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": str(tmp_path),
        "PYTHONSTARTUP": str(tmp_path / "json.py"),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "WARMSTART_IMAGE": "/etc/passwd",
        "WARMSTART_IMAGES": "/etc/passwd",
        "WARMSTART_CACHE": str(tmp_path),
        "WARMSTART_STORE": str(tmp_path),
        "WARMSTART_POLICY": str(tmp_path / "policy.yaml"),
        "SLURMD_NODENAME": "../../../../tmp",
        "SLURM_JOB_ID": "../../8",
        "SLURM_STEP_ID": "../x",
        "BASH_ENV": str(tmp_path / "json.py"),
        "ENROOT_CONFIG_PATH": str(tmp_path),
    }
    assert got(as_pyxis(site, "get", f"docker://{in_store}", **lies)) == got(
        as_pyxis(site, "get", f"docker://{in_store}")
    )
    assert as_pyxis(site, "release", **lies).returncode == 0
    assert not marker.exists()


def test_what_the_store_lacks_is_the_jobs_own(
    site: Site, in_store: str, registry: Registry, fresh_image: Callable[[], str], own_place: Callable[[str], Path]
) -> None:
    """Imported as the user into the job's workspace, once for all its steps; not into the store."""
    other, before = fresh_image(), stored(site)
    first = as_pyxis(site, "get", f"docker://{other}")
    path = site.on_host("n1", got(first))
    assert "not in this cluster's store" in first.stderr
    tmp = path.parent.parent
    assert (path.parent.name, tmp.name, tmp.parent.parent) == ("warmstart-images", "tmp", site.workspace / "n1")
    assert path.owner() == ALICE
    listed = subprocess.run(["unsquashfs", "-l", path], check=True, capture_output=True, text=True).stdout
    assert "squashfs-root/etc/number" in listed
    asked = registry.requests("GET", other.partition("/")[2].partition(":")[0])
    assert got(as_pyxis(site, "get", f"docker://{other}", SLURM_STEP_ID="1")) == got(first)
    assert registry.requests("GET", other.partition("/")[2].partition(":")[0]) == asked
    assert as_pyxis(site, "release").returncode == 0
    assert path.exists()  # a later step of the job may want it; it goes with the workspace
    assert [name for name in os.listdir(path.parent) if name.startswith(".import-")] == []
    assert stored(site) == before
    # A neighbour's job finds nothing of it: his own import is his own.
    stranger = as_pyxis(site, "get", f"docker://{other}", user=BOB, SLURM_JOB_ID="7008")
    assert Path(got(stranger)).parent == own_place(BOB)
    assert as_pyxis(site, "release", user=BOB, SLURM_JOB_ID="7008").returncode == 0


def forget_uses(site: Site, name: str) -> None:
    shutil.rmtree(site.store / "images" / "used" / name)
    for lease in (site.store / "images" / "leases").glob(f"{name}*"):
        lease.unlink()


@pytest.mark.threat(42)
def test_users_see_that_an_image_is_held_and_not_by_whom(site: Site, of_another_job: str) -> None:
    """It is not copied for the step. Nobody but the store's owner and root can read who imported it or who used it."""
    images, alice, bob = site.store / "images", site.cluster.account(ALICE), site.cluster.account(BOB)
    path = site.on_host("n1", got(as_pyxis(site, "get", f"docker://{of_another_job}")))
    for known in (site.var / "n1" / "uses").iterdir():
        known.unlink()
    assert site.run_hook("epilog", site.variables(7007)).returncode == 0
    assert set(os.listdir(images / "used" / path.stem)) == {"n1", f"n1~{alice.uid}"}
    assert json.loads((images / f"{path.stem}.json").read_text())["user"] == ALICE

    def seen_by_bob(*argv: str) -> set[str]:
        done = subprocess.run(
            [*argv], user=bob.uid, group=bob.gid, extra_groups=[], check=False, capture_output=True, text=True, cwd="/"
        )
        return set(done.stdout.split())

    files = seen_by_bob("/usr/bin/find", str(images), "-type", "f", "-readable", "-not", "-name", "*.sqsh")
    tag = next(iter((images / "tags").iterdir()))
    assert {str(tag), str(images / "leases" / path.stem)} <= files
    assert seen_by_bob("/usr/bin/grep", "-lE", rf"{ALICE}|\b{alice.uid}\b|\bn1\b", *files) == set()
    below = [name.removeprefix(str(images)) for name in seen_by_bob("/usr/bin/find", str(images))]
    assert [name for name in below if "n1" in name or str(alice.uid) in name] == []
    assert got(as_pyxis(site, "get", f"docker://{of_another_job}", user=BOB, SLURM_JOB_ID="7008")) == str(path)
    done = subprocess.run(
        [site.cluster.prefix / "bin" / "warmstart", "images", "show", of_another_job, "--json"],
        user=bob.uid, group=bob.gid, extra_groups=[], check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    shown = json.loads(done.stdout)
    assert (shown["reference"], shown["protected"], shown["tags"]) == (of_another_job, "in use", [of_another_job])
    assert (shown["user"], shown["uid"], shown["nodes"]) == ("", -1, [])


def test_the_use_of_an_image_that_a_step_is_served_is_recorded(site: Site, of_another_job: str) -> None:
    """Maintenance records what the step noted. Where no use protects the image the step gets a copy."""
    path = site.on_host("n1", got(as_pyxis(site, "get", f"docker://{of_another_job}")))
    name = path.name.removesuffix(".sqsh")
    used = site.store / "images" / "used" / name
    assert path.parent == site.store / "images"
    forget_uses(site, name)  # nobody has used it for longer than the lease
    for known in (site.var / "n1" / "uses").iterdir():
        known.unlink()
    own = site.on_host("n1", got(as_pyxis(site, "get", f"docker://{of_another_job}")))
    assert (own.parent.name, own.owner()) == ("warmstart-images", ALICE)
    assert own.read_bytes() == path.read_bytes()
    done = site.command("maintain", "--node", "n1")
    assert done.returncode == 0, done.stderr
    assert [use.name for use in used.iterdir()] == [f"n1~{site.cluster.account(ALICE).uid}"], done.stdout
    assert site.on_host("n1", got(as_pyxis(site, "get", f"docker://{of_another_job}"))) == path


@pytest.mark.threat(34)
def test_a_job_without_a_workspace_has_a_place_too(
    site: Site, own_place: Callable[[str], Path], fresh_image: Callable[[], str]
) -> None:
    """Below /var/tmp, for the step alone. `release` removes it, and a second one finds nothing to do."""
    image = fresh_image()
    path = site.on_host("n1", got(as_pyxis(site, "get", f"docker://{image}", SLURM_JOB_ID="7009")))
    assert path.parent == own_place(ALICE)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert as_pyxis(site, "release", SLURM_JOB_ID="7009", SLURM_STEP_ID="1").returncode == 0
    assert path.exists()
    for _ in range(2):
        assert as_pyxis(site, "release", SLURM_JOB_ID="7009").returncode == 0
        assert not path.parent.exists()


def test_an_image_that_does_not_exist_is_the_users_mistake(
    site: Site, own_place: Callable[[str], Path], registry: Registry
) -> None:
    done = as_pyxis(site, "get", f"docker://{registry.url}/test/nope:1", SLURM_JOB_ID="7009")
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not exist" in done.stderr
    assert [name for name in os.listdir(own_place(ALICE)) if not name.endswith(".lock")] == []
