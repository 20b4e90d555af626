"""Connections: the project's own, sync from django-redis, async rebuilt from its configuration.

The only module that imports django_redis and redis.asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlparse

from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache
from django_redis.client import ShardClient
from django_redis.pool import ConnectionFactory as ConnectionFactory
from django_redis.pool import SentinelConnectionFactory
from redis import exceptions as errors
from redis.sentinel import SentinelConnectionPool

from .. import conf
from ..protocol.plans import Answer, Failure, Run, Sleep, Step, Wait
from .batching import Batcher
from .hub import Hub
from .wire import REDIS_ERRORS, clock, command, is_busy, pack, pack_step, text, why

#: Seconds that one answer may take, unless the project's socket_timeout is shorter.
ATTEMPT = 5.0
#: Connections of the project's pool that one process keeps borrowed between two commands, and the
#: seconds for which one of them is believed to be open.
MOST_AT_HAND, FRESH = 8, 1.0
#: Connections of one process and server that may be blocked by waiters; the others poll.
MOST_WAITING = 256
_MOST_IDLE = 8
_POLL = 0.05
_BLPOP_MARGIN = 1.0


def backend_of(alias: str) -> Any:
    """The django-redis client of a cache alias. ImproperlyConfigured, with the remedy, if none."""
    try:
        backend: Any = caches[alias]
    except InvalidCacheBackendError as error:
        raise ImproperlyConfigured(f"CACHES has no alias {alias!r} for REDIS_SYNC.") from error
    kinds = type(backend), type(getattr(backend, "client", None))
    if kinds not in _fit:
        _check_backend(alias, backend)
        _fit.add(kinds)
    return backend.client


#: Classes of backend and client that were found to fit.
_fit: set[tuple[type, type]] = set()


def _check_backend(alias: str, backend: Any) -> None:
    if not isinstance(backend, RedisCache):
        raise ImproperlyConfigured(
            f"The cache {alias!r} is a {type(backend).__name__}: REDIS_SYNC needs one whose "
            "BACKEND is django_redis.cache.RedisCache."
        )
    if isinstance(backend.client, ShardClient):
        raise ImproperlyConfigured(
            f"The cache {alias!r} is sharded over several servers by ShardClient: REDIS_SYNC needs "
            "an alias with one server, Sentinel or Cluster."
        )


#: The project's pools that were used here.
_pools: weakref.WeakSet[Any] = weakref.WeakSet()


def _free_pools() -> None:
    """In a forked child: locks of redis-py's pools that another thread held are held by nobody now,
    and the pool would wait for them before it resets itself."""
    for pool in _pools:
        for lock in ("_lock", "_fork_lock"):
            if hasattr(pool, lock):
                setattr(pool, lock, threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_pools)


class Server:
    """The sync side of one cache alias. Holds no connection: it asks the project's pool."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._waiting: weakref.WeakKeyDictionary[Any, _Waiting] = weakref.WeakKeyDictionary()
        self._own: weakref.WeakKeyDictionary[Any, _Own] = weakref.WeakKeyDictionary()
        self._at_hand = _AtHand()
        self._pool: Any = None

    def pool(self) -> Any:
        pool = backend_of(self.alias).get_client(write=True).connection_pool
        if pool is not self._pool:
            self._pool = pool
            _pools.add(pool)
        return pool

    def perform(self, step: Step) -> Answer:
        """Carry out one step. Failure when no useful answer came."""
        if type(step) is Run:
            return self.run(step)
        if type(step) is Wait:
            return self._wait(step)
        assert isinstance(step, Sleep)
        sent = clock()
        time.sleep(step.seconds)
        return Answer(None, sent, clock())

    def run(self, step: Run) -> Answer:
        """The answer of a verb; its source is sent along when the server does not know it yet."""
        at_hand = self._connections()
        with _Borrowed(at_hand.pool, at_hand) as borrowed:
            sent = clock()
            borrowed.send(pack_step(step))
            try:
                reply = _read(borrowed.connection, step.timeout)
            except errors.NoScriptError:
                sent = clock()
                borrowed.send(pack(command(step, whole=True)))
                reply = _read(borrowed.connection, step.timeout)
            return Answer(text(reply), sent, clock())

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """Several steps in one round trip; what failed stands in its place.

        Over a connection of our own: the keeper must get through when the project's pool is
        exhausted, and a fork must not find the pool's lock held by the keeper's thread.
        """
        if not steps:
            return []
        try:
            with _Borrowed(self._own_of(self.pool())) as borrowed:
                sent = clock()
                replies: list[Any] = []
                borrowed.send(*map(pack_step, steps))
                for step in steps:
                    try:
                        reply = text(_read(borrowed.connection, step.timeout))
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
        """Any other command of Redis, its reply with str for bytes. Failure as above; over a
        connection of our own as well."""
        with _Borrowed(self._own_of(self.pool())) as borrowed:
            borrowed.send(pack(args))
            return text(_read(borrowed.connection, timeout))

    def _connections(self) -> _AtHand:
        if self._at_hand.is_old():
            pool = self.pool()
            self._at_hand.belong_to(pool, self._own_of(pool))
        return self._at_hand

    def _own_of(self, pool: Any) -> _Own:
        return self._own.get(pool) or self._own.setdefault(pool, _Own(pool))

    def _wait(self, step: Wait) -> Answer:
        pool, sent = self._connections().pool, clock()
        waiting = self._waiting.get(pool)
        if waiting is None:
            waiting = self._waiting.setdefault(pool, _Waiting(self._own_of(pool)))
        key = step.keys.wake + step.token
        try:
            reply = waiting.pop(key, step.seconds)
        except _Exhausted:
            time.sleep(min(step.seconds, _POLL))
            return Answer(None, sent, clock())
        except REDIS_ERRORS as error:
            raise Failure(error, clock(), why(error, True)) from error
        return Answer(None if reply is None else text(reply)[1], sent, clock())


class _Borrowed:
    """A connection of the project's pool for a `with`. Redis's errors become Failures."""

    __slots__ = ("_at_hand", "_pool", "_sent", "connection")

    def __init__(self, pool: Any, at_hand: _AtHand | None = None) -> None:
        self._pool, self._at_hand, self._sent = pool, at_hand, False

    def __enter__(self) -> _Borrowed:
        try:
            self.connection = (self._at_hand or self._pool).get_connection()
        except REDIS_ERRORS as error:
            raise Failure(error, clock(), why(error, False)) from error
        return self

    def send(self, *packed: bytes) -> None:
        self.connection.send_packed_command(packed)
        self._sent = True

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or (isinstance(error, errors.ResponseError) and not is_busy(error)):
            (self._at_hand or self._pool).release(self.connection)
        else:
            # An unread reply would be taken for the next command's; and where the primary was
            # demoted, Sentinel is asked anew.
            self.connection.disconnect()
            (self._at_hand or self._pool).release(self.connection)
            if self._at_hand is not None:
                self._at_hand.give_back()
        if isinstance(error, REDIS_ERRORS):
            raise Failure(error, clock(), why(error, self._sent)) from error


class _AtHand:
    """Connections of a pool that stay borrowed from one command to the next.

    Getting one from the pool and giving it back costs a quarter of a command. They are few: a small
    pool gets each back at once, and so does Sentinel's, which looks at what it gets back. One that
    lay for longer than FRESH goes back to be looked at as well; when one breaks before that, the
    plan asks again.
    """

    def __init__(self) -> None:
        self.pool: Any = None
        self._own: Any = None
        self._pid, self._until, self._most = 0, 0.0, 0
        self._idle: list[tuple[Any, float]] = []
        self._lent: set[Any] = set()  # of our own, while the pool was exhausted

    def is_old(self) -> bool:
        """Whether to ask anew which pool the project has."""
        return clock() > self._until or self._pid != os.getpid()

    def belong_to(self, pool: Any, own: _Own) -> None:
        if self._pid != os.getpid():
            self._idle, self._lent = [], set()  # after a fork, these are the parent's
        elif self.pool is not pool:
            self.give_back()
        self.pool, self._own, self._pid, self._until = pool, own, os.getpid(), clock() + FRESH
        most = 0 if isinstance(pool, SentinelConnectionPool) else pool.max_connections // 16
        self._most = min(MOST_AT_HAND, most)

    def get_connection(self) -> Any:
        try:
            connection, since = self._idle.pop()
        except IndexError:
            return self._fetch()
        if clock() - since < FRESH:
            return connection
        self.give_back()
        self.pool.release(connection)
        return self._fetch()

    def _fetch(self) -> Any:
        try:
            return self.pool.get_connection()
        except errors.MaxConnectionsError:
            # Who holds a lease has to be able to give it back.
            connection = self._own.get_connection()
            self._lent.add(connection)
            return connection

    def release(self, connection: Any) -> None:
        if connection in self._lent:
            self._lent.discard(connection)
            self._own.release(connection)
        elif len(self._idle) < self._most:
            self._idle.append((connection, clock()))
        else:
            self.pool.release(connection)

    def give_back(self) -> None:
        """All that are idle, to the pool."""
        with contextlib.suppress(IndexError):
            while True:
                self.pool.release(self._idle.pop()[0])


class _Exhausted(Exception):
    pass


class _Own:
    """Connections of our own, made as a pool makes its own."""

    def __init__(self, pool: Any) -> None:
        # Not the pool itself: what is kept by pool must not keep the pool.
        self._make: Callable[[], Any] = partial(pool.connection_class, **pool.connection_kwargs)
        self._idle: list[tuple[Any, float]] = []
        self._pid = os.getpid()

    def get_connection(self) -> Any:
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        try:
            connection, since = self._idle.pop()
        except IndexError:
            connection, since = self._make(), 0.0
        try:
            connection.connect()
            if clock() - since > FRESH and connection.can_read():  # closed while it lay idle
                connection.disconnect()
                connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def release(self, connection: Any) -> None:
        if len(self._idle) < _MOST_IDLE:
            self._idle.append((connection, clock()))
        else:
            connection.disconnect()


class _Waiting:
    """Blocked waiters. One must never take the connection that the holder needs for its release."""

    def __init__(self, own: _Own) -> None:
        self._own = own
        self._room = threading.BoundedSemaphore(MOST_WAITING)
        self._pid = os.getpid()

    def pop(self, key: str, seconds: float) -> Any:
        if self._pid != os.getpid():
            self._room, self._pid = threading.BoundedSemaphore(MOST_WAITING), os.getpid()
        if not self._room.acquire(blocking=False):
            raise _Exhausted
        try:
            return self._pop(key, seconds)
        finally:
            self._room.release()

    def _pop(self, key: str, seconds: float) -> Any:
        try:
            connection = self._own.get_connection()
        except errors.MaxConnectionsError as error:
            raise _Exhausted from error
        try:
            limit = getattr(connection, "socket_timeout", None) or ATTEMPT
            seconds = max(0.01, min(seconds, limit - _BLPOP_MARGIN if limit > 2 else limit / 2))
            connection.send_packed_command([pack(("BLPOP", key, f"{seconds:.3f}"))])
            reply = _read(connection, seconds + _BLPOP_MARGIN)
        except errors.MaxConnectionsError as error:
            connection.disconnect()
            raise _Exhausted from error
        except BaseException:
            connection.disconnect()
            raise
        self._own.release(connection)
        return reply


def _read(connection: Any, timeout: float) -> Any:
    """The reply, or redis.exceptions.TimeoutError after `timeout` seconds."""
    own = connection.socket_timeout
    if own is not None and own <= timeout:
        return connection.read_response()
    if _takes_timeout(type(connection)):
        return connection.read_response(timeout=timeout)
    if not connection.can_read(timeout=timeout):
        connection.disconnect()
        raise errors.TimeoutError(f"no reply within {timeout:.1f} s")
    return connection.read_response()


_TAKES: dict[type, bool] = {}


def _takes_timeout(kind: type) -> bool:
    if kind not in _TAKES:
        _TAKES[kind] = "timeout" in inspect.signature(kind.read_response).parameters  # type: ignore[attr-defined]
    return _TAKES[kind]


class AsyncServer:
    """The async side of one cache alias on one event loop."""

    def __init__(self, alias: str, client: Any) -> None:
        self.alias, self.client = alias, client
        self.batcher = Batcher(client)
        self.hub = Hub(client, conf.current().prefix(alias))
        self._staying = asyncio.get_running_loop().create_task(self._stay())

    async def _stay(self) -> None:
        """Closes the connections when the loop ends, which cancels all tasks first."""
        loop = asyncio.get_running_loop()
        _living.add(self)
        try:
            await loop.create_future()
        finally:
            await asyncio.sleep(0)
            await _ended(self.hub._reader)
            await self._close()
            # All that is in here knows its loop: left where it is, neither would ever go.
            _living.discard(self)
            _async_servers.pop(loop, None)

    async def _close(self) -> None:
        await self.batcher.idle()
        await self.client.aclose()
        manager = getattr(getattr(self.client, "connection_pool", None), "sentinel_manager", None)
        for sentinel in manager.sentinels if manager is not None else ():
            await sentinel.aclose()

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """A future of the step's Answer; a Failure when no useful answer came."""
        if type(step) is Run:
            return self.batcher.submit(step)
        if type(step) is Wait:
            return self.hub.wait(step.token, step.seconds)
        assert isinstance(step, Sleep)
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_later(step.seconds, _resolve, done, Answer(None, clock(), clock() + step.seconds))
        return done


async def _ended(task: asyncio.Task[Any] | None) -> None:
    """Cancel it until it is done: redis-py may swallow a cancellation while it connects, and then
    the loop would never end."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


#: What a sync configuration may hold that means nothing, or something else, to an async client.
#: Of the pool's own there is no need: one connection sends, one listens.
_DROPPED = frozenset(
    {"parser_class", "retry", "retry_on_timeout", "retry_on_error", "url"}
    | {"max_connections", "timeout", "queue_class"}
)
_REFUSED = frozenset({"connection_class", "credential_provider"})


def async_client(alias: str) -> Any:
    """A redis.asyncio client configured as the alias is. ImproperlyConfigured if that can't be."""
    from redis.asyncio.sentinel import Sentinel

    path = conf.current().async_client
    if path:
        return import_string(path)(alias)
    client = backend_of(alias)
    factory, url = client.connection_factory, client._server[0]
    if not isinstance(factory, SentinelConnectionFactory):
        return async_redis(alias, url)
    options = factory.options
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        options["SENTINELS"], sentinel_kwargs=options.get("SENTINEL_KWARGS"), **async_options(alias)
    )
    parts = urlparse(url)
    return sentinel.master_for(parts.hostname, db=int(parts.path.strip("/") or 0))


def async_redis(alias: str, url: str) -> Any:
    """A redis.asyncio client of the server at `url`, configured as the alias is."""
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url, **async_options(alias))


def async_options(alias: str) -> dict[str, Any]:
    """What the alias says of connections, for async code. Raises as async_client."""
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    client = backend_of(alias)
    factory = client.connection_factory
    if not isinstance(factory, ConnectionFactory):
        raise ImproperlyConfigured(
            f"The cache {alias!r} has a CONNECTION_FACTORY of its own: name a function alias -> "
            "redis.asyncio client in REDIS_SYNC['ASYNC_CLIENT']."
        )
    given = {**factory.make_connection_params(client._server[0]), **factory.pool_cls_kwargs}
    refused = sorted(_REFUSED & set(given))
    if refused:
        raise ImproperlyConfigured(
            f"CONNECTION_POOL_KWARGS of the cache {alias!r} holds {', '.join(refused)}, which "
            "can't be used in async code: set REDIS_SYNC['ASYNC_CLIENT']."
        )
    kwargs = {key: value for key, value in given.items() if key not in _DROPPED}
    # Retries are the plans' own: they know what may be sent twice.
    kwargs["retry"] = Retry(NoBackoff(), 0)
    return kwargs


_servers: dict[str, Server] = {}
#: The async servers whose connections are not closed yet, those of former settings too.
_living: set[AsyncServer] = set()
_async_servers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AsyncServer]] = (
    weakref.WeakKeyDictionary()
)


def server(alias: str) -> Server:
    """The sync side of an alias, one per process."""
    found = _servers.get(alias)
    return found if found is not None else _servers.setdefault(alias, _made("sync", alias, Server))


def async_server(alias: str) -> AsyncServer:
    """The async side of an alias, one per running event loop."""
    loop = asyncio.get_running_loop()
    mine = _async_servers.get(loop)
    if mine is None:
        mine = _async_servers.setdefault(loop, {})
    found = mine.get(alias)
    if found is None:
        found = mine[alias] = _made("async", alias, _async_one)
    return found


def _async_one(alias: str) -> AsyncServer:
    return AsyncServer(alias, async_client(alias))


def _made(kind: str, alias: str, one: Callable[[str], Any]) -> Any:
    """What several servers make themselves: a quorum, a factory as the Cluster's; else `one`."""
    makes = alias if type(alias) is not str else backend_of(alias).connection_factory
    make: Callable[[str], Any] = getattr(makes, f"{kind}_server", one)
    return make(alias)


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("CACHES", conf.SETTING):
        _servers.clear()
        _async_servers.clear()


setting_changed.connect(_forget, dispatch_uid="django_redis_sync.connections")
