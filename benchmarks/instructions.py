"""Count the instructions that the Redis server executes for each script.

Other load on the machine doesn't change these counts.

`python -m benchmarks.instructions` takes about forty seconds and needs valgrind. To measure another
version of Redis, put the folder of its `redis-server` first on PATH.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import redis

from devtools.servers import RedisServer, find_server
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import Keys, keys_of

from . import callgrind
from .report import Table
from .server import KEEP

#: Number of calls in a count, each with another name. To count each call alone would be too slow.
NAMES = 100
ROUNDS = 3
#: The names of two rows of the table. The two calls together are a cycle without contention.
CYCLE = "acquire, no holder", "release, no waiter"
# An hour in ms, for all deadlines: under callgrind, the server is too slow for the usual deadlines.
_HOUR = 3_600_000
_CONSTANTS = {
    **scripts.CONSTANTS,
    **dict.fromkeys(("FIRST", "CLAIM", "PATIENCE"), _HOUR),
    "ASLEEP": 2 * _HOUR,
}


#: Default values for the arguments (ARGV) of scripts.
_DEFAULTS: dict[str, Any] = {
    "lease": _HOUR,
    "wants": "p 1",
    "terms": '1 1 - {"pid":1234,"thread":"worker-1"}',
    "ms": _HOUR,
    "nth": 1,
    "known": 0,
    "keep": KEEP,
}


def arguments(verb: str, **named: Any) -> list[Any]:
    """Return ARGV for the script `verb`, in the order in which the script declares its arguments.
    `named`: values that replace those of `_DEFAULTS`. Omit arguments without a value."""
    given = _DEFAULTS | named
    return [given[name] for name in scripts.script(verb).argv if name in given]


class _Watched(RedisServer):
    """A Redis server that runs under callgrind."""

    @property
    def dumps(self) -> str:
        return f"{self.directory}/callgrind"

    def command(self, binary: Path) -> list[str]:
        return [*callgrind.command(self.dumps), *super().command(binary)]


class _Name:
    """A lock name, and the tokens of its callers. The first token is that of the holder."""

    def __init__(self, name: str) -> None:
        self.keys: Keys = keys_of("bench", name, None, KEEP)
        self.tokens: list[str] = []
        self.fence: Any = b"0"

    def token(self) -> str:
        """Make a token, append it to `tokens`, and return it."""
        self.tokens.append(secrets.token_hex(16))
        return self.tokens[-1]


class Counter:
    """Counts the instructions of a server, for each kind of call. Each count covers `NAMES` calls,
    one per name."""

    def __init__(self, server: _Watched) -> None:
        self.client = client = redis.Redis.from_url(server.url, socket_timeout=60)
        self.taken: dict[str, list[float]] = {}
        self._counter = callgrind.Callgrind(server.pid, server.dumps)
        self._shas = {
            verb: client.script_load(scripts.compose(verb, MappingProxyType(_CONSTANTS)))
            for verb in scripts.NAME_SCRIPTS
        }
        self._shas["an empty script"] = client.script_load("return {'ok'}")
        self.names = [_Name(f"n{number}") for number in range(NAMES)]

    def count(self, what: str, call: Callable[[_Name], Any]) -> list[Any]:
        """Call `call` with each name, and return the replies. Add the mean number of instructions
        per call to `taken[what]`."""
        taken, replies = self._counter.count(lambda: [call(name) for name in self.names])
        self.taken.setdefault(what, []).append(taken / NAMES)
        return replies

    def empty(self, name: _Name) -> Any:
        """Run an empty script with the keys and arguments of an acquire."""
        return self._run("an empty script", name, arguments("acquire", token="0" * 32, how="try"))

    def acquire(self, name: _Name, token: str, how: str) -> Any:
        return self._run("acquire", name, arguments("acquire", token=token, how=how))

    def release(self, name: _Name) -> Any:
        token = name.tokens.pop(0)
        return self._run("release", name, arguments("release", token=token, fence=name.fence))

    def renew(self, name: _Name) -> Any:
        argv = arguments("renew", token=name.tokens[0], fence=name.fence, how="set")
        return self._run("renew", name, argv)

    def _run(self, script: str, name: _Name, argv: list[Any]) -> Any:
        keys = name.keys.declared
        return self.client.evalsha(self._shas[script], len(keys), *keys, *argv)


def _keep(names: Iterable[_Name], granted: Iterable[Any]) -> None:
    for name, reply in zip(names, granted, strict=True):
        name.fence = reply.split()[1]


def _round(counter: Counter) -> None:
    """Count each kind of call at least one time. For calls with waiters, each name has a holder
    and three waiters. At the end, all names are free."""
    count, acquire, names = counter.count, counter.acquire, counter.names
    count("an empty script", counter.empty)
    _keep(names, count("acquire, after waiters", lambda n: acquire(n, n.token(), "try")))
    for name in names:
        counter.release(name)
    _keep(names, count(CYCLE[0], lambda n: acquire(n, n.token(), "try")))
    count("renew", counter.renew)
    count(CYCLE[1], counter.release)
    _keep(names, [acquire(n, n.token(), "try") for n in names])
    count("acquire, rejected", lambda n: acquire(n, "0" * 32, "try"))
    for _ in range(3):
        count("acquire that waits", lambda n: acquire(n, n.token(), "wait"))
    count("acquire that a waiter repeats", lambda n: acquire(n, n.tokens[2], "again"))
    for _ in range(3):
        count("release that hands off", counter.release)
        for name in names:
            element: Any = counter.client.lpop(name.keys.wake + name.tokens[0])
            name.fence = element.split()[0]
    count("renew, while the name has waiters", counter.renew)
    count("release, after all waiters are gone", counter.release)


def server(url: str, quick: bool) -> Table:
    """Start a Redis server under callgrind, and count the CPU instructions per call."""
    table = Table("Instructions of the server per call")
    if not callgrind.installed() or find_server() is None:
        table.notes.append("not measured: valgrind or redis-server is not installed")
        return table
    with _Watched(unixsocket=True, config={"hz": 1}) as watched:
        counter = Counter(watched)
        _round(counter)
        counter.taken.clear()  # ignore the first calls, which also fill caches
        for _ in range(1 if quick else ROUNDS):
            _round(counter)
        empty = min(counter.taken["an empty script"])
        for what, taken in counter.taken.items():
            # Use the minimum, because scripts also write statistics at the start of a minute.
            row = {"": what, "instructions": min(taken), "beyond empty": min(taken) - empty}
            table.rows.append(row)
        table.notes.append(f"Redis {counter.client.info('server')['redis_version']}")
    return table


if __name__ == "__main__":
    print(server("", quick=False))
