"""on_full="hold" in one process: wrong uses, the check W026, operators, and permits of jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from django.core.checks import run_checks

from django_redis_sync import Lease, LeaseLost, Semaphore, synchronized
from django_redis_sync.locks import jobs
from django_redis_sync.locks.jobs import Handle, Job
from tests.behaviour.both import eventually
from tests.support import worker_processes
from tests.support.operators import as_json, has_free_permit, locks

pytestmark = pytest.mark.promise(33)
JOB = Job("shop.tasks.export", "0123456789")


@pytest.fixture(autouse=True)
def _redis(clean_redis: None) -> None:
    pass


def shown(name: str) -> Any:
    (found,) = as_json("status", name)["names"]
    return found


def held(semaphore: Semaphore) -> Lease:
    lease = semaphore.acquire()
    assert lease is not None
    return lease


@contextmanager
def waiting(semaphore: Semaphore, job: Job = JOB, loop: bool = True) -> Iterator[list[Any]]:
    """Let a job wait during the block, which must end the wait. Yield a list, to which the result
    of the wait is added."""
    results, wait = list[Any](), (semaphore, job, 0.0, lambda: None)

    def work() -> None:
        got = asyncio.run(jobs.await_handle(*wait)) if loop else jobs.wait_for_handle(*wait)
        results.append(got)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield results
    thread.join(30)


# Mistakes


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"blocking_timeout": 1}, ValueError, "waits without limit: leave out blocking_timeout"),
        ({"blocking": False}, ValueError, "waits without limit: leave out blocking"),
        ({"using": ["a", "b", "c"]}, ValueError, "a quorum has no queue"),
        ({}, TypeError, r'task is async: on_full="hold" is for sync tasks'),
    ],
)
def test_synchronized_raises_an_error_if_on_full_hold_is_not_supported(
    options: Any, error: Any, message: str
) -> None:
    async def task() -> None: ...

    with pytest.raises(error, match=message):
        synchronized("x", on_full="hold", **options)(task)


def test_system_check_names_the_tasks_that_the_installed_celery_can_not_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apps = pytest.importorskip("celery.app", reason="Celery is missing: pip install celery")
    before, app = apps.app_or_default(), apps.Celery("checked", set_as_current=True)

    def body() -> None: ...

    task = app.task(shared=False, name="limited")
    app.tasks.register(task(synchronized("x", on_full="hold")(body)))
    from django_redis_sync.locks.celery import undocumented

    def found() -> list[str]:
        every = run_checks(tags=["redis_sync"])
        return [one.msg for one in every if one.id == "redis_sync.W026"]

    try:
        assert [] == found()
        monkeypatch.setattr(undocumented, "BEFORE", (5, 0))
        (message,) = found()
        # The tasks of other tests may be in this app, too.
        assert "limited" in message.partition(": ")[0].split(", ") and "before 5.0" in message
    finally:
        before.set_current()


def test_call_outside_a_celery_task_raises_type_error() -> None:
    pytest.importorskip("celery.app", reason="Celery is missing: pip install celery")
    function = synchronized("x", on_full="hold")(lambda: None)
    with pytest.raises(TypeError, match="is not the body of a Celery task"):
        function()


def test_celery_is_imported_only_for_on_full_hold() -> None:
    code = (
        "import sys, django; django.setup()\n"
        "from django_redis_sync import synchronized\n"
        "synchronized('x')(lambda: 1); synchronized('x', on_full='skip')(lambda: 1)\n"
        "print([m for m in sys.modules if 'celery' in m or m.endswith('locks.jobs')])"
    )
    assert "[]\n" == worker_processes.run("-c", code).stdout


# Permits of jobs


@pytest.mark.parametrize("loop", [True, False], ids=["async", "sync"])
def test_job_that_waited_gets_a_handle_that_another_process_can_adopt(loop: bool) -> None:
    exports = Semaphore("exports", 1)
    holder = held(exports)
    with waiting(exports, loop=loop) as results:
        eventually(lambda: shown("exports")["waiting"] == 1)
        assert [] == results, "the wait ended without a permit"
        holder.release()
    (handle,) = results
    assert isinstance(handle, Handle)
    with Lease.from_handle(handle) as lease:
        assert lease.held and not has_free_permit("exports")
    assert has_free_permit("exports")


@pytest.mark.parametrize("bound", ["rate", "pause", "share"])
def test_job_that_may_not_wait_yet_asks_again_whatever_forbids_its_permit(
    bound: str, settings: Any
) -> None:
    options = {"limit": 9, "max_waiters": 1, "rate": "1/h" if bound == "rate" else "99/s"}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"exports": options}}
    share = {"share": "acme", "share_limit": 1} if bound == "share" else {}
    exports = Semaphore("exports", **share)
    holder = held(exports)
    if bound == "pause":
        locks("pause", "exports", "--create")
    with waiting(exports) as first:
        eventually(lambda: shown("exports")["waiting"] == 1)
        with waiting(exports, Job("shop.tasks.export", "2")) as second:
            eventually(lambda: shown("exports")["recent"]["rejected"] > 1)
            assert [[], []] == [first, second], "a wait ended without a permit"
            holder.release()
            if bound == "pause":
                locks("resume", "exports")
            elif bound == "rate":
                locks("resize", "exports", "--rate", "9/h")
    assert [Handle, Handle] == [type(result) for (result,) in (first, second)]


def test_permit_that_no_job_has_used_is_given_back_to_the_rate(raw: redis.Redis) -> None:
    exports = Semaphore("exports", 3, rate="2/h", min_hold=60)
    handle = jobs.wait_for_handle(exports, JOB, 0.0, lambda: None)
    jobs.drivers.drive(jobs.giving_back(handle)[1], jobs.server_of("default"))
    assert (0, 0) == (exports.status().rate.used, exports.status().in_use)
    first = jobs.wait_here(exports, JOB)
    assert isinstance(first, Lease)
    with waiting(exports) as results:  # another delivery
        for _ in range(3):  # each of its attempts takes a permit for a moment
            before = exports.status().fence
            eventually(lambda than=before: exports.status().fence > than)
        first.release()
        alias, plan = jobs.noting(exports, "ended", JOB.id)
        jobs.drivers.drive(plan, jobs.server_of(alias))
    assert ["ended"] == results and 1 == exports.status().rate.used


def test_cancelled_wait_of_a_job_leaves_nothing_behind() -> None:
    exports = Semaphore("exports", 1)

    async def cancel() -> None:
        task = asyncio.create_task(jobs.await_handle(exports, JOB, 0.0, lambda: None))
        while (await exports.astatus()).waiting == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with exports:
        asyncio.run(cancel())
        assert 0 == shown("exports")["waiting"], "a waiter stayed in Redis"


def test_handle_that_nobody_adopts_frees_its_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "HANDLE_LIFE", 0.2)
    exports = Semaphore("exports", 1)
    handle = jobs.wait_for_handle(exports, JOB, 0.0, lambda: None)
    eventually(lambda: has_free_permit("exports"))
    assert isinstance(handle, Handle) and jobs.adopted(handle, exports) is None


def test_handle_of_another_semaphore_is_not_used_and_its_permit_is_released() -> None:
    handle = jobs.wait_for_handle(Semaphore("exports", 1), JOB, 0.0, lambda: None)
    assert isinstance(handle, Handle) and jobs.adopted(handle, Semaphore("other", 1)) is None
    eventually(lambda: has_free_permit("exports"))


def test_second_delivery_of_a_running_job_waits_until_the_job_has_run(raw: redis.Redis) -> None:
    exports = Semaphore("exports", 2)
    first = jobs.wait_here(exports, JOB)
    assert isinstance(first, Lease)
    with waiting(exports) as results:
        eventually(lambda: b"r %b 1" % first.token.encode() in job_records(raw))
        # Each of its attempts takes a permit for a moment.
        eventually(lambda: has_free_permit("exports", 2))
        assert [] == results, "the wait ended without a permit"
        first.release()
        eventually(lambda: b"e %b 1" % first.token.encode() in job_records(raw))
        alias, plan = jobs.noting(exports, "ended", JOB.id)
        assert "ok" == jobs.drivers.drive(plan, jobs.server_of(alias))
    assert ["ended"] == results


def job_records(raw: redis.Redis) -> list[bytes]:
    return [raw.hget(key, "run") for key in raw.keys("*:job:*")]  # type: ignore[misc]


@pytest.mark.parametrize("where", ["here", "worker"])
def test_cleared_job_ends_its_wait_and_is_never_run(where: str) -> None:
    exports = Semaphore("exports", 1)
    with exports, waiting(exports, loop=where == "worker") as results:
        eventually(lambda: shown("exports")["waiting"] == 1)
        (waiter,) = shown("exports")["waiters"]
        assert "shop.tasks.export[01234567]" == waiter["label"]
        locks("clear", "exports", "--holder", waiter["id"], "--no-input")
        assert 0 == shown("exports")["waiting"], "a waiter stayed in Redis"
    assert ["cleared"] == results
    assert "cleared" == jobs.wait_here(exports, JOB)


def test_lease_of_a_job_is_lost_if_an_operator_clears_its_holder() -> None:
    lease = jobs.wait_here(Semaphore("exports", 1), JOB)
    assert isinstance(lease, Lease)
    locks("clear", "exports", "--no-input")
    with pytest.raises(LeaseLost):
        lease.renew()


# Operators


@pytest.mark.parametrize("share", [None, "acme-corporation"])
def test_status_page_shows_task_share_and_id_of_a_waiting_job_at_80_columns(
    share: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_redis_sync.management import terminal

    exports = Semaphore("exports", 1, share=share)
    holder = held(exports)
    with waiting(exports):
        eventually(lambda: shown("exports")["waiting"] == 1)
        monkeypatch.setattr(terminal, "width_of", lambda stream: 80)
        page = locks("status", "exports")
        (waiter,) = shown("exports")["waiters"]
        row = next(line for line in page.splitlines() if waiter["id"] in line)
        holder.release()
    assert len(row) <= 80
    assert f"export[01234567]{f', share {share}' if share else ''}" in row


def test_status_shows_how_many_more_jobs_each_worker_holds() -> None:
    exports = Semaphore("exports", 1)
    report: Callable[..., Any] = lambda worker, held: jobs.drivers.drive(  # noqa: E731
        jobs.noting(exports, "held", worker, held)[1], jobs.server_of("default")
    )

    def page() -> list[str] | None:
        report("w1@host", 1)
        report("w2@host", 30)
        lines = locks("status", "exports").splitlines()
        return lines if lines[0] == "exports: 1 of 1 in use, 32 wait" else None

    holder = held(exports)
    with waiting(exports):
        lines = eventually(page)
        holder.release()
    assert ["w2@host holds 30 more.", "w1@host holds 1 more."] == [
        line.removeprefix("Celery worker ") for line in lines[-2:]
    ]
    assert not [line for line in lines if line.startswith("… and")], "jobs are counted twice"
