"""The Celery app and its tasks. The environment variables CELERY_SITE_* set the broker and other
options."""

import json
import os
import time

import django
from celery import Celery, Task

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django_redis_sync import Semaphore, synchronized  # noqa: E402

from .effects import note  # noqa: E402

if "CELERY_SITE_UNKNOWN" in os.environ:  # pretend that the worker has a newer Celery
    from django_redis_sync.locks.celery import undocumented

    undocumented.BEFORE = (5, 0)
LIMIT = int(os.environ.get("CELERY_SITE_LIMIT", "2"))

app = Celery("tests.celery_site")
app.conf.update(
    broker_url=os.environ["CELERY_SITE_BROKER"],
    result_backend=os.environ["CELERY_SITE_RESULTS"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=int(os.environ.get("CELERY_SITE_PREFETCH", "1")),
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    **json.loads(os.environ.get("CELERY_SITE_CONF", "{}")),
)


def work(job: int, seconds: float) -> int:
    note("begin", job)
    try:
        time.sleep(seconds)
    except BaseException:  # the worker stops
        note("stop", job)
        raise
    note("end", job)
    return job


@app.task(bind=True)
@synchronized("exports", LIMIT, on_full="hold", timeout=3, renew=True)
def limited(self: Task, job: int, seconds: float = 0.1) -> int:
    assert self.request.retries == 0
    return work(job, seconds)


@app.task
def free(job: int, seconds: float = 0.1) -> int:
    note("begin free", job)
    time.sleep(seconds)
    return job


@app.task
@synchronized("mails", 1, rate="4/s", on_full="hold")
def mail(job: int) -> int:
    (holder,) = Semaphore("mails", 1).status().holders
    note("granted", holder.fence)  # a time of the server, in µs
    return work(job, 0.01)


@app.task(max_retries=0)
@synchronized("tenant:{tenant}", on_full="hold")
def of_tenant(tenant: int, job: int) -> int:
    return work(job, 0.1)


@app.task(autoretry_for=(KeyError,), retry_backoff=False, default_retry_delay=0, max_retries=3)
@synchronized("flaky", on_full="hold")
def flaky(job: int) -> int:
    if flaky.request.retries < 2:
        raise KeyError(work(job, 0.1))
    return work(job, 0.1)


@app.task(bind=True)
def replaced(self: Task, job: int) -> None:
    self.replace(limited.s(job))


@app.task
def total(parts: list[int]) -> int:
    return sum(parts)


@app.task
@synchronized("direct:{job}", on_full="hold")
def direct(job: int) -> int:
    return job


@synchronized("helper", on_full="hold")
def helper() -> None:
    """A function that is not the body of a task, so on_full="hold" raises TypeError."""


@app.task
def with_helper() -> str:
    try:
        helper()
    except TypeError as error:
        return str(error)
    return "ran"
