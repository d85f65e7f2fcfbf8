"""Layers that cost more than they are: each ends soon, in little memory, by an error that is remembered (row 45).

The program that packs them runs as an import starts it. What a layer claims, hides or puts behind its end counts.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.fuzz import layers
from tests.lib.hostile_layers import ATTACKS, BOUNDS, MIB, alike, streamed
from tests.lib.layer_stacks import Item, archive, packed, write_packed
from tests.lib.tar_headers import END, header, padded, pax
from warmstart.images.importers import flatten, layer_reader
from warmstart.images.importers.layer_reader import ImageBounds

pytestmark = pytest.mark.threat(45)

MUTATED = 1000
MOST_MEMORY = 300 * MIB  # that the program and mksquashfs may have at a time


class Ended(NamedTuple):
    """How the program ended."""

    status: int
    said: str
    memory: int  # most bytes at a time


# A process of its own starts the program: the peak of a child counts what its parent had when it forked.
MEASURED = """
import resource, subprocess, sys
argv = ["/usr/bin/timeout", "-k", "1", "200", "/usr/bin/prlimit", "--cpu=20", *sys.argv[1:]]
done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.stdout.flush()
sys.stdout.buffer.write(done.stderr)
"""


def ended(base: Path, bounds: ImageBounds = BOUNDS) -> Ended:
    """Run the program on the layout in a directory, for twenty seconds of a CPU at most."""
    argv = [sys.executable, "-c", MEASURED, *flatten.command("layout", "import", "r.sqsh", bounds, "")]
    done = subprocess.run(argv, cwd=base, check=True, stdout=subprocess.PIPE, text=True)
    figures, _, said = done.stdout.partition("\n")
    status, memory = map(int, figures.split())
    return Ended(status, said, memory * 1024)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_layer_costs_no_more_than_it_is(tmp_path: Path, name: str) -> None:
    made, status = ATTACKS[name]
    write_packed(tmp_path / "layout", made())
    result = ended(tmp_path)
    assert (result.status, result.memory < MOST_MEMORY) == (status, True), result
    assert (tmp_path / "r.sqsh").exists() is (status == 0)


def test_layers_cost_no_memory_each(tmp_path: Path) -> None:
    same = archive([Item("f", content=random.Random(1).randbytes(MIB) * 12)])
    write_packed(tmp_path / "layout", [(packed(same, "gzip"), hashlib.sha256(same).hexdigest())] * 100)
    result = ended(tmp_path, ImageBounds(4 << 30, 20_000))
    assert (result.status, result.memory < MOST_MEMORY) == (0, True), result


def test_many_files_cost_no_memory_each(tmp_path: Path) -> None:
    """By itself mksquashfs fills a quarter of the machine's memory with what it has not yet packed."""
    files = (header(b"%d" % n, size=100_000) + padded(b"%d" % n + bytes(99_995))[:100_352] for n in range(4000))
    write_packed(tmp_path / "layout", [streamed([*files, END])])
    result = ended(tmp_path, ImageBounds(1 << 30, 20_000))
    assert (result.status, result.memory < MOST_MEMORY) == (0, True), result


@pytest.mark.sweep
def test_packing_takes_no_longer_than_an_honest_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, limit in (("LEAST_CPU_S", 1.0), ("CPU_S_PER_BYTE", 0.0), ("CPU_S_PER_ENTRY", 0.0)):
        monkeypatch.setattr(layer_reader, name, limit)
    write_packed(tmp_path / "layout", [streamed(alike(1500))])
    assert flatten.run("layout", "import", "r.sqsh", BOUNDS) == flatten.UNSUPPORTED
    assert not (tmp_path / "r.sqsh").exists()


@pytest.mark.sweep
def test_mutated_images_cost_no_more_than_they_are(tmp_path: Path) -> None:
    for seed in range(MUTATED):
        made = layers.written(tmp_path / "blobs", layers.image(random.Random(seed)))
        place = tmp_path / str(seed)
        write_packed(place / "layout", [(Path(one.path).read_bytes(), one.diff_id[7:]) for one in made])
        result = ended(place, layers.BOUNDS)
        assert result.status in {0, flatten.UNSUPPORTED, flatten.UNSUPPORTED_ZSTD, flatten.INVALID, flatten.TOO_LARGE}
        assert result.memory < MOST_MEMORY
        shutil.rmtree(place)


def test_names_meet_a_limit_of_memory(tmp_path: Path) -> None:
    deep = [pax({b"path": b"%d/" % n + b"/".join([b"d" * 19] * 198)}) + header() for n in range(5000)]
    write_packed(tmp_path / "layout", [streamed(deep)])
    result = ended(tmp_path, ImageBounds(256 * MIB, 5100))
    assert result.status == flatten.TOO_LARGE, result
    assert result.memory < flatten.LEAST_MEMORY + 5100 * flatten.MEMORY_PER_FILE
