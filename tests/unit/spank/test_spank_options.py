"""The SPANK plugin's options, as the submitting command sees them, under the address and undefined sanitizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib import spank
from tests.lib.runs import a_job
from warmstart import request

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[spank.Harness]:
    """Build the plugin with sanitizers; skip, or fail in CI, where that can't be."""
    spank.need()
    with spank.served(spank.build(tmp_path_factory.mktemp("spank"), sanitize=True)) as harness:
        yield harness


def submitted(harness: spank.Harness, *options: str) -> tuple[int, list[str]]:
    """Submit with these options; return the status and what Slurm was told."""
    done = harness.run("submit", *options)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_options_reach_the_prolog(harness: spank.Harness) -> None:
    """Each in a variable of its own; of one that is given twice, the last."""
    options = ("warm-image=reg.example.com:5000/a:1", "warm-profile=triton", "no-warm", "warm-profile=numba,inductor")
    assert submitted(harness, *options, "warm-cache=a_1.b-c", "warm-fresh", "warm-refresh") == (
        0,
        [
            "SPANK_WARM_IMAGE=reg.example.com:5000/a:1",
            "SPANK_WARM_PROFILE=numba,inductor",
            "SPANK_WARM_CACHE=a_1.b-c",
            "SPANK_WARM_FRESH=1",
            "SPANK_WARM_REFRESH=1",
            "SPANK_NO_WARM=1",
        ],
    )
    assert submitted(harness) == (0, [])


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("warm-image", "needs a value"),
        ("warm-image=" + "a" * 513, "is longer than 512 characters"),
        ("warm-image=a b", "contains an invalid character"),
        ("warm-image=$(id)", "contains an invalid character"),
        ("warm-image=a\nSPANK_X=1", "contains an invalid character"),
        ("warm-image=\u00e4", "contains an invalid character"),
        ("warm-image=-x", "does not start with a letter or a digit"),
        ("warm-profile=numba;id", "contains an invalid character"),
        ("warm-profile=a,,b", "contains an empty name"),
        ("warm-cache=a/b", "contains an invalid character"),
        ("warm-cache=" + "a" * 65, "is longer than 64 characters"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(harness: spank.Harness, option: str, problem: str) -> None:
    """The command ends, nothing is handed to the job, and the user reads why; his text is not repeated."""
    status, lines = submitted(harness, option, "warm-profile=numba")
    name = option.partition("=")[0]
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"error: warmstart: the value of --{name} {problem}; use ")


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=600)
LIKELY = st.text("az09._:/@#+-,_", min_size=1, max_size=40)


@given(image=WORDS | LIKELY, profiles=WORDS | LIKELY, cache=WORDS | LIKELY)
@settings(max_examples=40)
def test_what_passes_here_passes_in_the_prolog(harness: spank.Harness, image: str, profiles: str, cache: str) -> None:
    """No job is queued for a value that its prolog would not understand."""
    if submitted(harness, f"warm-image={image}")[0] == 0:
        assert request.of(a_job(warm_image=image)).images == (image,)
    if submitted(harness, f"warm-profile={profiles}")[0] == 0:
        assert all(request.of(a_job(warm_profile=profiles)).profiles)
    if submitted(harness, f"warm-cache={cache}")[0] == 0:
        assert request.of(a_job(warm_cache=cache)).cache == cache
