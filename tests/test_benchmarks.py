"""The benchmarks run, and a cycle sends the expected number of commands. Nothing is timed."""

from __future__ import annotations

import configparser
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as main
from benchmarks import client, contenders, crowd, cycles, goals, instructions, report
from benchmarks.commands import counted
from devtools.servers import find_server
from django_redis_sync import Lock, Semaphore
from django_redis_sync.protocol import scripts
from tests.behaviour.watching import sent
from tests.support import worker_processes

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parent.parent
NEEDS_EXCLUSIVE_SERVER = pytest.mark.skipif(
    "REDIS_URL" in os.environ,
    reason="MONITOR also shows the commands of the server's other clients",
)


@pytest.mark.skipif(find_server() is None, reason="benchmarks start a server of their own")
def test_benchmarks_run_only_the_one_asked_for(tmp_path: Path) -> None:
    found = tmp_path / "new" / "found.json"
    done = worker_processes.run(
        *("-m", "benchmarks", "--quick", "--only", "statistics", "--json", found),
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
    )
    assert done.returncode == 0, done.stderr
    assert "Server µs with statistics and without" in done.stdout
    results = json.loads(found.read_text())
    assert [row[""] for row in results["benchmarks"]["statistics"]["rows"]][1:] == ["off", "on"]
    assert results["machine"]["redis-server"]
    (goal,) = results["benchmarks"]["goals"]["rows"]
    on = results["benchmarks"]["statistics"]["rows"][-1]
    assert (goal["goal"], goal["today"]) == ("≤ 1.3", on["both × off"])
    for peer in results["machine"]["missing"]:
        assert peer in done.stdout.split("Not installed, so not measured: ")[1]


@pytest.mark.parametrize("verb", ["acquire", "release", "renew"])
def test_instruction_count_passes_every_argument_of_the_script(verb: str) -> None:
    given = {"token": "t", "fence": "1", "how": "try"}
    names = [n for n in scripts.script(verb).argv if n in given or n not in scripts.DEFAULTS]
    assert len(names) == len(instructions.arguments(verb, **given))


def test_bench_extra_lists_every_measured_peer() -> None:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg", encoding="utf-8")
    extra = {
        line.partition(";")[0].strip().lower()
        for line in found["options.extras_require"]["bench"].splitlines()
    }
    project = {"django-redis-sync", "django", "django-redis", "redis"}
    assert set() == {name.lower() for name in report._PACKAGES} - extra - project


def test_uncontended_cycle_sends_two_commands(clean_redis: None) -> None:
    lock = Lock("bench")
    with lock:
        pass
    with sent() as counts:
        for _ in range(10):
            with lock:
                pass
    assert counts.by_name == {"evalsha": 20}


@NEEDS_EXCLUSIVE_SERVER
def test_contended_cycle_sends_at_most_three_commands(redis_url: str, clean_redis: None) -> None:
    lock, cycles = Semaphore("bench", 1), 30

    def work() -> None:
        for _ in range(cycles):
            with lock:
                pass

    with lock:
        pass
    threads = [threading.Thread(target=work) for _ in range(4)]
    with counted(redis_url) as counts:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    commands = counts["EVALSHA"] + counts.get("BLPOP", 0)
    # A waiter that waits longer than a second, as on a busy machine, sends one more command.
    assert 2 * 4 * cycles <= commands <= 3 * 4 * cycles + 8


def test_each_goal_belongs_to_a_benchmark() -> None:
    assert {goal.of for goal in goals.GOALS} <= main.BENCHMARKS.keys()


@pytest.mark.parametrize(("least", "found", "reached"), [(True, 4.0, 2.0), (False, 4.0, 0.5)])
def test_goal_ratio_is_at_least_one_when_the_goal_is_reached(
    monkeypatch, least: bool, found: float, reached: float
) -> None:
    goal = goals.Goal("x", "y", lambda _: found, 2.0, least)
    monkeypatch.setattr(goals, "GOALS", [goal])
    (row,) = goals.reached({"y": report.Table("y")}).rows
    assert (row["today"], row["ratio"]) == (found, reached)


def test_unmeasured_goal_is_noted(monkeypatch) -> None:
    goal = goals.Goal("x", "y", goals._cell("gone", "gone"), 2.0)
    monkeypatch.setattr(goals, "GOALS", [goal])
    table = goals.reached({"y": report.Table("y")})
    assert (table.rows, table.notes) == ([], ["not measured: x"])


def test_bytecodes_are_counted_in_total_and_for_scripts(clean_redis: None) -> None:
    lock = Lock("bench")
    all_of_it, scripts = client.bytecodes(lambda: cycles.acquire_and_release(lock))
    assert 0 < scripts < all_of_it
    assert client.bytecodes(lambda: None)[1] == 0


def test_ratios_are_medians_of_ratios_within_a_round() -> None:
    found = report.ratios({"ours": [1.0, 4.0, 9.0], "base": [2.0, 4.0, 1.0]}, "base")
    assert found == {"ours": 1.0, "base": 1.0}


def test_most_inside_counts_visits_at_the_same_time() -> None:
    visits = [(0.0, 0.0, 2.0), (0.0, 1.0, 3.0), (0.0, 3.0, 4.0)]
    assert crowd._most_inside(visits) == 2


@pytest.mark.parametrize("limit", [1, 4])
def test_contenders_begin_with_this_library_and_have_locks_at_limit_1(limit: int) -> None:
    names = contenders.installed(contenders.SYNC, limit)
    assert names[0] == contenders.OURS
    assert (contenders.REDIS_PY in names) == (limit == 1)


def test_connections_are_counted_without_closing_those_of_contenders(redis_url: str) -> None:
    shared: Any = contenders.client(redis_url).connection_pool.get_connection()

    def number() -> int:
        shared.send_command("CLIENT", "ID")
        return int(shared.read_response())

    before = number()
    assert crowd._connections(redis_url) >= 1
    assert before == number()
