"""A job's request, parsed strictly from text that its user wrote.

    #SBATCH --comment="warmstart: image=registry.example.com/team/app:1 profiles=numba"
    #SBATCH --warm-image=registry.example.com/team/app:1 --warm-profile=numba      (packaging/spank)

The image of pyxis's `--container-image` is part of it, if given at allocation; it may have a user name, as in enroot's
`USER@REGISTRY#NAME`. Capitals and blanks around the colon do not matter in a comment; what follows a `;` is for others.
A request grants no rights: images are checked against the policy's registries, and profiles are seeded in the scope
that the rules grant.
"""

from __future__ import annotations

from warmstart.errors import UserError
from warmstart.job import Job
from warmstart.lean import Collection, NamedTuple

NAME = "warmstart"  # and a colon
END = ";"
OFF = "off"
FRESH = "fresh"
REFRESH = "refresh"
COMMENT = "the job's comment"
NO_PATH = ": a path begins with / and has no .. in it"  # of a word that names a directory
LONGEST_VALUE = 512
LONGEST_NAME = 64
# What pyxis accepts besides an image in a registry: the path of a squashfs file, an image of the node's own engine.
OF_THE_NODE = ("/", ".", "dockerd://", "podman://")
_IN_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_IN_VALUE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/@#+,-")


class RequestInvalid(UserError):
    """The `warmstart:` part of the comment, or the value of an option, is malformed."""

    code = "request-invalid"
    template = "{where} has {word!r}, which is not a valid request to warmstart"
    hint = (
        'write --comment="warmstart: image=REGISTRY/NAME:TAG profiles=NAME,NAME files=NAME cache=NAME '
        'fresh refresh off", or another word that `warmstart plan` lists; words for others come after a ;'
    )


class Request(NamedTuple):
    """What one job asks for, in the order of the text."""

    images: tuple[str, ...]
    profiles: tuple[str, ...]
    files: str = ""  # the name of its declared files; "" if it declares none
    cache: str = ""  # a name that parts its caches from the user's others; "" if it gives none
    fresh: bool = False  # whether it starts cold, and what it builds takes the place of what is published
    refresh: bool = False  # whether the registry is asked what the tags of its images mean now
    words: dict[str, str] = {}  # noqa: RUF012 - of wings, each with its value or values; never mutated
    pyxis_image: str = ""  # which of the images is pyxis's, which can be imported as the user; "" if none


NOTHING = Request((), ())
_ONCE = ("files", "cache")  # also the words of wings: a second one would replace the first without a word


def asks(job: Job) -> bool:
    """Return whether the job asks warmstart for anything, validly or not. pyxis's `--container-image` asks pyxis."""
    options = (job.warm_image, job.warm_profile, job.warm_fresh, job.warm_refresh, job.warm_cache)
    return any(options) or bool(_words(job.comment))


def wants_nothing(job: Job) -> bool:
    """Return whether the job is to be left alone: by `--no-warm`, or by `off` in its comment."""
    return job.no_warm or OFF in map(str.lower, _words(job.comment))


def known_words(of_wings: Collection[str] = ()) -> tuple[str, ...]:
    """Return the words that a comment may have, those with a value with their `=`."""
    return (*(f"{key}=" for key in ("image", "profiles", *_ONCE, *of_wings)), FRESH, REFRESH, OFF)


def slip(job: Job, of_wings: Collection[str] = ()) -> str:
    """Return what the comment would ask for if a colon followed the name, "" if it has one, or asks for nothing."""
    _, name, text = job.comment.lower().partition(NAME)
    text = text.partition(END)[0]
    word = text.split(None, 1)[0] if text[:1].isspace() and text.strip() else ""
    known = known_words(of_wings)
    is_meant = bool(word) and (word in known or f"{word.partition('=')[0]}=" in known)
    return f"{name} {word}" if is_meant and not _words(job.comment) else ""


def _words(comment: str) -> list[str]:
    """Return the words that follow `warmstart:`."""
    before, colon, text = comment.partition(":")
    while colon and not before.rstrip().lower().endswith(NAME):
        before, colon, text = text.partition(":")
    return text.partition(END)[0].split() if colon else []


def of(job: Job, of_wings: Collection[str] = (), repeated: Collection[str] = ()) -> Request:
    """Return the job's request. `of_wings` are the words that wings know, whose values they check.

    Those of them that may be `repeated` have all their values, with blanks between.

    Raises `RequestInvalid`, which names the wrong word.
    """
    pyxis_image = "" if job.pyxis_image.startswith(OF_THE_NODE) else job.pyxis_image
    images = [pyxis_image] if pyxis_image else []
    profiles: list[str] = []
    others: dict[str, str] = {}
    once: dict[str, str] = {}
    words = {FRESH: job.warm_fresh, REFRESH: job.warm_refresh}
    if job.warm_image:
        images.append(_value("--warm-image", job.warm_image, job.warm_image))
    if job.warm_profile:
        profiles.extend(_value("--warm-profile", job.warm_profile, job.warm_profile).split(","))
    if job.warm_cache:
        once["cache"] = _name("--warm-cache", job.warm_cache, job.warm_cache)
    for word in _words(job.comment):
        if word.lower() in words:
            words[word.lower()] = True
            continue
        key, _, value = word.partition("=")
        key = key.lower()
        _value(COMMENT, word, value)
        _only(once, key, value, {*of_wings}.difference(repeated))
        if key == "image":
            images.append(value)
        elif key == "profiles":
            profiles.extend(value.split(","))
        elif key in of_wings:
            others[key] = f"{others.get(key, '')} {value}".strip() if key in repeated else value
        elif key in _ONCE:
            _name(COMMENT, word, value)
        else:
            raise RequestInvalid(where=COMMENT, word=word[:80])
    return Request(
        tuple(dict.fromkeys(images)),
        tuple(dict.fromkeys(profiles)),
        once.get("files", ""),
        once.get("cache", ""),
        fresh=words[FRESH],
        refresh=words[REFRESH],
        words=others,
        pyxis_image=pyxis_image,
    )


def _only(known: dict[str, str], key: str, value: str, of_wings: Collection[str]) -> None:
    if (key in _ONCE or key in of_wings) and known.setdefault(key, value) != value:
        raise RequestInvalid(where=COMMENT, word=f"{key}={known[key]} {key}={value}"[:80])


def _name(where: str, word: str, value: str) -> str:
    if not 0 < len(value) <= LONGEST_NAME or not _IN_NAME.issuperset(value):
        raise RequestInvalid(where=where, word=word[:80])
    return value


def _value(where: str, word: str, value: str) -> str:
    if not 0 < len(value) <= LONGEST_VALUE or not _IN_VALUE.issuperset(value):
        raise RequestInvalid(where=where, word=word[:80])
    return value
