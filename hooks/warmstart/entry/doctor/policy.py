"""The policy: whether it is the one that the site wrote, and who else could have written it.

See docs/threats.md, row 19.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from warmstart.entry.doctor.finding import ADVICE, AS_ROOT, CRITICAL, OK, UNKNOWN, WRONG, Finding
from warmstart.errors import PolicyError
from warmstart.host.files import ROOT_ALONE
from warmstart.paths import Installation
from warmstart.policy import compiled, source
from warmstart.policy.current import current_policy
from warmstart.policy.invalid import PolicyUntrusted


def current(installation: Installation) -> Iterator[Finding]:
    """Look for a broken edit: it leaves the last good policy in force, and a right that was taken away given."""
    try:
        found = current_policy(installation)
    except PolicyError as error:
        yield Finding(CRITICAL, f"there is no policy in force: {_line(error)}", error.hint)
        return
    if found.problem:
        yield Finding(
            CRITICAL,
            f"the last good policy is in force ({found.origin}), for the files were changed and are refused: "
            f"{_line(found.problem)}",
            "mend what `warmstart policy check` tells",
        )
    elif found.changed:
        yield Finding(OK, "the files were changed; the next hook takes them into force")
    else:
        yield Finding(OK, f"in force from {found.origin}")


def files(installation: Installation) -> Iterator[Finding]:
    """Whoever can write the policy, its conf.d or a directory above them is root on this node."""
    try:
        texts = source.read(installation.policy, ROOT_ALONE)
    except PolicyUntrusted as error:
        yield Finding(CRITICAL, str(error), error.hint)
        return
    except PolicyError as error:
        yield Finding(UNKNOWN, str(error), error.hint if os.geteuid() == 0 else AS_ROOT)
        return
    yield Finding(OK, f"only root can change {', '.join(path for path, _ in texts)}")


def compiled_form(installation: Installation) -> Iterator[Finding]:
    """Hooks read the compiled form each time; one that they can't believe costs every job a compilation."""
    path = installation.compiled_policy
    if not os.path.lexists(path):
        yield Finding(
            ADVICE, f"{path} is not there yet", "the next hook makes it; is the directory root's and writable?"
        )
    elif not os.access(path, os.R_OK):
        yield Finding(UNKNOWN, f"{path}: not readable for you", AS_ROOT)
    elif compiled.read(path) is None:
        change = "remove it; the next hook makes it anew"
        yield Finding(WRONG, f"{path} is damaged, of another version, or could be changed by others than root", change)
    else:
        yield Finding(OK, f"{path} is whole")


def switch(installation: Installation) -> Iterator[Finding]:
    """Look for the file `off`, which is easily forgotten."""
    if installation.is_off:
        yield Finding(ADVICE, f"{installation.off_switch} is there: hooks do nothing", "remove it to go on")
    else:
        yield Finding(OK, "hooks are on")


def _line(error: PolicyError) -> str:
    return "; ".join(str(error).splitlines())


CHECKS = {
    "policy.in-force": current,
    "policy.files": files,
    "policy.compiled": compiled_form,
    "policy.off": switch,
}
