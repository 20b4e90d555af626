"""on_full="retry" in one process: its errors, its check, and the recipes for other task queues."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from django_redis_sync import Semaphore, synchronized
from django_redis_sync.checks import check_tasks
from django_redis_sync.locks.jobs import JobQueue, NotSent
from tests.support import worker_processes

pytestmark = pytest.mark.promise(33)


@pytest.mark.parametrize("options", [{"blocking_timeout": 1}, {"blocking": False}])
def test_on_full_retry_rejects_blocking_options(options: Any) -> None:
    with pytest.raises(ValueError, match=r'on_full="retry" never waits: leave out blocking'):
        synchronized("x", on_full="retry", **options)


def test_on_full_retry_rejects_a_quorum() -> None:
    with pytest.raises(ValueError, match="a quorum has no queue"):
        synchronized("x", on_full="retry", using=["a", "b", "c"])


def test_on_full_retry_rejects_async_tasks() -> None:
    async def task() -> None: ...

    with pytest.raises(TypeError, match="is for sync tasks"):
        synchronized("x", on_full="retry")(task)


def test_on_full_retry_raises_when_a_plain_function_is_called() -> None:
    pytest.importorskip("celery", reason="Celery is missing: pip install celery")

    @synchronized("x", on_full="retry")
    def helper() -> None: ...

    with pytest.raises(TypeError, match="is not the body of a Celery task"):
        helper()


def test_check_reports_tasks_that_can_be_lost() -> None:
    apps = pytest.importorskip("celery.app", reason="Celery is missing: pip install celery")
    before, app = apps.app_or_default(), apps.Celery("checked", set_as_current=True)

    def task(**options: Any) -> None:
        @app.task(shared=False, **options)  # otherwise later apps have the task, too
        @synchronized("x", on_full="retry")
        def body() -> None: ...

        app.tasks.register(body)

    task(name="safe", acks_late=True, reject_on_worker_lost=True)
    task(name="unsafe", acks_late=True)
    (found,) = check_tasks()
    before.set_current()
    assert ("redis_sync.W026", True) == (found.id, found.msg.startswith("unsafe: "))


def test_celery_is_imported_only_for_on_full_retry() -> None:
    code = (
        "import sys, django; django.setup()\n"
        "from django_redis_sync import synchronized\n"
        "synchronized('x')(lambda: 1); synchronized('x', on_full='skip')(lambda: 1)\n"
        "print([m for m in sys.modules if 'celery' in m or m.endswith('locks.jobs')])"
    )
    assert "[]\n" == worker_processes.run("-c", code).stdout


def test_task_waits_in_the_worker_when_the_queue_raises_not_sent(raw: redis.Redis) -> None:
    holder = Semaphore("x", 1).acquire()
    assert holder is not None

    def again(seconds: float, note: list[Any]) -> Any:
        assert seconds >= 0.05
        holder.release()
        raise NotSent

    @synchronized("x", on_full=JobQueue(lambda: (("task", "1"), None), again))
    def task() -> str:
        return "ran"

    assert "ran" == task()


# Recipes of docs/task-queues.md


def test_dramatiq_recipe(raw: redis.Redis) -> None:
    dramatiq = pytest.importorskip("dramatiq", reason="dramatiq is missing: pip install dramatiq")
    from dramatiq.brokers.stub import StubBroker
    from dramatiq.middleware import CurrentMessage

    broker = StubBroker(middleware=[CurrentMessage()])
    ran: list[int] = []

    def delivery() -> Any:
        message = CurrentMessage.get_current_message()
        if message is None:
            return None
        return (message.actor_name, message.message_id), message.options.get("redis_sync")

    def again(seconds: float, note: list[Any]) -> None:
        message = CurrentMessage.get_current_message()
        broker.enqueue(message.copy(options={"redis_sync": note}), delay=int(seconds * 1000))

    @dramatiq.actor(broker=broker)
    @synchronized("x", on_full=JobQueue(delivery, again))
    def export(pk: int) -> None:
        ran.append(pk)

    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    try:
        with Semaphore("x", 1):
            export.send(1)
            export.send(2)
            broker.queues["default"].join()
            assert ran == []
        broker.join("default", timeout=20_000)
        worker.join()
        assert sorted(ran) == [1, 2]
    finally:
        worker.stop()


def test_huey_recipe(raw: redis.Redis) -> None:
    huey = pytest.importorskip("huey", reason="Huey is missing: pip install huey")
    from huey.exceptions import RetryTask

    queue, ran = huey.MemoryHuey(), list[int]()
    notes: dict[str, Any] = {}
    current: list[Any] = []

    def delivery() -> Any:
        if not current:
            return None
        return (current[0].name, current[0].id), json.loads(notes.get(current[0].id, "null"))

    def again(seconds: float, note: list[Any]) -> None:
        notes[current[0].id] = json.dumps(note)
        raise RetryTask(delay=seconds)

    @queue.pre_execute()
    def remember(task: Any) -> None:
        current[:] = [task]

    @queue.task(retries=1)
    @synchronized("x", on_full=JobQueue(delivery, again))
    def export(pk: int) -> None:
        ran.append(pk)

    export(1)
    with Semaphore("x", 1):
        queue.execute(queue.dequeue())
    assert ran == []
    ((_, note),) = [(id, json.loads(text)) for id, text in notes.items()]
    assert note[0] == 1
