"""The kill switch: what is blocked is nobody's next job's, and everybody can see by whom."""

from __future__ import annotations

import pytest

from tests.support import packed
from tests.support.entry_site import SCOPE, EntrySite
from warmstart.store.layout import Namespace

FILES = {"m/f": {"m/f.nbi": b"index"}, "m/g": {"m/g.nbi": b"index"}}


@pytest.fixture
def site(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> EntrySite:
    """Give a store with a bundle of two entries."""
    monkeypatch.setenv("SUDO_USER", "carol")
    packed.publish(entry_site.root, Namespace(str(entry_site.store), SCOPE, "numba", "ns"), FILES)
    assert entry_site.offered() == ["m/f", "m/g"]
    return entry_site


@pytest.mark.parametrize(
    ("what", "left"),
    [
        (("--user", "a"), []),
        (("--user", "1000"), []),
        (("--user", "games"), ["m/f", "m/g"]),
        (("--profile", "numba", "--namespace", "ns"), []),
        (("--profile", "numba", "--entry", "m/f"), ["m/g"]),
    ],
)
def test_a_block_holds_until_it_is_taken_back(site: EntrySite, what: tuple[str, ...], left: list[str]) -> None:
    """Of a user, a namespace or an entry; both are audited with who did it."""
    assert site.command("cache", "block", *what, "--reason", "odd").exit_code == 0
    assert site.offered() == left
    assert site.command("cache", "block", *what, "--reason", "again").exit_code == 1
    assert site.command("cache", "unblock", *what).exit_code == 0
    assert site.offered() == ["m/f", "m/g"]
    assert site.command("cache", "unblock", *what).exit_code == 1
    blocked, again = site.events("cache.blocked")
    assert (blocked["block"]["reason"], blocked["block"]["by"], again["block"]["reason"]) == ("odd", "carol", "again")
    assert [event["by"] for event in site.events("cache.unblocked")] == ["carol", "carol"]


@pytest.mark.parametrize(
    ("what", "hidden"),
    [
        (("--user", "a"), "1 bundle of the store is"),
        (("--user", "games"), "0 bundles of the store are"),
        (("--profile", "numba", "--namespace", "ns"), "1 bundle of the store is"),
        (("--profile", "numba", "--entry", "m/f"), "1 bundle of the store is"),
    ],
)
def test_it_says_how_much_that_hides(site: EntrySite, what: tuple[str, ...], hidden: str) -> None:
    """An account that has published nothing can be blocked beforehand."""
    assert hidden in site.command("cache", "block", *what, "--reason", "odd").stdout


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (("--user", "mallroy"), "no account mallroy"),
        (("--user", "4123456789"), "no account 4123456789"),
        (("--user", "99999999999999999999"), "no account 9999"),
        (("--profile", "tritn", "--namespace", "ns"), "there is no profile tritn"),
        (("--profile", "numba", "--namespace", "other"), "no namespace other"),
        (("--profile", "triton", "--entry", "m/f"), "no bundle of triton has an entry"),
    ],
)
def test_what_nobody_knows_is_not_blocked(site: EntrySite, what: tuple[str, ...], why: str) -> None:
    """It would be a misspelling, and the spread would go on."""
    result = site.command("cache", "block", *what, "--reason", "odd")
    assert (result.exit_code, why in result.stderr) == (2, True)
    assert site.json("cache", "list", "--blocked") == []


def test_all_jobs_start_cold_from_now_on(site: EntrySite) -> None:
    """What is published afterwards is offered, and one word undoes it; a block stays."""
    assert "1 bundle" in site.command("cache", "block", "--before", "now", "--reason", "new driver").stdout
    assert site.offered() == []
    packed.publish(site.root, Namespace(str(site.store), SCOPE, "numba", "ns"), {"m/f": {"m/f.nbi": b"anew"}})
    assert site.offered() == ["m/f"]
    site.command("cache", "block", "--profile", "numba", "--entry", "m/f", "--reason", "x")
    assert site.command("cache", "unblock", "--before").exit_code == 0
    assert site.offered() == ["m/g"]
    assert site.command("cache", "unblock", "--before").exit_code == 1


def test_cold_before_a_date(site: EntrySite) -> None:
    """What is younger stays; a date to come is a mistake."""
    assert "0 bundles" in site.command("cache", "block", "--before", "1h", "--reason", "x").stdout
    assert site.offered() == ["m/f", "m/g"]
    assert site.command("cache", "block", "--before", "2999-01-01", "--reason", "x").exit_code == 2
    (known,) = site.json("cache", "list", "--blocked")
    assert known["before"].startswith("20")


def test_what_is_blocked_is_listed(site: EntrySite) -> None:
    """Why, by whom and since when; status 1 where nothing is."""
    assert site.command("cache", "list", "--blocked").exit_code == 1
    assert site.json("cache", "list", "--blocked") == []
    site.command("cache", "block", "--user", "a", "--reason", "odd \x1b[31m")
    (known,) = site.json("cache", "list", "--blocked")
    assert (known["user"], known["by"], known["at"] > 1e9) == ("a", "carol", True)
    shown = site.command("cache", "list", "--blocked")
    assert (shown.exit_code, "\x1b" in shown.stdout, "odd" in shown.stdout) == (0, False, True)


def test_all_can_be_taken_back(site: EntrySite) -> None:
    """Also where nobody can read the list."""
    site.command("cache", "block", "--user", "a", "--reason", "x")
    (site.store / "artifacts" / "blocked.json").chmod(0o600)
    (site.store / "artifacts" / "blocked.json").write_text("{")
    assert site.command("cache", "list", "--blocked").exit_code == 2
    assert site.command("cache", "unblock", "--all").exit_code == 0
    assert site.offered() == ["m/f", "m/g"]
    assert site.command("cache", "unblock", "--all").exit_code == 1


@pytest.mark.parametrize(
    "what",
    [
        (), ("--profile", "numba"), ("--namespace", "ns"), ("--user", "a", "--profile", "numba"),
        ("--profile", "numba", "--namespace", "ns", "--entry", "e"), ("--user", "a", "--entry", "e"),
        ("--user", "a", "--before", "now"),
    ],
)  # fmt: skip
def test_a_block_names_exactly_one_thing(site: EntrySite, what: tuple[str, ...]) -> None:
    """Anything else is wrong usage, and blocks nothing."""
    result = site.command("cache", "block", *what, "--reason", "x")
    assert (result.exit_code, "give --user, --before, or --profile with" in result.stderr) == (2, True)
    assert site.json("cache", "list", "--blocked") == []
