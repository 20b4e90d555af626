"""Statistics over many names: what they count, their error, their delay, and their cost."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_redis_sync import Lease, Lock, Semaphore, synchronized
from django_redis_sync.engine import statistics
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.engine.server import server_of
from django_redis_sync.exceptions import ForeignValue
from django_redis_sync.operators.history import Counters, histories, suggest
from django_redis_sync.operators.statistics import SITE, Statistics, groups, statistics_of
from django_redis_sync.protocol.keys import group_keys, groups_key, keys_of
from django_redis_sync.protocol.plans import Run
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.behaviour.both import both, eventually
from tests.behaviour.child import Child
from tests.support.keepers import fresh_keeper  # noqa: F401 - a fixture
from tests.support.workload import call

PREFIX = settings.PREFIX
SHARES, SKETCH, COUNTS = group_keys(PREFIX, "api")


@pytest.fixture(autouse=True)
def quick(fresh_keeper: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Let processes write statistics ten times as often."""
    monkeypatch.setattr(statistics, "EVERY", 0.2)
    monkeypatch.setattr(statistics, "AGAIN", 1.0)


def figures(group: str = "api") -> Statistics:
    (found,) = statistics_of([group])
    return found


@both
async def test_statistics_of_a_policy_sum_over_its_keys(io: Any) -> None:
    held = [
        await io.do(Semaphore("api", 2, key=key), "acquire", blocking=False)
        for key in ("a", "a", "a", "b", "b", "b", "b")
    ]
    leases = [lease for lease in held if lease]
    found = eventually(lambda: (s := figures()).in_use == 4 and s.history.total.rejected == 3 and s)
    eventually(lambda: groups() == ["api"])
    assert {("a", 2), ("b", 2)} == {(busy.key, busy.in_use) for busy in found.busiest}
    assert [("b", 2), ("a", 1)] == [(busy.key, busy.rejected) for busy in found.rejected]
    assert (0, 0, 0) == (found.use_off, found.waiting_off, found.rejected_off)
    for lease in leases:
        await io.do(lease, "release")
    found = eventually(lambda: (s := figures()).in_use == 0 and s.history.total.released == 4 and s)
    assert (4, 0) == (found.history.total.granted, found.history.total.lost)
    assert 0 < found.held.p50 <= found.held.p95 < 60


def test_waits_are_counted_while_they_last_and_timed_when_they_end() -> None:
    with ThreadPoolExecutor(2) as threads:
        lease = Semaphore("api", 1, key="k").acquire()
        waits = [threads.submit(Semaphore("api", 1, key="k").acquire) for _ in range(2)]
        found = eventually(lambda: (s := figures()).waiting == 2 and s)
        assert [("k", 1, 2)] == [(b.key, b.in_use, b.waiting) for b in found.busiest]
        time.sleep(0.3)
        lease.release()
        for granted in as_completed(waits, timeout=20):
            granted.result().release()
    found = eventually(lambda: (s := figures()).history.total.waited == 2 and not s.waiting and s)
    assert found.history.total.wait_seconds >= 0.6
    assert 0.25 <= found.waited.p50 <= 20


def test_names_of_one_template_are_one_group_and_the_site_group_has_all() -> None:
    @synchronized("invoice:{pk}")
    def pay(pk: int) -> None:
        pass

    for pk in range(5):
        pay(pk)
    with Lock("plain"), Semaphore("api", 1, key="k"):
        found = eventually(lambda: (s := figures(SITE)).in_use == 2 and s)
        assert {"plain", "api@k"} == {busy.key for busy in found.busiest}
    eventually(lambda: figures("invoice:{pk}").history.total.released == 5)
    eventually(lambda: figures(SITE).history.total.released == 7)
    eventually(lambda: {"invoice:{pk}", "api"} == set(groups()))
    assert 1 == len(groups(limit=1))


def test_statistics_of_many_groups_are_read_in_batches(raw: redis.Redis, monkeypatch: Any) -> None:
    monkeypatch.setattr("django_redis_sync.operators.statistics._BATCH", 2)
    assert [*"abcde"] == [one.name for one in statistics_of("abcde")]


def test_detached_lease_counts_as_in_use_after_its_adoption() -> None:
    lease = Semaphore("api", 1, key="k").acquire()
    eventually(lambda: figures().in_use == 1)
    handle = lease.detach(timeout=60)
    eventually(lambda: figures().in_use == 0)  # until its adoption, no process holds the lease
    adopted = Lease.from_handle(handle)
    eventually(lambda: figures().in_use == 1)
    adopted.release()
    eventually(lambda: figures().in_use == 0)


def test_gauge_of_a_killed_process_counts_until_it_expires(raw: redis.Redis) -> None:
    with Child("keyed", "api", "k") as child:
        assert ["waits"] == child.line()
        eventually(lambda: (figures().in_use, figures().waiting) == (1, 1), 15)
    assert 0 < raw.pttl(SHARES) <= statistics.LIFE * 1000
    (process,) = raw.hkeys(SHARES)
    gauge = raw.hget(SHARES, process).partition(b" ")[2]
    raw.hset(SHARES, process, b"1 " + gauge)  # an expiry in the past
    assert (0, 0, 0) == (figures().in_use, figures().waiting, figures().processes)
    with Semaphore("api", 1, key="other"):
        eventually(lambda: figures().in_use == 1)
        assert process not in raw.hkeys(SHARES)


def test_exiting_process_writes_its_counters_and_removes_its_gauge(raw: redis.Redis) -> None:
    with Child("brief_children", "api", 7) as child:
        assert ["done"] == child.line()
        child.process.wait(20)
    assert 7 == figures().history.total.released
    assert 0 == figures().in_use and not raw.exists(SHARES)


def test_nothing_is_written_when_stats_is_false(raw: redis.Redis) -> None:
    with override_settings(REDIS_SYNC={**settings.REDIS_SYNC, "STATS": False}):
        with Semaphore("api", 1, key="k"):
            time.sleep(0.5)
        assert not renewer("default").housekeeper.statistics.events
    assert not raw.exists(SHARES, SKETCH, COUNTS)


def test_many_acquires_of_many_keys_send_few_scripts_and_use_bounded_memory(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[Run] = []
    kind = type(server_of("default"))
    many = kind.many

    def record(self: Any, steps: Sequence[Run]) -> Any:
        writes.extend(step for step in steps if step.verb == "statistics")
        return many(self, steps)

    monkeypatch.setattr(kind, "many", record)
    held = Semaphore("api", 1, key="hog").acquire()
    start = time.monotonic()
    for n in range(3000):
        key = "hog" if n % 3 == 0 else f"key-{n}"
        lease = Semaphore("api", 1, key=key).acquire(blocking=False)
        if lease:
            lease.release()
    eventually(lambda: figures().history.total.rejected == 1000, 15)
    rounds = (time.monotonic() - start) / statistics.EVERY + 2
    assert len(writes) <= 2 * rounds  # for the policy and for the site
    assert "hog" == figures().rejected[0].key
    assert raw.hlen(SKETCH) <= 4 * CONSTANTS["TOP_KEYS"] + 2 * statistics.MOST_KEYS
    held.release()


def write_rejections(counts: Counter[str], rest: int = 0) -> None:
    """Write the rejections of each key, as a process does."""
    by_key = json.dumps({key: str(n) for key, n in counts.items()})
    argv = ("process", "", 30_000, "{}", "{}", by_key, rest, 60, 0)
    server_of("default").run(Run("statistics", (SHARES, SKETCH, COUNTS), argv, 5.0))


@pytest.mark.usefixtures("raw")
def test_counts_of_the_top_keys_are_within_the_stated_error(raw: redis.Redis) -> None:
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        raw.delete(SKETCH)
        rng, true = random.Random(seed), Counter[str]()
        for _ in range(rng.randint(1, 8)):
            # A few frequent keys, and many keys with one rejection each.
            keys = [f"hog-{rng.randint(0, 5)}" for _ in range(rng.randint(0, 300))]
            tail = [f"{rng.random()}" for _ in range(rng.randint(0, 900))]
            seen = Counter([*keys, *tail])
            true += seen
            *named, last = *seen.most_common(statistics.MOST_KEYS + 1), ("", 0)
            rest = named.pop()[1] if len(named) > statistics.MOST_KEYS else last[1]
            write_rejections(Counter(dict(named)), rest)
        hours = Counter(
            field.partition(b":k:")[0] for field in raw.hkeys(SKETCH) if b":k:" in field
        )
        assert max(hours.values(), default=0) <= CONSTANTS["TOP_KEYS"]
        found = figures()
        shown = {busy.key: busy.rejected for busy in found.rejected}
        for key, n in shown.items():
            assert n <= true[key] <= n + found.rejected_off
        missing = max((n for key, n in true.items() if key not in shown), default=0)
        assert missing <= found.rejected_off

    check()


def test_counts_of_keys_that_were_trimmed_are_within_the_stated_error(raw: redis.Redis) -> None:
    half = CONSTANTS["TOP_KEYS"] * 3 // 4
    for process in "ab":
        write_rejections(Counter({f"{process}{n}": 2 for n in range(half)}))
    assert len(raw.hgetall(SKETCH)) < 2 * half
    assert 2 == figures().rejected_off


def test_keys_of_old_hours_are_deleted(raw: redis.Redis) -> None:
    hour = raw.time()[0] // 3600
    raw.hset(SKETCH, mapping={f"{hour - 2}:k:old-{n}": 9 for n in range(5)})
    raw.hset(SKETCH, mapping={f"{hour - 1}:k:late": 5, "hour": hour - 1})
    write_rejections(Counter(new=1))
    assert [("late", 5), ("new", 1)] == [(busy.key, busy.rejected) for busy in figures().rejected]
    assert not [field for field in raw.hkeys(SKETCH) if b":k:old" in field]


def test_group_leaves_the_index_a_day_after_its_last_event(raw: redis.Redis) -> None:
    day_ago = (raw.time()[0] - 86_401) * 1000
    raw.zadd(groups_key(PREFIX), {"old": day_ago})
    with Semaphore("api", 1, key="k"):
        pass
    eventually(lambda: groups() == ["api"])


def test_gauge_of_a_long_hold_is_written_again_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "LIFE", 4.0)
    with Semaphore("api", 1, key="k"):
        eventually(lambda: figures().in_use == 1)
        time.sleep(1.5 * statistics.LIFE)
        assert figures().in_use == 1


def test_timed_out_waiter_counts_as_a_rejection_of_its_key() -> None:
    with Semaphore("api", 1, key="k"):
        assert Semaphore("api", 1, key="k").acquire(blocking_timeout=0.1) is None
    found = eventually(lambda: (s := figures()).history.total.timed_out and s)
    assert [("k", 1)] == [(busy.key, busy.rejected) for busy in found.rejected]


def test_quantile_is_an_upper_bound_of_at_most_twice_the_duration() -> None:
    began = time.monotonic()
    lease = Lock("plain").acquire()
    granted = time.monotonic()
    time.sleep(0.3)
    assert lease
    held = time.monotonic() - granted
    lease.release()
    most = time.monotonic() - began
    found = eventually(lambda: (s := figures(SITE)).history.total.released and s)
    assert held - 0.001 <= found.held.p50 <= 2 * most


def test_old_minutes_are_added_to_the_totals_and_all_keys_expire(raw: redis.Redis) -> None:
    minute = raw.time()[0] // 60
    raw.hset(COUNTS, mapping={f"{minute - 61}:n": 3, "tidied": minute - 1})
    write_rejections(Counter(a=1))
    assert (b"3", None) == (raw.hget(COUNTS, "total:n"), raw.hget(COUNTS, f"{minute - 61}:n"))
    assert min(raw.pttl(key) for key in (COUNTS, SKETCH)) > 0


def test_invalid_values_do_not_hide_valid_ones(raw: redis.Redis) -> None:
    write_rejections(Counter(a=1))
    raw.hset(
        SHARES, mapping={"x": "9999999999999 nonsense", "y": "no number", "z": "9999999999999 5"}
    )
    raw.hset(SKETCH, mapping={"nonsense": "x", "1:k": "y", "2:d:w9": "no number"})
    assert [("a", 1)] == [(b.key, b.rejected) for b in figures().rejected if b.rejected]
    assert 0 == figures().in_use


@both
async def test_policy_history_shows_the_highest_use_of_one_key(io: Any) -> None:
    for key, many in (("a", 1), ("b", 3), ("c", 2)):
        held = [await io.do(Semaphore("api", 3, key=key), "acquire") for _ in range(many)]
        for lease in held:
            await io.do(lease, "release")
    eventually(lambda: figures().history.total.released == 6)
    assert 3 == figures().history.total.peak


def test_policy_history_counts_the_permits_of_other_processes(raw: redis.Redis) -> None:
    keys = keys_of(PREFIX, "api", "k")
    for token in "ab":  # permits of other processes
        assert call("acquire", keys, token, how="try", limit=3).run_on(raw).startswith(b"ok")
    lease = Semaphore("api", 3, key="k").acquire(blocking=False)
    assert lease
    lease.release()
    eventually(lambda: figures().history.total.released == 1)
    assert 3 == figures().history.total.peak


@pytest.mark.parametrize(
    ("key", "read"),
    [
        (keys_of(PREFIX, "api").stats, lambda: histories([("api", None)])),
        (SHARES, figures),
        (SKETCH, figures),
        (COUNTS, figures),
        (groups_key(PREFIX), groups),
    ],
    ids=["history of a name", "gauges", "top keys", "counters", "groups"],
)
def test_foreign_value_in_statistics_is_named_by_its_key(
    key: str, read: Callable[[], Any], raw: redis.Redis
) -> None:
    raw.set(key, "foreign")
    with pytest.raises(ForeignValue, match=f"value is in {re.escape(key)}: WRONGTYPE"):
        read()


# The suggested limit


@pytest.mark.parametrize(
    ("rows", "limit"),
    [
        # Of 60 concurrent requests, 10 were admitted: more than 10 permits were needed.
        ([Counters(granted=10, rejected=50, released=10, held_seconds=10, peak=10)], 11),
        # In a minute without rejections, the use was higher: the limit was another one then.
        (
            [
                Counters(granted=20, released=20, held_seconds=2, peak=15),
                Counters(granted=20, rejected=5, released=20, held_seconds=2, peak=4),
            ],
            15,
        ),
    ],
)
def test_suggested_limit_is_an_estimate_when_the_limit_was_enforced(
    rows: list[Counters], limit: int
) -> None:
    assert (limit, True) == suggest(rows)


def test_suggested_limit_is_the_highest_use_when_all_were_admitted() -> None:
    shadow = Counters(granted=10, released=60, held_seconds=60, shadow_rejected=50, peak=60)
    assert (60, False) == suggest([shadow])
