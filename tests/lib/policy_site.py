"""A site's configuration directory that the loader trusts, whoever runs the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from warmstart.host.identity import Identity
from warmstart.policy import load
from warmstart.policy.document import PolicyInvalid
from warmstart.policy.keys import Policy, Rule
from warmstart.policy.model import check_shape

Compile = Callable[[str], Policy]  # from a policy's text to what is compiled of it
MINIMAL = "version: 1\npaths: {store: /shared/warmstart}\n"
ACCOUNTS = {
    "warmstart": 901,
    "warmstart-import": 902,
    "warmstart-validate": 903,
    "slurm": 904,
    "svc_ci": 1500,
    "svc_ml": 1501,
    "operator": 800,
    "root": 0,
}


def find_user(name: str) -> Identity | None:
    """Return one of this site's accounts. Its gid equals its uid."""
    uid = ACCOUNTS.get(name)
    return None if uid is None else Identity(name, uid, uid)


def defaults() -> Policy:
    """Return the policy that says only where the store is."""
    return _compiled(rules=[])


def a_rule(**changes: object) -> Rule:
    """Return a rule that gives every job nothing, with some fields changed."""
    return _compiled(rules=[{"name": "r"}]).rules[0]._replace(**changes)  # type: ignore[arg-type]


def a_rule_of(keys: dict[str, object]) -> Rule:
    """Return the rule with these keys."""
    return _compiled(rules=[{"name": "r", **keys}]).rules[0]


def offering(policy: Policy, **sections: object) -> Policy:
    """Return a policy that has these sections of wings in place of its own."""
    made = _compiled(rules=[], **sections)
    return policy._replace(own={**policy.own, **made.own}, wings=made.wings)


def _compiled(rules: list[dict[str, object]], **sections: object) -> Policy:
    paths = {"store": "/shared/warmstart"}
    made = check_shape({"version": 1, "paths": paths, "rules": rules, **sections}, find_user)  # type: ignore[dict-item]
    assert isinstance(made, Policy), made
    return load.resolved(made)


class Site:
    """An etc directory; `write` and `add` put policies into it."""

    def __init__(self, etc: Path) -> None:
        etc.mkdir(mode=0o755)
        self.etc = etc
        self.policy = etc / "policy.yaml"

    def write(self, text: str) -> Path:
        """Write policy.yaml, readable for all and writable for its owner."""
        return self._put(self.policy, text.encode("utf-8", "surrogateescape"))

    def add(self, name: str, text: str) -> Path:
        """Write a file of conf.d."""
        directory = self.etc / "conf.d"
        directory.mkdir(mode=0o755, exist_ok=True)
        return self._put(directory / name, text.encode())

    def compiled(self) -> Policy:
        """Compile what is there."""
        return load.compile_policy(str(self.policy), find_user)

    @staticmethod
    def _put(path: Path, data: bytes) -> Path:
        path.write_bytes(data)
        path.chmod(0o644)
        return path


def refusals(site: Site, text: str) -> list[str]:
    """Return the problems of a policy as LINE:COLUMN: PROBLEM."""
    site.write(text)
    with pytest.raises(PolicyInvalid) as caught:
        site.compiled()
    lines = str(caught.value).splitlines()
    prefix = f"{site.policy}:"
    assert all(line.startswith(prefix) for line in lines), lines
    assert lines[0] == "{path}:{line}:{column}: {problem}".format_map(caught.value.fields)
    return [line.removeprefix(prefix) for line in lines]
