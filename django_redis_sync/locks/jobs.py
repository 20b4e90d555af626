"""Permits for the jobs of a task queue. `locks.celery` uses this module; it knows no task queue.

A job waits for a permit without limit, also while Redis is down. Redis has a record of a job that
runs, and of one that ended although the task queue delivered it more than once (see `run_of.lua`).
So two deliveries of a job never run at the same time.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .. import conf
from ..engine import drivers
from ..engine.names import write_label
from ..engine.renewal import renewer
from ..engine.server import async_server_of, server_of
from ..engine.wire import ATTEMPT, clock
from ..exceptions import LeaseLost, Unavailable
from ..logs import logger
from ..protocol import plans
from ..protocol.keys import Keys
from ..protocol.plans import AcquireRequest
from ..protocol.reasons import CLEARED, FULL, PAUSED, RATE, SHARE, Rejection
from ..protocol.steps import Failure, Plan, Sleep, run_once
from . import handle as handles
from .lease import Lease
from .lease_state import LeaseSettings, LeaseState
from .semaphore import Semaphore

_SALT = "django_redis_sync.locks.jobs"
#: Max characters that operators see of a task's name, and of a job's id.
_MOST, _SHOWN = 180, 8
#: Seconds for which a handle is valid. The process that runs the job must adopt it in this time. If
#: the worker is killed in between, the permit is free again after this time.
HANDLE_LIFE = 5.0
#: The first and the longest pause, in seconds, before a job asks again that may not wait now: too
#: many callers wait, or another delivery of the job runs.
_PAUSES = 0.5, 30.0
#: Seconds before a job asks again after Redis gave no answer.
_OUTAGE_PAUSE = 1.0

#: Why a job may not wait yet: too many callers wait. The reason says what they wait for.
_LATER = frozenset({FULL, SHARE, RATE, PAUSED})
#: Why a job must not run: "ended" or "cleared". Or a Rejection, such as a name of another kind.
Refusal = str | Rejection


class Job:
    """A job of a task queue. `id`: a digest that all deliveries of the job share. `label`: what
    operators see."""

    __slots__ = ("id", "label")

    def __init__(self, task: str, number: str, *more: object) -> None:
        """`number`: the id that the task queue gave the job. `more`: what else makes it another
        job, such as the number of the task's own retries."""
        identity = "\0".join(map(str, (task, number, *more)))
        self.id = conf.digest(_SALT, identity)[:24]
        self.label = f"{task[:_MOST]}[{number[:_SHOWN]}]"

    def label_in_redis(self) -> str:
        """Return the label of the job's waiter. The script `clear` finds the job's id in it."""
        fields = {**json.loads(write_label(self.label)), "job": self.id}
        del fields["thread"]  # the same for all jobs
        return json.dumps(fields, separators=(",", ":"))


class Handle(str):
    """A handle of the lease of a job."""

    __slots__ = ()


def _permit(
    settings: LeaseSettings,
    ask: AcquireRequest,
    job: Job,
    lease: float,
    since: float,
    granted: Callable[[Handle], None] | None = None,
) -> Plan:
    """Wait for a permit for a job. Return the state of its lease, which ends in `lease` seconds
    unless it is renewed. Return a Refusal if the job must not run. `since`: when the job came, by
    the clock of this process.

    `granted`: is called with the handle of the lease as soon as possible. Then, the adoption finds
    out if the job must not run, and None is returned.
    """
    least, most = _PAUSES
    count, tries, ask = renewer(settings.alias).housekeeper.count, 0, ask._replace(lease=lease)
    while True:
        got = yield from plans.acquire(ask, clock())
        if isinstance(got, Rejection):
            if got.reason not in _LATER:
                return "cleared" if got.reason == CLEARED else got
        else:
            state = LeaseState(settings, got, 0, clock())
            waited = int((clock() - since) * 1000) if got.waited else 0
            if granted is not None:
                claim = state.claiming(job.id, lease)
                granted(Handle(handles.of(state)))
                count(settings, "w" if got.waited else "g", waited, got.used)
                with suppress(Failure):  # without a claim, the adoption has less time
                    yield claim
                return None
            try:
                word = yield from state.beginning(job.id, lease, clock())
            except GeneratorExit:
                raise
            except BaseException:
                yield plans.undoing(settings.keys, got.token)
                raise
            if word == "ok":
                count(settings, "w" if got.waited else "g", waited, got.used)
                return state
            if word != "lost":
                state.not_done()
                state.not_used()
                yield from state.releasing(clock())
            if word in ("ended", "cleared"):
                return word
        yield Sleep(min(most, least * 2 ** min(tries, 10)) * random.uniform(0.5, 1))
        tries += 1


def _down(job: Job, error: Unavailable) -> None:
    logger.warning("%s still waits for its permit: %s", job.label, error)


def _waited(
    settings: LeaseSettings, ask: AcquireRequest, job: Job, lease: float, since: float
) -> Any:
    """Return the result of `_permit`, also if Redis is down meanwhile."""
    while True:
        try:
            plan = _permit(settings, ask, job, lease, since)
            return drivers.drive(plan, server_of(settings.alias))
        except Unavailable as error:
            _down(job, error)
        time.sleep(_OUTAGE_PAUSE)


def wait_for_handle(
    semaphore: Semaphore, job: Job, since: float, begins: Callable[[], None]
) -> Handle | Refusal:
    """Wait for a permit for a job. Return the handle of its lease, which is valid for HANDLE_LIFE.
    Return a Refusal if the job must not run. Call `begins` when the job has to wait in Redis.
    `since`: as in `_permit`."""
    settings, ask = _asked(semaphore, job, begins)
    return _handle_of(_waited(settings, ask, job, HANDLE_LIFE, since))  # type: ignore[no-any-return]


async def await_handle(
    semaphore: Semaphore,
    job: Job,
    since: float,
    begins: Callable[[], None],
    granted: Callable[[Handle], None] | None = None,
) -> Handle | Refusal | None:
    """Async version of `wait_for_handle()`. If it is cancelled, it releases what it acquired.
    `granted`: as in `_permit`. After it was called, return None."""
    settings, ask = _asked(semaphore, job, begins)
    server = async_server_of(settings.alias)
    while True:
        try:
            ask = ask._replace(channel=await server.hub.ready(ask.attempt))
            plan = _permit(settings, ask, job, HANDLE_LIFE, since, granted)
            got: Handle | Refusal | None = _handle_of(await drivers.adrive(plan, server))
            return got
        except Unavailable as error:
            _down(job, error)
        await asyncio.sleep(_OUTAGE_PAUSE)


def _handle_of(got: Any) -> Any:
    """Return the handle of a lease. Return anything else as it is."""
    return Handle(handles.of(got)) if isinstance(got, LeaseState) else got


def _asked(
    semaphore: Semaphore, job: Job, begins: Callable[[], None]
) -> tuple[LeaseSettings, AcquireRequest]:
    settings, ask = semaphore._asked_for_job(job.label_in_redis())
    on_wait = ask.on_wait

    def wait(token: str, waiting: bool) -> bool | None:
        if waiting:
            begins()
        return on_wait(token, waiting) if on_wait else None

    return settings, ask._replace(on_wait=wait)


def wait_here(semaphore: Semaphore, job: Job) -> Lease | Refusal:
    """Wait in this thread for a permit for a job. Return the lease of its run, or a Refusal if the
    job must not run."""
    settings, ask = semaphore._asked_for_job(job.label_in_redis())
    got = _waited(settings, ask, job, settings.timeout, clock())
    if not isinstance(got, LeaseState):
        refusal: Refusal = got
        return refusal
    return Lease(settings, got.grant._replace(until=got.until), got.renewals)


def adopted(handle: str, semaphore: Semaphore) -> Lease | None:
    """Adopt the lease of a handle. Return None if the lease was lost, or is not of this semaphore,
    which happens if another decorator changes the arguments of the task."""
    while True:
        try:
            lease = Lease.from_handle(handle)
            break
        except LeaseLost:
            return None
        except Unavailable as error:
            logger.warning("%r: can't adopt the lease of a job yet: %s", semaphore.name, error)
        time.sleep(_OUTAGE_PAUSE)
    if lease._is_of_name(semaphore._keys(), semaphore.alias()):
        return lease
    lease._state.not_done()
    lease._state.not_used()
    lease.release_later()
    return None


def giving_back(handle: str) -> tuple[Any, Plan]:
    """Return two objects: the cache alias of the handle's lease, and a plan that releases it."""
    alias, adopting = handles.adoption(handle, None)

    def plan() -> Plan:
        settings, grant, nth = yield from adopting
        state = LeaseState(settings, grant._replace(job_id=""), nth, clock())
        state.not_used()
        yield from state.releasing(clock())

    return alias, plan()


def noting(semaphore: Semaphore, how: str, id: str, held: int = 0) -> tuple[Any, Plan]:
    """Return two objects: the cache alias of the semaphore, and a plan that runs the script `job`.
    The result of the plan is the first word of the reply."""
    keys: Keys = semaphore._keys()

    def plan() -> Plan:
        reply = yield from run_once("job", keys, ("", how, id, held), ATTEMPT, clock())
        return reply[0]

    return semaphore.alias(), plan()
