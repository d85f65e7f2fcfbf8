"""A job's wishes are parsed strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.runs import a_job
from warmstart import request
from warmstart.request import Request, RequestInvalid

NOTHING = Request((), ())
WISHES: list[tuple[dict[str, object], Request]] = [  # what a job says, with a policy that has the word ports
    ({}, NOTHING),
    ({"comment": "nightly run"}, NOTHING),
    ({"comment": "warmstart: image=reg.example.com/a:1"}, Request(("reg.example.com/a:1",), ())),
    (
        {"comment": "nightly; warmstart: profiles=numba,inductor image=a image=b image=a"},
        Request(("a", "b"), ("numba", "inductor")),
    ),
    # Capitals and blanks do not matter but in values.
    ({"comment": "warmstart:fresh Image=a/B:1"}, Request(("a/B:1",), (), fresh=True)),
    ({"comment": "WARMSTART : Fresh Image=a/B:1"}, Request(("a/B:1",), (), fresh=True)),
    ({"comment": "a: b, warmstart:  FRESH Image=a/B:1"}, Request(("a/B:1",), (), fresh=True)),
    # By a word or by an option.
    ({"warm_fresh": True}, NOTHING._replace(fresh=True)),
    ({"comment": "warmstart: refresh"}, NOTHING._replace(refresh=True)),
    ({"warm_refresh": True}, NOTHING._replace(refresh=True)),
    ({"comment": "fresh refresh warmstart: profiles=fresh"}, Request((), ("fresh",))),
    ({"comment": "warmstart: cache=spec_2.0"}, NOTHING._replace(cache="spec_2.0")),
    ({"warm_cache": "a"}, NOTHING._replace(cache="a")),
    ({"warm_cache": "a", "comment": "warmstart: cache=a"}, NOTHING._replace(cache="a")),
    (
        {"comment": "warmstart: image=b profiles=numba", "warm_image": "c", "warm_profile": "inductor,numba"},
        Request(("c", "b"), ("inductor", "numba")),
    ),
    ({"comment": "warmstart: files=llama-70b_v1.2"}, NOTHING._replace(files="llama-70b_v1.2")),
    ({"comment": "warmstart: files=a files=a"}, NOTHING._replace(files="a")),
    ({"comment": "warmstart: ports=4 ports=4 profiles=numba"}, Request((), ("numba",), words={"ports": "4"})),
    # Pyxis's image is the one that containers start from; what is in no registry is left to pyxis.
    (
        {"comment": "warmstart: image=b", "pyxis_image": "docker://a"},
        Request(("docker://a", "b"), (), pyxis_image="docker://a"),
    ),
    ({"pyxis_image": "/home/alice/own.sqsh"}, NOTHING),
    ({"pyxis_image": "./own.sqsh"}, NOTHING),
    ({"pyxis_image": "dockerd://local/a:1"}, NOTHING),
    ({"pyxis_image": "podman://a"}, NOTHING),
]
REFUSED: list[tuple[dict[str, object], str]] = [  # and a word of the refusal
    ({"comment": "warmstart: fresh=numba"}, "fresh="),
    ({"comment": "warmstart: refresh=a"}, "refresh="),
    ({"comment": "warmstart: port=4"}, "port=4"),
    ({"comment": "warmstart: ports="}, "ports="),
    ({"comment": "warmstart: ports=1 ports=2"}, "ports=1 ports=2"),
    ({"comment": "warmstart: files="}, "files="),
    ({"comment": "warmstart: files=a/b"}, "files=a/b"),
    ({"comment": "warmstart: files=a,b"}, "files=a,b"),
    ({"comment": f"warmstart: files={'a' * 65}"}, "files=a"),
    ({"comment": "warmstart: files=a files=b"}, "files=a files=b"),
    ({"comment": "warmstart: cache=a/b"}, "cache=a/b"),
    ({"comment": "warmstart: cache=a cache=b"}, "cache=a cache=b"),
    ({"comment": "warmstart: cache=b", "warm_cache": "a"}, "cache"),
    # A user can set the plugin's variables without the plugin.
    ({"warm_cache": "a b"}, "--warm-"),
    ({"warm_image": "a b"}, "--warm-"),
    ({"warm_image": "a" * 513}, "--warm-"),
    ({"warm_profile": "numba;x"}, "--warm-"),
]


@pytest.mark.parametrize(("job", "asked"), WISHES)
def test_a_jobs_wishes(job: dict[str, object], asked: Request) -> None:
    assert request.of(a_job(**job), ("ports",)) == asked
    assert not request.slip(a_job(**job))


@pytest.mark.parametrize(("job", "word"), REFUSED)
def test_a_wish_that_is_not_understood_is_refused(job: dict[str, object], word: str) -> None:
    with pytest.raises(RequestInvalid, match=word):
        request.of(a_job(**job), ("ports",))


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("warmstart fresh", "warmstart fresh"),
        ("Warmstart Image=a", "warmstart image=a"),
        ("warmstart ports=4", "warmstart ports=4"),
        ("warmstart", ""),
        ("warmstart is great", ""),
        ("no warmstart: fresh", ""),
        ("warmstart fresh warmstart: fresh", ""),
        ("warmstarted fresh", ""),
    ],
)
def test_a_colon_that_is_missing_is_told_and_asks_for_nothing(comment: str, told: str) -> None:
    assert request.slip(a_job(comment=comment), ("ports",)) == told
    if told:
        assert not request.asks(a_job(comment=comment))


@pytest.mark.report
@pytest.mark.parametrize("after", ["; rule_train", ";rule_train", " ; warmstart_team: x=1", ";;", "; off", "; image=b"])
def test_a_semicolon_ends_a_request(after: str) -> None:
    """What follows is the words of others, such as a site's own rule."""
    job = a_job(comment=f"site; warmstart: image=a{after}")
    assert request.of(job) == Request(("a",), ())
    assert not request.wants_nothing(job)
    assert not request.asks(a_job(comment=f"warmstart:{after}"))
    assert request.slip(a_job(comment=f"warmstart fresh{after}")) == "warmstart fresh"


@pytest.mark.report
def test_words_of_others_without_a_semicolon_are_refused_with_a_hint() -> None:
    with pytest.raises(RequestInvalid, match="rule_train") as caught:
        request.of(a_job(comment="warmstart: tree=/x rule_train"), ("tree",))
    assert ";" in caught.value.hint


def test_a_comment_that_says_off_is_left_alone() -> None:
    assert request.wants_nothing(a_job(comment="warmstart: off"))
    assert request.wants_nothing(a_job(comment="Warmstart: image=a OFF"))
    assert request.wants_nothing(a_job(no_warm=True))
    assert not request.wants_nothing(a_job(comment="off"))
    assert not request.wants_nothing(a_job(comment="warmstart: image=off"))


@given(st.text())
def test_no_comment_raises_anything_else(text: str) -> None:
    try:
        wished = request.of(a_job(comment=f"warmstart: {text}"))
    except RequestInvalid:
        return
    assert all(" " not in word for word in wished.images + wished.profiles)
