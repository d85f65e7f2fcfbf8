"""`warmstart release`: the installed releases that this host keeps, and the way back to one of them.

`packaging/install` keeps of each release the hooks' packages, the command line's and the programs in libexec. Links
name the one in force; a hook resolves its link once, so it ends in the release in which it began.
"""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple

import click

from warmstart.cli.output import Column, Listing, fail, rfc3339, say, table_options, warn
from warmstart.errors import PolicyError, UserError
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, read_small, replace_file
from warmstart.paths import Installation
from warmstart.session import NotRoot

COLUMNS = (Column("release"), Column("version"), Column("installed", rfc3339), Column("in_force"))
PARTS = ("python", "cli", "libexec")  # directories PART-ID, and links of these names
_ID = re.compile(r"[0-9]{1,12}\.[0-9]{1,10}")  # seconds since the epoch and the installer's process
_LARGEST = 1 << 20
_CHECK_S = 60.0
_CHECK = """\
import os, sys
sys.path.insert(0, sys.argv[1])
try:
    from warmstart.policy.load import compile_policy
    compile_policy(sys.argv[2], owners={0, os.geteuid()})
except Exception as error:
    sys.exit(str(error))
"""


class ReleaseMissing(UserError):
    """The release is not kept on this host, or not all of it."""

    code = "release-missing"
    template = "{release}"
    hint = "run `warmstart release list` for those that are kept"


class ReleaseRefusesPolicy(PolicyError):
    """The release to go back to cannot read the policy in force, so jobs would get nothing."""

    code = "release-refuses-policy"
    template = "release {release} does not accept the policy: {problem}"
    hint = "remove the keys that it does not know from the policy first; --force goes back all the same"


class Release(NamedTuple):
    """A release that this host keeps."""

    release: str  # its id
    version: str
    installed: int  # seconds since the epoch
    in_force: bool


@click.group()
def release() -> None:
    """Show the releases that this host keeps, and go back to one."""


@release.command("list")
@table_options(COLUMNS)
@click.pass_obj
def list_command(installation: Installation, *, listing: Listing) -> None:
    """Show the releases that are whole, the latest first."""
    listing.show([release._asdict() for release in kept(installation)])


@release.command()
@click.argument("release_id", metavar="[RELEASE]", default="")
@click.option("--force", is_flag=True, help="Go back even if that release cannot read the policy.")
@click.pass_obj
def rollback(installation: Installation, release_id: str, *, force: bool) -> None:
    """Go back to a release, by default the latest one before the one in force.

    The next hook on this host runs in it; hooks that run now end in theirs. Policy and state stay as they are.

    Exit status: 0 it is in force; 2 nothing was done.
    """
    try:
        if os.geteuid() != 0:
            raise NotRoot(what="warmstart release rollback")
        target = _target(kept(installation), release_id)
        if not force:
            _check_policy(installation, target)
        _enter(installation, target)
    except (OSError, PolicyError, UserError) as error:
        fail(error, "" if isinstance(error, OSError) else error.hint)
    say(f"release {target} is in force")
    warn("unchanged: the enroot hook, the SPANK plugin and the systemd units, which you copied by hand")


def kept(installation: Installation) -> list[Release]:
    """Return the releases of which every part is there, the latest first."""
    names = set(os.listdir(installation.lib))
    ids = {name.removeprefix("python-") for name in names if name.startswith("python-")}
    whole = [one for one in ids if _ID.fullmatch(one) and names.issuperset(f"{part}-{one}" for part in PARTS)]
    current = _current(installation)
    return [
        Release(one, _version(installation, one), int(one.partition(".")[0]), one == current)
        for one in sorted(whole, key=_order, reverse=True)
    ]


def _order(release_id: str) -> tuple[int, ...]:
    return tuple(map(int, release_id.split(".")))


def _current(installation: Installation) -> str:
    return os.readlink(f"{installation.lib}/python").removeprefix("python-")


def _version(installation: Installation, release_id: str) -> str:
    try:
        with opened_dir(f"{installation.lib}/python-{release_id}") as fd:
            return read_small("RELEASE", _LARGEST, fd).decode("ascii", "replace").strip()
    except OSError:
        return "unknown"


def _target(releases: list[Release], release_id: str) -> str:
    """Return the release to go back to. Raises `ReleaseMissing`."""
    ids = [known.release for known in releases]
    if release_id:
        if release_id not in ids:
            raise ReleaseMissing(release=f"no release {release_id!a} is kept here")
        return release_id
    current = next((number for number, known in enumerate(releases) if known.in_force), len(ids))
    if current + 1 >= len(ids):
        raise ReleaseMissing(release="no earlier release is kept here")
    return ids[current + 1]


def _check_policy(installation: Installation, release_id: str) -> None:
    """Have the release itself compile the policy. Raises `ReleaseRefusesPolicy`."""
    packages = f"{installation.lib}/python-{release_id}"
    argv = [sys.executable, "-ISXutf8", "-c", _CHECK, packages, installation.policy]
    done = process.run(argv, deadline=after(_CHECK_S))
    if done.status != 0:
        raise ReleaseRefusesPolicy(release=release_id, problem=done.complaint())


def _enter(installation: Installation, release_id: str) -> None:
    """Put a release in force as `packaging/install` does: each link and each program by one rename."""
    with opened_dir(installation.lib) as lib:
        for part in PARTS:
            fresh = f"{part}.new"
            if os.path.lexists(f"{installation.lib}/{fresh}"):
                os.unlink(fresh, dir_fd=lib)
            os.symlink(f"{part}-{release_id}", fresh, dir_fd=lib)
            os.rename(fresh, part, src_dir_fd=lib, dst_dir_fd=lib)
    with opened_dir(f"{installation.lib}/libexec-{release_id}") as source, opened_dir(installation.libexec) as target:
        for name in os.listdir(source):
            replace_file(target, name, read_small(name, _LARGEST, source), 0o755)
