"""The server of a cache alias: `Server` in sync code, `AsyncServer` on an event loop."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from redis import exceptions as errors

from .. import conf
from ..protocol.steps import Answer, Failure, Run, Sleep, Step, Wait
from .batching import Batcher
from .clients import async_client, backend_of
from .hub import Hub
from .loops import resources_of, resources_of_all_loops
from .pools import (
    BlockingPool,
    CachedConnections,
    CheckedOut,
    Exhausted,
    PrivatePool,
    retry_if_disconnected,
)
from .wire import ATTEMPT, REDIS_ERRORS, answered, clock, pack, pack_step, text, why, words_of

_POLL = 0.05


class Members(str):
    """The aliases of a quorum. As a str, the aliases joined by "+"."""

    __slots__ = ("aliases",)
    aliases: tuple[str, ...]

    def __new__(cls, aliases: Iterable[str]) -> Members:
        given = tuple(aliases)
        self = super().__new__(cls, "+".join(given))
        self.aliases = given
        return self

    @property
    def need(self) -> int:
        """The number of servers that are a majority."""
        return len(self.aliases) // 2 + 1


class Server:
    """The server of a cache alias in sync code. It uses the connections of the project's pool."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._waiting: weakref.WeakKeyDictionary[Any, BlockingPool] = weakref.WeakKeyDictionary()
        self._own: weakref.WeakKeyDictionary[Any, PrivatePool] = weakref.WeakKeyDictionary()
        self._cached = CachedConnections()

    def pool(self) -> Any:
        """Return the project's pool."""
        return backend_of(self.alias).get_client(write=True).connection_pool

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

    def run(self, step: Run) -> Answer:
        """Run a script and return the answer. If the server doesn't have the script yet, send its
        source. Raise Failure if there was no usable answer."""
        with CheckedOut(self._connections(), step.timeout) as borrowed:
            sent = clock()
            borrowed.send(pack_step(step))
            try:
                reply = borrowed.read()
            except errors.NoScriptError:
                sent = clock()
                borrowed.send(pack(words_of(step, whole=True)))
                reply = borrowed.read()
            return Answer(answered(reply), sent, clock())

    def node_of(self, step: Run) -> Hashable:
        """Return the node for which `step` is queued, so that a hanging node delays only its own
        steps. Send nothing."""
        return None

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """Send several steps in one round trip. Return an Answer or a Failure for each.

        They use a private connection. So leases are renewed even if the project's pool is
        exhausted, and a fork never finds the pool's lock held by the renewal thread.
        """
        if not steps:
            return []
        try:
            timeout = min(step.timeout for step in steps)
            with CheckedOut(self.own(), timeout) as borrowed:
                sent = clock()
                replies: list[Any] = []
                borrowed.send_several(map(pack_step, steps))
                for _ in steps:
                    try:
                        reply = answered(borrowed.read())
                        replies.append(Answer(reply, sent, clock()))
                    except errors.ResponseError as error:
                        replies.append(error)
        except Failure as failure:
            return [failure for _ in steps]
        return [self._again(step, reply) for step, reply in zip(steps, replies, strict=True)]

    def _again(self, step: Run, reply: Any) -> Answer | Failure:
        if isinstance(reply, Answer):
            return reply
        if isinstance(reply, errors.NoScriptError):
            try:
                return self.run(step)
            except Failure as failure:
                return failure
        return Failure(reply, clock(), why(reply, True))

    def command(self, *args: Any, timeout: float = ATTEMPT) -> Any:
        """Send another Redis command, which may be sent twice, over a private connection. Return
        the reply with str for bytes. Raise Failure if there was no usable answer within `timeout`
        seconds."""

        def ask() -> Any:
            with CheckedOut(self.own(), timeout) as borrowed:
                borrowed.send(pack(args))
                return text(borrowed.read())

        return retry_if_disconnected(ask)

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = ATTEMPT) -> list[Any]:
        """Send several commands in one round trip, as `command` does. Return their replies; a reply
        may be a ResponseError."""

        def ask() -> list[Any]:
            replies: list[Any] = []
            with CheckedOut(self.own(), timeout) as borrowed:
                borrowed.send_several(map(pack, several))
                for _ in several:
                    try:
                        replies.append(text(borrowed.read()))
                    except errors.ResponseError as error:
                        replies.append(error)
            return replies

        return retry_if_disconnected(ask) if several else []

    def close_idle(self) -> None:
        """Return and close idle connections, because this object is no longer used."""
        self._cached.close_idle()
        for own in list(self._own.values()):
            own.close_idle()

    def _connections(self) -> CachedConnections:
        if self._cached.is_old():
            pool = self.pool()
            self._cached.belong_to(pool, self._own_of(pool))
        return self._cached

    def own(self) -> PrivatePool:
        """Return the private pool, whose connections only this library uses."""
        return self._own_of(self.pool())

    def _own_of(self, pool: Any) -> PrivatePool:
        return self._own.get(pool) or self._own.setdefault(pool, PrivatePool(pool))

    def wait(self, step: Wait) -> Answer:
        """Wait for the wake-up message of a token. The reply is None if it did not arrive."""
        pool, sent = self._connections().pool, clock()
        waiting = self._waiting.get(pool)
        if waiting is None:
            waiting = self._waiting.setdefault(pool, BlockingPool(self._own_of(pool)))
        key = step.keys.wake + step.token
        try:
            reply = waiting.pop(key, step.seconds)
        except Exhausted:
            time.sleep(min(step.seconds, _POLL))
            return Answer(None, sent, clock())
        except REDIS_ERRORS as error:
            raise Failure(error, clock(), why(error, True)) from error
        return Answer(None if reply is None else text(reply)[1], sent, clock())


class AsyncServer:
    """The server of a cache alias on an event loop.

    `plans`: number of plans that use it. `retired`: True if the settings changed or the loop is
    ending. A retired server closes when no plan uses it.
    """

    plans, retired = 0, False

    def __init__(self, alias: str, client: Any) -> None:
        self.alias, self.client = alias, client
        self.batcher = Batcher(client)
        self.hub = Hub(client, conf.current().prefix(alias))
        # A copy: redis-py loses entries of this list if two tasks look up the primary concurrently.
        manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
        self._sentinels = () if manager is None else tuple(manager.sentinels)

    async def aclose(self) -> None:
        """Close the connections; a later step opens them again."""
        await self.hub.aclose()
        await self.batcher.aclose()
        await self.client.aclose()
        for sentinel in self._sentinels:
            await sentinel.aclose()

    def left(self) -> None:
        """Count the end of a plan. The last one closes a retired server."""
        self.plans -= 1
        if self.retired and not self.plans:
            resources_of(asyncio.get_running_loop()).left(self)

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """Carry out a step. Return a future of its Answer, or of a Failure if there was no usable
        answer."""
        if type(step) is Run:
            return self.batcher.submit(step)
        if type(step) is Wait:
            return self.hub.wait(step.token, step.seconds, step.keys.leases)
        assert isinstance(step, Sleep)
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_later(step.seconds, _resolve, done, Answer(None, clock(), clock() + step.seconds))
        return done


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


_servers: dict[str, Server] = {}


def server_of(alias: str) -> Server:
    """Return the process's Server of an alias."""
    found = _servers.get(alias)
    if found is None or _stand_ins:
        found = _made("sync", alias, Server)
        found = found if _stand_ins else _servers.setdefault(alias, found)
    return found


def async_server_of(alias: str) -> AsyncServer:
    """Return the AsyncServer of an alias on the running event loop."""
    mine = resources_of(asyncio.get_running_loop()).by_alias if not _stand_ins else {}
    found: AsyncServer | None = mine.get(alias)
    if found is None:
        found = mine[alias] = _made("async", alias, _async_one)
    return found


def _async_one(alias: str) -> AsyncServer:
    return AsyncServer(alias, async_client(alias))


@contextmanager
def replaced(sync: Callable[[str], Any], asynchronous: Callable[[str], Any]) -> Iterator[None]:
    """Replace the servers of all aliases within the block by those that these functions make."""
    global _stand_ins
    before, _stand_ins = _stand_ins, {"sync": sync, "async": asynchronous}
    try:
        yield
    finally:
        _stand_ins = before


#: The functions of `replaced`, by kind: "sync" and "async". Empty outside of its block.
_stand_ins: dict[str, Callable[[str], Any]] = {}


def _made(kind: str, alias: str, one: Callable[[str], Any]) -> Any:
    """Return a server made by the alias (a quorum), by its connection factory (a Cluster's), or
    else by `one`."""
    if kind in _stand_ins:
        return _stand_ins[kind](alias)
    makes = alias if type(alias) is not str else backend_of(alias).connection_factory
    make: Callable[[str], Any] = getattr(makes, f"{kind}_server", one)
    return make(alias)


@conf.on_change
def _forget() -> None:
    for former in list(_servers.values()):
        if isinstance(former, Server):
            former.close_idle()
    _servers.clear()
    for loop, held in resources_of_all_loops():
        former_ones, held.by_alias = list(held.by_alias.values()), {}
        if former_ones:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(held.retire, former_ones)
