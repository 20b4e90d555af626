"""The Prometheus collector: the samples of a scrape."""

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
    return parse(generate_latest(registry).decode())


def parse(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(found) == len(lines)  # Prometheus rejects duplicate samples
    return found


def test_scrape_over_http_shows_use_and_events() -> None:
    registry = CollectorRegistry()
    metrics.register(registry=registry)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with Semaphore("exports", 3), Semaphore("exports", 3, label="a"):
            assert Semaphore("exports", 3).acquire(blocking=False, permits=2) is None
            eventually(lambda: listed("exports"))
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            with urllib.request.urlopen(url) as reply:
                found = parse(reply.read().decode())
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


def test_keys_of_a_policy_are_summed_and_never_a_label() -> None:
    with Semaphore("api:*", 5, key="7311"), Semaphore("api:*", 5, key="7312"):
        eventually(lambda: listed("api:*@7311", "api:*@7312"))
        actions.pause("api:*")
        found = scrape()
    assert found['redis_sync_in_use{name="api:*"}'] == 2
    assert found['redis_sync_paused{name="api:*"}'] == 1
    assert not any("731" in line for line in found)
    # Keys expire, so a sum over the present keys is not a counter.
    assert not any(line.startswith("redis_sync_events_total") for line in found)


def test_names_option_selects_the_names_with_their_own_series() -> None:
    with Semaphore("invoice:1", 1), Semaphore("nightly", 1):
        eventually(lambda: listed("invoice:1", "nightly"))
        found = scrape(names=["night*"])
    assert found['redis_sync_in_use{name="nightly"}'] == 1
    assert not any("invoice" in line for line in found)
    assert (2, 1) == (found["redis_sync_names"], found["redis_sync_names_left_out"])


def test_plain_names_have_series_and_sums_by_default() -> None:
    """Alerts on held, lost, and paused names therefore also work for plain locks."""
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


def test_scrape_walks_the_name_registry_only_with_a_names_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[object] = []
    monkeypatch.setattr(metrics.Recent, "every", lambda self: reads.append(self) or [])
    scrape()
    assert not reads
    scrape(names=["exp*"])
    assert reads


def test_number_of_labels_is_bounded(raw: redis.Redis, settings: Any) -> None:
    raw.zadd(f"{settings.PREFIX}:names", {f"n{i}": i + 1 for i in range(1000)})
    shown = [line for line in scrape(names=["*"]) if line.startswith("redis_sync_in_use")]
    assert len(shown) == metrics.MAX_LABELS


#: Counts by event letter. For w and r, one stored number holds the count and the milliseconds.
COUNTED = {"g": 1, "w": 2, "n": 3, "s": 4, "t": 5, "r": 6, "c": 7, "l": 8, "b": 9}
COUNTED |= {"v": 10, "d": 11, "x": 12}
EVENTS = {"granted": 1, "waited": 2, "rejected": 3, "shadow_rejected": 4, "timed_out": 5}
EVENTS |= {"released": 6, "reclaimed": 7, "lost": 8, "share_rejected": 9}
EVENTS |= {"job_delivered": 10, "job_copy_dropped": 11, "job_place_expired": 12}


def write_counters(raw: redis.Redis, key: str) -> int:
    """Write COUNTED for the last whole minute, ten times COUNTED for the current minute, and a
    hundred times COUNTED for half an hour ago. Return the number of the current minute."""
    minute = int(raw.time()[0]) // 60
    fields = {}
    for ago, times in ((1, 1), (0, 10), (30, 100)):
        for letter, n in COUNTED.items():
            ms = {"w": 2500, "r": 7000}.get(letter, 0)
            value = (n * PAIR + ms if ms else n) * times
            fields[f"{minute - ago}:{letter}"] = value
    raw.hset(key, mapping={**fields, "tidied": minute})
    return minute


def scrape_with_counters(raw: redis.Redis, key: str, **options: Any) -> dict[str, float]:
    """Write counters to `key` and return a scrape of the same minute."""
    while True:
        minute = write_counters(raw, key)
        found = scrape(**options)
        if int(raw.time()[0]) // 60 == minute:
            return found


def shown(found: dict[str, float], family: str, label: str, name: str) -> dict[str, float]:
    start, end = f"redis_sync_{family}{{", f'name="{name}"'
    lines = {line: n for line, n in found.items() if line.startswith(start) and end in line}
    return {line.partition(f'{label}="')[2].partition('"')[0]: n for line, n in lines.items()}


def test_events_of_a_name_have_their_own_values(raw: redis.Redis, settings: Any) -> None:
    with Semaphore("exports", 3):
        eventually(lambda: listed("exports"))
        found = scrape_with_counters(raw, f"{settings.PREFIX}:{{exports}}:stats", names=["exp*"])
    assert EVENTS == shown(found, "last_minute", "event", "exports")
    total = {event: 111 * n for event, n in EVENTS.items()}
    assert total == shown(found, "events_total", "event", "exports")
    assert {"wait": 2.5, "held": 7.0} == shown(found, "last_minute_seconds", "what", "exports")
    total_seconds = {"wait": 277.5, "held": 777.0}
    assert total_seconds == shown(found, "seconds_total", "what", "exports")


def test_events_of_a_policy_are_the_sums_of_its_keys(raw: redis.Redis, settings: Any) -> None:
    with Semaphore("api:*", 5, key="7311"), Semaphore("api:*", 5):
        eventually(lambda: listed("api:*@7311"))
        shares, _, statistics = group_keys(settings.PREFIX, "api:*")
        raw.hset(shares, "p1", f"{int(raw.time()[0]) * 1000 + 60_000} [40,30,[0,0],{{}}]")
        found = scrape_with_counters(raw, statistics)
    assert EVENTS == shown(found, "last_minute", "event", "api:*")
    total = {event: 111 * n for event, n in EVENTS.items()}
    assert total == shown(found, "events_total", "event", "api:*")
    assert {"wait": 2.5, "held": 7.0} == shown(found, "last_minute_seconds", "what", "api:*")


def test_scrape_shows_limit_use_waiters_and_oldest_hold() -> None:
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


def test_oldest_hold_is_the_hold_of_the_oldest_holder() -> None:
    families = metrics._families()
    metrics._add_now(families, group(status(holders=tuple(holder(held=n) for n in (5, 500, 50)))))
    metrics._add_now(families, group(status()))
    assert [500, 0] == [sample.value for sample in families["oldest"].samples]


def test_scrape_shows_up_0_while_redis_is_down(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "dead": cache}
    assert scrape(using="dead") == {"redis_sync_up": 0}


def test_scrape_reads_only_its_alias(second: None, settings: Any) -> None:
    dead = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "default": dead}
    with Semaphore("exports", 3, using="other"), Semaphore("api", 5, key="7", using="other"):
        eventually(lambda: listed("exports", "api@7", using="other"))
        found = scrape(using="other")
        assert (1, 1) == (found['redis_sync_in_use{name="exports"}'], found["redis_sync_up"])
        assert (1, 2) == (found['redis_sync_in_use{name="api"}'], found["redis_sync_names"])
        assert 0 == scrape()["redis_sync_up"]


def test_register_does_not_read_redis_and_rejects_a_second_registration(settings: Any) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "dead": cache}
    registry = CollectorRegistry()
    metrics.register(registry=registry, using="dead")
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.register(registry=registry)


def test_help_texts_of_the_metrics_are_as_the_snapshot() -> None:
    families = metrics.SyncCollector().describe()
    as_written("metrics", [f"{each.type} {each.name}: {each.documentation}" for each in families])


def test_docstring_names_every_metric() -> None:
    for family in metrics.SyncCollector().describe():
        assert metrics.__doc__ is not None and family.name in metrics.__doc__
