"""What a job changes or removes of its seeded entries takes the place of what is published, for the jobs after it.

The tool is a shell script with a profile of the site's own; all else is real. Real tools: test_stale_results.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.lib.accounts import BOB
from tests.lib.hand_jobs import HandJob, a_job
from warmstart.harvest.collect import EMPTIED

if TYPE_CHECKING:
    from tests.lib.site import Site

POLICY = """\
profiles:
  mytool:
    variables: {{MYTOOL_CACHE: "{{dir}}"}}
    entries: ["*/"]
    needs: ["meta.json"]
    relocation: relocatable
rules:
  - {{name: all, profiles: [mytool]}}
{more}"""
SHARED = f"""\
  - {{name: readers, scope: site}}
  - {{name: publisher, match: {{partition: ci}}, scope: site, publish: {{users: [{BOB}]}}}}
"""
SHOW = 'cd "$MYTOOL_CACHE"; for f in */*; do if [ -f "$f" ]; then printf "%s=" "$f"; cat "$f"; echo; fi; done'
BUILD = (
    'mkdir -p "$MYTOOL_CACHE"; cd "$MYTOOL_CACHE";'
    "for e in {names}; do mkdir -p $e; printf 1 > $e/meta.json; printf {text} > $e/code; done"
)


def seen(job: HandJob) -> dict[str, str]:
    """Return entry → the content of its file `code`, as the job finds them."""
    lines = (line.split("=") for line in job.run(SHOW).splitlines())
    return {path.partition("/")[0]: text for path, text in lines if path.endswith("/code")}


def harvested(job: HandJob) -> tuple[int, int, int]:
    """Return how many entries the epilog published, how many of them changed, and how many it retired."""
    (event,) = job.site.events(job.job_id, "cache.harvested")
    return event["entries"], event["changed"], event["retired"]


def test_a_jobs_own_version_takes_the_place(site: Site) -> None:
    """Rewritten, removed, made anew, given another file; merely touched is no change."""
    site.write_policy(POLICY.format(more=""))
    with a_job(site, 940001) as first:
        first.run(BUILD.format(names="a b c d e", text="old"))
    with a_job(site, 940002, "n2") as second:
        assert seen(second) == dict.fromkeys("abcde", "old")
        second.run(
            'cd "$MYTOOL_CACHE"; printf new > a/code; rm -r b; touch c/code; printf old > c/code;'
            "rm -r d; mkdir d; printf 1 > d/meta.json; printf new > d/code; printf more > e/more"
        )
    assert harvested(second) == (3, 3, 1)
    with a_job(site, 940003) as third:
        assert seen(third) == {"a": "new", "c": "old", "d": "new", "e": "old"}
        assert third.run('cat "$MYTOOL_CACHE/e/more"') == "more"
        third.run('rm "$MYTOOL_CACHE/a/meta.json"; printf x > "$MYTOOL_CACHE/a/code"; rm "$MYTOOL_CACHE/e/more"')
    assert third.rejected() == {"incomplete": 1, EMPTIED: 1}  # the published entries stay
    assert third.published() == 0
    with a_job(site, 940004, "n2") as fourth:
        assert seen(fourth) == {"a": "new", "c": "old", "d": "new", "e": "old"}
        fourth.run(BUILD.format(names="b", text="newer"))
    with a_job(site, 940005, comment="warmstart: fresh") as fresh:
        assert seen(fresh) == {}
        fresh.run(BUILD.format(names="a c f", text="fresh"))
    assert harvested(fresh)[0] == 3
    with a_job(site, 940006, "n2") as last:
        assert seen(last) == {"a": "fresh", "b": "newer", "c": "fresh", "d": "new", "e": "old", "f": "fresh"}
    assert site.command("cache", "compact", "--json").returncode == 0
    with a_job(site, 940007) as compacted:
        assert seen(compacted) == {"a": "fresh", "b": "newer", "c": "fresh", "d": "new", "e": "old", "f": "fresh"}
    with a_job(site, 940008, user=BOB) as other:
        assert seen(other) == {}


def test_a_users_change_of_the_sites_entry_is_that_users_alone(site: Site) -> None:
    """Others, the publisher too, go on with the site's."""
    site.write_policy(POLICY.format(more=SHARED), store=str(site.new_store(site.cluster.base / "store-shared")))
    with a_job(site, 940011, user=BOB, partition="ci") as publisher:
        publisher.run(BUILD.format(names="a b", text="site"))
    with a_job(site, 940012, "n2") as user:
        assert seen(user) == {"a": "site", "b": "site"}
        user.run('cd "$MYTOOL_CACHE"; printf mine > a/code; rm -r b')
    with a_job(site, 940013) as again:
        assert seen(again) == {"a": "mine"}
    with a_job(site, 940014, user=BOB) as other:
        assert seen(other) == {"a": "site", "b": "site"}


def test_of_two_that_change_the_same_entry_the_first_counts(site: Site) -> None:
    """Both were seeded with the same version; the second is told apart from a stale one."""
    site.write_policy(POLICY.format(more=""))
    with a_job(site, 940021) as first:
        first.run(BUILD.format(names="x", text="v1"))
    with a_job(site, 940022, "n2") as quick, a_job(site, 940023) as slow:
        quick.run('printf quick > "$MYTOOL_CACHE/x/code"')
        slow.run('printf slow > "$MYTOOL_CACHE/x/code"')
        quick.end()
    assert (slow.published(), slow.rejected()) == (0, {"superseded": 1})
    with a_job(site, 940024) as last:
        assert seen(last)["x"] == "quick"
