"""Connections that are lent, kept at hand, and given back: without a server."""

from __future__ import annotations

import contextlib
import os
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
from django_redis_sync.protocol.plans import Failure
from tests.support import worker_processes


class Line:
    """In the place of a connection. `replies`: what is read of it, exceptions are raised."""

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
    """In the place of a project's pool. `back`: what it was given back, in order."""

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


class ByPrimary(Pool, SentinelConnectionPool):
    """As Sentinel's."""

    __repr__ = object.__repr__


_never_waits = pools._never_waits


@pytest.fixture(autouse=True)
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_never_waits", lambda pool: True)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock's time."""
    time = [1000.0]
    monkeypatch.setattr(pools, "clock", lambda: time[0])
    return time


def hand_of(pool: Any) -> CachedConnections:
    hand = CachedConnections()
    hand.belong_to(pool, PrivatePool(pool))
    return hand


def use(hand: CachedConnections | PrivatePool, times: int = 1) -> list[Any]:
    """So many connections at the same time, given back."""
    lent = [hand.check_out(5.0)[0] for _ in range(times)]
    for connection in lent:
        hand.release(connection)
    return lent


# At hand


def test_a_connection_stays_at_hand_while_it_is_fresh(now: list[float]) -> None:
    pool = Pool()
    hand = hand_of(pool)
    (first,) = use(hand)
    now[0] += FRESH / 2
    assert ([first], []) == (use(hand), pool.back)


def test_one_that_is_no_longer_fresh_goes_back_with_all_others_and_another_comes(
    now: list[float],
) -> None:
    pool = Pool()
    hand = hand_of(pool)
    stale = use(hand, 3)
    now[0] += FRESH
    (other,) = use(hand)
    assert other not in stale
    assert {*stale} == {*pool.back}
    assert 999 == pool.free


@pytest.mark.parametrize(("most", "kept"), [(1000, 8), (64, 4), (16, 1), (15, 0)])
def test_no_more_stay_at_hand_than_a_sixteenth_of_the_pool(most: int, kept: int) -> None:
    pool = Pool(most)
    use(hand_of(pool), 10)
    assert kept == most - pool.free


def test_none_of_sentinels_stays_at_hand() -> None:
    pool = ByPrimary()
    use(hand_of(pool), 2)
    assert 2 == len(pool.back)


def test_another_pools_connections_go_back_to_it(now: list[float]) -> None:
    before, after = Pool(), Pool()
    hand = hand_of(before)
    mine = use(hand, 2)
    hand.belong_to(after, PrivatePool(after))
    assert ({*mine}, 1000) == ({*before.back}, before.free)
    now[0] += FRESH + 0.1
    assert hand.is_old()


def test_after_a_fork_none_of_the_parents_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    hand, own = hand_of(pool), PrivatePool(pool)
    parents = [*use(hand), *use(own)]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert hand.is_old()
    hand.belong_to(pool, own)
    assert not {*parents} & {*use(hand), *use(own)}
    assert [] == pool.back  # a parent's is not the child's to give back


def test_an_exhausted_pool_keeps_nobody_from_a_release() -> None:
    pool = Pool(most=2)
    hand = hand_of(pool)
    lent = [hand.check_out(5.0)[0] for _ in range(4)]
    assert 0 == pool.free
    for connection in lent:
        hand.release(connection)
    assert lent[:2] == pool.back  # the others are ours
    assert not hand._lent, "what was given back is not kept in mind"


@pytest.mark.parametrize(
    ("error", "known"), [(KeyboardInterrupt(), False), (AttributeError(), True)]
)
def test_whoever_is_interrupted_while_a_pool_connects_hears_of_it_and_leaves_nothing_half_made(
    error: BaseException, known: bool
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
    with contextlib.nullcontext() if known else pytest.raises(KeyboardInterrupt):
        use(hand_of(pool))
    assert (1, int(known)) == (pool.cut, 1000 - pool.free)


def test_a_pool_that_waits_or_may_do_anything_is_known_as_such() -> None:
    class CustomPool(ConnectionPool):
        def get_connection(self, *_: Any, **__: Any) -> Any: ...

    kinds = ConnectionPool, BlockingConnectionPool, CustomPool, ConnectionPool
    made: list[Any] = [kind() for kind in kinds]
    made[-1].get_connection = lambda: None  # as a tracer does
    assert [True, False, False, False] == [_never_waits(pool) for pool in made]


# Borrowed


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
def test_a_connection_goes_back_open_when_all_was_read_of_it(
    error: BaseException | None, stays: bool
) -> None:
    pool = Pool()
    hand = hand_of(pool)
    bystander, used = use(hand, 2)
    used.connect()
    ends = pytest.raises((Failure, KeyboardInterrupt)) if error else contextlib.nullcontext()
    with ends, CheckedOut(hand, 5.0) as borrowed:
        assert used is borrowed.connection
        if error:
            raise error
    assert stays == used.is_open
    # What broke one may have broken all: the pool looks at each.
    assert (set() if stays else {bystander, used}) == {*pool.back}


@pytest.mark.parametrize(
    ("send", "why"),
    [
        (lambda to: to.send(b"PING"), "unreachable"),
        (lambda to: to.send_several([b"PING", b"PING"]), "unanswered"),
    ],
)
def test_of_several_commands_some_may_have_left_before_sending_failed(
    send: Callable[[CheckedOut], None], why: str
) -> None:
    """Half a command is none; of a pipeline the first half may have run."""

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
def test_only_what_a_lost_connection_cut_is_asked_anew_and_once(
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


def test_a_reply_is_waited_for_as_long_as_is_left_whatever_the_socket_waits() -> None:
    told: list[float] = []

    class Told(Line):
        def read_response(self, timeout: float = 0.0) -> Any:
            told.append(timeout)
            return super().read_response()

    class Older(Line):
        def can_read(self, timeout: float = 0) -> bool:
            told.append(timeout)
            return self.noisy

        def read_response(self) -> Any:
            return b"OK"

    older = Older()
    older.connect()
    older.noisy = True
    assert [b"OK"] * 2 == [pools.read(line, 0.5) for line in (Told(), older)]
    older.noisy = False
    with pytest.raises(errors.TimeoutError, match=r"within 0\.5 s"):
        pools.read(older, 0.5)
    assert ([0.5] * 3, False) == (told, older.is_open)


# Our own


@pytest.mark.parametrize("found", [True, errors.ConnectionError("cut")], ids=["noise", "its end"])
def test_an_own_connection_that_lay_idle_is_looked_at(now: list[float], found: Any) -> None:
    own = PrivatePool(Pool())
    (first,) = use(own)
    now[0] += FRESH
    assert [first] == use(own)
    now[0] += FRESH
    first.noisy = found
    assert [first] != use(own)
    assert not first.is_open


def test_a_connection_of_the_pool_that_waits_for_longer_than_there_is_time_stays_idle() -> None:
    pool = Pool()
    hand = hand_of(pool)
    (kept,) = use(hand)
    connection, _ = hand.check_out(0.5)
    hand.release(connection)
    assert connection is not kept
    assert [kept] == use(hand)


def test_own_connections_are_closed_when_there_are_too_many_or_they_are_idle_for_long(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_MAX_IDLE", 3)
    own = PrivatePool(Pool())
    some = use(own, 5)
    assert [False, False, True, True, True] == [line.is_open for line in some]
    now[0] += pools._IDLE_FOR + 1
    use(own)
    assert 1 == sum(line.is_open for line in some)


def test_the_time_for_making_one_is_part_of_the_time_that_there_is(now: list[float]) -> None:
    class Slow(Line):
        def connect(self) -> None:
            now[0] += 3.0

    pool = Pool()
    pool.connection_class = Slow
    assert 2.0 == PrivatePool(pool).check_out(5.0)[1]


@pytest.mark.parametrize("said", [2.0, None])
def test_one_is_made_and_answers_in_the_time_that_there_is_or_less(said: float | None) -> None:
    class Told(Line):
        def __init__(self, **given: Any) -> None:
            super().__init__()
            self.__dict__.update(given)  # None too

    pool = Pool()
    pool.connection_class = Told
    pool.connection_kwargs = {"socket_timeout": said, "socket_connect_timeout": said}
    for within, timeout in ((0.5, 0.5), (0.0, pools._SHORTEST), (60.0, said or pools.ATTEMPT)):
        line, _ = PrivatePool(pool).check_out(within)
        assert (timeout, timeout) == (line.socket_timeout, line.socket_connect_timeout)


def test_a_class_that_is_told_nothing_of_its_library_is_not_told() -> None:
    class Plain(Line):
        driver_info = "its own"

        def __init__(self, socket_timeout: float = 5, socket_connect_timeout: float = 5) -> None:
            super().__init__()

    pool = Pool()
    pool.connection_class = Plain
    assert 1 == len(use(PrivatePool(pool)))


# Waiters


@pytest.mark.parametrize(
    ("patience", "wanted", "asked"),
    [(5.0, 0.3, "0.300"), (5.0, 20, "4.000"), (1.0, 20, "0.500"), (5.0, 0.0, "0.010")],
)
def test_a_wait_ends_before_the_socket_gives_up_and_never_lasts_for_ever(
    monkeypatch: pytest.MonkeyPatch, patience: float, wanted: float, asked: str
) -> None:
    pool = Pool()
    pool.connection_kwargs = {"socket_timeout": patience}
    own, read = PrivatePool(pool), list[float]()
    monkeypatch.setattr(pools, "read", lambda line, seconds: read.append(seconds) or b"OK")
    assert b"OK" == BlockingPool(own).pop("wake", wanted)
    (line,) = use(own)  # it was given back
    assert min(patience, float(asked) + 1.0) == read[0]  # and no longer where the server hangs
    assert f"${len(asked)}\r\n{asked}\r\n".encode() in line.sent[0]


@pytest.mark.parametrize("error", [errors.TimeoutError("late"), KeyboardInterrupt()], ids=repr)
def test_a_waiter_that_was_interrupted_leaves_its_place_and_no_connection(
    error: BaseException,
) -> None:
    own = PrivatePool(Pool())
    (line,) = use(own)
    line.replies = [error]
    waiting = BlockingPool(own)
    with pytest.raises(type(error)):
        waiting.pop("wake", 0.1)
    assert ({}, False) == (waiting._inside, line.is_open)
    assert [line] != use(own)


def test_what_is_lent_when_a_server_is_let_go_is_not_kept_when_it_comes_back() -> None:
    mine, pool = Server("default"), Pool()
    mine._own[pool] = own = PrivatePool(pool)
    mine._cached.belong_to(pool, own)
    lent, borrowed = own.check_out(5.0)[0], mine._cached.check_out(5.0)[0]
    mine.close_idle()
    own.release(lent)
    mine._cached.release(borrowed)
    assert (False, [borrowed]) == (lent.is_open, pool.back)


#: A thread of the parent has the lock of the project's pool while the process forks.
FORKING = """if True:
    import os, threading
    import django
    django.setup()
    from django.core.cache import caches
    from django_redis_sync import Lock

    Lock("x").acquire().release()
    pool, has_it = caches["default"].client.get_client().connection_pool, threading.Event()

    def hold():
        with pool._lock:
            has_it.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    has_it.wait()
    child = os.fork()
    if child == 0:
        Lock("x").acquire().release()
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.usefixtures("clean_redis")
def test_forked_child_waits_for_no_lock_of_its_parents_pool() -> None:
    done = worker_processes.run("-c", FORKING)
    assert "7" == done.stdout.strip(), done.stderr
