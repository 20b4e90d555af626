"""Operators' view of jobs that wait in their task queue: status, statistics, and `clear`."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_redis_sync import Semaphore, synchronized
from django_redis_sync.locks.jobs import JobQueue
from django_redis_sync.operators.actions import clear
from django_redis_sync.operators.history import Counters, histories
from django_redis_sync.operators.statistics import statistics_of
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually

pytestmark = pytest.mark.promise(33)


class Queue:
    """A task queue whose messages the test delivers itself."""

    def __init__(self) -> None:
        self.now: Any = None
        self.sent: list[tuple[float, list[Any]]] = []
        self.queue = JobQueue(lambda: self.now, self.again, lambda: "dropped")

    def again(self, seconds: float, note: list[Any]) -> str:
        self.sent.append((seconds, note))
        return "later"

    def deliver(self, function: Any, number: str, note: Any = None) -> Any:
        self.now = (("tasks.export", number), note)
        return function()


@pytest.fixture
def jobs(raw: redis.Redis) -> Queue:
    return Queue()


def export_task(jobs: Queue) -> Any:
    @synchronized("exports", 1, on_full=jobs.queue)
    def export() -> str:
        return "ran"

    return export


def test_status_shows_waiting_jobs(jobs: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    export = export_task(jobs)
    with Semaphore("exports", 1):
        assert "later" == jobs.deliver(export, "0123456789")
        status = status_of("exports")
        call_command("locks", "status", "exports")
    (job,) = status.waiters
    assert (1, 1, True) == (status.waiting, job.sendings, job.alive)
    assert job.next_try is not None
    assert job.next_try > job.since
    assert {"label": "tasks.export[01234567]"} == job.label
    assert "tasks.export[01234567]" in capsys.readouterr().out


def test_waiting_jobs_count_in_their_shares(jobs: Queue) -> None:
    @synchronized("exports", 2, share="{tenant}", share_limit=1, on_full=jobs.queue)
    def export(tenant: str) -> str:
        return "ran"

    with Semaphore("exports", 2, share="a", share_limit=1):
        for number, tenant in enumerate("aab"):
            jobs.now = (("tasks.export", str(number)), None)
            if tenant == "b":
                with Semaphore("exports", 2, share="c"):
                    export(tenant)
                    found = status_of("exports")
            else:
                export(tenant)
    assert {("a", 1, 2), ("b", 0, 1), ("c", 1, 0)} == {
        (share.name, share.in_use, share.waiting) for share in found.shares
    }


def test_clear_drops_a_waiting_job(jobs: Queue) -> None:
    export = export_task(jobs)
    with Semaphore("exports", 1):
        jobs.deliver(export, "1")
        status = status_of("exports")
        (cleared,) = clear(status, [status.waiters[0].id])
        assert cleared.done
        assert 0 == status_of("exports").waiting
    assert "dropped" == jobs.deliver(export, "1", jobs.sent[-1][1])
    assert "ran" == jobs.deliver(export, "2")


@pytest.mark.parametrize("key", [None, "acme"])
def test_deliveries_and_dropped_copies_are_counted(jobs: Queue, key: str | None) -> None:
    name = "exports:{tenant}" if key else "exports"

    @synchronized(name, 1, on_full=jobs.queue)
    def export(tenant: str | None = key) -> str:
        return "ran"

    with Semaphore(name.format(tenant=key), 1):
        jobs.deliver(export, "1")
        for _ in range(2):
            jobs.deliver(export, "1", jobs.sent[-1][1])
        assert "dropped" == jobs.deliver(export, "1", jobs.sent[0][1])

    def counted() -> Counters:
        return (statistics_of([name])[0].history if key else histories([(name, None)])[0]).ever

    eventually(lambda: counted().job_delivered == 4)
    assert 1 == counted().job_copy_dropped


def test_status_shows_the_first_200_waiting_jobs(jobs: Queue) -> None:
    export = export_task(jobs)
    with Semaphore("exports", 1):
        for number in range(230):
            jobs.deliver(export, str(number))
        status = status_of("exports")
    assert (230, 200) == (status.waiting, len(status.waiters))
    assert [*range(1, 201)] == [waiter.position for waiter in status.waiters]
