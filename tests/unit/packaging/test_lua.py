"""The check of comments for a site's cli_filter and job_submit: the same as a prolog's, in Lua."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.runs import a_job
from warmstart import request, wing
from warmstart.errors import UserError

FILE = Path(__file__).resolve().parents[3] / "packaging/slurm/warmstart.lua"
LIBRARY = "liblua5.1.so.0"  # Debian's Slurm has this one
WORDS = tuple(word for found in wing.found().values() for word in found.words)
REPEATED = tuple(word for found in wing.found().values() for word in found.repeats)
_MULTRET, _GLOBALS = -1, -10002  # lua.h of 5.1


def load() -> Callable[[str], str | None]:
    """Return the function of the file; it takes a comment and returns what is wrong with it."""
    lua = ctypes.CDLL(LIBRARY)
    lua.luaL_newstate.restype = ctypes.c_void_p
    lua.lua_tolstring.restype = ctypes.c_char_p
    state = ctypes.c_void_p(lua.luaL_newstate())
    lua.luaL_openlibs(state)
    text = FILE.read_text().replace("@WORDS@", " ".join(word + "+" * (word in REPEATED) for word in WORDS))
    assert (lua.luaL_loadstring(state, text.encode()), lua.lua_pcall(state, 0, _MULTRET, 0)) == (0, 0)

    def problem(comment: str) -> str | None:
        lua.lua_settop(state, 0)
        lua.lua_getfield(state, _GLOBALS, b"warmstart_problem")
        data = comment.encode()
        lua.lua_pushlstring(state, data, ctypes.c_size_t(len(data)))
        failed = lua.lua_pcall(state, 1, 1, 0)
        said = lua.lua_tolstring(state, -1, None)
        assert not failed, said
        return None if said is None else bytes(said).decode()

    return problem


try:
    PROBLEM = load()
except OSError:
    pytestmark = pytest.mark.skip(f"{LIBRARY} is not here")


def refused(comment: str) -> bool:
    """Return whether the prolog fails a job with this comment, or tells it that a colon is missing."""
    job = a_job(comment=comment)
    if request.wants_nothing(job):
        return False
    try:
        request.of(job, WORDS, REPEATED)
    except UserError:
        return True
    return bool(request.slip(job, WORDS))


VALUES = st.sampled_from(["", "a", "a/b:1", "a,b", "x" * 65, "x" * 513, "a b", "a$b", "4", "A"])
KEYS = st.sampled_from(["image", "profiles", "Files", "cache", "IMAGE", "nothing", "", *WORDS])
PARTS = st.one_of(
    st.builds("{}={}".format, KEYS, VALUES),
    st.sampled_from(
        [
            "Fresh",
            "refresh",
            "off",
            "OFF",
            "warmstart",
            "warmstart:",
            "Warmstart :",
            ":",
            "see",
            "kepe",
            ";",
            "fresh;x",
            "fresh;",
        ]
    ),
)


@given(
    st.lists(PARTS, max_size=5).map(" ".join),
    st.sampled_from(["", "warmstart: ", "WarmStart :", "x: warmstart:", "warmstart "]),
)
def test_it_refuses_what_a_prolog_does(text: str, before: str) -> None:
    assert (PROBLEM(before + text) is not None) == refused(before + text), before + text


def test_it_says_what_is_wrong() -> None:
    assert PROBLEM("warmstart: imgae=a") == (
        'warmstart: the comment has "imgae=a", which warmstart does not understand; '
        "`warmstart plan --comment` says what it does"
    )
    assert PROBLEM("warmstart fresh") == 'warmstart: the comment asks for nothing: write a colon, "warmstart: fresh"'
    assert '"a?b"' in str(PROBLEM("warmstart: a\x1bb"))
    assert PROBLEM("") is None
