"""Statistics over many names: counts, gauges, errors of estimates, and the cost."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from hypothesis import given
from hypothesis import strategies as st

from django_redis_sync import Lease, Lock, ReadWriteLock, Semaphore, synchronized
from django_redis_sync.engine import statistics
from django_redis_sync.exceptions import ForeignValue
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.statistics import SITE, Statistics, statistics_of
from tests.behaviour.both import MAX_WAIT, both, eventually
from tests.behaviour.child import Child
from tests.support import worker_processes
from tests.support.commands import locks
from tests.support.relays import CUT, Relay
from tests.support.renewers import fresh_renewer  # noqa: F401 - a fixture
from tests.support.workload import Call

pytestmark = pytest.mark.promise(22)

PREFIX = django_settings.PREFIX
SHARES, SKETCH, COUNTS = GROUP = tuple(
    f"{PREFIX}:{{api}}:{part}" for part in ("shares", "sketch", "sums")
)
#: The maximum number of keys whose rejections Redis counts separately in an hour. A process also
#: writes at most this number of keys at once.
TOP = 200
PAIR = 2**40


@pytest.fixture(autouse=True)
def quick(fresh_renewer: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Let processes write statistics ten times as often."""
    monkeypatch.setattr(statistics, "EVERY", 0.2)
    monkeypatch.setattr(statistics, "REWRITE_AFTER", 1.0)


def figures(group: str = "api", **options: Any) -> Statistics:
    (found,) = statistics_of([group], **options)
    return found


def write_rejections(raw: redis.Redis, counts: Counter[str], rest: int = 0, peak: int = 0) -> None:
    """Write rejections to Redis, as the housekeeping thread of a process does. `counts`: the number
    of rejections of each key. `rest`: each key that `counts` omits has at most this number. `peak`:
    the most permits in use at the same time."""
    said = {"process": "p", "entry": "", "life": 30_000, "rest": rest, "keep": 60, "peak": peak}
    said |= {"counts": "{}", "durations": "{}"}
    rejected = json.dumps({key: str(n) for key, n in counts.items()})
    Call("statistics", GROUP, {**said, "rejected": rejected}).run_on(raw)


# What is counted


@both
async def test_statistics_of_a_policy_are_the_sums_over_its_keys(io: Any) -> None:
    held = [
        await io.do(Semaphore("api", 2, key=key), "acquire", blocking_timeout=0.01)
        for key in ("a", "a", "a", "b", "b", "b", "b")
    ]
    leases = [lease for lease in held if lease]
    eventually(lambda: figures().history.total.timed_out == 3)
    found = eventually(lambda: (s := figures()).in_use == 4 and s)
    assert {("a", 2), ("b", 2)} == {(busy.key, busy.in_use) for busy in found.busiest}
    assert [("b", 2), ("a", 1)] == [(busy.key, busy.rejected) for busy in found.rejected]
    assert 0 == found.rejected_off
    for lease in leases:
        await io.do(lease, "release")
    found = eventually(lambda: (s := figures()).in_use == 0 and s.history.total.released == 4 and s)
    total = found.history.total
    assert (4, 0, 2) == (total.granted, total.lost, total.peak)
    assert 0 < found.held.p50 <= found.held.p95 < 60


def test_statistics_contain_current_waiters_and_the_durations_of_ended_waits() -> None:
    with ThreadPoolExecutor(2) as threads:
        lease = Semaphore("api", 1, key="k").acquire()
        assert Semaphore("api", 1, key="k").acquire(blocking_timeout=0.05) is None
        waits = [
            threads.submit(Semaphore("api", 1, key="k").acquire, True, MAX_WAIT) for _ in range(2)
        ]
        found = eventually(lambda: (s := figures()).waiting == 2 and s)
        assert [("k", 1, 2)] == [(b.key, b.in_use, b.waiting) for b in found.busiest]
        time.sleep(0.3)
        lease.release()
        for granted in as_completed(waits, timeout=20):
            granted.result().release()
    found = eventually(lambda: (s := figures()).history.total.waited == 2 and not s.waiting and s)
    total = found.history.total
    assert total.wait_seconds >= 0.6
    # The quantiles are rounded up, to at most twice the duration.
    assert total.wait_seconds / 4 <= found.waited.p50 <= 2 * total.wait_seconds
    assert 0.3 <= found.held.p95 <= 2 * total.held_seconds
    assert (1, [("k", 1)]) == (total.timed_out, [(b.key, b.rejected) for b in found.rejected])


def test_waiter_is_in_the_statistics_if_its_process_holds_nothing(raw: redis.Redis) -> None:
    locks("pause", "idle", "--create")
    with ThreadPoolExecutor(1) as threads:
        wait = threads.submit(Semaphore("idle", 1).acquire, True, MAX_WAIT)
        eventually(lambda: figures(SITE).waiting == 1)
        locks("resume", "idle")
        wait.result().release()
    eventually(lambda: figures(SITE).waiting == 0)


@both
async def test_permits_in_use_count_a_writer_once_and_each_reader_and_permit(io: Any) -> None:
    leases = [await io.do(ReadWriteLock("written").write, "acquire")]
    leases += [await io.do(ReadWriteLock("read").read, "acquire") for _ in range(2)]
    leases.append(await io.do(Semaphore("several", 5), "acquire", permits=3))
    expected = {"several": 3, "read": 2, "written": 1}
    eventually(lambda: {one.key: one.in_use for one in figures(SITE).busiest} == expected)
    assert 6 == figures(SITE).in_use
    for lease in leases:
        await io.do(lease, "release")
    eventually(lambda: figures(SITE).in_use == 0)


def test_names_of_one_template_are_added_up_in_the_statistics() -> None:
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


def test_detached_lease_counts_as_in_use_after_its_adoption() -> None:
    lease = Semaphore("api", 1, key="k").acquire()
    eventually(lambda: figures().in_use == 1)
    handle = lease.detach(timeout=60)
    eventually(lambda: figures().in_use == 0)  # no process holds a detached lease
    adopted = Lease.from_handle(handle)
    eventually(lambda: figures().in_use == 1)
    adopted.release()
    eventually(lambda: figures().in_use == 0)


def test_peak_includes_the_permits_of_other_processes(raw: redis.Redis, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "second": settings.CACHES["default"]}
    held = [Semaphore("api", 3, key="k", using="second").acquire() for _ in range(2)]
    Semaphore("api", 3, key="k").acquire().release()
    eventually(lambda: figures().history.total.released == 1)
    assert all(held) and 3 == figures().history.total.peak
    for written, highest in ((2, 3), (5, 5), (4, 5)):
        write_rejections(raw, Counter(), peak=written)
        assert highest == figures().history.total.peak, f"another process wrote {written}"


def test_peak_includes_the_permits_of_a_key_that_are_held_without_any_event(relay: Relay) -> None:
    """Otherwise, the peak of a later minute would be too low."""
    leases = [Semaphore("api", 2, key="k", using=relay.alias).acquire() for _ in range(2)]
    eventually(
        lambda: [
            one
            for one in relay.arguments("statistics")
            if (one["counts"], int(one["peak"])) == ("{}", 2)
        ]
    )
    assert all(leases)


# Gauges


def test_permits_of_a_killed_process_are_in_the_statistics_until_they_expire(
    raw: redis.Redis,
) -> None:
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


def test_process_that_exits_takes_its_waiters_out_of_the_statistics(raw: redis.Redis) -> None:
    locks("pause", "idle", "--create")
    code = (
        "import threading, django; django.setup()\n"
        "from django_redis_sync import Semaphore\n"
        "threading.Thread(target=Semaphore('idle', 1).acquire, daemon=True).start()\n"
        "while not Semaphore('idle', 1).status().waiting: pass\n"
        "print('waits')"
    )
    assert "waits\n" == worker_processes.run("-c", code).stdout
    found = figures(SITE)
    assert (0, 0) == (found.waiting, found.processes), "until LIFE has passed, it seems to wait"


def test_permit_that_is_held_for_long_stays_in_the_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "LIFE", 4.0)
    with Semaphore("api", 1, key="k"):
        eventually(lambda: figures().in_use == 1)
        time.sleep(1.5 * statistics.LIFE)
        assert figures().in_use == 1


def test_statistics_show_only_the_busiest_keys_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "LISTED", 1)
    for key, count in (("a", 5), ("b", 4), ("c", 1)):
        for _ in range(count):
            Semaphore("api", 9, key=key).acquire()
    leases = [Semaphore("api", 9, key=key).acquire() for key in "ab"]
    found = eventually(lambda: (s := figures()).in_use == len(leases) and s)
    assert 1 == len(found.busiest)


# Writing statistics, and failures


@pytest.mark.parametrize("reply", ["-LOADING soon", CUT], ids=str)
def test_statistics_that_could_not_be_written_are_written_later(relay: Relay, reply: Any) -> None:
    relay.answer("statistics", reply, times=4)
    with Semaphore("api", 2, key="k", using=relay.alias):
        eventually(lambda: figures(using=relay.alias).in_use == 1, 15)
    eventually(lambda: figures(using=relay.alias).history.total.released == 1)
    total = figures(using=relay.alias).history.total
    assert 1 == total.granted == total.released == total.peak
    gauges = [one["entry"] for one in relay.arguments("statistics") if one["entry"]]
    for *sums, named in map(json.loads, gauges):
        assert ([1, 0], [[1, 0]]) == (sums, [*named.values()]), "a retry doubles the gauge"


def test_statistics_are_not_written_when_stats_is_false(relay: Relay, settings: Any) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS": False}
    with Semaphore("api", 1, key="k", using=relay.alias):
        time.sleep(0.5)
    assert [] == relay.verbs("statistics")


def test_many_acquires_of_many_keys_send_few_scripts_and_use_bounded_memory(relay: Relay) -> None:
    held = Semaphore("api", 1, key="hog", using=relay.alias).acquire()
    start = time.monotonic()
    for n in range(3000):
        key = "hog" if n % 30 == 0 else f"key-{n}"
        lease = Semaphore("api", 1, key=key, using=relay.alias).acquire(blocking_timeout=0.01)
        if lease:
            lease.release()
    eventually(lambda: figures(using=relay.alias).history.total.timed_out == 100, 15)
    rounds = (time.monotonic() - start) / statistics.EVERY + 2
    # In each interval, the process runs one script for the policy, and one for all names together.
    assert len(relay.verbs("statistics")) <= 2 * rounds
    assert "hog" == figures(using=relay.alias).rejected[0].key
    assert relay.raw.hlen(SKETCH) <= 4 * TOP + 2 * statistics.MOST_KEYS
    held.release()


def test_number_of_policies_with_statistics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST_GROUPS", 3)
    for n in range(9):
        Semaphore(f"policy{n}", 1, key="k").acquire().release()
    eventually(lambda: figures(SITE).history.total.released == 9)
    counted = [n for n in range(9) if figures(f"policy{n}").history.total.released]
    assert 2 <= len(counted) < 9


@pytest.mark.parametrize("protocol", [2, 3])
def test_statistics_are_read_in_batches_with_resp2_and_resp3(
    relays: Any,
    protocol: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_redis_sync.operators.reads._BATCH", 2)
    (relay,) = relays(CONNECTION_POOL_KWARGS={"protocol": protocol})
    with Semaphore("e", 1, key="k", using=relay.alias):
        eventually(lambda: figures("e", using=relay.alias).in_use == 1)
    found = statistics_of("abcde", using=relay.alias)
    assert [*"abcde"] == [one.name for one in found]


# The most rejected keys


def test_rejections_of_the_top_keys_are_counted_within_the_stated_error(raw: redis.Redis) -> None:
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        raw.delete(SKETCH)
        rng, true = random.Random(seed), Counter[str]()
        for _ in range(rng.randint(1, 8)):
            # A few frequent keys, and many keys with one rejection each.
            seen = Counter(f"hog-{rng.randint(0, 5)}" for _ in range(rng.randint(0, 300)))
            seen.update(f"{rng.random()}" for _ in range(rng.randint(0, 900)))
            true += seen
            *named, last = *seen.most_common(TOP + 1), ("", 0)
            rest = named.pop()[1] if len(named) > TOP else last[1]
            write_rejections(raw, Counter(dict(named)), rest)
        hours = Counter(
            field.partition(b":k:")[0] for field in raw.hkeys(SKETCH) if b":k:" in field
        )
        assert max(hours.values(), default=0) <= TOP
        found = figures()
        shown = {busy.key: busy.rejected for busy in found.rejected}
        for key, n in shown.items():
            assert n <= true[key] <= n + found.rejected_off
        missing = max((n for key, n in true.items() if key not in shown), default=0)
        assert missing <= found.rejected_off

    check()


def test_rejection_statistics_of_old_hours_are_deleted(raw: redis.Redis) -> None:
    hour = raw.time()[0] // 3600
    raw.hset(SKETCH, mapping={f"{hour - 2}:k:old-{n}": 9 for n in range(5)})
    raw.hset(SKETCH, mapping={f"{hour - 1}:k:late": 5, f"{hour - 1}:k:new": 2})
    raw.hset(SKETCH, mapping={f"{hour - 1}:d:w3": 9, f"{hour}:d:w3": 1, f"{hour}:d:w10": 5})
    write_rejections(raw, Counter(new=1))
    found = figures()
    assert [("late", 5), ("new", 3)] == [(busy.key, busy.rejected) for busy in found.rejected]
    assert (0.008, 1.024) == (found.waited.p50, found.waited.p95), "of both hours together"
    assert not [field for field in raw.hkeys(SKETCH) if b":k:old" in field]


def test_old_minutes_of_each_counter_are_added_to_the_totals(raw: redis.Redis) -> None:
    minute = raw.time()[0] // 60
    counts = {letter: PAIR + 5 if letter in "wr" else 7 for letter in "gwrntcslbp"}
    old = {f"{minute - 61}:{letter}": count for letter, count in counts.items()}
    raw.hset(COUNTS, mapping={**old, "tidied": minute - 1})
    write_rejections(raw, Counter(a=1))
    totals = {letter: raw.hget(COUNTS, f"total:{letter}") for letter in counts}
    assert {**dict.fromkeys(counts, b"7"), "w": b"1", "r": b"1", "p": None} == totals
    assert [b"5"] * 2 == raw.hmget(COUNTS, "total:w:ms", "total:r:ms")
    assert not {field.encode() for field in old} & {*raw.hkeys(COUNTS)}
    assert min(raw.pttl(key) for key in (COUNTS, SKETCH)) > 0


def test_invalid_values_in_statistics_do_not_hide_valid_values(raw: redis.Redis) -> None:
    write_rejections(raw, Counter(a=1))
    raw.hset(
        SHARES, mapping={"x": "9999999999999 nonsense", "y": "no number", "z": "9999999999999 5"}
    )
    raw.hset(SKETCH, mapping={"nonsense": "x", "1:k": "y", "2:d:w9": "no number"})
    assert [("a", 1)] == [(b.key, b.rejected) for b in figures().rejected if b.rejected]
    assert 0 == figures().in_use
    gauges = [(2, 1, {"k": (2, 1)}), (1, 0, {"k": (1, 0), "other": (0, 3)})]
    raw.hset(SHARES, mapping={n: f"9999999999999 {json.dumps(g)}" for n, g in enumerate(gauges)})
    found = figures()
    assert (3, 1, 2) == (found.in_use, found.waiting, found.processes)
    assert [("k", 3, 1), ("other", 0, 3)] == [
        (busy.key, busy.in_use, busy.waiting) for busy in found.busiest
    ], "of both processes together"


def test_error_message_contains_the_redis_key_of_a_foreign_value_in_statistics(
    raw: redis.Redis,
) -> None:
    reads: dict[str, Any] = {f"{PREFIX}:{{api}}:stats": lambda: histories([("api", None)])}
    reads |= dict.fromkeys(GROUP, figures)
    for key, read in reads.items():
        raw.flushdb()
        raw.set(key, "foreign")
        with pytest.raises(ForeignValue, match=f"value is in {re.escape(key)}: WRONGTYPE"):
            read()
