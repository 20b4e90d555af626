"""Resolve the arguments of a semaphore and the settings into an acquire request, and carry it out.

An argument overrides REDIS_SYNC["SEMAPHORES"], which overrides the defaults. The resolved request
is cached until the settings change. Objects with equal arguments share the cached request.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from .. import conf, values
from ..defaults import ENTRY, NAMED
from ..engine import drivers
from ..engine.names import write_label
from ..engine.renewal import renewer
from ..engine.server import Server, async_server_of, server_of
from ..engine.wire import ATTEMPT, clock
from ..exceptions import WrongKind
from ..protocol import plans
from ..protocol.keys import Keys, Token, keys_of
from ..protocol.plans import AcquireRequest
from ..protocol.reasons import FULL, PAUSED, REASONS, Rejection
from ..protocol.renewals import Grant
from ..protocol.scripts import ANY, MOST_PERMITS
from . import transactions
from .arguments import check_shares, checked, checked_rate
from .callers import Caller, check_may_wait
from .lease import Lease
from .lease_state import LeaseSettings
from .nesting import on_wait, warn_of_endless_wait

#: Max cached acquire requests of an object. Each thread adds a request, because the label of a
#: request names the thread. Objects with equal arguments share the cache.
_MAX_RESOLVED = 64

#: The source of random bytes. os.urandom releases the GIL, and then another thread may keep the GIL
#: for a long time. os.getrandom does not release the GIL, but does not exist on all platforms.
_random: Callable[[int], bytes] = getattr(os, "getrandom", os.urandom)


def _token() -> str:
    return Token(_random(16).hex())


#: The settings of a lease, and the acquire request for the lease.
Asked = tuple[LeaseSettings, AcquireRequest]

#: The options in SEMAPHORES that apply to locks and semaphores in code. `_options` checks them.
_NAMED = {**NAMED, **{option: ENTRY[option] for option in ("limit", "share_limit", "max_waiters")}}


class Acquirer:
    """The base of the public classes. It resolves arguments and settings, sends acquire requests,
    and turns grants into leases. It keeps no reference to the leases."""

    _kind = "p"
    _max_waiters = ANY
    #: How a caller that doesn't wait tries: see the script `acquire`.
    _once = "skip"
    #: Max seconds to wait for an answer of the server.
    _attempt = ATTEMPT

    name: str
    key: str | None
    limit: int | None
    timeout: float | None
    renew: bool | None
    fair: bool
    blocking: bool
    blocking_timeout: float | None
    max_hold: float | None
    min_hold: float | None
    raise_on_release_error: bool
    release_on_commit: bool | str
    using: Any  # an alias, or a quorum
    label: str | None
    on_lost: Callable[[Any], Any] | None
    share: str | None  # the text of the share
    share_limit: int | None
    rate: str | None
    #: The str.format template that made the name, for statistics; "" if there is none.
    _template = ""
    # A cache of the requests for one permit that use the object's own blocking_timeout. The cache
    # key is `blocking`, label, and template. For async code, it has no label, because each task has
    # a label of its own. Objects with equal arguments share the cache. If an attribute of an object
    # is changed, the object gets its own cache.
    _resolved: dict[
        tuple[bool | None, str, str], tuple[conf.Config, LeaseSettings, AcquireRequest, float]
    ]

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            """Set an attribute. If it is public, check its value as if it were an argument of the
            class, and give this object a new cache of requests."""
            public = not name.startswith("_")
            super().__setattr__(name, checked(name, value) if public else value)
            if public:
                self.__dict__["_resolved"] = {}

    def __reduce__(self) -> Any:
        raise TypeError("locks can't be pickled: pass the name, or a lease's handle")

    def __deepcopy__(self, memo: Any = None) -> Any:
        """Return this object, because a copy could not release its leases. Django's TestCase copies
        what `setUpTestData` makes."""
        return self

    __copy__ = __deepcopy__

    def alias(self) -> Any:
        """Return what this object uses with the current settings: a cache alias, or a quorum."""
        return self.using or conf.current().cache

    def _keys(self) -> Keys:
        """Return the name's keys in Redis with the current settings."""
        return keys_of(conf.current().prefix(self.alias()), self.name, self.key)

    def _check_permits(self, permits: int) -> None:
        """Raise ValueError if `permits` are above a limit. Raise ImproperlyConfigured if no limit
        is set, or if the settings are wrong."""
        named = self._options(conf.current())
        self._limit(named, permits)
        self._rate(named, permits)

    def _settings_and_ask(
        self,
        blocking: bool | None,
        blocking_timeout: float | None,
        permits: int,
        in_task: bool = False,
    ) -> Asked:
        """Return two objects, made from the arguments and the current REDIS_SYNC: the settings of
        the lease, and the acquire request. `in_task`: True in async code."""
        label = write_label(self.label or "")
        if blocking is not None and type(blocking) is not bool:
            values.blocking("blocking", blocking)
        if blocking_timeout is None and type(permits) is int and permits == 1:
            return self._asked(blocking, label, in_task)
        return self._completed(
            *self._build(conf.current(), label, blocking, blocking_timeout, permits)
        )

    def _asked(self, blocking: bool | None, label: str, in_task: bool = False) -> Asked:
        """Return two objects: the settings of the lease, and the acquire request for one permit
        with the object's own blocking_timeout. Both are made once and then cached in
        `_resolved`."""
        config, place = conf.current(), (blocking, "" if in_task else label, self._template)
        found = self._resolved.get(place)
        if found is None or found[0] is not config:
            settings, ask, seconds = self._build(config, label, blocking, None, 1)
            if len(self._resolved) >= _MAX_RESOLVED:
                self._resolved.clear()
            found = self._resolved[place] = config, settings, plans.worded(ask), seconds
        _, settings, ask, seconds = found
        if ask.label != label:
            ask = ask._replace(label=label, words=None)
        return self._completed(settings, ask, seconds)

    def _completed(self, settings: LeaseSettings, ask: AcquireRequest, seconds: float) -> Asked:
        """Add the values that are not cached to a request: the share, and the time when the wait
        ends. Return the settings of the lease and the new request."""
        if self.share:  # not cached: there may be many shares
            ask = ask._replace(share=self.share, words=None)
        return settings, ask if seconds == math.inf else ask._replace(give_up_at=clock() + seconds)

    def _build(
        self,
        config: conf.Config,
        label: str,
        blocking: bool | None,
        blocking_timeout: float | None,
        permits: int,
    ) -> tuple[LeaseSettings, AcquireRequest, float]:
        """Resolve the arguments and settings. Return three things: the settings of the lease, the
        acquire request, and the seconds to wait."""
        named, alias = self._options(config), self.using or config.cache
        limit, permits = self._limit(named, permits)
        wait, seconds = self._waiting(config, named, blocking, blocking_timeout)
        settings = self._lease_settings(config, named, alias)
        policy, short = settings.keys.policy, wait and seconds < settings.budget
        may_be_endless = seconds == math.inf and self.limit == 1
        ask = AcquireRequest(
            keys=settings.keys,
            lease=settings.timeout,
            permits=permits,
            limit=limit,
            wait=wait,
            give_up_at=math.inf,
            budget=max(1.0, seconds) if short else settings.budget,
            attempt=min(settings.attempt, max(0.5, seconds / 2)) if wait else settings.attempt,
            tokens=_token,
            later=lambda step: renewer(alias).later(step),
            kind=self._kind,
            fair=self.fair,
            max_waiters=self._max_waiters,
            label=label,
            learn=None
            if policy is None
            else lambda: renewer(alias).housekeeper.load_overrides(policy),
            on_wait=on_wait(settings, self._endless if may_be_endless else None) if wait else None,
            share_limit=self._share_limit(named),
            once=self._once,
            rate=self._rate(named, permits),
        )
        return settings, ask, seconds

    def _options(self, config: conf.Config) -> dict[str, Any]:
        """Return the name's entry in REDIS_SYNC["SEMAPHORES"], checked."""
        named = dict(config.named(self.name))
        try:
            for option in named.keys() & _NAMED.keys():
                named[option] = _NAMED[option].checked(named[option])
        except (TypeError, ValueError) as error:
            where = f"{conf.SETTING}['SEMAPHORES'][{self.name!r}]"
            raise ImproperlyConfigured(f"{where}: {error}.") from error
        return named

    def _limit(self, named: dict[str, Any], permits: int) -> tuple[int, int]:
        """Return two numbers: the limit for this caller, and the permits to request. Raise
        ValueError if the permits exceed a limit. Raise ImproperlyConfigured if no limit is set."""
        limit = self.limit if self.limit is not None else named.get("limit")
        if limit is None and (self.rate or named.get("rate")):
            limit = MOST_PERMITS  # any number of permits may be in use
        if limit is None or callable(limit):  # a callable limit is only for requests
            raise ImproperlyConfigured(
                f"{self!r} has no limit. Write {type(self).__name__}({self.name!r}, limit), or set "
                f"{conf.SETTING}['SEMAPHORES'][{self.name!r}] = {{'limit': ...}}."
            )
        values.whole("permits", permits)
        if permits > limit:
            raise ValueError(f"{permits} permits can never fit a limit of {limit}")
        if permits > (share_limit := self._share_limit(named) or permits):
            raise ValueError(f"{permits} permits can never fit a share_limit of {share_limit}")
        return limit, permits

    def _rate(self, named: dict[str, Any], permits: int) -> str:
        """Return the rate for this caller (see `checked_rate`)."""
        rate = self.rate if self.rate is not None else named.get("rate")
        return checked_rate(rate, permits, self._kind, self.using)

    def _share_limit(self, named: dict[str, Any]) -> int:
        """Return the max permits of the caller's share; 0 for no limit. A callable in the settings
        is ignored, because it is for requests."""
        limit = self.share_limit if self.share_limit is not None else named.get("share_limit")
        if limit is None or callable(limit):
            return 0
        check_shares(self.name, self.fair, self._kind, self.using)
        return limit

    def _waiting(
        self, config: conf.Config, named: dict[str, Any], blocking: bool | None, own: float | None
    ) -> tuple[bool, float]:
        """Return two values: whether the caller waits, and the max seconds to wait. The seconds are
        math.inf if the wait has no bound, or if the caller does not wait. `own`: the
        blocking_timeout of this call, or None."""
        if own is not None:
            own = values.not_negative("blocking_timeout", own)
        layers = own, self.blocking_timeout, named.get("blocking_timeout"), config.blocking_timeout
        seconds = next((float(given) for given in layers if given is not None), math.inf)
        wait = (self.blocking if blocking is None else blocking) and seconds > 0
        return wait, seconds if wait else math.inf

    def _lease_settings(
        self, config: conf.Config, named: dict[str, Any], alias: Any
    ) -> LeaseSettings:
        timeout = self.timeout if self.timeout is not None else named.get("timeout")
        max_hold = self.max_hold if self.max_hold is not None else named.get("max_hold")
        max_hold = config.max_hold if max_hold is None else max_hold
        cap = math.inf if max_hold is None else float(max_hold)
        renew = timeout is None if self.renew is None else self.renew
        lease = config.timeout if timeout is None else timeout
        return LeaseSettings(
            keys=keys_of(config.prefix(alias), self.name, self.key, self._history(config)),
            alias=alias,
            timeout=min(lease, cap),
            renew=renew and lease < math.inf,
            max_hold=cap,
            min_hold=self.min_hold or named.get("min_hold") or 0.0,
            attempt=self._attempt,
            on_lost=self.on_lost,
            template=self._template,
        )

    def _history(self, config: conf.Config) -> int:
        """Return the minutes of history that the scripts store for this name."""
        return config.keep(self.key)

    # Acquire

    def _take(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, permits: int = 1
    ) -> Lease | Rejection:
        """Request permits. Return a lease or a Rejection. The lease is not yet registered for
        `release()`."""
        self._check_may_wait("acquire")
        settings, ask = self._settings_and_ask(blocking, blocking_timeout, permits)
        if using := self.release_on_commit:
            transactions.check_before(settings, using, ask.wait and ask.limit == 1)
        return self._got(settings, ask)

    def _got(self, settings: LeaseSettings, ask: AcquireRequest) -> Lease | Rejection:
        """Send an acquire request. Return a lease or a Rejection."""
        return self._settle(settings, self._acquire(server_of(settings.alias), ask), ask)

    def _acquire(self, server: Server, ask: AcquireRequest) -> Any:
        """Return a Grant or a Rejection. Send the first step of the acquire plan, and make the plan
        only if the answer is not a grant."""
        token, start = ask.tokens(), clock()
        if ask.learn is not None:  # the plan begins with another step
            return drivers.drive(plans.acquire(ask, start, token), server)
        try:
            answer = server.run(plans.asking(ask, token))
            got = plans.granted(answer, ask, start, token)
        except BaseException as error:
            return drivers.drive(plans.acquire(ask, start, token), server, error)
        return got or drivers.drive(plans.acquire(ask, start, token), server, answer)

    def _asked_for_job(self, label: str) -> Asked:
        """Return two objects for a job that waits without limit: the settings of the lease, and the
        acquire request. `label`: see `write_label`."""
        settings, ask, _ = self._build(conf.current(), label, True, math.inf, 1)
        most = conf.current().named(self.name).get("max_waiters")
        # Negative: see crowded.lua
        return settings, ask._replace(share=self.share or "", max_waiters=-most if most else ANY)

    async def _atake(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
        *,
        caller: Caller | None = None,
    ) -> Lease | Rejection:
        """Async version of `_take()`. `caller`: None for the current thread or task."""
        settings, ask = self._settings_and_ask(blocking, blocking_timeout, permits, True)
        if using := self.release_on_commit:
            await transactions.acheck_before(settings, using, ask.wait and ask.limit == 1)
        return await self._agot(settings, ask, caller)

    async def _agot(
        self, settings: LeaseSettings, ask: AcquireRequest, caller: Caller | None = None
    ) -> Lease | Rejection:
        """Async version of `_got()`."""
        server = async_server_of(settings.alias)
        if ask.wait:
            channel = await server.hub.ready(ask.attempt)
            waits: Any = ask.on_wait
            if caller is not None and waits is not None:
                waits = partial(waits, caller=caller)
            ask = ask._replace(channel=channel, words=None, on_wait=waits)
        got = await drivers.adrive(plans.acquire(ask, clock()), server)
        return self._settle(settings, got, ask, caller)

    def _settle(
        self,
        settings: LeaseSettings,
        got: Grant | Rejection,
        ask: AcquireRequest,
        caller: Caller | None = None,
    ) -> Lease | Rejection:
        """Count the outcome of an acquire in the statistics. For a Grant, return a lease. Return a
        Rejection as it is. Raise WrongKind if the name is in use as another kind."""
        if type(got) is Grant:
            lease = self._lease(settings, got, 0, caller)
            count = lease._renewer.housekeeper.count
            # got.rejected is set if the caller got the permit only because of shadow mode.
            outcome = "s" if got.rejected else "w" if got.waited else "g"
            count(settings, outcome, int(got.waited * 1000), got.used)
            if got.rejected and (bound := REASONS[got.rejected].bound):
                count(settings, bound, 0)
            return lease
        assert isinstance(got, Rejection)
        if kind := got.why.counted:
            housekeeper = renewer(settings.alias).housekeeper
            if got.reason != PAUSED:  # a pause alone says nothing about holders
                housekeeper.note_wanted(settings)
            count = housekeeper.count
            skipped = ask.once == "skip" and not ask.wait
            count(settings, "k" if skipped else kind, 0)
            bound = got.why.bound or ("m" if ask.wait and got.reason == FULL else "")
            if bound and not skipped:
                count(settings, bound, 0)
        if got.reason == "kind":
            other = "a read/write lock" if got.detail == "w" else "a plain lock or semaphore"
            raise WrongKind(f"{settings.keys.display!r} is in use as {other}")
        return got

    _lease: type[Lease] = Lease

    _endless = staticmethod(warn_of_endless_wait)

    # Releases don't call this check. If it raised an error, the permit would stay taken.
    _check_may_wait = check_may_wait
