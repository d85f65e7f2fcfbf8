"""A run of a job in an image, whose steps name others."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lib.runs import a_context, changed
from warmstart import view
from warmstart.host.deadline import after
from warmstart.run import state as runs
from warmstart.run.state import Caches, Seeded
from warmstart.step_image import StepImage
from warmstart.steps import workspace
from warmstart.steps.contract import Context
from warmstart.store.barrier import Barrier
from warmstart.store.client import StoreClient
from warmstart.wings.step_images import caches

FIRST, OTHER = f"sha256:{'aa' * 32}", f"sha256:{'bb' * 32}"
IMAGE = StepImage("reg.example.com/a:1", OTHER, "/store/a.sqsh")


class Run:
    """A run whose prolog is over, of a job in an image."""

    def __init__(self, root: Path, node: str = "n1", nodelist: str = "", profile: str = "numba") -> None:
        """`nodelist` are the job's nodes, if there are several; runs on them below one `root` share a store."""
        (root / "store").mkdir(exist_ok=True)
        self.context: Context = a_context(root / node)
        policy = self.context.policy
        policy = policy._replace(paths=policy.paths._replace(store=str(root / "store")))
        store = StoreClient(policy.store_user, policy.paths.store, f"{node}-0a1b2c3d")
        self.context = self.context._replace(policy=policy, store=store)
        run = changed(
            self.context.run,
            image=FIRST,
            path="/c",
            seeded={profile: Seeded("ns")},
            facts={"image": FIRST},
            publish_scope="user-1-a",
            node=node,
            nodelist=nodelist,
        )
        self.context = self.context._replace(run=run)
        self.state = self.context.paths.state
        os.makedirs(f"{self.state}/7", mode=0o700, exist_ok=True)
        runs.save(self.state, run)
        workspace.run(self.context, workspace.Options((profile,)))
        os.makedirs(self.context.paths.view, exist_ok=True)
        view.publish(self.context.paths.view, run, {"environment": "x"})

    def provide(self, image: StepImage = IMAGE) -> str:
        barrier = Barrier("", "", self.context.run.nodelist) if self.context.run.nodelist else None
        return caches.provide(self.context._replace(deadline=after(20)), image, [], barrier)

    @property
    def others(self) -> list[Caches]:
        found = runs.load(self.state, 7)
        return found.others if found else []

    @property
    def topics(self) -> list[str]:
        """What the node takes down at the run's end."""
        found = runs.load(self.state, 7)
        return found.topics if found else []

    @property
    def directories(self) -> list[str]:
        place = Path(self.context.run.directory, "caches")
        return sorted(os.listdir(place)) if place.is_dir() else []

    def shown(self, reference: str = IMAGE.reference, nodes: str = "") -> str:
        """Return what later steps on these nodes read of an image."""
        path = Path(self.context.paths.view, "7", view.caches_of(reference, nodes))
        return path.read_text() if path.exists() else ""
