"""The report at full size, and Prometheus's own judgement of the alerts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lib import sample_log

pytestmark = pytest.mark.sweep

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "packaging" / "monitoring" / "warmstart.rules.yml"
MOST_MIB = 50
# The most memory of this process alone: `ru_maxrss` counts that of the process that started it, too.
REPORT = """
import atexit, re, sys
from warmstart.cli import main
atexit.register(lambda: sys.stderr.write(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1]))
main("/nowhere")
"""
ALERTS = """\
rule_files: [{rules}]
evaluation_interval: 5m
tests:
  - interval: 5m
    input_series:
      - series: warmstart_maintenance_last_success_timestamp_seconds{{node="n1",instance="n1"}}
        values: 0x40
      - series: warmstart_hook_runs_total{{hook="prolog",outcome="drained",instance="n1"}}
        values: 0 0 1 1
    alert_rule_test:
      - {{alertname: WarmstartMaintenanceStale, eval_time: 1h, exp_alerts: []}}
      - alertname: WarmstartNodeDrained
        eval_time: 15m
        exp_alerts:
          - {{exp_labels: {{instance: n1, hook: prolog, severity: critical}}, exp_annotations: {drained}}}
      - alertname: WarmstartMaintenanceStale
        eval_time: 2h
        exp_alerts: [{{exp_labels: {{node: n1, instance: n1, severity: warning}}, exp_annotations: {stale}}}]
"""


def test_a_log_of_eighty_thousand_jobs_in_bounded_memory(tmp_path: Path) -> None:
    """All of the process, the interpreter included."""
    lines = sample_log.write(tmp_path / "audit.jsonl", 80_000)
    assert lines > 300_000
    argv = [sys.executable, "-c", REPORT, "report", "--since", "2026-02-01", "--json", "--from", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "hooks")}
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=environment)
    assert int(done.stderr) / 1024 < MOST_MIB
    assert json.loads(done.stdout)["jobs"] == 80_000


def test_prometheus_takes_the_alerts(tmp_path: Path) -> None:
    """They are well-formed, and fire when they have to."""
    subprocess.run(["/usr/bin/promtool", "check", "rules", str(RULES)], check=True, capture_output=True)
    names = {"drained": "WarmstartNodeDrained", "stale": "WarmstartMaintenanceStale"}
    told = {key: json.dumps(told_by(name)) for key, name in names.items()}
    (tmp_path / "test.yml").write_text(ALERTS.format(rules=RULES, **told))
    done = subprocess.run(
        ["/usr/bin/promtool", "test", "rules", str(tmp_path / "test.yml")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def told_by(alert: str) -> dict[str, str]:
    """Return an alert's annotations for node n1."""
    import yaml

    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    (found,) = [rule["annotations"] for rule in rules if rule["alert"] == alert]
    return {
        name: text.replace("{{ $labels.instance }}", "n1").replace("{{ $labels.node }}", "n1")
        for name, text in found.items()
    }
