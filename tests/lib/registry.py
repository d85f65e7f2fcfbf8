"""An image registry on loopback (Debian's docker-registry, plain http) and small OCI images for it.

The registry runs unprivileged; its access log, one line for each request, is log/registry.out.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lib import config, processes
from tests.lib.accounts import lookup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CONFIG = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {data}}}
  delete: {{enabled: true}}
http: {{addr: "{url}"}}
"""
_BUSYBOX = "/bin/busybox"


class Registry:
    """Context manager: a registry with its data in `base/registry` of the cluster `base`, at an address of the host."""

    def __init__(self, base: Path, address: str = "127.0.0.1") -> None:
        self._base = base
        port = config.free_ports(1)[0]
        self.url = f"{address}:{port}"
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Registry:
        home = self._base / "registry"
        data = home / "data"
        data.mkdir(parents=True, exist_ok=True)
        account = lookup("docker-registry", home)
        shutil.chown(data, account.uid, account.gid)
        (home / "config.yml").write_text(_CONFIG.format(data=data, url=self.url))
        self._process = processes.start(
            self._base, "registry",
            ["/usr/bin/docker-registry", "serve", str(home / "config.yml")],
            account=account,
        )  # fmt: skip
        processes.wait_until("the registry", lambda: config.listening(self._port), 30)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def push(self, layout: Path, tag: str, name: str) -> str:
        """Push image `tag` of an OCI layout as `name` (`repository:tag`); returns its digest."""
        digest = layout / "pushed-digest"
        _run(
            "skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
            f"--digestfile={digest}", f"oci:{layout}:{tag}", f"docker://{self.url}/{name}",
        )  # fmt: skip
        return digest.read_text().strip()

    def requests(self, method: str, part: str) -> int:
        """Return how many requests with that method had `part` in their path, from the access log."""
        lines = (self._base / "log" / "registry.out").read_text().splitlines()
        return sum(f'"{method} ' in line and part in line.split('"')[1] for line in lines)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let the registry accept connections and answer none, during a `with` block."""
        assert self._process is not None, "the registry is not started"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the registry. Its data stays until the cluster is removed."""
        if self._process is not None:
            processes.stop(self._process)
            self._process = None


def build_image(directory: Path, files: Mapping[str, str], tag: str = "latest") -> Path:
    """Make a small OCI image of one layer in a new `directory`; returns the layout's path.

    `files` maps absolute paths in the image to their content; a static /bin/sh is always there.
    """
    root = directory / "rootfs"
    (root / "bin").mkdir(parents=True)
    shutil.copy(_BUSYBOX, root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    layout = directory / "layout"
    _run("umoci", "init", "--layout", str(layout))
    _run("umoci", "new", "--image", f"{layout}:{tag}")
    _run("umoci", "insert", "--image", f"{layout}:{tag}", str(root), "/")
    return layout


def layers(image: str) -> list[str]:
    """Return the digests of an image's layers, as its registry says."""
    host, _, rest = image.partition("/")
    repository, _, tag = rest.partition(":")
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    request = urllib.request.Request(f"http://{host}/v2/{repository}/manifests/{tag}", headers=accept)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return [layer["digest"] for layer in json.load(answer)["layers"]]


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
