"""Measure a handoff: the time from a release until a waiter in another process has the lock.

For comparison, measure the time from an LPUSH until a BLPOP in another process returns.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from typing import Any

from . import contenders, project
from .report import Table, median

_SPAWN = multiprocessing.get_context("spawn")
HOLD = 0.001


def handover(url: str, quick: bool) -> Table:
    table = Table("Handoff: from the start of a release to the waiter's grant", "≤ 1.5 ×")
    found: dict[str, list[float]] = {"LPUSH/BLPOP": [], contenders.OURS: []}
    for i in range(2 if quick else 8):
        for what, times in found.items():
            times.append(_median_latency(what, url, 150 if quick else 300, f"handover-{i}"))
    base = found["LPUSH/BLPOP"]
    for what, times in found.items():
        ratio = median([own / other for own, other in zip(times, base, strict=True)])
        table.rows.append({"": what, "µs": median(times) * 1e6, "× LPUSH/BLPOP": ratio})
    return table


def _median_latency(what: str, url: str, times: int, key: str) -> float:
    """Return the median seconds of a handoff. `times`: number of acquires per process."""
    results, ready = _SPAWN.SimpleQueue(), _SPAWN.Barrier(2)
    target = _ping_pong if what == "LPUSH/BLPOP" else _lock
    both = [
        _SPAWN.Process(target=target, args=(url, side, times, key, ready, results), daemon=True)
        for side in (0, 1)
    ]
    for process in both:
        process.start()
    events = sorted(event for _ in both for event in results.get())
    for process in both:
        process.join()
    # Keep a pair only if an acquire of the other process directly follows a release.
    pairs = itertools.pairwise(events)
    return median(
        [
            got - given
            for (given, side, did), (got, other, then) in pairs
            if did == "gives" and then == "has" and side != other
        ][20:]
    )


def _ping_pong(url: str, side: int, times: int, key: str, ready: Any, results: Any) -> None:
    project.setup(url)
    client, events = contenders.project_client(), []
    mine, others = f"{key}-{side}", f"{key}-{1 - side}"
    client.ping()
    ready.wait()
    if side == 0:
        client.lpush(others, 1)
    for _ in range(times):
        client.blpop(mine, 4)
        events.append((time.monotonic(), side, "has"))
        time.sleep(HOLD)
        events.append((time.monotonic(), side, "gives"))
        client.lpush(others, 1)
    results.put(events)


def _lock(url: str, side: int, times: int, key: str, ready: Any, results: Any) -> None:
    project.setup(url)
    from django_redis_sync import Lock

    lock, events = Lock(key), []
    with lock:
        pass
    ready.wait()
    for _ in range(times):
        lock.acquire()
        events.append((time.monotonic(), side, "has"))
        time.sleep(HOLD)
        events.append((time.monotonic(), side, "gives"))
        lock.release()
    results.put(events)
