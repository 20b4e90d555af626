"""Takes the permits of a request, or says why not: shared by decorator, mixin and middleware.

The logic is written once, as generators that yield steps; a step knows how it is done in sync and
in async code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest

from .. import conf
from ..defaults import ENTRY, SEMAPHORE
from ..engine import labels
from ..engine.wire import clock
from ..exceptions import NotAcquired, Unavailable
from ..locks.lease import Lease
from ..locks.lease_state import Terms
from ..locks.semaphore import Semaphore
from ..locks.waiting import may_wait
from ..logs import logger
from ..protocol.plans import Ask, Refusal
from ..protocol.reasons import FULL, OUTAGE, TIMEOUT, WAITERS
from ..protocol.scripts import MOST_PERMITS
from . import identity
from .holding import PASSED, Hold, Permit, RequestLease
from .outage import Breaker, breaker
from .policy import Place, Policy
from .rooms import rooms
from .seats import Seated
from .steps import Call, Plan, Reject, Release, Take, User, arun, run

#: Seconds that Redis may take to answer a request before an outage is assumed.
ATTEMPT = 0.5


#: The options of a policy that are its semaphore's, as they are.
_PASSED_ON = (SEMAPHORE.keys() & ENTRY.keys()) - {"key", "using"}


class Counted:
    """The keys that this process has statistics written of, within the hour that they last: clients
    make keys without end, and each would leave some 300 bytes."""

    HOUR, MOST = 3600.0, 2_000

    def __init__(self) -> None:
        self._places: set[Place] = set()
        self._until = 0.0

    def has(self, place: Place) -> bool:
        if clock() >= self._until:
            self._places, self._until = set(), clock() + self.HOUR
        if len(self._places) < self.MOST:
            self._places.add(place)
        return place in self._places


counted = Counted()


class RequestSemaphore(Semaphore):
    """A semaphore as a policy wants it, made once for all of its requests."""

    _attempt = ATTEMPT
    _lease = RequestLease

    def __init__(self, policy: Policy, place: Place, limit: int) -> None:
        super().__init__(
            place.name,
            limit,
            key=place.key,
            using=place.using,
            renew=True,
            **{option: getattr(policy, option) for option in _PASSED_ON},
        )
        self.place = place
        self._max_waiters = policy.max_waiters
        self._counted = place.key is None or counted.has(place)
        self._shadow, self._usual = not policy.enforce, {}
        #: Whether all requests count, and each is let in or refused at once.
        self.straight = (
            policy.enforce
            and not policy.blocking_timeout
            and policy.methods is None
            and policy.when is None
        )

    def take_for(self, request: HttpRequest, blocking: bool) -> Lease | Refusal:
        """As take, labelled as that request's."""
        if not may_wait():
            self._check_may_wait("acquire")
        got = self._got(*self._asked(blocking, label_of(request)))
        if isinstance(got, RequestLease):
            got.path = request.path
        return got

    async def atake_for(self, request: HttpRequest, blocking: bool) -> Lease | Refusal:
        """As take_for."""
        got = await self._agot(*self._asked(blocking, label_of(request)))
        if isinstance(got, RequestLease):
            got.path = request.path
        return got

    def _build(self, *args: Any) -> tuple[Terms, Ask, float]:
        # Asking again would only delay on_outage's decision.
        terms, ask, seconds = super()._build(*args)
        return terms, ask._replace(budget=self._attempt, shadow=self._shadow), seconds

    def _history(self, config: conf.Config) -> int:
        return super()._history(config) if self._counted else 0


def label_of(request: HttpRequest) -> str:
    """The view, the user and the id of a request, as a label has them."""
    match = request.resolver_match
    user = getattr(request, "_cached_user", None)  # never a query for the sake of a label
    return labels.write(
        request.path if match is None else match.view_name,
        "" if user is None or user.pk is None else str(user.pk),
        request.META.get("HTTP_X_REQUEST_ID", ""),
    )


#: Of policies that have one, whatever the request, by the policy's id: the straight way.
_only: dict[int, tuple[conf.Config, Policy, RequestSemaphore]] = {}
#: By policy, place and limit; the policy is there so that its id stays its own.
_semaphores: dict[tuple[int, Place, int], tuple[Policy, RequestSemaphore]] = {}
_MOST_SEMAPHORES = 1000


def _only_one_of(policy: Policy) -> RequestSemaphore | None:
    found = _only.get(id(policy))
    if found is None or found[0] is not conf.current() or found[1] is not policy:
        return None
    return found[2]


def _semaphore(policy: Policy, place: Place, limit: int) -> RequestSemaphore:
    found = _semaphores.get((id(policy), place, limit))
    if found is None:
        for remembered in (_semaphores, _only):
            if len(remembered) >= _MOST_SEMAPHORES:
                remembered.clear()
        found = policy, RequestSemaphore(policy, place, limit)
        _semaphores[id(policy), place, limit] = found
    if policy.key is None and not callable(policy.limit):
        _only[id(policy)] = conf.current(), *found
    return found[1]


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that got no permit, and why."""

    policy: Policy
    limit: int
    refusal: Refusal

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        return self.policy.refusal_status if self.refusal.why.crowded else 503

    def error(self) -> NotAcquired:
        """The error to raise with on_full="raise"."""
        said = f"{self.policy.name!r}: {self.refusal}"
        return NotAcquired(said, self.refusal.reason, self.policy.name)


def seconds_until_free(policy: Policy, limit: int, refusal: Refusal, ahead: int) -> float | None:
    """Until so many more permits were given back, as holds lately were; None when that is unknown.

    `limit`: the caller's, which an operator's replaces. `min_hold` keeps permits at the least.
    """
    hold = max(refusal.mean_hold or 0, policy.min_hold or 0)
    return ahead * hold / (refusal.limit or limit) if hold else None


# The straight way, of nearly all requests: a single policy, whose semaphore is the same whatever
# the request, says no more than a limit; and Redis is up. Then all there is to do is to take the
# permit. Whatever else comes of it is told to the plan of all requests, which goes on from there.


def admit(
    policies: Sequence[Policy], request: HttpRequest, seen: Any = None, preflight: bool = False
) -> Hold | Refused:
    """What `enter` comes to, in sync code."""
    first: Any = None
    straight = None if preflight else _straight(policies, request)
    if straight is not None:
        semaphore, hold = straight[:2]
        got = None
        try:
            got = semaphore.take_for(request, False)
            if _let_in(straight, got):
                return hold
            first = got
        except BaseException as error:
            _withdraw(semaphore.place, hold, got)
            first = error
    came: Hold | Refused = run(enter(policies, request, seen, preflight, straight), first)
    return came


async def aadmit(
    policies: Sequence[Policy], request: HttpRequest, seen: Any = None, preflight: bool = False
) -> Hold | Refused:
    """As admit, in async code."""
    first: Any = None
    straight = None if preflight else _straight(policies, request)
    if straight is not None:
        semaphore, hold = straight[:2]
        got = None
        try:
            got = await semaphore.atake_for(request, False)
            if _let_in(straight, got):
                return hold
            first = got
        except GeneratorExit:
            raise  # while it took the permit: it has none
        except BaseException as error:
            _withdraw(semaphore.place, hold, got)
            first = error
    came: Hold | Refused = await arun(enter(policies, request, seen, preflight, straight), first)
    return came


#: The semaphore of the only policy, the hold, the breaker and its era.
_Straight = tuple[RequestSemaphore, Hold, Breaker, int]


def _straight(policies: Sequence[Policy], request: HttpRequest) -> _Straight | None:
    if len(policies) != 1 or PASSED in request.__dict__:
        return None
    semaphore = _only_one_of(policies[0])
    if semaphore is None or not semaphore.straight:
        return None
    place, hold = semaphore.place, Hold(request)
    if place in hold.note or rooms().has_room(place):
        return None
    redis = breaker(place.using)
    era = redis.ask()
    return None if era is None else (semaphore, hold, redis, era)


def _let_in(straight: _Straight, got: Any) -> bool:
    """Whether what was got is a permit, which `straight`'s hold has then."""
    if not isinstance(got, RequestLease):
        return False
    semaphore, hold, redis, era = straight
    redis.succeeded(era)
    hold.let_in(Permit(semaphore.place, got, redis))
    return True


def _withdraw(place: Place, hold: Hold, got: Any) -> None:
    """Undo what an interrupted request has come to, but for what `hold` has."""
    rooms().went(place, hold)
    if isinstance(got, RequestLease) and not hold.has(got):
        got.release_later()


# Plans


def enter(
    policies: Sequence[Policy],
    request: HttpRequest,
    seen: Any = None,
    preflight: bool = False,
    straight: _Straight | None = None,
) -> Plan:
    """A Hold with a permit of each policy that counts this request, or Refused holding none.

    `seen`: the request as the view sees it, when that is another object. `preflight`: it ends
    before the view's own code. `straight`: it went the straight way, and the first step was made.
    """
    hold = Hold(request) if straight is None else straight[1]
    if not conf.current().enabled:
        return hold
    passed = getattr(request, PASSED, ())
    try:
        if len(policies) > 1:
            policies = sorted(policies, key=lambda policy: policy.name)
        for policy in policies:
            if policy in passed or not policy.counts(request.method, preflight):
                continue
            if policy.when is not None and not (yield Call(policy.when, seen or request)):
                continue
            refused = yield from _add(policy, request, seen or request, hold, straight)
            if refused is not None:
                yield Release(hold)
                return refused
    except GeneratorExit:
        hold.release_later()  # no driver is there to carry out more
        raise
    except BaseException:
        yield Release(hold)
        raise
    return hold


def _add(
    policy: Policy, request: HttpRequest, seen: Any, hold: Hold, straight: _Straight | None
) -> Plan:
    """Take a permit into `hold`; Refused when there is none."""
    semaphore = _only_one_of(policy) if straight is None else straight[0]
    if semaphore is None:
        semaphore = yield from _semaphore_for(policy, request, seen)
    if semaphore.place in hold.note:
        return None
    era = None if straight is None else straight[3]
    got = yield from _admit(policy, semaphore, request, hold, era)
    if isinstance(got, Permit):
        if not got.refused:
            return None
        got = Refusal(got.refused)
    word = "would have refused" if not policy.enforce else "refused"
    logger.info("%s %s: %r is %s", word, request.path, policy.name, got.reason)
    said = {"policy": policy, "request": request, "key": semaphore.key, "refusal": got}
    yield Reject({**said, "enforced": policy.enforce})
    return Refused(policy, semaphore.limit or 0, got) if policy.enforce else None


def _semaphore_for(policy: Policy, request: HttpRequest, seen: Any) -> Plan:
    """The semaphore of a policy for a request: its key and its limit may depend on that."""
    alias = policy.using or conf.current().cache
    key = None if policy.key is None else (yield from key_of(policy, request, seen))
    limit = policy.limit
    if callable(limit):
        limit = conf.whole("limit", (yield Call(limit, seen)), MOST_PERMITS)
    return _semaphore(policy, Place(alias, policy.name, key), limit)


def _admit(
    policy: Policy,
    semaphore: RequestSemaphore,
    request: HttpRequest,
    hold: Hold,
    era: int | None,
) -> Plan:
    """The Permit that `hold` has now, or a Refusal: from Redis, or without it while it is down.
    `era`: that in which Redis was asked, by the straight way."""
    place, straight = semaphore.place, era is not None
    redis, got = breaker(place.using), None
    if era is None:
        era = redis.ask()
    if era is None:
        return (yield from _without_redis(policy, semaphore, hold))
    # Let in while Redis was down, and still inside: they count as well.
    mine = rooms()
    alone = policy.enforce and not straight and mine.alone(place)
    try:
        if alone and (refusal := (yield from _local(policy, semaphore, hold))) is not None:
            redis.abandoned(era)
            return refusal
        if policy.enforce and policy.blocking_timeout > 0:
            got = yield from _in_time(policy, semaphore, request, redis, era)
        else:
            got = yield Take(semaphore, request, False)
        redis.succeeded(era)
        if isinstance(got, RequestLease):
            mine.enter(place, hold, alone)
            return hold.add(Permit(place, got, redis, got.refused))
        if alone:
            mine.leave(place, hold)
        return got
    except GeneratorExit:
        raise  # the collector may have come inside of the rooms; and what is gone is out
    except BaseException as error:
        _withdraw(place, hold, got)
        if not isinstance(error, Unavailable):
            redis.abandoned(era)
            raise
        redis.failed(era, error)
    return (yield from _without_redis(policy, semaphore, hold))


def _in_time(
    policy: Policy,
    semaphore: RequestSemaphore,
    request: HttpRequest,
    redis: Breaker,
    era: int,
) -> Plan:
    """A Lease or a Refusal. A wait that can't succeed is not begun."""
    waited, place = None, semaphore.place
    if not redis.down and not pressure.on(place):
        waited = yield Seated(Take(semaphore, request, True))
    if waited is None:
        got = yield Take(semaphore, request, False)
        redis.succeeded(era)  # the others need not wait for as long as this request may
        if isinstance(got, Lease):
            return got
        needed = seconds_until_free(policy, semaphore.limit or 0, got, got.waiting)
        if needed is not None and needed > policy.blocking_timeout:
            return got
        waited = yield Seated(Take(semaphore, request, True), patient=True)
        if waited is None:
            return replace(got, reason=WAITERS)
    if isinstance(waited, Refusal):
        pressure.note(place)
    return waited


def _without_redis(policy: Policy, semaphore: RequestSemaphore, hold: Hold) -> Plan:
    """A Permit or a Refusal, as on_outage says."""
    place = semaphore.place
    if policy.on_outage == "open" or not policy.enforce:
        rooms().enter(place, hold, alone=True)
    elif policy.on_outage == "closed":
        return Refusal(OUTAGE)
    elif (refusal := (yield from _local(policy, semaphore, hold))) is not None:
        return refusal
    return hold.add(Permit(place, None, breaker(place.using)))


def _local(policy: Policy, semaphore: RequestSemaphore, hold: Hold) -> Plan:
    """A Refusal, or None: it is inside of the limit of this process."""
    mine, place, wait = rooms(), semaphore.place, policy.blocking_timeout
    got = mine.ask(place, hold, semaphore.limit or 0, policy.max_waiters if wait else 0, wait)
    if got is True:
        return None
    if got is False:
        return Refusal(FULL, waiting=mine.waiting(place))
    came = yield Seated(got, patient=True)
    if came or (came is None and mine.settle(place, hold)):
        return None
    return Refusal(TIMEOUT) if came is False else Refusal(WAITERS, waiting=mine.waiting(place))


class _Pressure:
    """Places that a request waited for in vain a moment ago: the next asks before it waits."""

    MOMENT, MOST = 5.0, 10_000

    def __init__(self) -> None:
        self._until: dict[Place, float] = {}

    def on(self, place: Place) -> bool:
        until = self._until.get(place)
        if until is not None and clock() >= until:
            self._until.pop(place, None)
        return until is not None and clock() < until

    def note(self, place: Place) -> None:
        if len(self._until) >= self.MOST:
            self._until.clear()
        self._until[place] = clock() + self.MOMENT


pressure = _Pressure()


def key_of(policy: Policy, request: HttpRequest, seen: Any) -> Plan:
    """The key of a keyed policy for a request."""
    if policy.key == "user":
        pk = yield User(seen)
        if pk is not None:
            return identity.of_user(pk)
    if isinstance(policy.key, str):
        return identity.of_address(request, policy.trusted_proxies, policy.ipv6_prefix)
    return identity.of_value((yield Call(policy.key, seen)))
