"""Admit or reject a request; log a rejection, and send its signal. Decorator, mixin, and middleware
share this module.

The logic is written once, as plans that yield steps. `admit` carries them out in sync code, and
`aadmit` in async code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from django.http import HttpRequest

from .. import conf
from ..exceptions import Unavailable
from ..locks.lease import Lease
from ..logs import logger
from ..protocol.reasons import FULL, OUTAGE, SHARE, TIMEOUT, Rejection
from ..protocol.scripts import MOST_PERMITS
from ..signals import acquire_rejected
from . import identity
from .breaker import Breaker, breaker
from .identity import Call, Either, Plan, arun, run
from .local import LocalWait, local_limiter
from .policy import Policy
from .response import Hold, Permit, RequestLease, state_of
from .semaphore import RequestSemaphore, Wait, WaitSlots, semaphore_of, tasks, threads


class RejectedRequest(NamedTuple):
    """A request that got no permit. It names the policy and the limit that rejected it."""

    policy: Policy
    limit: int
    rejection: Rejection

    @property
    def status(self) -> int:
        """The HTTP status of the response. If other requests are the cause, it is the option
        `status`. Without that option, it is 429 if these requests have the same key or share. In
        all other cases, it is 503."""
        if not self.rejection.why.crowded:
            return 503
        same = self.policy.key is not None or self.rejection.reason == SHARE
        return self.policy.status or (429 if same else 503)


def admit(
    policies: Sequence[Policy], request: HttpRequest, seen: Any = None, preflight: bool = False
) -> Hold | RejectedRequest:
    """Acquire a permit of each policy that counts the request. Return them in a Hold, or release
    them and return a RejectedRequest.

    Permits are acquired in a fixed order. The wait for each is limited by the `blocking_timeout` of
    its policy, and all waits together by the longest of these. `seen`: the request object that the
    view gets, if it is another one. `preflight`: True if a framework answers the request before
    the view's code.
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
    """The admission of a request to the limits that are applied together: those of the middleware,
    of a mixin, or of decorators that directly wrap each other."""

    __slots__ = ("hold", "request", "seen", "slots", "state")

    def __init__(self, request: HttpRequest, seen: Any, slots: WaitSlots) -> None:
        self.request, self.seen, self.slots = request, request if seen is None else seen, slots
        self.state = state_of(request)
        self.hold = Hold(self.state.held)

    def plan(self, policies: Sequence[Policy], preflight: bool) -> Plan:
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
            hold.release_later()  # a closed plan can't yield more steps
            raise
        except BaseException:
            yield Either(hold.release, hold.arelease)
            raise
        return hold

    def _semaphores(self, policies: Sequence[Policy], preflight: bool) -> Plan:
        """Return the semaphores of the policies that count the request, in the order of
        admission."""
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
            # All requests use this order. Otherwise two requests could wait for each other.
            semaphores.sort(key=lambda one: (one.name, one.id.using, one.key or ""))
        return semaphores

    def _semaphore_for(self, policy: Policy) -> Plan:
        """Return the semaphore of a policy that depends on the request."""
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
        """Log a rejection. Return the step that sends `acquire_rejected`."""
        policy = semaphore.policy
        word = "rejected" if policy.enforce else "would have rejected"
        logger.info("%s %s: %s (limit %r)", word, self.request.path, rejection, policy.name)
        arguments = {"policy": policy, "request": self.request, "rejection": rejection}
        arguments |= {"key": semaphore.key, "share": semaphore.share, "enforced": policy.enforce}
        return Either(
            partial(acquire_rejected.send_robust, Policy, **arguments),
            partial(acquire_rejected.asend_robust, Policy, **arguments),
        )

    def _permit(self, semaphore: RequestSemaphore) -> Plan:
        """Add a permit to the hold and return None. If there is no permit, return the Rejection. In
        shadow mode, if the request would be rejected, add a permit and return the Rejection."""
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
            # The garbage collector may raise this on a thread that has locked the limiter. `left`
            # needs the lock, too.
            raise
        except BaseException:
            local_limiter.left(semaphore.id, self.hold)
            raise

    def _with_redis(self, semaphore: RequestSemaphore, redis: Breaker, generation: int) -> Plan:
        """Do what `_permit` does while Redis is available. Send only one acquire request, so that
        Redis counts only one outcome. Raise Unavailable if Redis doesn't answer."""
        policy, hold = semaphore.policy, self.hold
        # Redis does not count the requests that were admitted locally and still run.
        if policy.enforce and local_limiter.has_local_admissions(semaphore.id):
            rejection = yield from self._locally(semaphore)
            if rejection is not None:
                return rejection
        take, seconds = Take(semaphore, self.request), 0.0
        if policy.blocking_timeout and policy.enforce:
            seconds = self._seconds_left(policy)
            if seconds > 0 and not self.slots.full(self.request):
                # When a wait begins, Redis has answered. The wait reports this to the breaker at
                # once, so that other requests need not wait for the end of this wait.
                succeeded = partial(redis.succeeded, generation)
                take.wait = Wait(self.request, self.slots, seconds, succeeded)
        try:
            got = yield take
            redis.succeeded(generation)
            if isinstance(got, RequestLease):
                got.path = self.request.path
                local_limiter.admitted(semaphore.id, hold, semaphore.share)
                hold.add(Permit(semaphore.id, got, redis))
                take.got = None
                return None if policy.enforce or not got.rejected else Rejection(got.rejected)
        except BaseException:
            if isinstance(take.got, RequestLease):
                take.got.release_later()
            raise
        local_limiter.left(semaphore.id, hold)
        no_slot = take.wait is None or take.wait.no_slot
        if seconds > 0 and no_slot and got.reason in (FULL, TIMEOUT):
            return replace(got, reason=self.slots.reason)
        return got

    def _without_redis(self, semaphore: RequestSemaphore, redis: Breaker) -> Plan:
        """Do what `_permit` does while Redis is down, according to the option `on_outage`."""
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

    def _locally(self, semaphore: RequestSemaphore) -> Plan:
        """Enter the local limiter, maybe after a wait, and return None. If the limiter does not
        admit the request, return the Rejection."""
        policy, used, hold = semaphore.policy, semaphore.id, self.hold
        shares = semaphore.share, semaphore.share_limit
        seconds, reason = self._seconds_left(policy), ""
        max_waiters = policy.max_waiters if seconds > 0 else 0
        newcomer = LocalWait(used, hold, semaphore.limit or 0, *shares)
        admitted = local_limiter.try_enter(newcomer, max_waiters)
        if isinstance(admitted, LocalWait):
            wait = Wait(self.request, self.slots, seconds)
            yield WaitHere(admitted, wait)
            reason = self.slots.reason if wait.no_slot else TIMEOUT
            admitted = local_limiter.finish_wait(used, hold)
        if admitted:
            return None
        found = local_limiter.rejection(newcomer)
        return replace(found, reason=reason) if reason and found.reason != SHARE else found

    def _seconds_left(self, policy: Policy) -> float:
        """Return the max seconds for which the request may wait for a permit of the policy. The
        waits of a request together take at most its longest `blocking_timeout`."""
        return float(min(policy.blocking_timeout, self.state.longest - self.state.waited))


# Steps of an admission


class Take:
    """The step that requests a permit, and waits for it with `wait`. Its result is a lease or a
    Rejection. `got` has the result too, so that a plan can read it if it is interrupted after the
    step."""

    wait: Wait | None = None
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
    """The step that waits in the local queue."""

    waiter: LocalWait
    wait: Wait

    def do(self) -> None:
        if self.wait("", begins=True):
            try:
                self.waiter.wait(self.wait.seconds)
            finally:
                self.wait("", begins=False)

    async def ado(self) -> None:
        if self.wait("", begins=True):
            try:
                await self.waiter.await_(self.wait.seconds)
            finally:
                self.wait("", begins=False)
