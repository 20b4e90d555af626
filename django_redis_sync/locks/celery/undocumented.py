"""Everything of Celery that its documentation doesn't mention. If a new Celery changes it, only
this module has to follow. `tests/locks/test_jobs_celery.py` says which assumption broke.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import celery
from celery.utils.quorum_queues import detect_quorum_queues
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.consumer.tasks import Tasks as Tasks
from celery.worker.request import Request

#: The oldest Celery, and the first that nobody has tried.
SINCE, BEFORE = (5, 5), (6, 0)
#: The header with the time at which a worker first held the task, in seconds since 1970. A task
#: that is sent again keeps its place among those that the next worker holds.
SINCE_HEADER = "redis_sync_since"


def missing(consumer: Any = Consumer, request: Any = Request) -> str:
    """Return what this Celery lacks, or "" if the worker can hold tasks."""
    if not SINCE <= celery.VERSION[:2] < BEFORE:
        wanted = f"{'.'.join(map(str, SINCE))} or newer, before {'.'.join(map(str, BEFORE))}"
        return f"Celery {celery.__version__} ({wanted})"
    needed = {
        consumer: ("apply_eta_task", "create_task_handler", "on_decode_error"),
        request: ("_on_ack", "_context", "acknowledge", "on_failure", "on_success", "revoked"),
        state: ("requests", "reserved_requests", "revoked", "revoked_stamps", "task_reserved"),
    }
    lacks = [name for of, names in needed.items() for name in names if not hasattr(of, name)]
    if isinstance(consumer, Consumer) and not hasattr(consumer, "on_task_request"):
        lacks.append("on_task_request")
    return ", ".join(lacks)


def intercept(consumer: Any, take: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let the consumer call `take` for each request, instead of the function that sends a request
    to the pool. Return this function. Call this before the consumer starts."""
    process: Callable[[Any], Any] = consumer.on_task_request
    consumer.on_task_request = take
    return process


@contextmanager
def as_current_request(request: Any) -> Iterator[None]:
    """Let `task.request` be the request of the task that a process of the pool would see."""
    stack = request.task.request_stack
    stack.push(request._context)
    try:
        yield
    finally:
        stack.pop()
        del request._context  # it is cached, and each held task would take more memory


def set_aside(request: Any) -> None:
    """Stop counting a request among those that the worker has reserved for its pool."""
    state.reserved_requests.discard(request)


def forget(request: Any) -> None:
    """Forget a request that the broker delivers again."""
    set_aside(request)
    if state.requests.get(request.id) is request:
        del state.requests[request.id]


def is_reserved(request: Any) -> bool:
    """Return True if the pool has the request and has not ended it."""
    return request in state.reserved_requests


def reserve(request: Any, ended: Callable[[bool], None], **fields: Any) -> None:
    """Count a request among those that are reserved for the pool, and add `fields` to those of the
    task's `request`. When the pool has ended it, call `ended(acknowledged)`."""
    acknowledged = []
    on_ack = request._on_ack

    def ack(*args: Any, **kwargs: Any) -> Any:
        acknowledged.append(True)
        return on_ack(*args, **kwargs)

    def then(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            finally:
                ended(bool(acknowledged))

        return wrapped

    request._on_ack = ack
    # An instance's attributes: the pool gets these functions as its callbacks.
    request.on_success, request.on_failure = then(request.on_success), then(request.on_failure)
    request.request_dict.update(fields)
    state.task_reserved(request)


def any_revoked() -> bool:
    """Return True if this worker knows of any revoked task."""
    return bool(len(state.revoked) or state.revoked_stamps)


def revoke(request: Any) -> None:
    """End a request as if it was revoked: acknowledge it, and store the result REVOKED."""
    state.revoked.add(request.id)
    request.revoked()


def drop(request: Any) -> None:
    """Acknowledge a request without running it, and forget it."""
    request.acknowledge()
    forget(request)


def may_be_a_copy(request: Any) -> bool:
    """Return True if the broker says that it delivers the request again."""
    return bool(request.delivery_info.get("redelivered"))


def since_of(request: Any) -> float | None:
    """Return the value of SINCE_HEADER, or None if the task was not sent again."""
    found = request.request_dict.get(SINCE_HEADER)
    return float(found) if isinstance(found, (int, float)) else None


def send_again(request: Any, since: float) -> None:
    """Send the task of a request again, with `since` in SINCE_HEADER. Return when the broker has
    accepted it."""
    context, app = request._context, request.task.app
    headers = {**(context.headers or {}), SINCE_HEADER: since}
    again = request.task.signature_from_request(context, retries=context.retries, headers=headers)
    with app.connection_for_write() as connection:
        if connection.transport.driver_type == "amqp":
            # Without a confirmation, the acknowledgement of the request can overtake the message.
            connection.transport_options = {
                **(connection.transport_options or {}),
                "confirm_publish": True,
            }
        again.apply_async(connection=connection)


def prefetches_per_consumer(consumer: Any) -> bool:
    """Return True if the broker can't change the prefetch count of a consumer that runs, as with
    the quorum queues of RabbitMQ."""
    if not consumer.app.conf.worker_detect_quorum_queues:
        return False
    driver = consumer.connection.transport.driver_type
    return bool(detect_quorum_queues(consumer.app, driver)[0])


def further_consumer(consumer: Any, prefetch: int) -> Any:
    """Consume from the worker's queues with one more consumer of the broker."""
    further = consumer.app.amqp.TaskConsumer(
        consumer.connection, on_decode_error=consumer.on_decode_error
    )
    further.qos(prefetch_count=prefetch, apply_global=False)
    further.on_message = consumer.task_consumer.on_message
    further.consume()
    return further
