"""`warmstart policy`: check a policy file before it is installed, and show the policy in force."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from warmstart.entry.cli.output import fail, json_option, say, show_json, show_table, warn
from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy import trust
from warmstart.policy.compiled import Policy, Rule
from warmstart.policy.current import CurrentPolicy, current_policy, hint_for
from warmstart.policy.trust import TrustUnproven
from warmstart.profiles.defined import DefinedProfile

if TYPE_CHECKING:
    from warmstart.entry.doctor.finding import Result

WRONG = 1
Json = dict[str, object]


@click.group()
def policy() -> None:
    """Check a policy file, or show the policy in force."""


@policy.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--slurm-conf",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Also compare the policy's budgets with the timeouts in this slurm.conf.",
)
@json_option
@click.pass_obj
def check(installation: Installation, file: str | None, slurm_conf: str | None, as_json: bool) -> None:
    """Check a policy file (default: the installed one) with the conf.d beside it.

    Prints every problem as FILE:LINE:COLUMN: PROBLEM. The files may belong to you instead of root. Users and groups
    are looked up on this node. If the policy relies on what Slurm enforces, slurmctld is asked whether it does.

    Exit status: 0 the policy is good; 1 it is not, or Slurm would kill a hook within its budget; 2 wrong usage.
    """
    from warmstart.policy import load

    path = os.path.abspath(file) if file else installation.policy
    try:
        policy = load.compile_policy(path, owners={0, os.geteuid()})
    except PolicyError as error:
        problems = str(error).splitlines()
        if as_json:
            show_json({"file": path, "ok": False, "code": error.code, "problems": problems, "hint": error.hint})
        else:
            say("\n".join(problems))
        raise click.exceptions.Exit(WRONG) from None
    rules, critical = len(policy.rules), _unproven(policy)
    too_short = _timeouts(installation, policy, slurm_conf) if slurm_conf else []
    if as_json:
        problems_found = [problem.as_audit() for problem in critical]
        found = {"file": path, "ok": not critical and not too_short, "rules": rules, "critical": problems_found}
        show_json({**found, "timeouts": [result._asdict() for result in too_short]} if slurm_conf else found)
    else:
        for problem in critical:
            warn(f"critical: {problem} ({problem.hint})")
        for result in too_short:
            warn(f"{result.check}: {result.found} ({result.change})")
        is_bad = critical or too_short
        say(f"{'the files are right' if is_bad else 'ok'}: {rules} {'rule' if rules == 1 else 'rules'}")
    if critical or too_short:
        raise click.exceptions.Exit(WRONG)


def _timeouts(installation: Installation, policy: Policy, slurm_conf: str) -> list[Result]:
    """Return what is wrong with the timeouts of a slurm.conf for the budgets of a policy."""
    from warmstart.entry.doctor import finding, slurm
    from warmstart.entry.doctor import slurm_conf as conf_files

    try:
        conf = conf_files.read(slurm_conf)
    except OSError as error:
        fail(error, "give a slurm.conf that you can read, with all that it includes")
    results = finding.run(slurm.TIMES, slurm.Slurm(conf, installation, policy))
    return [result for result in results if result.status in finding.BAD]


def _unproven(policy: Policy) -> list[TrustUnproven]:
    """Ask the running slurmctld whether it enforces what the policy declares."""
    from warmstart.slurm.commands import enforced

    if not trust.declared(policy):
        return []
    return trust.refuted(policy, enforced(policy.paths.scontrol, os.environ.get("SLURM_CONF", "")))


@policy.command()
@json_option
@click.pass_obj
def show(installation: Installation, as_json: bool) -> None:
    """Show the policy in force, since when, and whether the files have changed since.

    Only root can read the form that hooks compiled; for other users the files are compiled here, with the same result.

    Exit status: 0 the files are in force; 1 they were changed and are rejected; 2 there is no policy.
    """
    try:
        found = current_policy(installation)
    except PolicyError as error:
        fail(error, hint_for(error))
    values = _values(found.policy)
    rules = [_rule(rule) for rule in found.policy.rules]
    since = _compiled_at(found.origin) if found.origin == installation.compiled_policy else None
    if as_json:
        problem = found.problem.as_audit() if found.problem else None
        off = installation.is_off
        state = {"file": found.origin, "compiled": since, "changed": found.changed, "problem": problem, "off": off}
        show_json({**state, "policy": {**values, "rules": rules}})
    else:
        _print(installation, found, since)
        _print_values(values, rules)
    if found.problem:
        raise click.exceptions.Exit(WRONG)


def _print(installation: Installation, found: CurrentPolicy, since: str | None) -> None:
    if installation.is_off:
        warn(f"switched off by {installation.off_file}: hooks do nothing until it is removed")
    say(f"{found.origin}: {_state(found, since)}")
    if found.problem:
        warn(str(found.problem))


def _print_values(values: Json, rules: list[Json]) -> None:
    rows = [
        (f"{key}.{below}", _text(item))
        for key, value in values.items()
        for below, item in (value.items() if isinstance(value, dict) else ())
    ]
    show_table(("key", "value"), [*rows, *((key, _text(v)) for key, v in values.items() if not isinstance(v, dict))])
    for number, rule in enumerate(rules, 1):
        show_table((f"rule {number}", ""), [(key, _text(value)) for key, value in rule.items() if value])


def _state(found: CurrentPolicy, since: str | None) -> str:
    if found.problem:
        return f"in force since {since}; the files were changed and are rejected"
    if found.changed:
        return "changed; the next hook puts it into force"
    return f"in force since {since}" if since else "the hooks compile it when they need it"


def _compiled_at(path: str) -> str | None:
    try:
        written = os.stat(path).st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(written, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _values(policy: Policy) -> Json:
    """Return everything but the rules, with the keys of the policy's YAML."""
    accounts = {key: getattr(policy, key).name for key in ("store_user", "import_user", "validate_user")}
    sections = ("paths", "audit", "images", "seed", "harvest", "maintenance", "limits", "trust", "on_error")
    return {
        **accounts,
        "site_label": policy.site_label,
        "constant_path": policy.constant_path,
        "slurmctld": _slurmctld(policy),
        **{key: _plain(getattr(policy, key)) for key in sections},
        "profiles": {profile.name: _profile(profile) for profile in policy.profiles},
    }


def _profile(profile: DefinedProfile) -> Json:
    return {key: value for key, value in profile._asdict().items() if key != "name"}


def _plain(value: object) -> object:
    """Convert a section's NamedTuples and tuples into dicts and lists, recursively."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _slurmctld(policy: Policy) -> Json | None:
    keys = policy.slurmctld
    return {**keys._asdict(), "user": keys.user.name, "attributes": list(keys.attributes)} if keys else None


def _rule(rule: Rule) -> Json:
    """Return a rule as the site wrote it, with globs instead of their compiled form."""
    match = {condition.attribute: [pattern.glob for pattern in condition.patterns] for condition in rule.match}
    publishers = [user.name for user in rule.publishers]
    return {**rule._asdict(), "match": match, "publishers": publishers}


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_text(item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
