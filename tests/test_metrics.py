"""The Prometheus collector: what a scrape shows, and what it never shows."""

import contextlib
import threading
import urllib.request
from typing import Any

import pytest
import redis

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from django_redis_sync import LeaseLost, Semaphore, metrics
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of
from django_redis_sync.protocol.keys import group_keys
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.snapshots import as_written
from tests.support.statuses import group, holder, status

pytestmark = pytest.mark.usefixtures("fresh_keeper")
PAIR = CONSTANTS["PAIR"]


@pytest.fixture(autouse=True)
def semaphores(settings: Any) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "SEMAPHORES": {"exports": {"limit": 3}},
        "ENDPOINTS": {"api:*": {"limit": 5, "key": "user"}},
    }


def scrape(**options: Any) -> dict[str, float]:
    registry = CollectorRegistry()
    metrics.register(registry=registry, **options)
    return parsed(generate_latest(registry).decode())


def parsed(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(found) == len(lines)  # Prometheus refuses a sample that stands there twice
    return found


def test_a_real_scrape_shows_use_and_events() -> None:
    registry = CollectorRegistry()
    metrics.register(registry=registry)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with Semaphore("exports", 3), Semaphore("exports", 3, label="a"):
            assert Semaphore("exports", 3).acquire(blocking=False, permits=2) is None
            eventually(lambda: listed("exports"))
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            with urllib.request.urlopen(url) as reply:
                found = parsed(reply.read().decode())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert found["redis_sync_up"] == 1
    assert found["redis_sync_names"] == 1
    assert found['redis_sync_limit{name="exports"}'] == 3
    assert found['redis_sync_in_use{name="exports"}'] == 2
    assert found['redis_sync_waiting{name="exports"}'] == 0
    assert found['redis_sync_paused{name="exports"}'] == 0
    assert 0 < found['redis_sync_oldest_hold_seconds{name="exports"}'] < 60
    assert found['redis_sync_events_total{event="granted",name="exports"}'] == 2
    assert found['redis_sync_events_total{event="rejected",name="exports"}'] == 1
    assert found['redis_sync_seconds_total{name="exports",what="held"}'] == 0
    assert 'redis_sync_last_minute{event="granted",name="exports"}' in found


def test_children_are_summed_and_no_key_is_ever_a_label() -> None:
    with Semaphore("api:*", 5, key="7311"), Semaphore("api:*", 5, key="7312"):
        eventually(lambda: listed("api:*@7311", "api:*@7312"))
        actions.pause("api:*")
        found = scrape()
    assert found['redis_sync_in_use{name="api:*"}'] == 2
    assert found['redis_sync_paused{name="api:*"}'] == 1
    assert not any("731" in line for line in found)
    # Children come and go: their sum is no counter.
    assert not any(line.startswith("redis_sync_events_total") for line in found)


def test_names_select_the_names_with_series_of_their_own() -> None:
    with Semaphore("invoice:1", 1), Semaphore("nightly", 1):
        eventually(lambda: listed("invoice:1", "nightly"))
        found = scrape(names=["night*"])
    assert found['redis_sync_in_use{name="nightly"}'] == 1
    assert not any("invoice" in line for line in found)
    assert (2, 1) == (found["redis_sync_names"], found["redis_sync_names_left_out"])


def test_plain_names_have_series_and_sums_by_default() -> None:
    """So that alerts on what is held, lost or paused fire for a plain lock."""
    with Semaphore("nightly", 1, raise_on_release_error=False) as lease:
        eventually(lambda: listed("nightly"))
        actions.pause("nightly")
        actions.clear(status_of("nightly"), [lease.token])
        with contextlib.suppress(LeaseLost):
            lease.renew()
        eventually(lambda: scrape()['redis_sync_all_events_total{event="lost"}'] == 1)
        found = scrape()
    assert found['redis_sync_paused{name="nightly"}'] == 1 == found["redis_sync_all_paused"]
    assert found['redis_sync_events_total{event="lost",name="nightly"}'] >= 0
    with Semaphore("other", 2):
        eventually(lambda: scrape()["redis_sync_all_in_use"] == 1)
        assert scrape()["redis_sync_all_oldest_hold_seconds"] > 0


def test_the_registry_is_gone_through_only_for_names_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walks: list[object] = []
    monkeypatch.setattr(metrics.Recent, "every", lambda self: walks.append(self) or [])
    scrape()
    assert not walks
    scrape(names=["exp*"])
    assert walks


def test_labels_are_bounded(raw: redis.Redis, settings: Any) -> None:
    raw.zadd(f"{settings.PREFIX}:names", {f"n{i}": i + 1 for i in range(1000)})
    shown = [line for line in scrape(names=["*"]) if line.startswith("redis_sync_in_use")]
    assert len(shown) == metrics.MAX_LABELS


#: What the verbs count, by their letter; of w and r a count and its milliseconds share a number.
COUNTED = {"g": 1, "w": 2, "n": 3, "s": 4, "t": 5, "r": 6, "c": 7, "l": 8, "b": 9}
COUNTED |= {"v": 10, "d": 11, "x": 12}
EVENTS = {"granted": 1, "waited": 2, "rejected": 3, "shadow_rejected": 4, "timed_out": 5}
EVENTS |= {"released": 6, "reclaimed": 7, "lost": 8, "share_rejected": 9}
EVENTS |= {"job_delivered": 10, "job_copy_dropped": 11, "job_place_expired": 12}


def plant(raw: redis.Redis, key: str) -> int:
    """Has counted COUNTED in the last whole minute, ten times as much in this one, a hundred times
    before; returns the minute."""
    minute = int(raw.time()[0]) // 60
    fields = {}
    for ago, times in ((1, 1), (0, 10), (30, 100)):
        for letter, n in COUNTED.items():
            ms = {"w": 2500, "r": 7000}.get(letter, 0)
            value = (n * PAIR + ms if ms else n) * times
            fields[f"{minute - ago}:{letter}"] = value
    raw.hset(key, mapping={**fields, "tidied": minute})
    return minute


def scraped(raw: redis.Redis, key: str, **options: Any) -> dict[str, float]:
    """A scrape of counters planted there, within a single minute."""
    while True:
        minute = plant(raw, key)
        found = scrape(**options)
        if int(raw.time()[0]) // 60 == minute:
            return found


def shown(found: dict[str, float], family: str, label: str, name: str) -> dict[str, float]:
    start, end = f"redis_sync_{family}{{", f'name="{name}"'
    lines = {line: n for line, n in found.items() if line.startswith(start) and end in line}
    return {line.partition(f'{label}="')[2].partition('"')[0]: n for line, n in lines.items()}


def test_each_event_of_a_name_has_its_own_value(raw: redis.Redis, settings: Any) -> None:
    with Semaphore("exports", 3):
        eventually(lambda: listed("exports"))
        found = scraped(raw, f"{settings.PREFIX}:{{exports}}:stats", names=["exp*"])
    assert EVENTS == shown(found, "last_minute", "event", "exports")
    ever = {event: 111 * n for event, n in EVENTS.items()}
    assert ever == shown(found, "events_total", "event", "exports")
    assert {"wait": 2.5, "held": 7.0} == shown(found, "last_minute_seconds", "what", "exports")
    ever = {"wait": 277.5, "held": 777.0}
    assert ever == shown(found, "seconds_total", "what", "exports")


def test_the_events_of_a_policy_are_its_sums(raw: redis.Redis, settings: Any) -> None:
    with Semaphore("api:*", 5, key="7311"), Semaphore("api:*", 5):
        eventually(lambda: listed("api:*@7311"))
        shares, _, statistics = group_keys(settings.PREFIX, "api:*")
        raw.hset(shares, "p1", f"{int(raw.time()[0]) * 1000 + 60_000} [40,30,[0,0],{{}}]")
        found = scraped(raw, statistics)
    assert EVENTS == shown(found, "last_minute", "event", "api:*")
    ever = {event: 111 * n for event, n in EVENTS.items()}
    assert ever == shown(found, "events_total", "event", "api:*")
    assert {"wait": 2.5, "held": 7.0} == shown(found, "last_minute_seconds", "what", "api:*")


def test_the_present_of_a_name_is_told_apart() -> None:
    with Semaphore("exports", 3) as older, Semaphore("exports", 3):
        waiter = threading.Thread(target=wait_for_three)
        waiter.start()
        eventually(lambda: listed("exports") and status_of("exports").waiting)
        found = scrape()
        since = (older.acquired_at, status_of("exports").at)
    waiter.join()
    assert 3 == found['redis_sync_limit{name="exports"}']
    assert 2 == found['redis_sync_in_use{name="exports"}']
    assert 1 == found['redis_sync_waiting{name="exports"}']
    assert 1 == found["redis_sync_names"]
    assert 0 < found['redis_sync_oldest_hold_seconds{name="exports"}']
    assert (
        found['redis_sync_oldest_hold_seconds{name="exports"}']
        <= (since[1] - since[0]).total_seconds()
    )


def wait_for_three() -> None:
    lease = Semaphore("exports", 3).acquire(blocking_timeout=20, permits=3)
    assert lease
    lease.release()


def test_the_oldest_hold_is_that_of_the_oldest_holder() -> None:
    families = metrics._families()
    metrics._add_now(families, group(status(holders=tuple(holder(held=n) for n in (5, 500, 50)))))
    metrics._add_now(families, group(status()))
    assert [500, 0] == [sample.value for sample in families["oldest"].samples]


def test_redis_down_is_a_value_and_no_error(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "dead": cache}
    assert scrape(using="dead") == {"redis_sync_up": 0}


def test_redis_is_read_when_it_is_scraped_and_not_before(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "dead": cache}
    registry = CollectorRegistry()
    metrics.register(registry=registry, using="dead")
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.register(registry=registry)


def test_the_metrics_explain_themselves_in_these_words() -> None:
    families = metrics.SyncCollector().describe()
    said = [f"{one.type} {one.name}: {one.documentation}" for one in families]
    as_written("metrics", said)


def test_the_docstring_names_every_metric() -> None:
    for family in metrics.SyncCollector().describe():
        assert metrics.__doc__ is not None and family.name in metrics.__doc__
