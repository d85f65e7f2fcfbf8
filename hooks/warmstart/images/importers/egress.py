"""The one way out that an import's programs have (threats, row 11).

They run in a network namespace in which there is nothing but this: a proxy's socket, and for a registry on this
node's own loopback that address. A process outside of it, as the import account, accepts there and connects for
them, to where an import may go. So a redirect to 127.0.0.1 meets an empty loopback, and one to another place a
proxy that says no; no name is looked up twice. It lives and dies with one program.
"""

from __future__ import annotations

import ipaddress
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.host.identity import Identity, close_others, detach, surrender
from warmstart.host.netns import Enclosure, enclosure
from warmstart.images.importers.destinations import Destinations, split

PROXY = ("127.0.0.1", 3128)
LONGEST = 4096


class EgressUnusable(ResourceError):
    """This node gives an import no network of its own."""

    code = "import-no-egress"
    template = "no network namespace for an import on this node: {problem}"
    hint = "does root have CAP_SYS_ADMIN where slurmd runs? user.max_net_namespaces, file-max, memory?"


class Egress(NamedTuple):
    """The network namespace's descriptor, the variables that lead out of it, and what tells of refusals."""

    namespace: int
    environment: dict[str, str]
    told: int

    def refused(self) -> str:
        """Return what was refused so far, in words; "" if nothing was."""
        try:
            return os.read(self.told, LONGEST).decode("ascii", "replace").partition("\n")[0]
        except BlockingIOError:
            return ""


@contextmanager
def opened(identity: Identity, destinations: Destinations) -> Iterator[Egress]:
    """Give a way out to these destinations; `identity` is whom the process that connects runs as."""
    relayed = _relayed(destinations.registry)
    with ExitStack() as stack:
        try:
            made = stack.enter_context(enclosure([PROXY, *relayed]))
            told, telling = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, told)
            stack.callback(os.close, telling)
            parent, pid = os.getpid(), os.fork()
        except OSError as error:
            raise EgressUnusable(problem=error.strerror) from error
        if not pid:
            try:  # nothing may escape into the hook's own code
                _give_up_root(identity, {telling, *(one.fileno() for one in made.sockets)}, parent)
                _serve(made, relayed, destinations, telling)
            finally:
                os._exit(0)
        stack.callback(_end, pid)
        for listening in made.sockets:  # where nobody serves them any more, nobody shall wait
            listening.close()
        yield Egress(made.fd, _environment(), told)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _serve(made: Enclosure, relayed: Sequence[tuple[str, int]], destinations: Destinations, telling: int) -> None:
    """Be the process outside, for as long as the hook wants it."""
    from warmstart.images.importers import proxy

    def tell(sentence: str) -> None:
        os.write(telling, f"{ascii(sentence[:500])[1:-1]}\n".encode())

    proxy.serve(made.sockets[0], list(zip(made.sockets[1:], relayed, strict=True)), destinations, tell)


def _give_up_root(identity: Identity, keep: set[int], parent: int) -> None:
    detach()
    close_others({0, 1, 2, *keep})
    surrender(identity)
    if os.getppid() != parent:
        os._exit(0)  # it died before its death could be announced to us


def _relayed(registry: str) -> list[tuple[str, int]]:
    """Return the address of a registry on loopback: Go asks no proxy for those."""
    try:
        host, port = split(registry, 443)
        address = "127.0.0.1" if host == "localhost" else host
        is_here = ipaddress.ip_address(address).is_loopback
    except ValueError:
        return []
    return [(address, port)] if is_here and (address, port) != PROXY else []


def _environment() -> dict[str, str]:
    proxy = f"http://{PROXY[0]}:{PROXY[1]}"
    # The last one keeps /etc/enroot/enroot.conf from naming hosts that are not asked for through it.
    return {"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": "none.invalid"}
