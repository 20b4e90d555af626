"""Admit or reject requests, and report each rejection in the log and by a signal. The decorator,
the mixin, and the middleware use this module.

The logic is written once, as plans: generators that yield steps. `admit` runs the steps in sync
code, and `aadmit` in async code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from django.http import HttpRequest

from .. import conf
from ..engine.calls import Call, CallPlan, Either, arun, run
from ..exceptions import Unavailable
from ..locks.lease import Lease
from ..logs import logger
from ..protocol.reasons import FULL, OUTAGE, RATE, SHARE, TIMEOUT, Rejection
from ..protocol.scripts import MOST_PERMITS
from ..signals import acquire_rejected
from . import identity
from .breaker import Breaker, breaker
from .local import LocalWait, local_limiter
from .policy import Policy
from .rejection import RejectedRequest
from .response import Hold, Permit, RequestLease
from .semaphore import RequestSemaphore, RequestWait, WaitSlots, semaphore_of, tasks, threads
from .state import state_of


def admit(
    policies: Sequence[Policy], request: HttpRequest, seen: Any = None, preflight: bool = False
) -> Hold | RejectedRequest:
    """Acquire a permit of each policy that applies to the request, and return a Hold with the
    permits. If a policy rejects the request, release the permits and return a RejectedRequest. If
    the settings disable limits, return an empty Hold.

    All requests acquire permits in the same order. A wait for a permit takes at most the
    `blocking_timeout` of its policy. All waits of a request together take at most the longest
    `blocking_timeout` of its policies. `seen`: the request object that the view gets; by default
    `request`. `preflight`: True for an OPTIONS request that a framework answers without the view's
    code.
    """
    admission = _Admission(request, seen, threads)
    if not conf.current().enabled:
        return admission.hold
    return run(admission.plan(policies, preflight))  # type: ignore[no-any-return]


async def aadmit(
    policies: Sequence[Policy], request: HttpRequest, seen: Any = None, preflight: bool = False
) -> Hold | RejectedRequest:
    """Async version of `admit()`."""
    admission = _Admission(request, seen, tasks)
    if not conf.current().enabled:
        return admission.hold
    return await arun(admission.plan(policies, preflight))  # type: ignore[no-any-return]


class _Admission:
    """Acquires a permit of each of several policies, or of none of them. The policies are those of
    the middleware, of a mixin, or of decorators that directly wrap each other."""

    __slots__ = ("hold", "request", "seen", "slots", "state")

    def __init__(self, request: HttpRequest, seen: Any, slots: WaitSlots) -> None:
        self.request, self.seen, self.slots = request, request if seen is None else seen, slots
        self.state = state_of(request)
        self.hold = Hold(self.state.held)

    def plan(self, policies: Sequence[Policy], preflight: bool) -> CallPlan:
        """Return a Hold with the permits, or a RejectedRequest."""
        hold = self.hold
        semaphores = yield from self._semaphores(policies, preflight)
        try:
            for semaphore in semaphores:
                if semaphore.id not in hold.held:
                    rejection = yield from self._permit(semaphore)
                    if rejection is not None:
                        yield self._notification(semaphore, rejection)
                        if semaphore.policy.enforce:
                            yield Either(hold.release, hold.arelease)
                            limit = semaphore.limit or 0
                            return RejectedRequest(semaphore.policy, limit, rejection)
        except GeneratorExit:
            hold.release_later()  # during close(), a generator can't yield a step
            raise
        except BaseException:
            yield Either(hold.release, hold.arelease)
            raise
        return hold

    def _semaphores(self, policies: Sequence[Policy], preflight: bool) -> CallPlan:
        """Return the semaphores of the policies that apply to the request, in the order in which to
        acquire them."""
        semaphores, state = [], self.state
        for policy in policies:
            if policy in state.passed or not policy.counts(self.request.method, preflight):
                continue
            if policy.when is not None and not (yield Call(policy.when, self.seen)):
                continue
            if policy.same_for_all:
                found = semaphore_of(policy, (None, policy.limit, None, policy.share_limit))
            else:
                found = yield from self._semaphore_for(policy)
            semaphores.append(found)
            if policy.blocking_timeout > state.longest:
                state.longest = policy.blocking_timeout
        if len(semaphores) > 1:
            # All requests acquire permits in this order, so that two requests can't deadlock.
            semaphores.sort(key=lambda one: (one.name, one.id.using, one.key or ""))
        return semaphores

    def _semaphore_for(self, policy: Policy) -> CallPlan:
        """Return the semaphore of a policy for this request. Called only if the policy's key,
        share, limit, or share_limit depends on the request."""
        key = share = None
        if policy.key is not None:
            key = yield from identity.key_of(policy, self.request, self.seen)
        if policy.share is not None:
            share = yield from identity.share_of(policy, self.request, self.seen)
        limits = [policy.limit, policy.share_limit]
        for nth, option in enumerate(("limit", "share_limit")):
            if callable(limits[nth]):
                limits[nth] = conf.whole(option, (yield Call(limits[nth], self.seen)), MOST_PERMITS)
        return semaphore_of(policy, (key, limits[0], share, limits[1]))

    def _notification(self, semaphore: RequestSemaphore, rejection: Rejection) -> Either:
        """Log a rejection. Return the step that sends the signal `acquire_rejected`."""
        policy = semaphore.policy
        word = "rejected" if policy.enforce else "would have rejected"
        logger.info("%s %s: %s (limit %r)", word, self.request.path, rejection, policy.name)
        arguments = {"policy": policy, "request": self.request, "rejection": rejection}
        arguments |= {"key": semaphore.key, "share": semaphore.share, "enforced": policy.enforce}
        return Either(
            partial(acquire_rejected.send_robust, Policy, **arguments),
            partial(acquire_rejected.asend_robust, Policy, **arguments),
        )

    def _permit(self, semaphore: RequestSemaphore) -> CallPlan:
        """Request a permit. If the request is admitted, add the permit to the hold and return None.
        If the request is rejected, return the Rejection. In shadow mode, do both for a request that
        would be rejected: add the permit, and return the Rejection."""
        redis = breaker(semaphore.id.using)
        generation = redis.allow()
        try:
            if generation is not None:
                try:
                    return (yield from self._with_redis(semaphore, redis, generation))
                except Unavailable as error:
                    local_limiter.left(semaphore.id, self.hold)
                    redis.failed(generation, error)
            return (yield from self._without_redis(semaphore, redis))
        except GeneratorExit:
            # Don't call `left` here. The garbage collector may close this plan while this thread
            # changes the local limiter.
            raise
        except BaseException:
            local_limiter.left(semaphore.id, self.hold)
            raise

    def _with_redis(self, semaphore: RequestSemaphore, redis: Breaker, generation: int) -> CallPlan:
        """Admit or reject the request with Redis, and return what `_permit` returns. Send only one
        acquire request, because Redis counts each request in the statistics. Raise Unavailable if
        Redis doesn't answer."""
        policy, hold = semaphore.policy, self.hold
        # Requests that were admitted locally may still run. Redis does not count them, so the local
        # limiter decides first.
        if policy.enforce and local_limiter.has_local_admissions(semaphore.id):
            rejection = yield from self._locally(semaphore)
            if rejection is not None:
                return rejection
        take, seconds = Take(semaphore, self.request), 0.0
        if policy.blocking_timeout and policy.enforce:
            seconds = self._seconds_left(policy)
            if seconds > 0 and not self.slots.full(self.request):
                # A wait begins only after Redis has answered. So the RequestWait reports this
                # answer to the breaker at once. Otherwise, the breaker could close only after the
                # wait.
                succeeded = partial(redis.succeeded, generation)
                closes = policy.close_connections
                take.wait = RequestWait(self.request, self.slots, seconds, succeeded, closes)
        try:
            got = yield take
            redis.succeeded(generation)
            if isinstance(got, RequestLease):
                got.path = self.request.path
                local_limiter.admitted(semaphore.id, hold, semaphore.share, semaphore.own_rate)
                hold.add(Permit(semaphore.id, got, redis))
                take.got = None
                return None if policy.enforce or not got.rejected else Rejection(got.rejected)
        except BaseException:
            if isinstance(take.got, RequestLease):
                take.got.release_later()
            raise
        local_limiter.left(semaphore.id, hold)
        no_slot = take.wait is None or take.wait.no_slot
        if seconds > 0 and no_slot and got.reason == FULL:
            return replace(got, reason=self.slots.reason)
        return got

    def _without_redis(self, semaphore: RequestSemaphore, redis: Breaker) -> CallPlan:
        """Admit or reject the request while Redis is down, as the option `on_outage` says. Return
        what `_permit` returns."""
        policy = semaphore.policy
        if policy.on_outage == "open" or not policy.enforce:
            local_limiter.enter(semaphore.id, self.hold, semaphore.share)
        elif policy.on_outage == "closed":
            return Rejection(OUTAGE)
        else:
            rejection = yield from self._locally(semaphore)
            if rejection is not None:
                return rejection
        self.hold.add(Permit(semaphore.id, None, redis))
        return None

    def _locally(self, semaphore: RequestSemaphore) -> CallPlan:
        """Ask the local limiter to admit the request, and wait if the policy allows it. Return None
        if the request is admitted, else the Rejection."""
        policy, used, hold = semaphore.policy, semaphore.id, self.hold
        terms = semaphore.share, semaphore.share_limit, semaphore.own_rate
        seconds, reason = self._seconds_left(policy), ""
        max_waiters = policy.max_waiters if seconds > 0 else 0
        newcomer = LocalWait(used, hold, semaphore.limit or 0, *terms)
        admitted = local_limiter.try_enter(newcomer, max_waiters)
        if isinstance(admitted, LocalWait):
            wait = RequestWait(self.request, self.slots, seconds, None, policy.close_connections)
            yield WaitHere(admitted, wait)
            reason = self.slots.reason if wait.no_slot else TIMEOUT
            admitted = local_limiter.finish_wait(used, hold)
        if admitted:
            return None
        found = local_limiter.rejection(newcomer)
        keeps = not reason or found.reason in (SHARE, RATE)
        return found if keeps else replace(found, reason=reason)

    def _seconds_left(self, policy: Policy) -> float:
        """Return the seconds for which the request may still wait for a permit of the policy. All
        waits of a request together take at most the longest `blocking_timeout` of its policies."""
        return float(min(policy.blocking_timeout, self.state.longest - self.state.waited))


# Steps of an admission


class Take:
    """The step that requests a permit from Redis. Its result is a lease or a Rejection.

    `wait`: the RequestWait of the request, or None if the request must not wait for a permit.
    `got`: a copy of the result. If an error stops the plan before it receives the result, the plan
    releases the lease in `got`.
    """

    wait: RequestWait | None = None
    got: Lease | Rejection | None = None

    def __init__(self, semaphore: RequestSemaphore, request: HttpRequest) -> None:
        self.semaphore, self.request = semaphore, request

    def do(self) -> Lease | Rejection:
        self.got = got = self.semaphore.take_for(self.request, self.wait)
        return got

    async def ado(self) -> Lease | Rejection:
        self.got = got = await self.semaphore.atake_for(self.request, self.wait)
        return got


class WaitHere(NamedTuple):
    """The step in which a request waits in the queue of the local limiter."""

    waiter: LocalWait
    wait: RequestWait

    def do(self) -> None:
        if self.wait.on_wait("", begins=True):
            try:
                self.waiter.wait(self.wait.seconds)
            finally:
                self.wait.on_wait("", begins=False)

    async def ado(self) -> None:
        if self.wait.on_wait("", begins=True):
            try:
                await self.waiter.await_(self.wait.seconds)
            finally:
                self.wait.on_wait("", begins=False)
