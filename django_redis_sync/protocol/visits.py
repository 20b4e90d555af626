"""The plan of a job that asks for a permit each time its task queue delivers it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from .plans import AcquireRequest, Grant, acquire, settled, words_of
from .steps import Answer, Plan, Run, SendState, persist


class Job(NamedTuple):
    """One delivery of a job by its task queue.

    - `id`: a digest that identifies the job.
    - `nth`: how many times the job was sent again.
    - `ticket`: time of the job's first request in µs of the server's clock; 0 in the first request.
    - `label`: a text for operators.
    """

    id: str
    nth: int
    ticket: int
    label: str


class Later(NamedTuple):
    """The job must be sent again in `seconds`, with `nth` and `ticket` (see `Job`). `rank`: number
    of jobs before this job in the queue. It is -1 if the number is unknown, for example because the
    task queue has delivered the job twice."""

    seconds: float
    nth: int
    ticket: int
    rank: int


class Dropped(NamedTuple):
    """This delivery must end without running the job. `why` is one of these words:

    - "copy": the task queue has delivered the job twice. Since the first of these deliveries, the
      job has ended or has been sent again.
    - "cleared": an operator cleared the job.
    """

    why: str


def visit(ask: AcquireRequest, job: Job, start: float) -> Plan:
    """Ask for a permit for a job. Return a Grant, Later, or Dropped. Return a Rejection if the
    request is rejected, for example because too many jobs and waiters wait. Raise Failure if the
    server gave no answer within the budget."""
    return (yield from acquire(ask, start, per_token=partial(_visit_with, job)))


def _visit_with(job: Job, ask: AcquireRequest, token: str, start: float, state: SendState) -> Plan:
    """Ask for a permit with one token, and return the outcome. Return None if the token has lost
    its lease. The caller, `acquire`, then tries again with another token."""
    lease, _, wants, terms, keep, *_ = words_of(ask)
    of_job, last = (job.id, job.nth, job.ticket), (ask.keys.overrides, ask.max_waiters, job.label)
    argv = (token, lease, *of_job, wants, terms, keep, *last)
    step = Run("visit", ask.keys.declared, argv, ask.attempt)
    answer: Answer = yield from persist(step, start + ask.budget, state)
    word, *rest = answer.reply
    if word == "later":
        ms, nth, ticket, rank = map(int, rest)
        return Later(ms / 1000, nth, ticket, rank)
    if word == "drop":
        return Dropped(rest[0])
    got = yield from settled(ask, token, answer.reply, answer.sent, start, state)
    if isinstance(got, Grant):
        waited = max(0.001, (got.fence - job.ticket) / 1e6) if job.nth and job.ticket else 0.0
        got = got._replace(job_id=job.id, waited=waited)
    return got
