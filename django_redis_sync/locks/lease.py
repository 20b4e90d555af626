"""A lease: the right of one holder, for a time."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from .. import conf
from ..engine import drivers
from ..engine.courier import tell
from ..engine.keeper import keeper
from ..engine.quorum import Quorum
from ..engine.server import AsyncServer, Server, async_server_of, server_of
from ..engine.wire import clock
from ..exceptions import LeaseLost, NotAcquired
from ..protocol import plans
from ..protocol.keys import Keys
from ..protocol.plans import Answer, Failure, Grant, Run
from ..signals import lease_lost
from . import handle as handles
from .handle import Terms

logger = logging.getLogger("django_redis_sync")

#: Part of a lease that the keeper leaves when it calls a lease lost that it could not renew.
_MARGIN = 0.05


class Lease:
    """What a holder has: truthy while it is held, given back by `release` or by leaving the `with`.

    Belief is local and counts from before the request for it was sent: `held`, `remaining` and
    `check` cost no round trip and end no later than the server's lease. Any thread of the process
    may use it; a forked child may not.
    """

    # Invariants: _until never lies behind the server's end of this lease;
    # _over is empty while it is ours to lose, else says why it is not; _closed is what this side
    # did last, released or detached;
    # due is when the keeper has to look, and only the keeper or a renewal moves it.
    __slots__ = (
        "__weakref__",
        "_closed",
        "_grant",
        "_nth",
        "_over",
        "_pid",
        "_terms",
        "_until",
        "due",
    )

    def __init__(self, terms: Terms, grant: Grant, renewals: int = 0) -> None:
        self._terms, self._grant, self._pid = terms, grant, os.getpid()
        self._nth = itertools.count(renewals + 1)
        self._over = self._closed = ""
        self._until, self.due = grant.until, math.inf
        self._schedule(clock())
        keeper(terms.alias).watch(self, grant.token, terms.keys)

    # What it is

    @property
    def name(self) -> str:
        return self._terms.keys.display

    @property
    def token(self) -> str:
        """The secret that makes it ours. Never shown whole to people."""
        return self._grant.token

    @property
    def fence(self) -> int:
        """Grows with every grant of the name: have storage refuse what comes with an older one."""
        return self._grant.fence

    @property
    def permits(self) -> int:
        return self._grant.permits

    @property
    def acquired_at(self) -> datetime:
        """The server's time of the grant."""
        return datetime.fromtimestamp(self._grant.fence / 1e6, tz=timezone.utc)

    @property
    def remaining(self) -> float:
        """Seconds that the lease surely still has; 0 when it is over, inf when permanent."""
        return max(0.0, self._until - clock()) if self._ours() else 0.0

    @property
    def held(self) -> bool:
        return self._ours() and clock() < self._until

    @property
    def ended(self) -> bool:
        """Whether this side gave it back, or let it go; a lost lease only when it was released."""
        return bool(self._closed)

    def _is_of(self, keys: Keys, alias: Any) -> bool:
        """Whether it is a lease of that name on that server."""
        mine = self._terms
        return (mine.keys.leases, mine.alias) == (keys.leases, alias)

    def __bool__(self) -> bool:
        return self.held

    def __repr__(self) -> str:
        state = f"{self.remaining:.1f} s left" if self.held else self._over or "over"
        return f"<Lease {self.name!r} {self.token[:8]} {state}>"

    def check(self) -> None:
        """LeaseLost when it is not held any more. Local."""
        if not self.held:
            raise self._lost_error()

    # What can be done with it

    def renew(self, timeout: float | None = None) -> None:
        """Make it end `timeout` seconds from now (default: its own). LeaseLost if it is over."""
        self._moved(drivers.drive(self._renewal(timeout), self._server()))

    async def arenew(self, timeout: float | None = None) -> None:
        """As renew."""
        self._moved(await drivers.adrive(self._renewal(timeout), self._aserver()))

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Add seconds to what is left, or replace it. LeaseLost if it is over. Returns True."""
        self.renew(self._extended(additional_time, replace_ttl))
        return True

    async def aextend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """As extend."""
        await self.arenew(self._extended(additional_time, replace_ttl))
        return True

    def reacquire(self) -> bool:
        """Make it last its whole timeout again. LeaseLost if it is over. True, as redis-py."""
        self.renew()
        return True

    async def areacquire(self) -> bool:
        """As reacquire."""
        await self.arenew()
        return True

    def release(self) -> None:
        """Give it back. NotAcquired when that was done already, LeaseLost when it is over."""
        self._end()
        try:
            released = drivers.drive(self._releasing(), self._server())
        except BaseException:
            keeper(self._terms.alias).later(self._giving_back())
            raise
        self._released(released)

    async def arelease(self) -> None:
        """As release. A cancellation waits until it is given back."""
        self._end()
        try:
            released = await drivers.adrive(self._releasing(), self._aserver(), to_the_end=True)
        except BaseException:
            keeper(self._terms.alias).later(self._giving_back())
            raise
        self._released(released)

    def owned(self) -> bool:
        """Whether the server says that it is still ours."""
        return self._ours() and bool(drivers.drive(self._confirming(), self._server()))

    async def aowned(self) -> bool:
        """As owned."""
        return self._ours() and bool(await drivers.adrive(self._confirming(), self._aserver()))

    def locked(self) -> bool:
        """Whether anybody holds the name now."""
        return bool(drivers.drive(self._looking(), self._server())[7])

    async def alocked(self) -> bool:
        """As locked."""
        return bool((await drivers.adrive(self._looking(), self._aserver()))[7])

    def downgrade(self) -> None:
        """A writer's lease becomes a reader's: other readers get in. LeaseLost if it is over."""
        self._shared(drivers.drive(self._sharing(), self._server()))

    async def adowngrade(self) -> None:
        """As downgrade."""
        self._shared(await drivers.adrive(self._sharing(), self._aserver()))

    def detach(self, timeout: float | None = None) -> str:
        """A handle, for another process to adopt. This side lets go: no renewal, no release.

        The lease lives `timeout` seconds more (default: its own). The handle holds the token: keep
        it as secret as a session key. NotImplementedError for a lease of several servers.
        """
        self._check_handle()
        self.renew(timeout)
        return self._handle()

    async def adetach(self, timeout: float | None = None) -> str:
        """As detach."""
        self._check_handle()
        await self.arenew(timeout)
        return self._handle()

    @classmethod
    def from_handle(cls, handle: str, *, on_lost: Callable[[Lease], Any] | None = None) -> Lease:
        """Adopt a detached lease: renews it from now on. LeaseLost if it is over or somebody else
        adopted it, ValueError if the handle is none."""
        adoption = handles.Adoption(handle, on_lost)
        return cls(*drivers.drive(adoption.plan(), server_of(adoption.terms.alias)))

    @classmethod
    async def afrom_handle(
        cls, handle: str, *, on_lost: Callable[[Lease], Any] | None = None
    ) -> Lease:
        """As from_handle."""
        adoption = handles.Adoption(handle, on_lost)
        server = async_server_of(adoption.terms.alias)
        return cls(*await drivers.adrive(adoption.plan(), server))

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if self._leaving():
            try:
                self.release()
            except Exception as own:
                self._settle_exit(kind, own)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if self._leaving():
            try:
                await self.arelease()
            except Exception as own:
                self._settle_exit(kind, own)

    # For the keeper

    def tend(self, now: float) -> Run | None:
        """The renewal to send now, or None; a lease that is over is called lost."""
        if not self._ours():
            self.due = math.inf
            return None
        wanted = self._wanted(now)
        if now >= self._until:
            self._lose("it was not renewed in time" if wanted > 0 else "its time is over")
            return None
        if self._until - now <= self._doubt():
            self._lose("it could not be renewed")
            return None
        if wanted == math.inf or now + wanted <= self._until:
            self._schedule(now)
            return None
        lease = wanted + plans.TICK
        return plans.renewing(
            self._terms.keys, self._grant, lease, next(self._nth), self._terms.attempt
        )

    def tended(self, answer: Answer | Failure) -> None:
        """What came of that renewal."""
        if not self._ours():
            return
        now = clock()
        if isinstance(answer, Failure):
            # Soon again, and exactly when there is no time left to hope.
            logger.warning("could not renew %r: %s", self.name, answer)
            step = min(1.0, max(0.05, self._terms.timeout / 10))
            self.due = min(now + step, max(now, self._until - self._doubt()))
            return
        until = plans.renewed(answer)
        if until is None:
            self._lose("the server has it no more")
        else:
            self._until = until
            self._schedule(now)

    # Inside

    def _ours(self) -> bool:
        return not self._over and self._pid == os.getpid()

    def _last(self) -> float:
        """When it ends at the latest, however often it is renewed."""
        if self._terms.renew:
            return self._grant.began + self._terms.max_hold
        return self._grant.ends

    def _wanted(self, now: float) -> float:
        """Seconds from now at which the lease should end."""
        left = self._last() - now
        return min(self._terms.timeout, left) if self._terms.renew else left

    def _doubt(self) -> float:
        """Seconds before the end at which a lease that has to be renewed is given up."""
        return min(0.25, self._terms.timeout * _MARGIN) if self._terms.renew else 0.0

    def _schedule(self, now: float) -> None:
        """Set when the keeper has to look again."""
        renewable = self._until < self._last()
        self.due = now + (self._until - now) / 3 if renewable else self._until

    def _lose(self, reason: str) -> None:
        if self._over:
            return
        self._over, self.due = reason, math.inf
        keeper(self._terms.alias).forget(self.token)
        logger.error("lost a lease of %r (%s): %s", self.name, self.token[:8], reason)
        tell(lambda: lease_lost.send_robust(Lease, lease=self, reason=reason))
        if self._terms.on_lost is not None:
            on_lost = self._terms.on_lost
            tell(lambda: on_lost(self))

    def _lost_error(self) -> LeaseLost:
        if self._pid != os.getpid():
            return LeaseLost(f"{self.name!r} is held by process {self._pid}, not by this one")
        return LeaseLost(f"the lease of {self.name!r} is over: {self._over or 'its time is up'}")

    def _server(self) -> Server:
        return server_of(self._terms.alias)

    def _aserver(self) -> AsyncServer:
        return async_server_of(self._terms.alias)

    def _renewal(self, timeout: float | None) -> plans.Plan:
        if timeout is not None:
            timeout = conf.positive("timeout", timeout, infinite=True)
        if not self._ours():
            raise self._lost_error()
        now, terms = clock(), self._terms
        wanted = terms.timeout if timeout is None else timeout
        # A shorter lease may begin at the server before its answer comes, or without one.
        self._until = min(self._until, now + wanted)
        nth = next(self._nth)
        return plans.renew(terms.keys, self._grant, wanted, nth, terms.budget, terms.attempt, now)

    def _moved(self, until: float | None) -> None:
        if until is None:
            self._lose("the server has it no more")
            raise self._lost_error()
        self._until = until
        if not self._terms.renew:
            self._grant = self._grant._replace(ends=until)
        self._schedule(clock())
        keeper(self._terms.alias).watch(self, self.token, self._terms.keys)

    def _sharing(self) -> plans.Plan:
        if not self._ours():
            raise self._lost_error()
        if self._grant.permits != 0:
            raise TypeError(f"only a writer's lease can be downgraded, not {self!r}")
        # Readers may get in before the answer comes, or without one.
        self._grant = self._grant._replace(permits=1)
        return plans.share(self._terms.keys, self._grant, self._terms.attempt, clock())

    def _shared(self, done: bool) -> None:
        if not done:
            self._lose("the server has it no more")
            raise self._lost_error()

    def _extended(self, additional_time: float, replace_ttl: bool) -> float:
        extra = conf.positive("additional_time", additional_time)
        return extra if replace_ttl else self.remaining + extra

    def _end(self) -> None:
        """Nothing renews it from here on. Raises when there is nothing to give back."""
        if self._pid != os.getpid():
            raise self._lost_error()
        if self._closed:
            raise NotAcquired(f"{self.name!r} was {self._closed} already", name=self.name)
        self._closed = "released"
        keeper(self._terms.alias).forget(self.token)
        if not self._over:
            self._over, self.due = "released", math.inf

    def _giving_back(self) -> Run:
        terms = self._terms
        return plans.releasing(terms.keys, self._grant, terms.min_hold, terms.attempt)

    def _releasing(self) -> plans.Plan:
        terms = self._terms
        return plans.release(
            terms.keys, self._grant, terms.min_hold, terms.budget, terms.attempt, clock()
        )

    def _released(self, released: bool) -> None:
        if released and self._over == "released":
            return
        if self._over == "released":  # nobody knew yet, so nobody was told
            self._over = ""
            self._lose("the server has it no more")
        raise self._lost_error()

    def _confirming(self) -> plans.Plan:
        return plans.confirm(self._terms.keys, self._grant, self._terms.attempt, clock())

    def _looking(self) -> plans.Plan:
        return plans.run_once("inspect", self._terms.keys, ("", 1), self._terms.attempt, clock())

    def _check_handle(self) -> None:
        if isinstance(self._terms.alias, Quorum):
            raise NotImplementedError(
                "a lease of several servers can't be detached: each has a fence of its own for it"
            )

    def _handle(self) -> str:
        keeper(self._terms.alias).forget(self.token)
        self._over = self._closed = "detached"
        self.due = math.inf
        return handles.write(self._terms, self._grant, next(self._nth))

    def _leaving(self) -> bool:
        """Whether leaving a `with` has to release: not in a forked child, not twice."""
        return self._pid == os.getpid() and not self._closed

    def _settle_exit(self, body: type[BaseException] | None, own: Exception) -> None:
        """The body's own exception is never masked by ours."""
        if body is None:
            raise own
        logger.error("leaving %r after an exception: %s", self.name, own)
