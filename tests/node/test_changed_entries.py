"""What a job changes or removes of its seeded entries takes the place of what is published, for the jobs after it.

The tool is a shell script with a profile of the site's own; all else is real. Real tools: slurm/test_right_results.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.node import Node
from tests.lib.node_jobs import NodeJob, a_run, with_rules
from warmstart.harvest.collect import EMPTIED

POLICY = """\
profiles:
  mytool:
    variables: {MYTOOL_CACHE: "{dir}"}
    entries: {"*/": [meta.json]}
    relocation: relocatable
"""
OWN = f"{POLICY}rules:\n  - {{name: all, profiles: [mytool]}}\n"
SHARED = f"""\
{OWN}  - {{name: readers, scope: site}}
  - {{name: publisher, match: {{partition: ci}}, scope: site, publish: {{users: [{BOB}]}}}}
"""
LIVE = f"harvest: {{while_running: 1m}}\n{OWN}"
HOUR_S = 3600.0
SHOW = 'cd "$MYTOOL_CACHE"; for f in */*; do if [ -f "$f" ]; then printf "%s=" "$f"; cat "$f"; echo; fi; done'


def build(names: str, text: str) -> str:
    """Return a script that makes entries."""
    return (
        f'cd "$MYTOOL_CACHE"; for e in {names}; do mkdir -p $e; printf 1 > $e/meta.json; printf {text} > $e/code; done'
    )


def seen(job: NodeJob) -> dict[str, str]:
    """Return entry → the content of its file `code`, as the job finds them."""
    lines = (line.split("=") for line in job.run(SHOW).splitlines())
    return {path.partition("/")[0]: text for path, text in lines if path.endswith("/code")}


def harvested(job: NodeJob) -> tuple[int, int, int]:
    """Return how many entries the epilog published, how many of them changed, and how many it retired."""
    (event,) = [event for event in job.harvested() if not event.get("running")]
    return event["entries"], event["changed"], event["retired"]


@pytest.fixture
def node(base: Path) -> Node:
    """Return a node on which jobs use the tool."""
    return with_rules(base, OWN)


def test_a_jobs_own_version_takes_the_place(node: Node) -> None:
    """Rewritten, removed, made anew, given another file; merely touched is no change."""
    with a_run(node) as first:
        first.run(build("a b c d e", "old"))
    with a_run(node, "n2") as second:
        assert seen(second) == dict.fromkeys("abcde", "old")
        second.run(
            'cd "$MYTOOL_CACHE"; printf new > a/code; rm -r b; touch c/code; printf old > c/code;'
            "rm -r d; mkdir d; printf 1 > d/meta.json; printf new > d/code; printf more > e/more"
        )
    assert harvested(second) == (3, 3, 1)
    with a_run(node) as third:
        assert seen(third) == {"a": "new", "c": "old", "d": "new", "e": "old"}
        assert third.run('cat "$MYTOOL_CACHE/e/more"') == "more"
        third.run('rm "$MYTOOL_CACHE/a/meta.json"; printf x > "$MYTOOL_CACHE/a/code"; rm "$MYTOOL_CACHE/e/more"')
    assert third.rejected() == {"incomplete": 1, EMPTIED: 1}  # the published entries stay
    assert third.published() == []
    with a_run(node, "n2") as fourth:
        assert seen(fourth) == {"a": "new", "c": "old", "d": "new", "e": "old"}
        fourth.run(build("b", "newer"))
    with a_run(node, comment="warmstart: fresh") as fresh:
        assert seen(fresh) == {}
        fresh.run(build("a c f", "fresh"))
    assert harvested(fresh)[0] == 3
    last = {"a": "fresh", "b": "newer", "c": "fresh", "d": "new", "e": "old", "f": "fresh"}
    with a_run(node, "n2") as job:
        assert seen(job) == last
    assert node.command("cache", "compact").exit_code == 0
    with a_run(node) as compacted:
        assert seen(compacted) == last
    with a_run(node, user=BOB) as other:
        assert seen(other) == {}


@pytest.mark.usefixtures("accounts")
def test_a_users_change_of_the_sites_entry_is_that_users_alone(base: Path) -> None:
    """Others, the publisher too, go on with the site's."""
    node = with_rules(base, SHARED)
    with a_run(node, user=BOB, partition="ci") as publisher:
        publisher.run(build("a b", "site"))
    with a_run(node, "n2") as user:
        assert seen(user) == {"a": "site", "b": "site"}
        user.run('cd "$MYTOOL_CACHE"; printf mine > a/code; rm -r b')
    with a_run(node) as again:
        assert seen(again) == {"a": "mine"}
    with a_run(node, user=BOB) as other:
        assert seen(other) == {"a": "site", "b": "site"}


def test_of_two_that_change_the_same_entry_the_last_counts(node: Node) -> None:
    """Both were seeded with the same version, and each has a whole one of its own."""
    with a_run(node) as first:
        first.run(build("x", "v1"))
    with a_run(node, "n2") as quick, a_run(node) as slow:
        quick.run('printf quick > "$MYTOOL_CACHE/x/code"')
        slow.run('printf slow > "$MYTOOL_CACHE/x/code"')
        quick.end()
    assert (len(slow.published()), slow.rejected()) == (1, {})
    with a_run(node) as last:
        assert seen(last)["x"] == "slow"


def test_in_an_overlay_new_entries_are_taken_while_the_job_runs_and_all_at_its_end(base: Path) -> None:
    """What a job changes of what it was given, and of what was taken, counts from its end on."""
    node = with_rules(base, LIVE)
    with a_run(node) as first:
        first.run(build("a b", "old"))
    with a_run(node) as job:
        job.run(build("c d", "old"))
        job.run('printf new > "$MYTOOL_CACHE/b/code"')
        assert node.run("background", job.job, later=HOUR_S).status == 0
        (told,) = [event for event in job.harvested() if event["entries"]]
        assert (told["entries"], told["changed"], told["running"]) == (2, 0, True)
        with a_run(node, "n2") as meanwhile:
            assert seen(meanwhile) == dict.fromkeys("abcd", "old")
        job.run('rm -r "$MYTOOL_CACHE/d"; printf new > "$MYTOOL_CACHE/c/code"')
    assert harvested(job) == (2, 1, 0)
    with a_run(node, "n2") as last:
        assert seen(last) == {"a": "old", "b": "new", "c": "new", "d": "old"}


def test_what_is_harvested_later_is_its_producers(node: Node) -> None:
    """The store was away when the producer ended. So audit, explain and report count it."""
    away = node.store.with_name("store.away")
    with a_run(node) as producer:
        producer.run(build("a", "mine"))
        node.store.rename(away)
    away.rename(node.store)
    assert producer.published() == []
    assert node.run("background", later=HOUR_S).status == 0
    (told,) = producer.published()
    (line,) = producer.events("harvest.finished")
    assert (line["user"], line["done_by"]) == (ALICE, {"hook": "background"})
    assert "1 new entry published" in producer.explained()
    assert node.json("report")["entries"] == told["entries"] == 1
