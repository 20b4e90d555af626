"""What the articles' own code does, in own words: the rows of docs/articles.md, one test each."""

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

from django_redis_sync import LeaseLost, Lock, RLock, Semaphore

from .behaviour.both import both
from .behaviour.watching import View

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]

ROOT = Path(__file__).resolve().parent.parent
KEY = "test-sync-article"


@pytest.fixture
def their(raw: redis.Redis) -> redis.Redis:
    """The server for an article's code: its keys go with the test."""
    for key in raw.scan_iter(match=f"{KEY}*"):
        raw.delete(key)
    return raw


def test_every_row_of_the_page_names_a_test_that_is_here() -> None:
    page = (ROOT / "docs" / "articles.md").read_text(encoding="utf-8")
    section = page.partition("## The articles' own code")[2].partition("\n## ")[0]
    named = re.findall(r"`(test_\w+)`", section)
    here = [name for name in globals() if name.startswith("test_")]
    assert 9 <= len(named) == len(set(named))
    assert sorted(here[1:]) == sorted(named)
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(named) == len(rows)


# Semaphores in sorted sets


def by_its_end(client: redis.Redis, limit: int, timeout: float, now: float) -> str | None:
    """Scored by when the lease ends, so that leases of any length clean themselves up."""
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
async def test_a_score_that_is_the_leases_end_lets_a_short_one_in(io, their) -> None:
    assert by_its_end(their, 1, 60, 1000.0)
    assert by_its_end(their, 1, 60, 1000.1) is None
    assert by_its_end(their, 1, 5, 1000.2)  # ranks first, beside the holder
    assert 2 == their.zcard(KEY)

    await io.do(Semaphore("ours", 1, timeout=60), "acquire")
    assert await io.do(Semaphore("ours", 1, timeout=5), "acquire", blocking_timeout=0) is None


@both
async def test_zadd_xx_answers_alike_for_alive_and_dead(io, their) -> None:
    """It counts what was added, and with XX nothing ever is."""
    their.zadd(KEY, {"alive": 1000.0})
    assert 0 == their.zadd(KEY, {"alive": 1001.0}, xx=True)
    assert 0 == their.zadd(KEY, {"dead": 1001.0}, xx=True)
    # CH would tell them apart, unless the time is the same.
    assert [1, 0] == [their.zadd(KEY, {one: 1002.0}, xx=True, ch=True) for one in ("alive", "dead")]

    lease = await io.do(Lock("ours", timeout=60), "acquire")
    await io.do(lease, "renew", 0.05)
    await io.sleep(0.1)
    with pytest.raises(LeaseLost):
        await io.do(lease, "renew", 0.05)


@both
async def test_a_misspelt_owner_key_limits_nobody(io, their) -> None:
    """A rank in a set that is not there is nil, and nil is less than any limit: null, nil and false
    are in the languages of these articles, and 0 is what their drivers make of it."""

    def acquire(limit: int) -> bool:
        me = uuid.uuid4().hex
        their.zadd(f"{KEY}:owner", {me: their.incr(f"{KEY}:counter")})
        return (their.zrank(f"{KEY}:onwer", me) or 0) < limit

    assert [True] * 6 == [acquire(2) for _ in range(6)]

    sem = Semaphore("ours", 2, blocking=False)
    got = [await io.do(sem, "acquire") for _ in range(6)]
    assert [True, True, False, False, False, False] == [lease is not None for lease in got]


@both
async def test_a_32_bit_counter_is_none_and_does_not_overflow_in_two_hours(io, their) -> None:
    """INCR counts to 2^63 on every platform: at a million a second for 292,000 years. What ends
    first is the score, a double: beyond 2^53, which is 285 years at that rate, ranks are equal."""
    their.set(KEY, 2**31 - 1)
    assert 2**31 == their.incr(KEY)
    their.set(KEY, 2**63 - 1)
    with pytest.raises(redis.ResponseError, match="overflow"):
        their.incr(KEY)
    assert 285 == int(2**53 / 1e6 / 60 / 60 / 24 / 365)

    lease = await io.do(Lock("ours"), "acquire")
    assert abs(time.time() * 1e6 - lease.fence) < 60e6  # a time in µs: good for 2^53 until 2255


# Locks


def setnx_with_repair(client: redis.Redis, name: str, lease: int) -> bool:
    if client.setnx(name, uuid.uuid4().hex):
        client.expire(name, lease)
        return True
    elif not client.ttl(name):  # its maker died before EXPIRE: repair it
        client.expire(name, lease)
    return False


@both
async def test_the_repair_of_a_key_without_expiry_never_fires(io, their) -> None:
    """TTL answered nothing for such a key once; it answers -1, which is not nothing."""
    their.setnx(KEY, "died before EXPIRE")
    assert [False] * 3 == [setnx_with_repair(their, KEY, 1) for _ in range(3)]
    assert -1 == their.ttl(KEY)

    await io.do(Lock("ours"), "acquire")
    assert 0 < View(their, "ours").ends_in <= 30


@both
async def test_bytes_are_never_the_str_that_was_stored(io, their) -> None:
    """On Python 3 the owner check is false for the owner, and nothing is ever released."""

    def release(token: str) -> bool:
        with their.pipeline() as pipe:
            pipe.watch(KEY)
            if pipe.get(KEY) == token:
                pipe.multi()
                pipe.delete(KEY)
                pipe.execute()
                return True
        return False

    token = uuid.uuid4().hex
    assert their.set(KEY, token, nx=True)
    assert not release(token)
    assert their.exists(KEY)

    lease = await io.do(Lock("ours"), "acquire")
    await io.do(lease, "release")
    assert not await io.do(Lock("ours"), "locked")


@both
async def test_an_incr_lock_that_was_asked_for_in_vain_is_never_free_again(io, their) -> None:
    """Whoever asks counts, too; one DECR for many INCR leaves it above 0."""

    def acquire() -> bool:
        return bool(their.incr(KEY) == 1)

    assert [True, False, False] == [acquire() for _ in range(3)]
    their.decr(KEY)  # the holder's release
    assert [False] * 3 == [acquire() for _ in range(3)]
    assert -1 == their.pttl(KEY)

    lease = await io.do(Lock("ours"), "acquire")
    assert await io.do(Lock("ours"), "acquire", blocking_timeout=0) is None
    await io.do(lease, "release")
    assert await io.do(Lock("ours"), "acquire", blocking_timeout=0)


@both
async def test_an_early_return_leaves_the_lock_taken(io, their) -> None:
    """Sold out: the others wait for a whole lease to be told so."""

    def buy(stock: int) -> str:
        if not their.set(KEY, "me", nx=True, px=10_000):
            return "busy"
        if stock < 1:
            return "sold out"
        their.delete(KEY)
        return "bought"

    assert ["bought", "sold out", "busy"] == [buy(stock) for stock in (1, 0, 0)]

    async def buy_here(stock: int) -> str:
        async with io.entered(Lock("ours", blocking=False)):
            if stock < 1:
                return "sold out"
            return "bought"

    bought = [await buy_here(stock) for stock in (1, 0, 0)]
    assert ["bought", "sold out", "sold out"] == bought


# Three things with one name


@both
async def test_a_semaphore_a_reentrant_lock_and_a_pool_are_three_things(io) -> None:
    """A semaphore counts permits, whoever takes them; a reentrant lock knows its owner; a pool
    bounds one process' workers, and of another process knows nothing."""
    sem = Semaphore("permits", 2, blocking=False)
    mine = [await io.do(sem, "acquire") for _ in range(3)]
    assert [True, True, False] == [lease is not None for lease in mine]

    again = RLock("owner", blocking=False)
    assert all([await io.do(again, "acquire") for _ in range(3)])

    inside = Most()
    with ThreadPoolExecutor(2) as one, ThreadPoolExecutor(2) as other:
        pools = [pool.submit(inside.visit, 0.2) for pool in (one, other) for _ in range(2)]
        [done.result() for done in pools]
    assert 4 == inside.most  # two pools of two, as two processes have them

    def limited() -> None:
        with Semaphore("shared", 2):
            inside_too.visit(0.05)

    inside_too = Most()
    with ThreadPoolExecutor(2) as one, ThreadPoolExecutor(2) as other:
        pools = [pool.submit(limited) for pool in (one, other) for _ in range(2)]
        [done.result() for done in pools]
    assert 2 >= inside_too.most


class Most:
    """The most that were inside at once."""

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
