"""What the policy and its rules say of trees, in the form that hooks read. Hot path of jobs that ask for a tree."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.job import Job
from warmstart.lean import Iterator, NamedTuple, Sequence, fnmatchcase
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy, User
from warmstart.policy.match import Grant, scope_of
from warmstart.profiles.defined import WHOLE

KEY = "trees"  # of the policy, and of a rule
WORD = "tree"  # of a request
TREE_S = 2 * 3600  # how long the packing of one tree may take, or one comparison
PROFILE = f"{WHOLE}{KEY}"  # where packed trees lie in a scope of the store
WAYS = ("spank", "namespace", "containers", "enroot")  # values of `constant_path` that show jobs their trees


class Trees(NamedTuple):
    """Which trees jobs may read from packed copies, and bounds of packing one; by default none."""

    prefixes: tuple[str, ...] = ()
    max_size: int = 0  # bytes
    max_files: int = 0
    compare: int | None = None  # seconds between two comparisons of a copy with its tree; None: never
    keep: int = 0  # bytes of copies on a node


class SharedTree(NamedTuple):
    """Trees of which an account, or the site, has one copy."""

    path: str  # `*` stands for any part of one name
    owners: tuple[User, ...]
    scope: str  # account | site
    marker: str  # a path in the tree, "" if what package managers leave is enough
    rule: str


class GrantedTree(NamedTuple):
    """Trees of which the job's account, or the site, has one copy."""

    path: str  # `*` stands for any part of one name
    owners: tuple[User, ...]  # whose files they may have, besides root's
    scope: str  # a directory of the store
    marker: str
    rule: str


def offered(policy: Policy) -> Trees:
    """Return what the policy says of trees."""
    return wire.from_object(Trees, policy.own[KEY]) if KEY in policy.own else Trees()


def granted(policy: Policy, job: Job, grant: Grant) -> tuple[GrantedTree, ...]:
    """Return the trees that a job shares with others; of those that cover a tree the last one counts."""
    return tuple(_granted(policy, job, grant))


def _granted(policy: Policy, job: Job, grant: Grant) -> Iterator[GrantedTree]:
    for of_rule in grant.own.get(KEY, ()):
        for tree in wire.decode(list[SharedTree], of_rule):
            if scope := scope_of(policy, tree.scope, job):
                yield GrantedTree(tree.path, tree.owners, scope, tree.marker, tree.rule)


def covering(path: str, granted: Sequence[GrantedTree]) -> GrantedTree | None:
    """Return the last of these that the tree at a path without links is one of."""
    return next((tree for tree in reversed(granted) if _fits_path(tree.path, path)), None)


def _fits_path(glob: str, path: str) -> bool:
    globs, names = glob.split("/"), path.split("/")
    return len(globs) == len(names) and all(map(fnmatchcase, names, globs))


def directory(paths: NodePaths) -> str:
    """Return where a node packs a tree."""
    return f"{paths.work}/trees"
