"""The benchmarks run, and measure what their tables say. These tests check no duration."""

from __future__ import annotations

import configparser
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as main
from benchmarks import client, contenders, crowd, cycles, goals, instructions, rates, report
from benchmarks.commands import counted
from devtools.servers import find_server
from django_redis_sync import Lock
from django_redis_sync.protocol import scripts
from tests.support import worker_processes

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(find_server() is None, reason="benchmarks start a server of their own")
def test_benchmark_report_has_only_the_goals_of_the_selected_benchmark(tmp_path: Path) -> None:
    found = tmp_path / "new" / "found.json"
    words = ("-m", "benchmarks", "--quick", "--only", "statistics", "--json", found)
    own = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = worker_processes.run(*words, env=own)
    assert 0 == done.returncode, done.stderr
    assert "Server µs with statistics and without" in done.stdout
    results = json.loads(found.read_text())
    rows = results["benchmarks"]["statistics"]["rows"]
    assert ["off", "on"] == [row[""] for row in rows][1:]
    (goal,) = results["benchmarks"]["goals"]["rows"]
    assert ("≤ 1.3", rows[-1]["both × off"]) == (goal["goal"], goal["today"])
    assert results["machine"]["redis-server"]
    for peer in results["machine"]["missing"]:
        assert peer in done.stdout.split("Not installed, so not measured: ")[1]


@pytest.mark.parametrize("verb", ["acquire", "release", "renew"])
def test_instruction_benchmark_passes_all_required_arguments_of_a_script(verb: str) -> None:
    given = {"token": "t", "fence": "1", "how": "try"}
    names = [n for n in scripts.script(verb).argv if n in given or n not in scripts.DEFAULTS]
    assert len(names) == len(instructions.arguments(verb, **given))


def test_most_in_counts_the_times_of_each_period_without_its_end() -> None:
    assert 3 == rates.most_in([0, 1, 999_999, 1_000_000], 1)
    assert 4 == rates.most_in([0, 1, 999_999, 1_000_000], 2)


def test_bench_extra_of_setup_cfg_includes_every_measured_library() -> None:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = found["options.extras_require"]["bench"].splitlines()
    extra = {line.partition(";")[0].strip().lower() for line in lines}
    project = {"django-redis-sync", "django", "django-redis", "redis"}
    assert set() == {name.lower() for name in report._PACKAGES} - extra - project


@pytest.mark.skipif("REDIS_URL" in os.environ, reason="MONITOR also shows other clients' commands")
def test_redis_commands_of_a_with_block_are_counted_by_command_name(redis_url: str) -> None:
    lock = Lock("bench")
    with lock:
        pass
    with counted(redis_url) as counts, lock:
        pass
    assert counts["EVALSHA"] in (2, 3), counts  # the housekeeping thread may send a third


@pytest.mark.parametrize(("least", "found", "reached"), [(True, 4.0, 2.0), (False, 4.0, 0.5)])
def test_goal_ratio_is_at_least_one_when_the_goal_is_reached(
    monkeypatch, least: bool, found: float, reached: float
) -> None:
    assert {goal.of for goal in goals.GOALS} <= main.BENCHMARKS.keys()
    goal = goals.Goal("x", "y", lambda _: found, 2.0, least)
    unmeasured = goals.Goal("z", "y", goals._cell("gone", "gone"), 2.0)
    monkeypatch.setattr(goals, "GOALS", [goal, unmeasured])
    table = goals.reached({"y": report.Table("y")})
    assert [(found, reached)] == [(row["today"], row["ratio"]) for row in table.rows]
    assert ["not measured: z"] == table.notes


def test_bytecodes_are_counted_in_total_and_for_script_calls() -> None:
    lock = Lock("bench")
    all_of_it, scripts = client.bytecodes(lambda: cycles.acquire_and_release(lock))
    assert 0 < scripts < all_of_it
    assert 0 == client.bytecodes(lambda: None)[1]


def test_benchmark_report_calculates_the_median_of_the_ratios() -> None:
    found = report.ratios({"ours": [1.0, 4.0, 9.0], "base": [2.0, 4.0, 1.0]}, "base")
    assert {"ours": 1.0, "base": 1.0} == found


def test_crowd_benchmark_counts_simultaneous_holders() -> None:
    assert 2 == crowd._most_inside([(0.0, 0.0, 2.0), (0.0, 1.0, 3.0), (0.0, 3.0, 4.0)])


@pytest.mark.parametrize("limit", [1, 4])
def test_plain_locks_are_measured_only_at_a_limit_of_1(limit: int) -> None:
    names = contenders.installed(contenders.SYNC, limit)
    assert contenders.OURS == names[0]
    assert (limit == 1) == (contenders.REDIS_PY in names)


def test_crowd_benchmark_closes_no_connection_when_it_counts_connections(redis_url: str) -> None:
    shared: Any = contenders.client(redis_url).connection_pool.get_connection()

    def number() -> int:
        shared.send_command("CLIENT", "ID")
        return int(shared.read_response())

    before = number()
    assert crowd._connections(redis_url) >= 1
    assert before == number()
