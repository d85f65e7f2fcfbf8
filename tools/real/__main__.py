"""Run containers with the real pyxis and enroot, and print what each user of them sees.

    python -m tools.real

Needs enroot (with its file capabilities) and pyxis 0.23 or later, and writes to /etc/enroot: run it in a root file
system of tests/releases, as CONTRIBUTING.md says. With WARMSTART_TOOLS_PYTHON (tools/README.md) steps compile with
Inductor, too. Nothing is asserted but what a line marked `!` says; read the rest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from tests.lib import registries, spank
from tests.lib.accounts import ALICE, BOB, CAROL
from tests.lib.cluster import Cluster
from tests.lib.config import Namespace
from tests.lib.processes import wait_until
from tests.lib.registry import Registry, build_image
from tests.lib.site import Site
from tools.real.claims import SHOW, Failed, check
from warmstart import wing
from warmstart.doctor import installed
from warmstart.doctor.containers import needs_slurmstepd

PYXIS = "/usr/lib/slurm/spank_pyxis.so"
ENROOT = Path("/etc/enroot")
RULES = """\
rules:
  - name: everyone
    match: {partition: main}
    profiles: [numba, inductor, triton]
    scope: site
    publish: {users: [ws-alice]}
"""
CONF = ENROOT / "enroot.conf.d/tests.conf"
ENTRY = "/entry"  # each image's entrypoint; pyxis takes the variables that it leaves
SETTINGS = "".join(
    f"ENROOT_{name}_PATH {{base}}/enroot/$(id -u)/{name.lower()}\n" for name in ("RUNTIME", "CACHE", "DATA", "TEMP")
)
# Of wings: what is pushed for them, and what they run.
WINGS = Path(spank.__file__).parents[1] / "wings"
OF_WINGS = [
    import_module(f"tests.lib.wings.{name}.real") for name in wing.found() if (WINGS / name / "real.py").exists()
]
FILL = {name: part.fill for part in OF_WINGS if hasattr(part, "fill") for name in part.IMAGES}
RELEASE = installed.release("/usr/bin/scontrol", "")
HAS_TASK_PROLOG = not needs_slurmstepd(RELEASE)


def set_up_enroot(site: Site, private: str) -> None:
    """Install warmstart's hook and mounts, as docs/guides/pyxis.md says, and alice's credentials."""
    base = site.cluster.base
    if not HAS_TASK_PROLOG:  # the hook and the plugin suffice
        leave_out_task_prolog(site)
    shutil.copy(site.cluster.prefix / "share/warmstart/enroot/40-warmstart.sh", ENROOT / "hooks.d")
    (ENROOT / "hooks.d/40-warmstart.sh").chmod(0o755)
    shutil.copy(site.cluster.prefix / "share/warmstart/enroot/50-warmstart.fstab", ENROOT / "mounts.d")
    CONF.write_text(f"{SETTINGS.format(base=base)}ENROOT_ALLOW_HTTP yes\n")
    for user in (ALICE, BOB, CAROL):
        account = site.cluster.account(user)
        for name in ("", "runtime", "cache", "data", "temp"):
            path = base / "enroot" / str(account.uid) / name
            path.mkdir(parents=True)
            os.chown(path, account.uid, account.gid)
        subprocess.run(["/usr/sbin/usermod", "--home", account.home, user], check=True)
    config = site.cluster.account(ALICE).home / ".config/enroot"
    config.mkdir(parents=True)
    machine = private.partition(":")[0]
    line = f"machine {machine} login {registries.USER} password {registries.PASSWORD}\n"
    (config / ".credentials").write_text(line)
    for path in (config.parent, config, config / ".credentials"):
        os.chown(path, site.cluster.account(ALICE).uid, site.cluster.account(ALICE).gid)


def leave_out_task_prolog(site: Site) -> None:
    """Take the task prolog out of slurm.conf."""
    conf = site.cluster.base / "etc/warmstart.conf"
    conf.write_text(conf.read_text().replace("\nTaskProlog=", "\n#"))
    site.cluster.admin("scontrol", "reconfigure")


@contextmanager
def plugged(site: Site, *, first: bool = False, options: str = "") -> Iterator[None]:
    """Load pyxis with further `options` and, after it (or `first`), warmstart's plugin."""
    with spank.loaded(site):
        plugstack = site.cluster.base / "etc/plugstack.conf"
        ours = plugstack.read_text()
        (site.cluster.base / "pyxis").mkdir(exist_ok=True)
        importer = site.cluster.prefix / "libexec/warmstart/pyxis-importer"
        pyxis = f"required {PYXIS} importer={importer} runtime_path={site.cluster.base}/pyxis {options}\n"
        plugstack.write_text(ours + pyxis if first else pyxis + ours)
        yield


@contextmanager
def kept(*paths: Path) -> Iterator[None]:
    """Give files back what they had before a `with`."""
    before = {path: path.read_text() for path in paths}
    yield
    for path, text in before.items():
        path.write_text(text)


def push(directory: Path, name: str, fill: Callable[[Path], None] = lambda _: None) -> None:
    """Push the image of a new directory. enroot takes no manifest but Docker's, and no layer of `umoci insert`."""
    build_image(directory, {"/etc/motd": f"{directory.name}\n", ENTRY: '#!/bin/sh\nENTERED=1 exec "$@"\n'})
    (directory / "rootfs" / ENTRY[1:]).chmod(0o755)
    fill(directory / "rootfs")
    layer, layout = directory / "layer.tar", directory / "plain"
    subprocess.run(["tar", "-C", directory / "rootfs", "-cf", layer, "."], check=True)
    for argv in (["init", "--layout", layout], ["new", "--image", f"{layout}:latest"]):
        subprocess.run(["umoci", *argv], check=True)
    subprocess.run(["umoci", "raw", "add-layer", "--image", f"{layout}:latest", layer], check=True)
    subprocess.run(["umoci", "config", "--image", f"{layout}:latest", "--config.entrypoint", ENTRY], check=True)
    options = ["--quiet", "--insecure-policy", "--format=v2s2", "--dest-tls-verify=false"]
    login = f"--dest-creds={registries.USER}:{registries.PASSWORD}"
    subprocess.run(["skopeo", "copy", *options, login, f"oci:{layout}:latest", f"docker://{name}"], check=True)


def srun(site: Site, user: str, image: str, script: str, *options: str) -> str:
    """Run a step in a container. Print and return what the user sees."""
    arguments = [f"--container-image={image}", "--no-container-mount-home", *options]
    sys.stdout.write(f"\n$ srun {' '.join(arguments)} sh -c '{script}'      # {user}\n")
    done = site.cluster.run(["srun", "--nodelist=n1", *arguments, "sh", "-c", script], user)
    site.cluster.wait_idle(120)
    text = f"{done.stdout}{done.stderr}[{done.returncode}]"
    sys.stdout.write("".join(f"    {line}\n" for line in text.splitlines()))
    return text


def check_without_view(site: Site, image: str) -> None:
    """Check a step on a node without a view of its job, as where warmstart is off."""
    go = site.cluster.base / "go"
    step = f"srun --nodes=1 --ntasks=1 --nodelist=n2 --container-image={image} --no-container-mount-home sh -c export"
    script = f"#!/bin/sh\necho numba=$NUMBA_CACHE_DIR\nwhile [ ! -e {go} ]; do sleep 0.2; done\n{step}\n"
    job = site.cluster.submit(script, ALICE, "--nodelist=n1,n2")
    output = site.cluster.account(ALICE).home / f"slurm-{job}.out"
    wait_until("the script", lambda: output.exists() and "numba=/" in output.read_text(), 60)
    shutil.rmtree(site.view("n2", job))
    go.touch()
    ended = site.finish(job)
    sys.stdout.write(f"\n$ {step}      # without a view\n{ended.output}")
    told = "error" in ended.output or "NUMBA_CACHE_DIR=" in ended.output or "WARMSTART_CACHE=" in ended.output
    check("a node without a view runs the step as stock", seen=ended.state == "COMPLETED" and not told)


def check_places(site: Site, image: str, way: str) -> None:
    """Check that steps in an image of their own find what a tool keeps in its own place, as with stock pyxis."""
    directory = "${TRITON_CACHE_DIR:-$HOME/.triton/cache}"  # a job compiles one kernel
    script = f"mkdir -p {directory}; echo entries: $(ls {directory} | wc -l); touch {directory}/$SLURM_JOB_ID"
    home = site.cluster.account(ALICE).home
    for setting, options in (
        ("", "--container-mount-home"),
        ("", "--no-container-mount-home --container-writable"),
        ("", "--no-container-mount-home --container-writable --container-name=kept-NAME"),
        ("TRITON_CACHE_DIR=$HOME/mine ", "--container-mount-home"),
    ):
        counts = []
        for off in (["--no-warm"], []):
            for name in (".triton", "mine"):
                shutil.rmtree(home / name, ignore_errors=True)
            named = options.replace("NAME", f"{way}{len(off)}".replace(" ", "-"))
            step = f"{setting}srun --container-image={image} {named} sh -c '{script}'\n"
            text = ""
            for _ in range(2):
                job = site.cluster.submit(f"#!/bin/sh\n{step}{step}", ALICE, "--nodelist=n1", *off)
                text += site.finish(job).output
            counts.append([line.partition(": ")[2] for line in text.splitlines() if line.startswith("entries: ")])
        claim = f"{way}, {setting}srun {options}: entries {counts[1]}, without warmstart {counts[0]}"
        check(claim, seen=counts[0] == counts[1] and len(counts[0]) == 4)


def check_batch(site: Site) -> None:
    """Check a batch script in a container from a file, which is no image that the job's prolog knows."""
    stored = min((site.store / "images").glob("*.sqsh"), key=lambda path: path.stat().st_mtime)  # the public one
    own = site.cluster.base / "own.sqsh"
    shutil.copyfile(stored, own)
    own.chmod(0o644)
    script = "#!/bin/sh\ncat /etc/motd; echo cache=$WARMSTART_CACHE\n"
    ended = site.finish(site.cluster.submit(script, ALICE, "--nodelist=n1", f"--container-image={own}"))
    sys.stdout.write(f"\n$ sbatch --container-image={own}\n{ended.output}")
    check("a batch script in a container from a file has no cache", seen="public\ncache=\n" in ended.output)
    check("and is not told of a closed workspace", seen="cannot enter" not in ended.output)


def check_saved(site: Site, image: str, saved: Path) -> None:
    """Check the file of a saved container, if this node's enroot can save any."""
    if not saved.exists():
        text = srun(site, ALICE, image, "true", "--no-warm", f"--container-save={saved}")
        check("no container can be saved here, with or without warmstart", seen="failed to export" in text)
        return
    listed = subprocess.run(["unsquashfs", "-l", saved], check=True, capture_output=True, text=True).stdout
    check("nor has a saved one", seen=f"{site.workspace}/" not in listed)


def run(site: Site, registry: Registry, private: str) -> None:
    """Run every case."""
    public, forbidden = f"{registry.url}/team/public:1", "quay.example.com/a:1"
    with plugged(site):
        text = srun(site, ALICE, public, f"cat /etc/motd; {SHOW}")
        check("an image by tag, imported by the prolog", seen="public" in text and "[0]" in text)
        text = srun(site, BOB, public, f"cat /etc/motd; {SHOW}")
        check("the same image, warm, for another user", seen="public" in text)
        (event,) = site.audit("--event", "image.imported")
        check(f"one import ({event['image']})", seen=True)
        for part in OF_WINGS:
            if hasattr(part, "run"):
                with kept(site.etc / "policy.yaml", site.cluster.base / "etc/plugstack.conf", CONF):
                    part.run(site, registry)
        by_wings = len(site.published())
        check_without_view(site, public)
        check_places(site, f"{registry.url}/team/places:1", "plugin after pyxis")

        text = srun(site, ALICE, private, f"cat /etc/motd; {SHOW}")
        check("the plugin says so, once", seen=text.count("imports it as you") == 1)
        check("a private image with the user's own credentials", seen="private" in text and "[0]" in text)
        plain = ["srun", "--nodelist=n1", "--ntasks=2", "--overcommit", f"--container-image={private}"]
        done = site.cluster.run([*plain, "--no-container-mount-home", "sh", "-c", "cat /etc/motd"], ALICE)
        check(f"the tasks' output is their own: {done.stdout!r}", seen=done.stdout == "private\nprivate\n")
        name, _, tag = private.partition("/")
        text = srun(site, ALICE, f"{registries.USER}@{name}#{tag}", "cat /etc/motd")
        check("USER@REGISTRY#NAME", seen="private" in text and "[0]" in text)
        text = srun(site, BOB, private, "cat /etc/motd")
        check("a user without credentials: the step fails, no node is drained", seen="private\n" not in text)
        check("no noise of enroot's", seen="[INFO]" not in text and "anonymous" not in text)
        check("no node is drained", seen=site.cluster.drained() == [])
        scopes = {cache["scope"] for cache in site.published()[by_wings:]}
        check(f"nothing was published for the site: {scopes}", seen="site" not in scopes)

        text = srun(site, ALICE, forbidden, "true")
        check("an image that the policy forbids is refused", seen="is refused" in text)
        text = srun(site, ALICE, f"{registry.url}/team/cold:1", "true", "--comment=warmstart: bogus")
        check("a job whose request is refused is told so", seen="bogus" in text)
        check("and its image is not imported", seen=registry.requests("GET", "/team/cold/blobs/") == 0)
        text = srun(site, ALICE, "dockerd://nosuch", "true")
        check("an image of the docker daemon is left to pyxis", seen="is refused" not in text and "pyxis" in text)

        home = site.cluster.account(ALICE).home
        hiding = f"--container-mounts={home}:{site.constant}"
        text = srun(site, ALICE, public, SHOW, hiding)
        check("a mount that hides the cache: no variable points there", seen="cache= numba= " in text)
        check("and the user is told", seen="lacks the job's cache" in text)

        saved = f"--container-save={home}/saved.sqsh"
        for options in (["--container-name=kept"], ["--container-name=kept"], [saved]):
            text = srun(site, ALICE, public, f"echo runs: $(ls {site.workspace} | wc -l)", *options)
            check("a kept container has no directories of other jobs", seen="runs: 1" in text)
        check_saved(site, public, Path(home, "saved.sqsh"))
        srun(site, ALICE, public, "true", "--no-warm")
        check("nothing is left after --no-warm", seen=not list(Path("/var/tmp").glob("warmstart-images-*")))


def run_without(site: Site, image: str, own: str) -> None:
    """Run what differs where the plugin comes before pyxis, and where there is no task prolog, either."""
    with plugged(site, first=True):
        hiding = f"--container-mounts={site.cluster.account(ALICE).home}:{site.constant}"
        text = srun(site, ALICE, image, SHOW, hiding)
        check("with the plugin before pyxis this is not noticed", seen="lacks the job's cache" not in text)
        check_batch(site)
        check_places(site, own, "plugin before pyxis")
        leave_out_task_prolog(site)
        check_places(site, own, "and no task prolog")


def run_without_unpacking(site: Site, registry: Registry, image: str, private: str) -> None:
    """Run what differs where pyxis starts a container from the store's file."""
    with plugged(site, options="use_squashfuse=1"):
        show = 'cat /etc/motd; grep -o "^overlay / " /proc/mounts'
        text = srun(site, ALICE, image, f"{show}; {SHOW}")
        check(
            "a container that is not unpacked has its caches", seen=_direct(text) and f"cache={site.constant} " in text
        )
        text = srun(site, ALICE, image, f"echo new >/etc/motd; {show}", "--container-writable")
        check("what it writes it reads", seen="new" in text and _direct(text))
        text = srun(site, ALICE, image, show, "--container-name=unpacked")
        check("a container with a name is unpacked", seen="[1]" in text and "overlay" not in text)
        for part in OF_WINGS:
            if hasattr(part, "run_without_unpacking"):
                part.run_without_unpacking(site, registry, private)
        check("no node is drained", seen=site.cluster.drained() == [])


def run_in_namespaces() -> None:
    """Run what differs where each job has a mount namespace of Slurm's, in a cluster for each kind of it."""
    for further in ("", "Shared=true") if RELEASE and RELEASE >= (24, 11) else ("",):  # job_container.conf(5)
        with Cluster(namespace=Namespace(further=further)) as cluster, Registry(cluster.base) as registry:
            site = Site(cluster, registry.url)
            image = f"{registry.url}/team/contained:1"
            push(cluster.base / "contained", image)
            site.write_policy(RULES, constant="enroot")
            set_up_enroot(site, registry.url)
            sys.stdout.write(f"\njob_container/tmpfs {further}\n")
            with plugged(site, options="use_squashfuse=1"):
                text = srun(site, ALICE, image, SHOW)
                check("a container has its caches", seen=f"cache={site.constant} " in text)
                for part in OF_WINGS:
                    if hasattr(part, "run_in_a_namespace"):
                        part.run_in_a_namespace(site, image)
            check("no node is drained", seen=site.cluster.drained() == [])


def _direct(text: str) -> bool:
    return "overlay / " in text and "[0]" in text


def main() -> int:
    """Start everything, run, take everything down."""
    with Cluster() as cluster, Registry(cluster.base) as registry, registries.private(cluster.base) as private:
        site = Site(cluster, registry.url)
        site.registry = f'{registry.url}", "http://{private}'  # two in the policy's lists
        site.write_policy(RULES, constant="enroot")
        of_registry = [
            (name, registry.url)
            for name in ("public", "cold", "places", *(name for part in OF_WINGS for name in part.IMAGES))
        ]
        for name, host in (*of_registry, ("private", private)):
            push(cluster.base / name, f"{host}/team/{name}:1", FILL.get(name, lambda _: None))
        set_up_enroot(site, private)
        try:
            public, own = (f"{registry.url}/team/{name}:1" for name in ("public", "places"))
            run(site, registry, f"{private}/team/private:1")
            run_without_unpacking(site, registry, public, f"{private}/team/private:1")
            run_without(site, public, own)
        except Failed:
            cluster.keep_logs()
            sys.stdout.write(cluster.slurmd_log("n1")[-3000:])
            return 1
    run_in_namespaces()
    return 0


if __name__ == "__main__":
    sys.exit(main())
