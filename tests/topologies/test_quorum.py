"""A lock on five independent servers: what a majority says, holds."""

from __future__ import annotations

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
from django_redis_sync import LeaseLost, Lock, NotAcquired, RLock, Semaphore, Unavailable
from django_redis_sync.engine.quorum import voting
from django_redis_sync.engine.quorum.voting import held_of
from django_redis_sync.engine.server import Members
from exam import clock
from tests.behaviour.both import both, eventually, until
from tests.behaviour.watching import View

from .crowd import Crowd

pytestmark = pytest.mark.promise(17)

#: Seconds that one answer may take where servers are stopped.
ATTEMPT = 1.0
#: Seconds after which no lease of half a minute is over by itself.
SOONER = 20


class Impatient(Lock):
    _attempt = ATTEMPT


class Five:
    """The servers, and the aliases that `using` takes."""

    def __init__(
        self, servers: list[RedisServer], aliases: list[str], kind: type[Lock] = Lock
    ) -> None:
        self.servers, self.aliases, self.kind = servers, aliases, kind

    def lock(self, name: str = "x", **options: Any) -> Lock:
        return self.kind(name, using=self.aliases, **options)

    def holding(self, name: str = "x") -> list[int]:
        """Unexpired leases on each of the servers that run."""
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
    return lambda servers, *kind: Five(servers, [alias(_One(one)) for one in servers], *kind)


@pytest.fixture
def five(running: list[RedisServer], gather: Any) -> Five:
    """Five servers that a test leaves as they are."""
    five = gather(running)
    five.flush(5)
    return five


@pytest.fixture
def own(start: Any, gather: Any) -> Five:
    """Five servers of a test's own."""
    return gather(start(Independent, count=5).servers, Impatient)


# What a lock promises


@both
async def test_one_holds_it_on_all_servers_and_gives_it_back_everywhere(io, five) -> None:
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
async def test_a_waiter_gets_what_is_released(io, five) -> None:
    first = await io.do(five.lock(), "acquire")
    waiting = io.start(io.do(five.lock(), "acquire"))
    await io.sleep(0.3)
    await io.do(first, "release")
    second = await io.result(waiting)
    assert second.held and second.fence > first.fence
    await io.do(second, "release")
    assert five.holding() == [0] * 5


@both
async def test_a_lease_is_renewed_extended_and_ends_in_time(io, five) -> None:
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
async def test_what_a_minority_lost_is_kept_and_what_a_majority_lost_is_told(io, five) -> None:
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
async def test_a_reentrant_lock_counts_here(io, five) -> None:
    lock = RLock("re", using=five.aliases)
    async with io.entered(lock) as outer:
        async with io.entered(RLock("re", using=five.aliases)) as inner:
            assert inner is outer and outer.held
        assert outer.held
    assert five.holding("re") == [0] * 5


def test_fences_are_the_largest_of_the_majoritys(five) -> None:
    fences = []
    for _ in range(5):
        with five.lock("fenced") as lease:
            fences.append(lease.fence)
    assert sorted(set(fences)) == fences


def test_a_minimum_hold_is_kept_by_a_majority(five) -> None:
    with five.lock("period", min_hold=4.0):
        pass
    assert five.holding("period") == [1] * 5
    assert five.lock("period").acquire(False) is None
    lease = five.lock("period").acquire(blocking_timeout=SOONER)
    assert lease
    lease.release()


def test_twenty_contenders_all_get_their_turns(five) -> None:
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


# Servers that are gone


@both
async def test_two_of_five_killed_do_not_matter_and_three_do(io, own) -> None:
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
    # It can't be renewed any more, and its holder learns it in time.
    await until(io, lambda: not before.held)
    for server in own.servers[:3]:
        server.restart()
    async with io.entered(own.lock("after")) as lease:
        assert lease.held


@both
async def test_two_that_hang_cost_little_and_keep_nothing(io, own) -> None:
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
            "seconds for a cycle and a refusal beside two that hang:", [round(t, 3) for t in took]
        )
        assert min(took) < 0.5 and max(took) < 5
    finally:
        for server in own.servers[:2]:
            server.resume()
    # The late copies of what was asked are undone.
    await until(io, lambda: own.holding() == [0] * 5, SOONER)
    async with io.entered(own.lock()) as lease:
        assert lease.held


def test_safe_while_servers_come_and_go(own) -> None:
    """Never more than two gone at a time; and a server that comes back empty is forgotten for as
    long as the longest lease, as the page on guarantees asks."""
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
    assert crowd.errors == {}, crowd.said
    assert sum(map(len, crowd.grants.values())) > 20


# Clocks


class Jumped(Crowd):
    """Any two majorities share a server. When only the one whose clock leapt, both hold."""

    def __init__(self, five: Five, odd: str) -> None:
        super().__init__(five.aliases, ["a", "b"], 1, threads=4, tasks=4, lease=6)
        self.of, self.odd = Members(five.aliases), odd

    def excused(self, believed: list[Any]) -> bool:
        holds = [held_of(self.of, lease.token) for lease in believed]
        return set.intersection(*(set(held.fences) for held in holds if held)) == {self.odd}


@pytest.mark.skipif(bool(clock.reason()), reason=clock.reason())
@pytest.mark.parametrize("seconds", [60, -60], ids=["ahead", "behind"])
def test_one_servers_clock_jumps_by_a_minute(tmp_path, gather, seconds: int) -> None:
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
        # One leap ahead in all, which can end a single lease of each name.
        assert set(crowd.errors) <= {"LeaseLost", "NotAcquired"}, crowd.said
        assert sum(crowd.errors.values()) <= 2, crowd.said
        held.release()


def patiently(acquire: Callable[..., Any], *args: Any) -> Any:
    """What it comes to once a majority answers, which on a busy machine may take some tries."""

    def answered() -> list[Any]:
        try:
            return [acquire(*args)]
        except Unavailable:
            return []

    (got,) = eventually(answered, 20)
    return got


@pytest.mark.skipif(bool(clock.reason()), reason=clock.reason())
def test_a_leap_can_end_a_lease_of_a_bare_majority_and_its_holder_learns_it(
    tmp_path, gather
) -> None:
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
        # By the first renewal after it: another one would be after twice a third.
        eventually(lambda: lost, 18 / 3 + 4)
        assert not held.held


# What is refused


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
def test_what_a_majority_cannot_keep_safe_is_refused(make, reason: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"(?i){reason}"):
        make(["a", "b", "c"])


def test_a_read_write_lock_is_refused() -> None:
    from django_redis_sync import ReadWriteLock

    with pytest.raises(ImproperlyConfigured, match="readers"):
        ReadWriteLock("x", using=["a", "b", "c"])


def test_what_is_no_alias_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        Lock("x", using=[1, 2, 3])


@both
async def test_an_alias_that_is_not_there_or_there_twice(io, five, settings) -> None:
    with pytest.raises(ImproperlyConfigured, match="nowhere"):
        await io.do(Lock("x", using=[*five.aliases, "nowhere"]), "acquire")
    twin = {"twin": django_settings.CACHES[five.aliases[0]]}
    settings.CACHES = {**settings.CACHES, **twin}
    with pytest.raises(ImproperlyConfigured, match="same LOCATION"):
        await io.do(Lock("x", using=[*five.aliases, "twin"]), "acquire")


@both
async def test_a_lease_of_several_servers_is_not_detached(io, five) -> None:
    lease = await io.do(five.lock(), "acquire")
    with pytest.raises(NotImplementedError):
        await io.do(lease, "detach")
    assert lease.held
    await io.do(lease, "release")


# Arithmetic


@pytest.mark.parametrize("ms", [1, 30, 999, 30_000, 86_400_000])
def test_what_is_believed_is_less_than_what_was_asked_for_by_the_drift(ms: int) -> None:
    asked = int(voting.stretched(str(ms)))
    assert ms <= voting.deducted(str(asked)) <= ms + 1
    assert asked >= ms * (1 + voting.DRIFT) + voting.DRIFT_MS
    assert voting.deducted("inf") == math.inf and voting.stretched("inf") == "inf"


def test_a_thread_that_is_interrupted_leaves_nothing(five) -> None:
    import ctypes

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
    for _ in range(20):  # it is swallowed where it meets a destructor
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
        )
        thread.join(5)
        if not thread.is_alive():
            break
    assert [type(error) for error in ended] == [KeyboardInterrupt]
    first.release()
    eventually(lambda: five.holding("interrupted") == [0] * 5, SOONER)


def test_a_cancelled_task_leaves_nothing(five) -> None:
    import asyncio

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
