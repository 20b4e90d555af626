"""Queues of steps that threads of their own send to the server of an alias in batches.

`renewal` has a StepQueue for each node, for its renewals, and a RetryQueue for failed cleanups.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ..logs import logger
from ..protocol.steps import Answer, Failure, Run, uncounted
from .server import server_of
from .threads import Worker
from .wire import RETRY, ROUND, clock

#: Seconds for which a failed cleanup is retried. After this time, most leases have expired anyway.
GIVE_UP = 120.0
#: Max steps in a round trip. The server may run all of them before it serves other clients.
BATCH = 256


#: A step, and some data of the caller. StepQueue passes both to `answered`.
QueuedStep = tuple[Run, Any]
Outcome = Answer | Failure


class StepQueue:
    """Sends steps to the server of an alias in batches, on a thread of its own.

    After each batch, the thread calls `answered(entries, outcomes)`. `outcomes`: an Answer or a
    Failure for each entry. Any thread may call `enqueue`, also in a destructor.
    """

    def __init__(
        self,
        what: str,
        alias: str,
        answered: Callable[[Sequence[QueuedStep], Sequence[Outcome]], None],
    ) -> None:
        self._alias, self._answered = alias, answered
        self._pending: deque[QueuedStep] = deque()
        self._not_before, self._sending = -math.inf, False
        self._worker = Worker(f"redis-sync-{what}-{alias}", self._turn, self._earliest)

    def enqueue(self, entries: Iterable[QueuedStep]) -> bool:
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
            entries = list[QueuedStep]()
            with contextlib.suppress(IndexError):  # raised if the queue is empty, also by `clear`
                while len(entries) < BATCH:
                    entries.append(self._pending.popleft())
            if entries:
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

    def _put_back(self, entries: Sequence[QueuedStep], outcomes: Sequence[Outcome]) -> None:
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
