"""A job's wishes are parsed strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.samples import a_job
from warmstart import request
from warmstart.request import RequestInvalid


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
    """Words before the token are the user's own; after it come wishes, each once."""
    assert request.of(a_job(comment=comment)) == (images, profiles)


def test_pyxis_names_its_image_first() -> None:
    """The image that the containers will start from leads."""
    job = a_job(comment="warmstart: image=b", pyxis_image="docker://a")
    assert request.of(job).images == ("docker://a", "b")


@given(st.text())
def test_no_comment_raises_anything_else(text: str) -> None:
    """Whatever a user writes is a request or its own error."""
    try:
        wished = request.of(a_job(comment=f"warmstart: {text}"))
    except RequestInvalid:
        return
    assert all(" " not in word for word in wished.images + wished.profiles)
