"""Measure the time and memory of the Redis server for different numbers of holders and waiters.

The benchmarks call the Lua scripts without the rest of the library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import redis

from django_redis_sync.engine.names import write_label
from django_redis_sync.engine.wire import words_of
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import Keys, keys_of
from django_redis_sync.protocol.steps import Run

from .report import Row, Table, median

KEEP = 360
LEASE_MS = 600_000


class Name:
    """A lock name. Its methods run the Lua scripts for many tokens in one pipeline."""

    def __init__(self, client: redis.Redis, name: str, limit: int, keep: int = KEEP) -> None:
        self.client, self.limit, self.keep = client, limit, keep
        self.keys: Keys = keys_of("bench", name, None, keep)
        self.fences: dict[str, str] = {}

    def acquire(self, tokens: Iterable[str]) -> None:
        tokens, label = list(tokens), write_label()
        argv = (LEASE_MS, "wait", f"p {self.limit}", f"1 {self.limit} - {label}", self.keep)
        replies = self._run(Run("acquire", self.keys.declared, (t, *argv), 5.0) for t in tokens)
        for token, reply in zip(tokens, replies, strict=True):
            word, *rest = reply.decode().split(" ")
            if word == "ok":
                self.fences[token] = rest[0]

    def release(self, tokens: Iterable[str]) -> None:
        self._run(
            Run("release", self.keys.declared, (t, self.fences.pop(t), self.keep), 5.0)
            for t in list(tokens)
        )

    def hand_on(self, token: str) -> str:
        """Release the permit of `token`. Return the token of the waiter that gets this permit."""
        head = self.client.zrange(self.keys.queue, 0, 0)[0].decode()
        self.release([token])
        element: Any = self.client.lpop(self.keys.wake + head)
        self.fences[head] = element.split()[0].decode()
        return head

    def timed(self, tokens: list[str]) -> tuple[float, float]:
        """Acquire a permit for each token, and release all permits. Return two numbers: the
        server's mean µs for an acquire, and its mean µs for a release."""
        return _timed(self.client, lambda: self.acquire(tokens)), _timed(
            self.client, lambda: self.release(tokens)
        )

    def memory(self) -> int:
        keys = [self.keys.leases, self.keys.queue, self.keys.waiters, self.keys.info]
        return sum(self.client.memory_usage(key, samples=0) or 0 for key in keys)

    def _run(self, steps: Iterable[Run]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        replies: list[Any] = []
        for step in steps:
            pipeline.execute_command(*words_of(step))
            if len(pipeline) == 1000:
                replies += pipeline.execute()
        return replies + pipeline.execute()


def _timed(client: redis.Redis, call: Any) -> float:
    client.config_resetstat()
    call()
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


def _client(url: str) -> redis.Redis:
    client = redis.Redis.from_url(url)
    for verb in scripts.NAME_SCRIPTS:
        client.script_load(scripts.script(verb).source)
    return client


def _tokens(many: int, what: str = "t") -> list[str]:
    return [f"{what}{n:031d}" for n in range(many)]


def by_holders(url: str, quick: bool) -> Table:
    table = Table("Server µs with N holders")
    sizes = (10, 1_000) if quick else (10, 1_000, 100_000)
    client = _client(url)
    names = {size: Name(client, f"holders-{size}", 10**6) for size in sizes}
    for size, name in names.items():
        empty = name.memory()
        name.acquire(_tokens(size))
        table.notes.append(f"{size:,} holders: {(name.memory() - empty) / size:.0f} bytes each")
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    for _ in range(5 if quick else 15):
        for size, name in names.items():
            found[size].append(name.timed(_tokens(300, "m")))
    return _by_size(table, "holders", found)


def by_waiters(url: str, quick: bool) -> Table:
    table = Table("Server µs with N waiters: acquire that waits, handoff")
    sizes = (10, 100) if quick else (10, 100, 10_000)
    client = _client(url)
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    for i in range(2 if quick else 5):
        for size in sizes:
            # Use a new name each time, because waiters that don't repeat requests are removed.
            name = Name(client, f"waiters-{i}-{size}", 1)
            holder = "holder"
            name.acquire([holder])
            name.acquire(_tokens(size))
            if i == 0:
                table.notes.append(f"{size:,} waiters: {name.memory() / size:.0f} bytes each")
            joined = _timed(client, lambda: name.acquire(_tokens(100, "m")))  # noqa: B023
            client.config_resetstat()
            for _ in range(100):
                holder = name.hand_on(holder)
            stat = client.info("commandstats")["cmdstat_evalsha"]
            found[size].append((joined, float(stat["usec_per_call"])))
            client.delete(name.keys.queue, name.keys.waiters, name.keys.info, name.keys.leases)
    return _by_size(table, "waiters", found)


def _by_size(table: Table, what: str, found: dict[int, list[tuple[float, float]]]) -> Table:
    first = min(found)
    for size, times in found.items():
        row: Row = {what: size}
        for i, verb in enumerate(("acquire", "release")):
            row[f"{verb} µs"] = median([pair[i] for pair in times])
            row[f"{verb} × {first}"] = median(
                [own[i] / base[i] for own, base in zip(times, found[first], strict=True)]
            )
        table.rows.append(row)
    return table


def statistics(url: str, quick: bool) -> Table:
    """Measure acquire and release with statistics and without, and an empty script."""
    table = Table("Server µs with statistics and without")
    client = _client(url)
    on, off = Name(client, "stats-on", 1), Name(client, "stats-off", 1, keep=0)
    found: dict[str, list[tuple[float, float]]] = {"off": [], "on": []}
    nothing = client.script_load("return 1")
    empty = []
    for _ in range(10 if quick else 40):
        for what, name in (("off", off), ("on", on)):
            pairs = [_pair(name, f"t{n:031d}") for n in range(2)]
            found[what] += pairs
        empty.append(_timed(client, lambda: [client.evalsha(nothing, 1, "k") for _ in range(50)]))
    table.rows.append({"": "an empty script", "acquire": median(empty), "release": median(empty)})
    for what, pairs in found.items():
        row: Row = {"": what, "acquire": median([a for a, _ in pairs])}
        row["release"] = median([r for _, r in pairs])
        both = [sum(own) / sum(base) for own, base in zip(pairs, found["off"], strict=True)]
        row["both × off"] = median(both)
        table.rows.append(row)
    return table


def _pair(name: Name, token: str) -> tuple[float, float]:
    """Acquire and release a free permit 20 times. Return two numbers: the server's mean µs for an
    acquire, and its mean µs for a release."""
    acquire = release = 0.0
    for _ in range(20):
        acquired, released = name.timed([token])
        acquire, release = acquire + acquired / 20, release + released / 20
    return acquire, release
