"""Several Redis servers: with Sentinel, as a Cluster, or independent.

Each class is a context manager. The process that started the servers stops them. A failover
takes only seconds, because the timeouts are short. Such timeouts are for tests, not for production.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from .servers import HOST, ConfigValue, NoServer, RedisServer, free_port

SLOTS = 16384
READY_SECONDS = 30


def wait_for(met: Callable[[], Any], what: str, seconds: float = READY_SECONDS) -> Any:
    """Call `met()` until its result is true, and return the result. Raise NoServer if no result is
    true within `seconds`. `what`: words for the message, such as "a new primary"."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(redis.RedisError):
            if found := met():
                return found
        if time.monotonic() >= end:
            raise NoServer(f"Waited {seconds:.0f} s for {what}, without success.")
        time.sleep(0.02)


class _Servers:
    """The base of the classes below: servers that start and stop together."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def started(self, server: RedisServer) -> RedisServer:
        """Start a server, and return it. `stop()` will stop this server, too."""
        return self._stack.enter_context(server)

    def start(self) -> Any:
        raise NotImplementedError

    def stop(self) -> None:
        """End all servers."""
        self._stack.close()

    def __enter__(self) -> Any:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def client(server: RedisServer, **options: Any) -> redis.Redis:
    """Return a client of a server, with a timeout of 5 s."""
    # Retry once, because a server that changes its role closes the connections of its clients.
    again = Retry(NoBackoff(), 1, (redis.ConnectionError,))
    return redis.Redis.from_url(server.url, **{"socket_timeout": 5, "retry": again, **options})


class Independent(_Servers):
    """`count` independent servers, for a quorum."""

    def __init__(self, count: int = 5, config: Mapping[str, ConfigValue] | None = None) -> None:
        super().__init__()
        self.servers = [RedisServer(config=config) for _ in range(count)]

    def start(self) -> Independent:
        for server in self.servers:
            self.started(server)
        return self

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]


def _copied(primary: RedisServer, replicas: Sequence[RedisServer]) -> None:
    """Wait until the replicas have all writes of `primary`."""

    def arrives() -> bool:
        with client(primary) as mine:
            # WAIT needs an earlier write by this client. PUBLISH is a write that stores no key.
            mine.publish("copied", "")
            return int(mine.execute_command("WAIT", len(replicas), 1000)) == len(replicas)

    if replicas:
        wait_for(arrives, "replicas with all data")


# Sentinel


class _Sentinel(RedisServer):
    """A sentinel. Its configuration must be in a file, because a sentinel rewrites the file."""

    def __init__(self, lines: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.lines, self.id = list(lines), secrets.token_hex(20)

    def command(self, binary: Path) -> list[str]:
        assert self.directory is not None
        path = self.directory / "sentinel.conf"
        if not path.exists():
            own = [f"port {self.port}", f"bind {HOST}", f"dir {self.directory}"]
            path.write_text("\n".join([*own, f"sentinel myid {self.id}", *self.lines, ""]))
        return [str(binary), str(path), "--sentinel"]

    def _answers(self) -> bool:
        # Don't call `RedisServer._answers()`. It sends QUIT, and sentinels don't know that command.
        with contextlib.suppress(redis.RedisError), client(self, socket_timeout=1) as mine:
            return bool(mine.info("server")["process_id"] == self.pid)
        return False


class Sentinels(_Servers):
    """A primary and replicas, watched by sentinels under the name `service`.

    `down_after`: seconds without an answer after which a sentinel considers the primary down.
    """

    def __init__(
        self,
        sentinels: int = 3,
        replicas: int = 1,
        down_after: float = 1.2,
        config: Mapping[str, ConfigValue] | None = None,
    ) -> None:
        super().__init__()
        # The service name must be unique, because the URL has no other variable part. django-redis
        # would reuse the connection pool of an earlier object with the same URL.
        self.service, self.down_after = f"main-{secrets.token_hex(4)}", down_after
        self._count, self._config = sentinels, dict(config or {})
        # Replicate without a delay. By default, a primary first waits 5 s for further replicas.
        quick: dict[str, ConfigValue] = {
            "repl-diskless-sync-delay": 0,
            "repl-ping-replica-period": 1,
        }
        self.primary = RedisServer(config={**quick, **self._config})
        self.replicas = [RedisServer(config={**quick, **self._config}) for _ in range(replicas)]
        self.sentinels: list[_Sentinel] = []

    @property
    def servers(self) -> list[RedisServer]:
        """The servers with data: the first primary, then its replicas."""
        return [self.primary, *self.replicas]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the sentinels, for the setting SENTINELS."""
        return [(HOST, sentinel.port or 0) for sentinel in self.sentinels]

    def start(self) -> Sentinels:
        self.started(self.primary)
        for replica in self.replicas:
            replica.config["replicaof"] = [HOST, str(self.primary.port)]
            self.started(replica)
        _copied(self.primary, self.replicas)
        for last in (False, False, True):
            try:
                self._start_sentinels()
                break
            except NoServer as error:
                if last or "already in use" not in str(error):
                    raise
        wait_for(lambda: all(map(self._knows_all, self.sentinels)), "sentinels that are ready")
        return self

    def _start_sentinels(self) -> None:
        for sentinel in self.sentinels:
            sentinel.stop()
        ports: set[int] = set()
        while len(ports) < self._count:
            ports.add(free_port())
        self.sentinels = [_Sentinel(self._watch(), port=port) for port in sorted(ports)]
        for sentinel in self.sentinels:
            # Tell each sentinel the addresses of the others, so that it need not discover them.
            sentinel.lines += [
                f"sentinel known-sentinel {self.service} {HOST} {other.port} {other.id}"
                for other in self.sentinels
                if other is not sentinel
            ]
            sentinel.lines += [
                f"sentinel known-replica {self.service} {HOST} {replica.port}"
                for replica in self.replicas
            ]
            self.started(sentinel)

    def _watch(self) -> list[str]:
        ms, name = int(self.down_after * 1000), self.service
        return [
            f"sentinel monitor {name} {HOST} {self.primary.port} {self._count // 2 + 1}",
            f"sentinel down-after-milliseconds {name} {ms}",
            f"sentinel failover-timeout {name} 4000",
            f"sentinel parallel-syncs {name} 1",
        ]

    def _knows_all(self, sentinel: RedisServer) -> bool:
        with client(sentinel) as mine:
            state = mine.sentinel_master(self.service)
        return (
            int(state["num-other-sentinels"]) == self._count - 1
            and int(state["num-slaves"]) == len(self.replicas)
            and not state["is_sdown"]
        )

    def current(self) -> RedisServer:
        """Return the primary that the sentinels report. Raise NoServer if no sentinel runs."""
        for sentinel in self.sentinels:
            if sentinel.pid is None:
                continue
            with client(sentinel) as mine:
                _, port = mine.sentinel_get_master_addr_by_name(self.service)
            return next(server for server in self.servers if server.port == int(port))
        raise NoServer("No sentinel runs.")

    @property
    def url(self) -> str:
        """The URL of the current primary."""
        return self.current().url

    def cache(self, **options: Any) -> dict[str, Any]:
        """An entry of CACHES for the primary and its replicas."""
        return {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://{self.service}/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": self.addresses,
                "SENTINEL_KWARGS": {"socket_timeout": 0.5},
                **options,
            },
        }


# Cluster


def _cluster(mine: redis.Redis, word: str) -> str:
    reply = mine.execute_command("CLUSTER", word)
    return reply.decode() if isinstance(reply, bytes) else str(reply)


class Cluster(_Servers):
    """A Redis Cluster of `primaries` primaries, each with `replicas` replicas.

    `node_timeout`: seconds without an answer after which a node counts as failed.
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 0,
        node_timeout: float = 2.0,
        config: Mapping[str, ConfigValue] | None = None,
    ) -> None:
        super().__init__()
        shared: dict[str, ConfigValue] = {
            "cluster-enabled": True,
            "cluster-node-timeout": int(node_timeout * 1000),
            # Let the other shards work while a shard is down.
            "cluster-require-full-coverage": False,
            "repl-diskless-sync-delay": 0,
            **(config or {}),
        }
        self.primaries = [RedisServer(config=shared) for _ in range(primaries)]
        self.replicas = [
            [RedisServer(config=shared) for _ in range(replicas)] for _ in range(primaries)
        ]

    @property
    def servers(self) -> list[RedisServer]:
        return [*self.primaries, *(replica for some in self.replicas for replica in some)]

    def start(self) -> Cluster:
        for server in self.servers:
            self.started(server)
        share = -(-SLOTS // len(self.primaries))
        for number, server in enumerate(self.primaries):
            with client(server) as mine:
                mine.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                slots = range(number * share, min(SLOTS, (number + 1) * share))
                mine.execute_command("CLUSTER", "ADDSLOTS", *slots)
        with client(self.primaries[0]) as first:
            for server in self.servers[1:]:
                first.execute_command("CLUSTER", "MEET", HOST, server.port)
        wait_for(lambda: all(map(self._knows_all, self.servers)), "nodes that know each other")
        for server, copies in zip(self.primaries, self.replicas, strict=True):
            for copy in copies:
                with client(copy) as mine:
                    mine.execute_command("CLUSTER", "REPLICATE", self.id(server))
        wait_for(lambda: all(map(self._is_up, self.servers)), "a Cluster that is up")
        for server, copies in zip(self.primaries, self.replicas, strict=True):
            _copied(server, copies)
        return self

    def _knows_all(self, server: RedisServer) -> bool:
        with client(server) as mine:
            nodes = _cluster(mine, "NODES").splitlines()
        return len(nodes) == len(self.servers) and not any("handshake" in node for node in nodes)

    def _is_up(self, server: RedisServer) -> bool:
        with client(server) as mine:
            info, copying = _cluster(mine, "INFO"), mine.info("replication")
        return (
            "cluster_state:ok" in info
            and f"cluster_slots_ok:{SLOTS}" in info
            and copying.get("master_link_status", "up") == "up"
        )

    def id(self, server: RedisServer) -> str:
        """Return the node id of a server."""
        with client(server) as mine:
            return _cluster(mine, "MYID")

    def owner(self, key: str | int) -> RedisServer:
        """Return the primary that stores `key`: the name of a key, or the number of a slot. Ask one
        node after another, until a node knows. Raise NoServer if no node knows."""
        slot = key_slot(key.encode()) if isinstance(key, str) else key
        for server in self.servers:
            with contextlib.suppress(redis.RedisError), client(server, socket_timeout=0.5) as mine:
                for start, end, primary, *_ in mine.execute_command("CLUSTER", "SLOTS"):
                    if start <= slot <= end:
                        return next(one for one in self.servers if one.port == primary[1])
        raise NoServer(f"No node has the slot {slot}.")

    def migrate(self, slot: int, target: RedisServer, pause: float = 0.0) -> None:
        """Move a slot with its keys to `target`. `pause`: seconds to wait before the keys are
        moved, and the same time to wait after they are moved."""
        source = self.owner(slot)
        with client(source) as old, client(target) as new:
            new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
            old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(target))
            time.sleep(pause)
            while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                old.execute_command("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
            time.sleep(pause)
        # Set the new owner on all nodes, the target first, so that no node reports the old owner.
        for server in dict.fromkeys((target, source, *self.primaries)):
            with client(server) as mine:
                mine.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.id(target))

    @property
    def url(self) -> str:
        """The URL of one node."""
        return self.primaries[0].url

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.primaries]

    def cache(self, **options: Any) -> dict[str, Any]:
        """An entry of CACHES for the Cluster."""
        return {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": self.urls,
            "OPTIONS": {
                "CONNECTION_FACTORY": "django_redis_sync.engine.cluster.ClusterConnectionFactory",
                **options,
            },
        }
