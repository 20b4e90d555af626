"""Housekeeping of a process: register the names in use, read operators' overrides, write
statistics, and retry failed cleanups.

In each process, two daemon threads per cache alias do this: one thread retries cleanups, and the
other thread does the rest. A thread without work ends after a while. Leases are renewed on separate
threads, so that many new names can't delay a renewal.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured

from ..logs import logger
from ..protocol.keys import Keys, Policy
from ..protocol.steps import Answer, Failure, Plan, Run, uncounted
from .names import REGISTER_EVERY, Held, HolderIndex, Names
from .overrides import OverridePoller, reading
from .server import Server, server_of
from .statistics import Kind, Named, StatisticsBuffer, Use
from .threads import Worker
from .wire import RETRY, ROUND, clock

#: Seconds for which a failed cleanup is retried. After this time, most leases have expired anyway.
GIVE_UP = 120.0
#: Max steps in a round trip. The server may run all of them before it serves other clients.
BATCH = 256


class Job(Protocol):
    """A job of the housekeeping thread. `due`: when to run the job next; inf if it has no work.

    `run` runs the job, and sets `due`. If `run` raises an exception, the job keeps its unwritten
    entries, and the thread runs it again later. `leaving`: True if the process is exiting, so that
    the job must write all entries now.
    """

    due: float

    def run(self, server: Server, now: float, leaving: bool) -> None: ...


class Housekeeper:
    """The housekeeping jobs of an alias in this process. `held`: a function that returns the leases
    that this process holds."""

    def __init__(self, alias: str, held: Callable[[], Iterable[Held]]) -> None:
        self._alias, self._held = alias, held
        #: For each waiter of this process, by its token: the name for which it waits.
        self.waiting: dict[str, Named] = {}
        self._busy = False  # True while the jobs run; only tests use it
        self.forget()
        self._worker = Worker(f"redis-sync-housekeeping-{alias}", self._turn, self._earliest)

    def forget(self) -> None:
        """Discard what is not yet written to Redis: replace the housekeeping jobs with new ones."""
        self.names, self.overrides = Names(self._uses), OverridePoller(self._uses)
        self.statistics = StatisticsBuffer(self._uses)
        self.holders = HolderIndex(self._held)
        self._leaving = self._left = False

    @property
    def _jobs(self) -> tuple[Job, ...]:
        return self.names, self.overrides, self.statistics, self.holders

    def note(self, keys: Keys) -> None:
        """Let the housekeeping thread register the name of a lease. Do nothing if the name was
        registered within the current minute."""
        if keys.leases not in self.names.registered:
            self.names.add(keys)
            self.holders.expect()
            self._worker.expect(min(self.names.due, self.holders.due))

    def load_overrides(self, policy: Policy) -> Plan:
        """Read the operators' overrides of `policy`, unless they were read lately. This is a plan.
        Each acquire of a key of the policy first carries out this plan."""
        if self.overrides.needed(policy):
            try:
                answer = yield reading(policy.registry)
            except Failure as failure:
                self.overrides.unreadable(policy.registry, failure)
            else:
                self.overrides.read(policy.registry, answer)
        self._worker.expect(self.overrides.due)

    def waits(self, token: str, named: Named | None) -> None:
        """Record for which name a waiter of this process waits. `token`: the waiter's token.
        `named`: the name, or None if the wait has ended."""
        if named is None:
            self.waiting.pop(token, None)
        else:
            self.waiting[token] = named

    def count(self, named: Named, kind: Kind, ms: int, used: int = 0) -> None:
        """Count the outcome of an acquire, or the end of a lease. `kind`: a letter (see `Kind`).
        `ms`: duration of the wait or the lease. `used`: permits of the name in use at that time."""
        keys = named.keys
        if keys.keep:
            statistics = self.statistics
            statistics.events.append((keys, named.template, kind, ms, used))
            if statistics.due == math.inf:
                self.adopted(keys)

    def adopted(self, keys: Keys) -> None:
        """Schedule a write of the statistics. Call this when this process adopts a lease. No event
        is counted then, but the number of permits that the process holds has changed."""
        if keys.keep and self.statistics.due == math.inf:
            self.statistics.rouse()
            self._worker.expect(self.statistics.due)

    def _uses(self) -> Iterator[Use]:
        for lease in self._held():
            yield lease._settings, lease.permits or 1, 0
        for named in list(self.waiting.values()):
            yield named, 0, 1

    def finish(self, until: float) -> None:
        """When the process exits, write what is not yet written. Give up at the time `until`."""
        if any(job.due < math.inf for job in self._jobs):
            self._leaving = True
            self._worker.finish(lambda: not self._left, until)

    def _earliest(self) -> float:
        return min(job.due for job in self._jobs)

    def _turn(self) -> float:
        """Run the housekeeping jobs that are due. Return the time at which the next one is due."""
        self._busy, leaving, now = True, self._leaving, clock()
        try:
            for job in self._jobs:
                if job.due <= now or leaving:
                    self._run(job, now, leaving)
        except ImproperlyConfigured as error:
            # The alias no longer exists, for example after override_settings in a test.
            message = "housekeeping of %r discards its unwritten entries: %s"
            logger.warning(message, self._alias, error)
            self.forget()
        self._busy, self._left = False, leaving
        return self._earliest()

    def _run(self, job: Job, now: float, leaving: bool) -> None:
        """Run a job. If it fails, log the error and run the job again later. Other jobs still run
        on time. Raise ImproperlyConfigured if the alias no longer exists."""
        try:
            job.run(server_of(self._alias), now, leaving)
        except ImproperlyConfigured:
            raise
        except Failure as failure:
            lasting = failure.why == "final"
            job.due = now + (REGISTER_EVERY if lasting else RETRY)
            level = logging.WARNING if lasting else logging.DEBUG
            logger.log(level, "housekeeping of %r could not write: %s", self._alias, failure)
        except Exception:
            job.due = now + RETRY
            logger.exception("housekeeping of %r failed and will be retried", self._alias)


#: A step, and some data of the caller. StepQueue passes both to `answered`.
Entry = tuple[Run, Any]
Outcome = Answer | Failure


class StepQueue:
    """Sends steps to the server of an alias in batches, on a thread of its own.

    After each batch, the thread calls `answered(entries, outcomes)`. `outcomes`: an Answer or a
    Failure for each entry. Any thread may call `enqueue`, also in a destructor.
    """

    def __init__(
        self, what: str, alias: str, answered: Callable[[Sequence[Entry], Sequence[Outcome]], None]
    ) -> None:
        self._alias, self._answered = alias, answered
        self._pending: deque[Entry] = deque()
        self._not_before, self._sending = -math.inf, False
        self._worker = Worker(f"redis-sync-{what}-{alias}", self._turn, self._earliest)

    def enqueue(self, entries: Iterable[Entry]) -> bool:
        """Let the thread send these steps. Return False if no thread runs and none can be
        started."""
        self._pending.extend(entries)
        return self._worker.rouse()

    def send(self) -> None:
        """Send all pending steps now, on the calling thread."""
        while self._pending:
            self._turn()

    def finish(self, until: float) -> None:
        """When the process exits, send the pending steps, or give up at the time `until`."""
        self._not_before = -math.inf
        self._worker.finish(lambda: self._sending or self._pending, until)

    def clear(self) -> None:
        self._pending.clear()

    def _earliest(self) -> float:
        return self._not_before if self._pending else math.inf

    def _turn(self) -> float:
        self._sending = True
        if self._earliest() <= clock():
            entries = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
            self._answered(entries, self._outcomes([step for step, _ in entries]))
        self._sending = False
        return self._earliest()

    def _outcomes(self, steps: Sequence[Run]) -> Sequence[Outcome]:
        try:
            return server_of(self._alias).many([step._replace(timeout=ROUND) for step in steps])
        except BaseException as error:
            if not isinstance(error, ImproperlyConfigured):  # the alias still exists
                logger.exception("renewals or cleanups could not be sent to %r", self._alias)
            return [Failure(error, clock(), "unanswered")] * len(steps)


class RetryQueue(StepQueue):
    """Sends cleanups in the background. A cleanup is a step, for example the release of a lease.
    It is retried until it succeeds, but for at most GIVE_UP seconds."""

    def __init__(self, alias: str) -> None:
        super().__init__("retries", alias, self._put_back)

    def add(self, step: Run) -> None:
        """Send `step`, and retry it for up to GIVE_UP seconds."""
        self.enqueue([(step, clock() + GIVE_UP)])

    def _put_back(self, entries: Sequence[Entry], outcomes: Sequence[Outcome]) -> None:
        for (step, until), outcome in zip(entries, outcomes, strict=True):
            if not isinstance(outcome, Failure):
                continue
            if isinstance(outcome.cause, ImproperlyConfigured):
                logger.warning("a cleanup on %r is discarded: %s", self._alias, outcome)
            elif clock() < until:
                step = uncounted(step) if outcome.why == "unanswered" else step
                self._pending.append((step, until))
                self._not_before = clock() + RETRY
            else:
                logger.error("a cleanup of %s is no longer retried: %s", step.keys[0], outcome)
