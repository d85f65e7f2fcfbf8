"""The image store for the command line: private stores are the owner's to see, names are what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.entry_site import EntrySite, OsAs
from tests.support.superblocks import image
from warmstart.audit import events
from warmstart.entry.cli import image_store
from warmstart.entry.cli.image_store import Store, changed, opened
from warmstart.images.choice import recipe
from warmstart.images.eviction import ImageEntry

HEX = "ab" * 32


@pytest.fixture
def store(entry_site: EntrySite) -> Iterator[Store]:
    """Give a store with an image, and a private one with another."""
    kind = f"{os.uname().machine}.{recipe(entry_site.policy.images.importer)}"
    for path, name in (("images", HEX), ("private/team/images", "cd" * 32)):
        directory = entry_site.store / path
        directory.mkdir(parents=True)
        (directory / f"{name}.{kind}.sqsh").write_bytes(image())
    with opened(entry_site.installation) as found:
        yield found


@pytest.mark.parametrize("is_root", [True, False])
def test_private_stores_are_for_roots_eyes(store: Store, monkeypatch: pytest.MonkeyPatch, is_root: bool) -> None:
    """Nobody else knows even their names."""
    monkeypatch.setattr(image_store, "os", OsAs(0 if is_root else 1000))
    assert sorted(entry.private for entry in store.inventory()) == (["", "team"] if is_root else [""])
    assert store.quarantined() == []


def test_what_is_only_read_can_not_be_told(store: Store, entry_site: EntrySite) -> None:
    """A change without an audit is a bug."""
    with pytest.raises(AssertionError):
        store.emit(events.IMAGE_PINNED)
    with changed(entry_site.installation) as writable:
        writable.emit(events.IMAGE_PINNED, name="x")
    assert [event["name"] for event in entry_site.events("image.pinned")] == ["x"]


def test_an_image_is_one_or_none(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, with what to do about it."""
    assert store.find(HEX).name.startswith(HEX)
    with pytest.raises(click.exceptions.Exit) as caught:
        store.find("ef" * 32)
    assert (caught.value.exit_code, "no such image" in capsys.readouterr().err) == (1, True)


@pytest.mark.parametrize("text", ["UPPER", "evil.example.com/a:1"])
def test_a_reference_is_one_that_jobs_may_have(store: Store, text: str) -> None:
    """Else status 2."""
    with pytest.raises(click.exceptions.Exit) as caught:
        store.reference(text)
    assert caught.value.exit_code == 2
    assert store.reference("reg.example.com/a:1").canonical() == "reg.example.com/a:1"


def test_an_import_by_hand_is_nobodys(store: Store) -> None:
    """Of no job, and in no quota."""
    site = store.site()
    assert (site.requester.job_id, site.requester.run_id) == (0, f"cli{os.getpid()}")
    assert site.store is store.images


def test_without_a_policy_there_is_no_store(entry_site: EntrySite, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, for reading and for changing."""
    os.unlink(entry_site.installation.compiled_policy)
    for give in (opened, changed):
        with pytest.raises(click.exceptions.Exit) as caught, give(entry_site.installation):
            pytest.fail("no policy")
        assert caught.value.exit_code == 2
        assert "policy.yaml" in capsys.readouterr().err


@given(st.text("ab", max_size=10) | st.text(max_size=10))
def test_a_few_letters_name_nothing(text: str) -> None:
    """Only so many that it is no accident; any text is answered."""
    entry = ImageEntry._make([""] * len(ImageEntry._fields))
    entry = entry._replace(name=HEX, path="/store/x.sqsh", digest=f"sha256:{HEX}", reference="reg.io/a:1")
    assert image_store._matches(entry, text) is (len(text) >= image_store.SHORTEST and HEX.startswith(text))
    for exact in (entry.path, entry.digest, "reg.io/a:1", "docker://reg.io/a:1"):
        assert image_store._matches(entry, exact)
