"""`warmstart images unpacked` and `unpack`: images that lie unpacked on the nodes of this host."""

from __future__ import annotations

from collections.abc import Iterator

import click

from warmstart.cli.image_store import NOT_DONE, ImageStore, changed, opened
from warmstart.cli.output import UNUSABLE, Column, json_option, rfc3339, say, show_rows, size, warn
from warmstart.host.deadline import Deadline, after
from warmstart.images import unpacking, unpacks
from warmstart.images.unpacked import ImageKey, shelf_of
from warmstart.images.unpacks import UNPACKS, UnpackRequest
from warmstart.paths import Installation, NodePaths
from warmstart.policy.units import parse_duration
from warmstart.queue import Asker, Queue
from warmstart.session import require_root

COLUMNS = (
    Column("reference"),
    Column("node"),
    Column("state"),
    Column("bytes", size),
    Column("last_use", rfc3339),
    Column("jobs"),
    Column("user"),
    Column("private"),
    Column("reason"),
)
ADMINISTRATOR = Asker(0, 0, "root", "")


@click.command()
@json_option
@click.pass_obj
def unpacked(installation: Installation, /, as_json: bool) -> None:
    """List the images that lie unpacked on this host, least recently used first, and those that wait for it. For root.

    `state` is `in use` if a run has it, `unpacked`, `waiting`, or `failed`, with the reason. `user` is whose job asked
    first.

    Exit status: 0 listed; 2 wrong usage, or the policy or the disk cannot be read.
    """
    with opened(installation) as store:
        require_root("images unpacked")
        rows = [row for paths in _nodes(installation) for row in _rows(store, paths)]
    show_rows(COLUMNS, rows, as_json=as_json)


def _rows(store: ImageStore, paths: NodePaths) -> Iterator[dict[str, object]]:
    node, queue = paths.node, Queue(paths, UNPACKS)
    for tree in unpacking.on_node(store.policy, paths):
        state = "in use" if tree.jobs else "unpacked"
        yield {
            **tree.about._asdict(), "node": node, "name": tree.name, "state": state, "last_use": tree.used,
            "jobs": " ".join(map(str, tree.jobs)), "reason": "",
        }  # fmt: skip
    for item in queue.all():
        if request := queue.read(item, UnpackRequest):
            yield {
                "reference": request.reference, "node": node, "state": "failed" if request.problem else "waiting",
                "bytes": "", "last_use": "", "jobs": request.job.job_id or "", "user": request.job.user,
                "private": request.private, "reason": request.problem, "name": item.key, "image": request.image,
                "files": "", "uid": request.job.uid, "made": "",
            }  # fmt: skip


def _deadline(_context: click.Context, _param: click.Parameter, value: str) -> Deadline:
    try:
        return after(parse_duration(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("image")
@click.option(
    "--within", metavar="TIME", default="1h", show_default=True, callback=_deadline, help="How long to wait for it."
)
@click.pass_obj
def unpack(installation: Installation, image: str, within: Deadline) -> None:
    """Have an image of the store unpacked on this host's nodes, and wait until it is. For root.

    It goes on when the wait is over. One that has failed is tried again.

    Exit status: 0 it is there; 1 it is not, or there is no such image; 2 wrong usage.
    """
    problems = []
    with changed(installation) as store:
        entry = store.find(image)
        key, reference = ImageKey(entry.name, entry.private), entry.reference or entry.name
        nodes = _nodes(installation)
        for paths in nodes:
            queue = Queue(paths, UNPACKS)
            if (item := queue.find(key.tree)) and (known := queue.read(item, UnpackRequest)) and known.problem:
                queue.drop(key.tree)
        asked = {paths: unpacks.ask(store.policy, paths, reference, key, ADMINISTRATOR) for paths in nodes}
        for paths, problem in asked.items():
            node = paths.node
            if why := problem or unpacks.wait(shelf_of(store.policy, node), paths, key, within):
                problems.append(f"{node}: {why}")
    for text in problems:
        warn(text)
    if problems or not nodes:
        raise click.exceptions.Exit(NOT_DONE if nodes else UNUSABLE)
    say(f"{reference}: unpacked")


def _nodes(installation: Installation) -> list[NodePaths]:
    return [installation.node(node) for node in installation.nodes()]
