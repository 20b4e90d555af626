"""The articles listed in docs/articles.md have faulty code. These tests prove the faults.

The tests in tests/behaviour and tests/locks/test_*.py prove what the library does instead.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import RLock, Semaphore

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]

KEY = f"{settings.PREFIX}:article"


def test_table_in_docs_articles_refers_only_to_tests_of_this_file() -> None:
    page = (Path(__file__).parents[2] / "docs" / "articles.md").read_text(encoding="utf-8")
    section = page.partition("## The articles' own code")[2].partition("\n## ")[0]
    named = re.findall(r"`(test_\w+)`", section)
    assert 9 <= len(named) == section.count("\n| ") - 1
    assert {*named} <= {*globals()}


def test_key_stays_locked_when_a_client_dies_between_setnx_and_expire(raw) -> None:
    """The articles set an expiry `if not ttl`. But the TTL of a key without an expiry is -1, and
    `not -1` is False."""

    def acquire() -> bool:
        created = bool(raw.setnx(KEY, "me"))
        if created or not raw.ttl(KEY):
            raw.expire(KEY, 1)
        return created

    raw.setnx(KEY, "died before EXPIRE")
    assert [False] * 3 == [acquire() for _ in range(3)]
    assert -1 == raw.ttl(KEY)


def test_release_without_a_check_of_the_owner_frees_another_clients_lock(raw) -> None:
    raw.set(KEY, "first", nx=True, px=20)
    time.sleep(0.04)
    assert raw.set(KEY, "second", nx=True, px=10_000)
    raw.delete(KEY)  # the first client releases a lock that the second client holds
    assert raw.set(KEY, "third", nx=True)
    # get() returns bytes, so a check that compares its result with a str always fails.
    assert raw.get(KEY) != "third"
    # A check with WATCH is safe, but takes four commands and a loop.
    with raw.pipeline() as pipe:
        pipe.watch(KEY)
        assert b"third" == pipe.get(KEY)
        raw.pexpire(KEY, 20_000)  # another client changes the key
        pipe.multi()
        pipe.delete(KEY)
        with pytest.raises(redis.WatchError):
            pipe.execute()


def test_lock_stays_taken_after_a_failed_attempt_or_a_return_before_the_release(raw) -> None:
    # A client owns the lock if its INCR returns 1. Failed attempts also increment the counter.
    # After three INCR and one DECR, the counter is 2, so no later INCR returns 1.
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

    assert ["bought", "sold out", "busy"] == [buy(stock) for stock in (1, 0, 0)]


def zset_acquire(raw, key: str, limit: int, timeout: float, now: float, by_end=False):
    """Acquire a permit in a sorted set, as the articles do. Return the new member, or None if all
    permits are taken.

    `timeout`: lease duration in seconds. `now`: the time of the caller's clock. The score of the
    new member is `now` or, with `by_end`, the end of the lease, `now + timeout`."""
    me = uuid.uuid4().hex
    with raw.pipeline() as pipe:
        pipe.zremrangebyscore(key, "-inf", now if by_end else now - timeout)
        pipe.zadd(key, {me: now + timeout if by_end else now})
        pipe.zrank(key, me)
        if pipe.execute()[-1] < limit:
            return me
    raw.zrem(key, me)
    return None


def test_sorted_set_exceeds_its_limit_when_clocks_or_timeouts_differ(raw) -> None:
    def acquire(key: str, *words: Any) -> bool:
        return zset_acquire(raw, f"{KEY}:{key}", *words) is not None

    # A client whose clock is behind ranks before the two holders, and becomes a third holder.
    behind = [acquire("behind", 2, 10, now) for now in (1000.0, 1000.0, 1000.1, 999.9)]
    assert [True, True, False, True] == behind
    assert 3 == raw.zcard(f"{KEY}:behind")
    # A client whose clock is 11 s ahead, or whose timeout is shorter, removes the holder.
    assert [True, True] == [acquire("ahead", 1, 10, now) for now in (1000.0, 1011.0)]
    assert [True, True] == [acquire("lease", 1, *each) for each in ((60, 1000.0), (1, 1002.0))]
    assert [1, 1] == [raw.zcard(f"{KEY}:{key}") for key in ("ahead", "lease")]
    # If the score is the end of the lease, a client with a shorter lease ranks before the holder.
    leases = [acquire("end", 1, *each, True) for each in ((60, 0.0), (60, 0.1), (5, 0.2))]
    assert [True, False, True] == leases
    assert 2 == raw.zcard(f"{KEY}:end")


def test_renewal_with_zadd_xx_does_not_report_that_the_holder_was_removed(raw) -> None:
    """An article renews with ZADD. If the holder was removed, ZADD adds the holder again, and
    returns 1. The client must then remove the holder, but it may crash before that."""
    holder, other = (zset_acquire(raw, KEY, 1, 10, now) for now in (1000.0, 1011.0))
    assert 1 == raw.zadd(KEY, {holder: 1012.0})  # the removed holder is a member again
    assert {holder, other} == {member.decode() for member in raw.zrange(KEY, 0, -1)}
    # ZADD XX adds no member, but returns 0 for holders and for removed holders. ZADD XX CH returns
    # 1 for a holder if its score changes, and 0 for a removed holder.
    names, changed = (holder, "dead"), {"xx": True, "ch": True}
    assert [0, 0] == [raw.zadd(KEY, {one: 1013.0}, xx=True) for one in names]
    assert [1, 0] == [raw.zadd(KEY, {one: 1014.0}, **changed) for one in names]


def test_misspelled_key_admits_all_callers(raw) -> None:
    """There is no set under the misspelled key, so ZRANK returns nil. The code of the articles
    treats nil as a rank below any limit."""

    def acquire(limit: int) -> bool:
        me = uuid.uuid4().hex
        raw.zadd(f"{KEY}:owner", {me: raw.incr(f"{KEY}:counter")})
        return (raw.zrank(f"{KEY}:onwer", me) or 0) < limit

    assert [True] * 6 == [acquire(2) for _ in range(6)]


def test_redis_counter_has_64_bits_and_overflows_at_2_to_the_63(raw) -> None:
    raw.set(KEY, 2**31 - 1)
    assert 2**31 == raw.incr(KEY)
    raw.set(KEY, 2**63 - 1)
    with pytest.raises(redis.ResponseError, match="overflow"):
        raw.incr(KEY)


def test_counter_of_permits_is_wrong_after_a_double_release_or_an_expiry(raw) -> None:
    """A counter without an expiry keeps the permit of a crashed holder. If the counter expires, all
    permits become free at once. With a key per permit, a caller may have to try all keys."""
    assert [1, 0, -1] == [raw.incr(KEY), raw.decr(KEY), raw.decr(KEY)]  # the holder releases twice
    assert -1 == raw.pttl(KEY)
    raw.set(KEY, 1, px=20)
    time.sleep(0.04)
    assert 1 == raw.incr(KEY)  # a second holder, at a limit of 1
    for number in range(9):
        raw.set(f"{KEY}:{number}", "held", nx=True, px=10_000)
    tries = [raw.set(f"{KEY}:{number}", "me", nx=True, px=10_000) for number in range(10)]
    assert [None] * 9 + [True] == tries


def test_thread_can_reacquire_its_rlock_but_not_a_full_semaphore() -> None:
    """A thread can acquire an RLock that it holds already. But a thread can't acquire a semaphore
    more often than the limit allows, here twice."""

    def granted(*locks: Any) -> list[bool]:
        return [lock.acquire(blocking=False) is not None for lock in locks]

    assert [True, True, False] == granted(*[Semaphore("permits", 2)] * 3)
    assert [True] * 3 == granted(*[RLock("owner")] * 3)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.extend(granted(RLock("owner"))))
    thread.start()
    thread.join()
    assert [False] == found
