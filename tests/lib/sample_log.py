"""An audit log as a cluster of 24 nodes writes it in a week, the same each time: for reports and metrics."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from warmstart.audit.line import Line, shaped, timestamp

START = 1_769_990_400.0  # 2026-02-02, a Monday, 00:00 UTC
DAY = 86400.0
PROFILES = ("inductor", "triton", "numba", "vllm", "flashinfer")
USERS = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy")
SIZES = {  # MB, by image
    "registry.example.com/base/pytorch:2.9": 9_400,
    "registry.example.com/base/jax:0.10": 6_100,
    "registry.example.com/team-nlp/train:14": 11_800,
    "registry.example.com/team-nlp/serve:7": 13_200,
    "registry.example.com/vision/segment:3": 4_300,
    "registry.example.com/base/cuda:13.1": 3_100,
}
IMAGES = tuple(SIZES)
FACTS = {"image": "sha256:ab", "cpu": "x86_64-1f2e3d4c5b6a7988", "gpu": "NVIDIA-H100", "driver": "580.65"}
REFUSED = {
    "kind": "user",
    "code": "image-refused",
    "reason": "registry evil.example.org is not one that this cluster allows",
    "hint": "use an image from an allowed registry",
}


class _Sample:
    def __init__(self, first: int) -> None:
        self._random = random.Random(first)
        self._known: set[str] = set()
        self._warm: set[tuple[str, str]] = set()

    def job(self, job: int, at: float) -> Iterator[Line]:
        """Yield what the hooks of a job write that starts then."""
        pick = self._random
        user, name = pick.choice(USERS), IMAGES[min(int(pick.expovariate(0.6)), len(IMAGES) - 1)]
        profiles = sorted(set(pick.choices(PROFILES, k=2)))
        own: Line = {"cluster": "example", "node": f"gpu{pick.randrange(24):02}", "job_id": job}
        own |= {"uid": 2000 + USERS.index(user), "user": user}

        def event(event: str, seconds: float = 0.0, hook: str = "prolog", /, **fields: object) -> Line:
            run = {"hook": hook, "run_id": f"{hook[0]}{job:07x}", **own}
            return {**run, "ts": timestamp(at + seconds), "event": event, **fields}

        yield event("hook.started", partition="gpu", account="research")
        yield event("job.planned", asked={"images": [name]}, rules=["everyone", "gpu"], profiles=profiles, head=True)
        if job % 211 == 0:
            yield event("job.refused", 1, error=REFUSED)
            yield event("hook.finished", 1, outcome="failed", status=0, duration_ms=9.5)
            return
        is_missing = name not in self._known or pick.random() < 0.004
        self._known.add(name)
        waits = is_missing or pick.random() < 0.01
        waited = SIZES[name] * pick.uniform(17, 23) * (1.0 if is_missing else pick.random()) if waits else 0.0
        got: Line = {"image": name, "digest": f"sha256:{IMAGES.index(name):064x}", "bytes": SIZES[name] * 1_000_000}
        if is_missing:
            done: Line = {"waited_ms": 0, "duration_ms": round(waited, 3), "step": "image"}
            yield event("hook.started", 0.0, "import")
            yield event("image.imported", waited / 1000, "import", **got, **done)
            yield event("hook.finished", waited / 1000, "import", outcome="ok", duration_ms=round(waited + 9, 3))
        took = waited + pick.uniform(2, 9)
        used: Line = {"waited_ms": round(waited), "duration_ms": round(took, 3), "step": "image"}
        yield event("image.waited" if waits else "image.reused", took / 1000, **got, **used)
        yield event("step.finished", took / 1000, step="image", duration_ms=round(took + 1, 3), images=1)
        warm = [profile for profile in profiles if (user, profile) in self._warm and pick.random() < 0.97]
        left_out = ["bundles-left-out", "store-failed", "bundles-refused"]
        cold = {
            profile: pick.choice(left_out) if (user, profile) in self._warm else "nothing-published"
            for profile in profiles
            if profile not in warm
        }
        for profile in warm:
            seeded: Line = {
                "step": "seed",
                "profile": profile,
                "namespace": "1f",
                "way": "overlay",
                "scopes": [f"user-{user}"],
            }
            seeded |= {"entries": pick.randrange(3, 400), "bundles": 2, "fetched_bytes": 0, "mapped": True}
            yield event("cache.seeded", **seeded, duration_ms=pick.uniform(3, 30))
        yield event("step.finished", step="seed", duration_ms=pick.uniform(5, 60), warm=warm, cold=cold, facts=FACTS)
        took += 20 + pick.expovariate(1 / 30)
        yield event("hook.finished", took / 1000, outcome="ok", status=0, duration_ms=round(took, 3))
        yield from self._epilog(lambda name, **fields: event(name, 3600, "epilog", **fields), user, profiles)

    def _epilog(self, event: Callable[..., Line], user: str, profiles: list[str]) -> Iterator[Line]:
        pick = self._random
        yield event("hook.started", partition="gpu", account="research")
        for profile in profiles:
            was_warm = (user, profile) in self._warm
            self._warm.add((user, profile))
            new = pick.randrange(5, 300) if not was_warm or pick.random() < 0.08 else 0
            use = "built" if new else pick.choice(["hit", "hit", "unknown", "untouched"])
            harvest: Line = {"step": "harvest", "profile": profile, "namespace": "1f"}
            counts: Line = {
                "entries": new,
                "bytes": new * 60_000,
                "known": 40,
                "seeded": 40 if was_warm else 0,
                "use": use,
            }
            yield event("cache.harvested", **harvest, **counts, duration_ms=pick.uniform(5, 900))
            if new:
                yield event("bundle.published", **harvest, bundle="b", size=new * 30_000)
            if pick.random() < 0.01:
                yield event("entry.rejected", **harvest, reasons={"pickle-malformed": pick.randrange(1, 5)})
        yield event("step.finished", step="harvest", duration_ms=400.0)
        yield event("hook.finished", outcome="ok", status=0, duration_ms=round(40 + pick.expovariate(1 / 200), 3))


def lines(jobs: int, days: float = 7, first: int = 1000) -> Iterator[Line]:
    """Yield the events of so many jobs, about thirteen for each; `first` is the first job's id."""
    sample = _Sample(first)
    for number in range(jobs):
        at = START + DAY * days * (number / jobs) ** 0.8  # more jobs each day
        yield from map(shaped, sample.job(first + number, at))


def write(path: Path, jobs: int, days: float = 7, first: int = 1000) -> int:
    """Write them as a log; return the number of lines."""
    with path.open("w") as file:
        return sum(
            bool(file.write(json.dumps(line, separators=(",", ":")) + "\n")) for line in lines(jobs, days, first)
        )
