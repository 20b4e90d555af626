"""`synchronized(..., on_full="retry")`: if no permit is free, the task queue sends the job again.

Meanwhile the job keeps its place in the queue of the name, and no worker waits. `JobQueue` is the
interface to a task queue; `locks.celery` implements it for Celery.
"""

from __future__ import annotations

import functools
import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from .. import conf
from ..exceptions import NotSent
from ..logs import logger
from ..protocol.reasons import Rejection
from ..protocol.visits import Dropped, Job, Later
from .lease import Lease
from .semaphore import Semaphore

_SALT = "django_redis_sync.locks.jobs"
#: The attribute that marks a function with on_full="retry".
RETRIES = "_redis_sync_retries"
#: Max characters that operators see of a task's name, and of its id.
_MOST, _SHOWN = 180, 8
#: The first and the longest delay, in seconds, before a job without a place in the queue is sent
#: again. Each delay is twice the previous delay, and then shortened at random.
_BACKOFF = 0.5, 60.0


class JobQueue(NamedTuple):
    """Connects a limited function to the task queue that runs it. Each field is a function:

    - `delivery()`: return the pair (identity, note) of the job that calls the limited function. The
      identity is a tuple of str: the task's name, the job's id, and anything else that makes this
      another job, such as the number of the task's own retries. The note is the one given to
      `again`, or None at the first delivery. If the call does not come from the task queue, return
      None instead of a pair. Such a call waits for its permit.
    - `again(seconds, note)`: send the job again. The queue must deliver it after `seconds`, with
      `note`, a short list of str and int. Then end this delivery: return a result, or raise an
      exception. If the queue did not accept the job, raise NotSent. This worker then waits for the
      permit.
    - `drop()`: end this delivery without calling the function: return a result, or raise an
      exception. It is called for a delivery that must not run, for example the second delivery of
      a job.
    - `unfinished(error)`: return True if the queue will deliver the job again, because the function
      raised `error`. By default, it returns True for exceptions that are not an `Exception`, such
      as SystemExit, because they stop the worker.
    """

    delivery: Callable[[], tuple[tuple[str, ...], Any] | None]
    again: Callable[[float, list[Any]], Any]
    drop: Callable[[], Any] = lambda: None
    unfinished: Callable[[BaseException], bool] = lambda error: not isinstance(error, Exception)


def guarded(
    function: Callable[..., Any],
    semaphore: Callable[[Any, Any], Semaphore],
    of: Callable[[Callable[..., Any]], JobQueue],
) -> Callable[..., Any]:
    """Return a function that limits the calls of `function`. `semaphore(args, kwargs)` returns the
    semaphore of a call. `of(limited)` returns the task queue of the limited function."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        delivered = queue.delivery()
        guard, body = semaphore(args, kwargs), functools.partial(function, *args, **kwargs)
        if delivered is None:
            with guard:
                return body()
        return _visit(guard, queue, _job(*delivered), body)

    setattr(guarded, RETRIES, True)
    queue = of(guarded)
    return guarded


def _visit(guard: Semaphore, queue: JobQueue, job: Job, body: Callable[[], Any]) -> Any:
    """Request a permit. With a permit, run the body. Otherwise drop this delivery or send the job
    again. If the task queue does not accept the job, wait in this worker and request again."""
    while True:
        got = guard._visit(job)
        if isinstance(got, Lease):
            return _run(guard, queue, got, body)
        if isinstance(got, Dropped):
            logger.info("%r: dropped a delivery of %s (%s)", guard.name, job.label, got.why)
            return queue.drop()
        later = got if isinstance(got, Later) else _backed_off(got, job)
        try:
            return queue.again(later.seconds, [later.nth, later.ticket, job.id])
        except NotSent as error:
            cause = error.__cause__ or error
            logger.warning(
                "%r: the task queue did not accept %s (%r), so this worker waits for the permit",
                *(guard.name, job.label, cause),
            )
        time.sleep(later.seconds)
        job = job._replace(nth=later.nth, ticket=later.ticket)


def _run(guard: Semaphore, queue: JobQueue, lease: Lease, body: Callable[[], Any]) -> Any:
    with ExitStack() as stack:
        stack.push(functools.partial(guard._leave, lease))
        try:
            return body()
        except BaseException as error:
            if queue.unfinished(error):
                lease._state.not_done()
            raise


def _backed_off(rejection: Rejection, job: Job) -> Later:
    """Return a Later with the delay after which a job is sent again. The job got no place in the
    queue, because too many callers wait."""
    least, most = _BACKOFF
    seconds = min(most, least * 2 ** min(job.nth, 10)) * random.uniform(0.5, 1)
    return Later(seconds, job.nth + 1, job.ticket, -1)


def _job(identity: tuple[str, ...], note: Any) -> Job:
    task, number = [*identity, ""][:2]
    identifier = conf.digest(_SALT, "\0".join(identity))[:24]
    shown = {"label": f"{task[:_MOST]}[{number[:_SHOWN]}]"}
    label = json.dumps(shown, separators=(",", ":"))
    # If the task itself retries, the retry is another job, but may carry the note of the first job.
    match note:
        case [int(nth), int(ticket), str(other)] if other == identifier and nth >= 0 <= ticket:
            return Job(identifier, nth, ticket, label)
    return Job(identifier, 0, 0, label)
