"""A client and a journal that cover all servers of a topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import redis

from devtools.topologies import Cluster, Sentinels, client
from tests.support import journal


class Everywhere:
    """A client that sends each command to Sentinel's primary, or to the Cluster node that owns the
    key."""

    def __init__(self, topology: Sentinels | Cluster) -> None:
        self._topology = topology
        self.clients: dict[int | None, redis.Redis] = {}

    def __enter__(self) -> Everywhere:
        return self

    def __exit__(self, *error: object) -> None:
        for one in self.clients.values():
            one.close()

    def of(self, server: Any) -> redis.Redis:
        if server.port not in self.clients:
            self.clients[server.port] = client(server)
        return self.clients[server.port]

    @property
    def each(self) -> list[redis.Redis]:
        """A client of each server that holds data."""
        if isinstance(self._topology, Cluster):
            return [self.of(server) for server in self._topology.primaries]
        return [self.of(self._topology.current())]

    def at(self, key: str | bytes) -> redis.Redis:
        """Return the client of the server that owns a key."""
        if isinstance(self._topology, Cluster):
            text = key.decode() if isinstance(key, bytes) else key
            return self.of(self._topology.owner(text))
        return self.each[0]

    def __getattr__(self, command: str) -> Any:
        """Return a function that sends a command whose first argument is its key."""
        return lambda key, *args, **options: getattr(self.at(key), command)(key, *args, **options)

    def eval(self, source: str, count: int, *args: Any) -> Any:
        return self.at(args[0]).eval(source, count, *args)

    def time(self) -> Any:
        return self.each[0].time()

    def flushdb(self) -> None:
        for one in self.each:
            one.flushdb()

    def scan_iter(self, **options: Any) -> Iterator[bytes]:
        for one in self.each:
            yield from one.scan_iter(**options)

    def info(self, section: str) -> dict[str, Any]:
        """Return the number of calls of each command, summed over all servers. `section` must be
        `commandstats`."""
        calls: Counter[str] = Counter()
        for one in self.each:
            calls.update({name: row["calls"] for name, row in one.info(section).items()})
        return {name: {"calls": count} for name, count in calls.items()}


def by_name(coda: str) -> str:
    """Return a version of `coda` for a Cluster. `coda` is the Lua code that writes to the journal.
    The new version writes to a separate list for each name, in the slot of the name."""
    own = coda.replace("'%(key)s', cjson", "'%(key)s' .. string.match(KEYS[1], '%%b{}'), cjson")
    assert own != coda
    return own


class Journals(journal.Journal):
    """The journals of all names of a Cluster. Each name has a journal of its own, on the server
    that owns the name. Each journal is checked separately."""

    topology: Cluster

    def check(self) -> None:
        for one in self._each():
            one.check()

    def __iter__(self) -> Iterator[Any]:
        for one in self._each():
            yield from one

    def drain(self) -> int:
        return 0

    def _each(self) -> Iterator[journal.Journal]:
        with Everywhere(self.topology) as everywhere:
            keys = list(everywhere.scan_iter(match=f"{self.key}{{*"))
            assert keys, f"nothing was written to the journals {self.key}"
            for key in map(bytes.decode, keys):
                yield _Journal(everywhere.at(key), key, self.constants)


_Journal = journal.Journal
