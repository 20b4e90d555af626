"""The alerts and the dashboard in docs/monitoring: valid, tested, and about existing metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

metrics = pytest.importorskip("django_redis_sync.metrics")

FOLDER = Path(__file__).parent.parent / "docs/monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def promtool(*words: object) -> str:
    """Run promtool, check that it succeeds, and return its output."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: Debian has it as prometheus")
    command = ["promtool", *map(str, words)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def metric_names() -> set[str]:
    """Return the names of all metrics as Prometheus stores them: counters end in _total."""
    families = list(metrics.SyncCollector().describe())
    return {f.name + ("_total" if f.type == "counter" else "") for f in families}


def test_alerts_pass_their_prometheus_tests() -> None:
    assert "SUCCESS" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml")


def test_every_alert_has_a_firing_and_a_silent_test() -> None:
    alerts = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    tested = re.findall(r"alertname: (\w+)", (FOLDER / "alerts.test.yml").read_text())
    assert sorted(2 * alerts) == sorted(tested)


@pytest.mark.parametrize("file", ["alerts.yml", "grafana.json", "alerts.test.yml"])
def test_monitoring_files_name_only_existing_metrics(file: str) -> None:
    named = set(re.findall(r"redis_sync_\w+", (FOLDER / file).read_text()))
    assert set() == named - metric_names()


def test_dashboard_shows_every_metric_except_the_last_minute() -> None:
    shown = set(re.findall(r"redis_sync_\w+", " ".join(EXPRESSIONS)))
    assert {name for name in metric_names() if "last_minute" not in name} == shown


def test_dashboard_expressions_are_valid_for_prometheus(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{n}", "expr": expr.replace("$__rate_interval", "5m")}
        for n, expr in enumerate(EXPRESSIONS)
    ]
    file = tmp_path / "panels.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert "SUCCESS" in promtool("check", "rules", file)


def test_dashboard_panels_do_not_overlap_and_have_unique_ids() -> None:
    panels = DASHBOARD["panels"]
    assert len(panels) == len({panel["id"] for panel in panels})
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
