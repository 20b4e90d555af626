"""Admit or reject a request. Decorator, mixin, and middleware share this module.

The logic is written once, as plans that yield steps. `admit` carries them out in sync code, and
`aadmit` in async code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from django.http import HttpRequest

from .. import conf
from ..engine.wire import clock
from ..exceptions import NotAcquired, Unavailable
from ..locks.lease import Lease
from ..logs import logger
from ..protocol.reasons import FULL, OUTAGE, SHARE, TIMEOUT, Rejection
from ..protocol.scripts import MOST_PERMITS
from ..signals import acquire_rejected
from . import identity
from .breaker import Breaker, breaker
from .identity import Call, Either, Plan, Step, arun, run
from .local import LocalWait, local_limiter
from .policy import Policy
from .response import PASSED, Hold, Permit, RequestLease
from .semaphore import (
    RequestSemaphore,
    Wait,
    WaitSlots,
    extend_budget,
    note_wait,
    seconds_left,
    semaphore_of,
    tasks,
    threads,
)


@dataclass(frozen=True, slots=True)
class RejectedRequest:
    """A request that got no permit, with the policy and the limit that rejected it."""

    policy: Policy
    limit: int
    rejection: Rejection

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        if not self.rejection.why.crowded:
            return 503
        return self.policy.rejection_status(self.rejection.reason)

    def error(self) -> NotAcquired:
        """Return the error to raise with on_full="raise"."""
        message = f"{self.policy.name!r}: {self.rejection}"
        return NotAcquired(message, self.rejection.reason, self.policy.name)


def admit(
    policies: Sequence[Policy], request: HttpRequest, seen: Any = None, preflight: bool = False
) -> Hold | RejectedRequest:
    """Acquire a permit of each policy that counts the request. Return them in a Hold, or release
    them and return a RejectedRequest.

    Permits are acquired in a fixed order. Each waits up to its own `blocking_timeout`, and all
    together up to the longest. `seen`: the request as the view sees it, if that is another object.
    `preflight`: True if a framework answers the request before the view's code.
    """
    if not conf.current().enabled:
        return Hold(request)
    plan = _admission(policies, request, request if seen is None else seen, preflight, threads)
    return run(plan)  # type: ignore[no-any-return]


async def aadmit(
    policies: Sequence[Policy], request: HttpRequest, seen: Any = None, preflight: bool = False
) -> Hold | RejectedRequest:
    """Async version of `admit()`."""
    if not conf.current().enabled:
        return Hold(request)
    plan = _admission(policies, request, request if seen is None else seen, preflight, tasks)
    return await arun(plan)  # type: ignore[no-any-return]


# Plans


def _admission(
    policies: Sequence[Policy], request: HttpRequest, seen: Any, preflight: bool, slots: WaitSlots
) -> Plan:
    """Return a Hold with the permits, or a RejectedRequest."""
    hold = Hold(request)
    semaphores = yield from _semaphores(policies, request, seen, preflight)
    try:
        for semaphore in semaphores:
            if semaphore.place not in hold.note:
                rejection = yield from _permit(semaphore, request, hold, slots)
                if rejection is not None:
                    yield _notification(semaphore, request, rejection)
                    if semaphore.policy.enforce:
                        yield Either(hold.release, hold.arelease)
                        return RejectedRequest(semaphore.policy, semaphore.limit or 0, rejection)
    except GeneratorExit:
        hold.release_later()  # a closed plan can't yield more steps
        raise
    except BaseException:
        yield Either(hold.release, hold.arelease)
        raise
    return hold


def _semaphores(
    policies: Sequence[Policy], request: HttpRequest, seen: Any, preflight: bool
) -> Plan:
    """Return the semaphores of the policies that count the request, in the order of admission."""
    semaphores, longest = [], 0.0
    passed = request.__dict__.get(PASSED, ())
    for policy in policies:
        if policy in passed or not policy.counts(request.method, preflight):
            continue
        if policy.when is not None and not (yield Call(policy.when, seen)):
            continue
        if policy.same_for_all:
            semaphores.append(semaphore_of(policy, None, policy.limit, None, policy.share_limit))
        else:
            semaphores.append((yield from _semaphore_for(policy, request, seen)))
        if policy.blocking_timeout > longest:
            longest = policy.blocking_timeout
    if longest:
        extend_budget(request, longest)
    if len(semaphores) > 1:
        semaphores.sort(key=_order)
    return semaphores


def _semaphore_for(policy: Policy, request: HttpRequest, seen: Any) -> Plan:
    """Return the semaphore of a policy that depends on the request."""
    key = share = None
    if policy.key is not None:
        key = yield from identity.key_of(policy, request, seen)
    if policy.share is not None:
        share = yield from identity.share_of(policy, request, seen)
    limits = [policy.limit, policy.share_limit]
    for nth, option in enumerate(("limit", "share_limit")):
        if callable(limits[nth]):
            limits[nth] = conf.whole(option, (yield Call(limits[nth], seen)), MOST_PERMITS)
    return semaphore_of(policy, key, limits[0], share, limits[1])


def _notification(semaphore: RequestSemaphore, request: HttpRequest, rejection: Rejection) -> Step:
    """Log a rejection. Return the step that sends `acquire_rejected`."""
    policy = semaphore.policy
    word = "rejected" if policy.enforce else "would have rejected"
    logger.info("%s %s: %s (limit %r)", word, request.path, rejection, policy.name)
    arguments = {
        "policy": policy,
        "request": request,
        "key": semaphore.key,
        "share": semaphore.share,
        "rejection": rejection,
        "enforced": policy.enforce,
    }
    return Either(
        partial(acquire_rejected.send_robust, Policy, **arguments),
        partial(acquire_rejected.asend_robust, Policy, **arguments),
    )


def _order(semaphore: RequestSemaphore) -> tuple[str, str, str]:
    """Return the sort key for the order in which permits are acquired. With two orders, requests
    could wait for each other."""
    return semaphore.name, semaphore.place.using, semaphore.key or ""


def _permit(
    semaphore: RequestSemaphore, request: HttpRequest, hold: Hold, slots: WaitSlots
) -> Plan:
    """Add a permit to `hold` and return None, or return the Rejection. If the policy is not
    enforced, do both for a request that would be rejected."""
    policy, place = semaphore.policy, semaphore.place
    redis, limiter = breaker(place.using), local_limiter
    generation = redis.allow()
    if generation is None:
        return (yield from _without_redis(semaphore, request, hold, slots))
    take = Take(semaphore, request)
    try:
        # Redis does not count the requests that were admitted locally and still run.
        if policy.enforce and limiter.has_local_admissions(place):
            rejection = yield from _locally(semaphore, request, hold, slots)
            if rejection is not None:
                redis.cancelled(generation)
                return rejection
        if policy.blocking_timeout and policy.enforce:
            got = yield from _in_time(take, redis, generation, slots)
        else:
            got = yield take
        redis.succeeded(generation)
        if isinstance(got, RequestLease):
            got.path = request.path
            limiter.admitted(place, hold, semaphore.share)
            hold.add(Permit(place, got, redis))
            return None if policy.enforce or not got.rejected else Rejection(got.rejected)
        limiter.left(place, hold)
        return got
    except BaseException as error:
        if isinstance(take.got, RequestLease) and not hold.has(take.got):
            take.got.release_later()
        if isinstance(error, GeneratorExit):
            raise  # in the garbage collector, which may run while the limiter's lock is taken
        limiter.left(place, hold)
        if not isinstance(error, Unavailable):
            redis.cancelled(generation)
            raise
        redis.failed(generation, error)
    return (yield from _without_redis(semaphore, request, hold, slots))


def _in_time(take: Take, redis: Breaker, generation: int, slots: WaitSlots) -> Plan:
    """Return a lease or a Rejection, maybe after a wait. Redis gets one request, so that it counts
    one outcome."""
    semaphore, request = take.semaphore, take.request
    seconds = seconds_left(semaphore.policy, request)
    if seconds > 0 and not slots.full(request):
        # The wait reports success to the breaker when it begins, so that other requests don't wait
        # for its end.
        take.wait = Wait(request, slots, seconds, partial(redis.succeeded, generation))
    began = clock()
    got = yield take
    if take.wait is not None:
        note_wait(request, clock() - began)
    if isinstance(got, Rejection):
        semaphore.note(got)
        no_slot = take.wait is None or take.wait.no_slot
        if seconds > 0 and no_slot and got.reason in (FULL, TIMEOUT):
            return replace(got, reason=slots.reason)
    return got


def _without_redis(
    semaphore: RequestSemaphore, request: HttpRequest, hold: Hold, slots: WaitSlots
) -> Plan:
    """Do what `_permit` does, as the option `on_outage` says."""
    policy, place = semaphore.policy, semaphore.place
    if policy.on_outage == "open" or not policy.enforce:
        local_limiter.enter(place, hold, semaphore.share)
    elif policy.on_outage == "closed":
        return Rejection(OUTAGE)
    else:
        rejection = yield from _locally(semaphore, request, hold, slots)
        if rejection is not None:
            return rejection
    hold.add(Permit(place, None, breaker(place.using)))
    return None


def _locally(
    semaphore: RequestSemaphore, request: HttpRequest, hold: Hold, slots: WaitSlots
) -> Plan:
    """Enter the local limiter, maybe after a wait, and return None, or return the Rejection."""
    policy, place, limiter = semaphore.policy, semaphore.place, local_limiter
    seconds = seconds_left(policy, request)
    max_waiters = policy.max_waiters if seconds > 0 else 0
    shares = semaphore.share, semaphore.share_limit
    waiter = limiter.try_enter(place, hold, semaphore.limit or 0, max_waiters, *shares)
    if waiter is True:
        return None
    if waiter is False:
        return limiter.rejection(place, *shares)
    began = clock()
    admitted = yield WaitHere(waiter, seconds, request)
    note_wait(request, clock() - began)
    if admitted or (admitted is None and limiter.finish_wait(place, hold)):
        return None
    if admitted is not False:
        return Rejection(slots.reason, waiting=limiter.waiting(place))
    rejection = limiter.rejection(place, *shares)
    return rejection if rejection.reason == SHARE else replace(rejection, reason=TIMEOUT)


# Steps of an admission


class Take:
    """The step that requests a permit. Its result is a lease or a Rejection. `got`: the result too,
    for a plan that is interrupted after the step."""

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
    """The step that waits in the local queue. Its result is True if the request was admitted, False
    if not, and None if no wait slot was free."""

    waiter: LocalWait
    seconds: float
    request: HttpRequest

    def do(self) -> bool | None:
        if not threads.take(self.waiter, self.request):
            return None
        try:
            return self.waiter.wait(self.seconds)
        finally:
            threads.leave(self.waiter)

    async def ado(self) -> bool | None:
        if not tasks.take(self.waiter, self.request):
            return None
        try:
            return await self.waiter.await_(self.seconds)
        finally:
            tasks.leave(self.waiter)
