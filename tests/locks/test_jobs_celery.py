"""Celery tasks with on_full="hold", in real workers with Redis as their broker."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.servers import RedisServer
from django_redis_sync import Semaphore
from tests.celery_site.site import Site, kill, rabbitmq
from tests.support.operators import as_json, locks

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


def shown(name: str) -> Any:
    """Run `locks status NAME --format json`, and return the entry of the name."""
    (found,) = as_json("status", name)["names"]
    return found


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


def unacknowledged(broker: RedisServer) -> int:
    """Return the number of messages that the broker has, delivered or not."""
    client = redis.Redis.from_url(broker.url)
    return int(client.llen("celery")) + int(client.hlen("unacked"))


def configure(site: Site, **conf: Any) -> None:
    """Set Celery's configuration for the workers that start from now on."""
    site.environment["CELERY_SITE_CONF"] = json.dumps(conf)


def impatient(seconds: float) -> dict[str, Any]:
    """Return a configuration with which a Redis broker delivers a message again after `seconds`."""
    options = {"visibility_timeout": seconds}
    options |= {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    return {"broker_transport_options": options}


# The order, and other tasks


# The marker `deep` makes this test run alone, because a busy machine can change the order.
@deep
def test_held_celery_tasks_run_in_order_while_the_worker_runs_other_tasks(site: Site) -> None:
    site.send(f"{HALF_SECOND.format(16)}\nfor n in range(8): free.delay(n)")
    site.start()
    site.ended(range(16))
    check_order(site, 16, displacement=4)
    assert 2 == site.effects.most_at_once()
    # The unlimited tasks ("free") were sent last, but did not wait for the limited tasks.
    begins = [effect.word for effect in site.effects.all() if effect.word.startswith("begin")]
    assert begins.index("begin free") < 8


def test_worker_that_holds_a_backlog_runs_other_tasks(site: Site) -> None:
    site.start()
    with Semaphore("exports", 2).acquire(permits=2):
        site.send("for n in range(100): limited.delay(n)\nfree.delay(7).get(timeout=200)")
        assert [] == site.effects.jobs("begin")
        site.until(lambda: 100 == shown("exports")["waiting"] == waiting_somewhere("exports"))
        page = locks("status", "exports")
        assert re.search(r" limited\[\w{8}\]$", page, re.MULTILINE)
        assert re.search(r"^Celery worker w0@\S+ holds \d\d more\.$", page, re.MULTILINE)
    site.ended(range(100))
    assert 2 == site.effects.most_at_once()
    assert 1 == site.effects.most_at_once(of_one_job=True)


def waiting_somewhere(name: str) -> int:
    """Return the number of listed waiters and of the jobs that workers hold."""
    found = shown(name)
    return len(found["waiters"]) + sum(worker["jobs"] for worker in found["workers"])


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
    ("with_helper.delay().get()[:44]", 'helper has on_full="hold" and is not the bod'),
]


def test_on_full_hold_works_with_retries_chains_chords_and_celery_options(site: Site) -> None:
    site.start()
    codes = [code.replace("get()", "get(timeout=200)") for code, _ in RESULTS]
    sends = f"from celery import *\nimport json\nprint(json.dumps([{', '.join(codes)}]))"
    assert [result for _, result in RESULTS] == json.loads(site.send(sends))
    assert 3 == site.effects.jobs("begin").count(30)
    assert 1 == site.effects.most_at_once(of_one_job=True)


#: Code that ends the wait of three tasks, one after the other, each in another way.
ENDINGS = """
from celery.exceptions import TaskRevokedError
from tests.celery_site.site import clear_waiters, no_longer_waiting, waiting
for how, options in [("expires", {"expires": 2}), ("revoke", {}), ("clear", {})]:
    result = limited.apply_async((1,), **options)
    if how == "clear":
        clear_waiters("exports")
    elif how == "revoke":
        waiting("exports")
        app.control.revoke(result.id)
    try:
        result.get(timeout=80)
    except TaskRevokedError as error:
        no_longer_waiting("exports")
        print(how)
"""


def test_wait_of_a_held_task_can_be_ended(site: Site, broker: RedisServer) -> None:
    site.start()
    with Semaphore("exports", 2).acquire(permits=2):
        assert ["expires", "revoke", "clear"] == site.send(ENDINGS).split()
        site.until(lambda: unacknowledged(broker) == 0)
        site.until(lambda: 0 == shown("exports")["waiting"])
    site.send("limited.delay(2).get(timeout=200)")
    assert [2] == site.effects.jobs("begin")


@pytest.mark.promise(35)
def test_held_tasks_with_a_rate_all_run_and_never_too_many_in_a_period(site: Site) -> None:
    mails = Semaphore("mails", 1, rate="4/s")
    mails.cool_down(300)
    site.start(processes=1)
    site.send("for n in range(12): mail.delay(n)\nfree.delay(7)")
    site.wait_for("begin free", 1)  # the tasks don't wait in the only process
    site.until(lambda: 12 == shown("mails")["waiting"])
    assert [] == site.effects.jobs("begin")
    locks("resume", "mails")
    site.ended(range(12))
    assert [*range(12)] == sorted(site.effects.jobs("begin"))
    granted = sorted(site.effects.jobs("granted"))
    assert all(end - begin >= 1_000_000 for begin, end in zip(granted, granted[4:], strict=False))


@deep
@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_other_pools_keep_the_limit_and_the_order(site: Site, pool: str) -> None:
    site.send("for n in range(12): limited.delay(n, 0.3)")
    site.start(8, pool)
    site.ended(range(12))
    check_order(site, 12, displacement=4)
    assert (1 if pool == "solo" else 2) == site.effects.most_at_once()


@deep
def test_children_that_are_forked_beside_the_waiting_thread_run_tasks(site: Site) -> None:
    configure(site, worker_max_tasks_per_child=1)
    site.start()
    site.send("for n in range(40): limited.delay(n, 0.05); free.delay(n, 0.01)")
    site.ended(range(40))
    site.until(lambda: len(site.effects.jobs("begin free")) == 40)
    assert site.effects.most_at_once() <= 2


# Several deliveries of a job


def test_copies_of_a_task_wait_and_are_dropped_when_the_task_has_ended(
    site: Site, broker: RedisServer
) -> None:
    site.send("for n in range(3): limited.apply_async((n, 2), task_id='same')")
    site.start()
    site.wait_for("end", 1)
    site.until(lambda: unacknowledged(broker) == 0)
    assert 1 == len(site.effects.jobs("begin"))


@deep
def test_each_task_runs_once_if_the_broker_delivers_it_again_while_it_waits_and_runs(
    site: Site, broker: RedisServer
) -> None:
    """The broker's patience is shorter than the tasks and their wait."""
    configure(site, **impatient(3))
    site.send("for n in range(8): limited.delay(n, 5)")
    site.start()
    site.ended(range(8), 90)
    site.until(lambda: unacknowledged(broker) == 0)
    assert [*range(8)] == sorted(site.effects.jobs("begin"))
    assert 2 == site.effects.most_at_once()


# Faults: no task is lost, and the limit is kept


@deep
def test_tasks_of_a_killed_worker_run_in_another_worker(site: Site) -> None:
    configure(site, **impatient(9))
    worker = site.start()
    site.send(HALF_SECOND.format(12))
    site.wait_for("begin", 2)
    kill(worker)
    site.start()
    site.send("for n in range(50, 54): limited.delay(n, 0.5)")
    site.ended([*range(12), *range(50, 54)], 90)


@deep
def test_all_tasks_run_even_if_the_database_of_the_locks_is_flushed(site: Site, raw: Any) -> None:
    site.send(HALF_SECOND.format(16))
    site.start()
    for count in (2, 6, 10):
        site.wait_for("end", count)
        raw.flushdb()
    site.ended(range(16))
    assert [*range(16)] == sorted(site.effects.jobs("begin"))


@deep
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_no_task_is_lost_in_a_deploy(site: Site, number: int) -> None:
    configure(site, **impatient(9))
    worker = site.start()
    site.send(HALF_SECOND.format(12))
    site.wait_for("begin", 3)
    site.start()
    worker.send_signal(number)
    site.ended(range(12), 90)
    assert site.effects.most_at_once() <= 2


@deep
@pytest.mark.parametrize("kind", ["redis", "classic", "quorum"])
@pytest.mark.parametrize("worker_dies", [False, True], ids=["worker lives", "worker dies"])
def test_no_task_is_lost_if_the_broker_is_killed(
    site: Site, tmp_path: Path, broker: RedisServer, kind: str, worker_dies: bool
) -> None:
    with contextlib.ExitStack() as stack:
        server: Any = stack.enter_context(
            RedisServer(config={"appendonly": "yes"}) if kind == "redis" else rabbitmq(tmp_path)
        )
        site.environment["CELERY_SITE_BROKER"] = server.url
        queue_type = {"task_default_queue_type": "quorum"} if kind == "quorum" else {}
        configure(site, **(impatient(9) if kind == "redis" else queue_type))
        worker = site.start()
        site.send(HALF_SECOND.format(16))
        site.wait_for("end", 4, 90)
        server.kill()
        time.sleep(2)
        server.start()
        # With redis-py 8, a worker with unacknowledged tasks ends if it can't reach the broker.
        if worker_dies or kind == "redis":
            kill(worker)
            site.start()
        site.ended(range(16), 120)
        assert 1 == site.effects.most_at_once(of_one_job=True)


@deep
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_no_task_is_lost_with_rabbitmq_if_workers_are_killed(
    site: Site, tmp_path: Path, queue_type: str
) -> None:
    with rabbitmq(tmp_path) as server:
        site.environment["CELERY_SITE_BROKER"] = server.url
        configure(site, task_default_queue_type=queue_type)
        worker = site.start()
        site.send(HALF_SECOND.format(50) + "\nfree.delay(1)")
        site.wait_for("begin", 4, 90)
        site.wait_for("begin free", 1)
        assert len(site.effects.jobs("begin")) < 30, "the task was sent after 50 limited tasks"
        kill_child(worker)
        site.wait_for("begin", 6, 90)
        kill(worker)
        site.start()
        site.ended(range(50), 90)


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


# What Celery doesn't document


def test_installed_celery_has_all_that_the_worker_needs_to_hold_tasks() -> None:
    """If this fails with a new Celery, the message says which assumption broke."""
    undocumented = pytest.importorskip("django_redis_sync.locks.celery.undocumented")
    assert "" == undocumented.missing()


def test_worker_says_what_a_celery_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    undocumented = pytest.importorskip("django_redis_sync.locks.celery.undocumented")

    class Request:
        acknowledge = on_failure = on_success = revoked = _context = None

    assert "_on_ack" == undocumented.missing(request=Request)
    monkeypatch.setattr(undocumented, "BEFORE", (5, 0))
    assert "before 5.0" in undocumented.missing()


def test_tasks_wait_in_the_processes_of_the_pool_if_celery_is_unknown(site: Site) -> None:
    site.environment["CELERY_SITE_UNKNOWN"] = "1"
    site.send("for n in range(6): limited.delay(n, 0.2)")
    site.start(3)
    site.ended(range(6))
    assert 2 == site.effects.most_at_once()
    assert 1 == site.logs().count("because this worker can't hold them")
    assert 0 < site.logs().count("does not hold the tasks") <= 3
