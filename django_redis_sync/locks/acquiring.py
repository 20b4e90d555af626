"""`Acquirer`: the methods of a semaphore that send an acquire request and return a lease."""

from __future__ import annotations

import math
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from .. import conf
from ..engine import drivers
from ..engine.quorum import Quorum, quorum_of
from ..engine.renewal import renewer
from ..engine.server import async_server_of, server_of
from ..engine.wire import ATTEMPT, clock
from ..exceptions import WrongKind
from ..protocol import plans
from ..protocol.plans import AcquireRequest, Grant
from ..protocol.reasons import SHARE, Rejection
from ..protocol.steps import Plan, run_once
from ..protocol.visits import Dropped, Job, Later, visit
from . import transactions
from .callers import check_may_wait, may_wait
from .lease import Lease
from .lease_state import LeaseSettings
from .options import AcquireOptions


class Acquirer(AcquireOptions):
    """The part of a semaphore that acquires leases. It keeps no reference to them."""

    def _take(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, permits: int = 1
    ) -> Lease | Rejection:
        """Return a lease, which is not yet registered for `release()`, or a Rejection."""
        if not may_wait():
            self._check_may_wait("acquire")
        self._before()
        terms, ask = self._terms_and_ask(blocking, blocking_timeout, permits)
        if self.release_on_commit and ask.wait and ask.limit == 1:
            transactions.check_not_nested(terms)
        return self._got(terms, ask)

    def _got(self, terms: LeaseSettings, ask: AcquireRequest) -> Lease | Rejection:
        """Carry out an acquire request. Return a lease or a Rejection."""
        server, start = server_of(terms.alias), clock()
        got: Grant | Rejection
        if ask.learn is None:
            token = ask.tokens()
            step = plans.asking(ask, token)
            got = drivers.attempt(server, step, plans.granted, plans.acquire, ask, start, token)
        else:
            got = drivers.drive(plans.acquire(ask, start), server)
        return self._settle(terms, got)

    def _visit(self, job: Job) -> Lease | Later | Dropped | Rejection:
        """Request a permit for a job that a task queue has delivered. Return a lease, or what to do
        with the job."""
        self._check_may_wait("acquire")
        terms, ask = self._terms_and_ask(False, None, 1)
        named = conf.current().named(self.name)
        ask = ask._replace(max_waiters=named.get("max_waiters") or ask.max_waiters)
        got = drivers.drive(visit(ask, job, clock()), server_of(terms.alias))
        count = renewer(terms.alias).housekeeper.count
        count(terms, "v", 0)
        if isinstance(got, Dropped) and got.why == "copy":
            count(terms, "d", 0)
        return got if isinstance(got, (Later, Dropped)) else self._settle(terms, got)

    async def _atake(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, permits: int = 1
    ) -> Lease | Rejection:
        """Async version of `_take()`."""
        self._before()
        return await self._agot(*self._terms_and_ask(blocking, blocking_timeout, permits))

    async def _agot(self, terms: LeaseSettings, ask: AcquireRequest) -> Lease | Rejection:
        """Async version of `_got()`."""
        server = async_server_of(terms.alias)
        if ask.wait:
            channel = await server.hub.ready(ask.attempt)
            ask = ask._replace(channel=channel, words=None)
        got = await drivers.adrive(plans.acquire(ask, clock()), server)
        return self._settle(terms, got)

    def _settle(self, terms: LeaseSettings, got: Grant | Rejection) -> Lease | Rejection:
        """Count the outcome. Return the lease of a grant."""
        if type(got) is Grant:
            lease = self._lease(terms, got)
            count = lease._renewer.housekeeper.count
            # got.rejected: granted only because of shadow mode.
            outcome = "s" if got.rejected else "w" if got.waited else "g"
            count(terms, outcome, int(got.waited * 1000), got.used)
            if got.rejected == SHARE:
                count(terms, "b", 0)
            return lease
        assert isinstance(got, Rejection)
        if kind := got.why.counted:
            count = renewer(terms.alias).housekeeper.count
            count(terms, kind, 0)
            if got.reason == SHARE:
                count(terms, "b", 0)
        if got.reason == "kind":
            other = "a read/write lock" if got.detail == "w" else "a plain lock or semaphore"
            raise WrongKind(f"{terms.keys.display!r} is in use as {other}")
        return got

    _lease: type[Lease] = Lease

    def _before(self) -> None:
        """Raise if this caller may not acquire now. Called before the request is sent."""

    # Releases are allowed on an event loop: other callers may wait for them.
    _check_may_wait = check_may_wait

    def _quorum(self, using: Any) -> Quorum:
        """Return the quorum of several aliases. Raise ImproperlyConfigured if a majority would not
        be safe."""
        if self.limit != 1:
            raise ImproperlyConfigured(
                f"{self.name!r} can't have several servers in using, only a Lock can: with "
                "majorities of three servers, a limit of 2 would have 3 holders, and readers could "
                "get in beside a writer."
            )
        if self.timeout == math.inf:
            raise ImproperlyConfigured(
                "A permanent lease can't have several servers in using: it is not renewed, so a "
                "server that loses it would never get it back."
            )
        return quorum_of(using)

    def _looking(self) -> Plan:
        return run_once("inspect", self._keys(), ("", 1), ATTEMPT, clock())
