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
from .pools import CachedConnections, CheckedOut, Exhausted, Own, Waiting, retry_if_disconnected
from .wire import ATTEMPT, REDIS_ERRORS, answered, clock, pack, pack_step, text, why, words_of

_POLL = 0.05


class Members(str):
    """The aliases of a quorum."""

    __slots__ = ("aliases",)
    aliases: tuple[str, ...]

    def __new__(cls, aliases: Iterable[str]) -> Members:
        given = tuple(aliases)
        self = super().__new__(cls, "+".join(given))
        self.aliases = given
        return self

    @property
    def need(self) -> int:
        """How many are a majority."""
        return len(self.aliases) // 2 + 1


class Server:
    """The sync side of a cache alias. Holds no connection: it asks the project's pool."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._waiting: weakref.WeakKeyDictionary[Any, Waiting] = weakref.WeakKeyDictionary()
        self._own: weakref.WeakKeyDictionary[Any, Own] = weakref.WeakKeyDictionary()
        self._at_hand = CachedConnections()

    def pool(self) -> Any:
        """Return the project's pool."""
        return backend_of(self.alias).get_client(write=True).connection_pool

    def perform(self, step: Step) -> Answer:
        """Carry out a step. Failure when no useful answer came."""
        if type(step) is Run:
            return self.run(step)
        if type(step) is Wait:
            return self.wait(step)
        assert isinstance(step, Sleep)
        sent = clock()
        time.sleep(step.seconds)
        return Answer(None, sent, clock())

    def run(self, step: Run) -> Answer:
        """The answer of a verb; its source is sent along when the server does not know it yet."""
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
        """The lane of a step for `many`, a node's: a node that hangs must not hold up the others'
        steps. Sends nothing."""
        return None

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """Several steps in a single round trip; a Failure stands in its step's place.

        Over a connection of our own: the keeper must get through when the project's pool is
        exhausted, and a fork must not find the pool's lock held by the keeper's thread.
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
        """Any other command of Redis that may be sent twice, its reply with str for bytes. Failure
        as above; over a connection of our own as well."""

        def ask() -> Any:
            with CheckedOut(self.own(), timeout) as borrowed:
                borrowed.send(pack(args))
                return text(borrowed.read())

        return retry_if_disconnected(ask)

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = ATTEMPT) -> list[Any]:
        """As `command`, in one round trip; a reply that is an error stands in its place."""

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

    def let_go(self) -> None:
        """Give back and close idle connections, when it will not be asked any more."""
        self._at_hand.let_go()
        for own in list(self._own.values()):
            own.let_go()

    def _connections(self) -> CachedConnections:
        if self._at_hand.is_old():
            pool = self.pool()
            self._at_hand.belong_to(pool, self._own_of(pool))
        return self._at_hand

    def own(self) -> Own:
        """Connections that nothing but this library uses."""
        return self._own_of(self.pool())

    def _own_of(self, pool: Any) -> Own:
        return self._own.get(pool) or self._own.setdefault(pool, Own(pool))

    def wait(self, step: Wait) -> Answer:
        pool, sent = self._connections().pool, clock()
        waiting = self._waiting.get(pool)
        if waiting is None:
            waiting = self._waiting.setdefault(pool, Waiting(self._own_of(pool)))
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
    """The async side of a cache alias on an event loop.

    `plans`: those under way. `retired`: the settings changed, or the loop is ending; it is closed
    whenever no plan is under way.
    """

    plans, retired = 0, False

    def __init__(self, alias: str, client: Any) -> None:
        self.alias, self.client = alias, client
        self.batcher = Batcher(client)
        self.hub = Hub(client, conf.current().prefix(alias))
        # redis-py loses some from this list when two tasks ask for the primary at once.
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
        """A plan has ended."""
        self.plans -= 1
        if self.retired and not self.plans:
            resources_of(asyncio.get_running_loop()).left(self)

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """A future of the step's Answer; a Failure when no useful answer came."""
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
    """The sync side of an alias, shared in the process."""
    found = _servers.get(alias)
    if found is None or _stand_ins:
        found = _made("sync", alias, Server)
        found = found if _stand_ins else _servers.setdefault(alias, found)
    return found


def async_server_of(alias: str) -> AsyncServer:
    """The async side of an alias, shared on the running event loop."""
    mine = resources_of(asyncio.get_running_loop()).by_alias if not _stand_ins else {}
    found: AsyncServer | None = mine.get(alias)
    if found is None:
        found = mine[alias] = _made("async", alias, _async_one)
    return found


def _async_one(alias: str) -> AsyncServer:
    return AsyncServer(alias, async_client(alias))


@contextmanager
def replaced(sync: Callable[[str], Any], asynchronous: Callable[[str], Any]) -> Iterator[None]:
    """Meanwhile each alias is served by what these make."""
    global _stand_ins
    before, _stand_ins = _stand_ins, {"sync": sync, "async": asynchronous}
    try:
        yield
    finally:
        _stand_ins = before


#: The stand-ins that serve an alias meanwhile, by kind.
_stand_ins: dict[str, Callable[[str], Any]] = {}


def _made(kind: str, alias: str, one: Callable[[str], Any]) -> Any:
    """The server that an alias makes itself: a quorum, a factory as the Cluster's; else `one`."""
    if kind in _stand_ins:
        return _stand_ins[kind](alias)
    makes = alias if type(alias) is not str else backend_of(alias).connection_factory
    make: Callable[[str], Any] = getattr(makes, f"{kind}_server", one)
    return make(alias)


@conf.on_change
def _forget() -> None:
    for former in list(_servers.values()):
        if isinstance(former, Server):
            former.let_go()
    _servers.clear()
    for loop, held in resources_of_all_loops():
        former_ones, held.by_alias = list(held.by_alias.values()), {}
        if former_ones:
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(held.retire, former_ones)
