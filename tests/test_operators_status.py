"""What there is: the registry of names, their statuses and their history."""

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from django.conf import settings

from devtools.servers import RedisServer
from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.engine import keeper, names
from django_redis_sync.engine.server import Server, server_of
from django_redis_sync.exceptions import ForeignValue
from django_redis_sync.operators import history
from django_redis_sync.operators.history import Counters, histories, histories_of, suggest
from django_redis_sync.operators.names import Recent, grouped, groups_of, names_in_use
from django_redis_sync.operators.status import (
    Holder,
    Status,
    Waiter,
    astatus_of,
    readable,
    status_of,
    statuses,
)
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.behaviour.both import eventually
from tests.behaviour.watching import counted, sent
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")

REGISTRY = f"{settings.PREFIX}:names"
LIMITS = {"exports": 3, "a:b": 4, "shop": None, "by-function": None, "unknown": None}


# The registry


def test_a_name_is_listed_as_soon_as_it_is_used(raw: redis.Redis) -> None:
    start = time.monotonic()
    with Lock("a"):
        eventually(lambda: listed("a"))
    assert time.monotonic() - start < 5  # not at the next minute
    assert listed("a")  # still, a while after


def test_the_most_recent_name_comes_first(raw: redis.Redis) -> None:
    raw.zadd(REGISTRY, {"old": 1000, "newer": 3000, "new": 2000})
    assert names_in_use() == [("newer", None), ("new", None), ("old", None)]


def test_any_part_of_the_list_is_as_in_the_whole(raw: redis.Redis, settings: Any) -> None:
    """Those of the settings come first, those of the registry follow."""
    raw.zadd(REGISTRY, {f"n{i}": i + 1 for i in range(6)})
    named = {f"of-the-settings-{i}": {"limit": 1} for i in range(3)}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": named}
    found = Recent()
    assert [*named, *(f"n{i}" for i in reversed(range(6)))] == found[:]
    for length in range(1, 9):
        parts = [found[start : start + length] for start in range(0, len(found), length)]
        assert found[:] == [name for part in parts for name in part]


def test_a_child_is_told_from_a_plain_name_with_an_at_sign(raw: redis.Redis) -> None:
    with Lock("a@b"), Semaphore("a", 1, key="b"), Lock("{x}%:y"):
        wanted = {("a@b", None), ("a", "b"), ("{x}%:y", None)}
        eventually(lambda: wanted <= set(names_in_use()))


def test_a_name_is_literal_unless_it_is_a_pattern(raw: redis.Redis) -> None:
    raw.zadd(REGISTRY, {"x[1]": 1, "x1": 2, "exports%4042": 3, "exports@42": 4})
    assert names_in_use(pattern="x[1]") == [("x1", None)]
    assert names_in_use(pattern="x[[]1]") == [("x[1]", None)]
    assert names_in_use(pattern="exports@*") == [("exports", "42"), ("exports@42", None)]


def test_many_uses_within_a_minute_are_written_once(raw: redis.Redis) -> None:
    with Lock("seen"):
        eventually(lambda: listed("seen"))
    with counted(raw) as commands:
        for _ in range(200):
            with Lock("seen"):
                pass
        time.sleep(2 * names.NOTED_AFTER)
    # In scripts there are two to each cycle: the lease, and nothing else.
    assert commands["zadd"] <= 200
    assert commands["zrevrange"] == commands["keys"] == commands["scan"] == 0


def test_a_name_is_written_again_after_its_minute(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "NOTED_EVERY", 0.2)
    with Lock("held for long"):
        eventually(lambda: raw.zscore(REGISTRY, "held for long"))
        raw.delete(REGISTRY)
        eventually(lambda: raw.zscore(REGISTRY, "held for long"))


def test_names_of_yesterday_and_too_many_are_dropped(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "MOST_NOTED", 3)
    now = raw.time()[0] * 1000
    old = now - 86_400_000 - 5000
    raw.zadd(REGISTRY, {"yesterday": old, "a": now - 3, "b": now - 2, "c": now - 1})
    with Lock("new"):
        eventually(lambda: raw.zcard(REGISTRY) == 3)
    assert raw.zscore(REGISTRY, "yesterday") is None
    assert raw.zscore(REGISTRY, "a") is None
    assert 0 < raw.pttl(REGISTRY) <= 2 * 86_400_000


def test_an_outage_delays_the_list_and_nothing_else(
    new_server: Callable[..., RedisServer], settings: Any
) -> None:
    server = new_server()
    cache = {**settings.CACHES["default"], "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "private": cache}
    server.kill()
    found = keeper.keeper("private").clerk
    found.note(keeper_keys("later"))
    time.sleep(0.1)
    server.restart()
    eventually(lambda: names_in_use(using="private") == [("later", None)])


def keeper_keys(name: str) -> Any:
    from django_redis_sync.protocol.keys import keys_of

    return keys_of(settings.PREFIX, name)


# Statuses


def test_ten_thousand_names_take_twenty_round_trips(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = raw.time()[0] * 1000
    raw.zadd(REGISTRY, {f"name-{i}": now + i for i in range(10_000)})
    status_of("the script is loaded")
    trips, many, here = [], Server.many, threading.get_ident()

    def counting(self: Server, steps: Any) -> Any:
        if threading.get_ident() == here:  # the keeper makes round trips of its own
            trips.append(len(steps))
        return many(self, steps)

    monkeypatch.setattr(Server, "many", counting)
    with counted(raw) as commands, sent() as mine:
        found = statuses(names_in_use())
    assert len(found) == 10_000 and found[0].name == "name-9999"
    assert trips == [500] * 20
    assert mine["evalsha"] == 10_000
    assert commands["keys"] == commands["scan"] == 0


def test_a_status_shows_who_holds_and_who_waits_but_no_token(raw: redis.Redis) -> None:
    from django_redis_sync.engine import drivers
    from django_redis_sync.engine.wire import clock
    from django_redis_sync.protocol import plans

    with Semaphore("s", 2, label="reports.export") as lease:
        status = status_of("s")
        holder = status.holders[0]
        assert (holder.id, holder.token) == (lease.token[:8], lease.token)
        assert lease.token not in repr(status)
        assert holder.label["label"] == "reports.export"
        assert (status.in_use, status.limit) == (1, 2)
        assert 0 < holder.ends_in <= 30 and not holder.stuck
        keys = keeper_keys("s")
        argv = ("f" * 32, "30000", "wait", "p 2", "2 2 - {}", 0)
        drivers.drive(plans.run_once("acquire", keys, argv, 1.0, clock()), server_of("default"))
        (waiter,) = status_of("s").waiters
        assert (waiter.position, waiter.permits, waiter.alive) == (1, 2, True)
        assert status.everyone == (holder,)
        assert isinstance(holder, Holder) and isinstance(waiter, Waiter)


def test_an_idle_name_keeps_the_limit_of_the_settings(settings: Any) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "SEMAPHORES": {"exports": {"limit": 3}, "by-function": {"blocking_timeout": 1}},
        "ENDPOINTS": {
            "r:e": "exports",
            "shop:*": {"limit": lambda r: 5, "name": "shop"},
            "a:b": {"limit": 4},
        },
    }
    limits = {one.name: one.limit for one in statuses([(n, None) for n in LIMITS])}
    assert LIMITS == limits
    assert 3 == statuses([("exports", "7")])[0].limit
    with Semaphore("exports", 9):
        assert 9 == status_of("exports").limit


def test_async_code_is_told_what_sync_code_is(settings: Any) -> None:
    named = {"exports": {"limit": 3}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": named}

    def told(status: Status) -> Status:
        return replace(status, at=datetime.min)

    with Semaphore("held", 2, timeout=math.inf):
        for name, key in (("exports", None), ("exports", "7"), ("held", None)):
            told_async = asyncio.run(astatus_of(name, key))
            assert told(status_of(name, key)) == told(told_async)


def test_a_policy_whose_plain_name_is_used_counts_that_too(raw: redis.Redis) -> None:
    with Semaphore("api", 5), Semaphore("api", 5, key="1"):
        eventually(lambda: listed("api", "api@1"))
        ((api,), _) = groups_of(["api"], 10)
    assert api.own is not None
    assert (2, ["1"]) == (api.in_use, [one.key for one in api.children])


def test_children_are_grouped_under_their_policy_with_sums(raw: redis.Redis) -> None:
    with (
        Semaphore("api", 5, key="1").acquire(),
        Semaphore("api", 5, key="2").acquire(permits=3),
        Lock("solo"),
    ):
        names = [("api", "1"), ("solo", None), ("api", "2"), ("api", None)]
        api, solo = grouped(statuses(names))
    assert (api.name, api.in_use, api.holding, api.waiting, api.limit) == ("api", 4, 2, 0, 5)
    assert [child.key for child in api.children] == ["1", "2"]
    assert api.own is not None and api.own.key is None
    assert (solo.name, solo.in_use, solo.children) == ("solo", 1, ())


def test_redis_down_is_unavailable_and_shows_no_password(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://me:secret@127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "dead": cache}
    for ask in (
        lambda: names_in_use(using="dead"),
        lambda: statuses([("a", None)], using="dead"),
        lambda: histories([("a", None)], using="dead"),
    ):
        with pytest.raises(Unavailable) as caught:
            ask()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "ask",
    [
        status_of,
        lambda name: asyncio.run(astatus_of(name)),
        lambda name: statuses([("exports", None), (name, None)]),
        lambda name: readable([(name, None)]),
    ],
    ids=["status_of", "astatus_of", "statuses", "readable"],
)
def test_whose_value_cannot_be_read_is_said(ask: Callable[..., Any], raw: redis.Redis) -> None:
    for key in keeper_keys("spoiled").declared:
        raw.set(key, "theirs")
    with pytest.raises(ForeignValue, match=r"another program's value.*\{spoiled\}"):
        ask("spoiled")


# History


def test_history_has_a_row_for_each_minute(raw: redis.Redis) -> None:
    for _ in range(3):
        with Semaphore("h", 2), Semaphore("h", 2):
            assert Semaphore("h", 2).acquire(blocking=False) is None
    (found,) = histories([("h", None)], minutes=10)
    times = [when.timestamp() for when, _ in found.rows]
    assert times == [times[0] + 60 * i for i in range(10)]
    assert (found.total.granted, found.total.released, found.total.rejected) == (6, 6, 3)
    assert found.total.peak == 2
    assert found.ever == found.total
    assert sum(row.granted for _, row in found.rows[-2:]) == 6  # one, or two around its end


def test_what_is_older_counts_for_ever_only(raw: redis.Redis) -> None:
    minute, pair = raw.time()[0] // 60, CONSTANTS["PAIR"]
    fields: dict[str, Any] = {
        f"{minute - 1}:w": 2 * pair + 3000,
        f"{minute - 1}:r": 4 * pair + 10_000,
        f"{minute - 200}:g": 5,
        "total:g": 100,
        "total:w": 7,
        "total:w:ms": 9500,
        "tidied": minute,
    }
    raw.hset(f"{settings.PREFIX}:{{h}}:stats", mapping=fields)
    (found,) = histories([("h", None)])
    assert found.total == Counters(waited=2, wait_seconds=3.0, released=4, held_seconds=10.0)
    assert (found.ever.granted, found.ever.waited, found.ever.wait_seconds) == (105, 9, 12.5)


def test_a_name_without_history_has_empty_rows(raw: redis.Redis) -> None:
    (found,) = histories([("nobody", None)], minutes=3)
    assert [row for _, row in found.rows] == [Counters()] * 3
    assert found.suggested_limit is None


def test_many_histories_take_a_round_trip_per_batch(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = []
    asked = history.pipelined
    monkeypatch.setattr(
        history, "pipelined", lambda alias, c: trips.append(len(c)) or asked(alias, c)
    )
    assert len(histories([(f"n{i}", None) for i in range(1200)], minutes=1)) == 1200
    assert trips == [500, 500, 200]


def minutes(
    *rows: Counters,
    before: Counters = Counters(),  # noqa: B008 - it is frozen
) -> history.History:
    """A history of these minutes, the last of them now; `before`: what was earlier."""
    dated = tuple((FIRST + timedelta(minutes=i), row) for i, row in enumerate(rows))
    total = history.add(rows)
    return history.History("h", None, dated, total, history.add([before, total]), None)


def peaks(found: history.History, *holders: tuple[float, int]) -> list[int]:
    """With use carried on; holders: the minute since when, and the permits."""
    held = [(FIRST + timedelta(minutes=since), permits) for since, permits in holders]
    return [row.peak for _, row in history.carried(found, held).rows]


NOTHING, FIRST = Counters(), datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_who_holds_on_is_in_use_in_minutes_in_which_nobody_comes() -> None:
    came = Counters(granted=2, peak=5)
    assert peaks(minutes(NOTHING, came, NOTHING, NOTHING), (1.5, 4), (1.6, 1)) == [0, 5, 5, 5]
    # Since before the first minute, and with counters off.
    assert peaks(minutes(NOTHING, NOTHING), (-90, 3)) == [3, 3]
    assert peaks(minutes(NOTHING, NOTHING)) == [0, 0]


def test_who_left_was_in_use_until_then() -> None:
    came, left = Counters(granted=1, peak=1), Counters(released=1, held_seconds=180)
    assert peaks(minutes(NOTHING, came, NOTHING, NOTHING, left, NOTHING)) == [0, 1, 1, 1, 1, 0]
    # It came before the first minute.
    assert peaks(minutes(NOTHING, left, NOTHING, before=came)) == [1, 1, 0]
    # One came and one left in the same minute: not the one that lives.
    both = Counters(granted=1, released=1, peak=2)
    assert peaks(minutes(came, NOTHING, both, NOTHING), (2.5, 1)) == [1, 1, 2, 1]
    # By hand-over, counted as waited.
    waited = Counters(waited=1, released=1, peak=1)
    assert peaks(minutes(came, waited, NOTHING, left)) == [1, 1, 1, 1]


def test_what_is_not_known_of_is_not_drawn() -> None:
    came = Counters(granted=1, peak=1)
    # Cleared or expired: nothing says when.
    assert peaks(minutes(came, NOTHING, NOTHING)) == [1, 0, 0]
    assert peaks(minutes(came, NOTHING, Counters(reclaimed=1))) == [1, 0, 0]
    # A release that is counted, of a holder that was still seen: nobody else was there before.
    assert peaks(minutes(NOTHING, came, Counters(released=1)), (1.5, 1)) == [0, 1, 1]
    for over in (Counters(granted=1, reclaimed=1), Counters(granted=1, released=1)):
        rows = replace(over, peak=1), NOTHING, Counters(released=1)
        assert peaks(minutes(*rows)) == [1, 0, 0]
    # Released and never granted, as when counters were switched on in between.
    assert peaks(minutes(NOTHING, Counters(released=1), NOTHING)) == [0, 0, 0]


@pytest.mark.parametrize("lost", [0.0, 0.4], ids=["all are released", "some expire"])
def test_no_more_is_told_than_was_in_use_and_all_when_each_left(lost: float) -> None:
    """Whatever the order in which they came and went."""
    for seed in range(40):
        told, in_use = _carried_and_true(random.Random(seed), lost)
        assert told == in_use if not lost else all(map(int.__le__, told, in_use)), seed


def _carried_and_true(dice: random.Random, lost: float) -> tuple[list[int], list[int]]:
    """The use at the start of each minute by random leases, as it is told and as it was; `lost`:
    the part of which nothing says when they ended."""
    leases = [(come := dice.uniform(-3, 6), come + dice.expovariate(0.5)) for _ in range(9)]
    expired = {lease for lease in leases if dice.random() < lost}
    living = [(come, dice.randint(1, 3)) for come, left in leases if left >= 6]
    permits = dict(living)

    def counted(start: int, stop: int) -> Counters:
        came = sum(start <= come < stop for come, _ in leases)
        left = sum(start <= lease[1] < stop for lease in leases if lease not in expired)
        return Counters(granted=came, released=left)

    rows = [counted(minute, minute + 1) for minute in range(6)]
    in_use = [
        sum(permits.get(come, 1) for come, end in leases if come < minute <= end)
        for minute in range(6)
    ]
    return peaks(minutes(*rows, before=counted(-9, 0)), *living), in_use


def test_use_that_is_carried_on_counts_as_the_highest() -> None:
    crowd = Counters(rejected=50, released=1, held_seconds=6, granted=1, peak=1)
    found = history.carried(minutes(NOTHING, crowd), [(FIRST - timedelta(hours=2), 4)])
    assert (found.total.peak, found.suggested_limit) == (4, 8)


def test_the_past_of_a_name_carries_on_who_is_in(raw: redis.Redis) -> None:
    with Semaphore("h", 3) as lease, Semaphore("h", 3):
        minute = raw.time()[0] // 60
        record = raw.hget(f"{settings.PREFIX}:{{h}}:info", lease.token)
        assert record is not None
        earlier = str(lease.fence - 30 * 60 * 10**6).encode()  # as if half an hour ago
        info = record.replace(str(lease.fence).encode(), earlier)
        raw.hset(f"{settings.PREFIX}:{{h}}:info", lease.token, info)
        (found,) = histories_of([status_of("h")])
        raw.hset(f"{settings.PREFIX}:{{h}}:info", lease.token, record)
    rows = [row.peak for _, row in found.rows]
    assert int(found.rows[-1][0].timestamp()) // 60 - minute in (0, 1)
    assert set(rows[:28]) == {0} and set(rows[32:58]) == {1} and max(rows) == 2


@pytest.mark.parametrize(
    ("rows", "limit"),
    [
        ([Counters(granted=600, released=600, held_seconds=600, peak=3)], None),  # none waited
        ([Counters(granted=10, rejected=50, peak=1, released=10, held_seconds=9)], None),  # a lock
        ([Counters(granted=10, rejected=50, peak=3)], None),  # how long they hold is unknown
        ([Counters(granted=2000, rejected=1, peak=3, released=9, held_seconds=9)], None),  # rare
        # 10 asked per second, each for 2 s: 20 at a time, and √20 for bursts.
        ([Counters(granted=300, rejected=300, peak=5, released=300, held_seconds=600)], 25),
        # Little was wanted on average: one more than the peak.
        ([Counters(granted=20, waited=10, peak=4, released=30, held_seconds=3)], 5),
    ],
)
def test_a_limit_is_suggested_with_evidence_only(rows: list[Counters], limit: int | None) -> None:
    assert suggest(rows) == limit
