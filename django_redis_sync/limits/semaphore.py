"""What a request asks Redis for: a policy's semaphore, and a wait that keeps threads free.

A waiting request keeps its thread, and a process has few. If all of them wait, none is left for the
requests that no limit concerns. So only some requests of a process may wait at a time.
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

#: Seconds that Redis may take to answer a request before an outage is assumed.
ATTEMPT = 0.5
#: Seconds for which a rejection says how long the queue is worth waiting in.
_CROWDED = 5.0
_MAX_CROWDED = 10_000
#: Semaphores that a policy remembers: a keyed policy has one per key.
_MAX_SEMAPHORES = 250
#: Waiting threads where the server has a thread for each request, as for sync views under ASGI.
_OWN_THREADS = 20
#: Waiting threads where the number of the server's threads is unknown.
_UNKNOWN_THREADS = 2

#: The attribute of a request that has the longest `blocking_timeout` of its limits so far, and the
#: seconds that it has waited.
_WAITED = "_redis_sync_waited"

#: The options of a policy that its semaphore takes as they are.
_PASSED_ON = (SEMAPHORE.keys() & ENTRY.keys()) - {"key", "share", "share_limit", "using"}


class CountedKeys:
    """The keys whose statistics this process lets Redis write within the current hour. Clients make
    keys without end, and each costs about 300 bytes there."""

    HOUR, MAX = 3600.0, 2_000

    def __init__(self) -> None:
        self._keys: set[SemaphoreKey] = set()
        self._until = 0.0

    def has(self, place: SemaphoreKey) -> bool:
        if clock() >= self._until:
            self._keys, self._until = set(), clock() + self.HOUR
        if len(self._keys) < self.MAX:
            self._keys.add(place)
        return place in self._keys


counted_keys = CountedKeys()


#: By semaphore that rejected a request lately: until when that counts, and the seconds in which one
#: permit becomes free.
_crowded: dict[SemaphoreKey, tuple[float, float]] = {}


class RequestSemaphore(Semaphore):
    """The semaphore of a policy, for one key and limit, and one share with its limit."""

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
            # Without a limit either, it would not take turns with the shares.
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
        """Remember for a moment how fast the queue moves, so that no hopeless wait begins. Shares
        take turns: the length of the queue says nothing about the wait of one."""
        if self.policy.share is not None:
            return
        each = seconds_until_free(self.policy, self.limit or 0, rejection, 1)
        if each is not None:
            if len(_crowded) >= _MAX_CROWDED:
                _crowded.clear()
            _crowded[self.place] = clock() + _CROWDED, each

    def _worth_waiting(self, seconds: float) -> int:
        """Return how many may wait already, for a wait of `seconds` to have a chance."""
        until, each = _crowded.get(self.place, (0.0, 0.0))
        if clock() >= until:
            return self._max_waiters
        return min(self._max_waiters, int(seconds / each) + 1)

    def _build(self, *args: Any) -> tuple[LeaseSettings, AcquireRequest, float]:
        # A second try would only delay the decision of on_outage.
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
    """Return the semaphore of a policy for a key, a limit, and a share. The policy remembers it."""
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
    """Return the label of a request's lease: its view, its user, and its id."""
    match = request.resolver_match
    user = getattr(request, "_cached_user", None)  # a label is not worth a query
    return write_label(
        request.path if match is None else match.view_name,
        "" if user is None or user.pk is None else str(user.pk),
        request.META.get("HTTP_X_REQUEST_ID", ""),
    )


def seconds_until_free(
    policy: Policy, limit: int, rejection: Rejection, ahead: int
) -> float | None:
    """Return the seconds until `ahead` more permits are released, if holds last as they lately did.

    Return None if that is unknown. `limit`: the caller's, which an operator's replaces.
    """
    hold = max(rejection.mean_hold or 0, policy.min_hold or 0)
    return ahead * hold / (rejection.limit or limit) if hold else None


class WaitSlots:
    """The requests of this process that wait, in threads or in tasks, and how many may."""

    def __init__(self, option: str) -> None:
        #: The option that says how many may wait, which is also the reason of a rejection.
        self.reason = option
        self._pid = os.getpid()
        # Weakly: a wait that no longer exists has no slot, however it ended.
        self._taken = weakref.WeakSet[Any]()

    def full(self, request: HttpRequest) -> bool:
        """Return True if one more request may not wait."""
        return len(self._waiting()) >= self._max(request)

    def take(self, waiter: Any, request: HttpRequest) -> bool:
        """Take a slot for `waiter`, or return False. Of two that come at once for the last slot,
        both may fail."""
        waiting = self._waiting()
        waiting.add(waiter)
        if len(waiting) <= self._max(request):
            return True
        waiting.discard(waiter)
        return False

    def leave(self, waiter: Any) -> None:
        self._taken.discard(waiter)

    def _waiting(self) -> weakref.WeakSet[Any]:
        if self._pid != os.getpid():  # the waiting threads of the parent are not in a forked child
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
    """Return how many requests the server runs in this process at a time, or None."""
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
    """A request's wait for a permit: the plan calls it when the wait begins, and when it ends."""

    __slots__ = ("__weakref__", "_request", "_slots", "_succeeded", "no_slot", "notify", "seconds")

    def __init__(
        self, request: HttpRequest, slots: WaitSlots, seconds: float, succeeded: Callable[[], None]
    ) -> None:
        """`succeeded`: called when the wait begins, because Redis has answered by then."""
        self._request, self._slots, self.seconds = request, slots, seconds
        self._succeeded, self.no_slot = succeeded, False
        self.notify: Callable[[str, bool], Any] | None = None

    def __call__(self, token: str, begins: bool) -> bool:
        """Return False if the request may not wait, because no slot is left."""
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


# The time that a request waits, over all of its limits


def extend_budget(request: HttpRequest, seconds: float) -> None:
    """Let the request wait for at least `seconds`, over all of its limits."""
    longest, waited = request.__dict__.get(_WAITED, (0.0, 0.0))
    request.__dict__[_WAITED] = max(longest, seconds), waited


def seconds_left(policy: Policy, request: HttpRequest) -> float:
    """Return how long the request may wait for one permit."""
    longest, waited = request.__dict__.get(_WAITED, (0.0, 0.0))
    return float(min(policy.blocking_timeout, longest - waited))


def note_wait(request: HttpRequest, seconds: float) -> None:
    """Count a wait that has ended."""
    longest, waited = request.__dict__.get(_WAITED, (0.0, 0.0))
    request.__dict__[_WAITED] = longest, waited + seconds
