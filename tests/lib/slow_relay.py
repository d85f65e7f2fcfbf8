"""A relay in front of a registry that passes on only so many bytes per second, over all connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer

CHUNK = 1 << 16


class _Relay(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def slowed(upstream: str, rate: int) -> Iterator[str]:
    """Yield HOST:PORT of a relay to `upstream` (HOST:PORT) that sends its clients `rate` bytes per second."""
    host, _, port = upstream.partition(":")
    turn = threading.Lock()

    def pay(count: int) -> None:
        with turn:
            time.sleep(count / rate)

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as server:
                sending = threading.Thread(target=_pass_on, args=(self.request, server, lambda _: None), daemon=True)
                sending.start()
                _pass_on(server, self.request, pay)

    with _Relay(("127.0.0.1", 0), Handler) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{relay.server_address[1]}"
        finally:
            relay.shutdown()


def _pass_on(source: socket.socket, target: socket.socket, pay: Callable[[int], None]) -> None:
    with suppress(OSError):  # one end was killed
        while data := source.recv(CHUNK):
            pay(len(data))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
