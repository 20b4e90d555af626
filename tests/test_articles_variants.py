"""The articles' variants and this library under the same faults, as docs/articles.md states.

Each variant is the articles' code, shortened.
"""

from __future__ import annotations

import math
import time
import uuid
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import LeaseLost, Lock, Semaphore

from .behaviour.both import both, until
from .behaviour.watching import View, sent

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]

KEY = f"{settings.PREFIX}:variant"


# Locks


@both
async def test_setnx_without_expire_leaves_a_key_forever(io, raw) -> None:
    assert raw.setnx(KEY, "me")
    assert -1 == raw.pttl(KEY)  # the process dies before EXPIRE

    await io.do(Lock("library"), "acquire")  # one script stores the owner and the end of the lease
    assert 0 < View(raw, "library").ends_in <= 30


@both
async def test_release_without_an_owner_check_frees_the_lock_of_another(io, raw) -> None:
    raw.set(KEY, "first", nx=True, px=20)
    await io.sleep(0.04)
    assert raw.set(KEY, "second", nx=True, px=10_000)
    raw.delete(KEY)  # the release by "first"
    assert raw.set(KEY, "third", nx=True)  # while "second" holds the lock

    first = await io.do(Lock("library", timeout=0.02), "acquire")
    await io.sleep(0.04)
    second = await io.do(Lock("library"), "acquire")
    with pytest.raises(LeaseLost):
        await io.do(first, "release")
    assert await io.do(second, "owned")


@both
async def test_release_by_watch_fails_after_another_client_changes_the_key(io, raw) -> None:
    """WATCH is safe, but takes four commands and a loop. `Lock` releases with one script."""
    raw.set(KEY, "first", px=10_000)
    with raw.pipeline() as pipe:
        pipe.watch(KEY)
        assert b"first" == pipe.get(KEY)
        raw.pexpire(KEY, 20_000)  # another client changes the key
        pipe.multi()
        pipe.delete(KEY)
        with pytest.raises(redis.WatchError):
            pipe.execute()

    lease = await io.do(Lock("library"), "acquire")
    assert await io.do(Lock("library"), "acquire", blocking=False) is None
    with sent() as seen:
        await io.do(lease, "release")
    assert {"evalsha": 1} == seen.by_name
    assert not await io.do(lease, "locked")


@both
async def test_set_nx_ex_grants_out_of_order_and_without_fence(io, raw) -> None:
    """The caller that polls first gets the lock. Storage can't reject late writes."""
    raw.set(KEY, "first", nx=True, px=10_000)
    assert not raw.set(KEY, "second", nx=True)  # tries again after 100 ms
    raw.delete(KEY)
    assert raw.set(KEY, "third", nx=True)  # arrived last, admitted first

    lock, order, fences = Lock("library"), [], []

    async def caller(number: int) -> None:
        lease = await io.do(Lock("library"), "acquire")
        order.append(number)
        fences.append(lease.fence)
        await io.do(lease, "release")

    first = await io.do(lock, "acquire")
    waiting = []
    for number in range(3):
        waiting.append(io.start(caller(number)))
        await until(io, lambda number=number: View(raw, "library").waiting == number + 1)
    await io.do(first, "release")
    for one in waiting:
        await io.result(one)
    assert [0, 1, 2] == order
    assert sorted(set(fences)) == fences


@both
async def test_fence_stops_the_late_write_of_a_paused_holder(io) -> None:
    """A majority of servers, as in Redlock, does not stop a late write. A fence does."""
    written: list[int] = []

    def write(fence: int) -> bool:
        if written and fence < written[-1]:
            return False
        written.append(fence)
        return True

    first = await io.do(Lock("library", timeout=0.05), "acquire")
    await io.sleep(0.1)  # a pause, of its process or of the network
    second = await io.do(Lock("library"), "acquire")
    assert [True, False] == [write(second.fence), write(first.fence)]


# Semaphores


def zset_acquire(client: Any, limit: int, timeout: float, now: float) -> str | None:
    """Acquire in the unfair variant: a sorted set whose scores are times of the client's clock."""
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
async def test_unfair_sorted_set_exceeds_its_limit_when_a_clock_is_behind(io, raw) -> None:
    """A client whose clock is behind ranks before the holders."""
    assert [True] * 2 == [bool(zset_acquire(raw, 2, 10, 1000.0)) for _ in range(2)]
    assert zset_acquire(raw, 2, 10, 1000.1) is None
    assert zset_acquire(raw, 2, 10, 999.9)  # 0.2 s behind: the third holder at a limit of 2
    assert 3 == raw.zcard(KEY)

    sem = Semaphore("library", 2, blocking=False)
    leases = [await io.do(sem, "acquire") for _ in range(3)]
    assert [True, True, False] == [bool(lease) for lease in leases]


@both
async def test_unfair_sorted_set_evicts_a_holder_when_a_clock_is_ahead(
    io, raw, monkeypatch
) -> None:
    """The client removes members that are older than the timeout by its own clock."""
    holder = zset_acquire(raw, 1, 10, 1000.0)
    assert zset_acquire(raw, 1, 10, 1011.0)  # 11 s ahead
    assert raw.zscore(KEY, holder) is None

    lease = await io.do(Semaphore("library", 1, timeout=60), "acquire")
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 3600 * 10**9)
    assert await io.do(Semaphore("library", 1, timeout=60, blocking=False), "acquire") is None
    assert lease.held and await io.do(lease, "owned")


@both
async def test_unfair_sorted_set_evicts_a_longer_lease(io, raw) -> None:
    """The set stores when a holder arrived, but not its timeout."""
    long = zset_acquire(raw, 1, 60, 1000.0)
    assert zset_acquire(raw, 1, 1, 1002.0)
    assert raw.zscore(KEY, long) is None

    await io.do(Semaphore("library", 1, timeout=60), "acquire")
    await io.sleep(0.06)
    assert await io.do(Semaphore("library", 1, timeout=0.05, blocking=False), "acquire") is None


@both
async def test_renewal_by_zadd_restores_an_expired_holder(io, raw) -> None:
    holder = zset_acquire(raw, 1, 10, 1000.0)
    other = zset_acquire(raw, 1, 10, 1011.0)
    assert 1 == raw.zadd(KEY, {holder: 1012.0})  # it was removed, and is a member again
    assert {holder, other} == {member.decode() for member in raw.zrange(KEY, 0, -1)}
    # In the articles, the client removes the member if ZADD returns 1. After a crash in between,
    # the member remains.

    dead = await io.do(Semaphore("library", 1, timeout=0.05), "acquire")
    alive = await io.do(Semaphore("library", 1, timeout=60), "acquire", blocking_timeout=20)
    with pytest.raises(LeaseLost):
        await io.do(dead, "renew")
    (row,) = (await io.do(Semaphore("library", 1), "status")).holders
    assert alive.token == row.token


@both
async def test_crashed_holder_without_expiry_keeps_its_permit_forever(io, raw) -> None:
    """This applies to a set of holders, a counter, and a list of permits."""
    raw.sadd(f"{KEY}:set", "dead")
    raw.set(f"{KEY}:count", 1)
    raw.rpush(f"{KEY}:list", "permit")
    raw.lpop(f"{KEY}:list")
    assert 1 == raw.scard(f"{KEY}:set") == int(raw.get(f"{KEY}:count"))
    assert 0 == raw.llen(f"{KEY}:list")
    assert -1 == raw.pttl(f"{KEY}:set") == raw.pttl(f"{KEY}:count")

    # A lease of this library is permanent only with timeout=math.inf, and its status says so.
    await io.do(Semaphore("library", 1, timeout=0.05), "acquire")
    assert await io.do(Semaphore("library", 1, timeout=math.inf), "acquire", blocking_timeout=20)
    (row,) = (await io.do(Semaphore("library", 1), "status")).holders
    assert row.permanent


@both
async def test_counter_accepts_a_second_release(io, raw) -> None:
    """A counter does not store the owners of permits."""
    raw.incr(KEY)
    raw.decr(KEY)
    raw.decr(KEY)
    assert -1 == int(raw.get(KEY))  # from now on, one caller too many is admitted

    lease = await io.do(Semaphore("library", 1), "acquire")
    await io.do(lease, "release")
    with pytest.raises(Exception, match="released already"):
        await io.do(lease, "release")
    assert View(raw, "library").empty


@both
async def test_expired_counter_admits_callers_beside_its_holders(io, raw) -> None:
    """A counter has one expiry for all holders."""
    raw.set(KEY, 1, px=20)
    await io.sleep(0.04)
    assert 1 == raw.incr(KEY)  # the second holder at a limit of 1

    await io.do(Semaphore("library", 2, timeout=0.02), "acquire")
    long = await io.do(Semaphore("library", 2, timeout=60), "acquire")
    await io.sleep(0.04)
    sem = Semaphore("library", 2, timeout=60, blocking=False)
    assert [True, False] == [bool(await io.do(sem, "acquire")) for _ in range(2)]
    assert await io.do(long, "owned")


@both
async def test_key_per_permit_needs_one_command_per_permit(io, raw) -> None:
    """Each permit has its own expiry, but a caller has to try all keys to find a free permit."""
    tries = 0
    for number in range(10):
        raw.set(f"{KEY}:{number}", "held", nx=True, px=10_000)
    for number in range(10):
        tries += 1
        if raw.set(f"{KEY}:{number}", "me", nx=True, px=10_000):
            break
    assert 10 == tries
    raw.delete(f"{KEY}:3")  # waiters are neither notified nor in an order

    sem = Semaphore("library", 10, blocking=False)
    leases = [await io.do(sem, "acquire") for _ in range(9)]
    with sent() as seen:
        leases.append(await io.do(sem, "acquire"))
    assert [True] * 10 == [bool(lease) for lease in leases]
    assert {"evalsha": 1} == seen.by_name
