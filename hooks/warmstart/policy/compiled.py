"""The policy in the form that hooks read: the named tuples of `form`, as JSON. Hot path.

Written by root into root's directory, and valid only for the warmstart and the Python that made it
(the patterns are regular expressions of that Python). Whether it is still what the site's files say is
a question of a few stat calls.
"""

from __future__ import annotations

import json
import os
import sys

from warmstart.host import files
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.policy.form import (
    Adopt,
    Condition,
    Credentials,
    Harvest,
    Images,
    Keep,
    Limits,
    Maintenance,
    OnError,
    Paths,
    Pattern,
    Policy,
    PrivateRepository,
    Rendezvous,
    Rule,
    Seed,
    Signature,
    Slurmctld,
    Stamp,
    Trust,
    User,
)
from warmstart.profiles.defined import DefinedProfile

__all__ = [
    "FORMAT",
    "LARGEST",
    "MADE_BY",
    "VERSION",
    "Adopt",
    "Condition",
    "Credentials",
    "Harvest",
    "Images",
    "Keep",
    "Limits",
    "Maintenance",
    "OnError",
    "Paths",
    "Pattern",
    "Policy",
    "PrivateRepository",
    "Rendezvous",
    "Rule",
    "Seed",
    "Signature",
    "Slurmctld",
    "Stamp",
    "Trust",
    "User",
    "decode",
    "encode",
    "is_current",
    "read",
    "read_own_json",
    "stamp",
]

FORMAT = 1
VERSION = "0.1.0"  # setup.cfg's; a test compares them
MADE_BY = f"{FORMAT} warmstart-{VERSION} python-{sys.version_info[0]}.{sys.version_info[1]}"
LARGEST = 4 << 20


def stamp(path: str) -> Stamp:
    """Return a file's or directory's stamp; a link's own, never its target's."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return (path,)
    return (path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def is_current(policy: Policy) -> bool:
    """Tell whether the site's files are those that this policy was made from; stat calls only."""
    return all(stamp(str(known[0])) == known for known in policy.signature)


def read(path: str) -> Policy | None:
    """Return the compiled policy; None when it is missing, damaged, of another version or not root's own."""
    data = read_own_json(path)
    if not isinstance(data, dict) or data.get("made_by") != MADE_BY:
        return None
    try:
        return decode(data)
    except (KeyError, TypeError, ValueError):
        return None


def read_own_json(path: str) -> Json:
    """Return the JSON of a file that this uid or root wrote and nobody else can; None for any other."""
    try:
        fd = files.open_regular(path)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if files.weakness(found, (0, os.geteuid())):
            return None
        return json.loads(files.read_up_to(fd, LARGEST + 1))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def encode(policy: Policy) -> bytes:
    """Return the policy as it is written down."""
    return json.dumps({"made_by": MADE_BY, **_plain(policy)}).encode()


def _plain(value: object) -> Json:
    """Return named tuples as objects, by their fields' names."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def decode(data: Json) -> Policy:
    """Return the policy of what `encode` wrote; `KeyError`, `TypeError` for anything else.

    Only shapes are checked: it is root's own file, and every hook reads it.
    """
    return Policy(
        signature=tuple(map(tuple, data["signature"])),
        paths=Paths(**data["paths"]),
        store_user=Identity(**data["store_user"]),
        import_user=Identity(**data["import_user"]),
        validate_user=Identity(**data["validate_user"]),
        site_label=data["site_label"],
        constant_path=data["constant_path"],
        images=_images(**data["images"]),
        seed=Seed(**data["seed"]),
        harvest=Harvest(**data["harvest"]),
        maintenance=Maintenance(**data["maintenance"]),
        limits=Limits(**data["limits"]),
        trust=Trust(**data["trust"]),
        on_error=OnError(**data["on_error"]),
        rules=tuple(map(_rule, data["rules"])),
        slurmctld=_slurmctld(**data["slurmctld"]) if data["slurmctld"] else None,
        profiles=tuple(DefinedProfile(**item) for item in data["profiles"]),
    )


def _slurmctld(user: Json, attributes: Json, **others: Json) -> Slurmctld:
    return Slurmctld(user=Identity(**user), attributes=tuple(attributes), **others)


def _images(  # noqa: PLR0917 - what is no scalar
    registries: Json, insecure: Json, hosts: Json, adopt: Json, keep: Json, credentials: Json, **others: Json
) -> Images:
    return Images(
        registries=tuple(registries),
        insecure=tuple(insecure),
        hosts=tuple(hosts),
        adopt=tuple(Adopt(item["directory"], tuple(item["owners"])) for item in adopt),
        keep=Keep(**keep),
        credentials=_credentials(**credentials) if credentials else None,
        **others,
    )


def _credentials(file: str, repositories: Json) -> Credentials:
    private = [
        PrivateRepository(item["name"], Pattern(**item["pattern"]), _conditions(item["match"])) for item in repositories
    ]
    return Credentials(file, tuple(private))


def _conditions(data: Json) -> tuple[Condition, ...]:
    return tuple(
        Condition(item["attribute"], tuple(Pattern(**pattern) for pattern in item["patterns"])) for item in data
    )


def _rule(data: Json) -> Rule:
    return Rule(
        name=data["name"],
        place=data["place"],
        match=_conditions(data["match"]),
        images=tuple(data["images"]),
        profiles=tuple(data["profiles"]),
        scope=data["scope"],
        publishers=tuple(User(**user) for user in data["publishers"]),
        env=data["env"],
        override=tuple(data["override"]),
        rendezvous=Rendezvous(**data["rendezvous"]) if data["rendezvous"] else None,
    )
