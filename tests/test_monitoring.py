"""What docs/monitoring offers to Prometheus and Grafana speaks of metrics that there are."""

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
    """What promtool says; it is content."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: Debian has it as prometheus")
    command = ["promtool", *map(str, words)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def known() -> set[str]:
    """Every metric, as Prometheus has it: counters end in _total."""
    families = list(metrics.SyncCollector().describe())
    return {f.name + ("_total" if f.type == "counter" else "") for f in families}


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml")


def test_every_alert_is_tested_both_ways() -> None:
    alerts = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    tested = re.findall(r"alertname: (\w+)", (FOLDER / "alerts.test.yml").read_text())
    assert sorted(2 * alerts) == sorted(tested)


@pytest.mark.parametrize("file", ["alerts.yml", "grafana.json", "alerts.test.yml"])
def test_only_metrics_that_there_are_are_spoken_of(file: str) -> None:
    named = set(re.findall(r"redis_sync_\w+", (FOLDER / file).read_text()))
    assert set() == named - known()


def test_the_dashboard_shows_every_metric_that_is_no_last_minute() -> None:
    shown = set(re.findall(r"redis_sync_\w+", " ".join(EXPRESSIONS)))
    assert {name for name in known() if "last_minute" not in name} == shown


def test_the_dashboard_asks_what_prometheus_understands(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{n}", "expr": expr.replace("$__rate_interval", "5m")}
        for n, expr in enumerate(EXPRESSIONS)
    ]
    file = tmp_path / "panels.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert "SUCCESS" in promtool("check", "rules", file)


def test_panels_lie_side_by_side_and_have_ids_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len(panels) == len({panel["id"] for panel in panels})
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
