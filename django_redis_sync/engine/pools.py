"""Connections for sync code: from the project's pool, or private ones with the same settings."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from redis import ConnectionPool
from redis import exceptions as errors
from redis.sentinel import SentinelConnectionPool

from ..protocol.steps import SHORTEST_WAIT, Answer, Failure, Run
from ..values import signature
from .mutex import caller
from .wire import ATTEMPT, REDIS_ERRORS, clock, failure_of, is_busy, is_exhausted, no_reply, pack

_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
#: The connection option that contains the name and version of the client library. redis-py has this
#: option since version 7.
_ABOUT = "driver_info"

#: Max connections of the project's pool that a process keeps between two commands.
MAX_CACHED = 8
#: Seconds for which an idle connection is assumed to be open.
FRESH = 1.0
#: Max waiters of a process that block on a connection, per server. Further waiters poll.
MAX_WAITING = 256
#: _MAX_IDLE: max idle private connections. _IDLE_FOR: seconds without use after which a private
#: connection is closed.
_MAX_IDLE, _IDLE_FOR = 64, 60.0
#: If getting a connection takes fewer seconds than this, the reply keeps its full time limit.
_AT_ONCE = 0.01
#: Min timeout in seconds for making a connection, and for the first reply on it. It applies even if
#: the caller has less time: on a busy machine, making the connection may take all of the time.
_SHORTEST = 0.1
#: Seconds to wait for the reply to BLPOP, in addition to BLPOP's own timeout.
_LATE = 1.0
#: Seconds between two requests of a waiter that polls.
_POLL = 0.05
#: A wait is short below this number of seconds. A caller in a short wait asks every _SHORT_POLL s.
_SHORT, _SHORT_POLL = 0.2, 0.02

_ASKING = pack(("ASKING",))

T = TypeVar("T")
#: The result of `check_out(within)`: a connection, how many of the `within` seconds are left, and
#: the object to which the connection must be given back.
Found = tuple[Any, float, "CachedConnections | PrivatePool"]

#: For each pool of the project, the ID of the process that used it first.
_used_by: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class CheckedOut:
    """A context manager that gets a connection from `lender`, and gives it back after the block. It
    raises redis-py's errors as Failure.

    `within`: max seconds to get the connection and the first reply. The seconds that remain after
    getting the connection are the time limit of each reply.
    """

    __slots__ = ("_lender", "_sent", "_within", "connection")

    def __init__(self, lender: CachedConnections | PrivatePool, within: float) -> None:
        self._lender, self._within, self._sent = lender, within, False

    def __enter__(self) -> CheckedOut:
        try:
            found = self._lender.check_out(self._within)
        except REDIS_ERRORS as error:
            raise failure_of(error, False) from error
        self.connection, self._within, self._lender = found
        return self

    def send(self, packed: bytes, asking: bool = False) -> None:
        """Send a command. `asking`: True to send ASKING first, because the slot is moving to this
        node of a Cluster."""
        self.connection.send_packed_command((_ASKING, packed) if asking else (packed,))
        self._sent = True  # stays False if sending fails: the server ignores a partial command
        if asking:
            self.read()

    def send_several(self, packed: Iterable[bytes]) -> None:
        self._sent = True  # even if sending fails: the server may have got some commands
        # Join the commands, because redis-py calls send() for each item.
        self.connection.send_packed_command((b"".join(packed),))

    def read(self) -> Any:
        """Return the next reply. Raise redis-py's TimeoutError after the time limit."""
        return read(self.connection, min(self._within, self._lender.patience))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._lender.release(self.connection)
            return
        if isinstance(error, errors.ResponseError) and not is_busy(error):
            self._lender.release(self.connection)
        else:
            # Close the connection. If it were used again, an unread reply would be taken for the
            # reply to the next command. This server may also no longer be the primary. A new
            # connection asks Sentinel for the primary.
            self.connection.disconnect()
            self._lender.drop(self.connection)
        if isinstance(error, REDIS_ERRORS):
            raise failure_of(error, self._sent) from error


def was_disconnected(failure: Failure) -> bool:
    """Return True if a command failed because its connection was lost, for example while the
    connection was idle. Return False if the command timed out."""
    lost = failure.why in ("unreachable", "unanswered")
    return lost and not isinstance(failure.cause, (errors.TimeoutError, TimeoutError))


def retry_if_disconnected(ask: Callable[[], T]) -> T:
    """Return the result of `ask()`. If the connection was lost, call `ask` once more. `ask` must
    send only commands that may be sent twice."""
    try:
        return ask()
    except Failure as failure:
        if not was_disconnected(failure):
            raise
    return ask()


def retry_many_if_disconnected(
    many: Callable[[list[Run]], list[Answer | Failure]], steps: list[Run]
) -> list[Answer | Failure]:
    """Return `many(steps)`. If the connection of a step was lost, send that step once more."""
    answers = many(steps)
    cut = [n for n, one in enumerate(answers) if isinstance(one, Failure) and was_disconnected(one)]
    for n, answer in zip(cut, many([steps[n] for n in cut]) if cut else (), strict=True):
        answers[n] = answer
    return answers


class CachedConnections:
    """Caches connections of the project's pool between two commands. Getting a connection from the
    pool and releasing it would take a quarter of the time of a command.

    At most MAX_CACHED connections are cached, or fewer if the pool is small. Connections of a
    Sentinel pool are not cached, because this pool has to check each connection that it gets back.
    After FRESH seconds without use, a connection goes back to the pool, which checks it. If a
    cached connection is broken, the plan repeats its step.

    If the project's pool might be too slow, private connections are used instead. These pools might
    be too slow:
    - a pool that waits for a free connection, such as redis-py's BlockingConnectionPool
    - a pool with its own `get_connection` method
    - a pool with a timeout that is longer than the time that the caller has
    - in a forked child, a pool that the parent process has used
    """

    def __init__(self) -> None:
        self.pool: Any = None
        #: A PrivatePool with the settings of `pool`.
        self.own: Any = None
        self._pid, self._until, self._most = 0, 0.0, 0
        self._asks, self.patience = False, ATTEMPT
        self._idle: list[tuple[Any, float]] = []
        self._call = caller(None)

    def is_old(self) -> bool:
        """Return True if the caller must look up the project's pool, and call `belong_to`. This is
        the case after FRESH seconds, and in a forked child."""
        return clock() > self._until or self._pid != os.getpid()

    def belong_to(self, pool: Any) -> None:
        """Use connections of `pool` from now on, or private ones if `pool` might be too slow."""
        is_forked = self._pid != os.getpid()
        if is_forked:
            self._idle = []  # the idle connections belong to the parent process
        elif self.pool is not pool:
            self.give_back()
        # Another thread may use `own` at any time, so it is replaced in one step.
        own = self.own = PrivatePool(pool) if is_forked or self.pool is not pool else self.own
        self._call = caller(getattr(pool, "_lock", None))
        self.pool, self._pid, self._until = pool, os.getpid(), clock() + FRESH
        # In a forked child, the pool's lock may be locked forever, because a thread of the parent
        # may have held it at the fork. So only the process that used the pool first uses it.
        is_ours = _used_by.setdefault(pool, os.getpid()) == os.getpid()
        self._asks, self.patience = is_ours and _never_waits(pool), own.patience
        most = 0 if isinstance(pool, SentinelConnectionPool) else pool.max_connections // 16
        self._most = min(MAX_CACHED, most) if self._asks else 0

    def check_out(self, within: float) -> Found:
        """Return a connection, how many of the `within` seconds are left, and the object to which
        the connection must be given back: this object or its private pool."""
        if not self._asks or self.own.takes > within:
            return self.own.check_out(within)  # type: ignore[no-any-return]
        try:
            connection, since = self._idle.pop()
        except IndexError:
            pass
        else:
            if clock() - since < FRESH:
                return connection, within, self
            self.give_back()
            self._call(self.pool.release, connection)
        began = clock()
        try:
            return self._connected(), _left(within, began), self
        except errors.ConnectionError as error:
            # If the pool is exhausted, use a private connection, so that holders can still release.
            if not is_exhausted(error):
                raise
        return self.own.check_out(within)  # type: ignore[no-any-return]

    def _connected(self) -> Any:
        try:
            return self._call(self.pool.get_connection)
        except REDIS_ERRORS:
            raise
        except BaseException as error:
            # An exception of a signal handler may interrupt the pool while it sets up a connection.
            # The pool then keeps a connection on which, for example, no database is selected. The
            # next use of it fails with an AttributeError. So close the pool's idle connections.
            self._call(self.pool.disconnect, False)  # not the connections in use
            if not isinstance(error, AttributeError):
                raise
        return self._call(self.pool.get_connection)

    def release(self, connection: Any) -> None:
        if len(self._idle) < self._most:
            self._idle.append((connection, clock()))
        else:
            self._call(self.pool.release, connection)

    def drop(self, connection: Any) -> None:
        """Return a closed connection to the pool. Also return the idle connections, because they
        may be broken too."""
        self._call(self.pool.release, connection)
        self.give_back()

    def close_idle(self) -> None:
        """Return the idle connections to the pool, and close the idle private connections. Do the
        same with connections in use as soon as they are released."""
        self._most = 0
        self.give_back()
        if self.own is not None:
            self.own.close_idle()

    def give_back(self) -> None:
        """Return the idle connections to the pool."""
        with contextlib.suppress(IndexError):
            while True:
                connection, _ = self._idle.pop()
                self._call(self.pool.release, connection)


def _left(within: float, began: float) -> float:
    """Return how many of the `within` seconds are left, at least _SHORTEST. `began`: the time at
    which the `within` seconds began.

    If almost no time has passed, return `within` unchanged. `within` is usually the socket's own
    timeout, with which `read` is faster than with another timeout.
    """
    took = clock() - began
    return within if took < _AT_ONCE else max(_SHORTEST, within - took)


def _never_waits(pool: Any) -> bool:
    """Return True if the pool raises an error, and never waits, when it has no free connection."""
    plain = type(pool).get_connection is ConnectionPool.get_connection
    return plain and "get_connection" not in vars(pool)


class PrivatePool:
    """Connections that only this package uses. They have the settings of the project's pool, but a
    shorter timeout if the caller has less time.

    `patience`: max seconds to wait for an answer: the project's timeout, but at most ATTEMPT.
    `takes`: max seconds for which the project's pool tries to connect; inf without a timeout.
    """

    def __init__(self, pool: Any) -> None:
        kind, given = pool.connection_class, dict(pool.connection_kwargs)
        sample = kind(**given)
        timeouts = {word: getattr(sample, word) for word in _TIMEOUTS if hasattr(sample, word)}
        with contextlib.suppress(AttributeError, TypeError):  # if the class lacks this option
            # Let all connections share one driver_info. Otherwise, each new connection would read
            # redis-py's version from disk, which takes longer than connecting.
            about = {**given, _ABOUT: getattr(sample, _ABOUT)}
            kind(**about)
            given = about
        longest = (math.inf if s is None else s for s in timeouts.values())
        self.takes = max(longest, default=math.inf)
        self.patience = min(ATTEMPT, timeouts.get(_TIMEOUTS[0]) or ATTEMPT)

        def make(within: float) -> Any:
            given.update({word: min(within, s or ATTEMPT) for word, s in timeouts.items()})
            return kind(**given)

        self._make = make
        self._idle: list[tuple[Any, float]] = []
        self._most = _MAX_IDLE
        # The ids of the threads that block in `pop`. Don't use a semaphore, because an interrupted
        # thread might never release it. If an interrupted thread doesn't remove its entry here, its
        # next wait uses this entry.
        self._waiting: dict[int, None] = {}

    def check_out(self, within: float) -> Found:
        """Return a connection, how many of the `within` seconds are left, and this object, to which
        the connection must be given back."""
        try:
            connection, since = self._idle.pop()
        except IndexError:
            pass
        else:
            if clock() - since < FRESH or _is_open(connection):
                return connection, within, self
            connection.disconnect()
        began = clock()
        connection = self._make(max(_SHORTEST, min(within, ATTEMPT)))
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection, _left(within, began), self

    def release(self, connection: Any) -> None:
        now = clock()
        self._idle.append((connection, now))
        try:
            while self._idle[0][1] < now - _IDLE_FOR or len(self._idle) > self._most:
                self._idle.pop(0)[0].disconnect()
        except IndexError:
            pass  # other threads have taken the idle connections

    def drop(self, connection: Any) -> None:
        """Discard a closed connection. A second use would connect it again, with the timeout of the
        first use."""

    def close_idle(self) -> None:
        """Close the idle connections. Connections in use are closed when they are released."""
        self._most = 0
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop()[0].disconnect()

    def pop(self, key: str, seconds: float) -> Any:
        """Wait for an item of the list at the Redis key `key`, for at most `seconds`. Return the
        reply to BLPOP, or None. If MAX_WAITING threads already wait, only sleep up to _POLL
        seconds and return None. For a short wait, sleep up to _SHORT_POLL seconds, because BLPOP
        ends up to 0.1 s late. Raise Failure if redis-py raises an error."""
        if seconds < _SHORT:
            time.sleep(min(seconds, _SHORT_POLL))
            return None
        me = threading.get_ident()
        if len(self._waiting) >= MAX_WAITING:
            time.sleep(min(seconds, _POLL))
            return None
        limit = self.patience
        seconds = max(SHORTEST_WAIT, min(seconds, limit - _LATE if limit > 2 else limit / 2))
        self._waiting[me] = None
        try:
            with CheckedOut(self, min(limit, seconds + _LATE)) as borrowed:
                borrowed.send(pack(("BLPOP", key, f"{seconds:.3f}")))
                return borrowed.read()
        finally:
            self._waiting.pop(me, None)


def _is_open(connection: Any) -> bool:
    """Return True if an idle connection is still open and has no unread reply."""
    try:
        return not connection.can_read()
    except REDIS_ERRORS:
        return False


def read(connection: Any, timeout: float) -> Any:
    """Return the next reply. Raise redis.exceptions.TimeoutError after `timeout` seconds."""
    if connection.socket_timeout == timeout:
        return connection.read_response()
    if _takes_timeout(connection.__class__):
        return connection.read_response(timeout=timeout)
    began = clock()
    if not connection.can_read(timeout=timeout):
        connection.disconnect()
        raise no_reply(timeout, clock() - began)
    return connection.read_response()


@cache
def _takes_timeout(kind: Any) -> bool:
    """Return True if `read_response()` of this connection class takes a timeout. In some versions
    of redis-py, it doesn't."""
    return "timeout" in signature(kind.read_response).parameters
