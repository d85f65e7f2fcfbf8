"""A way out for an importer whose programs are stand-ins: nothing goes out, so our own network does, and no root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from warmstart.host import netns
from warmstart.host.identity import Identity
from warmstart.images.importers.egress import Destinations, Egress


@contextmanager
def opened(identity: Identity, destinations: Destinations) -> Iterator[Egress]:
    """Stand in for `egress.opened`: our own namespace, and nothing was refused."""
    namespace = os.open(netns.OWN, os.O_RDONLY | os.O_CLOEXEC)
    refusals, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "no_proxy"), "http://127.0.0.1:9")
        yield Egress(namespace, proxies, refusals)
    finally:
        for fd in (namespace, refusals, report):
            os.close(fd)
