"""What a wing is: a feature that a site can do without, in a folder that can be removed (docs/architecture.md, Wings).

    warmstart/wings/<name>/wing.py      `WING`, its declaration; the rest as far as it needs it:
                           policy.py    `SECTIONS`, its keys of the policy, as classes like those of `policy.keys`;
                                        `RULE_KEYS`, such a class for those of rules, or None; `faults(policy)` and
                                        `rule_faults(rule, policy)`, if there can be any
                           step.py      its step in a prolog (`plan`)
                           commands.py  what commands say of it (`cli`)
                           informs.py   what it knows of a job and slurmd does not tell (`entry.prolog`)
                           stored.py    functions that may run as the store's owner (`store.client`)
                           places.py    where others have images, too (`images.places`)
                           end.py       what it takes down when a job is over (`ending.release`)
                           answers.py   answers for slurmctld, in place of Slurm's commands (`slurm.slurmctld`)
                           programs/    Slurm's hooks: NAME_OF.py is PREFIX/libexec/warmstart/name-of (`packaging`)
                           libexec/, enroot/, systemd/  programs, enroot's hooks, and units, as templates (`packaging`)
                           supervisor/  programs for supervisord in pods (`packaging/slinky`)
                           events.py    its events
                           checks.py    `CHECKS`, what doctor looks at for it (`doctor.wings.Checks`)
                           node_maintenance.py, store_maintenance.py  `maintain(session)`, what maintenance does for it
                                        on each node, and in the store
                           unpack.py    whether an unpacked image is of use on this node (`steps.unpack`)
                           step_image.py  what it has for a step's image besides caches (`step_image.StepImagePart`)
                           maker.py     how a step gets an image that the store lacks (`entry.pyxis_importer.Maker`)
                           attempts.py  `KIND` and `attempt`, what it does off the clock of jobs (`entry.background`)

The core names no wing. Off the hot path it lists the folder; on it, the compiled policy says which wings the site uses,
and no other one is imported.
"""

from __future__ import annotations

import os
import sys

from warmstart.lean import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

PROGRAMS = "programs"
FOLDER = f"{os.path.dirname(os.path.abspath(__file__))}/wings"


class Wing(NamedTuple):
    """The declaration of a wing."""

    about: str  # what it is, for the table of wings
    step: Literal["early", "late"] = "late"  # before the images, whose import may take long, or after the caches
    words: dict[str, str] = {}  # noqa: RUF012 - word of a job's request → what a job is told where it is not offered
    repeats: tuple[str, ...] = ()  # those of its words that may stand more than once, each with another value
    only_for: str = ""  # the word without which a job has no step of it; "": any job may
    needs: str = ""  # the policy's key, SECTION.KEY, without which it is not in use; "": it has keys of its own
    keep: str = ""  # the policy's key, SECTION.KEY, for the bytes of its packed wholes that stay on a node
    variables: tuple[str, ...] = ()  # of the job, that its step sets
    commands: dict[str, str] = {}  # noqa: RUF012 - command → its name in `commands.py`
    queue: str = ""  # the name of its kind of the queue (`attempts.py`)
    informs: dict[str, str] = {}  # noqa: RUF012 - attribute of jobs that no slurmd tells → what the policy lacks for it
    refuses: bool = True  # whether a job that asks for what is not offered fails; otherwise it is told


def found() -> dict[str, Wing]:
    """Return the declarations of the wings that are here, sorted by name. Never on a warm path."""
    return {name: load(f"{name}.wing").WING for name in _names()}


def programs() -> dict[str, str]:
    """Return the modules that are programs of `libexec`, by the program's name. Never on a warm path."""
    found = [(name, file) for name in _names() if has(name, f"{PROGRAMS}/__init__") for file in _files(name)]
    return {file.replace("_", "-"): f"{name}.{PROGRAMS}.{file}" for name, file in found}


def has(name: str, part: str) -> bool:
    """Return whether a wing has a part."""
    return os.path.exists(f"{FOLDER}/{name}/{part}.py")


def with_part(part: str) -> list[str]:
    """Return the modules of this part, of all wings that have it. Never on a warm path."""
    return [f"{name}.{part}" for name in _names() if has(name, part)]


def load(module: str) -> ModuleType:
    """Import a module of a wing, WING.PART, and return it."""
    name = f"warmstart.wings.{module}"
    __import__(name)
    return sys.modules[name]


def _names() -> list[str]:
    return sorted(entry.name for entry in os.scandir(FOLDER) if os.path.exists(f"{entry.path}/wing.py"))


def _files(name: str) -> list[str]:
    files = sorted(os.listdir(f"{FOLDER}/{name}/{PROGRAMS}"))
    return [file.removesuffix(".py") for file in files if file.endswith(".py") and file != "__init__.py"]
