"""Statistics that scripts count by the minute: totals of old minutes, means, and peaks."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.conf import settings as django_settings

from django_redis_sync import ReadWriteLock, Semaphore
from django_redis_sync.operators.history import History, histories
from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import Keys, keys_of
from tests.test_protocol_scripts import Name

PAIR = scripts.CONSTANTS["PAIR"]
#: Minutes of history in these tests.
KEEP = 5


@pytest.fixture
def keys(settings: Any, raw: redis.Redis) -> Keys:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS_HOURS": KEEP / 60}
    return keys_of(django_settings.PREFIX, "x")


@pytest.fixture
def x(raw: redis.Redis) -> Name:
    return Name(raw)


def minute_of(raw: redis.Redis) -> int:
    return int(raw.time()[0]) // 60


def history(minutes: int = KEEP) -> History:
    return histories([("x", None)], minutes=minutes)[0]


def acquire_once() -> None:
    with Semaphore("x", 9):
        pass


def count_before(raw: redis.Redis, keys: Keys, what: str, value: int, *ago: int) -> int:
    """Store the counter `what` for the minutes `ago`. Return the current minute."""
    now = minute_of(raw)
    fields = {f"{now - one}:{what}": value for one in ago}
    raw.hset(keys.stats, mapping={**fields, "tidied": now - 3})
    return now


def minutes_left(raw: redis.Redis, keys: Keys, what: str) -> list[int]:
    fields = (field.decode().split(":") for field in raw.hkeys(keys.stats))
    return sorted(int(minute) for minute, *rest in fields if [what] == rest and minute != "total")


# Totals of old minutes


def test_minute_is_added_to_the_totals_when_it_is_older_than_the_history(
    raw: redis.Redis, keys: Keys
) -> None:
    now = count_before(raw, keys, "n", 7, KEEP + 1, KEEP, KEEP - 1)
    acquire_once()
    if minute_of(raw) == now:
        assert [now - KEEP, now - KEEP + 1] == minutes_left(raw, keys, "n")[:2]
        assert b"7" == raw.hget(keys.stats, "total:n")
        assert [7] == [row.rejected for _, row in history(KEEP).rows if row.rejected]
    assert 21 == history().ever.rejected


def test_totals_keep_the_milliseconds_of_an_old_minute(raw: redis.Redis, keys: Keys) -> None:
    count_before(raw, keys, "r", 2 * PAIR + 3500, KEEP + 1)
    count_before(raw, keys, "w", 3 * PAIR + 500, KEEP + 2)
    count_before(raw, keys, "p", 8, KEEP + 1)
    acquire_once()
    assert [b"2", b"3500"] == raw.hmget(keys.stats, "total:r", "total:r:ms")
    assert [b"3", b"500"] == raw.hmget(keys.stats, "total:w", "total:w:ms")
    ever = history().ever
    assert (3, 0.5) == (ever.waited, ever.wait_seconds)
    assert 3 == ever.released and 3.5 <= ever.held_seconds < 60
    assert raw.hget(keys.stats, "total:p") is None  # peaks are not added up


@pytest.mark.parametrize("what", "gwrntcslbvdxp")
def test_old_minute_of_each_counter_is_added_to_the_totals(
    raw: redis.Redis, keys: Keys, what: str
) -> None:
    minute = count_before(raw, keys, what, PAIR + 5 if what in "wr" else 1, KEEP + 1)
    raw.hset(keys.stats, "tidied", minute - 1)  # as of a name in constant use
    acquire_once()
    assert minute - KEEP - 1 not in minutes_left(raw, keys, what)
    assert (None if what == "p" else b"1") == raw.hget(keys.stats, f"total:{what}")


def test_statistics_key_outlives_the_history(raw: redis.Redis, keys: Keys) -> None:
    count_before(raw, keys, "g", 1, 0)
    acquire_once()
    assert KEEP * 60_000 < raw.pttl(keys.stats) <= (KEEP + 2) * 60_000


def test_rejection_by_a_pause_is_counted_when_the_name_is_unused(x: Name) -> None:
    x.operate("pause")
    assert ["no", "paused"] == x.ask("a", "try", keep=KEEP)[:2]
    assert 1 == len(minutes_left(x.raw, x.keys, "n"))


def test_unclaimed_handoff_is_counted_as_reclaimed_once(x: Name) -> None:
    fence = x.hold("a")
    x.wait("b", "c")
    x.release("a", fence)
    x.silence("b")
    assert "ok" == x.ask("c", "again", keep=KEEP)[0]
    assert {b"c": b"1"} == {f[-1:]: n for f, n in x.raw.hgetall(x.keys.stats).items() if b":c" in f}


def test_grant_in_shadow_mode_is_counted_once(x: Name) -> None:
    x.hold("a")
    assert "ok" == x.ask("b", "shadow", keep=KEEP)[0]
    fields = x.raw.hgetall(x.keys.stats)
    assert {b"s": b"1"} == {f[-1:]: n for f, n in fields.items() if f[-1:] in b"sgn"}


def test_rejection_by_max_waiters_is_counted(x: Name) -> None:
    x.hold("a")
    x.wait("b", "c")
    assert ["no", "full", 2] == x.ask("d", max_waiters=2, keep=KEEP)[:3]
    assert 1 == len(minutes_left(x.raw, x.keys, "n"))


def test_giveup_is_counted_as_a_timeout_not_as_a_release(x: Name) -> None:
    x.hold("a", keep=KEEP)
    x.wait("b", keep=KEEP)
    assert ["no", "timeout", 0, "", "1"] == x.run("release", "b", how="giveup", keep=KEEP)
    fields = x.raw.hgetall(x.keys.stats)
    assert {b":t": b"1"} == {f[-2:]: n for f, n in fields.items() if f[-2:] in (b":t", b":r")}


def test_undo_is_counted_neither_as_a_timeout_nor_as_a_release(x: Name) -> None:
    x.hold("a", keep=KEEP)
    x.wait("b", keep=KEEP)
    for token in ("b", "not there"):
        assert ["gone"] == x.run("release", token, how="undo", tombstone=1, keep=KEEP)
    assert [0, 0] == [len(minutes_left(x.raw, x.keys, what)) for what in "tr"]


def test_first_script_after_weeks_reads_fewer_than_2000_minutes(
    raw: redis.Redis, keys: Keys
) -> None:
    raw.hset(keys.stats, "tidied", minute_of(raw) - 30_000)
    before = raw.info("commandstats").get("cmdstat_hget", {"calls": 0})["calls"]
    acquire_once()
    assert raw.info("commandstats")["cmdstat_hget"]["calls"] - before < 2000


def test_waited_milliseconds_of_a_handoff_are_counted(x: Name) -> None:
    fence = x.hold("a", keep=KEEP)
    x.wait("b", keep=KEEP)
    x.raw.zincrby(x.keys.queue, -3_000_000, "b")
    x.release("a", fence, keep=KEEP)
    (waited,) = (int(n) for field, n in x.raw.hgetall(x.keys.stats).items() if field[-2:] == b":w")
    assert 1 == waited // PAIR
    assert 3000 <= waited % PAIR < 60_000


# Means


@pytest.mark.parametrize(
    ("this", "last", "mean"),
    [
        (0, 2 * PAIR + 3000, "1500"),
        (PAIR + 600, 2 * PAIR + 3000, "1200"),
        (PAIR + 600, 0, "600"),
        (0, 0, ""),
    ],
)
def test_rejection_contains_the_mean_hold_of_the_last_two_minutes(
    x: Name, this: int, last: int, mean: str
) -> None:
    x.hold("a")
    while True:
        now = minute_of(x.raw)
        x.raw.delete(x.keys.stats)
        held = {f"{now}:r": this, f"{now - 1}:r": last, f"{now - 2}:r": 9}
        x.raw.hset(x.keys.stats, mapping={field: sum_ for field, sum_ in held.items() if sum_})
        reply = x.ask("b", "try")
        if minute_of(x.raw) == now:
            break
    assert ["no", "full", 0, mean, "1"] == reply


# Peaks


def test_writer_counts_as_one_permit_in_the_peak(keys: Keys) -> None:
    with ReadWriteLock("x").write:
        assert 1 == history().total.peak
    lock = ReadWriteLock("x")
    first, second = lock.read.acquire(), lock.read.acquire()
    assert first and second
    assert 2 == history().total.peak
    first.release()
    second.release()


def test_peak_adds_up_all_permits_and_never_falls(keys: Keys) -> None:
    semaphore = Semaphore("x", 9)
    some = [semaphore.acquire(permits=n) for n in (4, 3)]
    assert 7 == history().total.peak
    for lease in some:
        assert lease
        lease.release()
    acquire_once()
    acquire_once()
    assert 7 == history().total.peak


def test_peak_of_one_holder_is_its_largest_number_of_permits(keys: Keys) -> None:
    semaphore = Semaphore("x", 9)
    for permits, peak in ((1, 1), (2, 2), (3, 3), (2, 3), (1, 3)):
        lease = semaphore.acquire(permits=permits)
        assert lease
        lease.release()
        assert peak == history().total.peak


def test_peak_outlives_the_other_keys_of_an_idle_name(raw: redis.Redis, keys: Keys) -> None:
    semaphore = Semaphore("x", 9)
    lease = semaphore.acquire(permits=7)
    assert lease
    lease.release()
    raw.delete(keys.leases, keys.info)  # as when they expired
    acquire_once()
    assert 7 == history().total.peak


def test_permits_retained_by_min_hold_are_not_counted_as_reclaimed(x: Name) -> None:
    fence = x.hold("a", keep=KEEP)
    assert "ok" == x.release("a", fence, hold=60_000, keep=KEEP)
    x.expire("ka")
    x.hold("b", keep=KEEP)
    assert [] == minutes_left(x.raw, x.keys, "c")
    x.expire("b")
    x.hold("c", keep=KEEP)
    assert 1 == len(minutes_left(x.raw, x.keys, "c"))
