"""What maintenance writes for Prometheus: counted once, replaced at once, and known to alerts and dashboard."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from unittest import mock

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.lib import packed, sample_log
from tests.lib.hook_lines import finished, started
from tests.lib.node import NODE, SCOPE, Node
from warmstart.audit.line import timestamp
from warmstart.caches.store.layout import Namespace
from warmstart.host import files, trusted
from warmstart.host.files import DiskFailed
from warmstart.maintenance import metrics
from warmstart.policy.current import CurrentPolicy
from warmstart.policy.load import PolicyUnreadable
from warmstart.session import open_session

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "packaging" / "monitoring"
OF_NODE_EXPORTER = {"node_textfile_mtime_seconds"}


class Host:
    """A host with metrics."""

    def __init__(self, site: Node) -> None:
        self.site = site
        self.directory = site.base / "textfiles"
        self.directory.mkdir(mode=0o755)
        self.log = Path(site.policy.paths.audit)
        site.write(site.policy._replace(paths=site.policy.paths._replace(metrics=str(self.directory))))
        os.makedirs(site.paths.state)
        os.makedirs(site.paths.root)

    def write(self, *, problem: bool = False) -> dict[str, float]:
        """Write the host's metrics; return them."""
        found = CurrentPolicy(self.site.policy, "", PolicyUnreadable(path="p", problem="x") if problem else None)
        metrics.write_host(self.site.installation, found)
        return self.read(metrics.HOST_FILE)

    def read(self, name: str) -> dict[str, float]:
        families = text_string_to_metric_families((self.directory / name).read_text())
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }


@pytest.fixture
def host(node: Node, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Give a host whose directories are trusted wherever they are."""
    real = files.opened_dir
    monkeypatch.setattr(trusted, "opened_trusted", lambda path, _owners: real(path))
    return Host(node)


def test_the_log_is_counted_once(host: Host) -> None:
    assert host.write()["warmstart_hook_runs_total prolog drained"] == 0  # there is no log yet
    sample_log.write(host.log, 50)
    first = host.write()
    assert first["warmstart_hook_runs_total prolog ok"] == 50
    assert first["warmstart_hook_duration_seconds_count prolog"] == 50
    assert first["warmstart_hook_duration_seconds_bucket prolog +Inf"] == 50
    assert host.write() == first
    host.log.rename(f"{host.log}.1")
    sample_log.write(host.log, 20, first=2000)
    assert host.write()["warmstart_hook_runs_total prolog ok"] == 70


def test_a_hook_counts_once_however_often_the_log_is_read_meanwhile(host: Host) -> None:
    """Whether it ends, or is killed: then nobody knows before ten minutes are over."""
    recent = timestamp(time.time())
    host.log.write_text(json.dumps(started(ts=recent)) + "\n" + json.dumps(started(ts=recent, job_id=8)) + "\n")
    assert host.write()["warmstart_hook_runs_total prolog killed"] == 0
    with host.log.open("a") as log:
        log.write(json.dumps(finished(ts=recent)) + "\n")
    assert host.write()["warmstart_hook_runs_total prolog ok"] == 1
    with mock.patch.object(time, "time", return_value=time.time() + 700):
        host.write()
        found = host.write()
    assert (found["warmstart_hook_runs_total prolog ok"], found["warmstart_hook_runs_total prolog killed"]) == (1, 1)


def test_a_file_that_others_read_is_replaced_at_once(host: Host) -> None:
    """Nobody sees half of it; what is kept is root's alone."""
    host.write()
    assert os.listdir(host.directory) == [metrics.HOST_FILE]
    assert (host.directory / metrics.HOST_FILE).stat().st_mode & 0o777 == 0o644
    assert os.stat(host.site.installation.metrics).st_mode & 0o777 == 0o700


def test_what_a_host_is_like(host: Host) -> None:
    found = host.write()
    assert (found["warmstart_policy_valid"], found["warmstart_switched_off"]) == (1, 0)
    assert f"warmstart_maintenance_last_success_timestamp_seconds {NODE}" not in found
    Path(host.site.paths.maintained).touch()
    os.utime(host.site.paths.maintained, (1000, 1000))
    Path(host.site.installation.off_switch).touch()
    Path(host.site.paths.queue, "endings").mkdir(parents=True)
    Path(host.site.paths.queue, "endings", "2001,1769851800,1,7.0a1b2c3d").touch()
    found = host.write(problem=True)
    assert (found["warmstart_policy_valid"], found["warmstart_switched_off"]) == (0, 1)
    assert found[f"warmstart_maintenance_last_success_timestamp_seconds {NODE}"] == 1000
    assert found[f"warmstart_waiting_runs {NODE}"] == 1


def of_store(host: Host) -> dict[str, float]:
    with open_session(host.site.installation, "maintain") as session:
        metrics.write_store(session)
    return host.read(metrics.STORE_FILE)


def test_the_store(host: Host) -> None:
    for scope in (SCOPE, "user-9-bob", "site"):
        packed.publish(host.site.base, Namespace(str(host.site.store), scope, "numba", "ns"), {"a": {"a.nbi": b"x"}})
    found = of_store(host)
    sizes = [found[f"warmstart_store_bytes {scope}"] for scope in ("user", "account", "site")]
    assert sizes[0] > sizes[2] > sizes[1] == 0
    assert found["warmstart_store_image_bytes"] == 0
    assert found["warmstart_store_maintenance_last_success_timestamp_seconds"] > 10**9


def test_without_a_directory_or_while_another_run_counts_nothing_is_written(host: Host, node: Node) -> None:
    with files.opened_lock(node.installation.metrics, "lock") as lock:
        assert files.try_flock(lock)
        metrics.write_host(node.installation, CurrentPolicy(node.policy, "", None))
    assert os.listdir(host.directory) == []
    node.write(node.policy._replace(paths=node.policy.paths._replace(metrics=None)))
    metrics.write_host(node.installation, CurrentPolicy(node.policy, "", None))
    with open_session(node.installation, "maintain") as session:
        metrics.write_store(session)
    assert os.listdir(host.directory) == []


def test_a_directory_that_others_can_write_is_refused(node: Node) -> None:
    """They could put a link in the place of the file that root writes."""
    host = Host(node)
    host.directory.chmod(0o777)
    with pytest.raises(DiskFailed, match=r"can be written by others|belongs to uid 0"):
        host.write()
    assert os.listdir(host.directory) == []


@pytest.fixture
def exposed(host: Host) -> set[str]:
    """Return the names of all metrics that are ever written."""
    host.write()
    of_store(host)
    files = [host.directory / name for name in (metrics.HOST_FILE, metrics.STORE_FILE)]
    return {line.split()[2] for path in files for line in path.read_text().splitlines() if line.startswith("# TYPE")}


def used(text: str) -> set[str]:
    """Return the metrics of an expression, a histogram by its own name."""
    found = re.findall(r"\b(?:warmstart|node)_[a-z_]+\b", re.sub(r"by \([^)]*\)|\{[^}]*\}", "", text))
    return {re.sub(r"_seconds_(bucket|sum|count)$", "_seconds", name) for name in found}


def expressions() -> list[str]:
    """Return those of all alerts, and of the dashboard's panels and variables."""
    groups = yaml.safe_load((MONITORING / "warmstart.rules.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    assert all(rule["annotations"]["action"] for rule in rules)
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    chosen = [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    return [*(rule["expr"] for rule in rules), *shown, *chosen]


def test_each_metric_is_in_an_alert_or_a_panel_and_these_use_no_other(exposed: set[str]) -> None:
    assert all(map(used, expressions()))
    assert set().union(*map(used, expressions())) - OF_NODE_EXPORTER == exposed
