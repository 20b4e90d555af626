"""Measure how long a single caller waits beside many others, with and without `share=`."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from typing import Any

from . import project
from .report import Table, median

_SPAWN = multiprocessing.get_context("spawn")
LIMIT, FLOOD, HOLD = 4, 200, 0.1
PLAIN, SHARES = "plain order", "shares"

Visit = tuple[float, float]


def shares(url: str, quick: bool) -> Table:
    table = Table(f"A single caller beside {FLOOD} others, limit {LIMIT}")
    found: dict[str, list[tuple[float, float, int]]] = {PLAIN: [], SHARES: []}
    for i in range(1 if quick else 3):
        for what, seen in found.items():
            seen.append(_flood(what, url, f"shares-{i}-{what}", 15 if quick else 30))
    base = [grants for _, _, grants in found[PLAIN]]
    for what, seen in found.items():
        middle, slowest, grants = zip(*seen, strict=True)
        table.rows.append(
            {
                "": what,
                "p50 in holds": median(middle),
                "p99 in holds": median(slowest),
                "grants": median(grants),
                f"× {PLAIN}": median([n / other for n, other in zip(grants, base, strict=True)]),
            }
        )
    return table


def _flood(what: str, url: str, name: str, seconds: float) -> tuple[float, float, int]:
    """Run FLOOD callers and a single caller. Return three numbers: the median wait of the single
    caller, the 99th percentile of its waits (both divided by HOLD), and the number of grants."""
    results, ready = _SPAWN.Queue(), _SPAWN.Barrier(2)
    processes = [
        _SPAWN.Process(target=_process, args=(what, *one, url, name, seconds, ready, results))
        for one in (("flood", FLOOD), ("single", 1))
    ]
    for process in processes:
        process.start()
    seen = dict(results.get(timeout=seconds + 60) for _ in processes)
    for process in processes:
        process.join()
    waits = sorted((got - asked) / HOLD for asked, got in seen["single"])
    slowest = waits[int(len(waits) * 0.99)]
    return median(waits), slowest, sum(map(len, seen.values()))


def _process(
    what: str,
    share: str,
    callers: int,
    url: str,
    name: str,
    seconds: float,
    ready: Any,
    results: Any,
) -> None:
    project.setup(url)
    results.put((share, asyncio.run(_callers(what, share, callers, name, seconds, ready))))


async def _callers(
    what: str, share: str, callers: int, name: str, seconds: float, ready: Any
) -> list[Visit]:
    from django_redis_sync import Semaphore

    visits: list[Visit] = []
    semaphore = Semaphore(name, LIMIT, share=share if what == SHARES else None)
    async with Semaphore(f"{name}-first", 2):
        ready.wait()
    end = time.monotonic() + seconds

    async def caller() -> None:
        while time.monotonic() < end:
            asked = time.monotonic()
            lease = await semaphore.aacquire(blocking_timeout=max(0.1, end - asked))
            if lease is None:
                break
            if (got := time.monotonic()) > end - 0.8 * seconds:  # ignore the first 20 % of the time
                visits.append((asked, got))
            await asyncio.sleep(HOLD)
            await lease.arelease()

    await asyncio.gather(*(caller() for _ in range(callers)))
    return visits
