"""Jobs that set the variables of their profiles themselves, on a real cluster: which ones is told, and who does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE
from tests.lib.site import Site

RULES = "rules:\n  - name: everyone\n    profiles: [flashinfer, numba, triton, vllm]\n    override: [{override}]\n"
OWN = {name: f"/tmp/of-recipe/{name}" for name in ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")}
# As enroot starts a container of an image without variables, whose root file system is this one.
CONTAINER = """\
#!/bin/sh
set -e
here=$(mktemp -d "$TMPDIR/step.XXXXXX") && cd "$here"
true >MOUNTS && true >ENVIRON
ENROOT_MOUNTS=$here/MOUNTS ENROOT_ENVIRON=$here/ENVIRON ENROOT_ROOTFS=/r/pyxis_$SLURM_JOB_ID sh {hook}
grep TRITON_CACHE_DIR ENVIRON || echo TRITON_CACHE_DIR=$TRITON_CACHE_DIR
"""


@pytest.fixture
def container(site: Site) -> Path:
    """Return a program that does what enroot does before it starts a container."""
    program = site.cluster.base / "as-enroot"
    program.write_text(CONTAINER.format(hook=site.cluster.prefix / "share/warmstart/enroot/40-warmstart.sh"))
    program.chmod(0o755)
    return program


def begin(site: Site, name: str, override: str = "") -> None:
    """Begin with an empty store."""
    store = site.new_store(site.cluster.base / name)
    site.write_policy(RULES.format(override=override), constant="enroot", store=str(store))


def ran(
    site: Site, script: str, options: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> tuple[int, dict[str, tuple[list[str], str]], str]:
    """Run a job; return its id, of each profile what it set itself and its use, and the output."""
    ended = site.finish(site.cluster.submit(f"#!/bin/sh\n{script}\n", ALICE, "--nodelist=n1", *options, env=env))
    assert ended.state == "COMPLETED", ended.output
    events = site.harvested(ended.job_id)
    return ended.job_id, {event["profile"]: (event.get("own", []), event["use"]) for event in events}, ended.output


@pytest.mark.parametrize("how", ["at submission", "for a step", "for a container"])
def test_three_variables_of_a_job_are_named(
    site: Site, container: Path, fresh_image: Callable[[], str], how: str
) -> None:
    """Whoever set them; of a profile whose variable is ours nothing is said. `explain` has the line for the rule."""
    begin(site, f"around-{how.replace(' ', '-')}")
    export = "".join(f"export {name}={value}\n" for name, value in OWN.items())
    script = {
        "at submission": "srun true",
        "for a step": f"{export}srun true",
        "for a container": f"printf '%s' '{export}exec {container}' >c; srun sh c",
    }[how]
    options = (f"--comment=warmstart: image={fresh_image()}",) if how == "for a container" else ()
    job_id, uses, _ = ran(site, script, options=options, env=OWN if how == "at submission" else {})
    assert uses.pop("flashinfer") == ([], "untouched")
    assert uses == {
        "numba": (["NUMBA_CACHE_DIR"], "around"),
        "triton": (["TRITON_CACHE_DIR"], "around"),
        "vllm": (["VLLM_CACHE_ROOT"], "around"),
    }
    told = " ".join(site.command("explain", str(job_id)).stdout.split())
    assert "the job went around it; set by the job itself: TRITON_CACHE_DIR" in told


def test_what_the_line_does_and_what_it_does_not(site: Site) -> None:
    """In the script and in its steps the profile's place wins; not against what the script sets later."""
    begin(site, "around-override", "TRITON_CACHE_DIR")
    script = "echo $TRITON_CACHE_DIR\nexport TRITON_CACHE_DIR=/mine\necho $TRITON_CACHE_DIR\n"
    _, uses, output = ran(site, f"{script}srun printenv TRITON_CACHE_DIR", env={"TRITON_CACHE_DIR": "/tmp/t"})
    first, own, step = output.split()
    assert (first.endswith("/cache/triton"), own, step) == (True, "/mine", first)
    assert uses["triton"] == ([], "untouched")
