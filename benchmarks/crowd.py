"""Let threads or tasks of several processes compete for permits of one limit. Measure their
throughput, fairness, CPU time, and connections."""

from __future__ import annotations

import asyncio
import heapq
import multiprocessing
import os
import queue
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from . import contenders, project
from .report import median

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Crowd:
    """The load of a run. There are `processes` processes, each with `workers` threads or tasks.
    These workers repeat a cycle for `seconds`: acquire a permit, hold the permit for `hold`
    seconds, and release it."""

    limit: int
    hold: float
    processes: int
    workers: int
    seconds: float
    asynchronous: bool = False


@dataclass
class Seen:
    """The measurements of one process. `cycles`: for each worker, a list with a tuple per cycle.
    The tuple has three times: the start of the acquire, its end, and the start of the release.
    Times are in seconds, from the machine's monotonic clock."""

    cycles: list[list[tuple[float, float, float]]]
    cpu: float
    connections: int
    errors: list[str]


@dataclass
class Outcome:
    """The result of a run. `rate`: cycles per second. `jain`: Jain's index of fairness, at most 1.
    `spread`: the 99th percentile of the waits, divided by the median wait. `cpu`: CPU seconds per
    cycle. `most`: maximum number of permits that were held at once. `errors`: exceptions that
    ended workers early."""

    rate: float
    jain: float
    spread: float
    cpu: float
    connections: int
    most: int
    errors: list[str]


class Failed(Exception):
    """A run did not start or end before its deadline, for example because a process crashed."""


def run(name: str, crowd: Crowd, url: str) -> Outcome:
    """Run a contender in new processes, which all begin at the same time."""
    # Connections of earlier benchmarks. They are subtracted from the result.
    others = _connections(url)
    ready = _SPAWN.Barrier(crowd.processes + 1)
    results = _SPAWN.Queue()
    key = f"crowd-{os.getpid()}-{time.monotonic_ns()}"
    processes = [
        _SPAWN.Process(target=_process, args=(name, crowd, url, key, ready, results), daemon=True)
        for _ in range(crowd.processes)
    ]
    for process in processes:
        process.start()
    try:
        ready.wait(30)
        seen: list[Seen] = [results.get(timeout=crowd.seconds + 30) for _ in processes]
    except (threading.BrokenBarrierError, queue.Empty):
        raise Failed(f"{name} did not start or end before the deadline") from None
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return _outcome(seen, crowd.seconds, others)


def _outcome(seen: list[Seen], seconds: float, others: int) -> Outcome:
    workers = [cycles for process in seen for cycles in process.cycles]
    cycles = [cycle for own in workers for cycle in own]
    counts = [len(own) for own in workers]
    waits = sorted(got - asked for asked, got, _ in cycles)
    return Outcome(
        rate=len(cycles) / seconds,
        jain=sum(counts) ** 2 / (len(counts) * sum(n * n for n in counts)) if cycles else 0.0,
        spread=waits[int(len(waits) * 0.99)] / median(waits) if cycles else 0.0,
        cpu=sum(process.cpu for process in seen) / max(1, len(cycles)),
        connections=max(process.connections for process in seen) - others,
        most=_most_inside(cycles),
        errors=[error for process in seen for error in process.errors],
    )


def _most_inside(cycles: Sequence[tuple[float, float, float]]) -> int:
    """Return the maximum number of permits that were held at the same time."""
    leaving: list[float] = []
    most = 0
    for _, got, gave in sorted(cycles, key=lambda cycle: cycle[1]):
        while leaving and leaving[0] <= got:
            heapq.heappop(leaving)
        heapq.heappush(leaving, gave)
        most = max(most, len(leaving))
    return most


def _process(name: str, crowd: Crowd, url: str, key: str, ready: Any, results: Any) -> None:
    project.setup(url)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    results.put((_tasks if crowd.asynchronous else _threads)(name, crowd, url, key, ready))


def _threads(name: str, crowd: Crowd, url: str, key: str, ready: Any) -> Seen:
    make = contenders.SYNC[name][0]
    cycles: list[list[tuple[float, float, float]]] = [[] for _ in range(crowd.workers)]
    gate = threading.Barrier(crowd.workers + 1)
    ends: list[float] = []
    errors: list[str] = []

    def work(own: list[tuple[float, float, float]]) -> None:
        enter = make(url, key, crowd.limit)
        try:
            try:
                with enter():  # connects and loads scripts, before the run
                    pass
            finally:
                gate.wait()
                gate.wait()
            cycle(enter, own)
        except Exception as error:
            errors.append(repr(error))

    def cycle(enter: Callable[[], Any], own: list[tuple[float, float, float]]) -> None:
        clock, hold = time.monotonic, crowd.hold
        while (asked := clock()) < ends[0]:
            with enter():
                got = clock()
                if hold:
                    time.sleep(hold)
                gave = clock()
            own.append((asked, got, gave))

    threads = [threading.Thread(target=work, args=(own,), daemon=True) for own in cycles]
    for thread in threads:
        thread.start()
    gate.wait()
    ready.wait()
    cpu = time.process_time()
    ends.append(time.monotonic() + crowd.seconds)
    gate.wait()
    connections = _watch_connections(url, crowd.seconds)
    for thread in threads:
        thread.join(60)
    return Seen(cycles, time.process_time() - cpu, connections, errors)


def _watch_connections(url: str, seconds: float) -> int:
    """Return the server's number of connections in the middle of a run, which takes `seconds`."""
    time.sleep(seconds / 2)
    found = _connections(url)
    time.sleep(seconds / 4)
    return found


def _connections(url: str) -> int:
    """Return the server's number of connections, without the connection of this function."""
    # Use a new client, because the `with` block closes all connections of the client.
    with redis.Redis.from_url(url) as client:
        return int(client.info("clients")["connected_clients"]) - 1


def _tasks(name: str, crowd: Crowd, url: str, key: str, ready: Any) -> Seen:
    make = contenders.ASYNC[name][0]

    async def work(enter: Callable[[], Any], own: list[Any], end: float) -> None:
        clock, hold = time.monotonic, crowd.hold
        while (asked := clock()) < end:
            async with enter():
                got = clock()
                if hold:
                    await asyncio.sleep(hold)
                gave = clock()
            own.append((asked, got, gave))

    async def once(enter: Callable[[], Any]) -> None:
        async with enter():
            pass

    async def everybody() -> Seen:
        cycles: list[list[tuple[float, float, float]]] = [[] for _ in range(crowd.workers)]
        enter = make(url, key, crowd.limit)
        await asyncio.gather(*(once(enter) for _ in cycles))  # connects and loads scripts
        await asyncio.to_thread(ready.wait)
        cpu, end = time.process_time(), time.monotonic() + crowd.seconds
        connections = asyncio.create_task(asyncio.to_thread(_watch_connections, url, crowd.seconds))
        await asyncio.gather(*(work(enter, own, end) for own in cycles))
        return Seen(cycles, time.process_time() - cpu, await connections, [])

    return asyncio.run(everybody())
