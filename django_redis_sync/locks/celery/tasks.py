"""What a limited Celery task does in a process of the pool."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured

from ...logs import logger
from ...protocol.reasons import Rejection
from ..jobs import Job, adopted, wait_here
from ..lease import Lease
from ..semaphore import Semaphore
from ..templates import wraps

try:
    from celery import current_app, current_task, signals, states
    from celery.exceptions import Ignore, Reject
except ImportError as error:
    raise ImproperlyConfigured(
        'on_full="hold" needs Celery 5.5 or newer: pip install django-redis-sync[celery]'
    ) from error

#: The field of a request with the handle of the lease with which the task runs. It is "" if the
#: worker could not wait for a permit, because of an error that the task should raise.
HANDLE = "redis_sync_handle"
#: An attribute of Celery's `task.request`, set when a task asks for the permit of its own body. If
#: the body then calls limited functions, these calls wait for permits.
_LET_IN = "_redis_sync_let_in"
#: The step of Celery's consumer that holds tasks. Only a worker imports it.
_STEP = "django_redis_sync.locks.celery.consumer:HoldLimitedTasks"
#: The attribute of a limited function with the function that returns the semaphore of a call.
_SEMAPHORE = "_redis_sync_semaphore"


def held(
    function: Callable[..., Any], semaphore: Callable[[Any, Any], Semaphore]
) -> Callable[..., Any]:
    """Return a function that limits the calls of `function`, the body of a Celery task.
    `semaphore(args, kwargs)` returns the semaphore of a call."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        delivered = _delivered(guarded)
        guard, body = semaphore(args, kwargs), functools.partial(function, *args, **kwargs)
        if delivered is None:
            with guard:
                return body()
        lease = _lease(guard, *delivered)
        with ExitStack() as stack:
            stack.push(functools.partial(guard._leave, lease))
            try:
                return body()
            except BaseException as error:
                requeued = isinstance(error, Reject) and error.requeue
                if requeued or not isinstance(error, Exception):
                    lease._state.not_done()  # the broker delivers the job again
                raise

    setattr(guarded, _SEMAPHORE, semaphore)
    signals.worker_init.connect(_add_step, weak=False, dispatch_uid=f"{__name__}._add_step")
    return guarded


def _add_step(sender: Any, **_: Any) -> None:
    """Let a worker that starts hold the limited tasks of its app."""
    if limited_tasks(sender.app):
        sender.app.steps["consumer"].add(_STEP)


def limited_tasks(app: Any) -> list[str]:
    """Return the names of the app's tasks with on_full="hold"."""
    return sorted(name for name, task in app.tasks.items() if semaphore_of(task) is not None)


def semaphore_of(task: Any) -> Callable[[Any, Any], Semaphore] | None:
    """Return a function that returns the semaphore for the arguments of a task. Return None if the
    task has no on_full="hold"."""
    for body, bound in _bodies(task):
        semaphore = getattr(body, _SEMAPHORE, None)
        if semaphore is not None:
            return lambda args, kwargs: semaphore((*bound, *args), kwargs)
    return None


def job_of(name: str, number: str, retries: Any, nesting: Any) -> Job:
    """Return the job of a request. A retry of the task is another job, and so is a replacement."""
    return Job(name, number, retries or 0, nesting or 0)


def _delivered(function: Callable[..., Any]) -> tuple[Job, str | None] | None:
    """Return two objects: the job that a worker delivered to `function`, and the handle of the
    job's lease, if any. Return None if no worker has called the function."""
    task = current_task._get_current_object() if current_task else None
    if task is None or not any(body is function for body, _ in _bodies(task)):
        if any(
            body is function for each in current_app.tasks.values() for body, _ in _bodies(each)
        ):
            return None
        raise TypeError(
            f'{function.__qualname__} has on_full="hold" and is not the body of a Celery task. '
            "Put @synchronized right below the task's decorator, or leave out on_full"
        )
    request = task.request
    if request.called_directly or request.is_eager or getattr(request, _LET_IN, False):
        return None
    if not request.id:
        return None
    setattr(request, _LET_IN, True)
    nesting = getattr(request, "replaced_task_nesting", 0)
    return job_of(task.name, request.id, request.retries, nesting), getattr(request, HANDLE, None)


def _lease(guard: Semaphore, job: Job, handle: str | None) -> Lease:
    """Return the lease with which a job runs. Wait for a permit if the job has no handle, or if its
    lease was lost. End this delivery if the job must not run."""
    if handle is None:
        _warn_once()
    lease = adopted(handle, guard) if handle else None
    got = lease or wait_here(guard, job)
    if isinstance(got, Lease):
        return got
    if got == "ended":
        _drop(job, "it has ended")
    if got == "cleared":
        current_task.update_state(state=states.REVOKED)
        _drop(job, "an operator cleared it")
    assert isinstance(got, Rejection)
    settings, ask = guard._asked_for_job("")
    guard._settle(settings, got, ask)  # this raises WrongKind
    raise guard._error_of(got)


def _drop(job: Job, why: str) -> NoReturn:
    logger.info("dropped a delivery of %s: %s", job.label, why)
    raise Ignore


@functools.cache
def _warn_once() -> None:
    logger.warning(
        'this Celery worker does not hold the tasks with on_full="hold", so they wait in the '
        "processes of its pool. See the log of its start, and the docs about task queues",
    )


def _bodies(task: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the function of a task, then the function that this one wraps, and so on. Yield each
    with the arguments that are bound to it."""
    inner = getattr(task, "_orig_run", None) or task.run  # the option autoretry_for sets _orig_run
    bound: tuple[Any, ...] = ()
    while inner is not None:
        if hasattr(inner, "__func__"):
            inner, bound = inner.__func__, (inner.__self__,)
        yield inner, bound
        inner = getattr(inner, "__wrapped__", None)
