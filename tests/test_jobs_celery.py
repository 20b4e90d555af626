"""Celery tasks with on_full="retry", in real workers with Redis as their broker."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.servers import RedisServer
from tests.celery_site.site import Site, rabbitmq, site_with_redis

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise(33),
    pytest.mark.skipif(redis.VERSION < (6, 1), reason="Celery on Redis needs redis-py 6.1"),
]
deep = pytest.mark.deep


@pytest.fixture
def both(tmp_path: Path, clean_redis: None) -> Iterator[tuple[Site, RedisServer]]:
    with site_with_redis(tmp_path) as found:
        yield found


@pytest.fixture
def site(both: tuple[Site, RedisServer]) -> Site:
    return both[0]


def children(worker: Any) -> list[int]:
    """Return the process ids of a worker's pool."""
    path = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def displacement(begun: list[int]) -> list[int]:
    """Return by how many places each job began too early or too late."""
    return [abs(place - job) for place, job in enumerate(dict.fromkeys(begun))]


def test_full_tasks_keep_their_order_and_block_no_worker(site: Site) -> None:
    site.send("for n in range(16): limited.delay(n, 0.5)\nfor n in range(8): free.delay(n)")
    site.start(4)
    site.ended(range(16))
    begun = site.effects.jobs("begin")
    assert sorted(begun) == list(range(16))
    assert site.effects.most_at_once() == 2
    assert max(displacement(begun)) <= 6
    # The tasks without a limit ran beside the first limited tasks, although they were sent later.
    begins = [effect.word for effect in site.effects.all() if effect.word.startswith("begin")]
    assert begins.index("begin free") < 8


RESULTS = """
import json
from celery import chain, chord, group
got = {
    "retries": [r.get(timeout=40) for r in [limited.delay(n) for n in range(4)]],
    "chain": chain(limited.s(10), limited.s(0.1)).apply_async().get(timeout=40),
    "chord": chord(limited.si(n) for n in range(20, 24))(total.s()).get(timeout=40),
    "flaky": [r.get(timeout=60) for r in [flaky.delay(n) for n in range(30, 33)]],
    "max_retries=0": [r.get(timeout=40) for r in [of_tenant.delay(1, n) for n in range(40, 43)]],
    "helper": with_helper.delay().get(timeout=40),
    "link": limited.apply_async((61,), link=free.si(62)).get(timeout=40),
    "eta": limited.apply_async((63,), countdown=0.5).get(timeout=40),
    "group": group(limited.s(n) for n in range(64, 67))().get(timeout=40),
    "replace": replaced.delay(70).get(timeout=40),
    "direct": [direct(1), direct.run(2), direct.apply((3,)).get()],
    "options": limited.apply_async((50,), expires=60, priority=3, time_limit=30).get(timeout=40),
}
print(json.dumps(got))
"""


def test_retries_chains_chords_and_options_work_with_on_full_retry(site: Site) -> None:
    site.start(4)
    got = json.loads(site.send(RESULTS))
    assert got.pop("helper").startswith('helper has on_full="retry" and is not the body of a')
    assert got == {
        "retries": [0, 1, 2, 3],
        "chain": 10,
        "chord": 20 + 21 + 22 + 23,
        "flaky": [30, 31, 32],
        "max_retries=0": [40, 41, 42],
        "direct": [1, 2, 3],
        "link": 61,
        "eta": 63,
        "group": [64, 65, 66],
        "replace": 70,
        "options": 50,
    }
    assert site.effects.jobs("begin").count(30) == 3
    assert site.effects.beside_themselves() == []


@deep
def test_copies_of_a_running_task_are_deferred_and_dropped(site: Site, raw: redis.Redis) -> None:
    site.send("for n in range(3): limited.apply_async((n, 6), task_id='same')")
    site.start(4)
    (stats,) = [f"{os.environ['DJANGO_REDIS_SYNC_TEST_PREFIX']}:{{exports}}:stats"]

    def dropped() -> int:
        return sum(int(n) for field, n in raw.hgetall(stats).items() if field.endswith(b":d"))

    site.until(lambda: dropped() == 2)
    assert len(site.effects.jobs("begin")) == len(site.effects.jobs("end")) == 1


@deep
def test_killed_child_and_killed_worker_lose_no_job(both: tuple[Site, RedisServer]) -> None:
    site, _ = both
    site.environment["CELERY_SITE_CONF"] = json.dumps(
        {"broker_transport_options": {"visibility_timeout": 5}}
    )
    site.send("for n in range(12): limited.delay(n, 0.5)")
    first, second = site.start(3), site.start(3)
    site.until(lambda: len(site.effects.jobs("begin")) >= 2)
    os.kill(children(first)[0], signal.SIGKILL)
    site.until(lambda: len(site.effects.jobs("begin")) >= 5)
    os.killpg(second.pid, signal.SIGKILL)
    site.start(3)
    site.ended(range(12), 110)


@deep
def test_flush_of_the_lock_database_loses_no_job_and_keeps_the_order(
    site: Site, raw: redis.Redis
) -> None:
    site.send("for n in range(16): limited.delay(n, 0.5)")
    site.start(4)
    site.until(lambda: len(site.effects.jobs("end")) >= 4)
    raw.flushdb()
    site.ended(range(16))
    assert sorted(site.effects.jobs("begin")) == list(range(16))
    assert max(displacement(site.effects.jobs("begin"))) <= 8


@deep
def test_worker_keeps_the_limit_while_the_broker_is_down(both: tuple[Site, RedisServer]) -> None:
    site, broker = both
    site.send("for n in range(8): limited.delay(n, 1)")
    site.start(4)
    site.until(lambda: len(site.effects.jobs("begin")) >= 2)
    broker.stop()
    time.sleep(4)
    broker.restart()
    site.send("pass")
    site.until(lambda: len(site.effects.jobs("end")) >= 2, 30)
    assert site.effects.most_at_once() <= 2


@deep
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_thread_and_gevent_pools_keep_the_limit(site: Site, pool: str) -> None:
    site.send("for n in range(12): limited.delay(n, 0.3)")
    site.start(8, pool)
    site.ended(range(12))
    assert site.effects.most_at_once() == 2
    assert sorted(site.effects.jobs("begin")) == list(range(12))


@deep
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_rabbitmq_keeps_the_limit_and_loses_no_job(
    tmp_path: Path, clean_redis: None, queue_type: str
) -> None:
    with rabbitmq(tmp_path) as broker, RedisServer() as results:
        site = Site(broker, results.url, tmp_path, task_default_queue_type=queue_type)
        try:
            site.start(4)
            site.send("for n in range(12): limited.delay(n, 0.5)")
            site.until(lambda: len(site.effects.jobs("begin")) >= 4, 90)
            os.kill(children(site.workers[0])[0], signal.SIGKILL)
            site.ended(range(12), 90)
        finally:
            site.stop()
