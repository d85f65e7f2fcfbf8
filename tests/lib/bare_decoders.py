"""Each decoder of foreign JSON, in an interpreter that has loaded nothing else, as a hook has.

A program for `python3 -IS`: reads marshal's `(hooks, {name of a decoder: inputs}, {name of a wing's: (file, module,
function of directory and file)})` from stdin, and writes `[(name,
number of the input, names of the error's classes)]` of what decoders raise. Each decoder has a process of its own: one
that loads `json` would lend it to the next. Names are those of `tests.lib.fuzz.parsers.PARSERS`.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BUNDLE = "20260101T120000.000000Z-0123456789abcdef"


def of(module: str) -> Any:  # noqa: ANN401 - one of warmstart's
    """Import a module."""
    __import__(f"warmstart.{module}")
    return sys.modules[f"warmstart.{module}"]


def files() -> Any:  # noqa: ANN401 - an `EntryFiles`
    """Return an entry of one file."""
    return of("profiles.entry_files").EntryFiles(os.open(".", os.O_RDONLY), "e", ["e/file"])


# Those of bytes or text.
DECODERS: dict[str, Callable[[bytes], object]] = {
    "audit-line": lambda data: of("audit.line").decoded(data),
    "index": lambda data: (of("store.index")._decode(data), of("store.index")._is_other_format(data)),
    "proposal": lambda data: of("store.meeting")._read(of("seed.together").Proposal, text(data)),
    "layer-configuration": lambda data: of("images.importers.oci_layout").parse(data),
    "manifest": lambda data: of("store.manifest").decode(BUNDLE, data),
    "record": lambda data: of("record").decode("x", data),
    "registry-manifest": lambda data: of("images.importers.manifest").read(text(data), "x86_64"),
    "spool": lambda data: of("harvest.spool")._decode(data),
    "tag": lambda data: of("images.store.layout").parse_pointer(data),
    "worker-message": lambda data: received(len(data).to_bytes(4, "big") + data),
}
# Those of a file, by its path in the working directory; `fd` is its directory, open.
OF_FILES: dict[str, tuple[str, Callable[[int], object]]] = {
    "authfile": ("auth.json", lambda _: of("images.credentials").login_at("auth.json", "reg.example.com")),
    "board": ("runs/c.7.0/caches.x", lambda _: hear()),
    "compiled-policy": ("policy", lambda _: of("policy.compiled").read("policy")),
    "deferred": ("errands/harvests/0,1,0,7.0a1b2c3d", lambda _: read_left()),
    "failure": ("images/failed/key.json", lambda _: of("images.store.published").last_failure(".", "key")),
    "helion": ("e/file", lambda _: of("profiles.helion").check_best(files())),
    "image-metadata": ("image.json", lambda _: of("images.store.published").read_metadata("image.json")),
    "import-failure": ("imports/k.failed", lambda _: of("images.imports.requests").last_failure(node(), "k")),
    "json": ("e/file", lambda _: of("profiles.formats.plain").check_json(files(), "e/file")),
    "part": (f"parts/1000.c.7.0/{BUNDLE}.json", lambda _: read_parts()),
    "producer": ("images/locks/key.producer", lambda _: of("images.store.published").producer_of(".", "key")),
    "scope-size": (
        "artifacts/locks/size.user-1",
        lambda _: of("store.bundles").check_quota(".", "user-1", 1, 1 << 30),
    ),
}


def text(data: bytes) -> str:
    """Return bytes as text."""
    return data.decode("utf-8", "surrogateescape")


def hear() -> object:
    """Hear a notice of a board."""
    board = of("store.board")
    return board.hear(".", board.Topic("c.7.0", "caches", "n1", board.Whose(2001, "c", "n[1-2]")), ["x"], [])


def read_left() -> object:
    """Read a run that is to be harvested."""
    left, errand = of("harvest.deferred"), of("errand").Errand("0", 1, 0, "7.0a1b2c3d")
    return left.read(node(), left.HARVESTS, errand)


def node() -> object:
    """Return the directories of a node that is the working directory."""
    return of("paths").NodePaths(".", "")


def read_parts() -> None:
    """List a run's hand-ins and read the one."""
    parts = of("store.parts")
    run = parts.RunParts(".", "1000.c.7.0")
    parts.listing(run)
    try:
        parts.read(run, BUNDLE)
    except of("store.bundles").BundleGone:
        pass


def partial_of(module: str, function: str, path: str) -> Callable[[int], object]:
    """Return a function that has a wing's function read a file of a directory."""
    return lambda fd: getattr(of(module), function)(fd, path)


def received(data: bytes) -> object:
    """Receive a worker's answer from a pipe that ends after it."""
    reader, writer = os.pipe()
    try:
        os.write(writer, data[:60_000])
        os.close(writer)
        return of("host.worker")._receive(reader, None)
    finally:
        os.close(reader)


def decode(name: str, data: bytes) -> None:
    """Have a decoder take an input apart."""
    if name in DECODERS:
        DECODERS[name](data)
        return
    path, read = OF_FILES[name]
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, data)
    os.close(fd)
    fd = os.open(folder, os.O_RDONLY)
    try:
        read(fd)
    finally:
        os.close(fd)


def raised(name: str, inputs: list[bytes]) -> list[tuple[str, int, list[str]]]:
    """Return what a decoder raises."""
    found = []
    for number, data in enumerate(inputs):
        try:
            decode(name, data)
        except Exception as error:  # noqa: BLE001 - whatever it is
            found.append((name, number, [*(cls.__name__ for cls in type(error).__mro__), str(error)]))
    return found


def main() -> None:
    """Run them."""
    hooks, inputs, of_wings = marshal.load(sys.stdin.buffer)
    sys.path.insert(0, hooks)
    for name, (path, module, function) in of_wings.items():
        if path:
            OF_FILES[name] = path, partial_of(module, function, path)
        else:
            DECODERS[name] = getattr(of(module), function)
    results = []
    for name in inputs:
        reader, writer = os.pipe()
        if not (child := os.fork()):
            with open(writer, "wb") as file:
                marshal.dump(raised(name, inputs[name]), file)
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            results += marshal.load(file)
        os.waitpid(child, 0)
    marshal.dump(results, sys.stdout.buffer)


if __name__ == "__main__":
    main()
