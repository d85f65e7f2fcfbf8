"""`warmstart policy`: check a policy file before it is installed, and show the policy in force."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from warmstart.cli.output import fail, json_option, say, show_json, warn
from warmstart.errors import PolicyError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.paths import Installation
from warmstart.policy import trust
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy, User
from warmstart.policy.trust import TrustUnproven
from warmstart.slurm import nodes
from warmstart.slurm.facts import Access, Settings

if TYPE_CHECKING:
    from warmstart.doctor.finding import Finding
    from warmstart.policy.document import Problem
    from warmstart.policy.warnings import Known

WRONG = 1
Json = dict[str, object]


@click.group()
def policy() -> None:
    """Check a policy file, or show the policy in force."""


@policy.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--offline", is_flag=True, help="Look up no accounts, names or settings: this host is not of the cluster."
)
@json_option
@click.pass_obj
def check(installation: Installation, /, file: str | None, *, offline: bool, as_json: bool) -> None:
    """Check a policy file (default: the installed one) with the conf.d beside it; - reads standard input.

    Prints every problem as FILE:LINE:COLUMN: PROBLEM. What is probably a mistake is a warning: a rule that can never
    match, a regular expression, a scope that revokes publishing. The files may belong to you instead of root. Users
    and groups are looked up on this node; slurmctld is asked for partitions, nodes, the timeouts of hooks, and whether
    it enforces what the policy relies on. Timeouts count once Slurm runs a hook.

    Exit status: 0 the policy is good, or has warnings only; 1 it is not, or Slurm would kill a hook within its budget;
    2 wrong usage, or it cannot be read.
    """
    from warmstart.policy import load
    from warmstart.policy.document import Document
    from warmstart.policy.warnings import Known, warnings

    path = "-" if file == "-" else os.path.abspath(file) if file else installation.policy
    users: Callable[[str], Identity | None] = _any_account if offline else load.node_user
    try:
        draft = sys.stdin.buffer.read(load.LARGEST + 1) if path == "-" else b""
        document = Document([("-", load.text_of("-", draft))] if path == "-" else load.texts(path))
        written = load.checked(document, users)
        policy = load.resolved(written)
    except load.PolicyUnreadable as error:
        fail(error, error.hint)
    except PolicyError as error:
        _tell(path, as_json, error=error)
        raise click.exceptions.Exit(WRONG) from None
    cluster = None if offline else _asked(policy)
    known = Known() if offline else _known(cluster)
    problems = [*map(document.problem, warnings(written, document.data, known))]
    enforced = cluster and [word.lower() for word in cluster.settings.words("AccountingStorageEnforce")]
    critical = None if offline else trust.problem(trust.judged(policy, enforced))
    too_short = _timeouts(policy, cluster.settings) if cluster else []
    _tell(path, as_json, rules=len(policy.rules), warned=sorted(problems), critical=critical, too_short=too_short)
    if critical or too_short:
        raise click.exceptions.Exit(WRONG)


def _tell(
    path: str,
    as_json: bool,
    *,
    error: PolicyError | None = None,
    rules: int = 0,
    warned: Sequence[Problem] = (),
    critical: TrustUnproven | None = None,
    too_short: Sequence[Finding] = (),
) -> None:
    """Print the result of a check: problems and warnings with their places, then one line."""
    problems: Sequence[Problem] = getattr(error, "problems", ())
    if as_json:
        rows = [_row(problem, "error") for problem in problems] + [_row(problem, "warning") for problem in warned]
        if error is not None and not problems:
            rows = [{"file": path, "line": None, "column": None, "severity": "error", "problem": str(error)}]
        is_ok = error is None and not critical and not too_short
        answer: Json = {"file": path, "ok": is_ok, "rules": rules, "problems": rows}
        if error is not None:
            answer.update(code=error.code, hint=error.hint)
        answer["critical"] = critical and critical.as_audit()
        show_json({**answer, "timeouts": [finding._asdict() for finding in too_short]})
        return
    for line in [*map(str, problems)] or ([str(error)] if error else []):
        say(line)
    for problem in warned:
        say(str(problem._replace(problem=f"warning: {problem.problem}")))
    if critical:
        warn(f"critical: {critical} ({critical.hint})")
    for finding in too_short:
        warn(f"{finding.found} ({finding.change})")
    if error is None:
        counts = [_count(rules, "rule"), *([_count(len(warned), "warning")] if warned else [])]
        say(f"{'the files are right' if critical or too_short else 'ok'}: {', '.join(counts)}")


def _row(problem: Problem, severity: str) -> Json:
    place: Json = {"file": problem.path, "line": problem.line, "column": problem.column}
    return {**place, "severity": severity, "problem": problem.problem}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _any_account(name: str) -> Identity:
    """Stand for an account of another host: each has ids of its own, far above limits.min_uid."""
    number = (1 << 30) + zlib.crc32(name.encode())
    return Identity(name, number, number)


class _Cluster(NamedTuple):
    """What slurmctld says of the cluster."""

    settings: Settings
    partitions: dict[str, str]  # with their nodes, a host list


def _asked(policy: Policy) -> _Cluster | None:
    """Ask slurmctld; None if it does not answer here."""
    from warmstart.slurm.slurmctld import QUERY_S, LookUpFailed, Slurmctld

    slurmctld = Slurmctld(Access(policy.paths.scontrol, os.environ.get("SLURM_CONF", "")))
    deadline = after(QUERY_S)
    try:
        return _Cluster(slurmctld.settings(deadline), slurmctld.partitions(deadline))
    except LookUpFailed:
        return None


def _timeouts(policy: Policy, settings: Settings) -> list[Finding]:
    """Return what is wrong with Slurm's timeouts for the budgets of a policy."""
    from warmstart.doctor import slurm

    runs_hooks = settings.all("Prolog") or settings.all("Epilog")  # before Slurm is told of any it has none to kill
    return [*slurm.clashes(settings, policy)] if runs_hooks else []


def _known(cluster: _Cluster | None) -> Known:
    """Return the names that this host knows: accounts, and partitions and nodes of a cluster that answers."""
    import grp
    import pwd

    from warmstart.policy.warnings import Known

    exists = {"user": _exists(pwd.getpwnam), "group": _exists(grp.getgrnam)}
    partitions = cluster.partitions if cluster else {}
    try:
        hosts = frozenset(nodes.expand(",".join(filter(None, partitions.values()))))
    except ValueError:
        hosts = frozenset()
    names = {"partition": frozenset(partitions), "node": hosts}
    return Known({attribute: known for attribute, known in names.items() if known}, exists)


def _exists(find: Callable[[str], object]) -> Callable[[str], bool]:
    def exists(name: str) -> bool:
        try:
            find(name)
        except KeyError:
            return False
        return True

    return exists


@policy.command()
@click.pass_obj
def show(installation: Installation) -> None:
    """Show the policy in force as JSON, in seconds and bytes.

    Beside it stands where it was read, which is policy.yaml if the files have changed since hooks read them, why newer
    files are rejected, and whether hooks are switched off.

    Exit status: 0 the files are in force, or the next hook puts them into force; 1 they are rejected; 2 there is no
    policy.
    """
    try:
        current = current_policy(installation)
    except PolicyError as error:
        fail(error, error.hint)
    show_json({
        "file": current.origin,
        "problem": current.problem and current.problem.as_audit(),
        "off": installation.is_off,
        "policy": _plain(current.policy._replace(signature=())),
    })  # fmt: skip
    if current.problem:
        raise click.exceptions.Exit(WRONG)


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return a value with the keys of the policy's YAML, but for those that are not set; users by their names."""
    if isinstance(value, (Identity, User)):
        return value.name
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
