"""`warmstart profile try`: what a profile would make of a directory's files, without a job."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING

import click

from warmstart.caches.store.layout import MOST_ENTRIES
from warmstart.cli.output import fail, json_option, say, show_json, show_table, size, warn, working
from warmstart.errors import WarmstartError
from warmstart.harvest import stage
from warmstart.harvest.collect import Collected, Limits, Place, collect
from warmstart.harvest.known import NOTHING_KNOWN
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy
from warmstart.profiles import naming, registry
from warmstart.profiles.client import judged
from warmstart.profiles.entry_files import REASONS

if TYPE_CHECKING:
    from warmstart.profiles.contract import Profile

NOTHING = 1
SECONDS = 600.0
MOST_SHOWN = 20  # entries; --json has all


@click.group()
def profile() -> None:
    """Try a profile of the policy on files, without a job."""


@profile.command("try")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--profile", "name", required=True, help="A profile of warmstart's, or of the policy.")
@click.option(
    "--policy",
    "draft",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Take the profile from this policy instead of the one in force.",
)
@json_option
@click.pass_obj
def try_command(installation: Installation, /, directory: str, name: str, draft: str | None, *, as_json: bool) -> None:
    """Show what the harvest would make of DIRECTORY, as if it were the profile's in a job's cache.

    Entries that it would publish, those that are damaged, files that it leaves out, and why. Files that are not of the
    directory's owner are left out, as those of others are in a job. Publishes nothing. Root's trial judges entries as
    the validator; anybody can try own files.

    Exit status: 0 there are entries; 1 there are none; 2 wrong usage, or the directory cannot be read.
    """
    try:
        policy = _policy(installation, draft)
        if name not in (known := registry.names(policy.profiles)):
            raise click.UsageError(f"no profile {name}; there are {', '.join(known)}")
        with working("reading"):
            collected, invalid = tried(policy, registry.get(name, policy.profiles), directory)
    except WarmstartError as error:
        fail(error, error.hint)
    except OSError as error:
        fail(error)
    found = collected.found
    valid = {entry: files for entry, files in collected.entries.items() if entry not in invalid}
    taken: dict[str, Json] = {
        "entries": {entry: list(files) for entry, files in valid.items()},
        "bytes": sum(file.size for files in valid.values() for file in files.values()),
        "invalid": invalid,
        "rejected": found.rejected.counts,  # why root does not touch a file → number
        "ignored": found.ignored.counts,  # why a file is in no entry → number
        "examples": [*found.rejected.examples, *found.ignored.examples],
        "truncated": collected.truncated,
    }
    if as_json:
        show_json(taken)
    else:
        _show(taken)
    if not valid:
        raise click.exceptions.Exit(NOTHING)


def tried(policy: Policy, profile: Profile, directory: str) -> tuple[Collected, dict[str, str]]:
    """Collect and judge the entries in a directory, as an epilog does, in a stage that is removed.

    Returns what was collected, and which entries of it are invalid and why, a key of `REASONS`.
    """
    deadline = after(SECONDS)
    # Nobody but root can become the validator; for others it is their own process that reads their files.
    me = Identity("you", os.geteuid(), os.getegid())
    validator = policy.validate_user if me.uid == 0 else me
    with (
        opened_dir(os.path.realpath(directory)) as top,
        tempfile.TemporaryDirectory(prefix="warmstart-try-") as temp,
        stage.made(temp, "stage", []) as staged,
    ):
        place = Place(top, "", os.fstat(top).st_uid, lock=profile.lock)
        limits = Limits(policy.harvest.max_size, MOST_ENTRIES, deadline)
        collected = collect(place, partial(naming.entry_of, profile), NOTHING_KNOWN, staged, limits)
        files = {entry: list(names) for entry, names in collected.entries.items()}
        answers = judged(validator, profile.name, staged.fd, files, defined=policy.profiles, deadline=deadline)
        return collected, {entry: reason for entry, reason in answers if reason is not None}


def _policy(installation: Installation, draft: str | None) -> Policy:
    from warmstart.policy import load
    from warmstart.policy.document import Document

    if draft is None:
        return current_policy(installation).policy
    return load.resolved(load.checked(Document(load.texts(draft)), load.node_user))


def _show(taken: dict[str, Json]) -> None:
    count = len(taken["entries"])
    say(f"{count} {'entry' if count == 1 else 'entries'}, {size(taken['bytes'])}")
    rows = [("entry", entry, f"{len(names)} files") for entry, names in taken["entries"].items()]
    rows = [*rows[:MOST_SHOWN], *([("…", f"{count - MOST_SHOWN} more", "")] if count > MOST_SHOWN else [])]
    rows += [("damaged", entry, REASONS[reason]) for entry, reason in taken["invalid"].items()][:MOST_SHOWN]
    for reason, times in [*taken["rejected"].items(), *taken["ignored"].items()]:
        some = [path for path, why in taken["examples"] if why == reason][:3]
        rows.append(("left out", f"{times} files", f"{reason}: {', '.join(some)}" if some else reason))
    if rows:
        show_table(("what", "which", "of"), rows)
    if taken["truncated"]:
        warn(f"the rest was not looked at: {taken['truncated']}")
