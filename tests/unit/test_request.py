"""A job's wishes are parsed strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.runs import a_job
from warmstart import request
from warmstart.request import Request, RequestInvalid


@pytest.mark.parametrize(
    ("comment", "images", "profiles"),
    [
        ("", (), ()),
        ("nightly run", (), ()),
        ("warmstart: image=reg.example.com/a:1", ("reg.example.com/a:1",), ()),
        ("nightly; warmstart: profiles=numba,inductor image=a image=b image=a", ("a", "b"), ("numba", "inductor")),
    ],
)
def test_the_token_in_the_comment(comment: str, images: tuple[str, ...], profiles: tuple[str, ...]) -> None:
    assert request.of(a_job(comment=comment)) == Request(images, profiles)


@pytest.mark.parametrize(
    "asked", ["warmstart:fresh", "Warmstart: fresh", "WARMSTART : Fresh", "a: b, warmstart:  FRESH"]
)
def test_capitals_and_blanks_do_not_matter(asked: str) -> None:
    assert request.of(a_job(comment=f"{asked} Image=a/B:1")) == Request(("a/B:1",), (), fresh=True)
    assert not request.slip(a_job(comment=asked))


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


def test_words_of_wings_come_with_their_values() -> None:
    asked = request.of(a_job(comment="warmstart: ports=4 profiles=numba"), ("ports",))
    assert (asked.words, asked.profiles) == ({"ports": "4"}, ("numba",))
    for words in ((), ("port",)):
        with pytest.raises(request.RequestInvalid):
            request.of(a_job(comment="warmstart: ports=4"), words)
    with pytest.raises(request.RequestInvalid):
        request.of(a_job(comment="warmstart: ports="), ("ports",))


def test_files_have_a_name() -> None:
    assert request.of(a_job(comment="warmstart: files=llama-70b_v1.2")).files == "llama-70b_v1.2"
    for word in ("files=", "files=a/b", "files=a,b", f"files={'a' * 65}"):
        with pytest.raises(request.RequestInvalid):
            request.of(a_job(comment=f"warmstart: {word}"))


def test_a_cache_has_one_name() -> None:
    assert request.of(a_job(comment="warmstart: cache=spec_2.0")).cache == "spec_2.0"
    assert request.of(a_job(warm_cache="a")).cache == "a"
    assert request.of(a_job(warm_cache="a", comment="warmstart: cache=a")).cache == "a"
    for job in (
        a_job(comment="warmstart: cache=a/b"),
        a_job(comment="warmstart: cache=a cache=b"),
        a_job(warm_cache="a", comment="warmstart: cache=b"),
        a_job(warm_cache="a b"),
    ):
        with pytest.raises(RequestInvalid):
            request.of(job)


def test_pyxis_names_its_image_first() -> None:
    job = a_job(comment="warmstart: image=b", pyxis_image="docker://a")
    assert request.of(job).images == ("docker://a", "b")


@pytest.mark.parametrize("image", ["/home/alice/own.sqsh", "./own.sqsh", "dockerd://local/a:1", "podman://a"])
def test_what_is_in_no_registry_is_left_to_pyxis(image: str) -> None:
    assert request.of(a_job(pyxis_image=image)) == Request((), ())


@pytest.mark.parametrize("word", ["fresh", "refresh"])
def test_a_job_can_start_cold_and_can_ask_what_a_tag_means_now(word: str) -> None:
    asked = [request.of(a_job(comment=f"warmstart: {word} image=a")), request.of(a_job(**{f"warm_{word}": True}))]
    assert [getattr(one, word) for one in asked] == [True, True]
    assert not getattr(request.of(a_job(comment=f"{word} warmstart: profiles={word}")), word)
    with pytest.raises(RequestInvalid, match=f"{word}="):
        request.of(a_job(comment=f"warmstart: {word}=numba"))


def test_the_plugins_options_are_wishes_like_the_comments() -> None:
    job = a_job(comment="warmstart: image=b profiles=numba", warm_image="c", warm_profile="inductor,numba")
    wished = request.of(job)
    assert (wished.images, wished.profiles) == (("c", "b"), ("inductor", "numba"))


@pytest.mark.parametrize("changes", [{"warm_image": "a b"}, {"warm_image": "a" * 513}, {"warm_profile": "numba;x"}])
def test_forged_options_are_refused(changes: dict[str, str]) -> None:
    """A user can set the plugin's variables without the plugin; the prolog reads them as strictly."""
    with pytest.raises(RequestInvalid, match="--warm-"):
        request.of(a_job(**changes))


@given(st.text())
def test_no_comment_raises_anything_else(text: str) -> None:
    try:
        wished = request.of(a_job(comment=f"warmstart: {text}"))
    except RequestInvalid:
        return
    assert all(" " not in word for word in wished.images + wished.profiles)


@pytest.mark.parametrize(("key", "one", "other"), [("files", "a", "b"), ("wing", "1", "2")])
def test_what_a_job_can_have_once_is_not_named_twice(key: str, one: str, other: str) -> None:
    """The last one would win without a word; the same one again says nothing new."""
    twice = f"warmstart: {key}={one} {key}="
    assert request.of(a_job(comment=twice + one), ["wing"]) == request.of(
        a_job(comment=f"warmstart: {key}={one}"), ["wing"]
    )
    with pytest.raises(RequestInvalid, match=f"{key}={one} {key}={other}"):
        request.of(a_job(comment=twice + other), ["wing"])
