"""Look at a model with the rights of the job's user: which large files it has, and whether all can be read.

A model is a directory, or a snapshot in a cache of Hugging Face. A snapshot's names are links into the model's
`blobs/`, where the name of a large file is the SHA-256 of its content: the file's own, or since huggingface_hub 2.4
that of a further link into `hub/blobs/`, which all models share (its `utils/_shared_blobs.py`).
"""

from __future__ import annotations

import os
import stat

from warmstart.errors import ResourceError
from warmstart.host.linux import identity
from warmstart.host.trusted import unknown_group
from warmstart.lean import Iterator, NamedTuple, Sequence, dumps, sha256
from warmstart.policy.shared import SharedPath, covering, is_below

LEAST = 16 << 20  # bytes; smaller files are read from the shared file system
MOST_FILES = 500  # a line for each in a run's list, and a mount in each task
MOST_NAMES = 10_000
DEEPEST = 4
BLOBS = "blobs"
MOST_LINKS = 8  # on the way from a name to its file
MOST_LEFT_OUT = 20  # are named
_HASH, _DIGITS = 64, frozenset("0123456789abcdef")  # a SHA-256
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class ModelUnusable(ResourceError):
    """A model that a job names cannot be copied to this node, or shown to it."""

    code = "model-unusable"
    template = "model {model}: {problem}"
    hint = "jobs read it from the shared file system; docs/wings/models.md, Whose copies, says what has one"


class ModelFile(NamedTuple):
    """A large file of a model as it is now."""

    path: str  # without links
    size: int  # bytes
    mtime_ns: int
    inode: int
    identity: str  # `linux.identity`; its device may have another number after a boot
    sha256: str  # that its name claims, and root has to compute; "" if none
    owner: int  # uid
    is_guarded: bool  # its owner alone can write it

    def version(self, whose: str) -> str:
        """Return the name of this version of the file, as somebody has it."""
        own = dumps([whose, self.path, self.size, self.mtime_ns, self.inode])
        return f"u{sha256(own.encode()).hexdigest()}"

    def key(self, whose: str) -> str:
        """Return the name of its copy on a node: its content's where that is claimed, else one of `whose` own."""
        return self.sha256 or self.version(whose)


class Look(NamedTuple):
    """A model as it is now."""

    path: str  # without links
    files: tuple[ModelFile, ...]
    left_out: tuple[str, ...] = ()  # some names of large files, and links to directories, below none of the prefixes

    @property
    def size(self) -> int:
        """The bytes of its large files."""
        return sum(file.size for file in self.files)

    def key(self, whose: str) -> str:
        """Return the name of the set of its copies: another one as soon as a file has changed, or it is not `whose`."""
        known = dumps([whose, *([file.path, file.size, file.mtime_ns, file.inode, file.sha256] for file in self.files)])
        name: str = sha256(known.encode()).hexdigest()[:32]
        return name


def look(model: str, prefixes: list[str]) -> Look:
    """Return a model below one of the prefixes as it is now; each of its large files is opened. `ModelUnusable`."""
    try:
        path = os.path.realpath(model, strict=True)
        if not is_below(path, prefixes):
            raise ModelUnusable(model=model, problem=f"it leads to {path}, which is below none of models.prefixes")
        found: dict[str, ModelFile] = {}
        left_out: list[str] = []
        for name in _files(model, path, prefixes):
            real, claimed = os.path.realpath(name, strict=True), _claimed(name)
            if not is_below(real, prefixes):
                left_out.append(name.removeprefix(f"{path}/"))
            elif (claimed or real not in found) and (file := _opened(real, claimed)):
                found[real] = file
            if len(found) > MOST_FILES:
                problem = f"it has more than {MOST_FILES} files of {LEAST >> 20} MiB or more"
                raise ModelUnusable(model=model, problem=problem)
    except OSError as error:
        why = unknown_group(error.filename or model) if isinstance(error, PermissionError) else ""
        problem = f"{error.filename or 'it'}: {error.strerror}{why}"
        raise ModelUnusable(model=model, problem=problem) from error
    if not found:
        where = f"; {left_out[0]} leads below none of models.prefixes" if left_out else ""
        raise ModelUnusable(model=model, problem=f"it has no file of {LEAST >> 20} MiB or more{where}")
    return Look(path, tuple(found[name] for name in sorted(found)), tuple(sorted(left_out)[:MOST_LEFT_OUT]))


def shared_by(seen: Look, shared: Sequence[SharedPath]) -> tuple[SharedPath | None, str]:
    """Return the rule by which many have one copy of a model; None, and why not, if the copies are its user's own.

    No reason is "": no rule is for it. A file that others than the rule's owners can write is nobody else's.
    """
    rule = covering(seen.path, shared)
    if rule is None:
        return None, ""
    for file in seen.files:
        if not is_owned(file.owner, rule):
            return None, f"{file.path} belongs to none of the owners that rule {rule.rule} names"
        if not file.is_guarded:
            return None, f"{file.path} can be written by others than its owner"
    return rule, ""


def whose_of(rule: SharedPath | None, uid: int) -> str:
    """Return whose copies those of a model are: a scope's by a rule, else a user's."""
    return rule.scope if rule else str(uid)


def is_owned(uid: int, rule: SharedPath) -> bool:
    """Return whether a file of this owner may be what many have a copy of."""
    return uid in {0, *rule.uids}


def is_guarded(status: os.stat_result) -> bool:
    """Return whether a file's owner alone can write it. What a POSIX ACL grants shows in the group's bits (acl(5))."""
    return not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _files(model: str, path: str, prefixes: list[str]) -> Iterator[str]:
    """Yield what may be a large file, and links to directories below none of the prefixes; others are followed."""
    names, known, directories = 0, {path}, [(path, 1)]
    while directories:
        directory, depth = directories.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                names += 1
                if names > MOST_NAMES:
                    raise ModelUnusable(model=model, problem=f"it has more than {MOST_NAMES} names")
                if entry.is_dir():
                    real = os.path.realpath(entry.path)
                    if real in known or is_below(path, [real]):  # a loop
                        continue
                    if not is_below(real, prefixes):
                        yield entry.path
                    elif depth < DEEPEST:
                        known.add(real)
                        directories.append((real, depth + 1))
                elif entry.is_file() and entry.stat().st_size >= LEAST:
                    yield entry.path


def _claimed(path: str) -> str:
    """Return the SHA-256 that a name in a cache's `blobs/` says, on the way from a path to its file; "" for none."""
    for _ in range(MOST_LINKS):
        above, name = os.path.split(path)
        if os.path.basename(above) == BLOBS and len(name) == _HASH and _DIGITS.issuperset(name):
            return name
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.realpath(above), os.readlink(path)))
    return ""


def _opened(path: str, claimed: str) -> ModelFile | None:
    fd = os.open(path, _READ)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size < LEAST:
            return None
        own = found.st_uid, is_guarded(found)
        return ModelFile(path, found.st_size, found.st_mtime_ns, found.st_ino, identity(fd), claimed, *own)
    finally:
        os.close(fd)
