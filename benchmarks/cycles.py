"""Measure the cost of an acquire and a release in one thread, without other callers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import contenders
from .commands import counted
from .contenders import OURS, REDIS_PY
from .report import Row, Table, median, ratios

FLOOR = "two minimal EVALSHA"
REUSED, FRESH = f"{OURS}, a Lock", f"{OURS}, a new Lock"


def uncontended(url: str, quick: bool) -> Table:
    table = Table("Acquire + release, one thread, uncontended")
    cycles: dict[str, Callable[[], Any]] = {FLOOR: minimal(), **_locks()}
    for name in contenders.installed(contenders.SYNC, 1, "redis-py Lock, sleep 0.001"):
        cycles[name] = _cycle(name, url)
    seconds = alternate(cycles, rounds=10 if quick else 60, repeat=50)
    to_redis_py, to_floor = ratios(seconds, REDIS_PY), ratios(seconds, FLOOR)
    for name in sorted(cycles, key=to_redis_py.__getitem__):
        row: Row = {"": name, "µs": median(seconds[name]) * 1e6}
        row[f"× {REDIS_PY}"], row[f"× {FLOOR}"] = to_redis_py[name], to_floor[name]
        with counted(url) as counts:
            for _ in range(10):
                cycles[name]()
        row["commands"] = sum(counts.values()) / 10
        table.rows.append(row)
    return table


def alternate(
    cycles: dict[str, Callable[[], Any]], rounds: int, repeat: int
) -> dict[str, list[float]]:
    """Run all cycles alternately, so that other load on the machine affects them equally. In each
    round, run each cycle `repeat` times. For each cycle, return a list with one figure per round:
    the mean seconds per run of the cycle."""
    found: dict[str, list[float]] = {name: [] for name in cycles}
    for cycle in cycles.values():
        for _ in range(20):
            cycle()
    for _ in range(rounds):
        for name, cycle in cycles.items():
            start = time.perf_counter()
            for _ in range(repeat):
                cycle()
            found[name].append((time.perf_counter() - start) / repeat)
    return found


def _locks() -> dict[str, Callable[[], Any]]:
    """Return two cycles, by name. The first acquires and releases the same `Lock` object each
    time. The second creates a new `Lock` object each time."""
    from django_redis_sync import Lock

    lock = Lock("cycle-reused")
    return {
        REUSED: lambda: acquire_and_release(lock),
        FRESH: lambda: acquire_and_release(Lock("cycle-fresh")),
    }


def acquire_and_release(lock: Any) -> None:
    lock.acquire()
    lock.release()


def minimal() -> Callable[[], Any]:
    """Return a cycle that runs two empty scripts. Their keys and arguments are those of the
    simplest possible lock."""
    client = contenders.project_client()
    sha = client.script_load("return 1")

    def cycle() -> None:
        client.execute_command("EVALSHA", sha, 1, "bench:minimal", "token", 30000)
        client.execute_command("EVALSHA", sha, 1, "bench:minimal", "token")

    return cycle


def _cycle(name: str, url: str) -> Callable[[], Any]:
    enter = contenders.SYNC[name][0](url, f"cycle-{name.replace(' ', '-')}", 1)
    if name in (OURS, REDIS_PY):
        lock: Any = enter()
        return lambda: acquire_and_release(lock)

    def with_it() -> None:
        with enter():
            pass

    return with_it
