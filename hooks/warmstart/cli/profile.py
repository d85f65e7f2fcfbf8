"""`warmstart profile try`: what a profile would make of a directory's files, without a job."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from warmstart.caches.store.layout import MOST_ENTRIES
from warmstart.cli.output import UNUSABLE, fail, json_option, say, show_json, show_table, size, warn, working
from warmstart.errors import PolicyError, WarmstartError
from warmstart.harvest.collect import HarvestLimits, Stage, collect
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy
from warmstart.profiles import naming, registry
from warmstart.profiles.client import Validator
from warmstart.profiles.entry_files import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warmstart.profiles.contract import Profile

NOTHING = 1
SECONDS = 600.0
MOST_SHOWN = 20  # entries; --json has all


class Taken(NamedTuple):
    """What would become of a directory's files."""

    entries: dict[str, list[str]]  # valid entry → its files
    bytes: int  # of these
    invalid: dict[str, str]  # entry → why it is none, a key of `REASONS`
    rejected: dict[str, int]  # why root does not touch a file → number
    ignored: dict[str, int]  # why a file is in no entry → number
    examples: list[tuple[str, str]]  # of the last two: path, reason
    truncated: str  # why the rest was not looked at, or ""


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
    policy = _policy(installation, draft)
    if name not in (known := sorted(registry.names(policy.profiles))):
        raise click.UsageError(f"no profile {name}; there are {', '.join(known)}")
    try:
        with working("reading"):
            taken = tried(policy, registry.get(name, policy.profiles), directory)
    except WarmstartError as error:
        fail(error, error.hint)
    except OSError as error:
        fail(error)
    if as_json:
        show_json(taken._asdict())
    else:
        _show(taken)
    if not taken.entries:
        raise click.exceptions.Exit(NOTHING)


def tried(policy: Policy, profile: Profile, directory: str) -> Taken:
    """Collect and judge the entries in a directory, as an epilog does, in a stage that is removed."""
    deadline = after(SECONDS)
    limits = HarvestLimits(policy.harvest.max_size, MOST_ENTRIES, deadline)
    # Nobody but root can become the validator; for others it is their own process that reads their files.
    me = Identity("you", os.geteuid(), os.getegid())
    validator = Validator(policy.validate_user if me.uid == 0 else me)
    with opened_dir(os.path.realpath(directory)) as top, _stage() as stage:
        owner = os.fstat(top).st_uid
        found = collect(
            top,
            "",
            owner=owner,
            entry_of=partial(naming.entry_of, profile),
            skip=(),
            stage=Stage(stage),
            limits=limits,
            lock=profile.lock,
        )
        files = {entry: list(names) for entry, names in found.entries.items()}
        judged = dict(validator.judge(profile.name, stage, files, defined=policy.profiles, deadline=deadline))
    invalid = {entry: reason for entry, reason in judged.items() if reason is not None}
    return Taken(
        entries={entry: names for entry, names in files.items() if entry not in invalid},
        bytes=sum(
            file.size for entry, named in found.entries.items() if entry not in invalid for file in named.values()
        ),
        invalid=invalid,
        rejected=found.rejected,
        ignored=found.ignored,
        examples=[*found.examples, *found.ignored_examples],
        truncated=found.truncated,
    )


@contextmanager
def _stage() -> Iterator[int]:
    """Yield a directory that the validator can read, in one that nobody else can enter."""
    with tempfile.TemporaryDirectory(prefix="warmstart-try-") as path:
        os.mkdir(f"{path}/entries", 0o755)
        os.chmod(f"{path}/entries", 0o755)  # whatever the umask is
        with opened_dir(f"{path}/entries") as fd:
            yield fd


def _policy(installation: Installation, draft: str | None) -> Policy:
    from warmstart.policy import load
    from warmstart.policy.document import Document

    try:
        if draft is None:
            return current_policy(installation).policy
        document = Document(load.texts(draft))
        return load.resolved(load.checked(document, load.node_user))
    except PolicyError as error:
        warn(str(error))
        warn(error.hint)
        raise click.exceptions.Exit(UNUSABLE) from None


def _show(taken: Taken) -> None:
    count = len(taken.entries)
    say(f"{count} {'entry' if count == 1 else 'entries'}, {size(taken.bytes)}")
    rows = [("entry", entry, f"{len(names)} files") for entry, names in taken.entries.items()]
    rows = [*rows[:MOST_SHOWN], *([("…", f"{count - MOST_SHOWN} more", "")] if count > MOST_SHOWN else [])]
    rows += [("damaged", entry, REASONS[reason]) for entry, reason in taken.invalid.items()][:MOST_SHOWN]
    for reasons in (taken.rejected, taken.ignored):
        for reason, times in reasons.items():
            rows.append(("left out", f"{times} files", f"{reason}{_examples(taken.examples, reason)}"))
    if rows:
        show_table(("what", "which", "of"), rows)
    if taken.truncated:
        warn(f"the rest was not looked at: {taken.truncated}")


def _examples(examples: Collection[tuple[str, str]], reason: str) -> str:
    some = [path for path, why in examples if why == reason][:3]
    return f": {', '.join(some)}" if some else ""
