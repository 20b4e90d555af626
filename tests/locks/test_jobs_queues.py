"""on_full="retry" in one process: wrong uses, the check W026, operators, and other task queues."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.core.checks import run_checks

from django_redis_sync import JobQueue, Semaphore, synchronized
from django_redis_sync.exceptions import NotSent
from tests.behaviour.both import eventually
from tests.support import worker_processes
from tests.support.operators import as_json, locks

pytestmark = pytest.mark.promise(33)


class Queue:
    """A task queue. The test calls `deliver()` to deliver its messages."""

    def __init__(self) -> None:
        self.now: Any = None
        self.sent: list[Any] = []
        self.queue = JobQueue(lambda: self.now, self.again, lambda: "dropped")

    def again(self, seconds: float, note: list[Any]) -> str:
        assert seconds >= 0.05
        self.sent.append(note)
        return "later"

    def deliver(self, function: Any, number: str, *args: Any, note: Any = None) -> Any:
        self.now = (("tasks.export", number), note)
        return function(*args)


@pytest.fixture
def jobs(raw: redis.Redis) -> Queue:
    return Queue()


def export_task(jobs: Queue, name: str = "exports", limit: int = 1, **options: Any) -> Any:
    return synchronized(name, limit, on_full=jobs.queue, **options)(lambda tenant="": "ran")


def shown(*words: str) -> Any:
    """Run `locks status --format json`. Return the only entry of the list `names` in its output."""
    (name,) = as_json("status", *words)["names"]
    return name


# Mistakes


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"blocking_timeout": 1}, ValueError, "never waits: leave out blocking_timeout"),
        ({"blocking": False}, ValueError, "never waits: leave out blocking"),
        ({"using": ["a", "b", "c"]}, ValueError, "a quorum has no queue"),
        ({}, TypeError, r'task is async: on_full="retry" is for sync tasks'),
    ],
)
def test_synchronized_raises_an_error_if_on_full_retry_is_not_supported(
    options: Any, error: Any, message: str
) -> None:
    async def task() -> None: ...

    with pytest.raises(error, match=message):
        synchronized("x", on_full="retry", **options)(task)


def test_system_check_reports_unsafe_celery_tasks() -> None:
    apps = pytest.importorskip("celery.app", reason="Celery is missing: pip install celery")
    before, app = apps.app_or_default(), apps.Celery("checked", set_as_current=True)

    def body() -> None: ...

    for name, safe in (("safe", True), ("unsafe", False)):
        # With shared=True, Celery would add the task to apps that later tests create.
        task = app.task(shared=False, name=name, acks_late=True, reject_on_worker_lost=safe)
        app.tasks.register(task(synchronized("x", on_full="retry")(body)))
    found = [one for one in run_checks(tags=["redis_sync"]) if one.id == "redis_sync.W026"]
    before.set_current()
    assert [True] == [one.msg.startswith("unsafe: ") for one in found]


def test_call_outside_a_celery_task_raises_type_error() -> None:
    pytest.importorskip("celery.app", reason="Celery is missing: pip install celery")
    function = synchronized("x", on_full="retry")(lambda: None)
    with pytest.raises(TypeError, match="is not the body of a Celery task"):
        function()


def test_celery_is_imported_only_for_on_full_retry() -> None:
    code = (
        "import sys, django; django.setup()\n"
        "from django_redis_sync import synchronized\n"
        "synchronized('x')(lambda: 1); synchronized('x', on_full='skip')(lambda: 1)\n"
        "print([m for m in sys.modules if 'celery' in m or m.endswith('locks.jobs')])"
    )
    assert "[]\n" == worker_processes.run("-c", code).stdout


# Operators


def test_waiting_job_is_shown_by_locks_status_and_dropped_by_locks_clear(jobs: Queue) -> None:
    export = export_task(jobs)
    with Semaphore("exports", 1):
        assert "later" == jobs.deliver(export, "0123456789")
        assert "tasks.export[01234567]" in locks("status", "exports")
        (waiter,) = shown("exports")["waiters"]
        assert (1, True, "tasks.export[01234567]") == (
            *(waiter["sendings"], waiter["alive"], waiter["label"]),
        )
        assert waiter["next_try"] > waiter["since"]
        locks("clear", "exports", "--holder", waiter["id"], "--no-input")
        assert 0 == shown("exports")["waiting"]
    assert "dropped" == jobs.deliver(export, "0123456789", note=jobs.sent[-1])
    assert "ran" == jobs.deliver(export, "2")


def test_locks_status_shows_the_number_of_waiting_jobs_of_each_share(jobs: Queue) -> None:
    export = export_task(jobs, limit=2, share="{tenant}", share_limit=1)
    with Semaphore("exports", 2, share="a", share_limit=1):
        for number in "01":
            jobs.deliver(export, number, "a")
        with Semaphore("exports", 2, share="c"):
            jobs.deliver(export, "2", "b")
            found = shown("exports")["shares"]
    assert {("a", 1, 2), ("b", 0, 1), ("c", 1, 0)} == {
        (share["share"], share["in_use"], share["waiting"]) for share in found
    }


@pytest.mark.parametrize("name", ["exports", "exports:{tenant}"])
def test_deliveries_and_dropped_copies_of_jobs_are_counted(jobs: Queue, name: str) -> None:
    export = export_task(jobs, name)
    with Semaphore(name.format(tenant="acme"), 1):
        jobs.deliver(export, "1", "acme")
        for _ in range(2):
            jobs.deliver(export, "1", "acme", note=jobs.sent[-1])
        assert "dropped" == jobs.deliver(export, "1", "acme", note=jobs.sent[0])
        eventually(lambda: as_json("status")["names"])
        eventually(lambda: shown()["ever"]["job_delivered"] == 4)
        assert 1 == shown()["ever"]["job_copy_dropped"]


# Other task queues


def test_task_waits_inside_the_worker_if_its_job_queue_raises_not_sent(raw: redis.Redis) -> None:
    holder = Semaphore("x", 1).acquire()
    assert holder is not None

    def again(seconds: float, note: list[Any]) -> Any:
        holder.release()
        raise NotSent

    task = synchronized("x", on_full=JobQueue(lambda: (("task", "1"), None), again))(lambda: "ran")
    assert "ran" == task()


def test_job_queue_of_the_docs_defers_dramatiq_tasks_if_the_semaphore_is_full(
    raw: redis.Redis,
) -> None:
    """The test defines the `JobQueue` that docs/task-queues.md shows."""
    dramatiq = pytest.importorskip("dramatiq", reason="dramatiq is missing: pip install dramatiq")
    from dramatiq.brokers.stub import StubBroker
    from dramatiq.middleware import CurrentMessage

    broker, ran = StubBroker(middleware=[CurrentMessage()]), list[int]()

    def delivery() -> Any:
        message = CurrentMessage.get_current_message()
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
            assert [] == ran
        broker.join("default", timeout=20_000)
        worker.join()
        assert [1, 2] == sorted(ran)
    finally:
        worker.stop()
