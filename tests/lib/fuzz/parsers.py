"""Every parser of foreign bytes, with samples of what it is made for and the errors by which it may refuse others.

Foreign is what another account, program or machine wrote: a job, a registry, Slurm, another node; and what only root or
the store's owner wrote, where a disk may have damaged it. tests/unit/test_foreign_bytes.py holds the list complete.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from hypothesis.strategies import SearchStrategy

from tests.lib import cache_files, image_configs
from tests.lib.bundles import draft, namespace
from tests.lib.fuzz import layers
from tests.lib.numba_entries import numba_entry
from tests.lib.policy_site import defaults
from tests.lib.runs import a_job, a_run
from tests.lib.superblocks import image
from warmstart import request, wing
from warmstart.audit import line
from warmstart.caches.store import bundles, ending, listing, quota
from warmstart.caches.store.layout import Damaged, Namespace, sealed, unsealed
from warmstart.caches.store.listing import Listing, Row
from warmstart.caches.store.look import Generation
from warmstart.caches.store.merge import Change
from warmstart.doctor import installed, slurm_files
from warmstart.ending import waiting
from warmstart.ending.waiting import ENDINGS
from warmstart.errors import WarmstartError
from warmstart.host import wire, worker
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import ROOT
from warmstart.images import credentials, reference, squashfs
from warmstart.images.importers import image_config, layer_reader, manifest
from warmstart.images.imports import requests
from warmstart.images.store import layout, published
from warmstart.job import from_environment
from warmstart.maintenance import metrics
from warmstart.paths import NodePaths
from warmstart.policy import keys, load, units
from warmstart.policy.document import Document
from warmstart.profiles import elf, facts, judge, naming
from warmstart.profiles import registry as profiles
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import FORMATS
from warmstart.queue import Item, Queue
from warmstart.run import state as record
from warmstart.seed import vote
from warmstart.slurm import commands, nodes
from warmstart.store.barrier import Barrier
from warmstart.store.client import StoreClient

SHA256 = "ab" * 32
_TOP = tempfile.TemporaryDirectory(prefix="warmstart-fuzz-")
STAGE = Path(_TOP.name)
LONGEST_S = 5  # for one input


class Parser(NamedTuple):
    """One parser."""

    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]  # what it may raise for what it does not take
    covers: tuple[str, ...]  # the functions that it consists of: module:function
    samples: tuple[bytes, ...]  # what it takes, and is changed at random
    made: SearchStrategy[bytes] | None = None  # inputs that are wrong in ways of their own


def check(parser: Parser, data: bytes) -> None:
    """Parse the input, within a time. Raises what the parser raises but must not."""

    def too_slow(*_: object) -> None:
        raise TimeoutError(f"longer than {LONGEST_S} s")

    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(LONGEST_S)
    try:
        parser.parse(data)
    except parser.refusals:
        pass
    finally:
        signal.alarm(0)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return a parser of text that gets bytes as `surrogateescape` decodes them."""
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def _file(parse: Callable[[str], object], name: str = "file") -> Callable[[bytes], object]:
    """Return a parser of the file at a path."""
    path = STAGE / name
    path.parent.mkdir(parents=True, exist_ok=True)

    def of_bytes(data: bytes) -> object:
        path.write_bytes(data)
        path.chmod(0o600)
        return parse(str(path))

    return of_bytes


def in_directory(parse: Callable[[int], object], name: str) -> Callable[[bytes], object]:
    """Return a parser of a file by its directory's descriptor."""

    def of_path(path: str) -> object:
        with opened_dir(os.path.dirname(path)) as fd:
            return parse(fd)

    return _file(of_path, name)


def _format(kind: str, *samples: bytes, covers: tuple[str, ...] = ()) -> Parser:
    """Return a check of one file of an entry."""

    def of_path(path: str) -> object:
        with opened_dir(str(STAGE / "stage")) as stage:
            return FORMATS[kind](EntryFiles(stage, "e", ["e/file"]), "e/file")

    covered = tuple(f"profiles/formats.py:{function}" for function in covers)
    if kind in elf.KINDS:
        covered = ("profiles/elf.py:_check", "profiles/elf.py:_check_sections", "profiles/elf.py:_check_segments")
    return Parser(_file(of_path, "stage/e/file"), (EntryInvalid,), covered, samples)


def _profile(name: str, files: Mapping[str, bytes]) -> Parser:
    """Return a profile's validator of entries; one file of a good entry is changed at a time."""
    profile = profiles.get(name)
    names = sorted(files)

    def validate(data: bytes) -> None:
        changed = names[data[0] % len(names)] if data else names[0]
        for file in names:
            path = STAGE / "entries" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[1:] if file == changed else files[file])
            os.utime(path, (1, 1))
        named = naming.find(profile, names[0])
        assert named is not None
        with opened_dir(str(STAGE / "entries" / name)) as stage:
            judge.validate(profile, named.needed, EntryFiles(stage, named.entry, names))

    samples = tuple(bytes([number]) + files[file] for number, file in enumerate(names))
    return Parser(validate, (EntryInvalid,), (f"profiles/{name}.py:check",), samples)


def _job(data: bytes) -> object:
    """Parse a hook's environment: each line is a variable."""
    lines = data.decode("utf-8", "surrogateescape").splitlines()
    return from_environment(dict(entry.split("=", 1) for entry in lines if "=" in entry))


def _answer(data: bytes) -> object:
    """Decode what a worker's process answers; errors that it tells are raised."""
    return wire.decode(dict[str, list[int]], worker._unpack(wire.parse(data)))


def _message(data: bytes) -> object:
    """Receive a worker's answer from a pipe that ends after it."""
    reader, writer = os.pipe()
    try:
        os.write(writer, data[:60_000])
        os.close(writer)
        return worker._receive(reader, after(5))
    finally:
        os.close(reader)


def _store_file(folder: str, read: Callable[[str], object]) -> Callable[[bytes], object]:
    return _file(lambda _path: read(str(STAGE / "store")), f"store/{folder}")


_PROPOSAL = vote.Proposal({"alpha": vote.Proposed("f" * 32, {"cpu": "x"}, {"site": Generation(7, "0" * 64)})})


class _Told(NamedTuple):
    """A worker that hears one text."""

    text: str

    def run(self, *_: object) -> str:
        """Hear it."""
        return self.text


def _proposal(text: str) -> object:
    store = StoreClient(ROOT, "/s", "n1")
    store.worker = cast(worker.Worker, _Told(text))
    return Barrier("c.7.0", "caches", "n[1-2]").hear(store, "proposal", vote.Proposal, after(5))


def _listing(data: bytes) -> None:
    """Decode a listing as it is stored, and one whose seals are right."""
    head, _, names = data.partition(b"\n")
    for text in (data, sealed(head) + b"\n" + names):
        for named in (False, True):
            with suppress(Damaged):
                listing.decode(text, "here", named=named)


def _count(store: str) -> None:
    quota.add(store, "user-1", 1, 1 << 30)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


_UNITS = (units.parse_duration, units.parse_size, units.parse_percent, units.parse_ports)
_SHARED = cache_files.shared()[:60_000]


def _refusable(parse: Callable[[str], object], text: str) -> object:
    with suppress(ValueError):
        return parse(text)
    return None


def _left(path: str) -> object:
    """Read a run that is to be harvested."""
    root, _, name = path.partition("/queue/endings/")
    return waiting.read(Queue(NodePaths(root, root, ""), ENDINGS), Item("0", 1, 0, name.rpartition(",")[2]))


_REFUSED = (WarmstartError,)
_FILE = Path(__file__).parents[3] / "policies/site.yaml"
_LISTING = listing.encode(
    Listing(7, "", "c" * 64, [Row(SHA256, 4096, 1, "a", 1, 7, 0)], ["m/g"], [], names=[["m/f"]], lost=[["n"]])
)[1]
_HANDED = ending.Handed("site", "numba", "ns", True, Change(Row(SHA256, 1, 1, "a", 1, 7, 0), ["a"]))
_REQUEST = requests.ImportRequest("reg/a:1", "x86_64.oci1", "", "a", 1, "c", 7, 1.0)
_PRODUCER = {"host": "n1", "job": 7, "since": "now", "phase": "fetching", "done": 1}
_FAILURE = {"code": "image-not-found", "fields": {"image": "reg/a:1"}, "at": 1.5, "uid": 1}
_LAYERS = {"layers": [{"digest": f"sha256:{SHA256}", "size": 9}]}
_PLATFORMS = {"manifests": [{"digest": f"sha256:{SHA256}", "platform": {"os": "linux", "architecture": "amd64"}}]}
_NUMBA = numba_entry(1)[1]
_TRITON = cache_files.triton_kernel("3.9")
_PICKLE = pickle.dumps({"a": [1, 2.5, None, True, b"x" * 300], "b": ("c", frozenset({1}))}, -1)
_ENVIRONMENT = b"SLURM_JOB_ID=7\nSLURM_JOB_UID=1000\nSLURM_JOB_GID=1000\nSLURM_JOB_USER=a\nSLURMD_NODENAME=n1\n"
_STEM = f"images/published-{SHA256}"

PARSERS: dict[str, Parser] = {
    "compressed": _format(
        "compressed",
        cache_files.ZSTD,
        zlib.compress(cache_files.CONTENT),
        covers=("_inflate", "_walk_frame"),
    ),
    "cubin": _format("cubin", cache_files.cubin()),
    "elf": _format("object", cache_files.relocatable(b"\x90" * 64, [b"f"], [b"g"])),
    "json": _format("json", b'{"a": [1, 2]}', covers=("read_json",)),
    "pickle": _format("pickle", _PICKLE, pickle.dumps(("stamp", {("array",): "a.nbc"}), 4)),
    "amd-topology": Parser(
        _file(lambda path: facts.gpu("/none", path.removesuffix("/0/properties")), "kfd/0/properties"),
        (facts.FactUnreadable,),
        ("profiles/facts.py:_gfx",),
        (b"cpu_cores_count 0\ngfx_target_version 90402\n",),
    ),
    "audit-line": Parser(line.decoded, (), ("audit/line.py:decoded",), (b'{"event": "hook.started", "ts": 1}',)),
    "authfile": Parser(
        _file(lambda path: credentials.login_at(path, "reg.example.com")),
        _REFUSED,
        ("images/credentials.py:_read", "images/credentials.py:_login"),
        (_json({"auths": {"reg.example.com": {"auth": "YTpi"}}}),),
    ),
    "compiled-policy": Parser(_file(keys.read), (), ("policy/keys.py:read_own_json",), (keys.encode(defaults()),)),
    "cpu": Parser(
        _file(facts.cpu),
        (facts.FactUnreadable,),
        ("profiles/facts.py:cpu",),
        (b"vendor_id\t: x\nmodel name\t: y\nflags\t: avx2\n",),
    ),
    "waiting": Parser(
        _file(_left, "queue/endings/0,1,0,7.0a1b2c3d"),
        (),
        ("queue.py:Queue.read",),
        (_json({"since": 1.5, "is_done": False, "run": record.encode(a_run()).decode()}),),
    ),
    "driver": Parser(
        _file(lambda path: facts.driver(os.path.dirname(path)), "nvidia/version"),
        (),
        ("profiles/facts.py:driver",),
        (b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05\n",),
    ),
    "environment": Parser(_job, _REFUSED, ("job.py:from_environment",), (_ENVIRONMENT,)),
    "failure": Parser(
        _store_file("images/failed/key.json", lambda store: published.last_failure(store, "key")),
        (),
        ("images/store/published.py:last_failure",),
        (_json(_FAILURE),),
    ),
    "gpu": Parser(
        _file(lambda path: facts.gpu(path.removesuffix("/gpus/0/information")), "nvidia/gpus/0/information"),
        (),
        ("profiles/facts.py:gpu",),
        (b"Model: \t NVIDIA H100\nIRQ: 7\n",),
    ),
    "host-list": Parser(_text(nodes.expand), (ValueError,), ("slurm/nodes.py:expand",), (b"n[1-4,7],m[01-03]-x",)),
    "image": Parser(
        lambda data: squashfs.parse(data, 4096), _REFUSED, ("images/squashfs.py:parse",), (image(), image()[:96])
    ),
    "facts": Parser(
        _store_file("caches/user-1/numba/ns/facts", lambda store: bundles.facts(namespace(Path(store)))),
        _REFUSED,
        ("caches/store/bundles.py:facts",),
        (_json({"cpu": "x"}),),
    ),
    "handed-in": Parser(ending._decoded, (ValueError,), ("caches/store/ending.py:_decoded",), (_json(_HANDED),)),
    "image-metadata": Parser(
        _file(published.read_metadata),
        (),
        ("images/store/published.py:read_metadata",),
        (_json({"sha256": SHA256, "size": 9}),),
    ),
    "image-reference": Parser(
        _text(reference.parse),
        _REFUSED,
        ("images/reference.py:parse",),
        (b"docker://reg.example.com:5000/a/b:1", f"reg.example.com#a@sha256:{SHA256}".encode()),
    ),
    "import-failure": Parser(
        _file(lambda _: requests.last_failure(NodePaths(str(STAGE), str(STAGE), ""), "0"), "imports/0.failed"),
        (),
        ("images/imports/requests.py:last_failure",),
        (_json(_FAILURE),),
    ),
    "import-request": Parser(
        _file(lambda _: requests.waiting(NodePaths(str(STAGE), str(STAGE), "")), "queue/imports/1,1,0,0"),
        (),
        ("images/imports/requests.py:waiting",),
        (_json(_REQUEST._asdict()),),
    ),
    "layer-configuration": Parser(
        partial(image_config.additions, mount_point="/var/cache/w"),
        (layer_reader.InvalidImage,),
        ("images/importers/oci_layout.py:parse",),
        (_json(_LAYERS), _json({"config": image_configs.CASES["gpu"].config | {"Volumes": {"/data": {}}}})),
    ),
    "layers": Parser(
        layers.flattened(STAGE / "layers"),
        (layer_reader.InvalidImage, layer_reader.BoundsExceeded),
        ("images/importers/layer_reader.py:_number", "images/importers/layer_reader.py:_gunzip"),
        layers.samples(),
        layers.images(),
    ),
    "list-of-files": Parser(
        bundles._decoded,
        (Damaged,),
        ("caches/store/bundles.py:_decoded",),
        (unsealed(bundles._encoded(draft("m/f").entries)),),
    ),
    "listing": Parser(
        _listing, _REFUSED, ("caches/store/listing.py:decode",), (_LISTING, _LISTING.partition(b"\n")[2])
    ),
    "metrics": Parser(
        in_directory(metrics._read, "metrics.json"),
        (),
        ("maintenance/metrics.py:_read",),
        (_json({"format": 1, "counters": {}, "read": [], "seen": []}),),
    ),
    "numba": _profile("numba", _NUMBA),
    "policy": Parser(
        lambda data: Document([("policy.yaml", load.text_of("policy.yaml", data))]),
        _REFUSED,
        ("policy/document.py:_compose",),
        (_FILE.read_bytes(), b"version: 1\nrules: [{name: a, match: {user: [a, b*]}}]\n"),
    ),
    "policy-units": Parser(
        _text(lambda text: [_refusable(unit, text) for unit in _UNITS]), (), ("policy/units.py:parse_size",), (b"5GiB",)
    ),
    "producer": Parser(
        _store_file("images/locks/key.producer", lambda store: published.producer_of(store, "key")),
        (),
        ("images/store/published.py:producer_of",),
        (_json(_PRODUCER),),
    ),
    "proposal": Parser(_text(_proposal), _REFUSED, ("store/barrier.py:_read",), (_json(_PROPOSAL._asdict()),)),
    "record": Parser(partial(record.decode, "x"), _REFUSED, ("run/state.py:decode",), (record.encode(a_run()),)),
    "registry-manifest": Parser(
        _text(lambda text: manifest.read(text, "x86_64")),
        (),
        ("images/importers/manifest.py:read",),
        (_json(_LAYERS), _json(_PLATFORMS)),
    ),
    "request": Parser(
        _text(lambda text: request.of(a_job(comment=text))),
        _REFUSED,
        ("request.py:of",),
        (b"warmstart: image=reg.example.com/a:1 profiles=numba,triton files=a fresh",),
    ),
    "namespace-facts": Parser(
        _store_file("caches/site/numba/ns/facts", lambda store: bundles.facts(Namespace(store, "site", "numba", "ns"))),
        _REFUSED,
        ("caches/store/bundles.py:facts",),
        (b'{"cpu": "x86-64"}',),
    ),
    "scope-size": Parser(
        _store_file("caches/user-1/used", _count), _REFUSED, ("caches/store/quota.py:_counted",), (b"%020d" % 9,)
    ),
    "slurm-files": Parser(
        _file(lambda path: (slurm_files.plugins(path), slurm_files._of_lines(path))),
        (OSError,),
        ("doctor/slurm_files.py:_joined",),
        (b"BasePath=/c \\\n Dirs=/tmp # two\nNodeName=a BasePath=none\n", b"required x.so a=b\ninclude *.conf\n"),
    ),
    "slurm-plugin": Parser(_file(installed.built_for), (OSError,), ("doctor/installed.py:built_for",), (_SHARED,)),
    "squeue": Parser(
        _text(lambda text: commands.parse_job(text, 7)),
        (ValueError,),
        ("slurm/commands.py:parse_job",),
        (b"7|RUNNING|normal|7|N/A|0|\n",),
    ),
    "squeue-outcome": Parser(
        _text(lambda text: commands.parse_outcome(text, 7)),
        (),
        ("slurm/commands.py:parse_outcome",),
        (b"7|COMPLETED|None|0|1767268800|\n",),
    ),
    "tag": Parser(
        layout.parse_pointer,
        (),
        ("images/store/layout.py:parse_pointer",),
        (_json({"digest": f"sha256:{SHA256}", "resolved": 1.5}),),
    ),
    "triton": _profile("triton", _TRITON),
    "worker-answer": Parser(
        _answer,
        (OSError, worker.WorkerBug, ValueError, WarmstartError),
        ("host/worker.py:Worker._ask", "host/wire.py:decode"),
        (_json({"value": {"a": [1]}}),),
    ),
    "worker-message": Parser(
        _message,
        (EOFError, wire.WireMismatch),
        ("host/worker.py:_receive",),
        ((13).to_bytes(4, "big") + b'{"value": []}',),
    ),
}
OWN_OF_WINGS: dict[str, str] = {}  # as OWN in tests/unit/test_foreign_bytes.py
for _name in wing.found():
    if (Path(__file__).parents[1] / "wings" / _name / "parsers.py").exists():
        _parsers = import_module(f"tests.lib.wings.{_name}.parsers")
        PARSERS |= _parsers.PARSERS
        OWN_OF_WINGS |= getattr(_parsers, "OWN", {})
