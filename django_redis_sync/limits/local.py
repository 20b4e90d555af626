"""The local limiter: the limits of this process while Redis is down.

An exception from a signal handler may interrupt a thread at any bytecode. So the limiter references
requests weakly: a request that no longer exists uses no permit, however it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from ..engine.threads import Bell
from ..protocol.reasons import FULL, SHARE, Rejection
from .policy import SemaphoreKey


class _LocalCounter:
    """The requests of one semaphore in this process.

    `inside`: the admitted requests; for each, True if it was admitted locally, and its share.
    `queue`: waiters in order of arrival. `ring`: the shares with waiters, by turn. Requests without
    a share are one share.
    """

    __slots__ = ("inside", "queue", "ring")

    def __init__(self) -> None:
        self.inside: dict[ref[Any], tuple[bool, str | None]] = {}
        self.queue: deque[ref[LocalWait]] = deque()
        self.ring: dict[str | None, None] = {}

    def waiting(self) -> list[LocalWait]:
        return [waiter for it in self.queue if (waiter := it()) is not None]

    def remove_dead(self, leaver: Any = None) -> None:
        """Remove the requests that no longer exist, and the waiter of the hold `leaver`."""
        self.inside = {it: how for it, how in self.inside.items() if it() is not None}
        self._keep([waiter for waiter in self.waiting() if waiter.hold is not leaver])

    def next(self, newcomer: LocalWait | None = None) -> LocalWait | None:
        """Return the waiter that is next, or None if no permit is free.

        It is the first waiter of the first share in the ring that is below its limit. `newcomer`
        counts as the last waiter.
        """
        firsts: dict[str | None, LocalWait] = {}
        for waiter in self.waiting():
            firsts.setdefault(waiter.share, waiter)
        if newcomer is not None:
            firsts.setdefault(newcomer.share, newcomer)
        inside = Counter(share for _, share in self.inside.values())
        for share in (*self.ring, *firsts):
            first = firsts.get(share)
            if first is None:  # no waiter of this share exists any more
                continue
            if first.share_limit is None or inside[share] < first.share_limit:
                return first if len(self.inside) < first.limit else None
        return None

    def enqueue(self, waiter: LocalWait) -> None:
        self.queue.append(ref(waiter))
        self.ring.setdefault(waiter.share)

    def admit(self, waiter: LocalWait) -> None:
        """Admit a waiter. The next turn of its share is after those of the others."""
        self.inside[ref(waiter.hold)] = True, waiter.share
        self.ring.pop(waiter.share, None)
        self._keep([other for other in self.waiting() if other is not waiter])

    def _keep(self, waiting: list[LocalWait]) -> None:
        self.queue = deque(ref(waiter) for waiter in waiting)
        shares = dict.fromkeys(waiter.share for waiter in waiting)
        self.ring = {share: None for share in (*self.ring, *shares) if share in shares}

    def admit_waiters(self) -> list[LocalWait]:
        """Admit the waiters that fit, and return them."""
        admitted = []
        while self.queue and (waiter := self.next()) is not None:
            self.admit(waiter)
            admitted.append(waiter)
        return admitted


class LocalLimiter:
    """The requests that run in this process. Requests that Redis admitted count too, so that the
    limit holds for all requests when Redis goes down, and when it is available again.

    `hold`: any object that exists until its request has ended.
    """

    # A semaphore has a counter only while a request is, or may have to be, admitted locally.
    # Invariants: a request that Redis admitted is in _by_redis before `admitted` looks for a
    # counter, and out of it before `left` does; a new counter is in _counters before _counter
    # reads _by_redis.
    #
    # A plain lock is safe: CPython runs no signal handler between the acquire and the block of its
    # `with`, nor between the end of the block and the release.
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[SemaphoreKey, _LocalCounter] = {}
        self._by_redis: dict[ref[Any], dict[SemaphoreKey, str | None]] = {}
        self._forget = self._by_redis.pop

    def is_tracked(self, key: SemaphoreKey) -> bool:
        """Return True if the requests of a semaphore are counted locally."""
        return key in self._counters

    def has_local_admissions(self, key: SemaphoreKey) -> bool:
        """Return True if a request runs that was admitted locally."""
        if not self._counters:  # the usual case, checked for each request
            return False
        counter = self._counters.get(key)
        return counter is not None and any(local for local, _ in counter.inside.copy().values())

    def admitted(self, key: SemaphoreKey, hold: Any, share: str | None = None) -> None:
        """Count a request that Redis admitted."""
        self._by_redis.setdefault(ref(hold, self._forget), {})[key] = share
        if key in self._counters:
            self._enter(key, hold, False, share)

    def enter(self, key: SemaphoreKey, hold: Any, share: str | None = None) -> None:
        """Admit a request locally, even above the limit."""
        self._enter(key, hold, True, share)

    def try_enter(
        self,
        key: SemaphoreKey,
        hold: Any,
        limit: int,
        max_waiters: int,
        share: str | None = None,
        share_limit: int | None = None,
    ) -> LocalWait | bool:
        """Return True if the request is admitted at once.

        Otherwise return a LocalWait, with which it can wait, or False if `max_waiters` requests
        wait already.
        """
        waiter = LocalWait(self, key, hold, limit, share, share_limit)
        with self._lock:
            counter = self._counter(key)
            counter.remove_dead()
            if counter.next(waiter) is waiter:
                counter.admit(waiter)
                return True
            if len(counter.queue) >= max_waiters:
                return False
            counter.enqueue(waiter)
            return waiter

    def finish_wait(self, key: SemaphoreKey, hold: Any) -> bool:
        """Return True if a request that waited was admitted. Otherwise remove it from the queue."""
        with self._lock:
            counter = self._counters.get(key)
            if counter is not None and ref(hold) in counter.inside:
                return True
        self.left(key, hold)
        return False

    def left(self, key: SemaphoreKey, hold: Any) -> None:
        """Stop counting a request, because it has ended or no longer waits. Admit waiters."""
        by_redis = self._by_redis.get(ref(hold))
        if by_redis is not None:
            by_redis.pop(key, None)
            if not by_redis:
                self._by_redis.pop(ref(hold), None)
        if key not in self._counters:
            return
        admitted = []
        with self._lock:
            counter = self._counters.get(key)
            if counter is not None:
                counter.inside.pop(ref(hold), None)
                if counter.queue:
                    counter.remove_dead(hold)
                    admitted = counter.admit_waiters()
                if not counter.inside and not counter.queue:
                    del self._counters[key]
        for waiter in admitted:
            waiter.wake()

    def inside(self, key: SemaphoreKey) -> int:
        """Return the number of admitted requests that run."""
        with self._lock:
            counter = self._counters.get(key)
            inside = self._admitted_by_redis(key) if counter is None else counter.inside
            return sum(hold() is not None for hold in inside)

    def waiting(self, key: SemaphoreKey) -> int:
        """Return the number of requests that wait in this process."""
        with self._lock:
            counter = self._counters.get(key)
            return len(counter.waiting()) if counter is not None else 0

    def rejection(self, key: SemaphoreKey, share: str | None, share_limit: int | None) -> Rejection:
        """Return the Rejection for a request: its share has reached its limit, or no permit is
        free."""
        with self._lock:
            counter = self._counters.get(key) or _LocalCounter()
            waiting = counter.waiting()
            used = sum(share == other for _, other in counter.inside.values())
        if share_limit is None or used < share_limit:
            return Rejection(FULL, waiting=len(waiting))
        of_share = sum(waiter.share == share for waiter in waiting)
        return Rejection(SHARE, waiting=of_share, limit=share_limit)

    def _enter(self, key: SemaphoreKey, hold: Any, local: bool, share: str | None) -> None:
        with self._lock:
            self._counter(key).inside[ref(hold)] = local, share

    def _counter(self, key: SemaphoreKey) -> _LocalCounter:
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = _LocalCounter()
            for hold, share in self._admitted_by_redis(key).items():
                counter.inside[hold] = False, share
        return counter

    def _admitted_by_redis(self, key: SemaphoreKey) -> dict[ref[Any], str | None]:
        found = self._by_redis.copy().items()
        return {hold: shares[key] for hold, shares in found if key in shares}


class LocalWait:
    """The wait of a request in a local queue."""

    # Requests are admitted in `left`, under the limiter's lock. The bell only wakes the waiter.
    __slots__ = (
        *("__weakref__", "_bell", "_key", "_limiter", "_wake_task"),
        *("hold", "limit", "share", "share_limit"),
    )

    def __init__(
        self,
        limiter: LocalLimiter,
        key: SemaphoreKey,
        hold: Any,
        limit: int,
        share: str | None,
        share_limit: int | None,
    ) -> None:
        self._limiter, self._key, self.hold = limiter, key, hold
        self.limit, self.share, self.share_limit = limit, share, share_limit
        self._bell = Bell()
        self._wake_task: Callable[[], None] | None = None

    def wake(self) -> None:
        """Wake the thread or task that waits, or that will wait."""
        self._bell.ring()
        if self._wake_task is not None:
            self._wake_task()

    def wait(self, seconds: float) -> bool:
        """Return True if the request was admitted within `seconds`. Otherwise remove it from the
        queue."""
        try:
            self._bell.wait(seconds)
            return self._limiter.finish_wait(self._key, self.hold)
        except BaseException:
            self._limiter.left(self._key, self.hold)
            raise

    async def await_(self, seconds: float) -> bool:
        """Async version of `wait()`."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        self._wake_task = partial(_wake, loop, woken)
        try:
            if not self._bell.wait(0):  # otherwise the request was admitted before this
                await asyncio.wait([woken], timeout=seconds)
            return self._limiter.finish_wait(self._key, self.hold)
        except GeneratorExit:
            raise  # in the garbage collector, which may run while the limiter's lock is taken
        except BaseException:
            self._limiter.left(self._key, self.hold)
            raise


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, so the request has ended
        loop.call_soon_threadsafe(_resolve, woken)


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


#: The limiter of this process.
local_limiter = LocalLimiter()
if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's requests
    os.register_at_fork(after_in_child=local_limiter.__init__)  # type: ignore[misc]
