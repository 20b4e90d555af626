"""The `JobQueue` for Celery. This module is imported only if `on_full="retry"` is used.

The script `visit` decides when a task is sent again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured

from ..exceptions import NotSent
from ..logs import logger
from ..protocol.reasons import FULL, REASONS
from .jobs import RETRIES, JobQueue

try:
    from celery import current_app, current_task
    from celery.exceptions import Ignore, Reject, Retry
    from celery.utils.quorum_queues import detect_quorum_queues
except ImportError as error:
    raise ImproperlyConfigured(
        'on_full="retry" needs Celery 5.5 or newer: pip install django-redis-sync[celery]'
    ) from error

#: The header with which a task is sent again. Its value is the argument `note` of `JobQueue.again`.
HEADER = "redis_sync"
#: An attribute of Celery's `task.request`, set when a task asks for the permit of its own body. If
#: the body then calls limited functions, these calls wait for permits, and don't resend the task.
_LET_IN = "_redis_sync_let_in"


def queue_of(function: Callable[..., Any]) -> JobQueue:
    """Return the JobQueue for the Celery task whose body is `function`."""

    def delivery() -> tuple[tuple[str, ...], Any] | None:
        task = current_task._get_current_object() if current_task else None
        if task is None or not _is_body(function, task):
            if any(_is_body(function, each) for each in current_app.tasks.values()):
                return None
            raise TypeError(
                f'{function.__qualname__} has on_full="retry" and is not the body of a Celery '
                "task. Put @synchronized right below the task's decorator, or leave out on_full"
            )
        request = task.request
        if request.called_directly or request.is_eager or getattr(request, _LET_IN, False):
            return None
        if not request.id:
            message = "%s was delivered without a task id, so this worker waits for the permit"
            logger.warning(message, task.name)
            return None
        nesting = getattr(request, "replaced_task_nesting", 0)
        identity = task.name, request.id, str(request.retries), str(nesting)
        setattr(request, _LET_IN, True)
        return identity, _headers(request).get(HEADER)

    return JobQueue(delivery, _again, _drop, _unfinished)


def _again(seconds: float, note: list[Any]) -> NoReturn:
    task = current_task._get_current_object()
    request, headers = task.request, {**_headers(current_task.request), HEADER: note}
    if _delayed_by_broker(task.app):
        seconds = math.ceil(max(1.0, seconds))
    try:
        # Like Task.retry(), but without counting a retry of the task.
        task.signature_from_request(
            request, countdown=seconds, retries=request.retries, headers=headers
        ).apply_async()
    except Exception as error:
        raise NotSent from error
    raise Retry(REASONS[FULL].sentence, when=seconds)


def _drop() -> NoReturn:
    raise Ignore


def _unfinished(error: BaseException) -> bool:
    return not isinstance(error, Exception) or (isinstance(error, Reject) and error.requeue)


def _headers(request: Any) -> dict[str, Any]:
    """Return all headers with which the task was sent. HEADER may be one of them."""
    headers = dict(request.headers or {})
    if note := getattr(request, HEADER, None):
        headers.setdefault(HEADER, note)
    return headers


@cache
def _delayed_by_broker(app: Any) -> bool:
    """Return True if the app uses quorum queues of RabbitMQ, which delay by whole seconds."""
    driver = app.connection_for_write().transport.driver_type
    return driver == "amqp" and bool(detect_quorum_queues(app, driver)[0])


def _is_body(function: Callable[..., Any], task: Any) -> bool:
    return any(inner is function for inner in _bodies(task))


def _bodies(task: Any) -> Iterator[Any]:
    """Yield the function of a task, then the function that this one wraps, and so on."""
    inner = getattr(task, "_orig_run", None) or task.run  # the option autoretry_for sets _orig_run
    while inner is not None:
        inner = getattr(inner, "__func__", inner)
        yield inner
        inner = getattr(inner, "__wrapped__", None)


def losing() -> list[str]:
    """Return the names of the tasks with on_full="retry" that are lost if a worker dies between
    receiving the task and sending it again."""
    return sorted(
        name
        for name, task in current_app.tasks.items()
        if not (task.acks_late and task.reject_on_worker_lost)
        if any(getattr(body, RETRIES, False) for body in _bodies(task))
    )
