"""The node's socket for steps, and steps that ask there, in a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import processes
from tests.cluster.processes import wait_until
from tests.cluster.site import Site
from warmstart.paths import Installation
from warmstart.wings.step_images import place


def socket_of(site: Site) -> Path:
    """Return where the socket of a site is."""
    return Path(place.socket_of(Installation(str(site.cluster.prefix))))


@contextmanager
def served(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """Serve the socket, as a site's init does where there is no systemd."""
    program = place.program_of(Installation(str(site.cluster.prefix)))
    path = socket_of(site)
    path.unlink(missing_ok=True)
    with (site.cluster.base / "log" / "step-images.out").open("ab") as log:
        server = subprocess.Popen([program], env=dict(site.cluster.environment), stdin=subprocess.DEVNULL, stderr=log)
    try:
        wait_until("the socket", path.is_socket, 30)
        yield server
    finally:
        server.terminate()
        server.wait()
        path.unlink(missing_ok=True)


def answering(site: Site) -> list[int]:
    """Return the pids of the answers to steps that ask."""
    program = place.program_of(Installation(str(site.cluster.prefix))).encode()
    parents = processes.parents()
    found = {pid for pid in parents if {program, b"answer"} <= set(processes.arguments(pid))}
    return [pid for pid in found if parents[pid] not in found]


def importer(site: Site) -> Path:
    """Return pyxis's importer."""
    return site.cluster.prefix / "libexec" / "warmstart" / "pyxis-importer"


def naming(site: Site, image: str, *options: str, then: str = "") -> str:
    """Return a batch script with a step that names an image as pyxis's importer is told it, and prints the path."""
    words = " ".join(options)
    return f"#!/bin/sh\nsrun {words} sh -c 'path=$({importer(site)} get docker://{image}) && echo $path {then}'\n"
