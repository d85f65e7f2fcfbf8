"""Trees with the real pyxis and enroot, for tools.real."""

from __future__ import annotations

from tests.lib.accounts import ALICE
from tests.lib.registry import Registry
from tests.lib.site import Site
from tests.slurm.wings.trees.test_trees import make_environment, shared
from tools.real.claims import check

IMAGES: tuple[str, ...] = ()


def run(site: Site, registry: Registry) -> None:
    """Check that containers have the packed copy of a tree, also where the user mounts a directory above it."""
    from tools.real.__main__ import plugged, srun  # which imports this module

    image = f"{registry.url}/team/public:1"
    for way in ("enroot", "spank"):
        with shared(site, f"tree.{way}", way) as (target, source), plugged(site):
            if way == "enroot":
                plugstack = site.cluster.base / "etc/plugstack.conf"
                plugstack.write_text(plugstack.read_text().splitlines()[0])  # pyxis alone
            make_environment(site, source / "env")
            asks = f"--comment=warmstart: tree={target}/env"
            look = f'ls {target}/env; grep " {target}/env " /proc/self/mountinfo'
            srun(site, ALICE, image, look, asks)
            site.wait_imports()
            for options in ([], [f"--container-mounts={target}:{target}"]):
                text = srun(site, ALICE, image, look, asks, *options)
                check(f"the packed copy of a tree, read-only ({way})", seen="squashfs" in text and " ro," in text)
