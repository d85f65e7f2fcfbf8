"""A registry in this process that counts what it sends, and stops in the middle of a download on demand."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CHUNK = 1 << 14
GOARCH = {"x86_64": "amd64", "aarch64": "arm64"}


class LayerRegistry:
    """Images in memory, served over plain http on loopback."""

    def __init__(self) -> None:
        self.url = ""  # HOST:PORT
        self.sent = 0  # bytes of blobs
        self._content: dict[str, tuple[str, bytes]] = {}
        self._left = float("inf")
        self._free = threading.Condition()

    def add(self, content: bytes, kind: str = LAYER) -> str:
        """Serve these bytes; return their digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._content[digest] = (kind, content)
        return digest

    def add_image(
        self,
        layers: Sequence[bytes],
        tag: str,
        sizes: Mapping[str, int] | None = None,
        architecture: str = GOARCH[os.uname().machine],
        **more: object,
    ) -> str:
        """Serve an image; return its digest. `sizes` are lies about layers, by digest; `more` is said of each."""
        digests = [self.add(layer) for layer in layers]
        unpacked = [f"sha256:{hashlib.sha256(gzip.decompress(layer)).hexdigest()}" for layer in layers]
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Labels": {"tag": tag}},
            "rootfs": {"type": "layers", "diff_ids": unpacked},
        }
        data = json.dumps(config).encode()
        sizes = {digest: len(layer) for digest, layer in zip(digests, layers, strict=True)} | dict(sizes or {})
        manifest = {
            "schemaVersion": 2,
            "config": {"mediaType": CONFIG, "digest": self.add(data, CONFIG), "size": len(data)},
            "layers": [{"mediaType": LAYER, "digest": digest, "size": sizes[digest], **more} for digest in digests],
        }
        return self.add(json.dumps(manifest).encode(), MANIFEST)

    def add_layout(self, layout: Path) -> str:
        """Serve the only image of an OCI layout; return its digest."""
        (image,) = json.loads((layout / "index.json").read_text())["manifests"]
        for blob in (layout / "blobs" / "sha256").iterdir():
            self.add(blob.read_bytes(), MANIFEST if blob.name in image["digest"] else LAYER)
        return str(image["digest"])

    def stop_after(self, size: int) -> None:
        """Hold all downloads back once `size` bytes of blobs were sent from now on, until `resume`."""
        with self._free:
            self._left = size

    def resume(self) -> None:
        with self._free:
            self._left = float("inf")
            self._free.notify_all()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return type and content for the path of a request."""
        if path == "/v2/":
            return "application/json", b"{}"
        name = path.rpartition("/")[2]
        return self._content.get(name)

    def may_send(self, size: int) -> None:
        """Wait until that many bytes may be sent."""
        with self._free:
            while self._left < size:
                self._free.wait()
            self._left -= size
            self.sent += size


@contextmanager
def serving() -> Iterator[LayerRegistry]:
    registry = LayerRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = registry.answer(self.path)
            kind, content = found or ("application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if "/blobs/" not in self.path:
                self.wfile.write(content)
                return
            try:
                for start in range(0, len(content), CHUNK):
                    chunk = content[start : start + CHUNK]
                    registry.may_send(len(chunk))
                    self.wfile.write(chunk)
            except OSError:  # the client was killed
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield registry
    finally:
        registry.resume()
        server.shutdown()
        server.server_close()


def layer(name: str, size: int) -> bytes:
    """Return a layer with one file of that many bytes, which do not compress."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = size
        member.mode = 0o644
        tar.addfile(member, io.BytesIO(os.urandom(size)))
    return gzip.compress(packed.getvalue(), 1)
