"""The articles' own code, paraphrased: one test for each row of docs/articles.md."""

from __future__ import annotations

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

from .behaviour.both import both
from .behaviour.watching import View

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]

ROOT = Path(__file__).resolve().parent.parent
KEY = f"{settings.PREFIX}:article"


def test_page_has_one_row_for_each_test_of_this_module() -> None:
    page = (ROOT / "docs" / "articles.md").read_text(encoding="utf-8")
    section = page.partition("## The articles' own code")[2].partition("\n## ")[0]
    named = re.findall(r"`(test_\w+)`", section)
    here = [name for name in globals() if name.startswith("test_")]
    assert 9 <= len(named) == len(set(named))
    assert sorted(here[1:]) == sorted(named)
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(named) == len(rows)


# Semaphores in sorted sets


def end_scored_acquire(client: redis.Redis, limit: int, timeout: float, now: float) -> str | None:
    """Acquire in a sorted set whose scores are the ends of leases, and return the member."""
    me = uuid.uuid4().hex
    with client.pipeline() as pipe:
        pipe.zremrangebyscore(KEY, "-inf", now)
        pipe.zadd(KEY, {me: now + timeout})
        pipe.zrank(KEY, me)
        if pipe.execute()[-1] < limit:
            return me
    client.zrem(KEY, me)
    return None


@both
async def test_sorted_set_scored_by_lease_end_admits_a_shorter_lease(io, raw) -> None:
    assert end_scored_acquire(raw, 1, 60, 1000.0)
    assert end_scored_acquire(raw, 1, 60, 1000.1) is None
    assert end_scored_acquire(raw, 1, 5, 1000.2)  # ranks before the holder
    assert 2 == raw.zcard(KEY)

    await io.do(Semaphore("library", 1, timeout=60), "acquire")
    assert await io.do(Semaphore("library", 1, timeout=5), "acquire", blocking_timeout=0) is None


@both
async def test_zadd_xx_returns_0_for_existing_and_missing_members(io, raw) -> None:
    """ZADD counts the members added, and XX never adds any."""
    raw.zadd(KEY, {"alive": 1000.0})
    assert 0 == raw.zadd(KEY, {"alive": 1001.0}, xx=True)
    assert 0 == raw.zadd(KEY, {"dead": 1001.0}, xx=True)
    # With CH, the replies differ unless the score stays the same.
    assert [1, 0] == [raw.zadd(KEY, {one: 1002.0}, xx=True, ch=True) for one in ("alive", "dead")]

    lease = await io.do(Lock("library", timeout=60), "acquire")
    await io.do(lease, "renew", 0.05)
    await io.sleep(0.1)
    with pytest.raises(LeaseLost):
        await io.do(lease, "renew", 0.05)


@both
async def test_rank_in_a_misspelled_key_admits_all_callers(io, raw) -> None:
    """The rank in a missing set is nil, which is less than any limit in the articles' languages."""

    def acquire(limit: int) -> bool:
        me = uuid.uuid4().hex
        raw.zadd(f"{KEY}:owner", {me: raw.incr(f"{KEY}:counter")})
        return (raw.zrank(f"{KEY}:onwer", me) or 0) < limit

    assert [True] * 6 == [acquire(2) for _ in range(6)]

    sem = Semaphore("library", 2, blocking=False)
    got = [await io.do(sem, "acquire") for _ in range(6)]
    assert [True, True, False, False, False, False] == [lease is not None for lease in got]


@both
async def test_redis_counter_has_64_bits_and_overflows_at_2_to_the_63(io, raw) -> None:
    """At a million per second, INCR reaches 2^63 after 292,000 years on every platform.

    Scores are doubles: beyond 2^53, after 285 years, different counts can have equal scores.
    """
    raw.set(KEY, 2**31 - 1)
    assert 2**31 == raw.incr(KEY)
    raw.set(KEY, 2**63 - 1)
    with pytest.raises(redis.ResponseError, match="overflow"):
        raw.incr(KEY)
    assert 285 == int(2**53 / 1e6 / 60 / 60 / 24 / 365)

    lease = await io.do(Lock("library"), "acquire")
    assert abs(time.time() * 1e6 - lease.fence) < 60e6  # a time in µs: below 2^53 until 2255


# Locks


def setnx_with_repair(client: redis.Redis, name: str, lease: int) -> bool:
    if client.setnx(name, uuid.uuid4().hex):
        client.expire(name, lease)
        return True
    elif not client.ttl(name):  # the creator died before EXPIRE
        client.expire(name, lease)
    return False


@both
async def test_ttl_check_does_not_repair_a_key_without_expiry(io, raw) -> None:
    """TTL returns -1 for a key without expiry, and -1 is true."""
    raw.setnx(KEY, "died before EXPIRE")
    assert [False] * 3 == [setnx_with_repair(raw, KEY, 1) for _ in range(3)]
    assert -1 == raw.ttl(KEY)

    await io.do(Lock("library"), "acquire")
    assert 0 < View(raw, "library").ends_in <= 30


@both
async def test_owner_check_fails_when_bytes_are_compared_with_str(io, raw) -> None:
    """On Python 3, the owner check fails even for the owner, so the lock is never released."""

    def release(token: str) -> bool:
        with raw.pipeline() as pipe:
            pipe.watch(KEY)
            if pipe.get(KEY) == token:
                pipe.multi()
                pipe.delete(KEY)
                pipe.execute()
                return True
        return False

    token = uuid.uuid4().hex
    assert raw.set(KEY, token, nx=True)
    assert not release(token)
    assert raw.exists(KEY)

    lease = await io.do(Lock("library"), "acquire")
    await io.do(lease, "release")
    assert not await io.do(Lock("library"), "locked")


@both
async def test_incr_lock_is_never_free_again_after_a_failed_attempt(io, raw) -> None:
    """A failed attempt counts too: one DECR after several INCR leaves the counter above 0."""

    def acquire() -> bool:
        return bool(raw.incr(KEY) == 1)

    assert [True, False, False] == [acquire() for _ in range(3)]
    raw.decr(KEY)  # the holder's release
    assert [False] * 3 == [acquire() for _ in range(3)]
    assert -1 == raw.pttl(KEY)

    lease = await io.do(Lock("library"), "acquire")
    assert await io.do(Lock("library"), "acquire", blocking_timeout=0) is None
    await io.do(lease, "release")
    assert await io.do(Lock("library"), "acquire", blocking_timeout=0)


@both
async def test_early_return_before_the_release_leaves_the_lock_taken(io, raw) -> None:
    """After "sold out", other callers find the lock taken until the lease expires."""

    def buy(stock: int) -> str:
        if not raw.set(KEY, "me", nx=True, px=10_000):
            return "busy"
        if stock < 1:
            return "sold out"
        raw.delete(KEY)
        return "bought"

    assert ["bought", "sold out", "busy"] == [buy(stock) for stock in (1, 0, 0)]

    async def buy_here(stock: int) -> str:
        async with io.entered(Lock("library", blocking=False)):
            if stock < 1:
                return "sold out"
            return "bought"

    bought = [await buy_here(stock) for stock in (1, 0, 0)]
    assert ["bought", "sold out", "sold out"] == bought


# Semaphore, reentrant lock, and pool


@both
async def test_semaphore_reentrant_lock_and_pool_limit_different_things(io) -> None:
    """A semaphore counts permits of all callers. A reentrant lock admits its owner again.

    A pool limits the workers of one process only.
    """
    sem = Semaphore("permits", 2, blocking=False)
    mine = [await io.do(sem, "acquire") for _ in range(3)]
    assert [True, True, False] == [lease is not None for lease in mine]

    again = RLock("owner", blocking=False)
    assert all([await io.do(again, "acquire") for _ in range(3)])

    inside = Occupancy()
    with ThreadPoolExecutor(2) as one, ThreadPoolExecutor(2) as other:
        pools = [pool.submit(inside.visit, 0.2) for pool in (one, other) for _ in range(2)]
        [done.result() for done in pools]
    assert 4 == inside.most  # two pools of two threads stand for two processes

    def limited() -> None:
        with Semaphore("shared", 2):
            inside_too.visit(0.05)

    inside_too = Occupancy()
    with ThreadPoolExecutor(2) as one, ThreadPoolExecutor(2) as other:
        pools = [pool.submit(limited) for pool in (one, other) for _ in range(2)]
        [done.result() for done in pools]
    assert 2 >= inside_too.most


class Occupancy:
    """The number of visitors inside, now and at most."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self._guard = threading.Lock()

    def visit(self, seconds: float, sleep: Callable[[float], Any] = time.sleep) -> None:
        with self._guard:
            self.inside += 1
            self.most = max(self.most, self.inside)
        sleep(seconds)
        with self._guard:
            self.inside -= 1
