"""What observing foretells is what enforcing then does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.cluster.site import Site
from tests.support.observed_jobs import AT_ONCE, POLICY, PROFILES, Ran, mix, run, together
from warmstart.audit.runs import runs
from warmstart.wings.forecast.prediction import Hits, Predicted, Prediction


def counted(site: Site, ran: Ran) -> Predicted:
    """Return what the hooks of these jobs did, as a prediction counts it."""
    events: Counter[str] = Counter()
    starts: Counter[str] = Counter()
    warm: Counter[str] = Counter()
    for line in site.audit():
        if line.get("job_id") not in ran.ids:
            continue
        events[line["event"]] += 1
        if line["event"] == "cache.seeded" and line["entries"]:
            warm[line["profile"]] += 1
        if line["event"] == "step.finished" and line["step"] == "environment":
            for name in ("alpha", "beta"):
                starts[name] += f"{name.upper()}_CACHE" in line["variables"]
    return Predicted(
        jobs=len(ran.ids),
        refused=events["job.refused"],
        drains=events["node.drained"],
        imports=events["image.imported"],
        avoided=events["image.reused"] + events["image.waited"] - events["image.imported"],  # imports are apart
        saved_s=0.0,
        saves_unknown=0,
        profiles=tuple(Hits(name, warm[name], starts[name] - warm[name]) for name in sorted(starts)),
    )


def close(predicted: Predicted, done: Predicted, share: float) -> bool:
    """Return whether no count is off by more than this share."""
    pairs = [(predicted.imports, done.imports), (predicted.avoided, done.avoided), (predicted.refused, done.refused)]
    for said, hits in zip(predicted.profiles, done.profiles, strict=True):
        assert said.name == hits.name
        pairs += [(said.warm, hits.warm), (said.warm + said.cold, hits.warm + hits.cold)]
    return all(abs(one - other) <= share * other for one, other in pairs)


@pytest.mark.parametrize("number", [12, pytest.param(200, marks=pytest.mark.sweep)])
def test_enforcing_does_what_observing_has_foretold(site: Site, fresh_image: Callable[[], str], number: int) -> None:
    """Of few jobs every count is exact. Of many at once, which of them come too early for the cache is chance."""
    jobs = mix(number, [fresh_image() for _ in range(3)])
    store = site.new_store(site.cluster.base / f"store-foretold-{number}")
    site.write_policy(POLICY.format(mode="observe", profiles=PROFILES), store=str(store))
    observed = run(site, jobs, together(jobs))
    prediction = Prediction()
    for one in runs(line for line in site.audit() if line.get("job_id") in observed.ids):
        prediction.add(one)
    predicted = prediction.result()
    site.write_policy(POLICY.format(mode="enforce", profiles=PROFILES), store=str(store))
    done = counted(site, run(site, jobs, together(jobs)))
    print(predicted, done, sep="\n")  # noqa: T201 - pytest shows it on failure, and with -rP
    assert (predicted.drains, done.drains) == (0, 0)
    assert min(done.imports, done.avoided, done.refused, *(hits.warm for hits in done.profiles)) > 0
    assert close(predicted, done, 0.1 if number > AT_ONCE else 0.0), (predicted, done)
