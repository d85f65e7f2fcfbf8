"""Run steps in containers of the real pyxis and enroot, on nodes that are pods, and print what they see.

    python -m tests.lib.wings.step_images.real_pods

Runs as `tools.real` does (CONTRIBUTING.md), in a root of Debian sid that has supervisor and iproute2, too. First the
pods are Slinky's, then soperator's, where jobs have another root than slurmd (docs/guides/kubernetes.md).
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lib import spank
from tests.lib.accounts import ALICE
from tests.lib.pods import PodCluster
from tests.lib.processes import wait_until
from tests.lib.registry import Registry
from tests.lib.shell_profiles import profiles
from tests.lib.site import Site
from tools.real.__main__ import PYXIS, kept, push, set_up_enroot
from tools.real.claims import Failed, check

LOADED = Path("/usr/share/pyxis/pyxis.conf")
RULES = f"{profiles(pod='*.bin')}rules: [{{name: all, profiles: [pod]}}]\n"
STEP = "srun --container-image={} --no-container-mount-home sh -c 'cat /etc/motd; cd $POD_CACHE && echo *; >made.bin'\n"


def restart(cluster: PodCluster) -> None:
    """Start each pod anew, over the root as it is now."""
    for node in cluster.nodes:
        cluster.kill_slurmd(node)
        cluster.start_slurmd(node)
    wait_until("the socket", lambda: all(cluster.inside(node, "step-images") for node in cluster.nodes), 60)
    wait_until("the nodes", lambda: {node.state for node in cluster.node_states().values()} == {"idle"}, 90)


def run(cluster: PodCluster, registry: Registry) -> None:
    """Run two steps in one image, in a pod and then in another. Raises `Failed`."""
    site = Site(cluster, registry.url)
    site.write_policy(RULES, constant="enroot")
    image = f"{registry.url}/team/step:1"
    push(cluster.base / "step", image)
    set_up_enroot(site, "none.invalid")
    importer = cluster.prefix / "libexec/warmstart/pyxis-importer"
    LOADED.write_text(f"required {PYXIS} importer={importer}\n")
    with spank.loaded(site):
        restart(cluster)
        for node, shown in (("n1", ["*", "made.bin"]), ("n2", ["made.bin"] * 2)):
            script = f"#!/bin/sh\n{STEP.format(image) * 2}"
            ended = site.finish(cluster.submit(script, ALICE, f"--nodelist={node}"))
            sys.stdout.write(f"\n{node}\n{ended.output}")
            lines = [line for line in ended.output.splitlines() if not line.startswith("pyxis:")]
            check(f"{node}: the image, and {' then '.join(shown)}", seen=lines == ["step", shown[0], "step", shown[1]])
            site.wait_imports()
        check("one import", seen=sum(event["event"] == "image.imported" for event in site.audit()) == 1)
        check("no node is drained", seen=cluster.drained() == [])


def main() -> int:
    for jail in (False, True):
        sys.stdout.write(f"\nsteps in {'a jail' if jail else 'pods'}\n")
        cluster = PodCluster(jail=jail)
        with kept(LOADED), cluster, Registry(cluster.base, cluster.address) as registry:
            try:
                run(cluster, registry)
            except Failed:
                cluster.keep_logs()
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
