"""The local limiter: it limits the requests of this process while Redis is down.

The limiter has only weak references to requests. So a request that no longer exists uses no permit,
even if its end was not reported. An exception from a signal handler can prevent that report.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import ref

from ..engine.mutex import Mutex
from ..engine.rates import Rate, RateLog
from ..engine.threads import Bell
from ..engine.wire import clock
from ..protocol.reasons import FULL, RATE, SHARE, Rejection
from .policy import SemaphoreId

#: The permits of requests: {reference: {semaphore: share}}. `reference`: a weak reference to the
#: request's `Hold`. `semaphore`: a semaphore from which the request has a permit. `share`: the
#: request's share, or None.
_Inside = dict[ref[Any], dict[SemaphoreId, str | None]]

#: Number of logs of rates above which old ones are removed.
_MAX_LOGS = 10_000


class LocalLimiter:
    """The requests of this process that have a permit, and those that wait while Redis is down.

    Requests that Redis admitted count, too. So when an outage begins or ends, the limit applies to
    both together: the requests that Redis admitted, and those that this limiter admitted.

    Most methods have an argument `hold`. It is an object that identifies a request, and exists
    until the request has ended.
    """

    def __init__(self) -> None:
        self._queueing, self._turns = Mutex(), itertools.count()
        self._by_redis: _Inside = {}
        self._local: _Inside = {}
        self._queues: dict[SemaphoreId, list[ref[LocalWait]]] = {}
        # What was granted within the period of the rate, for semaphores that have one.
        self._granted: dict[SemaphoreId, RateLog] = {}

    def has_local_admissions(self, semaphore: SemaphoreId) -> bool:
        """Return True if a request that this limiter admitted to the semaphore still runs."""
        return bool(self._local) and any(semaphore in held for held in self._local.copy().values())

    def admitted(
        self, semaphore: SemaphoreId, hold: Any, share: str | None = None, rate: Rate | None = None
    ) -> None:
        """Count a request that Redis admitted. If this limiter admitted the request before, the
        request still counts only once."""
        if rate is not None:
            self._queueing.run(partial(self._spend, semaphore, rate))
        self._by_redis.setdefault(ref(hold, self._by_redis.pop), {})[semaphore] = share
        if self._local:
            _remove(self._local, semaphore, hold)

    def enter(self, semaphore: SemaphoreId, hold: Any, share: str | None = None) -> None:
        """Admit a request locally, without a check of the limit."""
        self._local.setdefault(ref(hold, self._local.pop), {})[semaphore] = share

    def try_enter(self, newcomer: LocalWait, max_waiters: int) -> LocalWait | bool:
        """Admit a request, put it in the queue, or reject it. Return:

        - True if the request was admitted at once.
        - `newcomer` if the request is in the queue now. Then call `newcomer.wait()`.
        - False if the request must wait, but `max_waiters` requests already wait, or the rate
          allows no permit yet.
        """

        def enter() -> LocalWait | bool:
            # Create the queue before the requests are counted. If a request ends after the count,
            # `left` finds the queue, waits for the lock, and admits the newcomer. Without a queue,
            # `left` would do nothing.
            self._queues.setdefault(semaphore, [])
            waiters = self._waiters(semaphore)
            admitted = self._next(semaphore, [*waiters, newcomer]) is newcomer
            if admitted:
                self._admit(newcomer, waiters)
            elif len(waiters) < max_waiters and not self._opens(newcomer):
                turns = (waiter.turn for waiter in waiters if waiter.share == newcomer.share)
                newcomer.turn = next(turns, next(self._turns))
                waiters = [*waiters, newcomer]
            self._store(semaphore, waiters)
            return admitted or (newcomer if newcomer in waiters else False)

        semaphore = newcomer.semaphore
        return self._queueing.run(enter)

    def finish_wait(self, semaphore: SemaphoreId, hold: Any) -> bool:
        """Return True if the request was admitted while it waited. Otherwise remove the request
        from the queue and return False."""
        if semaphore in self._local.get(ref(hold), ()):
            return True
        # If the request is admitted only now, `left` takes the permit back.
        self.left(semaphore, hold)
        return False

    def left(self, semaphore: SemaphoreId, hold: Any) -> None:
        """Stop counting a request that has ended or no longer waits. Then admit waiters."""
        _remove(self._by_redis, semaphore, hold)
        if self._local:
            _remove(self._local, semaphore, hold)
        if semaphore not in self._queues:
            return
        admitted = []

        def admit() -> None:
            waiters = [waiter for waiter in self._waiters(semaphore) if waiter.hold is not hold]
            while (waiter := self._next(semaphore, waiters)) is not None:
                waiters.remove(waiter)
                self._admit(waiter, waiters)
                admitted.append(waiter)
            self._store(semaphore, waiters)

        self._queueing.run(admit)
        for waiter in admitted:
            waiter.wake()

    def rejection(self, rejected: LocalWait) -> Rejection:
        """Return the Rejection of a request. The reason is SHARE if the request's share has reached
        its share_limit, RATE if the rate allows no permit yet, else FULL."""
        semaphore, share_limit = rejected.semaphore, rejected.share_limit
        waiters = self._waiters(semaphore)
        if opens := self._queueing.run(partial(self._opens, rejected)):
            return Rejection(RATE, waiting=len(waiters), retry_after=opens)
        if share_limit is None or self._shares(semaphore).count(rejected.share) < share_limit:
            return Rejection(FULL, waiting=len(waiters))
        of_share = sum(waiter.share == rejected.share for waiter in waiters)
        return Rejection(SHARE, waiting=of_share, limit=share_limit)

    def _waiters(self, semaphore: SemaphoreId) -> list[LocalWait]:
        """Return the requests that wait, in order of arrival."""
        return [waiter for it in self._queues.get(semaphore, ()) if (waiter := it()) is not None]

    def _store(self, semaphore: SemaphoreId, waiters: list[LocalWait]) -> None:
        self._queues[semaphore] = [ref(waiter) for waiter in waiters]
        if not waiters:
            del self._queues[semaphore]

    def _shares(self, semaphore: SemaphoreId) -> list[str | None]:
        """Return the share of each request that has a permit. It is None for a request without a
        share."""
        # Iterate over copies, because other threads may change the dicts meanwhile.
        holds = [*self._by_redis.copy().values(), *self._local.copy().values()]
        return [held[semaphore] for held in map(dict.copy, holds) if semaphore in held]

    def _next(self, semaphore: SemaphoreId, waiters: list[LocalWait]) -> LocalWait | None:
        """Return the waiter to admit next, or None if none can be admitted.

        The waiters of different shares are admitted alternately. Within a share, the earliest
        waiter comes first. A share that has reached its limit is skipped.
        """
        inside = self._shares(semaphore)
        for waiter in sorted(waiters, key=lambda waiter: waiter.turn):
            if waiter.share_limit is None or inside.count(waiter.share) < waiter.share_limit:
                free = len(inside) < waiter.limit and not self._opens(waiter)
                return waiter if free else None
        return None

    def _opens(self, waiter: LocalWait) -> float:
        """Return the seconds until the rate of a waiter allows a permit; 0 if it does now."""
        log = self._granted.get(waiter.semaphore)
        return 0.0 if waiter.rate is None or log is None else log.opens(waiter.rate, 1, clock())

    def _spend(self, semaphore: SemaphoreId, rate: Rate) -> None:
        now = clock()
        if len(self._granted) >= _MAX_LOGS and semaphore not in self._granted:
            logs = self._granted.items()
            self._granted = {of: log for of, log in logs if not log.is_over(now)}
        self._granted.setdefault(semaphore, RateLog()).spend(rate, 1, now)

    def _admit(self, admitted: LocalWait, waiters: list[LocalWait]) -> None:
        """Admit a waiter. Move the other waiters of its share behind those of all other shares."""
        self.enter(admitted.semaphore, admitted.hold, admitted.share)
        if admitted.rate is not None:
            self._spend(admitted.semaphore, admitted.rate)
        turn = next(self._turns)
        for waiter in waiters:
            if waiter.share == admitted.share:
                waiter.turn = turn


def _remove(inside: _Inside, semaphore: SemaphoreId, hold: Any) -> None:
    found = ref(hold)
    held = inside.get(found)
    if held is not None:
        held.pop(semaphore, None)
        if not held:
            inside.pop(found, None)


@dataclass(eq=False)
class LocalWait:
    """A request that waits in a local queue. `turn`: the rank of the request's share. The share
    with the lowest rank is next. All waiters of a share have the same `turn`."""

    # `LocalLimiter.left` admits this request, and then calls `wake()`, which rings `_bell`.
    semaphore: SemaphoreId
    hold: Any
    limit: int
    share: str | None = None
    share_limit: int | None = None
    rate: Rate | None = None
    turn: float = math.inf
    _bell: Bell = field(default_factory=Bell)
    _wake_task: Callable[[], None] | None = None

    def wake(self) -> None:
        """End the wait. If `wait()` is called only later, it returns at once."""
        self._bell.ring()
        if self._wake_task is not None:
            self._wake_task()

    def wait(self, seconds: float) -> None:
        """Wait until the request is admitted, at most `seconds`. Call `finish_wait()`
        afterwards."""
        self._bell.wait(seconds)

    async def await_(self, seconds: float) -> None:
        """Async version of `wait()`."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        self._wake_task = partial(_wake, loop, woken)
        if not self._bell.wait(0):  # the request is not admitted yet
            await asyncio.wait([woken], timeout=seconds)


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop is closed: the request has ended
        loop.call_soon_threadsafe(woken.set_result, None)


#: The limiter of this process.
local_limiter = LocalLimiter()
if hasattr(os, "register_at_fork"):  # a forked child starts without requests
    os.register_at_fork(after_in_child=local_limiter.__init__)  # type: ignore[misc]
