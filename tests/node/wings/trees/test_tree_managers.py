"""What package managers do to an environment is seen (docs/wings/trees.md): pip, uv and rattler, without a network.

rattler is pixi's library. Unlike conda it leaves `conda-meta/history` empty. `make test` has pip alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from tests.lib.requirements import need_module
from warmstart.host.files import opened_dir
from warmstart.wings.trees import current, walk
from warmstart.wings.trees.stage import Stage
from warmstart.wings.trees.walk import Bounds

PACKAGES = "lib/python3.12/site-packages"
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "edited"
version = "1"
"""
BACKEND = """\
import os, shutil
def build_editable(directory, *_):
    return os.path.basename(shutil.copy({wheel!r}, directory))
build_wheel = build_editable
"""
SYNCED = """\
[project]
name = "synced"
version = "0"
requires-python = ">=3.10"
dependencies = ["{name}"]
[tool.uv]
package = false
[tool.uv.sources]
{name} = {{path = "{wheel}"}}
"""
RATTLER = """\
import asyncio, os, sys
from rattler import Channel, Gateway, install, solve
channel, cache, prefix, *specs = sys.argv[1:]
async def change():
    gateway = Gateway(cache_dir=f"{cache}/index")
    found = await solve(sources=[Channel(channel)], specs=specs, platforms=["linux-64", "noarch"], gateway=gateway)
    await install(records=found, target_prefix=prefix, cache_dir=f"{cache}/packages", show_progress=False)
asyncio.run(change())
os._exit(0)  # its threads outlive the interpreter
"""


class Environment:
    """An environment that is looked at after each change."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.path = base / "trees" / "env"
        self._seen: list[str] = []

    def look(self) -> None:
        """Look at it: it must look as it never did before."""
        if os.geteuid() == 0:
            os.chown(self.path, 64201, 64201)
        stamp = current.look(str(self.path), [str(self.path.parent)], "", []).stamp
        assert stamp not in self._seen
        self._seen.append(stamp)

    def shared(self) -> set[str]:
        """Copy it for many; return the names in the copy."""
        copy, bounds = self.base / "copy", Bounds(1 << 30, 1000)
        copy.mkdir()
        with (
            tempfile.TemporaryFile(buffering=0) as records,
            open(os.devnull, "rb") as go_on,
            opened_dir(str(copy)) as fd,
            Stage(fd, str(self.path), bounds) as stage,
        ):
            out = records.fileno()
            for has_more in walk.walk(str(self.path), bounds, [os.getuid()], out, go_on.fileno()):
                assert stage.take(out) != has_more
            assert stage.result().left_out == 0
        return {str(path.relative_to(copy)) for path in copy.rglob("*")}

    def wheel(self, name: str, version: str, file: str) -> str:
        info = f"{name}-{version}.dist-info"
        content = {
            file: f"# {version}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
        wheel = self.base / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in content.items():
                archive.writestr(path, text)
        return str(wheel)

    def change_by(self, install: list[str], again: str, uninstall: list[str]) -> None:
        """Install, upgrade, install the same again, edit and remove, with an installer of wheels."""
        project = self.base / "project"
        project.mkdir()
        (project / "pyproject.toml").write_text(PROJECT)
        wheel = self.wheel("edited", "1", "edited.pth")
        (project / "backend.py").write_text(BACKEND.format(wheel=wheel))
        local = [*install, "--no-index", "--no-deps"]
        one, module = self.wheel("one", "2", "one/__init__.py"), self.wheel("module", "2", "module.py")
        for command in (
            [*local, self.wheel("one", "1", "one/__init__.py"), self.wheel("module", "1", "module.py")],
            [*local, one],
            [*local, module],
            [*local, again, one],
            [*local, again, module],
            [*local, "--no-build-isolation", "--editable", str(project)],
            [*local, "--no-build-isolation", again, "--editable", str(project)],
            [*uninstall, "edited"],
            [*uninstall, "module", "one"],
        ):
            subprocess.run(command, check=True, capture_output=True)
            self.look()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    (tmp_path / "trees").mkdir()
    return Environment(tmp_path)


def test_what_pip_does_is_seen(environment: Environment) -> None:
    venv.create(environment.path)
    environment.look()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", f"--python={environment.path}"]
    environment.change_by([*pip, "install"], "--force-reinstall", [*pip, "uninstall", "--yes"])


@pytest.fixture
def uv(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of uv, which has a cache of its own."""
    need_module("uv")
    found = import_module("uv").find_uv_bin()
    monkeypatch.setenv("UV_CACHE_DIR", str(environment.base / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_PYTHON", sys.executable)
    return str(found)


@pytest.mark.sweep
@pytest.mark.report
def test_what_uv_makes_can_be_shared(environment: Environment, uv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock can be written by all, whatever the umask."""
    monkeypatch.delenv("UV_PYTHON")
    monkeypatch.setenv("VIRTUAL_ENV", str(environment.path))
    subprocess.run([uv, "venv", "--quiet", str(environment.path)], check=True)
    wheel = environment.wheel("one", "1", "one/__init__.py")
    subprocess.run([uv, "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    assert (environment.path / ".lock").stat().st_mode & 0o002
    shared = environment.shared()
    assert ".lock" not in shared
    assert "lib" in shared


@pytest.mark.sweep
def test_what_uv_does_is_seen(environment: Environment, uv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([uv, "venv", "--quiet", str(environment.path)], check=True)
    environment.look()
    monkeypatch.delenv("UV_PYTHON")
    monkeypatch.setenv("VIRTUAL_ENV", str(environment.path))
    pip = [uv, "pip"]
    environment.change_by([*pip, "install"], "--reinstall", [*pip, "uninstall"])


@pytest.mark.sweep
def test_what_uv_sync_does_is_seen(environment: Environment, uv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes one package and adds another at once, and its lock is not in the environment."""
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", str(environment.path))
    project = environment.base / "synced"
    project.mkdir()
    for name in ("one", "two", "one"):
        wheel = environment.wheel(name, "1", f"{name}.py")
        (project / "pyproject.toml").write_text(SYNCED.format(name=name, wheel=wheel))
        subprocess.run([uv, "sync", "--quiet", "--project", str(project)], check=True)
        environment.look()


def write_channel(channel: Path, content: str) -> None:
    """Write a channel of conda packages: two versions of one with a module, and of one without."""
    found: dict[str, dict[str, object]] = {}
    for subdir in ("linux-64", "noarch"):
        (channel / subdir).mkdir(parents=True, exist_ok=True)
    for name, file in (("one", f"{PACKAGES}/one/__init__.py"), ("data", "lib/data")):
        for version in ("1", "2"):
            data = f"{version} {content}".encode()
            about: dict[str, object] = {
                "name": name,
                "version": version,
                "build": "0",
                "build_number": 0,
                "depends": [],
            }
            path = {"_path": file, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest()}
            paths = {"paths_version": 1, "paths": [{**path, "size_in_bytes": len(data)}]}
            members = {
                file: data,
                "info/index.json": json.dumps({**about, "subdir": "linux-64"}).encode(),
                "info/paths.json": json.dumps(paths).encode(),
            }
            package = channel / "linux-64" / f"{name}-{version}-0.tar.bz2"
            with tarfile.open(package, "w:bz2") as archive:
                for member, text in members.items():
                    info = tarfile.TarInfo(member)
                    info.size = len(text)
                    archive.addfile(info, io.BytesIO(text))
            whole = package.read_bytes()
            hashes = {"md5": hashlib.md5(whole).hexdigest(), "sha256": hashlib.sha256(whole).hexdigest()}
            found[package.name] = {**about, **hashes, "size": len(whole), "subdir": "linux-64"}
    for subdir, packages in (("linux-64", found), ("noarch", {})):
        index = {"info": {"subdir": subdir}, "packages": packages, "packages.conda": {}, "repodata_version": 1}
        (channel / subdir / "repodata.json").write_text(json.dumps(index))


@pytest.fixture
def channel(environment: Environment) -> Path:
    need_module("rattler")
    channel = environment.base / "channel"
    write_channel(channel, "first")
    return channel


@pytest.mark.sweep
def test_what_rattler_does_is_seen(environment: Environment, channel: Path) -> None:
    """Packages without a module, too, and one that was built anew under the same name."""
    for number, specs in enumerate((["one=1"], ["one=2"], ["one=2", "data=1"], ["one=2", "data=2"], ["one=2"])):
        _rattler(environment, channel, "cache", specs)
        environment.look()
        assert number or not (environment.path / "conda-meta" / "history").read_text()
    write_channel(channel, "again")
    _rattler(environment, channel, "other-cache", ["one=2"])
    environment.look()
    assert (environment.path / PACKAGES / "one" / "__init__.py").read_text() == "2 again"
    assert not (environment.path / "conda-meta" / "history").read_text()


@pytest.mark.sweep
@pytest.mark.report
def test_what_rattler_makes_can_be_shared(environment: Environment, channel: Path) -> None:
    """Its descriptions of packages are for their owner alone, whatever the umask."""
    _rattler(environment, channel, "cache", ["one=1"])
    assert (environment.path / "conda-meta" / "one-1-0.json").stat().st_mode & 0o077 == 0
    shared = environment.shared()
    assert "conda-meta/one-1-0.json" not in shared
    assert {"conda-meta/history", f"{PACKAGES}/one/__init__.py"} <= shared


def _rattler(environment: Environment, channel: Path, cache: str, specs: list[str]) -> None:
    words = [channel.as_uri(), str(environment.base / cache), str(environment.path), *specs]
    subprocess.run([sys.executable, "-c", RATTLER, *words], check=True, capture_output=True)
