"""The alerts and the dashboard in docs/monitoring are valid and tested, and use existing
metrics."""

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
PANELS: list[Any] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
#: Names of the metrics in Prometheus. The names of counters end in _total.
NAMES = {
    f"{family.name}_total" if family.type == "counter" else family.name
    for family in metrics.SyncCollector().describe()
}


def promtool(*words: object) -> None:
    """Run promtool and check that it succeeds, or skip the test if promtool is missing."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: Debian has it as prometheus")
    command = ["promtool", *map(str, words)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    assert 0 == done.returncode and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_alerts_and_dashboard_are_valid_for_prometheus(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{n}", "expr": expr.replace("$__rate_interval", "5m")}
        for n, expr in enumerate(EXPRESSIONS)
    ]
    panels = tmp_path / "panels.json"  # promtool reads YAML, which includes JSON
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", panels)
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts.test.yml")


def test_each_alert_rule_has_two_tests() -> None:
    alerts = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    tested = re.findall(r"alertname: (\w+)", (FOLDER / "alerts.test.yml").read_text())
    assert sorted(2 * alerts) == sorted(tested)


def test_alerts_and_dashboard_refer_only_to_metrics_that_exist() -> None:
    files = {file: (FOLDER / file).read_text() for file in ("alerts.yml", "alerts.test.yml")}
    for file, text in {**files, "grafana.json": " ".join(EXPRESSIONS)}.items():
        assert (file, set()) == (file, {*re.findall(r"redis_sync_\w+", text)} - NAMES)
        if file == "grafana.json":
            shown = {name for name in NAMES if "last_minute" not in name}
            assert set() == shown - {*re.findall(r"redis_sync_\w+", text)}


def test_dashboard_panels_do_not_overlap_and_have_unique_ids() -> None:
    assert len(PANELS) == len({panel["id"] for panel in PANELS})
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
