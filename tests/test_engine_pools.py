"""Connections: checked out, cached, and released. Without a server."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from redis import BlockingConnectionPool, ConnectionPool
from redis import exceptions as errors
from redis.sentinel import SentinelConnectionPool

from django_redis_sync.engine import pools
from django_redis_sync.engine.pools import (
    FRESH,
    BlockingPool,
    CachedConnections,
    CheckedOut,
    PrivatePool,
)
from django_redis_sync.engine.server import Server
from django_redis_sync.protocol import plans
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Failure
from tests.support import worker_processes


class Line:
    """Stand-in for a connection. It reads `replies`, and raises the exceptions among them."""

    def __init__(self, **given: Any) -> None:
        self.socket_timeout = self.socket_connect_timeout = 5.0
        self.__dict__.update(given)
        self.is_open, self.refuses = False, False
        self.noisy: bool | Exception = False
        self.sent: list[bytes] = []
        self.replies: list[Any] = []

    def connect(self) -> None:
        self.is_open = True
        if self.refuses:
            raise errors.ConnectionError("refused")

    def disconnect(self) -> None:
        self.is_open = False

    def can_read(self, timeout: float = 0) -> bool:
        if isinstance(self.noisy, Exception):
            raise self.noisy
        return self.noisy

    def send_packed_command(self, packed: Any) -> None:
        self.sent += packed

    def read_response(self, timeout: float = 0.0) -> Any:
        reply = self.replies.pop(0) if self.replies else b"OK"
        if isinstance(reply, BaseException):
            raise reply
        return reply


class Pool:
    """Stand-in for a project's pool. `back`: the connections that were released to it, in order."""

    def __init__(self, most: int = 1000) -> None:
        self.max_connections, self.free = most, most
        self.connection_class, self.connection_kwargs = Line, dict[str, Any]()
        self.back: list[Line] = []

    def get_connection(self) -> Line:
        if not self.free:
            raise errors.MaxConnectionsError("Too many connections")
        self.free -= 1
        return Line()

    def release(self, connection: Line) -> None:
        self.free += 1
        self.back.append(connection)


class SentinelPool(Pool, SentinelConnectionPool):
    __repr__ = object.__repr__


_never_waits = pools._never_waits


@pytest.fixture(autouse=True)
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_never_waits", lambda pool: True)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time: assign to `now[0]` to change it."""
    time = [1000.0]
    monkeypatch.setattr(pools, "clock", lambda: time[0])
    return time


def cached_of(pool: Any) -> CachedConnections:
    cached = CachedConnections()
    cached.belong_to(pool, PrivatePool(pool))
    return cached


def use(cached: CachedConnections | PrivatePool, times: int = 1) -> list[Any]:
    """Check out this number of connections at the same time, release them, and return them."""
    lent = [cached.check_out(5.0)[0] for _ in range(times)]
    for connection in lent:
        cached.release(connection)
    return lent


# Cached connections


def test_cached_connection_is_used_again_while_it_is_fresh(now: list[float]) -> None:
    pool = Pool()
    cached = cached_of(pool)
    (first,) = use(cached)
    now[0] += FRESH / 2
    assert ([first], []) == (use(cached), pool.back)


def test_all_cached_connections_are_released_when_one_is_no_longer_fresh(
    now: list[float],
) -> None:
    pool = Pool()
    cached = cached_of(pool)
    stale = use(cached, 3)
    now[0] += FRESH
    (other,) = use(cached)
    assert other not in stale
    assert {*stale} == {*pool.back}
    assert 999 == pool.free


@pytest.mark.parametrize(("most", "kept"), [(1000, 8), (64, 4), (16, 1), (15, 0)])
def test_at_most_a_sixteenth_of_the_pool_is_cached(most: int, kept: int) -> None:
    pool = Pool(most)
    use(cached_of(pool), 10)
    assert kept == most - pool.free


def test_no_connection_of_a_sentinel_pool_is_cached() -> None:
    pool = SentinelPool()
    use(cached_of(pool), 2)
    assert 2 == len(pool.back)


def test_cached_connections_are_released_to_their_pool_when_the_pool_changes(
    now: list[float],
) -> None:
    before, after = Pool(), Pool()
    cached = cached_of(before)
    mine = use(cached, 2)
    cached.belong_to(after, PrivatePool(after))
    assert ({*mine}, 1000) == ({*before.back}, before.free)
    now[0] += FRESH + 0.1
    assert cached.is_old()


def test_forked_child_uses_no_connection_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    cached, own = cached_of(pool), PrivatePool(pool)
    parents = [*use(cached), *use(own)]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert cached.is_old()
    cached.belong_to(pool, own)
    assert not {*parents} & {*use(cached), *use(own)}
    assert [] == pool.back  # the connections of the parent stay with the parent


def test_private_connections_are_used_when_the_pool_is_exhausted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "_MAX_IDLE", 0)
    pool = Pool(most=2)
    cached = cached_of(pool)
    lent = [cached.check_out(5.0)[0] for _ in range(4)]
    assert 0 == pool.free
    for connection in lent:
        cached.release(connection)
    assert lent[:2] == pool.back
    private = [weakref.ref(one) for one in lent[2:]]
    del lent, connection
    assert not any(one() for one in private), "a released connection is still referenced"


@pytest.mark.parametrize(
    ("error", "retried"), [(KeyboardInterrupt(), False), (AttributeError(), True)]
)
def test_exception_while_the_pool_connects_disconnects_its_idle_connections(
    error: BaseException, retried: bool
) -> None:
    class Interrupted(Pool):
        cut = 0

        def get_connection(self) -> Line:
            if not self.cut:
                raise error
            return super().get_connection()

        def disconnect(self, inuse_connections: bool) -> None:
            assert not inuse_connections
            self.cut += 1

    pool = Interrupted()
    with contextlib.nullcontext() if retried else pytest.raises(KeyboardInterrupt):
        use(cached_of(pool))
    assert (1, int(retried)) == (pool.cut, 1000 - pool.free)


def test_never_waits_recognizes_pools_that_may_wait() -> None:
    class CustomPool(ConnectionPool):
        def get_connection(self, *_: Any, **__: Any) -> Any: ...

    kinds = ConnectionPool, BlockingConnectionPool, CustomPool, ConnectionPool
    made: list[Any] = [kind() for kind in kinds]
    made[-1].get_connection = lambda: None  # as a tracer does
    assert [True, False, False, False] == [_never_waits(pool) for pool in made]


# Checked-out connections


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (None, True),
        (errors.ResponseError("WRONGTYPE"), True),
        (errors.ReadOnlyError("READONLY"), False),
        (errors.BusyLoadingError("LOADING"), False),
        (errors.TimeoutError("late"), False),
        (OSError("cut"), False),
        (KeyboardInterrupt(), False),
    ],
    ids=repr,
)
def test_connection_stays_open_only_if_its_reply_was_read(
    error: BaseException | None, stays: bool
) -> None:
    pool = Pool()
    cached = cached_of(pool)
    bystander, used = use(cached, 2)
    used.connect()
    ends = pytest.raises((Failure, KeyboardInterrupt)) if error else contextlib.nullcontext()
    with ends, CheckedOut(cached, 5.0) as borrowed:
        assert used is borrowed.connection
        if error:
            raise error
    assert stays == used.is_open
    # The same cause may have broken all connections, so the pool gets all to check them.
    assert (set() if stays else {bystander, used}) == {*pool.back}


@pytest.mark.parametrize(
    ("send", "why"),
    [
        (lambda to: to.send(b"PING"), "unreachable"),
        (lambda to: to.send_several([b"PING", b"PING"]), "unanswered"),
    ],
)
def test_failed_send_of_several_commands_counts_as_unanswered(
    send: Callable[[CheckedOut], None], why: str
) -> None:
    """The server ignores half a command, but it may have run the first commands of a pipeline."""

    class Choked(Line):
        def send_packed_command(self, packed: Any) -> None:
            raise errors.ConnectionError("broken pipe")

    pool = Pool()
    pool.connection_class = Choked
    with pytest.raises(Failure) as caught, CheckedOut(PrivatePool(pool), 5.0) as borrowed:
        send(borrowed)
    assert why == caught.value.why


@pytest.mark.parametrize(
    ("why", "cause", "asked"),
    [
        ("unreachable", errors.ConnectionError(), 2),
        ("unanswered", OSError(), 2),
        ("unanswered", errors.TimeoutError(), 1),
        ("unreachable", TimeoutError(), 1),
        ("busy", errors.ConnectionError(), 1),
        ("final", errors.ResponseError(), 1),
    ],
)
def test_only_a_command_whose_connection_was_lost_is_retried_once(
    why: Any, cause: Exception, asked: int
) -> None:
    failure, alone, together = Failure(cause, 0.0, why), list[int](), list[list[Any]]()

    def ask() -> None:
        alone.append(1)
        raise failure

    def many(steps: list[Any]) -> list[Any]:
        together.append(steps)
        return [failure if step == "cut" else "done" for step in steps]

    with pytest.raises(Failure):
        pools.retry_if_disconnected(ask)
    steps: list[Any] = ["one", "cut", "other"]
    assert ["done", failure, "done"] == pools.retry_many_if_disconnected(many, steps)
    assert asked == len(alone)
    assert [steps, ["cut"]][:asked] == together


def test_read_uses_the_time_that_is_left_as_its_timeout() -> None:
    timeouts: list[float] = []

    class Recent(Line):
        def read_response(self, timeout: float = 0.0) -> Any:
            timeouts.append(timeout)
            return super().read_response()

    class Older(Line):
        def can_read(self, timeout: float = 0) -> bool:
            timeouts.append(timeout)
            return self.noisy

        def read_response(self) -> Any:
            return b"OK"

    older = Older()
    older.connect()
    older.noisy = True
    assert [b"OK"] * 2 == [pools.read(line, 0.5) for line in (Recent(), older)]
    older.noisy = False
    with pytest.raises(errors.TimeoutError, match=r"within 0\.5 s"):
        pools.read(older, 0.5)
    assert ([0.5] * 3, False) == (timeouts, older.is_open)


# Private connections


@pytest.mark.parametrize(
    "found", [True, errors.ConnectionError("cut")], ids=["unread data", "closed"]
)
def test_idle_private_connection_is_checked_before_use(now: list[float], found: Any) -> None:
    own = PrivatePool(Pool())
    (first,) = use(own)
    now[0] += FRESH
    assert [first] == use(own)
    now[0] += FRESH
    first.noisy = found
    assert [first] != use(own)
    assert not first.is_open


def test_cached_connection_with_a_longer_timeout_than_wanted_is_not_used() -> None:
    pool = Pool()
    cached = cached_of(pool)
    (kept,) = use(cached)
    connection, _ = cached.check_out(0.5)
    cached.release(connection)
    assert connection is not kept
    assert [kept] == use(cached)


def test_surplus_and_long_idle_private_connections_are_closed(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_MAX_IDLE", 3)
    own = PrivatePool(Pool())
    some = use(own, 5)
    assert [False, False, True, True, True] == [line.is_open for line in some]
    now[0] += pools._IDLE_FOR + 1
    use(own)
    assert 1 == sum(line.is_open for line in some)


def test_time_to_connect_is_deducted_from_the_timeout(now: list[float]) -> None:
    class Slow(Line):
        def connect(self) -> None:
            now[0] += 3.0

    pool = Pool()
    pool.connection_class = Slow
    assert 2.0 == PrivatePool(pool).check_out(5.0)[1]


@pytest.mark.parametrize("configured", [2.0, None])
def test_private_connection_has_the_shorter_of_both_timeouts(
    configured: float | None,
) -> None:
    class AnyTimeout(Line):
        def __init__(self, **given: Any) -> None:
            super().__init__()
            self.__dict__.update(given)

    pool = Pool()
    pool.connection_class = AnyTimeout
    pool.connection_kwargs = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), configured)
    for within, timeout in (
        (0.5, 0.5),
        (0.0, pools._SHORTEST),
        (60.0, configured or pools.ATTEMPT),
    ):
        line, _ = PrivatePool(pool).check_out(within)
        assert (timeout, timeout) == (line.socket_timeout, line.socket_connect_timeout)


def test_connection_class_without_the_argument_driver_info_works() -> None:
    class Plain(Line):
        driver_info = "its own"

        def __init__(self, socket_timeout: float = 5, socket_connect_timeout: float = 5) -> None:
            super().__init__()

    pool = Pool()
    pool.connection_class = Plain
    assert 1 == len(use(PrivatePool(pool)))


# Waiters


@pytest.mark.parametrize(
    ("socket_timeout", "wanted", "asked"),
    [(5.0, 0.3, "0.300"), (5.0, 20, "4.000"), (1.0, 20, "0.500"), (5.0, 0.0, "0.010")],
)
def test_wait_ends_before_the_socket_timeout_and_is_never_endless(
    monkeypatch: pytest.MonkeyPatch, socket_timeout: float, wanted: float, asked: str
) -> None:
    pool = Pool()
    pool.connection_kwargs = {"socket_timeout": socket_timeout}
    own, read = PrivatePool(pool), list[float]()
    monkeypatch.setattr(pools, "read", lambda line, seconds: read.append(seconds) or b"OK")
    assert b"OK" == BlockingPool(own).pop("wake", wanted)
    (line,) = use(own)
    assert min(socket_timeout, float(asked) + 1.0) == read[0]
    assert f"${len(asked)}\r\n{asked}\r\n".encode() in line.sent[0]


@pytest.mark.parametrize("error", [errors.TimeoutError("late"), KeyboardInterrupt()], ids=repr)
def test_interrupted_waiter_closes_its_connection(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MAX_WAITING", 1)
    own = PrivatePool(Pool())
    (line,) = use(own)
    line.replies = [error]
    waiting = BlockingPool(own)
    with pytest.raises(type(error)):
        waiting.pop("wake", 0.1)
    assert not line.is_open
    assert [line] != use(own)
    assert b"OK" == waiting.pop("wake", 0.1)  # its wait slot is free again


def test_connections_checked_out_during_let_go_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LettingGo(Line):
        def send_packed_command(self, packed: Any) -> None:
            mine.close_idle()

    mine, pool, used = Server("default"), Pool(), LettingGo()
    monkeypatch.setattr(mine, "pool", lambda: pool)
    monkeypatch.setattr(pool, "get_connection", lambda: used)
    private, _ = mine.own().check_out(5.0)
    mine.run(plans.undoing(keys_of("p", "x"), "t")._replace(timeout=5.0))
    mine.own().release(private)
    assert (False, [used]) == (private.is_open, pool.back)


#: A thread holds the lock of the project's pool while the process forks.
FORKING = """if True:
    import os, signal, threading
    import django
    django.setup()
    from django.core.cache import caches
    from django_redis_sync import Lock

    Lock("x").acquire().release()
    pool, locked = caches["default"].client.get_client().connection_pool, threading.Event()

    def hold():
        with pool._lock:
            locked.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    locked.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for the lock
        Lock("x").acquire().release()
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.usefixtures("clean_redis")
def test_forked_child_waits_for_no_lock_of_its_parents_pool() -> None:
    done = worker_processes.run("-c", FORKING)
    assert "7" == done.stdout.strip(), done.stderr
