"""One plain client of all servers of a topology, for tests that read the state themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import redis

from devtools.topologies import Cluster, Sentinels, client


class Everywhere:
    """A client of Sentinel's primary, or of the Cluster node that owns each key."""

    def __init__(self, topology: Sentinels | Cluster) -> None:
        self._topology = topology
        self._clients: dict[int | None, redis.Redis] = {}

    def __enter__(self) -> Everywhere:
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._clients.values():
            one.close()

    def _of(self, server: Any) -> redis.Redis:
        if server.port not in self._clients:
            self._clients[server.port] = client(server)
        return self._clients[server.port]

    @property
    def _all(self) -> list[redis.Redis]:
        if isinstance(self._topology, Cluster):
            return [self._of(server) for server in self._topology.primaries]
        return [self._of(self._topology.current())]

    def at(self, key: str | bytes) -> redis.Redis:
        """Return the client of the server that owns a key."""
        if isinstance(self._topology, Cluster):
            text = key.decode() if isinstance(key, bytes) else key
            return self._of(self._topology.owner(text))
        return self._all[0]

    def __getattr__(self, command: str) -> Any:
        """Return a function that sends a command whose first argument is its key."""
        return lambda key, *args, **options: getattr(self.at(key), command)(key, *args, **options)

    def eval(self, source: str, count: int, *args: Any) -> Any:
        return self.at(args[0]).eval(source, count, *args)

    def time(self) -> Any:
        return self._all[0].time()

    def flushdb(self) -> None:
        for one in self._all:
            one.flushdb()

    def client_list(self) -> list[dict[str, Any]]:
        """Return the clients except sentinels and replicas, which reconnect by themselves."""
        found = [each for one in self._all for each in one.client_list(_type="normal")]
        return [each for each in found if not each["name"].startswith("sentinel-")]

    def scan_iter(self, **options: Any) -> Iterator[bytes]:
        for one in self._all:
            yield from one.scan_iter(**options)

    def info(self, section: str) -> dict[str, Any]:
        """Return the sums over all servers. `section` must be `commandstats`."""
        calls: Counter[str] = Counter()
        for one in self._all:
            calls.update({name: row["calls"] for name, row in one.info(section).items()})
        return {name: {"calls": count} for name, count in calls.items()}
