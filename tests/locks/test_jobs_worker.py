"""The part of a Celery worker that holds tasks, without a process of Celery. The tests deliver the
messages, and are the pool that runs the tasks. test_jobs_celery tests whole workers."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_redis_sync import Semaphore, synchronized
from tests.behaviour.both import eventually
from tests.support.operators import as_json

pytest.importorskip("celery", reason="Celery is missing: pip install celery")

from celery import Celery
from celery.app.trace import trace_task
from celery.worker import state
from celery.worker.request import Request

from django_redis_sync.locks import jobs
from django_redis_sync.locks.celery import consumer as consumer_module
from django_redis_sync.locks.celery.consumer import HoldLimitedTasks
from django_redis_sync.locks.celery.undocumented import SINCE_HEADER

pytestmark = [pytest.mark.promise(33), pytest.mark.usefixtures("clean_redis")]


#: The numbers of the tasks whose bodies have run.
ran: list[int] = []


def body(number: int) -> None:
    ran.append(number)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app with two limited tasks, `exports` and `mails`. Of each, one may run at a time."""
    ran.clear()
    monkeypatch.setattr(jobs, "HANDLE_LIFE", 60.0)  # however slow the machine is
    app = Celery("of-test", broker="memory://", set_as_current=False)
    app.conf.update(task_acks_late=True, task_ignore_result=True)
    for name in ("exports", "mails"):
        app.task(name=name, shared=False)(synchronized(name, 1, on_full="hold")(body))
    app.finalize()
    yield app
    state.revoked.clear()
    state.reserved_requests.clear()
    state.requests.clear()


class Worker:
    """A worker with a pool of `processes`. `pool`: the numbers of the tasks that were sent to the
    pool. `acknowledged`: the ids of acknowledged deliveries. `prefetch`: by how much the worker has
    raised its prefetch count. `tick`: what the worker calls once a second."""

    def __init__(self, app: Celery, processes: int = 2) -> None:
        self.app, self.pool, self.acknowledged, self.prefetch = app, list[int](), list[str](), 0
        self._sent = dict[int, Request]()
        self.consumer = SimpleNamespace(
            app=app,
            hostname="w0@test",
            on_task_request=self._process,
            pool=SimpleNamespace(num_processes=processes, is_green=False),
            qos=self,
            timer=self,
            connection=SimpleNamespace(transport=SimpleNamespace(driver_type="memory")),
        )
        self.step = HoldLimitedTasks(self.consumer)
        self.step.create(self.consumer)
        self.step.start(self.consumer)

    def deliver(self, name: str, number: int, *, again: bool = False, **options: Any) -> None:
        """Deliver a message. `number`: the task's argument, and its id. `again`: True if the broker
        has delivered it before. `tag`: what `acknowledged` calls this delivery, instead of the
        id."""
        tag = options.pop("tag", str(number))
        since = options.pop("since", None)
        made = self.app.amqp.as_task_v2(str(number), name, (number,), {}, **options)
        message = SimpleNamespace(
            headers={**made.headers, SINCE_HEADER: since},
            body=made.body,
            properties=made.properties,
            delivery_info={"redelivered": again},
            payload=made.body,
        )
        self.consumer.on_task_request(
            Request(
                message,
                app=self.app,
                task=self.app.tasks[name],
                decoded=True,
                on_ack=lambda *_: self.acknowledged.append(tag),
            )
        )

    def run(self, number: int) -> None:
        """Run a task that was sent to the pool, as one of its processes does."""
        request = self._sent.pop(number)
        args, kwargs, _ = request._payload
        found = trace_task(
            request.task, request.id, args, kwargs, request.request_dict, app=self.app
        )
        request.on_success((False, found[0], 0.1))

    def _process(self, request: Request) -> None:
        self._sent[int(request.id)] = request
        self.pool.append(int(request.id))

    # Celery's QoS and its timer

    @property
    def value(self) -> int:
        return self.prefetch

    def increment_eventually(self) -> int:
        self.prefetch += 1
        return self.prefetch

    def decrement_eventually(self) -> int:
        self.prefetch -= 1
        return self.prefetch

    def call_repeatedly(self, seconds: float, tick: Any) -> Any:
        self.tick = tick
        return SimpleNamespace(cancel=lambda: None)


@pytest.fixture
def worker(app: Celery) -> Iterator[Worker]:
    worker = Worker(app)
    yield worker
    worker.step.shutdown(worker.consumer)


def waiting(name: str) -> int:
    """Return the number of waiters in Redis, and of those that the worker has told Redis about."""
    (found,) = as_json("status", name)["names"]
    return int(found["waiting"])


def test_copy_of_a_task_is_dropped_when_the_task_has_ended_but_its_retry_runs(
    worker: Worker,
) -> None:
    for number in (1, 2):
        worker.deliver("exports", number)
        eventually(lambda number=number: worker.pool[-1:] == [number])
        worker.deliver("exports", number, again=True)
        eventually(lambda: waiting("exports") == 1)
        assert number not in map(int, worker.acknowledged), "a copy was dropped before the end"
        worker.run(number)
        eventually(lambda number=number: worker.acknowledged.count(str(number)) == 2)
        worker.deliver("exports", number, retries=1)
        eventually(lambda number=number: worker.pool[-2:] == [number, number])
        worker.run(number)
    assert [1, 1, 2, 2] == worker.pool == ran
    assert 0 == worker.prefetch


def test_held_task_that_is_delivered_again_acknowledges_its_newer_delivery(worker: Worker) -> None:
    """The broker has forgotten the older one, and may close the channel of its acknowledgement."""
    with Semaphore("exports", 1):
        worker.deliver("exports", 1)
        eventually(lambda: waiting("exports") == 1)
        worker.deliver("exports", 1, again=True, tag="newer")
        assert (1, []) == (waiting("exports"), worker.acknowledged)
    eventually(lambda: worker.pool == [1])
    worker.run(1)
    assert (["newer"], [1]) == (worker.acknowledged, ran)


def test_task_that_was_interrupted_does_not_count_as_run(app: Celery, raw: redis.Redis) -> None:
    """Otherwise, the copy that the broker delivers would wait, or be dropped."""

    def stopped(number: int) -> None:
        ran.append(number)
        raise SystemExit  # as at the shutdown of a worker

    app.task(name="stopped", shared=False)(synchronized("stopped", on_full="hold")(stopped))
    worker = Worker(app)
    worker.deliver("stopped", 1)
    eventually(lambda: worker.pool == [1])
    worker.deliver("stopped", 1, again=True)
    eventually(lambda: waiting("stopped") == 1)
    with pytest.raises(SystemExit):
        worker.run(1)
    assert not [key for key in raw.keys("*:job:*") if raw.hget(key, "run").startswith(b"e")], (
        "the job counts as run"
    )
    eventually(lambda: worker.pool == [1, 1])
    worker.step.shutdown(worker.consumer)


def test_held_task_that_expired_or_was_revoked_ends_and_the_others_keep_their_turns(
    worker: Worker,
) -> None:
    with Semaphore("exports", 1):
        for number, expires in ((1, 0.1), (2, None), (3, 0.1), (4, None), (5, None)):
            worker.deliver("exports", number, expires=expires)
        eventually(lambda: waiting("exports") == 2)
        assert 5 == worker.prefetch
        eventually(lambda: worker.tick() or worker.acknowledged == ["1", "3"])
        state.revoked.add("4")
        eventually(lambda: worker.tick() or worker.acknowledged == ["1", "3", "4"])
        assert 2 == worker.prefetch
        assert [] == worker.pool
    for number in (2, 5):
        eventually(lambda number=number: worker.pool[-1:] == [number])
        worker.run(number)
    assert ["1", "3", "4", "2", "5"] == worker.acknowledged
    assert 0 == worker.prefetch


def test_permit_that_comes_after_its_task_was_revoked_goes_to_the_next_caller(
    worker: Worker,
) -> None:
    exports = Semaphore("exports", 1)
    with exports:
        worker.deliver("exports", 1)
        eventually(lambda: waiting("exports") == 1)
        state.revoked.add("1")  # the worker looks for revoked tasks only once a second
    eventually(lambda: worker.acknowledged == ["1"])
    eventually(lambda: exports.status().in_use == 0)
    assert ([], 0) == (worker.pool, worker.prefetch)
    worker.deliver("exports", 2)
    eventually(lambda: worker.pool == [2])


def test_permit_of_a_task_that_was_revoked_before_a_process_was_free_is_given_back(
    app: Celery,
) -> None:
    worker = Worker(app, processes=1)
    exports, mails = (Semaphore(name, 1).acquire() for name in ("exports", "mails"))
    for number, name in ((1, "exports"), (2, "mails")):
        worker.deliver(name, number)
        eventually(lambda name=name: waiting(name) == 1)
    exports.release()
    eventually(lambda: worker.pool == [1])
    mails.release()
    eventually(lambda: waiting("mails") == 0)
    state.revoked.add("2")
    eventually(lambda: worker.tick() or worker.acknowledged == ["2"])
    worker.run(1)
    eventually(lambda: worker.tick() or Semaphore("mails", 1).status().in_use == 0)
    assert [1] == worker.pool, "a revoked task was sent to the pool"
    worker.step.shutdown(worker.consumer)


def test_tasks_of_a_full_name_do_not_hold_up_those_of_another_name(worker: Worker) -> None:
    """Redis knows of both names how many tasks the worker holds, until it holds none."""

    def told() -> list[int]:
        worker.tick()
        return [waiting("exports"), waiting("mails")]

    with Semaphore("exports", 1):
        for number in range(6):
            worker.deliver("exports", number)
        for number in range(10, 14):
            worker.deliver("mails", number)
        eventually(lambda: worker.pool == [10])
        eventually(lambda: told() == [6, 3])
        for number in range(10, 14):
            eventually(lambda number=number: worker.pool[-1] == number)
            worker.run(number)
        eventually(lambda: told() == [6, 0])
    for number in range(6):
        eventually(lambda number=number: worker.pool[-1] == number)
        worker.run(number)
    eventually(lambda: told() == [0, 0])
    assert [*range(10, 14), *range(6)] == worker.pool


def test_task_that_was_sent_again_comes_before_those_that_came_later(app: Celery) -> None:
    worker = Worker(app, processes=1)
    with Semaphore("exports", 1):
        worker.deliver("exports", 1)
        eventually(lambda: waiting("exports") == 1)
        for number, age in ((2, 0), (3, 60), (4, 30)):
            worker.deliver("exports", number, since=time.time() - age)
    for number in (1, 3, 4, 2):
        eventually(lambda number=number: worker.pool[-1:] == [number])
        worker.run(number)
    worker.step.shutdown(worker.consumer)


def test_permit_that_finds_no_free_process_goes_back_and_the_task_runs_later(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both tasks get their permits while the pool has one process."""
    monkeypatch.setattr(consumer_module, "_READY", 0.0)
    worker = Worker(app, processes=1)
    exports, mails = (Semaphore(name, 1).acquire() for name in ("exports", "mails"))
    worker.deliver("exports", 1)
    eventually(lambda: waiting("exports") == 1)
    worker.deliver("mails", 2)
    eventually(lambda: waiting("mails") == 1)
    exports.release()
    eventually(lambda: worker.pool == [1])
    mails.release()
    eventually(lambda: waiting("mails") == 0)
    eventually(lambda: worker.tick() or Semaphore("mails", 1).status().in_use == 0)
    assert [1] == worker.pool
    worker.run(1)
    eventually(lambda: worker.tick() or worker.pool == [1, 2])
    worker.run(2)
    assert (0, ["1", "2"]) == (worker.prefetch, worker.acknowledged)
    worker.step.shutdown(worker.consumer)


def test_worker_asks_for_no_more_permits_than_it_has_free_processes(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a task has waited in Redis: a permit would idle until a process is free."""
    monkeypatch.setattr(consumer_module, "_READY", 60.0)
    worker = Worker(app, processes=1)
    for number in (1, 2):
        with Semaphore("exports", 1):
            worker.deliver("exports", number)
            eventually(lambda: waiting("exports") == 1)
        eventually(lambda number=number: worker.pool[-1:] == [number])
        worker.run(number)
    worker.deliver("exports", 3)
    worker.deliver("mails", 4)
    eventually(lambda: worker.pool == [1, 2, 3])
    eventually(lambda: worker.tick() or waiting("mails") == 1)
    assert 0 == Semaphore("mails", 1).status().in_use, "no process was free for this permit"
    worker.run(3)
    eventually(lambda: worker.pool == [1, 2, 3, 4])
    worker.run(4)
    worker.step.shutdown(worker.consumer)


def test_tasks_run_once_after_the_connection_to_the_broker_was_lost(worker: Worker) -> None:
    """The broker delivers them again, so the worker forgets them, and leaves the queues."""
    for _ in range(2):
        with Semaphore("exports", 1):
            for number in (1, 2, 3):
                worker.deliver("exports", number, again=True)
            eventually(lambda: waiting("exports") >= 1)
            worker.step.stop(worker.consumer)
            eventually(lambda: Semaphore("exports", 1).status().waiting == 0)
        worker.prefetch = 0  # Celery has a new QoS then
        worker.step.start(worker.consumer)
    for number in (1, 2, 3):
        worker.deliver("exports", number, again=True)
    for number in (1, 2, 3):
        eventually(lambda number=number: worker.pool[-1:] == [number])
        worker.run(number)
    assert ([1, 2, 3], ["1", "2", "3"], 0) == (ran, worker.acknowledged, worker.prefetch)


def test_task_whose_name_cant_be_made_goes_to_the_pool_and_the_others_are_held(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in the consumer would end the worker's connection to the broker, again and
    again, because the broker would deliver the message again."""

    class Order:
        def __init__(self, pk: int) -> None:
            self.pk = pk

    def with_order(function: Any) -> Any:
        @functools.wraps(function)
        def run(number: int) -> Any:
            return function(Order(number))

        return run

    def of_order(order: Order) -> None:
        ran.append(order.pk)

    for name in ("order:{order.pk}", "order:{order[pk]}", "order:{order.pk.real}"):
        limited = synchronized(name, 1, on_full="hold")(of_order)
        app.task(name=name, shared=False)(with_order(limited))
    worker = Worker(app)
    with Semaphore("exports", 1):
        for number in (1, 2):
            worker.deliver("order:{order.pk}", number)
        worker.deliver("exports", 3)
        eventually(lambda: waiting("exports") == 1)
    assert [1, 2] == worker.pool[:2]
    worker.deliver("order:{order[pk]}", 4)
    worker.deliver("order:{order.pk.real}", 5)
    for number in (1, 2, 3, 4, 5):
        eventually(lambda number=number: number in worker.pool)
        worker.run(number)
    assert [1, 2, 3, 5] == ran, "the permit of task 4 has no name in the pool, either"
    warnings = [r.getMessage() for r in caplog.records if "can't hold" in r.getMessage()]
    assert 3 == len(warnings), "one for each task"
    assert "order:{order.pk}, so it waits for its permit in a process of the pool" in warnings[0]
    assert (
        "this call has no order.pk for the name 'order:{order.pk}': AttributeError" in (warnings[0])
    )
    assert "does not hold the tasks" not in caplog.text
    worker.step.shutdown(worker.consumer)


def test_name_of_a_held_task_can_contain_its_request(app: Celery) -> None:
    """As the request that the body sees: its ID, its headers, the number of retries."""

    def bound(self: Any, number: int) -> None:
        body(number)

    limited = synchronized("of:{self.request.id}:{self.request.retries}", 1, on_full="hold")
    app.task(name="bound", bind=True, shared=False)(limited(bound))
    worker = Worker(app)
    with Semaphore("of:7:1", 1):
        worker.deliver("bound", 7, retries=1)
        eventually(lambda: waiting("of:7:1") == 1)
        assert [] == worker.pool, "the pool got a task that has no permit"
    eventually(lambda: worker.pool == [7])
    worker.run(7)
    assert [7] == ran
    assert app.tasks["bound"].request.id is None
    worker.step.shutdown(worker.consumer)
