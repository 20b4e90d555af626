"""Connections borrowed from the project's pool, and own ones made as that pool makes its own."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from redis import exceptions as errors
from redis.sentinel import SentinelConnectionPool

from ..protocol.plans import Failure
from .wire import ATTEMPT, REDIS_ERRORS, clock, is_busy, pack, why

#: Connections of the project's pool that one process keeps borrowed between two commands, and the
#: seconds for which one of them is believed to be open.
MOST_AT_HAND, FRESH = 8, 1.0
#: Connections of one process and server that may be blocked by waiters; the others poll.
MOST_WAITING = 256
_MOST_IDLE = 8
_BLPOP_MARGIN = 1.0

#: The project's pools that were used here.
used_pools: weakref.WeakSet[Any] = weakref.WeakSet()


def _free_pools() -> None:
    """In a forked child: locks of redis-py's pools that another thread held are held by nobody now,
    and the pool would wait for them before it resets itself."""
    for pool in used_pools:
        for lock in ("_lock", "_fork_lock"):
            if hasattr(pool, lock):
                setattr(pool, lock, threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_pools)


class Borrowed:
    """A connection for a `with`, of what lends them. Redis's errors become Failures."""

    __slots__ = ("_lender", "_sent", "connection")

    def __init__(self, lender: Any) -> None:
        self._lender, self._sent = lender, False

    def __enter__(self) -> Borrowed:
        try:
            self.connection = self._lender.get_connection()
        except REDIS_ERRORS as error:
            raise Failure(error, clock(), why(error, False)) from error
        return self

    def send(self, *packed: bytes) -> None:
        self.connection.send_packed_command(packed)
        self._sent = True

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        useful = error is None or (isinstance(error, errors.ResponseError) and not is_busy(error))
        if not useful:
            # An unread reply would be taken for the next command's; and where the primary was
            # demoted, Sentinel is asked anew.
            self.connection.disconnect()
        self._lender.release(self.connection)
        if not useful and isinstance(self._lender, AtHand):
            self._lender.give_back()
        if isinstance(error, REDIS_ERRORS):
            raise Failure(error, clock(), why(error, self._sent)) from error


class AtHand:
    """Connections of a pool that stay borrowed from one command to the next. A pool whose
    connections may hang for ever while they are made is not asked, but our own of its kind.

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
        self._lent: set[Any] = set()  # of our own

    def is_old(self) -> bool:
        """Whether to ask anew which pool the project has."""
        return clock() > self._until or self._pid != os.getpid()

    def belong_to(self, pool: Any, own: Own) -> None:
        if self._pid != os.getpid():
            self._idle, self._lent = [], set()  # after a fork, these are the parent's
        elif self.pool is not pool:
            self.give_back()
        self.pool, self._own, self._pid, self._until = pool, own, os.getpid(), clock() + FRESH
        most = 0 if isinstance(pool, SentinelConnectionPool) else pool.max_connections // 16
        self._most = 0 if own.hurried else min(MOST_AT_HAND, most)

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
        if not self._own.hurried:
            # Exhausted: who holds a lease has to be able to give it back.
            with contextlib.suppress(errors.MaxConnectionsError):
                return self.pool.get_connection()
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
                connection, _ = self._idle.pop()
                self.pool.release(connection)


class Exhausted(Exception):
    pass


class Own:
    """Connections of our own, made as a pool makes its own. `hurried`: what the pool would wait for
    without end, redis-py's default before 8, these wait for ATTEMPT seconds."""

    def __init__(self, pool: Any) -> None:
        # Not the pool itself: what is kept by pool must not keep the pool.
        given = pool.connection_kwargs
        endless = {
            word: ATTEMPT
            for word in ("socket_timeout", "socket_connect_timeout")
            if getattr(pool.connection_class(**given), word, 0) is None
        }
        self.hurried = bool(endless)
        self._make: Callable[[], Any] = partial(pool.connection_class, **{**given, **endless})
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

    def let_go(self) -> None:
        """Close all that are idle."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop()[0].disconnect()


class Waiting:
    """Blocked waiters. One must never take the connection that the holder needs for its release."""

    def __init__(self, own: Own) -> None:
        self._own = own
        self._room = threading.BoundedSemaphore(MOST_WAITING)
        self._pid = os.getpid()

    def pop(self, key: str, seconds: float) -> Any:
        if self._pid != os.getpid():
            self._room, self._pid = threading.BoundedSemaphore(MOST_WAITING), os.getpid()
        if not self._room.acquire(blocking=False):
            raise Exhausted
        try:
            return self._pop(key, seconds)
        finally:
            self._room.release()

    def _pop(self, key: str, seconds: float) -> Any:
        try:
            connection = self._own.get_connection()
        except errors.MaxConnectionsError as error:
            raise Exhausted from error
        try:
            limit = getattr(connection, "socket_timeout", None) or ATTEMPT
            seconds = max(0.01, min(seconds, limit - _BLPOP_MARGIN if limit > 2 else limit / 2))
            connection.send_packed_command([pack(("BLPOP", key, f"{seconds:.3f}"))])
            reply = read(connection, seconds + _BLPOP_MARGIN)
        except errors.MaxConnectionsError as error:
            connection.disconnect()
            raise Exhausted from error
        except BaseException:
            connection.disconnect()
            raise
        self._own.release(connection)
        return reply


def read(connection: Any, timeout: float) -> Any:
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
