"""Fixtures around `tests.lib`: one real cluster, one registry and one site for the whole session.

They need root and Debian's daemons. If these are missing, tests are skipped with the reason; in CI (CI=true) they fail,
so that a run that tested nothing does not pass.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.lib import host, installation, spank
from tests.lib.cluster import Cluster
from tests.lib.registry import Registry, build_image
from tests.lib.requirements import unavailable
from tests.lib.site import Site
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.remove import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lib.config import Namespace

# No test measures time: several processes run tests, and a machine may be busy.
# Examples that failed are kept nowhere: who runs the unit tests may not write here.
# A test that names other checks than these would lose them.
settings.register_profile(
    "warmstart",
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("warmstart")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what talks to Slurm: tests of the session's cluster, and those of files that start clusters of their own."""
    for item in items:
        if isinstance(item, pytest.Function) and "cluster" in item.fixturenames:
            item.add_marker(pytest.mark.slurm)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that skipped a test: what a missing tool covers was not tested."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") == "true" and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves all later ones a lower priority, and a unit test that leaves a process.

    A client that was not closed has a process, and may hold a lock of a store.
    """
    before, priority, on_term = _children(), os.nice(0), signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, on_term)  # a program that ends ignores it, and all that later tests start would, too
    assert os.nice(0) == priority
    if "unit" not in request.path.parts:  # others start daemons
        return
    until = after(20)  # what was killed may take a moment to end
    while left := _children() - before:
        assert not until.expired(), left
        time.sleep(0.01)


def _children() -> set[str]:
    """Return the pids of this process's children that have not ended."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found.update((task / "children").read_text().split())
    return {pid for pid in found if not _has_ended(pid)}


def _has_ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="session")
def capable_host() -> None:
    """Skip the test, or fail it in CI, if the host cannot run a cluster."""
    if wanting := host.missing():
        unavailable(f"a cluster needs: {', '.join(wanting)}")


@pytest.fixture
def base() -> Iterator[Path]:
    """Return a directory that other uids can traverse. Mounts that tests leave in it are detached."""
    path = Path(tempfile.mkdtemp(prefix="warmstart-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    with opened_dir(str(path.parent)) as parent:
        remove_tree(parent, path.name, after(60))


@pytest.fixture(scope="session")
def cluster(capable_host: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return a running cluster; `site` installs this checkout into it."""
    with Cluster() as running:
        yield running
        if request.session.testsfailed:
            running.keep_logs()


@pytest.fixture(scope="session")
def registry(cluster: Cluster) -> Iterator[Registry]:
    """Return a registry that the nodes reach, and that ends with the session."""
    with Registry(cluster.base, cluster.address) as running:
        yield running


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """Return a function that installs this checkout below a prefix; `make install` runs once for all processes."""
    own = tmp_path_factory.getbasetemp()
    return partial(installation.install_once, own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def installed(cluster: Cluster, registry: Registry, install: Callable[[Path], None]) -> Site:
    """Return the session's site. Tests use `site`, which also checks the site after each test."""
    return Site(cluster, registry.url, install=install)


@pytest.fixture(scope="session")
def contained(registry: Registry, install: Callable[[Path], None]) -> Iterator[Callable[[Namespace], Site]]:
    """Return a function that returns a site whose jobs each have such a namespace; each has one cluster."""
    with ExitStack() as stack:

        @cache
        def started(namespace: Namespace) -> Site:
            cluster = Cluster(namespace=namespace)
            (cluster.base / "private").mkdir()  # of the namespaces that name it
            return Site(stack.enter_context(cluster), registry.url, install=install)

        yield started


@pytest.fixture
def site(installed: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Return the site under its usual policy; afterwards no node is drained and no job has left anything."""
    installed.write_policy()
    cluster, problem, failed = installed.cluster, "", request.session.testsfailed
    before = set(installed.leftovers())  # of a test that failed: let that one fail alone
    yield installed
    if request.session.testsfailed > failed:  # its jobs may not even have begun
        cluster.cancel_all()
    try:
        cluster.wait_idle()
    except TimeoutError as error:
        problem = str(error)
        cluster.cancel_all()
        cluster.wait_idle()
    installed.wait_imports()
    installed.forget_imports()
    states = cluster.node_states()
    drained = cluster.drained(states)
    for node in drained:
        cluster.resume(node)
    assert not problem
    assert not drained, {node: states[node].reason for node in drained}
    assert set(installed.leftovers()) - before == set()


@pytest.fixture(scope="module")
def plugged(installed: Site) -> Iterator[Site]:
    """Return the site with the SPANK plugin: extensions need the constant path, and it has --warm-fresh."""
    if spank.missing():
        pytest.fail(spank.missing())
    with spank.loaded(installed):
        yield installed
    installed.write_policy()


@pytest.fixture(scope="session")
def fresh_image(installed: Site, registry: Registry) -> Callable[[], str]:
    """Return a function that pushes a new image, which no job has requested yet, and returns its name."""
    numbers = count(1)

    def push() -> str:
        number = next(numbers)
        layout = build_image(installed.cluster.base / "images" / str(number), {"/etc/number": f"{number}\n"})
        registry.push(layout, "latest", f"test/number{number}:1")
        return f"{registry.url}/test/number{number}:1"

    return push
