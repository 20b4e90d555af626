"""The articles' variants, and ours in the same trouble: what docs/articles.md says, shown.

Each variant is as the articles have it, in as few lines as it takes.
"""

from __future__ import annotations

import math
import time
import uuid
from typing import Any

import pytest
import redis

from django_redis_sync import LeaseLost, Lock, Semaphore

from .behaviour.both import both, until
from .behaviour.watching import View, sent

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]

KEY = "test-sync-variant"


@pytest.fixture
def their(raw: redis.Redis) -> redis.Redis:
    """The server for a variant: its keys go with the test."""
    for key in raw.scan_iter(match=f"{KEY}*"):
        raw.delete(key)
    return raw


@pytest.fixture
def view(raw: Any) -> Any:
    return lambda name: View(raw, name)


# Locks


@both
async def test_setnx_then_expire_can_leave_a_key_for_ever(io, their, view) -> None:
    """The process dies between the two commands."""
    assert their.setnx(KEY, "me")
    assert -1 == their.pttl(KEY)  # here it died, and nothing frees the lock

    await io.do(Lock("ours"), "acquire")  # one script: the lease has its end from the start
    assert 0 < view("ours").ends_in <= 30


@both
async def test_a_release_without_an_owner_check_frees_anothers_lock(io, their) -> None:
    their.set(KEY, "first", nx=True, px=20)
    await io.sleep(0.04)
    assert their.set(KEY, "second", nx=True, px=10_000)
    their.delete(KEY)  # the first one's release
    assert their.set(KEY, "third", nx=True)  # beside the second

    first = await io.do(Lock("ours", timeout=0.02), "acquire")
    await io.sleep(0.04)
    second = await io.do(Lock("ours"), "acquire")
    with pytest.raises(LeaseLost):
        await io.do(first, "release")
    assert await io.do(second, "owned")


@both
async def test_a_watched_release_is_refused_and_has_to_be_sent_again(io, their) -> None:
    """Safe, at the price of four commands and a loop. Ours is one script: who touches the same name
    meanwhile costs nothing."""
    their.set(KEY, "first", px=10_000)
    with their.pipeline() as pipe:
        pipe.watch(KEY)
        assert b"first" == pipe.get(KEY)
        their.pexpire(KEY, 20_000)  # anybody touches it
        pipe.multi()
        pipe.delete(KEY)
        with pytest.raises(redis.WatchError):
            pipe.execute()

    lease = await io.do(Lock("ours"), "acquire")
    assert await io.do(Lock("ours"), "acquire", blocking=False) is None
    with sent() as seen:
        await io.do(lease, "release")
    assert {"evalsha": 1} == seen.by_name
    assert not await io.do(lease, "locked")


@both
async def test_set_nx_ex_has_neither_an_order_nor_a_fence(io, their) -> None:
    """Whoever polls at the right moment gets it; a late writer can't be told from a fresh one."""
    their.set(KEY, "first", nx=True, px=10_000)
    assert not their.set(KEY, "second", nx=True)  # asks again in 100 ms
    their.delete(KEY)
    assert their.set(KEY, "third", nx=True)  # came last, and is in

    lock, order, fences = Lock("ours"), [], []

    async def caller(number: int) -> None:
        lease = await io.do(Lock("ours"), "acquire")
        order.append(number)
        fences.append(lease.fence)
        await io.do(lease, "release")

    first = await io.do(lock, "acquire")
    waiting = []
    for number in range(3):
        waiting.append(io.start(caller(number)))
        await until(io, lambda number=number: View(their, "ours").waiting == number + 1)
    await io.do(first, "release")
    for one in waiting:
        await io.result(one)
    assert [0, 1, 2] == order
    assert sorted(set(fences)) == fences


@both
async def test_a_majority_alone_does_not_stop_a_paused_writer(io) -> None:
    """Redlock's lease ends as any other does. What stops a late write is a fence."""
    written: list[int] = []

    def write(fence: int) -> bool:
        if written and fence < written[-1]:
            return False
        written.append(fence)
        return True

    first = await io.do(Lock("ours", timeout=0.05), "acquire")
    await io.sleep(0.1)  # a pause, of its process or of the network
    second = await io.do(Lock("ours"), "acquire")
    assert [True, False] == [write(second.fence), write(first.fence)]


# Semaphores


def zset_acquire(client: Any, limit: int, timeout: float, now: float) -> str | None:
    """The unfair one: members by the client's clock, ranked."""
    me = uuid.uuid4().hex
    with client.pipeline(transaction=True) as pipe:
        pipe.zremrangebyscore(KEY, "-inf", now - timeout)
        pipe.zadd(KEY, {me: now})
        pipe.zrank(KEY, me)
        if pipe.execute()[-1] < limit:
            return me
    client.zrem(KEY, me)
    return None


@both
async def test_in_an_unfair_sorted_set_a_slow_clock_steals(io, their) -> None:
    """A client whose clock is behind ranks before those that hold."""
    assert [True] * 2 == [bool(zset_acquire(their, 2, 10, 1000.0)) for _ in range(2)]
    assert zset_acquire(their, 2, 10, 1000.1) is None
    assert zset_acquire(their, 2, 10, 999.9)  # 0.2 s behind: a third of two
    assert 3 == their.zcard(KEY)

    sem = Semaphore("ours", 2, blocking=False)
    leases = [await io.do(sem, "acquire") for _ in range(3)]
    assert [True, True, False] == [bool(lease) for lease in leases]


@both
async def test_in_an_unfair_sorted_set_a_fast_clock_evicts(io, their, monkeypatch) -> None:
    """It cuts off what is older than the timeout by its own clock."""
    holder = zset_acquire(their, 1, 10, 1000.0)
    assert zset_acquire(their, 1, 10, 1011.0)  # 11 s ahead
    assert their.zscore(KEY, holder) is None

    lease = await io.do(Semaphore("ours", 1, timeout=60), "acquire")
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 3600 * 10**9)
    assert await io.do(Semaphore("ours", 1, timeout=60, blocking=False), "acquire") is None
    assert lease.held and await io.do(lease, "owned")


@both
async def test_mixed_timeouts_evict_the_longer_lease(io, their) -> None:
    """The set knows when one came, and not for how long it asked."""
    long = zset_acquire(their, 1, 60, 1000.0)
    assert zset_acquire(their, 1, 1, 1002.0)
    assert their.zscore(KEY, long) is None

    await io.do(Semaphore("ours", 1, timeout=60), "acquire")
    await io.sleep(0.06)
    assert await io.do(Semaphore("ours", 1, timeout=0.05, blocking=False), "acquire") is None


@both
async def test_a_refresh_by_zadd_revives_the_dead(io, their) -> None:
    """ZADD says 0 for a member that was there and adds one that was not."""
    holder = zset_acquire(their, 1, 10, 1000.0)
    other = zset_acquire(their, 1, 10, 1011.0)
    assert 1 == their.zadd(KEY, {holder: 1012.0})  # it was gone, and is there again
    assert {holder, other} == {member.decode() for member in their.zrange(KEY, 0, -1)}
    # The articles' cure: when ZADD says 1, remove it. A crash in between leaves a third.

    dead = await io.do(Semaphore("ours", 1, timeout=0.05), "acquire")
    alive = await io.do(Semaphore("ours", 1, timeout=60), "acquire", blocking_timeout=20)
    with pytest.raises(LeaseLost):
        await io.do(dead, "renew")
    (row,) = (await io.do(Semaphore("ours", 1), "status")).holders
    assert alive.token == row.token


@both
async def test_without_expiry_a_crash_costs_a_permit_for_ever(io, their, view) -> None:
    """A set of holders, a counter, and a list of permits alike."""
    their.sadd(f"{KEY}:set", "dead")
    their.set(f"{KEY}:count", 1)
    their.rpush(f"{KEY}:list", "permit")
    their.lpop(f"{KEY}:list")
    assert [1, 1, 0] == [
        their.scard(f"{KEY}:set"), int(their.get(f"{KEY}:count")), their.llen(f"{KEY}:list")
    ]  # fmt: skip
    assert -1 == their.pttl(f"{KEY}:set") == their.pttl(f"{KEY}:count")

    # Ours only when asked for; then it is seen, and freed by hand.
    await io.do(Semaphore("ours", 1, timeout=0.05), "acquire")
    assert await io.do(Semaphore("ours", 1, timeout=math.inf), "acquire", blocking_timeout=20)
    (row,) = (await io.do(Semaphore("ours", 1), "status")).holders
    assert row.permanent


@both
async def test_a_counter_can_be_given_back_twice(io, their) -> None:
    """Or by somebody who never had it: no permit has an owner."""
    their.incr(KEY)
    their.decr(KEY)
    their.decr(KEY)
    assert -1 == int(their.get(KEY))  # from now on one more than the limit gets in

    lease = await io.do(Semaphore("ours", 1), "acquire")
    await io.do(lease, "release")
    with pytest.raises(Exception, match="released already"):
        await io.do(lease, "release")
    assert View(their, "ours").empty


@both
async def test_a_counter_that_expires_forgets_its_holders(io, their) -> None:
    """One expiry for all of them."""
    their.set(KEY, 1, px=20)
    await io.sleep(0.04)
    assert 1 == their.incr(KEY)  # the second of a limit of one

    await io.do(Semaphore("ours", 2, timeout=0.02), "acquire")
    long = await io.do(Semaphore("ours", 2, timeout=60), "acquire")
    await io.sleep(0.04)
    sem = Semaphore("ours", 2, timeout=60, blocking=False)
    assert [True, False] == [bool(await io.do(sem, "acquire")) for _ in range(2)]
    assert await io.do(long, "owned")


@both
async def test_a_key_per_permit_takes_as_many_commands_as_permits(io, their) -> None:
    """Each has its own expiry, which is right; finding a free one means trying them all."""
    tries = 0
    for number in range(10):
        their.set(f"{KEY}:{number}", "held", nx=True, px=10_000)
    for number in range(10):
        tries += 1
        if their.set(f"{KEY}:{number}", "me", nx=True, px=10_000):
            break
    assert 10 == tries
    their.delete(f"{KEY}:3")  # nobody is told, and nobody knows who came first

    sem = Semaphore("ours", 10, blocking=False)
    leases = [await io.do(sem, "acquire") for _ in range(9)]
    with sent() as seen:
        leases.append(await io.do(sem, "acquire"))
    assert [True] * 10 == [bool(lease) for lease in leases]
    assert {"evalsha": 1} == seen.by_name
