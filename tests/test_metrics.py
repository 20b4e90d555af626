"""The samples that the Prometheus collector returns for a scrape."""

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest

from django_redis_sync import LeaseLost, Semaphore, metrics, synchronized
from django_redis_sync.engine import indexes
from tests.behaviour.both import MAX_WAIT, eventually
from tests.support import worker_processes
from tests.support.operators import dead_cache, locks  # noqa: F401 - a fixture
from tests.support.relays import Relay
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture
from tests.support.snapshots import as_written

pytestmark = pytest.mark.usefixtures("fresh_renewer", "dead")
#: Redis stores a count and a sum of milliseconds as one number: count * PAIR + milliseconds.
PAIR = 2**40


@pytest.fixture(autouse=True)
def semaphores(settings: Any) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "SEMAPHORES": {"exports": {"limit": 3}},
        "ENDPOINTS": {"api:*": {"limit": 5, "key": "user"}},
    }


def scrape(**options: Any) -> dict[str, float]:
    """Collect the metrics. Return the value of each sample by its name and labels."""
    registry = CollectorRegistry()
    metrics.register(registry=registry, **options)
    lines = [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(found) == len(lines), "Prometheus rejects duplicate samples"
    return found


def test_metrics_of_a_semaphore_show_its_limit_its_holders_and_its_waiters(
    raw: redis.Redis,
) -> None:
    def now() -> float:
        return float(".".join(f"{part:06d}" for part in raw.time()))

    waiter = threading.Thread(target=Semaphore("exports", 3, timeout=1).acquire)
    with Semaphore("exports", 3) as older, Semaphore("exports", 3), Semaphore("exports", 3):
        assert Semaphore("exports", 3).acquire(blocking_timeout=0.01, permits=2) is None
        waiter.start()
        eventually(lambda: listed("exports") and Semaphore("exports", 3).status().waiting)
        eventually(lambda: scrape()["redis_sync_all_waiting"] == 1)
        start, found, end = now(), scrape(), now()
    waiter.join()
    here = '{name="exports"}'
    counts = ("up", "names", "names_left_out", "all_in_use", "all_waiting", "all_paused")
    assert [1, 1, 0, 3, 1, 0] == [found[f"redis_sync_{name}"] for name in counts]
    counts = ("limit", "in_use", "waiting", "paused")
    assert [3, 3, 1, 0] == [found[f"redis_sync_{name}{here}"] for name in counts]
    since = older.acquired_at.timestamp()
    for name in ("all_oldest_hold_seconds", f"oldest_hold_seconds{here}"):
        assert start - since - 0.001 <= found[f"redis_sync_{name}"] <= end - since + 0.001, name
    for name in ("all_longest_wait_seconds", f"longest_wait_seconds{here}"):
        assert 0 < found[f"redis_sync_{name}"] < end - since, name
    events = [
        found[f'redis_sync_events_total{{event="{event}",name="exports"}}'] for event in EVENTS
    ]
    assert [3, 0, 0, 0, 1, 0, 0] == events[:7]


def test_metrics_of_a_name_with_a_rate_show_what_is_used_and_when_the_next_permit_comes() -> None:
    with Semaphore("exports", 3), Semaphore("mails", rate="2/h"), Semaphore("mails", rate="2/h"):
        for key in ("7310", "7311", "7311", "7311", "7312"):
            with Semaphore("api:*", 5, key=key, rate="4/h"):
                pass
        eventually(lambda: listed("exports", "mails", *(f"api:*@731{n}" for n in range(3))))
        found = scrape()
    names = ("rate_permits", "rate_used", "rate_opens_seconds")
    permits, used, opens = (found[f'redis_sync_{name}{{name="mails"}}'] for name in names)
    assert (2, 2) == (permits, used) and 3000 < opens <= 3600
    assert [4, 3, 0] == [found[f'redis_sync_{name}{{name="api:*"}}'] for name in names]
    assert not any("rate_" in line and "exports" in line and "{name=" in line for line in found)


def test_metric_labels_contain_the_name_of_a_policy_but_none_of_its_keys() -> None:
    with Semaphore("api:*", 5, key="7311"), Semaphore("api:*", 5, key="7312"):
        eventually(lambda: listed("api:*@7311", "api:*@7312"))
        locks("pause", "api:*")
        found = scrape()
    shown = [found[f'redis_sync_{what}{{name="api:*"}}'] for what in ("in_use", "limit", "paused")]
    assert [2, 5, 1] == shown
    assert not any("731" in line for line in found)
    # There are no counters: a sum over the keys would fall when the statistics of a key expire.
    assert not any(line.startswith("redis_sync_events_total") for line in found)


def test_only_names_that_match_the_given_globs_get_metrics_of_their_own(
    raw: redis.Redis, settings: Any
) -> None:
    with Semaphore("invoice:1", 1), Semaphore("nightly", 1):
        eventually(lambda: listed("invoice:1", "nightly"))
        found, by_default = scrape(names=["night*"]), scrape()
    assert 1 == found['redis_sync_in_use{name="nightly"}']
    assert not any("invoice" in line for line in found)
    assert (2, 1) == (found["redis_sync_names"], found["redis_sync_names_left_out"])
    assert (2, 0) == (by_default["redis_sync_names"], by_default["redis_sync_names_left_out"])
    raw.zadd(f"{settings.PREFIX}:names", {f"n{i}": i + 1 for i in range(1000)})
    for options in ({}, {"names": ["*"]}):
        found = scrape(**options)
        assert metrics.MAX_LABELS == sum(line.startswith("redis_sync_in_use{") for line in found)
        assert 1002 == found["redis_sync_names"]
        assert 900 <= found["redis_sync_names_left_out"] <= 904


@pytest.mark.promise(29)
def test_globs_of_metrics_must_be_a_list() -> None:
    """A str is a list of its characters. One of them is often "*", which matches each name."""
    with pytest.raises(TypeError, match=r"such as \['exp\*'\], not 'exp\*'"):
        metrics.register(registry=CollectorRegistry(), names="exp*")


def test_each_name_without_a_policy_has_metrics_of_its_own_by_default() -> None:
    """Because of these series, alerts on lost leases and paused names also work for locks."""
    with Semaphore("nightly", 1, raise_on_release_error=False) as lease:
        eventually(lambda: listed("nightly"))
        locks("pause", "nightly")
        locks("clear", "nightly", "--no-input")
        with contextlib.suppress(LeaseLost):
            lease.renew()
        eventually(lambda: scrape()['redis_sync_all_events_total{event="lost"}'] == 1)
        found = scrape()
    assert 1 == found['redis_sync_paused{name="nightly"}'] == found["redis_sync_all_paused"]


#: EVENTS: the count of each event. STORED: the same counts, by the letter of the event in Redis.
EVENTS = {"granted": 1, "waited": 2, "rejected": 3, "shadow_rejected": 4, "timed_out": 5}
EVENTS |= {"released": 6, "reclaimed": 7, "lost": 8, "share_rejected": 9}
STORED = dict(zip("gwnstrclb", EVENTS.values(), strict=True))
STORED |= {"w": 2 * PAIR + 2500, "r": 6 * PAIR + 7000}


@pytest.mark.parametrize(
    ("name", "key", "stored"), [("exports", None, "stats"), ("api:*", "7311", "sums")]
)
def test_counters_in_redis_become_event_metrics_of_a_name_or_a_policy(
    raw: redis.Redis, settings: Any, name: str, key: str | None, stored: str
) -> None:
    """`stored`: the last part of the Redis key of the counters. The test writes the counts of
    STORED for the previous minute, 10 times as many for this minute, and 100 times as many for half
    an hour ago."""
    with Semaphore(name, 3, key=key):
        eventually(lambda: listed(f"{name}@{key}" if key else name))
        minute, hash_key = 0, f"{settings.PREFIX}:{{{name}}}:{stored}"
        while minute != int(raw.time()[0]) // 60:
            minute = int(raw.time()[0]) // 60
            for ago, times in ((1, 1), (0, 10), (30, 100)):
                each = {f"{minute - ago}:{letter}": n * times for letter, n in STORED.items()}
                raw.hset(hash_key, mapping={**each, "tidied": minute})
            found = scrape(names=["exp*"])
    seconds = {"wait": 2.5, "held": 7.0}
    for family, times in (("last_minute", 1), ("events_total", 111)):
        for event, n in EVENTS.items():
            line = f'redis_sync_{family}{{event="{event}",name="{name}"}}'
            assert (line, times * n) == (line, found[line])
    for family, times in (("last_minute_seconds", 1), ("seconds_total", 111)):
        for what, n in seconds.items():
            line = f'redis_sync_{family}{{name="{name}",what="{what}"}}'
            assert (line, times * n) == (line, found[line])


def test_events_of_a_policy_without_statistics_are_the_sums_over_its_keys(
    raw: redis.Redis, settings: Any
) -> None:
    """Its statistics are missing if Redis has lost them, for example."""
    line = 'redis_sync_last_minute{event="rejected",name="api:*"}'

    def rejected() -> float | None:
        minute = int(raw.time()[0]) // 60
        for key, n in (("7311", 2), ("7312", 3)):
            name = f"{settings.PREFIX}:{{api:*@{key}}}:stats"
            raw.hset(name, mapping={f"{minute - 1}:n": n, "tidied": minute})
        raw.delete(*(f"{settings.PREFIX}:{{api:*}}:{part}" for part in ("shares", "sums")))
        return scrape().get(line)

    with Semaphore("api:*", 5, key="7311"), Semaphore("api:*", 5, key="7312"):
        eventually(lambda: listed("api:*@7311", "api:*@7312"))
        eventually(lambda: rejected() == 5)


def test_names_of_a_family_count_once_and_the_family_does_not() -> None:
    @synchronized("webhook:{number}")
    def webhook(number: int) -> None:
        pass

    for number in range(3):
        webhook(number)
    with Semaphore("nightly", 1):
        eventually(lambda: listed("nightly", "webhook:2"))
        found = scrape()
    assert (4, 0) == (found["redis_sync_names"], found["redis_sync_names_left_out"])


def test_name_of_a_family_has_series_of_its_own_while_it_is_waited_for_or_held_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for index in (indexes.WaiterIndex, indexes.HolderIndex):
        monkeypatch.setattr(index, "interval", 0.1)
    monkeypatch.setattr(metrics, "LONG", 0.0)
    ends = threading.Event()

    @synchronized("webhook:{number}")
    def webhook(number: int) -> None:
        ends.wait(MAX_WAIT)

    def own() -> list[float | None]:
        found = scrape()
        return [
            found.get(f'redis_sync_{what}{{name="webhook:7"}}') for what in ("in_use", "waiting")
        ]

    locks("pause", "webhook:7", "--create")
    thread = threading.Thread(target=webhook, args=(7,))
    thread.start()
    eventually(lambda: own() == [0, 1])
    locks("resume", "webhook:7")
    eventually(lambda: own() == [1, 0])
    monkeypatch.setattr(metrics, "LONG", 1e6)
    assert [None, None] == own(), "the hold is short"
    ends.set()
    thread.join()


def test_metrics_of_another_cache_are_those_of_its_names_only(relay: Relay) -> None:
    def in_use(using: str | None) -> list[float | None]:
        found = scrape(using=using)
        return [found[f"redis_sync_{what}"] for what in ("all_in_use", 'in_use{name="exports"}')]

    alias = relay.alias
    leases = [Semaphore("exports", 3, using=using).acquire() for using in (None, None, alias)]
    eventually(lambda: listed("exports") and listed("exports", using=alias))
    eventually(lambda: in_use(None) == [2, 2])
    eventually(lambda: in_use(alias) == [1, 1])
    for lease in leases:
        lease.release()


def test_up_metric_is_0_while_redis_is_down() -> None:
    assert {"redis_sync_up": 0} == scrape(using="dead")


def test_metrics_collector_can_be_registered_while_redis_is_down() -> None:
    registry = CollectorRegistry()
    assert isinstance(metrics.register(registry=registry, using="dead"), metrics.SyncCollector)
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.register(registry=registry)


def test_help_texts_of_the_metrics_match_the_snapshot() -> None:
    families = [*metrics.SyncCollector().describe()]
    as_written("metrics", [f"{each.type} {each.name}: {each.documentation}" for each in families])
    assert metrics.__doc__ is not None
    assert [] == [each.name for each in families if each.name not in metrics.__doc__]


MULTIPROCESS = """
import logging, sys
import django
django.setup()
from prometheus_client import CollectorRegistry, Counter, generate_latest, multiprocess
from django_redis_sync import metrics

metrics.register()
Counter("own", "A metric of the project.").inc()
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print("own_total" in generate_latest(registry).decode())
print("redis_sync_up" in generate_latest(registry).decode())
metrics.register(registry=registry)
print("own_total" in generate_latest(registry).decode())
print("redis_sync_up 1.0" in generate_latest(registry).decode())
"""


@pytest.mark.parametrize("multiprocess", [True, False])
def test_metrics_in_multiprocess_mode_warn_and_can_be_shown_by_the_page_of_the_project(
    multiprocess: bool, tmp_path: Path, clean_redis: None
) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    environment |= {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)} if multiprocess else {}
    code = MULTIPROCESS if multiprocess else MULTIPROCESS.partition("Counter(")[0]
    done = worker_processes.run("-c", code, env=environment)
    assert 0 == done.returncode, done.stderr
    assert multiprocess == ("metrics.register(registry=...)" in done.stderr)
    assert ["True", "False", "True", "True"][: 4 * multiprocess] == done.stdout.split()
