"""A lock on five independent servers, which is held if a majority grants it."""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from devtools.servers import RedisServer
from devtools.topologies import Independent, client
from django_redis_sync import (
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    Unavailable,
)
from django_redis_sync.engine.quorum import voting
from django_redis_sync.engine.quorum.voting import held_of
from django_redis_sync.engine.server import Members
from exam import clock
from tests.behaviour.both import both, eventually, until
from tests.behaviour.watching import View

from .crowd import Crowd

pytestmark = pytest.mark.promise(17)

#: Seconds allowed for one reply while servers are stopped.
ATTEMPT = 1.0
#: Seconds in which a lease of 30 s doesn't expire.
SOONER = 20


class Impatient(Lock):
    _attempt = ATTEMPT


class Five:
    """Five servers, and their cache aliases for `using`."""

    def __init__(
        self, servers: list[RedisServer], aliases: list[str], kind: type[Lock] = Lock
    ) -> None:
        self.servers, self.aliases, self.kind = servers, aliases, kind

    def lock(self, name: str = "x", **options: Any) -> Lock:
        return self.kind(name, using=self.aliases, **options)

    def holding(self, name: str = "x") -> list[int]:
        """Return the number of unexpired leases on each running server."""
        found = []
        for server in self.servers:
            if server.pid is not None:
                with client(server) as mine:
                    found.append(View(mine, name).holding)
        return found

    def flush(self, count: int) -> None:
        for server in self.servers[:count]:
            with client(server) as mine:
                mine.flushdb()


@pytest.fixture(scope="module")
def running() -> Iterator[list[RedisServer]]:
    from .conftest import _need_servers

    _need_servers()
    with Independent(5) as started:
        yield started.servers


class _One:
    def __init__(self, server: RedisServer) -> None:
        self.server = server

    def cache(self, **options: Any) -> dict[str, Any]:
        backend = "django_redis.cache.RedisCache"
        return {"BACKEND": backend, "LOCATION": self.server.url, "OPTIONS": options}


@pytest.fixture
def gather(alias: Any) -> Callable[..., Five]:
    return lambda servers, *kind: Five(servers, [alias(_One(server)) for server in servers], *kind)


@pytest.fixture
def five(running: list[RedisServer], gather: Any) -> Five:
    """Five shared servers, which a test doesn't break."""
    five = gather(running)
    five.flush(5)
    return five


@pytest.fixture
def own(start: Any, gather: Any) -> Five:
    """Five servers that only this test uses."""
    return gather(start(Independent, count=5).servers, Impatient)


# Guarantees of a lock


@both
async def test_quorum_lock_is_held_and_released_on_all_servers(io, five) -> None:
    lease = await io.do(five.lock(), "acquire")
    assert lease.held and 25 < lease.remaining <= 30
    await until(io, lambda: five.holding() == [1] * 5)
    assert await io.do(five.lock(), "acquire", False) is None
    assert await io.do(five.lock(), "acquire", blocking_timeout=0.3) is None
    with pytest.raises(NotAcquired):
        async with io.entered(five.lock(blocking=False)):
            pytest.fail("two are in")
    assert await io.do(five.lock(), "locked") and await io.do(lease, "owned")
    assert (await io.do(five.lock(), "status")).holding == 1
    await io.do(lease, "release")
    assert five.holding() == [0] * 5
    assert not await io.do(five.lock(), "locked")
    with pytest.raises(NotAcquired):
        await io.do(lease, "release")


@both
async def test_waiter_gets_the_released_permit(io, five) -> None:
    first = await io.do(five.lock(), "acquire")
    waiting = io.start(io.do(five.lock(), "acquire"))
    await io.sleep(0.3)
    await io.do(first, "release")
    second = await io.result(waiting)
    assert second.held and second.fence > first.fence
    await io.do(second, "release")
    assert five.holding() == [0] * 5


@both
async def test_quorum_lease_is_renewed_extended_and_expires(io, five) -> None:
    kept = await io.do(five.lock("kept", timeout=3, renew=True), "acquire")
    hard = await io.do(five.lock("hard", timeout=2), "acquire")
    assert hard.remaining <= 2
    await io.sleep(4)
    assert kept.held and await io.do(kept, "owned")
    assert not hard.held
    assert await io.do(five.lock("hard"), "acquire", False)
    await io.do(kept, "extend", 200)
    assert 190 < kept.remaining <= 203
    await io.do(kept, "renew", 50)
    assert 40 < kept.remaining <= 50
    await io.do(kept, "release")


@both
async def test_quorum_lease_is_lost_only_when_a_majority_lost_it(io, five) -> None:
    lost: list[Any] = []
    lock = five.lock(timeout=3, renew=True, on_lost=lost.append)
    lease = await io.do(lock, "acquire")
    five.flush(2)
    await io.sleep(4)
    assert lease.held and await io.do(lease, "owned")
    assert await io.do(five.lock(), "acquire", False) is None
    five.flush(3)
    await until(io, lambda: lost and not lease.held)
    with pytest.raises(LeaseLost):
        await io.do(lock, "release")
    again = await io.do(five.lock(), "acquire", blocking_timeout=SOONER)
    assert again and again.fence > lease.fence
    await io.do(again, "release")


@both
async def test_rlock_on_a_quorum_is_reentrant(io, five) -> None:
    lock = RLock("re", using=five.aliases)
    async with io.entered(lock) as outer:
        async with io.entered(RLock("re", using=five.aliases)) as inner:
            assert inner is outer and outer.held
        assert outer.held
    assert five.holding("re") == [0] * 5


def test_quorum_fence_grows_with_every_grant(five) -> None:
    fences = []
    for _ in range(5):
        with five.lock("fenced") as lease:
            fences.append(lease.fence)
    assert sorted(set(fences)) == fences


def test_min_hold_keeps_a_quorum_lock_taken(five) -> None:
    with five.lock("period", min_hold=4.0):
        pass
    assert five.holding("period") == [1] * 5
    assert five.lock("period").acquire(False) is None
    lease = five.lock("period").acquire(blocking_timeout=SOONER)
    assert lease
    lease.release()


def test_quorum_lock_is_granted_to_each_of_twenty_contenders(five) -> None:
    turns: Counter[int] = Counter()
    waits: list[float] = []
    inside = []

    def contend(number: int) -> None:
        for _ in range(3):
            began = time.monotonic()
            with five.lock("crowd") as lease:
                waits.append(time.monotonic() - began)
                inside.append(number)
                assert len(inside) == 1 and lease.held
                inside.remove(number)
            turns[number] += 1

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(contend, range(20)))
    print(f"60 grants, the longest wait {max(waits):.2f} s, the mean {sum(waits) / 60:.2f} s")
    assert turns == dict.fromkeys(range(20), 3)
    eventually(lambda: five.holding("crowd") == [0] * 5, SOONER)


# Servers that stop


@both
async def test_quorum_works_with_two_of_five_killed_and_fails_with_three(io, own) -> None:
    before = await io.do(own.lock("before", timeout=6, renew=True), "acquire")
    for server in own.servers[:2]:
        server.kill()
    for _ in range(3):
        start = time.monotonic()
        async with io.entered(own.lock()) as lease:
            assert lease.held and await io.do(lease, "owned")
        assert time.monotonic() - start < 3
    await io.sleep(2)
    assert before.held
    own.servers[2].kill()
    start = time.monotonic()
    with pytest.raises(Unavailable, match="of 5 servers"):
        await io.do(own.lock("after"), "acquire", False)
    with pytest.raises(Unavailable):
        await io.do(own.lock("after"), "acquire", blocking_timeout=0.5)
    with pytest.raises(Unavailable):
        await io.do(own.lock("after"), "locked")
    assert time.monotonic() - start < 20 * ATTEMPT
    await until(io, lambda: own.holding("after") == [0, 0], SOONER)
    # The lease can't be renewed without a majority, so it is lost.
    await until(io, lambda: not before.held)
    for server in own.servers[:3]:
        server.restart()
    async with io.entered(own.lock("after")) as lease:
        assert lease.held


@both
async def test_quorum_works_with_two_hung_servers_and_releases_on_them_later(io, own) -> None:
    async with io.entered(own.lock()):
        pass
    for server in own.servers[:2]:
        server.pause()
    try:
        took = []
        for _ in range(5):
            start = time.monotonic()
            async with io.entered(own.lock()) as lease:
                assert lease.held
                assert await io.do(own.lock(), "acquire", False) is None
            took.append(time.monotonic() - start)
        print(
            "seconds for a cycle and a rejection while two servers hang:",
            [round(t, 3) for t in took],
        )
        assert min(took) < 0.5 and max(took) < 5
    finally:
        for server in own.servers[:2]:
            server.resume()
    # The requests that reached the hung servers late are undone.
    await until(io, lambda: own.holding() == [0] * 5, SOONER)
    async with io.entered(own.lock()) as lease:
        assert lease.held


def test_quorum_never_exceeds_the_limit_while_servers_stop_and_return(own) -> None:
    """At most two servers are down at a time. A server that lost its data doesn't return within
    the longest lease, as docs/redis-setup.md demands."""
    with Crowd(own.aliases, ["a", "b"], 1, threads=4, tasks=4, lease=6) as crowd:
        eventually(lambda: all(len(crowd.grants[one]) > 5 for one in "ab"))
        for pair in ((0, 1), (2, 3)):
            for number in pair:
                own.servers[number].pause()
            time.sleep(1)
            for number in pair:
                own.servers[number].resume()
            time.sleep(0.5)
        own.servers[4].kill()
        paused = time.monotonic()
        eventually(lambda: len(crowd.since(paused)) == 2)
    assert crowd.over == 0
    assert crowd.errors == {}, crowd.messages
    assert sum(map(len, crowd.grants.values())) > 20


# Clocks


class Jumped(Crowd):
    """A crowd in which two leases may be held if the server whose clock jumped is the only server
    that both majorities share."""

    def __init__(self, five: Five, odd: str) -> None:
        super().__init__(five.aliases, ["a", "b"], 1, threads=4, tasks=4, lease=6)
        self.of, self.odd = Members(five.aliases), odd

    def excused(self, held: list[Any]) -> bool:
        holds = [held_of(self.of, lease.token) for lease in held]
        return set.intersection(*(set(hold.fences) for hold in holds if hold)) == {self.odd}


@pytest.mark.skipif(bool(clock.reason()), reason=clock.reason())
@pytest.mark.parametrize("seconds", [60, -60], ids=["ahead", "behind"])
def test_quorum_stays_safe_when_the_clock_of_one_server_jumps(
    tmp_path, gather, seconds: int
) -> None:
    odd_clock = clock.Clock(tmp_path)
    with (
        Independent(4) as others,
        RedisServer(environment=odd_clock.environment) as odd,
    ):
        five = gather([*others.servers, odd])
        held = five.lock("held", timeout=50).acquire()
        with client(odd) as mine, Jumped(five, five.aliases[4]) as crowd:
            eventually(lambda: all(len(crowd.grants[one]) > 5 for one in "ab"))
            odd_clock.shift(seconds)
            assert abs(mine.time()[0] - time.time() - seconds) < 5
            assert five.lock("held").acquire(blocking_timeout=0.5) is None
            assert held.held and held.owned()
            jumped = time.monotonic()
            eventually(lambda: all(len(g) > 20 for g in crowd.grants.values()), 60)
            odd_clock.shift(0)
            eventually(lambda: len(crowd.since(jumped + 0.5)) == 2)
        assert crowd.over == 0
        # The clock jumps ahead once, which can end one lease of each name.
        assert set(crowd.errors) <= {"LeaseLost", "NotAcquired"}, crowd.messages
        assert sum(crowd.errors.values()) <= 2, crowd.messages
        held.release()


def patiently(acquire: Callable[..., Any], *args: Any) -> Any:
    """Call `acquire` until a majority answers, and return the result.

    A busy machine may need several tries."""

    def answered() -> list[Any]:
        try:
            return [acquire(*args)]
        except Unavailable:
            return []

    (got,) = eventually(answered, 20)
    return got


@pytest.mark.skipif(bool(clock.reason()), reason=clock.reason())
def test_clock_jump_ends_a_lease_of_a_bare_majority_and_calls_on_lost(tmp_path, gather) -> None:
    odd_clock = clock.Clock(tmp_path)
    lost: list[Any] = []
    with (
        Independent(4) as others,
        RedisServer(environment=odd_clock.environment) as odd,
    ):
        five = gather([*others.servers, odd])
        rivals = [Lock("x", using=alias).acquire() for alias in five.aliases[:2]]
        mine = five.lock("x", timeout=18, renew=True, on_lost=lost.append)
        held = patiently(mine.acquire)
        for rival in rivals:
            assert rival
            rival.release()
        assert five.holding("x") == [0, 0, 1, 1, 1]
        assert patiently(five.lock("x").acquire, False) is None
        odd_clock.shift(60)
        rival = patiently(five.lock("x").acquire)
        assert Jumped(five, five.aliases[4]).excused([held, rival])
        # At the first renewal after the jump: the second would be 2/3 of the duration later.
        eventually(lambda: lost, 18 / 3 + 4)
        assert not held.held


# Wrong arguments


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda using: Semaphore("x", 2, using=using), "majorities"),
        (lambda using: Semaphore("x", using=using), "majorities"),
        (lambda using: Lock("x", using=using, fair=True), "fair"),
        (lambda using: Lock("x", using=using, timeout=math.inf), "permanent"),
        (lambda using: Lock("x", using=using[:2]), "fewer than three"),
        (lambda using: Lock("x", using=[*using, using[0]]), "twice"),
    ],
)
def test_option_that_is_unsafe_on_a_quorum_raises_improperly_configured(make, reason: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"(?i){reason}"):
        make(["a", "b", "c"])


def test_read_write_lock_on_a_quorum_raises_improperly_configured() -> None:
    with pytest.raises(ImproperlyConfigured, match="readers"):
        ReadWriteLock("x", using=["a", "b", "c"])


def test_using_with_a_non_string_alias_raises_type_error() -> None:
    with pytest.raises(TypeError):
        Lock("x", using=[1, 2, 3])


@both
async def test_unknown_or_duplicate_server_raises_improperly_configured(io, five, settings) -> None:
    with pytest.raises(ImproperlyConfigured, match="nowhere"):
        await io.do(Lock("x", using=[*five.aliases, "nowhere"]), "acquire")
    duplicate = {"duplicate": django_settings.CACHES[five.aliases[0]]}
    settings.CACHES = {**settings.CACHES, **duplicate}
    with pytest.raises(ImproperlyConfigured, match="same LOCATION"):
        await io.do(Lock("x", using=[*five.aliases, "duplicate"]), "acquire")


@both
async def test_detach_of_a_quorum_lease_raises_not_implemented_error(io, five) -> None:
    lease = await io.do(five.lock(), "acquire")
    with pytest.raises(NotImplementedError):
        await io.do(lease, "detach")
    assert lease.held
    await io.do(lease, "release")


# Arithmetic


@pytest.mark.parametrize("ms", [1, 30, 999, 30_000, 86_400_000])
def test_requested_lease_covers_the_local_expiry_plus_drift(ms: int) -> None:
    asked = int(voting.stretched(str(ms)))
    assert ms <= voting.deducted(str(asked)) <= ms + 1
    assert asked >= ms * (1 + voting.DRIFT) + voting.DRIFT_MS
    assert voting.deducted("inf") == math.inf and voting.stretched("inf") == "inf"


def test_interrupted_thread_leaves_no_quorum_lease(five) -> None:
    first = five.lock("interrupted").acquire()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            five.lock("interrupted").acquire()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    for _ in range(20):  # Python drops the exception if it is raised in a destructor
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
        )
        thread.join(5)
        if not thread.is_alive():
            break
    assert [type(error) for error in ended] == [KeyboardInterrupt]
    first.release()
    eventually(lambda: five.holding("interrupted") == [0] * 5, SOONER)


def test_cancelled_task_leaves_no_quorum_lease(five) -> None:
    async def main() -> None:
        for k in range(12):
            task = asyncio.create_task(five.lock("cancelled").aacquire())
            for _ in range(k):
                await asyncio.sleep(0.0005)
            task.cancel()
            (got,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(got, BaseException):
                await got.arelease()
        lease = await five.lock("cancelled").aacquire(blocking_timeout=SOONER)
        assert lease
        await lease.arelease()

    asyncio.run(main())
    eventually(lambda: five.holding("cancelled") == [0] * 5, SOONER)
