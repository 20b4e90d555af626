"""Measure the scaling figures of benchmarks/RESULTS.md: `python -m devtools.scaling`.

This program starts its own Redis servers. It calculates the capacity of a server from the server's
CPU seconds (INFO cpu), so that slow clients and other processes don't matter. A Redis server runs
Lua scripts on one core.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

from devtools.servers import RedisServer
from devtools.topologies import Cluster, client

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

CYCLES, BATCH = 20_000, 200
NAMES = 10_000
SECONDS = 4.0


def main() -> None:
    import django

    django.setup()
    print("| what | measured |")
    print("|---|---:|")
    with RedisServer() as server, client(server) as mine:
        version = mine.info("server")["redis_version"]
        one_core(mine)
        memory(mine)
    with Cluster() as cluster:
        shards(cluster)
    split()
    print(f"\nRedis {version}, {os.cpu_count()} cores for servers and clients together.")


# A limit that is split over several names


def split(limit: int = 100, load: float = 80, arrivals: int = 200_000) -> None:
    """Simulate a limit that is split over several names. Print two percentages of callers that are
    rejected although another name has a free permit: if each caller tries one name, and if it tries
    a second name.

    Callers arrive at random times, hold permits for random times, and pick names at random. If no
    caller were rejected, `load` callers would hold permits at the same time, on average.
    """
    for parts in (1, 4, 10):
        once, twice = (_rejected(limit, parts, load, arrivals, tries) for tries in (1, 2))
        row(
            f"callers rejected despite a free permit: limit {limit} split into {parts} x "
            f"{limit // parts}, {load:.0f} callers on average",
            f"{once:.1%} after one try, {twice:.1%} after two",
        )


def _rejected(limit: int, parts: int, load: float, arrivals: int, tries: int) -> float:
    """Return the fraction of callers that were rejected although another name had a free permit.
    `parts`: number of names. `tries`: number of names that each caller tries."""
    chance, now, rejected = random.Random(7), 0.0, 0
    ends: list[tuple[float, int]] = []
    used = [0] * parts
    for _ in range(arrivals):
        now += chance.expovariate(load)
        while ends and ends[0][0] <= now:
            used[heapq.heappop(ends)[1]] -= 1
        for mine in chance.sample(range(parts), min(tries, parts)):
            if used[mine] < limit // parts:
                used[mine] += 1
                heapq.heappush(ends, (now + chance.expovariate(1), mine))
                break
        else:
            rejected += sum(used) < limit
    return rejected / arrivals


def row(what: str, value: str) -> None:
    print(f"| {what} | {value} |", flush=True)


# One server core


def one_core(mine: redis.Redis) -> None:
    run = Scripts(mine)
    with cpu_of(mine) as spent:
        for _ in range(CYCLES // BATCH):
            tokens = [secrets.token_hex(16) for _ in range(BATCH)]
            for token in tokens:
                run.acquire("queue", token, limit=1, how="wait")
            for token in tokens:
                run.undo("queue", token)
            run.send()
    row("grants/s per server core, each handed off to a waiter", f"{CYCLES / spent():,.0f}")
    with cpu_of(mine) as spent:
        for _ in range(CYCLES // BATCH):
            run.cycles([f"many-{number}" for number in range(BATCH)])
    row("grants/s per server core, without waiters", f"{CYCLES / spent():,.0f}")
    mine.flushall()


class Scripts:
    """Runs the library's Lua scripts. `send()` sends all calls in one pipeline."""

    def __init__(self, mine: redis.Redis) -> None:
        from django_redis_sync.protocol import scripts

        for verb in scripts.NAME_SCRIPTS:
            mine.script_load(scripts.script(verb).source)
        self._pipe = mine.pipeline(transaction=False)

    def cycles(self, names: list[str]) -> None:
        """Acquire a permit of each name, and then release all. These are two round trips, because
        a release needs the fence, which the acquire returns."""
        tokens = [secrets.token_hex(16) for _ in names]
        for name, token in zip(names, tokens, strict=True):
            self.acquire(name, token, limit=1)
        granted = self.send()
        for name, token, reply in zip(names, tokens, granted, strict=True):
            self._run("release", name, token, (token, reply.split()[1], 360))
        self.send()

    def acquire(self, name: str, token: str, limit: int, how: str = "try", lease: int = 60) -> None:
        argv = (token, lease * 1000, how, f"p {limit}", f"1 {limit} - ", 360)
        self._run("acquire", name, token, argv)

    def undo(self, name: str, token: str) -> None:
        self._run("release", name, token, (token, "0", 360, "undo"))

    def send(self) -> list[Any]:
        return self._pipe.execute()

    def _run(self, verb: str, name: str, token: str, argv: tuple[Any, ...]) -> None:
        from django_redis_sync.engine import wire
        from django_redis_sync.protocol.keys import keys_of
        from django_redis_sync.protocol.steps import Run

        step = Run(verb, keys_of("scaling", name).declared, argv, 5.0)
        self._pipe.execute_command(*wire.words_of(step))


@contextlib.contextmanager
def cpu_of(mine: redis.Redis) -> Iterator[Callable[[], float]]:
    """Yield a function to call after the `with` block. The function returns the CPU seconds that
    the server used during the block."""

    def used() -> float:
        info = mine.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    before, after = used(), [0.0]
    yield lambda: after[0] - before
    after[0] = used()


# Memory


def memory(mine: redis.Redis) -> None:
    run = Scripts(mine)

    def grown(fill: Callable[[], None]) -> float:
        mine.flushall()
        run.acquire("warm", "w" * 32, limit=1)
        run.send()
        before = mine.info("memory")["used_memory"]
        fill()
        run.send()
        return (mine.info("memory")["used_memory"] - before) / NAMES

    def names() -> None:
        for number in range(NAMES):
            run.acquire(f"name-{number}", secrets.token_hex(16), limit=1)

    def idle() -> None:
        run.cycles([f"name-{number}" for number in range(NAMES)])

    def holders() -> None:
        for _ in range(NAMES):
            run.acquire("one", secrets.token_hex(16), limit=NAMES)

    def waiters() -> None:
        for _ in range(NAMES):
            run.acquire("one", secrets.token_hex(16), limit=1, how="wait")

    row("bytes per name with one holder, including statistics", f"{grown(names):,.0f}")
    row("bytes per name, for some seconds after a release", f"{grown(idle):,.0f}")
    row(f"bytes per holder, if a name has {NAMES:,} holders", f"{grown(holders):,.0f}")
    row(f"bytes per waiter, if a name has {NAMES:,} waiters", f"{grown(waiters):,.0f}")
    mine.flushall()


# Shards


def shards(cluster: Cluster) -> None:
    from django.conf import settings
    from django.test import override_settings

    from django_redis_sync.protocol.keys import keys_of

    prefix = settings.PREFIX
    by_shard: list[list[str]] = [[] for _ in cluster.primaries]
    for number in range(3000):
        name = f"spread-{number}"
        owner = cluster.primaries.index(cluster.owner(keys_of(prefix, name).leases))
        if len(by_shard[owner]) < 100:
            by_shard[owner].append(name)
        if all(len(names) == 100 for names in by_shard):
            break
    with override_settings(CACHES={**settings.CACHES, "cluster": cluster.cache()}):
        for count in (1, 2, 3):
            names = [name for some in by_shard[:count] for name in some[: 100 // count]]
            done, used, own = asyncio.run(_load(cluster, names))
            share = ", ".join(f"{one / SECONDS:.0%}" for one in used[:count])
            row(
                f"cycles/s of one process with 100 tasks, whose names are on {count} shard(s)",
                f"{done / SECONDS:,.0f} (servers busy {share}; the process {own / SECONDS:.0%})",
            )


async def _load(cluster: Cluster, names: list[str]) -> tuple[int, list[float], float]:
    from django_redis_sync import Lock

    done, end = 0, time.monotonic() + SECONDS

    async def work(name: str) -> None:
        nonlocal done
        lock = Lock(name, using="cluster")
        while time.monotonic() < end:
            async with lock:
                pass
            done += 1

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client(server)) for server in cluster.primaries]
        spent = [stack.enter_context(cpu_of(mine)) for mine in clients]
        own = time.process_time()
        await asyncio.gather(*map(work, names))
        own = time.process_time() - own
    return done, [one() for one in spent], own


if __name__ == "__main__":
    main()
