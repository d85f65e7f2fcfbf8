"""pyxis's importer: `get URI` prints the path of a squashfs, `release` removes what `get` made.

Runs as the job's user, in the job's environment. It trusts root's policy and the store only: variables merely select
which of the user's own files to use (the job's workspace, enroot credentials). For an image that the store lacks it
asks the wings that have a way to one (`Maker`); else, and for what the site has no credentials for, the image is
imported as the user (images/user/own_images.py). Where warmstart is off, or leaves the job alone or only observes it,
and for an image that is in no registry (`dockerd://`), the importer does what pyxis does without it: `enroot import`.
pyxis asks before any task has read the job's verdict: a job that must fail gets the verdict, and imports nothing.

A job has caches for each image that it runs in (docs/adr/0057). Its own are those of the first image that its prolog
knew; which another image has, or none, is noted for enroot's hook (`own_images.note_other`): where there is
none it leaves tools their own places. Caches that a step has asked for are in the job's view: later steps need not ask.
What would make an image warm is noted for the SPANK plugin, because nothing that is printed here is shown.

Protocol: pyxis 0.23 and later, importers/README.md: one line on stdout; stderr reaches the user only on failure;
`release` may be called twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from warmstart import plan, view, wing
from warmstart.errors import PolicyError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.choice import choose, of_user, recipe
from warmstart.images.query import query_by_rules
from warmstart.images.reference import SCHEME, Reference, check_allowed, parse, split_login
from warmstart.images.scratch import Caps
from warmstart.images.store import layout, uses
from warmstart.images.user import own_images
from warmstart.images.user.own_images import Made
from warmstart.job import STEP_NODES, JobUnreadable, from_environment
from warmstart.paths import CACHES, Installation
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Images, Policy
from warmstart.policy.match import NO_RULE, OBSERVE

IMPORT_S = 3600.0
CACHES_S = 20.0  # for root's socket to have a place, before an image that the store has is used without caches
COLD = (
    "warmstart: image {image} has no caches of its own on {node}: tools keep what they compile where they do without "
    "warmstart; to have it warm, name it at submission as the job's first image (--warm-image, or image= in the "
    "comment)"
)
USAGE = "usage: pyxis-importer get URI | pyxis-importer release"


class Maker(Protocol):
    """`maker.py` of a wing, which has a way to an image that the store lacks. Runs as the job's user."""

    def make(
        self, installation: Installation, reference: Reference, policy: Policy, find: Callable[[], str]
    ) -> own_images.Made | None:
        """Return the image that was made for this job; None if it is to be imported as the user.

        `find` says when it is time to do without: it returns the path of the store's image then, else "". Raises
        `WarmstartError` if the step must fail.
        """


class Uri(NamedTuple):
    """A parsed URI; `login` is the user name in enroot's `USER@REGISTRY#…`, "" if there is none."""

    reference: Reference
    login: str


def main(prefix: str, arguments: list[str]) -> int:
    """Run `get` or `release`. Return the exit status."""
    os.umask(0o077)
    try:
        match arguments:
            case ["get", uri]:
                if verdict := _verdict(Installation(prefix), uri):
                    print(verdict, end="", file=sys.stderr)  # noqa: T201 - pyxis shows it
                    return 1
                path = get(Installation(prefix), uri)
            case ["release"]:
                own_images.release(_step())
                return 0
            case _:
                print(USAGE, file=sys.stderr)  # noqa: T201 - pyxis shows it
                return 2
    except WarmstartError as error:
        _say(f"{error}\nwarmstart: {error.hint}")
        return 1
    print(path)  # noqa: T201 - the protocol
    return 0


def get(installation: Installation, uri: str) -> str:
    """Return the path of the image: the store's if it has one, else one of the user's own, imported now.

    Leaves a note which of the job's caches the container has.
    """
    made = _get(installation, uri)
    job_tmp = _job_tmp(installation)
    if job_tmp and made.caches != "" and not _is_first(installation, uri, made.path):
        with suppress(OSError):
            if made.caches or _known(installation):
                cache = f"{os.path.dirname(job_tmp)}/cache"
                own_images.note_other(cache, os.environ.get("SLURM_STEP_ID", ""), made.caches)
            if made.caches is None and uri.startswith(SCHEME) and _has_profiles(installation):
                image = parse_uri(uri).reference.canonical()
                own_images.note_cold(job_tmp, COLD.format(image=image, node=_node(installation)))
    return made.path


def _get(installation: Installation, uri: str) -> Made:
    if installation.is_off or not uri.startswith(SCHEME) or _wants_nothing(installation):
        return Made(own_images.plain(uri, _step(), after(IMPORT_S)))
    policy = _policy(installation)
    if policy is not None and _is_left_alone(installation, policy):
        return Made(own_images.plain(uri, _step(), after(IMPORT_S)))
    parsed = parse_uri(uri)
    if policy is not None:
        check_allowed(parsed.reference, policy.images.allowed)
    # A user name asks for what that user's own credentials give access to, not for the image that all may read.
    if policy is not None and not parsed.login and (made := _shared(installation, parsed.reference, policy)):
        return made
    path = own_images.handed_over(_job_tmp(installation), parsed.reference) if parsed.login or policy is None else ""
    return Made(path or _import(installation, parsed, policy))


def _is_first(installation: Installation, uri: str, path: str) -> bool:
    """Return whether an image is the one that the job's first caches belong to; it may be left to pyxis."""
    with suppress(WarmstartError):
        return any(
            path == own or parse_uri(uri).reference.canonical() == name for name, own in _known(installation)[:1]
        )
    return False


def _shared(installation: Installation, reference: Reference, policy: Policy) -> Made | None:
    """Return an image that others may have, too; None if it is to be imported as the user."""
    known, name, job_tmp = _known(installation), reference.canonical(), _job_tmp(installation)
    found = dict(known).get(name, "")  # by the prolog: all steps of a job have the same
    found = found if os.access(found, os.R_OK) else ""
    if found and known[0][0] == name:
        return Made(found, "")
    told = _asked_for(installation, name)
    if told and not told.more:
        return told
    stored = found or in_store(reference, policy)
    if job_tmp or not stored or not _is_used_today(policy, stored):
        try:
            made = _from_maker(installation, reference, policy, stored)
            if made and (made.caches is not None or not told) and (job_tmp or not stored):
                return made  # else only the question mattered: the job can leave no note, and root records its use
        except WarmstartError:
            if not (stored or told):
                raise
    if told:
        return told
    path = found or _from_store(installation, reference, policy) or own_images.handed_over(job_tmp, reference)
    return Made(path) if path else None


def _asked_for(installation: Installation, name: str) -> Made | None:
    """Return the image of an earlier step that asked for its caches."""
    run = os.path.dirname(_job_tmp(installation))
    line, _, more = _read(installation, view.caches_of(name, os.environ.get(STEP_NODES, ""))).partition("\n")
    caches, _, path = line.partition(" ")
    is_here = not caches or os.path.isdir(f"{run}/{CACHES}/{caches}")  # not another node's of this host
    if path and is_here and os.access(path, os.R_OK):
        _note_use(installation, path)
        return Made(path, caches, more=more == view.MORE)
    return None


def _is_used_today(policy: Policy, path: str) -> bool:
    """Return whether a use of the store's image was recorded within a day, so that root would not do it again."""
    with suppress(OSError):
        return uses.is_recorded_today(policy.paths.store, os.path.basename(path).removesuffix(layout.IMAGE))
    return False


def _from_maker(installation: Installation, reference: Reference, policy: Policy, stored: str) -> Made | None:
    """Return the image that somebody has made for the job, with its caches; None if it is for others to do so."""
    patience = after(CACHES_S if stored and _job_tmp(installation) else 0.0)

    def find() -> str:
        return (stored or in_store(reference, policy)) if patience.expired() else ""

    for module in wing.with_part("maker"):
        maker: Maker = wing.load(module)
        made = maker.make(installation, reference, policy, find)
        if made:
            _note_use(installation, made.path)
            if made.text:
                _say(made.text.rstrip("\n"))
            return made
    return None


def _known(installation: Installation) -> list[tuple[str, str]]:
    """Return the job's images that its prolog knew, and their paths ("": left to pyxis). The first has the caches."""
    lines = _read(installation, "images").splitlines()
    return [(name, path) for name, _, path in (line.partition(" ") for line in lines)]


def _wants_nothing(installation: Installation) -> bool:
    return view.read(installation.view, _job(), view.LEFT_ALONE) is not None


def _verdict(installation: Installation, uri: str) -> str:
    """Return why this job must fail, "" if it need not; also that an image for which it waited has arrived since."""
    text = _read(installation, view.VERDICT)
    if not text:
        return ""
    sentence, _, advice = text.partition("\n")
    with suppress(WarmstartError):
        reference, policy = parse_uri(uri).reference, _policy(installation)
        image = f"image {reference.canonical()}"
        is_about = any(f"{image}{end}" in sentence for end in (" ", ": "))
        if policy is not None:
            check_allowed(reference, policy.images.allowed)  # else it will be refused again
        if policy is not None and is_about and in_store(reference, policy):
            advice = f"warmstart: {image} is there now: submit the job again\n"
    return f"{sentence}\n{advice}"


def parse_uri(uri: str) -> Uri:
    """Parse the value of --container-image, which pyxis prefixes with `docker://`."""
    login, rest = split_login(uri)
    return Uri(parse(rest), login)


def _policy(installation: Installation) -> Policy | None:
    """Return the current policy, None if there is none."""
    try:
        return current_policy(installation).policy
    except PolicyError as error:
        _say(f"continuing without a policy ({error})")
        return None


def _is_left_alone(installation: Installation, policy: Policy) -> bool:
    """Return whether no rule matches the job on this node, or the job is only observed.

    Variables of the job describe it. A user who forges them changes only who imports the user's own image.
    """
    uid, gid = os.getuid(), os.getgid()
    known = {
        **os.environ,
        "SLURM_JOB_ID": _job(),
        "SLURM_JOB_UID": str(uid),
        "SLURM_JOB_GID": str(gid),
        "SLURM_JOB_USER": _user(uid),
        "SLURMD_NODENAME": _node(installation),
    }
    try:
        job = from_environment(known)
    except JobUnreadable:
        return policy.mode == OBSERVE
    array = "_".join(os.environ.get(f"SLURM_ARRAY_{part}", "") for part in ("JOB_ID", "TASK_ID"))
    job = job._replace(job_name=os.environ.get("SLURM_JOB_NAME", ""), array=array.strip("_"), qos=job.qos or "")
    grant = plan.grant(policy, job)
    return grant.observed or grant.reason == NO_RULE


def _node(installation: Installation) -> str:
    nodes = installation.nodes()
    # SLURMD_NODENAME may still be the batch host's, but few hosts have several slurmds.
    return nodes[0] if len(nodes) == 1 else os.environ.get("SLURMD_NODENAME", "")


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _from_store(installation: Installation, reference: Reference, policy: Policy) -> str:
    """Return the path of the store's image, or of a copy if the image may be evicted; "" if the store has none."""
    path = in_store(reference, policy)
    if not path:
        return ""
    _note_use(installation, path)
    name = os.path.basename(path).removesuffix(layout.IMAGE)
    with suppress(OSError):
        if uses.is_protected(policy.paths.store, name, policy.images.keep.lease):
            return path
    _say(f"{reference.canonical()} was not used recently and may be evicted; copying it for you alone")
    return own_images.copied(reference, _directory(installation, policy.images), path, after(IMPORT_S))


def _note_use(installation: Installation, path: str) -> None:
    job_tmp = _job_tmp(installation)
    with suppress(OSError):
        if job_tmp:
            own_images.note_use(job_tmp, os.path.basename(path).removesuffix(layout.IMAGE))


def in_store(reference: Reference, policy: Policy) -> str:
    """Return the path of the store's image, "" if there is none. Reads the store as the user, without a lock."""
    query = query_by_rules(reference, policy.images, recipe(policy.images.importer))
    try:
        store, owner = policy.paths.store, policy.store_user.uid
        image = layout.find(store, query.key, reference.digest, query.kind, query.fresh_after, owner=owner)
    except OSError as error:
        _say(f"cannot read the image store: {error.strerror}")
        return ""
    return image.path if image is not None and not image.invalid else ""


def _import(installation: Installation, parsed: Uri, policy: Policy | None) -> str:
    uid, gid = os.getuid(), os.getgid()
    _say(f"{parsed.reference.canonical()} is not in this cluster's store; importing it for you alone")
    # Without a policy it imports from any registry, as pyxis itself does.
    rules = of_user(policy.images if policy else Images())
    importer = choose(rules, Identity(f"uid {uid}", uid, gid), policy.paths.cache if policy else "")
    directory = _directory(installation, rules)
    return own_images.obtain(parsed.reference, directory, importer, parsed.login, after(IMPORT_S))


def _directory(installation: Installation, rules: Images) -> own_images.Directory:
    return own_images.directory_of(_job_tmp(installation), _step(), Caps(rules.max_size))


def _step() -> str:
    """Return JOB.STEP. A user who forges it affects only files of their own."""
    parts = (os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", ""))
    return ".".join(part if part.isascii() and part.isdecimal() else "none" for part in parts)


def _job() -> str:
    return _step().partition(".")[0]


def _has_profiles(installation: Installation) -> bool:
    """Return whether tools of the job have caches: its view says what they take without, or variables lead there."""
    _, constant, cache, *lines = [*_read(installation, "environment").splitlines(), "", "", ""]
    places = (f"{constant}/", f"{cache}/")
    led = (name for name, _, value in (line.partition("=") for line in lines) if value.startswith(places))
    return any(line.startswith("=") for line in lines) or not all("WARMSTART_" in name for name in led)


def _job_tmp(installation: Installation) -> str:
    """Return the TMPDIR in the job's workspace, "" if it has none. Read from the job's own view."""
    lines = _read(installation, "environment").splitlines()
    return f"{lines[2].removesuffix('/cache')}/tmp" if len(lines) >= 3 and lines[2].endswith("/cache") else ""


def _read(installation: Installation, name: str) -> str:
    """Return a file of the job's view, "" if it has none."""
    return (view.read(installation.view, _job(), name) or b"").decode("utf-8", "replace")


def _say(text: str) -> None:
    print(f"warmstart: {text}", file=sys.stderr)  # noqa: T201 - pyxis shows it if the step fails
