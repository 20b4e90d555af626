"""single_flight functions in several processes, some of which are killed while they run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from typing import Any

import pytest

from .both import eventually
from .child import Child

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(34)]

#: The commands that clients send. The others are sent by scripts.
OF_CLIENTS = ("evalsha", "eval", "mget", "get", "set", "blpop", "del")


@pytest.fixture
def crowd(raw: Any) -> Any:
    """Return a function that starts child processes which call the same function. It returns them
    when all are ready."""
    with contextlib.ExitStack() as stack:

        def start(modes: list[str], *words: Any) -> list[Child]:
            children = [stack.enter_context(Child("fly", "crowd", mode, *words)) for mode in modes]
            for child in children:
                assert ["ready"] == child.line()
            return children

        yield start


def results_of(child: Child) -> list[list[int]]:
    (line,) = child.ended(120)
    return json.loads(line[1])  # type: ignore[no-any-return]


def test_threads_and_tasks_of_many_processes_share_one_run(crowd, raw) -> None:
    children = crowd(["sync"] * 4 + ["async"], 40, 1.5, 60, 30)
    raw.config_resetstat()
    for child in children:
        child.send_line()
    results = [result for child in children for result in results_of(child)]
    assert 200 == len(results)
    assert [results[0]] * 200 == results
    assert b"1" == raw.get("crowd-runs")
    stats = raw.info("commandstats")
    commands = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in OF_CLIENTS)
    assert commands <= 6 * 200


def test_killed_runs_are_repeated_by_one_waiter_and_never_overlap(crowd, raw) -> None:
    children = crowd(["sync", "async"] * 3, 5, 0.3, 0, 5)
    by_pid = {child.process.pid: child for child in children}
    for child in children:
        child.send_line()
    chance = random.Random(7)
    for number in range(4):
        runs = int(raw.get("crowd-runs") or 0)
        eventually(lambda runs=runs: int(raw.get("crowd-runs") or 0) > runs + 3)
        if number % 2:
            pid = chance.choice([*by_pid])
        else:
            pid = int(eventually(lambda: raw.hkeys("crowd-running"))[0])
        child = by_pid.pop(pid)
        os.kill(pid, signal.SIGKILL)
        child.process.communicate()
        raw.hdel("crowd-running", pid)
    for child in by_pid.values():
        child.send_line()
    for child in by_pid.values():
        assert len(results_of(child)) >= 5, "each caller of a living process gets answers"
    assert None is raw.get("crowd-overlaps")
