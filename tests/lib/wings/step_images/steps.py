"""The nodes' sockets for steps, and steps that ask there, in a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lib import processes
from tests.lib.processes import wait_until
from tests.lib.site import Site
from warmstart.paths import Installation
from warmstart.wings.step_images import place


def socket_of(site: Site, node: str = "") -> Path:
    """Return where a node has its socket, and this process that of n1; or where this process has a node's."""
    path = Path(place.socket_of(Installation(str(site.cluster.prefix))))
    return path.parent / node / path.name


@contextmanager
def served(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """Serve each node's socket, as a site's init does where there is no systemd; yield the server of n1."""
    program = place.program_of(Installation(str(site.cluster.prefix)))
    paths = {node: socket_of(site, node) for node in site.cluster.nodes}
    socket_of(site).symlink_to(paths["n1"])
    servers = dict[str, subprocess.Popen[bytes]]()
    with ExitStack() as stack, (site.cluster.base / "log" / "step-images.out").open("ab") as log:
        stack.callback(socket_of(site).unlink)
        for node, path in paths.items():
            argv = [*site.cluster.enter(node), program]
            servers[node] = subprocess.Popen(
                argv, env=dict(site.cluster.environment), stdin=subprocess.DEVNULL, stderr=log
            )
            stack.callback(path.unlink, missing_ok=True)
            stack.callback(servers[node].wait)
            stack.callback(servers[node].terminate)
        for node, path in paths.items():
            wait_until(f"the socket of {node}", path.is_socket, 30)
        yield servers["n1"]


def answering(site: Site) -> list[int]:
    """Return the pids of the answers to steps that ask."""
    program = place.program_of(Installation(str(site.cluster.prefix))).encode()
    parents = processes.parents()
    found = {pid for pid in parents if {program, b"answer"} <= set(processes.arguments(pid))}
    return [pid for pid in found if parents[pid] not in found]


def importer(site: Site) -> Path:
    return site.cluster.prefix / "libexec" / "warmstart" / "pyxis-importer"


def naming(site: Site, image: str, *options: str, then: str = "") -> str:
    """Return a batch script with a step that names an image as pyxis's importer is told it, and prints the path."""
    words = " ".join(options)
    return f"#!/bin/sh\nsrun {words} sh -c 'path=$({importer(site)} get docker://{image}) && echo $path {then}'\n"
