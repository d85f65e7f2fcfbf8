"""Models with the real pyxis and enroot, for tools.real."""

from __future__ import annotations

import os

from tests.lib.accounts import ALICE
from tests.lib.registry import Registry
from tests.lib.site import Site
from tests.slurm.wings.models.test_models import SIZE, make_snapshot, shared
from tools.real.claims import check

IMAGES: tuple[str, ...] = ()


def run(site: Site, registry: Registry) -> None:
    """Check that containers have the copies of a model, where the user mounts the directory or the hook does."""
    from tools.real.__main__ import plugged, srun  # which imports this module

    image = f"{registry.url}/team/public:1"
    for way in ("enroot", "spank"):
        with shared(site, f"model.{way}", way) as (target, source), plugged(site):
            if way == "enroot":
                plugstack = site.cluster.base / "etc/plugstack.conf"
                plugstack.write_text(plugstack.read_text().splitlines()[0])  # pyxis alone
            snapshot = target / "hub" / make_snapshot(site, source / "hub", os.urandom(SIZE))
            asks = f"--comment=warmstart: model={snapshot}"
            blobs = snapshot.parent.parent / "blobs"
            look = f'grep " {blobs}/" /proc/self/mountinfo; test -w {snapshot}/model.safetensors || echo read-only'
            for _ in range(2):
                srun(site, ALICE, image, look, asks)
                site.wait_imports()
            for options in ([], [f"--container-mounts={target}:{target}"]):
                text = srun(site, ALICE, image, look, asks, *options)
                check(f"the copies of a model ({way}, {options})", seen="read-only" in text and " ro," in text)
