"""The step `report`: what a job's user may know is left, and what keeps it from that is no failure of the job."""

from __future__ import annotations

import errno
import json
import os
from typing import NoReturn

import pytest

from tests.support.entry_site import EntrySite
from warmstart import run_end, view
from warmstart.audit import events
from warmstart.entry import epilog, prolog
from warmstart.steps import report
from warmstart.steps.contract import Context, Outcome
from warmstart.store import reports


def left(context: Context) -> list[str]:
    """Return the names of the events in the report."""
    (text,) = reports.read(context.policy.paths.store, context.record.uid)
    return [json.loads(line)["event"] for line in text.splitlines()]


def test_it_has_the_views_part_and_this_hooks(context: Context) -> None:
    """And says that profiles are left to maintenance, which the epilog writes down later."""
    os.mkdir(context.policy.paths.store)
    view.publish(context.paths.view, context.record, {view.EVENTS: '{"ts": 1, "event": "cache.seeded"}\n'})
    context.audit.emit(events.CACHE_HARVESTED)
    context.audit.emit(events.IMAGE_EVICTED)
    context = context._replace(record=context.record._replace(deferred=["numba"]))
    assert report.run(context, report.Options(30)) == Outcome("changed")
    assert left(context) == ["cache.seeded", "cache.harvested", "harvest.deferred"]
    context.store.close()


def test_without_a_view_it_has_the_rest(context: Context) -> None:
    """Somebody removed it."""
    os.mkdir(context.policy.paths.store)
    context.audit.emit(events.CACHE_HARVESTED)
    assert report.run(context, report.Options(30)) == Outcome("changed")
    assert left(context) == ["cache.harvested"]
    context.store.close()


def test_one_that_is_not_written_is_told(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the audit, by its step; the job's end is as ever."""

    def fails(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reports, "create_file", fails)
    assert prolog.main(entry_site.installation.prefix) == 0
    assert epilog.main(entry_site.installation.prefix) == 0
    (failed,) = entry_site.events("step.failed")
    assert (failed["step"], failed["error"]["code"]) == ("report", "store-full")
    assert entry_site.events("hook.finished")[-1]["outcome"] == "ok"
    assert not os.listdir(entry_site.paths.state)


def test_an_epilog_that_dies_after_it_is_made_good(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one finds view and record, and writes the same report again."""

    def dies(*_: object) -> NoReturn:
        raise SystemExit

    assert prolog.main(entry_site.installation.prefix) == 0
    with monkeypatch.context() as patch:
        patch.setattr(run_end, "release", dies)
        with pytest.raises(SystemExit):
            epilog.main(entry_site.installation.prefix)
    (first,) = reports.read(str(entry_site.store), os.getuid())
    assert epilog.main(entry_site.installation.prefix) == 0
    (second,) = reports.read(str(entry_site.store), os.getuid())
    hooks = [{json.loads(line)["hook"] for line in text.splitlines()} for text in (first, second)]
    assert hooks == [{"prolog", "epilog"}] * 2
    assert not os.listdir(entry_site.paths.state)


def test_a_site_may_write_none(entry_site: EntrySite) -> None:
    """Then nothing of it is in the store."""
    entry_site.write(entry_site.policy._replace(maintenance=entry_site.policy.maintenance._replace(reports=None)))
    assert prolog.main(entry_site.installation.prefix) == 0
    assert epilog.main(entry_site.installation.prefix) == 0
    assert not (entry_site.store / reports.FOLDER).exists()
