"""The semaphores of policies, and the wait slots of a process.

A request that waits for a permit blocks its thread. If all threads of a process waited, none would
be left for requests without a limit. So a request needs a wait slot to wait, and the number of wait
slots is limited.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from .. import conf
from ..defaults import ENTRY, SEMAPHORE
from ..engine.names import write_label
from ..engine.wire import clock
from ..locks.callers import may_wait
from ..locks.lease import Lease
from ..locks.lease_state import LeaseSettings
from ..locks.options import Asked
from ..locks.semaphore import Semaphore
from ..protocol.plans import AcquireRequest
from ..protocol.reasons import MAX_WAITING_TASKS, MAX_WAITING_THREADS, Rejection
from ..protocol.scripts import MOST_PERMITS
from ..values import rate_of
from . import identity
from .connections import close_connections
from .policy import Policy, SemaphoreId
from .response import RequestLease
from .state import state_of

#: Max seconds to wait for an answer of Redis. If Redis takes longer, it counts as down.
ATTEMPT = 0.5
#: Max cached semaphores of a policy. A keyed policy has one per key.
_MAX_SEMAPHORES = 250
#: Number of wait slots if each request has a thread of its own, as sync views have under ASGI.
_OWN_THREADS = 20
#: Number of wait slots under WSGI, where a server usually has a fixed number of threads.
_POOL_THREADS = 2

#: The options of a policy that are passed to its semaphore unchanged.
_PASSED_ON = (SEMAPHORE.keys() & ENTRY.keys()) - {"key", "share", "share_limit", "using"}


#: The values that select a semaphore of a policy: the key, the limit, the share, the share_limit.
Given = tuple[str | None, int, str | None, int | None]


class CountedKeys:
    """The keys of policies for which this process writes statistics in the current hour.

    The number of these keys is limited, because clients can make any number of keys. The statistics
    of a key take about 300 bytes in Redis."""

    HOUR, MAX = 3600.0, 2_000

    def __init__(self) -> None:
        self._keys: set[SemaphoreId] = set()
        self._until = 0.0

    def has(self, semaphore: SemaphoreId) -> bool:
        """Add the key of `semaphore` if there are fewer than MAX keys. Return True if statistics
        are written for the key."""
        if clock() >= self._until:
            self._keys, self._until = set(), clock() + self.HOUR
        if len(self._keys) < self.MAX:
            self._keys.add(semaphore)
        return semaphore in self._keys


counted_keys = CountedKeys()


class RequestSemaphore(Semaphore):
    """A semaphore of a policy, for one combination of key, limit, share, and share_limit."""

    _attempt = ATTEMPT
    _lease = RequestLease
    _once = "try"

    def __init__(self, policy: Policy, given: Given) -> None:
        key, limit, share, share_limit = given
        if share is None and policy.share is not None:
            # A request without a share belongs to the common share of the policy. But Redis ignores
            # shares for a request that has neither a share nor a share_limit. So if share_limit is
            # missing, set the highest one, which has no effect.
            share_limit = share_limit or MOST_PERMITS
        using = policy.using or conf.current().cache
        options = {option: getattr(policy, option) for option in _PASSED_ON}
        options |= {"key": key, "share": share, "share_limit": share_limit, "using": using}
        super().__init__(policy.name, limit, renew=True, **options)
        self.policy, self.id = policy, SemaphoreId(using, policy.name, key)
        #: The rate, as permits and seconds.
        self.own_rate = None if policy.rate is None else rate_of(policy.rate)
        self._max_waiters = policy.max_waiters
        self._counted = key is None or counted_keys.has(self.id)
        self._shadow, self._resolved = not policy.enforce, {}

    def take_for(self, request: HttpRequest, wait: RequestWait | None) -> Lease | Rejection:
        """Return a lease with the label of `request`, or a Rejection. If `wait` is None, don't wait
        for a permit."""
        if not may_wait():
            self._check_may_wait("acquire")
        return self._got(*self._asked_by(request, wait))

    async def atake_for(self, request: HttpRequest, wait: RequestWait | None) -> Lease | Rejection:
        """Async version of `take_for()`."""
        return await self._agot(*self._asked_by(request, wait))

    def _asked_by(self, request: HttpRequest, wait: RequestWait | None) -> Asked:
        settings, ask = self._asked(wait is not None, label_of(request))
        if wait is None:
            return settings, ask
        # The wait of a request takes a wait slot, and then calls the callback that it replaces
        # here.
        wait.then = ask.on_wait
        give_up_at = min(ask.give_up_at, clock() + wait.seconds)
        return settings, ask._replace(give_up_at=give_up_at, on_wait=wait.on_wait)

    def _build(self, *args: Any) -> tuple[LeaseSettings, AcquireRequest, float]:
        # `budget`: the max seconds for all attempts together. Reduce it to those of one attempt, so
        # that the option on_outage applies soon if Redis doesn't answer.
        settings, ask, seconds = super()._build(*args)
        return settings, ask._replace(budget=self._attempt, shadow=self._shadow), seconds

    def _history(self, config: conf.Config) -> int:
        return super()._history(config) if self._counted else 0


def semaphore_of(policy: Policy, given: Given) -> RequestSemaphore:
    """Return the policy's semaphore for the values `given`, from the cache of the policy."""
    known: dict[Given, RequestSemaphore] = policy.semaphores
    found = known.get(given)
    if found is None:
        if len(known) >= _MAX_SEMAPHORES:
            known.clear()
        found = known[given] = RequestSemaphore(policy, given)
    return found


def label_of(request: HttpRequest) -> str:
    """Return the label of a request's lease. It has the view's name, the user's primary key, and
    the header X-Request-ID."""
    match = request.resolver_match
    pk = identity.pk_of(identity.known_user(request))  # request.user may query the database
    return write_label(
        request.path if match is None else match.view_name,
        "" if pk is None else str(pk),
        request.META.get("HTTP_X_REQUEST_ID", ""),
    )


class WaitSlots:
    """Bounds how many requests of this process wait for a permit at the same time: one object for
    threads, and one for tasks. A slot lets one request wait."""

    def __init__(self, option: str) -> None:
        #: The name of the option that sets the number of slots. If no slot is free, this name is
        #: the reason of the Rejection.
        self.reason = option
        # The waits that have a slot. If an exception from a signal handler ends a wait without a
        # call of `leave`, the weak reference frees the slot as soon as the RequestWait is deleted.
        self._taken = weakref.WeakSet[Any]()
        if hasattr(os, "register_at_fork"):  # a forked child starts without requests
            os.register_at_fork(after_in_child=self._taken.clear)

    def full(self, request: HttpRequest) -> bool:
        """Return True if no slot is free."""
        return len(self._taken) >= self._max(request)

    def take(self, wait: RequestWait, request: HttpRequest) -> bool:
        """Take a slot for `wait` and return True. If no slot is free, return False. If two callers
        want the last slot at the same time, both may get False."""
        self._taken.add(wait)
        if len(self._taken) <= self._max(request):
            return True
        self._taken.discard(wait)
        return False

    def leave(self, wait: RequestWait) -> None:
        """Free the slot of `wait`."""
        self._taken.discard(wait)

    def _max(self, request: HttpRequest) -> float:
        most = conf.current().requests[self.reason]
        if most == "auto":
            return _OWN_THREADS if isinstance(request, ASGIRequest) else _POOL_THREADS
        return math.inf if most is None else float(most)


threads, tasks = WaitSlots(MAX_WAITING_THREADS), WaitSlots(MAX_WAITING_TASKS)


class RequestWait:
    """The wait of a request for a permit, in the queue of Redis or of the local limiter."""

    def __init__(
        self,
        request: HttpRequest,
        slots: WaitSlots,
        seconds: float,
        succeeded: Callable[[], None] | None = None,
        closes: bool = False,
    ) -> None:
        """`seconds`: max time to wait. `succeeded`: a function that this object calls when the wait
        begins, to report that Redis has answered. `closes`: the policy's `close_connections`."""
        self._closes = closes
        self._request, self._slots, self.seconds = request, slots, seconds
        self._succeeded, self.no_slot, self._began = succeeded, False, 0.0
        self.then: Callable[[str, bool], Any] | None = None

    def on_wait(self, token: str, begins: bool) -> bool:
        """Take a wait slot when the wait begins, and free it when the wait ends. Then call `then`.
        Return False if no slot is free. Then the request must not wait."""
        if begins:
            self._began = clock()
            if self._succeeded is not None:
                self._succeeded()
            self.no_slot = not self._slots.take(self, self._request)
            if self.no_slot:
                return False
            if self._closes:
                close_connections(in_task=self._slots is tasks)
        else:
            self._slots.leave(self)
            state_of(self._request).waited += clock() - self._began
        if self.then is not None:
            self.then(token, begins)
        return True
