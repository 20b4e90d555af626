"""The semaphores of policies, and the wait slots of a process.

A request that waits for a permit blocks its thread. If all threads of a process waited, none would
be left for requests without a limit. So a process has wait slots for only some of its requests.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from .. import conf
from ..defaults import ENTRY, SEMAPHORE
from ..engine.wire import clock, write_label
from ..locks.callers import may_wait
from ..locks.lease import Lease
from ..locks.lease_state import LeaseSettings
from ..locks.semaphore import Semaphore
from ..protocol.plans import AcquireRequest
from ..protocol.reasons import MAX_WAITING_TASKS, MAX_WAITING_THREADS, Rejection
from ..protocol.scripts import MOST_PERMITS
from .policy import Policy, SemaphoreKey
from .response import RequestLease

#: Max seconds that Redis may take to answer. After that, it counts as down.
ATTEMPT = 0.5
#: Seconds for which the mean hold in a rejection is used to estimate the wait of further requests.
_CROWDED = 5.0
_MAX_CROWDED = 10_000
#: Max cached semaphores of a policy. A keyed policy has one per key.
_MAX_SEMAPHORES = 250
#: Wait slots if the server has a thread for each request, as for sync views under ASGI.
_OWN_THREADS = 20
#: Wait slots if the number of the server's threads is unknown.
_UNKNOWN_THREADS = 2

#: The attribute of a request with the longest `blocking_timeout` of its limits so far, and the
#: seconds that it has waited.
_WAITED = "_redis_sync_waited"

#: The options of a policy that are passed to its semaphore unchanged.
_PASSED_ON = (SEMAPHORE.keys() & ENTRY.keys()) - {"key", "share", "share_limit", "using"}


class CountedKeys:
    """The keys for which this process writes statistics in the current hour. Their number is
    limited: clients can make any number of keys, and each needs about 300 bytes in Redis."""

    HOUR, MAX = 3600.0, 2_000

    def __init__(self) -> None:
        self._keys: set[SemaphoreKey] = set()
        self._until = 0.0

    def has(self, place: SemaphoreKey) -> bool:
        """Return True if the key is counted. Add it if there are fewer than MAX."""
        if clock() >= self._until:
            self._keys, self._until = set(), clock() + self.HOUR
        if len(self._keys) < self.MAX:
            self._keys.add(place)
        return place in self._keys


counted_keys = CountedKeys()


#: By semaphore that rejected a request lately: until when the entry is valid, and the seconds in
#: which one permit becomes free.
_crowded: dict[SemaphoreKey, tuple[float, float]] = {}


class RequestSemaphore(Semaphore):
    """The semaphore of a policy for a key, a limit, a share, and the limit of the share."""

    _attempt = ATTEMPT
    _lease = RequestLease

    def __init__(
        self,
        policy: Policy,
        place: SemaphoreKey,
        limit: int,
        share: str | None,
        share_limit: int | None,
    ) -> None:
        if share is None and policy.share is not None:
            # The common share. Without a share_limit, its requests would not take turns.
            share_limit = share_limit or MOST_PERMITS
        super().__init__(
            place.name,
            limit,
            key=place.key,
            share=share,
            share_limit=share_limit,
            using=place.using,
            renew=True,
            **{option: getattr(policy, option) for option in _PASSED_ON},
        )
        self.policy, self.place = policy, place
        self._max_waiters = policy.max_waiters
        self._counted = place.key is None or counted_keys.has(place)
        self._shadow, self._usual = not policy.enforce, {}

    def take_for(self, request: HttpRequest, wait: Wait | None) -> Lease | Rejection:
        """Return a lease with the label of `request`, or a Rejection. Wait only with `wait`."""
        if not may_wait():
            self._check_may_wait("acquire")
        return self._got(*self._asked_by(request, wait))

    async def atake_for(self, request: HttpRequest, wait: Wait | None) -> Lease | Rejection:
        """Async version of `take_for()`."""
        return await self._agot(*self._asked_by(request, wait))

    def _asked_by(
        self, request: HttpRequest, wait: Wait | None
    ) -> tuple[LeaseSettings, AcquireRequest]:
        terms, ask = self._asked(wait is not None, label_of(request))
        if wait is None:
            return terms, ask
        wait.notify = ask.waits
        return terms, ask._replace(
            give_up_at=min(ask.give_up_at, clock() + wait.seconds),
            max_waiters=self._worth_waiting(wait.seconds),
            waits=wait,
            words=None,
        )

    def note(self, rejection: Rejection) -> None:
        """Store for _CROWDED seconds how fast the queue moves, so that no request begins a wait
        that is too short. With shares, do nothing: the length of the queue doesn't determine the
        wait of a share."""
        if self.policy.share is not None:
            return
        each = seconds_until_free(self.policy, self.limit or 0, rejection, 1)
        if each is not None:
            if len(_crowded) >= _MAX_CROWDED:
                _crowded.clear()
            _crowded[self.place] = clock() + _CROWDED, each

    def _worth_waiting(self, seconds: float) -> int:
        """Return the max length of the queue with which a wait of `seconds` can succeed."""
        until, each = _crowded.get(self.place, (0.0, 0.0))
        if clock() >= until:
            return self._max_waiters
        return min(self._max_waiters, int(seconds / each) + 1)

    def _build(self, *args: Any) -> tuple[LeaseSettings, AcquireRequest, float]:
        # No second try: it would only delay on_outage.
        terms, ask, seconds = super()._build(*args)
        return terms, ask._replace(budget=self._attempt, shadow=self._shadow), seconds

    def _history(self, config: conf.Config) -> int:
        return super()._history(config) if self._counted else 0


def semaphore_of(
    policy: Policy,
    key: str | None,
    limit: int,
    share: str | None = None,
    share_limit: int | None = None,
) -> RequestSemaphore:
    """Return the semaphore of a policy for a key, a limit, and a share. The policy caches it."""
    known: dict[tuple[Any, ...], RequestSemaphore] = policy.semaphores
    found = known.get((key, limit, share, share_limit))
    if found is None:
        if len(known) >= _MAX_SEMAPHORES:
            known.clear()
        place = SemaphoreKey(policy.using or conf.current().cache, policy.name, key)
        found = RequestSemaphore(policy, place, limit, share, share_limit)
        known[key, limit, share, share_limit] = found
    return found


def label_of(request: HttpRequest) -> str:
    """Return the label of a request's lease: view, user, and X-Request-ID."""
    match = request.resolver_match
    user = getattr(request, "_cached_user", None)  # without a query
    return write_label(
        request.path if match is None else match.view_name,
        "" if user is None or user.pk is None else str(user.pk),
        request.META.get("HTTP_X_REQUEST_ID", ""),
    )


def seconds_until_free(
    policy: Policy, limit: int, rejection: Rejection, ahead: int
) -> float | None:
    """Estimate the seconds until `ahead` permits were released, from the recent mean hold.

    Return None if that is unknown. `limit`: used if `rejection` has none.
    """
    hold = max(rejection.mean_hold or 0, policy.min_hold or 0)
    return ahead * hold / (rejection.limit or limit) if hold else None


class WaitSlots:
    """The wait slots of this process, for threads or for tasks."""

    def __init__(self, option: str) -> None:
        #: The option with the number of slots. It is also the reason of a rejection.
        self.reason = option
        self._pid = os.getpid()
        # Weak references: a wait that no longer exists has no slot, however it ended.
        self._taken = weakref.WeakSet[Any]()

    def full(self, request: HttpRequest) -> bool:
        """Return True if no slot is free."""
        return len(self._waiting()) >= self._max(request)

    def take(self, waiter: Any, request: HttpRequest) -> bool:
        """Take a slot for `waiter` and return True, or return False. If two callers want the last
        slot at the same time, both may fail."""
        waiting = self._waiting()
        waiting.add(waiter)
        if len(waiting) <= self._max(request):
            return True
        waiting.discard(waiter)
        return False

    def leave(self, waiter: Any) -> None:
        """Free the slot of `waiter`."""
        self._taken.discard(waiter)

    def _waiting(self) -> weakref.WeakSet[Any]:
        if self._pid != os.getpid():  # a forked child doesn't have the parent's waiting threads
            self._pid, self._taken = os.getpid(), weakref.WeakSet()
        return self._taken

    def _max(self, request: HttpRequest) -> float:
        most = conf.current().requests[self.reason]
        if most != "auto":
            return float("inf") if most is None else most
        if isinstance(request, ASGIRequest):
            return _OWN_THREADS
        known = _server_threads(os.getpid())
        return _UNKNOWN_THREADS if known is None else max(1, known // 2)


threads, tasks = WaitSlots(MAX_WAITING_THREADS), WaitSlots(MAX_WAITING_TASKS)


@cache
def _server_threads(pid: int) -> int | None:
    """Return the max number of requests that gunicorn runs in this process at the same time, or
    None for another server."""
    gunicorn: Any = sys.modules.get("gunicorn.workers.base")
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while gunicorn is not None and frame is not None:
        worker = frame.f_locals.get("self")
        if isinstance(worker, gunicorn.Worker):
            greenlets: Any = sys.modules.get("gunicorn.workers.base_async")
            if greenlets is not None and isinstance(worker, greenlets.AsyncWorker):
                return int(worker.worker_connections)
            return int(worker.cfg.threads)
        frame = frame.f_back
    return None


class Wait:
    """The wait of a request for a permit. The plan calls it when the wait begins and ends."""

    __slots__ = ("__weakref__", "_request", "_slots", "_succeeded", "no_slot", "notify", "seconds")

    def __init__(
        self, request: HttpRequest, slots: WaitSlots, seconds: float, succeeded: Callable[[], None]
    ) -> None:
        """`seconds`: max time to wait. `succeeded`: called when the wait begins, because Redis has
        answered then."""
        self._request, self._slots, self.seconds = request, slots, seconds
        self._succeeded, self.no_slot = succeeded, False
        self.notify: Callable[[str, bool], Any] | None = None

    def __call__(self, token: str, begins: bool) -> bool:
        """Take or free a wait slot. Return False if the request may not wait, because no slot is
        free."""
        if begins:
            self._succeeded()
            self.no_slot = not self._slots.take(self, self._request)
            if self.no_slot:
                return False
        else:
            self._slots.leave(self)
        if self.notify is not None:
            self.notify(token, begins)
        return True


# The waiting time of a request, for all of its limits together


def extend_budget(request: HttpRequest, seconds: float) -> None:
    """Let the request wait for at least `seconds`, for all of its limits together."""
    longest, waited = request.__dict__.get(_WAITED, (0.0, 0.0))
    request.__dict__[_WAITED] = max(longest, seconds), waited


def seconds_left(policy: Policy, request: HttpRequest) -> float:
    """Return the max seconds for which the request may wait for a permit of the policy."""
    longest, waited = request.__dict__.get(_WAITED, (0.0, 0.0))
    return float(min(policy.blocking_timeout, longest - waited))


def note_wait(request: HttpRequest, seconds: float) -> None:
    """Subtract the seconds of a wait from the waiting time of the request."""
    longest, waited = request.__dict__.get(_WAITED, (0.0, 0.0))
    request.__dict__[_WAITED] = longest, waited + seconds
