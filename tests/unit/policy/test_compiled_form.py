"""The compiled form: read as it was written, and believed only if it is root's own and of this version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.lib.runs import a_policy
from warmstart.policy import compiled
from warmstart.policy.compiled import (
    Condition,
    Credentials,
    Policy,
    PrivateRepository,
    Rule,
    User,
    Wing,
    Word,
)
from warmstart.profiles.defined import DefinedProfile


def full(root: Path) -> Policy:
    policy = a_policy(root)
    match = (Condition("user", ("a*", "b")),)
    repository = PrivateRepository("team", "reg.io/team/*", match)
    images = policy.images._replace(credentials=Credentials("/etc/c", (repository,)), insecure=("h",))
    rule = Rule(
        "r", "policy.yaml:3", match, ("reg.io/a",), ("numba",), "account", (User("a", 1000),), {"A": "1"},
        ("A",), own={"key": {"numbers": [1, 2]}},
    )  # fmt: skip
    return policy._replace(
        signature=(("/etc/policy.yaml", 1, 2, 3, 4, 5), ("/etc/conf.d",)),
        images=images,
        rules=(rule, rule._replace(own={})),
        wings=(Wing("w", used=True, step="w.step", early=False, end=""),),
        words=(Word("a", "w", "no", refuses=True, repeats=False),),
        unseen=("qos",),
        profiles=(DefinedProfile("mine", {"A": "{dir}"}, "relocatable", ("image",), ("*.bin",), (), (), {}, 100),),
    )


def same(policy: Policy, data: object) -> bool:
    """Tell whether a policy is what was written: tuples of a defined profile's fields come back as lists."""
    return isinstance(data, Policy) and json.loads(compiled.encode(policy)) == json.loads(compiled.encode(data))


def written(path: Path, data: bytes) -> str:
    """Write a file that is its owner's alone."""
    path.write_bytes(data)
    path.chmod(0o600)
    return str(path)


def test_a_policy_is_read_as_it_was_written(tmp_path: Path) -> None:
    for policy in (a_policy(tmp_path), full(tmp_path)):
        found = compiled.read(written(tmp_path / "policy.json", compiled.encode(policy)))
        assert found is not None
        assert same(policy, found)
        assert found._replace(profiles=()) == policy._replace(profiles=())
        assert hash(found.rules[0].match if found.rules else ()) is not None


def holes(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    """Return the way to every key of a JSON object."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in inner for place in ((*at, key), *holes(value, (*at, key)))]


@given(st.data())
def test_what_is_damaged_is_compiled_again(tmp_path: Path, data: st.DataObject) -> None:
    document = json.loads(compiled.encode(full(tmp_path)))
    way = data.draw(st.sampled_from(holes(document)))
    value = document
    for key in way[:-1]:
        value = value[key]
    if data.draw(st.booleans()):
        del value[way[-1]]
    else:
        value[way[-1]] = data.draw(st.none() | st.just(7) | st.just("x") | st.just([]) | st.just({}))
    found = compiled.read(written(tmp_path / "policy.json", json.dumps(document).encode()))
    assert found is None or isinstance(found, Policy)
