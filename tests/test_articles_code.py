"""The locks of the articles in docs/articles.md, and this library under the same faults.

Each test first runs the shortened code of an article, and then the same scenario with the library.
"""

from __future__ import annotations

import math
import re
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import LeaseLost, Lock, RLock, Semaphore

from .behaviour.both import both, until
from .behaviour.watching import View, sent

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]

KEY = f"{settings.PREFIX}:article"


async def granted(io: Any, *primitives: Any, **options: Any) -> list[bool]:
    """Acquire each primitive without waiting, and return which of them were granted."""
    return [await io.do(one, "acquire", **options) is not None for one in primitives]


def test_page_names_a_test_for_each_row_of_the_articles_own_code() -> None:
    page = (Path(__file__).parents[1] / "docs" / "articles.md").read_text(encoding="utf-8")
    section = page.partition("## The articles' own code")[2].partition("\n## ")[0]
    named = re.findall(r"`(test_\w+)`", section)
    assert 9 <= len(named) == section.count("\n| ") - 1
    assert {*named} <= {*globals()}


@both
async def test_key_of_a_creator_that_died_before_expire_stays_locked(io, raw) -> None:
    """The articles call EXPIRE if `not ttl`. For a key without an expiry, TTL is -1, which is
    true."""

    def acquire() -> bool:
        created = bool(raw.setnx(KEY, "me"))
        if created or not raw.ttl(KEY):
            raw.expire(KEY, 1)
        return created

    raw.setnx(KEY, "died before EXPIRE")
    assert [False] * 3 == [acquire() for _ in range(3)]
    assert -1 == raw.ttl(KEY)

    await io.do(Lock("library"), "acquire")  # one script stores the owner and the end of the lease
    assert 0 < View(raw, "library").ends_in <= 30


@both
async def test_release_without_a_check_of_the_owner_frees_the_lock_of_another(io, raw) -> None:
    raw.set(KEY, "first", nx=True, px=20)
    await io.sleep(0.04)
    assert raw.set(KEY, "second", nx=True, px=10_000)
    raw.delete(KEY)  # the first client doesn't check the owner
    assert raw.set(KEY, "third", nx=True)  # the second client still holds the lock
    assert raw.get(KEY) != "third"  # on Python 3, a check that compares bytes with str always fails
    with raw.pipeline() as pipe:  # WATCH is safe, but takes four commands and a loop
        pipe.watch(KEY)
        assert b"third" == pipe.get(KEY)
        raw.pexpire(KEY, 20_000)  # another client changes the key
        pipe.multi()
        pipe.delete(KEY)
        with pytest.raises(redis.WatchError):
            pipe.execute()

    first = await io.do(Lock("library", timeout=0.02), "acquire")
    await io.sleep(0.04)
    second = await io.do(Lock("library"), "acquire")
    with pytest.raises(LeaseLost):
        await io.do(first, "release")
    assert await io.do(second, "owned")
    with sent() as seen:
        await io.do(second, "release")
    assert {"evalsha": 1} == seen.by_name
    assert not await io.do(Lock("library"), "locked")


@both
async def test_failed_attempts_and_early_returns_leave_nothing_behind(io, raw) -> None:
    # With INCR, the caller that gets 1 is the owner. One DECR after three INCR leaves 2.
    assert [True, False, False] == [raw.incr(KEY) == 1 for _ in range(3)]
    raw.decr(KEY)  # the holder releases
    assert [False] * 3 == [raw.incr(KEY) == 1 for _ in range(3)]
    assert -1 == raw.pttl(KEY)
    raw.delete(KEY)

    def buy(stock: int) -> str:
        if not raw.set(KEY, "me", nx=True, px=10_000):
            return "busy"
        if stock < 1:
            return "sold out"
        raw.delete(KEY)
        return "bought"

    async def buy_here(stock: int) -> str:
        async with io.entered(Lock("library", blocking=False)):
            if stock < 1:
                return "sold out"
            return "bought"

    assert ["bought", "sold out", "busy"] == [buy(stock) for stock in (1, 0, 0)]
    assert ["bought", "sold out", "sold out"] == [await buy_here(stock) for stock in (1, 0, 0)]
    async with io.entered(Lock("library")):
        assert [False] == await granted(io, Lock("library"), blocking_timeout=0)
    assert [True] == await granted(io, Lock("library"), blocking_timeout=0)


@both
async def test_set_nx_ex_grants_out_of_order_and_without_fence(io, raw) -> None:
    raw.set(KEY, "first", nx=True, px=10_000)
    assert not raw.set(KEY, "second", nx=True)  # the caller sleeps before it tries again
    raw.delete(KEY)
    assert raw.set(KEY, "third", nx=True)  # the caller that came last is admitted first

    entered, waiting = list[tuple[int, int]](), []

    async def caller(number: int) -> None:
        async with io.entered(Lock("library")) as lease:
            entered.append((number, lease.fence))

    async with io.entered(Lock("library", timeout=60)):
        for number in range(3):
            waiting.append(io.start(caller(number)))
            await until(io, lambda number=number: View(raw, "library").waiting == number + 1)
    for one in waiting:
        await io.result(one)
    assert [0, 1, 2] == [number for number, _ in entered]
    assert sorted({fence for _, fence in entered}) == [fence for _, fence in entered]

    # A storage needs the fence to reject a delayed write of a paused holder. Redlock has no fence.
    first = await io.do(Lock("library", timeout=0.05), "acquire")
    await io.sleep(0.1)
    second = await io.do(Lock("library"), "acquire")
    assert first.fence < second.fence, "a storage can't reject a late write by its fence"


def zset_acquire(raw, key: str, limit: int, timeout: float, now: float, by_end=False):
    """Acquire in a sorted set. A score is the time of arrival, or the end of a lease, by the
    client's clock."""
    me = uuid.uuid4().hex
    with raw.pipeline() as pipe:
        pipe.zremrangebyscore(key, "-inf", now if by_end else now - timeout)
        pipe.zadd(key, {me: now + timeout if by_end else now})
        pipe.zrank(key, me)
        if pipe.execute()[-1] < limit:
            return me
    raw.zrem(key, me)
    return None


@both
async def test_sorted_set_trusts_clocks_and_timeouts_of_its_callers(io, raw, monkeypatch) -> None:
    def acquire(key: str, *words: Any) -> bool:
        return zset_acquire(raw, f"{KEY}:{key}", *words) is not None

    # A client whose clock is behind ranks before the holders, so a limit of 2 has a third holder.
    behind = [acquire("behind", 2, 10, now) for now in (1000.0, 1000.0, 1000.1, 999.9)]
    assert [True, True, False, True] == behind
    assert 3 == raw.zcard(f"{KEY}:behind")
    # A client removes a holder as too old if its clock is 11 s ahead or its timeout is shorter.
    assert [True, True] == [acquire("ahead", 1, 10, now) for now in (1000.0, 1011.0)]
    assert [True, True] == [acquire("lease", 1, *each) for each in ((60, 1000.0), (1, 1002.0))]
    assert [1, 1] == [raw.zcard(f"{KEY}:{key}") for key in ("ahead", "lease")]
    # If the score is the end of the lease, a shorter lease ranks before the holder.
    leases = [acquire("end", 1, *each, True) for each in ((60, 0.0), (60, 0.1), (5, 0.2))]
    assert [True, False, True] == leases
    assert 2 == raw.zcard(f"{KEY}:end")

    long, short = Semaphore("library", 2, timeout=60), Semaphore("library", 2, timeout=0.05)
    assert [True, True, False] == await granted(io, *[long] * 3, blocking=False)
    await io.sleep(0.06)
    real, real_ns = time.time, time.time_ns
    for off in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda off=off: real() + off)
        monkeypatch.setattr(time, "time_ns", lambda off=off: real_ns() + off * 10**9)
        assert [False, False] == await granted(io, long, short, blocking=False)
    assert 2 == View(raw, "library").holding


@both
async def test_renewal_by_zadd_restores_or_misses_a_lost_holder(io, raw) -> None:
    """If ZADD returns 1, the client removes the restored member, unless the client crashes before
    that."""
    holder, other = (zset_acquire(raw, KEY, 1, 10, now) for now in (1000.0, 1011.0))
    assert 1 == raw.zadd(KEY, {holder: 1012.0})  # the removed holder is a member again
    assert {holder, other} == {member.decode() for member in raw.zrange(KEY, 0, -1)}
    # ZADD counts added members, and with XX it adds none. With CH, the replies for a member and for
    # a missing one differ, unless the score stays the same.
    names, changed = (holder, "dead"), {"xx": True, "ch": True}
    assert [0, 0] == [raw.zadd(KEY, {one: 1013.0}, xx=True) for one in names]
    assert [1, 0] == [raw.zadd(KEY, {one: 1014.0}, **changed) for one in names]

    dead = await io.do(Semaphore("library", 1, timeout=0.05), "acquire")
    alive = await io.do(Semaphore("library", 1, timeout=60), "acquire", blocking_timeout=20)
    with pytest.raises(LeaseLost):
        await io.do(dead, "renew")
    (row,) = (await io.do(Semaphore("library", 1), "status")).holders
    assert alive.token == row.token


@both
async def test_rank_in_a_misspelled_key_admits_all_callers(io, raw) -> None:
    """The rank in a missing set is nil. In the articles' languages, nil is less than any limit."""

    def acquire(limit: int) -> bool:
        me = uuid.uuid4().hex
        raw.zadd(f"{KEY}:owner", {me: raw.incr(f"{KEY}:counter")})
        return (raw.zrank(f"{KEY}:onwer", me) or 0) < limit

    assert [True] * 6 == [acquire(2) for _ in range(6)]

    assert [True, True, False] == await granted(io, *[Semaphore("library", 2)] * 3, blocking=False)


@both
async def test_redis_counter_has_64_bits_and_overflows_at_2_to_the_63(io, raw) -> None:
    """Scores are doubles. Beyond 2^53, different counts can have equal scores."""
    raw.set(KEY, 2**31 - 1)
    assert 2**31 == raw.incr(KEY)
    raw.set(KEY, 2**63 - 1)
    with pytest.raises(redis.ResponseError, match="overflow"):
        raw.incr(KEY)

    lease = await io.do(Lock("library"), "acquire")
    assert abs(time.time() * 1e6 - lease.fence) < 60e6  # a time in µs, below 2^53 until 2255


@both
async def test_set_counter_and_list_never_free_the_permit_of_a_crashed_holder(io, raw) -> None:
    raw.sadd(f"{KEY}:set", "dead")
    raw.set(f"{KEY}:count", 1)
    raw.rpush(f"{KEY}:list", "permit")
    raw.lpop(f"{KEY}:list")
    assert 1 == raw.scard(f"{KEY}:set") == int(raw.get(f"{KEY}:count"))
    assert 0 == raw.llen(f"{KEY}:list")
    assert -1 == raw.pttl(f"{KEY}:set") == raw.pttl(f"{KEY}:count")

    # A lease of this library is permanent only with timeout=math.inf. Then its status is permanent.
    await io.do(Semaphore("library", 1, timeout=0.05), "acquire")
    assert await io.do(Semaphore("library", 1, timeout=math.inf), "acquire", blocking_timeout=20)
    (row,) = (await io.do(Semaphore("library", 1), "status")).holders
    assert row.permanent


@both
async def test_counter_has_no_owners_and_only_one_expiry_for_all_permits(io, raw) -> None:
    raw.incr(KEY)
    raw.decr(KEY)
    raw.decr(KEY)  # the holder releases twice
    assert -1 == int(raw.get(KEY))  # the counter is too low, so it admits too many callers
    raw.set(KEY, 1, px=20)
    await io.sleep(0.04)
    assert 1 == raw.incr(KEY)  # two holders at a limit of 1

    lease = await io.do(Semaphore("library", 2), "acquire")
    await io.do(lease, "release")
    with pytest.raises(Exception, match="released already"):
        await io.do(lease, "release")
    assert View(raw, "library").empty
    await io.do(Semaphore("library", 2, timeout=0.02), "acquire")
    long = await io.do(Semaphore("library", 2, timeout=60), "acquire")
    await io.sleep(0.04)
    sem = Semaphore("library", 2, timeout=60, blocking=False)
    assert [True, False] == await granted(io, sem, sem)
    assert await io.do(long, "owned")


@both
async def test_one_key_per_permit_takes_a_command_for_each_key_until_one_is_free(io, raw) -> None:
    """Each permit has its own expiry, but a caller has to try all keys to find a free permit."""
    for number in range(9):
        raw.set(f"{KEY}:{number}", "held", nx=True, px=10_000)
    tries = [raw.set(f"{KEY}:{number}", "me", nx=True, px=10_000) for number in range(10)]
    assert [None] * 9 + [True] == tries

    sem = Semaphore("library", 10, blocking=False)
    assert [True] * 9 == await granted(io, *[sem] * 9)
    with sent() as seen:
        assert await io.do(sem, "acquire")
    assert {"evalsha": 1} == seen.by_name


@both
async def test_semaphore_reentrant_lock_and_pool_limit_different_things(io) -> None:
    """A pool limits its own process, a semaphore all processes, a reentrant lock other callers."""
    assert [True, True, False] == await granted(io, *[Semaphore("permits", 2)] * 3, blocking=False)
    assert [True] * 3 == await granted(io, *[RLock("owner", blocking=False)] * 3)

    def in_two_pools(work: Callable[[], Any]) -> list[Any]:
        """Run four calls in two pools of two threads. The pools stand for two processes."""
        with ThreadPoolExecutor(2) as one, ThreadPoolExecutor(2) as other:
            return [done.result() for done in [pool.submit(work) for pool in (one, other) * 2]]

    def limited() -> int:
        with Semaphore("shared", 2):
            inside.append("me")
            time.sleep(0.05)
            count = len(inside)
            inside.pop()
            return count

    together, inside = threading.Barrier(4), list[str]()
    assert {0, 1, 2, 3} == {*in_two_pools(lambda: together.wait(30))}
    assert max(in_two_pools(limited)) <= 2
