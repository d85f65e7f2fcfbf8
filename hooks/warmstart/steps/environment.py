"""Step `environment`: write the view that the job's task prolog reads (docs/start/inside-the-job.md).

    view/<jobid>/            root, 0711; its files are root's, and the job's uid can read them (`view`)
        environment          three lines with paths: the workspace root, the constant path, the cache's real path; then
                             `NAME=VALUE`, or `!NAME=VALUE` if the user cannot override the variable. Before that of
                             a profile `=NAME=DEFAULT` (`Profile.defaults`), which enroot's hook alone reads
        notice               lines for the job's output, if any
        images               a line `REFERENCE PATH` for each of the job's images, for `pyxis-importer`; first the one
                             that the caches belong to, without a path if it is left to pyxis. Without this file they
                             belong to the host, and enroot's hook leaves the tools in a container their own places
        caches-HASH          a line `KEY PATH` for an image that only a step names: the key of its caches, "" for the
                             job's own, and its squashfs; added while the job runs. `more` in a second line: the
                             next step asks root, too
        events               what of the prolog's audit the job's user may read (`warmstart explain`)
        link                 exists if the task prolog makes the constant path a link (`constant_path: link`)

TaskProlog's protocol ends a value at a newline and has no quoting (slurm.conf(5), TaskProlog), so values with a newline
are refused. A variable that names the constant path is correct only where the cache is mounted there. Readers of the
view check this, and otherwise replace the constant path by the third path. `WARMSTART_OWN` says what is ours (`_own`).
Tasks of a heterogeneous job know only the leader's id, so the view has that name.
"""

from __future__ import annotations

import os
import stat

from warmstart import view
from warmstart.lean import Iterator, NamedTuple, suppress
from warmstart.paths import NOTHING, Shown
from warmstart.run.shown import shown_by
from warmstart.run.state import CLAIMED
from warmstart.steps.contract import Context, Outcome

NAME = "environment"

OWN, BIND = "WARMSTART_OWN", "APPTAINER_BINDPATH"
_UNBINDABLE = frozenset(",:\\")  # what Apptainer would take for the end of a path
LONGEST_NAME = 128
LONGEST_VALUE = 64 << 10  # Linux limits one string to 128 KiB, Slurm's setenvf too


class Options(NamedTuple):
    """Variables in addition to those that earlier steps set."""

    profiles: dict[str, str]  # variables of the profiles
    policy: dict[str, str]  # variables of the matching rules; they replace those of the profiles
    notices: tuple[str, ...]
    override: frozenset[str] = frozenset()  # variables, also of earlier steps, that the user cannot override
    defaults: dict[str, str] = {}  # noqa: RUF012 - what tools take without the variables of profiles; never mutated


def run(context: Context, options: Options) -> Outcome:
    """Write the job's view."""
    run = context.run
    cache = {"WARMSTART_CACHE": run.own.path} if run.own.path else {}
    variables = {**cache, **run.environment, **options.profiles, **options.policy}
    if cache and context.policy.constant_path == "containers":
        variables = {**_for_apptainer(context, variables), **variables}
    paths = [run.workspace, context.policy.paths.cache, f"{run.directory}/cache"]
    if variables:
        variables[OWN] = _own(run.view_id, variables, paths[:2])
    lines = paths.copy()
    for name in sorted(variables):
        if name in options.defaults and name not in options.policy:
            lines.append(f"={name}={options.defaults[name]}")
        lines.append(_line(name, variables[name], options.override))
    context.audit.say(notices=options.notices)
    files = {"environment": "\n".join(lines) + "\n", view.EVENTS: context.audit.shown(outcome="ok")}
    if image := run.own.image:
        left = {image.removeprefix(CLAIMED): ""} if image.startswith(CLAIMED) else {}
        files["images"] = "".join(f"{name} {path}\n" for name, path in {**left, **run.images}.items())
    if options.notices:
        files[view.NOTICE] = "".join(f"{line}\n" for line in options.notices)
    if context.policy.constant_path == "link" and _is_roots(os.path.dirname(context.policy.paths.cache)):
        files["link"] = ""
    view.publish(context.paths.view, run, files)
    return Outcome()


def _own(job: int, variables: dict[str, str], places: list[str]) -> str:
    """Return the variables, those with their values that do not lead into the workspace or to the constant path.

    srun passes them on to all nodes of a step, sbatch to the jobs that a job submits. By this the readers of views tell
    them from the user's: what we have set is replaced, or goes. A value with a tab counts as the user's, and so do the
    longest ones where there is no room for all.
    """
    below, head = tuple(f"{place}/" for place in places), "\t".join([str(job), *places])
    words = []
    for name, value in sorted(variables.items()):
        is_named = name.startswith("WARMSTART_") or f"{value}/".startswith(below)
        if is_named or "\t" not in value:
            words.append(name if is_named else f"{name}={value}")
    while len((own := "\t".join([head, *words])).encode()) > LONGEST_VALUE:
        words.remove(max(words, key=len))
    return own


def _for_apptainer(context: Context, variables: dict[str, str]) -> dict[str, str]:
    """Return the variables by which Apptainer binds the cache at the constant path, and what else the run shows.

    They set `variables` to match. APPTAINER_MOUNT for the cache, because hardly anybody uses it; it takes one mount.
    APPTAINER_BINDPATH for the rest: sites' modules set APPTAINER_BIND, and Apptainer takes both. Each makes Apptainer
    ignore SINGULARITY_ of the same name, so where the user has that it is not set (decision 44).
    """
    constant = context.policy.paths.cache
    led = (name for name, value in variables.items() if f"{value}/".startswith(f"{constant}/"))
    binds = ",".join(_binds(context.run.directory))
    return {
        **({BIND: binds} if binds else {}),
        "APPTAINER_ENV_FILE": f"{context.paths.programs}/apptainer-environment",
        "APPTAINER_MOUNT": f"source={context.run.directory}/cache,destination={constant}",
        "WARMSTART_CACHE_VARIABLES": " ".join(sorted(led)),  # WARMSTART_CACHE is one
    }


def _binds(run: str) -> Iterator[str]:
    """Yield what APPTAINER_BINDPATH says of what a run shows over what is the job's, as far as it can say it."""
    lines: list[Shown] = []
    with suppress(OSError):  # containers have the originals
        lines = shown_by(run)
    for line in lines:
        if line.whose == "job" and line.target.isprintable() and _UNBINDABLE.isdisjoint(line.target):
            yield f"{line.target if line.source == NOTHING else f'{run}/{line.source}'}:{line.target}:{line.mode}"


def _is_roots(directory: str) -> bool:
    """Return whether root owns the directory on the node.

    If so, a job whose user owns the directory at this path sees another one: the private directory (the job's uid, mode
    0700) that job_container made for it.
    """
    try:
        status = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0


def _line(name: str, value: str, override: frozenset[str]) -> str:
    problem = ""
    if not (name.isascii() and name.isidentifier() and len(name) <= LONGEST_NAME):
        problem = "not a variable's name"
    elif "\n" in value or "\0" in value:
        problem = "holds a newline or a NUL byte"
    elif len(value.encode()) > LONGEST_VALUE:
        problem = "longer than 64 KiB"
    if problem:
        from warmstart.policy.document import PolicyInvalid

        raise PolicyInvalid(listing=f"environment variable {name!r}: {problem}")
    prefix = "!" if name.startswith("WARMSTART_") or name in override else ""
    return f"{prefix}{name}={value}"
