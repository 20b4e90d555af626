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
from tests.behaviour.watching import View
from tests.celery_site.site import Site, kill, rabbitmq

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise(33),
    pytest.mark.skipif(redis.VERSION < (6, 1), reason="Celery on Redis needs redis-py 6.1"),
]
deep = pytest.mark.deep
HALF_SECOND = "for n in range({}): limited.delay(n, 0.5)"


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    pytest.importorskip("celery", reason="Celery is missing: pip install celery")
    with RedisServer() as broker:
        yield broker


@pytest.fixture
def site(broker: RedisServer, tmp_path: Path, clean_redis: None) -> Iterator[Site]:
    site = Site(broker.url, broker.url[:-1] + "1", tmp_path)
    yield site
    site.stop()


def kill_child(worker: Any) -> None:
    """Kill the first process in the pool of a worker."""
    path = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    os.kill(int(path.read_text().split()[0]), signal.SIGKILL)


def check_order(site: Site, jobs: int, displacement: int) -> None:
    """Check that each job began once, and job N as number N, plus or minus `displacement`."""
    begun = site.effects.jobs("begin")
    assert [*range(jobs)] == sorted(begun)
    moved = max(abs(place - job) for place, job in enumerate(begun))
    assert moved <= displacement, begun


# The marker `deep` makes this test run alone. On a busy machine, a job may be delivered too late,
# and lose its queue position.
@deep
def test_deferred_celery_tasks_run_about_in_order_while_workers_run_other_tasks(site: Site) -> None:
    site.send(f"{HALF_SECOND.format(16)}\nfor n in range(8): free.delay(n)")
    site.start()
    site.ended(range(16))
    check_order(site, 16, displacement=6)
    assert 2 == site.effects.most_at_once()
    # The unlimited tasks ("free") were sent last, but did not wait for the limited tasks.
    begins = [effect.word for effect in site.effects.all() if effect.word.startswith("begin")]
    assert begins.index("begin free") < 8


#: Code that sends tasks and waits for results, with the expected results.
RESULTS = [
    ("[r.get() for r in [limited.delay(n) for n in range(4)]]", [0, 1, 2, 3]),
    ("chain(limited.s(10), limited.s(0.1)).apply_async().get()", 10),
    ("chord(limited.si(n) for n in range(20, 24))(total.s()).get()", 20 + 21 + 22 + 23),
    ("[r.get() for r in [flaky.delay(n) for n in range(30, 33)]]", [30, 31, 32]),
    ("[r.get() for r in [of_tenant.delay(1, n) for n in range(40, 43)]]", [40, 41, 42]),
    ("limited.apply_async((61,), link=free.si(62)).get()", 61),
    ("limited.apply_async((63,), countdown=0.5).get()", 63),
    ("group(limited.s(n) for n in range(64, 67))().get()", [64, 65, 66]),
    ("replaced.delay(70).get()", 70),
    ("[direct(1), direct.run(2), direct.apply((3,)).get()]", [1, 2, 3]),
    ("limited.apply_async((50,), expires=60, priority=3, time_limit=30).get()", 50),
    ("with_helper.delay().get()[:44]", 'helper has on_full="retry" and is not the bo'),
]


def test_on_full_retry_works_with_retries_chains_chords_and_celery_options(site: Site) -> None:
    site.start()
    codes = [code.replace("get()", "get(timeout=60)") for code, _ in RESULTS]
    sends = f"from celery import *\nimport json\nprint(json.dumps([{', '.join(codes)}]))"
    assert [result for _, result in RESULTS] == json.loads(site.send(sends))
    assert 3 == site.effects.jobs("begin").count(30)
    assert 1 == site.effects.most_at_once(of_one_job=True)


@deep
def test_copies_of_a_celery_task_are_dropped_after_the_task_has_ended(site: Site, raw: Any) -> None:
    site.send("for n in range(3): limited.apply_async((n, 6), task_id='same')")
    site.start()
    stats = View(raw, "exports").keys.stats

    def dropped() -> int:
        return sum(int(n) for field, n in raw.hgetall(stats).items() if field.endswith(b":d"))

    site.until(lambda: dropped() == 2)
    assert 1 == len(site.effects.jobs("begin")) == len(site.effects.jobs("end"))


# During this test, the broker does not deliver the jobs of the killed worker again. It would do so
# after Celery's visibility timeout, which is one hour by default.
@deep
def test_jobs_of_a_killed_celery_worker_do_not_hold_up_later_jobs(site: Site) -> None:
    worker = site.start()
    site.send(HALF_SECOND.format(12))
    site.wait_for("begin", 2)
    kill(worker)
    site.start()
    site.send("for n in range(50, 54): limited.delay(n, 0.5)")
    site.ended(range(50, 54), 45)


@deep
def test_all_jobs_run_about_in_order_even_if_the_lock_database_is_flushed(
    site: Site, raw: Any
) -> None:
    site.send(HALF_SECOND.format(16))
    site.start()
    site.wait_for("end", 4)
    raw.flushdb()
    site.ended(range(16))
    check_order(site, 16, displacement=8)


@deep
def test_worker_keeps_the_limit_while_the_broker_is_down(site: Site, broker: RedisServer) -> None:
    site.send("for n in range(8): limited.delay(n, 1)")
    site.start()
    site.wait_for("begin", 2)
    broker.stop()
    time.sleep(4)
    broker.restart()
    site.send("pass")
    site.wait_for("end", 2, 30)
    assert site.effects.most_at_once() <= 2


@deep
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_thread_and_gevent_pools_keep_the_limit(site: Site, pool: str) -> None:
    site.send("for n in range(12): limited.delay(n, 0.3)")
    site.start(8, pool)
    site.ended(range(12))
    check_order(site, 12, displacement=12)
    assert 2 == site.effects.most_at_once()


@deep
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_no_celery_job_is_lost_with_rabbitmq_when_workers_are_killed(
    site: Site, tmp_path: Path, queue_type: str
) -> None:
    with rabbitmq(tmp_path) as address:
        site.environment["CELERY_SITE_BROKER"] = address
        site.environment["CELERY_SITE_CONF"] = json.dumps({"task_default_queue_type": queue_type})
        worker = site.start()
        site.send(HALF_SECOND.format(12))
        site.wait_for("begin", 4, 90)
        kill_child(worker)
        site.wait_for("begin", 6, 90)
        kill(worker)
        site.start()
        site.ended(range(12), 90)
