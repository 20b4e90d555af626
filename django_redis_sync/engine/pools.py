"""Connections checked out of the project's pool, and private ones made the way that pool does."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from redis import ConnectionPool
from redis import exceptions as errors
from redis.sentinel import SentinelConnectionPool

from ..protocol.steps import SHORTEST_WAIT, Answer, Failure, Run
from .wire import ATTEMPT, REDIS_ERRORS, clock, is_busy, is_exhausted, pack, why

_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
#: What a connection says of its library; since redis-py 7.
_ABOUT = "driver_info"

#: Connections of the project's pool that a process keeps borrowed between two commands, and the
#: seconds for which they are believed to be open.
MAX_CACHED, FRESH = 8, 1.0
#: Connections of a process and server that may be blocked by waiters; the others poll.
MAX_WAITING = 256
#: Our own connections that are kept open, and for how many seconds without use.
_MAX_IDLE, _IDLE_FOR = 64, 60.0
#: Seconds for making a connection that count as none.
_AT_ONCE = 0.01
#: Seconds that it may take to make a connection at the least, however little time is left.
_SHORTEST = 0.1
_BLPOP_MARGIN = 1.0

T = TypeVar("T")

#: The process that first used each of the project's pools.
_used_by: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class CheckedOut:
    """A connection for a `with`, from its lender. Redis's errors become Failures.

    `within`: seconds for getting it and for a reply together; each further reply may take as long.
    """

    __slots__ = ("_lender", "_sent", "_within", "connection")

    def __init__(self, lender: CachedConnections | Own, within: float) -> None:
        self._lender, self._within, self._sent = lender, within, False

    def __enter__(self) -> CheckedOut:
        try:
            self.connection, self._within = self._lender.lend(self._within)
        except REDIS_ERRORS as error:
            raise Failure(error, clock(), why(error, False)) from error
        return self

    def send(self, packed: bytes) -> None:
        self.connection.send_packed_command((packed,))
        self._sent = True  # half a command is none

    def send_several(self, packed: Iterable[bytes]) -> None:
        self._sent = True  # some may have left before it fails
        self.connection.send_packed_command(tuple(packed))

    def read(self) -> Any:
        """The next reply; TimeoutError of redis-py's after its time."""
        return read(self.connection, min(self._within, self._lender.patience))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        useful = error is None or (isinstance(error, errors.ResponseError) and not is_busy(error))
        if not useful:
            # An unread reply would be taken for the next command's; and where the primary was
            # demoted, Sentinel is asked anew.
            self.connection.disconnect()
            self._lender.drop(self.connection)
        else:
            self._lender.release(self.connection)
        if isinstance(error, REDIS_ERRORS):
            raise Failure(error, clock(), why(error, self._sent)) from error


def was_disconnected(failure: Failure) -> bool:
    """Whether its connection was lost, as one may have been that lay idle, rather than the time."""
    lost = failure.why in ("unreachable", "unanswered")
    return lost and not isinstance(failure.cause, (errors.TimeoutError, TimeoutError))


def retry_if_disconnected(ask: Callable[[], T]) -> T:
    """What `ask` returns, tried once more when its connection was lost. For what may be sent
    twice."""
    try:
        return ask()
    except Failure as failure:
        if not was_disconnected(failure):
            raise
    return ask()


def retry_many_if_disconnected(
    many: Callable[[list[Run]], list[Answer | Failure]], steps: list[Run]
) -> list[Answer | Failure]:
    """As retry_if_disconnected, of steps that a server is asked for in one go."""
    answers = many(steps)
    cut = [n for n, one in enumerate(answers) if isinstance(one, Failure) and was_disconnected(one)]
    for n, answer in zip(cut, many([steps[n] for n in cut]) if cut else (), strict=True):
        answers[n] = answer
    return answers


class CachedConnections:
    """Connections of a pool that stay borrowed from one command to the next. Our own of its kind
    are used instead where the pool might not answer in time: when it waits for a free one, as
    redis-py's BlockingConnectionPool, or may do anything, as a class of the project's own; and when
    making a connection may take it longer than there is time.

    Getting one from the pool and giving it back costs a quarter of a command. They are few: a small
    pool gets each back at once, and so does Sentinel's, which looks at each it gets back. A
    connection kept longer than FRESH goes back to be looked at as well; when it breaks before that,
    the plan asks again.
    """

    def __init__(self) -> None:
        self.pool: Any = None
        self._own: Any = None
        self._pid, self._until, self._most = 0, 0.0, 0
        self._asks, self.patience = False, ATTEMPT
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
        # After a fork, a thread of the parent may hold the pool's lock forever.
        is_ours = _used_by.setdefault(pool, os.getpid()) == os.getpid()
        self._asks, self.patience = is_ours and _never_waits(pool), own.patience
        most = 0 if isinstance(pool, SentinelConnectionPool) else pool.max_connections // 16
        self._most = min(MAX_CACHED, most) if self._asks else 0

    def lend(self, within: float) -> tuple[Any, float]:
        """A connection, and what is left of `within` seconds."""
        if not self._asks or self._own.takes > within:
            return self._lend_own(within)
        try:
            connection, since = self._idle.pop()
        except IndexError:
            return self._fetch(within)
        if clock() - since < FRESH:
            return connection, within
        self.give_back()
        self.pool.release(connection)
        return self._fetch(within)

    def _fetch(self, within: float) -> tuple[Any, float]:
        began = clock()
        try:
            return self._connected(), _left(within, began)
        except errors.ConnectionError as error:
            # Exhausted: a holder has to be able to give its lease back.
            if not is_exhausted(error):
                raise
        return self._lend_own(within)

    def _connected(self) -> Any:
        try:
            return self.pool.get_connection()
        except REDIS_ERRORS:
            raise
        except BaseException as error:
            # A signal's exception leaves a connection that is half set up, perhaps in another
            # database, and the pool lends it to the next.
            self.pool.disconnect(inuse_connections=False)
            if not isinstance(error, AttributeError):
                raise
        return self.pool.get_connection()  # such a one had been left before

    def _lend_own(self, within: float) -> tuple[Any, float]:
        connection, left = self._own.lend(within)
        self._lent.add(connection)
        return connection, left

    def release(self, connection: Any) -> None:
        if connection in self._lent:
            self._lent.discard(connection)
            self._own.release(connection)
        elif len(self._idle) < self._most:
            self._idle.append((connection, clock()))
        else:
            self.pool.release(connection)

    def drop(self, connection: Any) -> None:
        """Take back a connection that is closed. The idle ones may be no better."""
        if connection in self._lent:
            self._lent.discard(connection)
        else:
            self.pool.release(connection)
        self.give_back()

    def let_go(self) -> None:
        """As give_back; those that are lent, too, when they come back."""
        self._most = 0
        self.give_back()

    def give_back(self) -> None:
        """All that are idle, to the pool."""
        with contextlib.suppress(IndexError):
            while True:
                connection, _ = self._idle.pop()
                self.pool.release(connection)


class Exhausted(Exception):
    pass


def _left(within: float, began: float) -> float:
    """The rest of `within` seconds; all of it when a connection was made at once, so that the
    socket's own timeout does for the reply."""
    took = clock() - began
    return within if took < _AT_ONCE else max(SHORTEST_WAIT, within - took)


def _never_waits(pool: Any) -> bool:
    """Whether the pool hands out a connection at once, or none."""
    plain = type(pool).get_connection is ConnectionPool.get_connection
    return plain and "get_connection" not in vars(pool)


class Own:
    """Connections of our own, made as a pool makes its own, but in no more time than there is.

    `patience`: seconds that the project gives an answer, ATTEMPT at the most. `takes`: seconds
    that the pool's own may take to be made; inf, redis-py's default before 8.
    """

    def __init__(self, pool: Any) -> None:
        # Not the pool itself: an entry by pool must not keep the pool.
        kind, given = pool.connection_class, dict(pool.connection_kwargs)
        sample = kind(**given)
        said = {word: getattr(sample, word) for word in _TIMEOUTS if hasattr(sample, word)}
        with contextlib.suppress(AttributeError, TypeError):  # a class of the project's own
            # Else each looks up the version of redis-py on disk: longer than it takes to connect.
            about = {**given, _ABOUT: getattr(sample, _ABOUT)}
            kind(**about)
            given = about
        self.takes = max((math.inf if s is None else s for s in said.values()), default=math.inf)
        self.patience = min(ATTEMPT, said.get(_TIMEOUTS[0]) or ATTEMPT)

        def make(within: float) -> Any:
            given.update({word: min(within, s or ATTEMPT) for word, s in said.items()})
            return kind(**given)

        self._make = make
        self._idle: list[tuple[Any, float]] = []
        self._most = _MAX_IDLE
        self._pid = os.getpid()

    def lend(self, within: float) -> tuple[Any, float]:
        """A connection, and what is left of `within` seconds."""
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        try:
            connection, since = self._idle.pop()
        except IndexError:
            return self._made(within)
        if clock() - since < FRESH or _is_open(connection):
            return connection, within
        connection.disconnect()
        return self._made(within)

    def _made(self, within: float) -> tuple[Any, float]:
        began = clock()
        connection = self._make(max(_SHORTEST, min(within, ATTEMPT)))
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection, _left(within, began)

    def release(self, connection: Any) -> None:
        now = clock()
        self._idle.append((connection, now))
        try:
            while self._idle[0][1] < now - _IDLE_FOR or len(self._idle) > self._most:
                self._idle.pop(0)[0].disconnect()
        except IndexError:
            pass  # other threads took them

    def drop(self, connection: Any) -> None:
        """Forget a closed connection: a later use would connect it with the timeout it was made
        with."""

    def let_go(self) -> None:
        """Close all that are idle; those that are lent, when they come back."""
        self._most = 0
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop()[0].disconnect()


def _is_open(connection: Any) -> bool:
    """Whether nothing came while it lay idle: neither its end nor an unread reply."""
    try:
        return not connection.can_read()
    except REDIS_ERRORS:
        return False


class Waiting:
    """For blocked waiters: they must never take the connection a holder needs for its release."""

    # By thread, not a semaphore: a waiter that an exception interrupts anywhere leaves no lock
    # taken, and its place to its own next wait.
    def __init__(self, own: Own) -> None:
        self._own = own
        self._inside: dict[int, None] = {}
        self._pid = os.getpid()

    def pop(self, key: str, seconds: float) -> Any:
        """The reply of BLPOP within `seconds`. Exhausted: too many wait."""
        if self._pid != os.getpid():
            self._inside, self._pid = {}, os.getpid()
        if len(self._inside) >= MAX_WAITING:
            raise Exhausted
        me = threading.get_ident()
        self._inside[me] = None
        try:
            return self._pop(key, seconds)
        finally:
            self._inside.pop(me, None)

    def _pop(self, key: str, seconds: float) -> Any:
        limit = self._own.patience
        seconds = max(0.01, min(seconds, limit - _BLPOP_MARGIN if limit > 2 else limit / 2))
        most = min(limit, seconds + _BLPOP_MARGIN)
        connection, _ = self._own.lend(most)
        try:
            connection.send_packed_command([pack(("BLPOP", key, f"{seconds:.3f}"))])
            reply = read(connection, most)
        except BaseException:
            connection.disconnect()
            raise
        self._own.release(connection)
        return reply


def read(connection: Any, timeout: float) -> Any:
    """The reply, or redis.exceptions.TimeoutError after `timeout` seconds."""
    if connection.socket_timeout == timeout:
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
