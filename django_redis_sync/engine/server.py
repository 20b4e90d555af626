"""Server objects, which carry out steps on the server of a cache alias: `Server` in sync code,
`AsyncServer` on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.core.cache import caches
from redis import exceptions as errors

from .. import conf
from ..protocol.steps import Answer, Failure, Run, Sleep, Step, Wait
from .backends import backend_of, client_errors
from .batching import Batcher
from .clients import async_client
from .hub import Hub
from .loops import resources_of, resources_of_all_loops
from .pools import CachedConnections, CheckedOut, PrivatePool, retry_if_disconnected
from .wire import ATTEMPT, answered, clock, pack, pack_step, text, why, words_of

#: Max seconds by which Redis ends a BLPOP later than its timeout, on a quiet server (with hz 10).
LATE = 0.12


class Members(str):
    """The aliases of a quorum. As a str, this object is the aliases joined by "+"."""

    aliases: tuple[str, ...]

    def __new__(cls, aliases: Iterable[str]) -> Members:
        given = tuple(aliases)
        self = super().__new__(cls, "+".join(given))
        self.aliases = given
        return self

    @property
    def need(self) -> int:
        """The number of servers that form a majority."""
        return len(self.aliases) // 2 + 1


class Server:
    """Carries out steps on the server of a cache alias, in sync code. `pool`: the connection pool
    to use; by default, the project's pool for the alias.
    """

    def __init__(self, alias: str, pool: Any = None) -> None:
        self.alias, self._pool, self._cached = alias, pool, CachedConnections()

    def pool(self) -> Any:
        """Return the connection pool of the server."""
        if self._pool:
            return self._pool
        backend = backend_of(self.alias)
        with client_errors(self.alias):
            return backend.pool()

    def perform(self, step: Step) -> Answer:
        """Carry out a step and return the answer. Raise Failure if there was no usable answer."""
        if type(step) is Run:
            return self.run(step)
        if type(step) is Wait:
            return self.wait(step)
        assert isinstance(step, Sleep)
        sent = clock()
        time.sleep(step.seconds)
        return Answer(None, sent, clock())

    def run(self, step: Run, asking: bool = False) -> Answer:
        """Run a script and return the answer. If the server doesn't know the script, send its
        source. Raise Failure if there was no usable answer. `asking`: True to send Redis Cluster's
        command ASKING first."""
        with CheckedOut(self._connections(), step.timeout) as borrowed:
            sent = clock()
            borrowed.send(pack_step(step), asking)
            try:
                reply = borrowed.read()
            except errors.NoScriptError:
                sent = clock()
                borrowed.send(pack(words_of(step, whole=True)), asking)
                reply = borrowed.read()
            return Answer(answered(reply), sent, clock())

    def node_of(self, step: Run) -> Hashable:
        """Return the node of a Cluster that will run `step`. For a single server, return None."""
        return None

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """Send several steps in one round trip. Return an Answer or a Failure for each.

        The steps use a private connection, because the renewal thread calls this method. So leases
        are renewed even if the project's pool is exhausted. The renewal thread also never holds the
        lock of the project's pool during a fork.
        """
        if not steps:
            return []
        sent = clock()
        try:
            timeout = min(step.timeout for step in steps)
            replies = self._replies([pack_step(step) for step in steps], timeout)
        except Failure as failure:
            return [failure for _ in steps]
        received, answers = clock(), list[Answer | Failure]()
        for step, reply in zip(steps, replies, strict=True):
            if isinstance(reply, errors.NoScriptError):
                answers.append(self._tried(step))
            elif isinstance(reply, Exception):
                answers.append(Failure(reply, received, why(reply, True)))
            else:
                answers.append(Answer(answered(reply), sent, received))
        return answers

    def _tried(self, step: Run) -> Answer | Failure:
        """Return the answer of `run(step)`, or the Failure that it raises."""
        try:
            return self.run(step)
        except Failure as failure:
            return failure

    def _replies(self, packed: Sequence[bytes], timeout: float) -> list[Any]:
        """Send several commands in one round trip over a private connection. Return their replies.
        An error reply is returned as a ResponseError."""
        replies: list[Any] = []
        with CheckedOut(self.own(), timeout) as borrowed:
            borrowed.send_several(packed)
            for _ in packed:
                try:
                    replies.append(borrowed.read())
                except errors.ResponseError as error:
                    replies.append(error)
        return replies

    def command(self, *args: Any, timeout: float = ATTEMPT, asking: bool = False) -> Any:
        """Send a plain Redis command over a private connection. Return the reply, with bytes
        decoded to str. Raise Failure if there was no usable answer within `timeout` seconds. The
        command may be sent twice. `asking`: True to send Redis Cluster's ASKING first."""

        def ask() -> Any:
            with CheckedOut(self.own(), timeout) as borrowed:
                borrowed.send(pack(args), asking)
                return text(borrowed.read())

        return retry_if_disconnected(ask)

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = ATTEMPT) -> list[Any]:
        """Send several plain Redis commands in one round trip over a private connection. Return
        their replies. An error reply is returned as a ResponseError. Each command may be sent
        twice."""
        packed = [pack(args) for args in several]
        replies = retry_if_disconnected(lambda: self._replies(packed, timeout)) if packed else []
        return [text(reply) for reply in replies]

    def close_idle(self) -> None:
        """Return idle connections to the pool, and close private connections. Call this when this
        object is no longer used."""
        self._cached.close_idle()

    def _connections(self) -> CachedConnections:
        if self._cached.is_old():
            pool = self.pool()
            with client_errors(self.alias):
                self._cached.belong_to(pool)
        return self._cached

    def own(self) -> PrivatePool:
        """Return the pool of the private connections, which only this package uses."""
        own: PrivatePool = self._connections().own
        return own

    def wait(self, step: Wait) -> Answer:
        """Wait for the wake-up message of a token. The reply in the answer is the message, or None
        if no message arrives within `step.seconds`."""
        sent, reply = clock(), None
        # Redis ends a BLPOP up to LATE after its timeout. So before a wait that must end in time,
        # sleep for the rest. No message is missed meanwhile: until then, the rate forbids a grant.
        popping = step.seconds - LATE if step.exact else step.seconds
        if popping > 0:
            reply = self.own().pop(step.keys.wake + step.token, popping)
        if reply is None and step.exact:
            time.sleep(max(0.0, sent + step.seconds - clock()))
        return Answer(None if reply is None else text(reply)[1], sent, clock())


class AsyncServer:
    """Carries out steps on the server of a cache alias, on an event loop.

    `plans`: number of plans that use this object. `retired`: True if the settings changed or the
    loop is ending. A retired object closes its connections when its last plan ends.
    """

    plans, retired = 0, False

    def __init__(self, alias: str, client: Any = None) -> None:
        client = client or async_client(alias)
        self.alias, self.client = alias, client
        self.batcher = Batcher(client)
        self.hub = Hub(client, conf.current().prefix(alias))
        # Copy the list of Sentinel clients, so that all clients can be closed later. redis-py loses
        # clients of its own list if two tasks look up the primary at the same time.
        manager = getattr(client.connection_pool, "sentinel_manager", None)
        self._sentinels = () if manager is None else tuple(manager.sentinels)

    async def aclose(self) -> None:
        """Close the connections; a later step opens them again."""
        await self.hub.aclose()
        await self.batcher.aclose()
        await self.client.aclose()
        for sentinel in self._sentinels:
            await sentinel.aclose()

    def left(self) -> None:
        """Record that a plan has ended. If this object is retired, close it after its last plan."""
        self.plans -= 1
        if self.retired:
            resources_of(asyncio.get_running_loop()).retire([self])

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """Carry out a step. Return a future of its Answer, or of a Failure if there was no usable
        answer."""
        if type(step) is Run:
            return self.batcher.submit(step)
        if type(step) is Wait:
            return self.hub.wait(step.token, step.seconds, step.keys.leases)
        assert isinstance(step, Sleep)
        return asyncio.ensure_future(_slept(step.seconds))


async def _slept(seconds: float) -> Answer:
    sent = clock()
    await asyncio.sleep(seconds)
    return Answer(None, sent, clock())


_servers: dict[str, Server] = {}


def server_of(alias: str) -> Server:
    """Return the process's Server object for an alias."""
    found: Server | None = _stand_ins["sync"](alias) if _stand_ins else _servers.get(alias)
    return found or _servers.setdefault(alias, _maker(alias, "sync_server", Server)(alias))


def async_server_of(alias: str) -> AsyncServer:
    """Return the AsyncServer object for an alias on the running event loop."""
    mine = {} if _stand_ins else resources_of(asyncio.get_running_loop()).by_alias
    found: AsyncServer | None = _stand_ins["async"](alias) if _stand_ins else mine.get(alias)
    if found is None:
        found = mine[alias] = _maker(alias, "async_server", AsyncServer)(alias)
    return found


def cache_of(alias: str) -> Any:
    """Return the cache in which single_flight functions with this alias store their results. Raise
    ImproperlyConfigured if there is no such cache."""
    return _stand_ins["cache"](alias) if _stand_ins else caches[alias]


@contextmanager
def replaced(
    sync: Callable[[str], Any], asynchronous: Callable[[str], Any], cache: Callable[[str], Any]
) -> Iterator[None]:
    """A context manager. Within its block, `server_of(alias)` returns `sync(alias)`,
    `async_server_of(alias)` returns `asynchronous(alias)`, and `cache_of(alias)` returns
    `cache(alias)`."""
    global _stand_ins
    before, _stand_ins = _stand_ins, {"sync": sync, "async": asynchronous, "cache": cache}
    try:
        yield
    finally:
        _stand_ins = before


#: The arguments of `replaced`, by kind ("sync", "async", or "cache"). Empty outside of a `replaced`
#: block.
_stand_ins: dict[str, Callable[[str], Any]] = {}


def _maker(alias: str, method: str, of_one_server: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the function that makes the server object of an alias: the attribute `method` of the
    module `memory`, of the Quorum (see `engine/quorum/__init__.py`), or of the topology of a
    Cluster (see `engine/cluster/__init__.py`). If there is none, the alias is one server:
    return `of_one_server`."""
    owner: Any = alias
    if conf.current().without_redis:
        from . import memory

        owner = memory
    elif type(alias) is str:
        owner = backend_of(alias).topology
    found: Callable[[str], Any] = getattr(owner, method, of_one_server)
    return found


@conf.on_change
def _forget() -> None:
    for former in list(_servers.values()):
        former.close_idle()
    _servers.clear()
    for loop, held in resources_of_all_loops():
        former_ones, held.by_alias = list(held.by_alias.values()), {}
        if former_ones:
            with suppress(RuntimeError):  # raised if the loop is closed
                loop.call_soon_threadsafe(held.retire, former_ones)
