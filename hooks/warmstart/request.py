"""What a job asks for, in text that its user wrote: parsed strictly.

    #SBATCH --comment="warmstart: image=registry.example.com/team/app:1 profiles=numba"
    #SBATCH --warm-image=registry.example.com/team/app:1 --warm-profile=numba      (packaging/spank)

and the image that pyxis's `--container-image` names at allocation. A request grants nothing: images are checked
against the policy's registries, and profiles are seeded in the scope that the rules give.
"""

from __future__ import annotations

from typing import NamedTuple

from warmstart.errors import UserError
from warmstart.job import Job

TOKEN = "warmstart:"  # noqa: S105 - a word in a comment
KEEP = "keep"
COMMENT = "the job's comment"
LONGEST_VALUE = 512
LONGEST_NUMBER = 5
LONGEST_NAME = 64
_IN_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_IN_VALUE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/@#+,-")


class RequestInvalid(UserError):
    """The comment's `warmstart:` part, or an option's value, is not what warmstart understands."""

    code = "request-invalid"
    template = "{where} asks warmstart for {word!r}, which it does not understand"
    hint = 'write --comment="warmstart: image=REGISTRY/NAME:TAG profiles=NAME,NAME ports=NUMBER files=NAME keep"'


class Request(NamedTuple):
    """What one job asks for, in the order of its text."""

    images: tuple[str, ...]
    profiles: tuple[str, ...]
    ports: int | None = None  # besides the rendezvous port; None: it does not ask
    files: str = ""  # the name that it gives its files; "": it declares none
    keep: bool = False  # whether its TMPDIR is to stay after it


NOTHING = Request((), ())


def of(job: Job) -> Request:
    """Return the job's request; `RequestInvalid` names the word that is wrong."""
    # pyxis takes the path of a squashfs file, too: that is nothing to import.
    images = [job.pyxis_image] if job.pyxis_image and job.pyxis_image[0] not in "/." else []
    profiles: list[str] = []
    ports = None
    files = ""
    keep = job.warm_keep
    if job.warm_image:
        images.append(_value("--warm-image", job.warm_image, job.warm_image))
    if job.warm_profile:
        profiles.extend(_value("--warm-profile", job.warm_profile, job.warm_profile).split(","))
    _, found, text = job.comment.partition(TOKEN)
    for word in text.split() if found else ():
        if word == KEEP:
            keep = True
            continue
        key, _, value = word.partition("=")
        _value(COMMENT, word, value)
        if key == "image":
            images.append(value)
        elif key == "profiles":
            profiles.extend(value.split(","))
        elif key == "ports" and value.isdigit() and len(value) <= LONGEST_NUMBER:
            ports = int(value)
        elif key == "files" and _is_name(value):
            files = value
        else:
            raise RequestInvalid(where=COMMENT, word=word[:80])
    return Request(tuple(dict.fromkeys(images)), tuple(dict.fromkeys(profiles)), ports, files, keep)


def _is_name(value: str) -> bool:
    return 0 < len(value) <= LONGEST_NAME and _IN_NAME.issuperset(value)


def _value(where: str, word: str, value: str) -> str:
    if not 0 < len(value) <= LONGEST_VALUE or not _IN_VALUE.issuperset(value):
        raise RequestInvalid(where=where, word=word[:80])
    return value
