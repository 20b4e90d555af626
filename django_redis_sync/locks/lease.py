"""A lease: the right of one holder, for a time. `lease_state` knows how long to believe in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any

from ..engine import drivers
from ..engine.courier import tell
from ..engine.keeper import keeper
from ..engine.quorum import Quorum
from ..engine.server import AsyncServer, Server, async_server_of, server_of
from ..engine.wire import clock
from ..protocol.keys import Keys
from ..protocol.plans import Answer, Failure, Grant, Plan, Run, given_back
from ..signals import lease_lost
from . import abandoned, counting
from . import handle as handles
from .lease_state import LeaseState, Lost, Terms
from .waiting import Caller, may_wait, this_caller, waits_here

logger = logging.getLogger("django_redis_sync")


class Lease:
    """A holder's right: truthy while held, given back by `release` or by leaving the `with`.

    Belief is local and counts from before the request for it was sent: `held`, `remaining` and
    `check` cost no round trip and end no later than the server's lease. Any thread of the process
    may use it; a forked child may not.
    """

    # `keeper`: that of the process that took it, of no use to a fork.
    __slots__ = ("__weakref__", "_caller", "_loop", "_state", "keeper")

    def __init__(self, terms: Terms, grant: Grant, renewals: int = 0) -> None:
        self._state = LeaseState(terms, grant, renewals, clock())
        self._caller, self._loop = this_caller()
        self.keeper = keeper(terms.alias)
        self.keeper.watch(self, grant.token, terms.keys)

    # Its properties

    @property
    def name(self) -> str:
        return self._state.terms.keys.display

    @property
    def token(self) -> str:
        """The secret that makes it ours. Never shown whole to people."""
        return self._state.grant.token

    @property
    def fence(self) -> int:
        """Grows with every grant of the name: have storage refuse a write with an older fence."""
        return self._state.grant.fence

    @property
    def permits(self) -> int:
        return self._state.permits

    @property
    def acquired_at(self) -> datetime:
        """The server's time of the grant."""
        return datetime.fromtimestamp(self.fence / 1e6, tz=timezone.utc)

    @property
    def remaining(self) -> float:
        """Seconds that the lease surely still has; 0 when it is over, inf when permanent."""
        return self._state.remaining(clock())

    @property
    def held(self) -> bool:
        return self._state.held(clock())

    @property
    def ended(self) -> bool:
        """Whether this side gave it back, or let it go; a lost lease only when it was released."""
        return bool(self._state.closed)

    def is_of(self, keys: Keys, alias: Any) -> bool:
        """Whether it is this process's, and of that name on that server."""
        mine = self._state.terms
        return self._state.at_home and (mine.keys.leases, mine.alias) == (keys.leases, alias)

    def is_of_caller(self, caller: Caller) -> bool:
        """Whether that thread or task took it, and it is not over."""
        return self._caller == caller and self.held

    def __bool__(self) -> bool:
        return self.held

    def __repr__(self) -> str:
        state = f"{self.remaining:.1f} s left" if self.held else self._state.over or "over"
        return f"<Lease {self.name!r} {self.token[:8]} {state}>"

    def check(self) -> None:
        """LeaseLost when it is not held any more. Local."""
        keeper(self._state.terms.alias).look_after()
        if not self.held:
            raise self._state.lost_error()

    # Its methods

    def renew(self, timeout: float | None = None) -> None:
        """Make it end `timeout` seconds from now (default: its own). LeaseLost if it is over."""
        self._check_may_wait("renew")
        self._renewed(drivers.drive(self._renewal(timeout), self._server()))

    async def arenew(self, timeout: float | None = None) -> None:
        """As renew."""
        self._renewed(await drivers.adrive(self._renewal(timeout), self._aserver()))

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Add seconds to `remaining`, or replace it. LeaseLost if it is over. Returns True."""
        self._check_may_wait("extend")
        self.renew(self._state.extended(additional_time, replace_ttl, clock()))
        return True

    async def aextend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """As extend."""
        await self.arenew(self._state.extended(additional_time, replace_ttl, clock()))
        return True

    def reacquire(self) -> bool:
        """Make it last its whole timeout again. LeaseLost if it is over. True, as redis-py."""
        self._check_may_wait("reacquire")
        self.renew()
        return True

    async def areacquire(self) -> bool:
        """As reacquire."""
        await self.arenew()
        return True

    def release(self) -> None:
        """Give it back. NotAcquired when that was done already, LeaseLost when it is over."""
        self._end()
        state = self._state
        try:
            server, step = server_of(state.terms.alias), state.giving_back()
            released = drivers.attempt(server, step, given_back, state.releasing, clock())
        except BaseException:
            self._give_back_later()
            raise
        self._released(released)

    async def arelease(self) -> None:
        """As release. A cancellation waits until it is given back."""
        self._end()
        try:
            plan = self._state.releasing(clock())
            released = await drivers.adrive(plan, self._aserver(), to_the_end=True)
        except BaseException:
            self._give_back_later()
            raise
        self._released(released)

    def release_later(self) -> None:
        """As release, by the keeper as soon as the server answers. Waits for nothing."""
        self._end()
        self._give_back_later()

    def owned(self) -> bool:
        """Whether the server says that it is still ours."""
        self._check_may_wait("owned")
        plan = self._state.confirming(clock())
        return self._state.ours and bool(drivers.drive(plan, self._server()))

    async def aowned(self) -> bool:
        """As owned."""
        plan = self._state.confirming(clock())
        return self._state.ours and bool(await drivers.adrive(plan, self._aserver()))

    def locked(self) -> bool:
        """Whether the name is held now, by any holder."""
        self._check_may_wait("locked")
        return bool(drivers.drive(self._state.looking(clock()), self._server())[7])

    async def alocked(self) -> bool:
        """As locked."""
        plan = self._state.looking(clock())
        return bool((await drivers.adrive(plan, self._aserver()))[7])

    def downgrade(self) -> None:
        """A writer's lease becomes a reader's: other readers get in. LeaseLost if it is over.

        After Unavailable it may be asked for again.
        """
        self._check_may_wait("downgrade")
        self._shared(drivers.drive(self._state.sharing(clock()), self._server()))

    async def adowngrade(self) -> None:
        """As downgrade."""
        self._shared(await drivers.adrive(self._state.sharing(clock()), self._aserver()))

    def detach(self, timeout: float | None = None) -> str:
        """A handle, for another process to adopt. This side lets go: no renewal, no release.

        The lease lives `timeout` seconds more (default: its own); its `max_hold` is what is left of
        it. The handle holds the token: keep it as secret as a session key. NotImplementedError
        for a lease of several servers.
        """
        self._check_handle()
        self._renewed(drivers.drive(self._renewal(timeout, leaving=True), self._server()))
        return self._handle()

    async def adetach(self, timeout: float | None = None) -> str:
        """As detach."""
        self._check_handle()
        plan = self._renewal(timeout, leaving=True)
        self._renewed(await drivers.adrive(plan, self._aserver()))
        return self._handle()

    @classmethod
    def from_handle(cls, handle: str, *, on_lost: Callable[[Lease], Any] | None = None) -> Lease:
        """Adopt a detached lease: renews it from now on. LeaseLost if it is over or was adopted
        elsewhere, ValueError if `handle` is malformed."""
        if not may_wait():
            raise waits_here("Lease.from_handle in sync code", "`await Lease.afrom_handle(…)`")
        adoption = handles.Adoption(handle, on_lost)
        return cls._adopted(drivers.drive(adoption.plan(), server_of(adoption.terms.alias)))

    @classmethod
    async def afrom_handle(
        cls, handle: str, *, on_lost: Callable[[Lease], Any] | None = None
    ) -> Lease:
        """As from_handle."""
        adoption = handles.Adoption(handle, on_lost)
        server = async_server_of(adoption.terms.alias)
        return cls._adopted(await drivers.adrive(adoption.plan(), server))

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

    @property
    def terms(self) -> Terms:
        """How it is kept, and the name it is of."""
        return self._state.terms

    @property
    def due(self) -> float:
        """When the keeper has to look."""
        return self._state.due

    @property
    def lapses(self) -> float:
        """When it is lost unless it was renewed by then."""
        return self._state.lapses

    def tend(self, now: float) -> Run | None:
        """The renewal to send now, or None; a lease that is over is called lost."""
        step = self._state.tend(now)
        if isinstance(step, Lost):
            self._lose(step)
            return None
        return step

    def tended(self, step: Run, answer: Answer | Failure) -> None:
        """The keeper reports the outcome of a renewal."""
        lost = self._state.tended(step, answer, clock())
        if lost is not None:
            self._lose(lost)
        # With nearly all of its time ahead: a collection stops the keeper too, as long as it takes.
        elif self._loop is not None and abandoned.collected(self._loop):
            self._loop = None

    def say_lost(self, reason: str) -> None:
        """Log, once, that it is over."""
        logger.error("lost a lease of %r (%s): %s", self.name, self.token[:8], reason)

    # Inside

    @classmethod
    def _adopted(cls, of: tuple[Terms, Grant, int]) -> Lease:
        lease = cls(*of)
        lease.keeper.clerk.adopted(lease.terms.keys)
        return lease

    def _lose(self, lost: Lost) -> None:
        state, reason = self._state, lost.reason
        if not state.lose(reason):
            return
        self.keeper.forget(self.token)
        on_lost = state.terms.on_lost
        told = [] if on_lost is None else [partial(on_lost, self)]
        tell(partial(lease_lost.send_robust, Lease, lease=self, reason=reason), *told)
        counting.lost(self.keeper.clerk, state.terms)
        # Receivers come first: a handler of the log may take its time.
        self.say_lost(reason)

    def _lose_if(self, lost: Lost | None) -> None:
        """LeaseLost when it turned out to be over."""
        if lost is not None:
            self._lose(lost)
            raise self._state.lost_error()

    def _check_may_wait(self, method: str) -> None:
        """Release, detach and leaving a block are never refused: they let others go on."""
        if not may_wait():
            raise waits_here(f"{method} of {self.name!r} in sync code", f"`await ….a{method}()`")

    def _server(self) -> Server:
        return server_of(self._state.terms.alias)

    def _aserver(self) -> AsyncServer:
        return async_server_of(self._state.terms.alias)

    def _renewal(self, timeout: float | None, leaving: bool = False) -> Plan:
        plan = self._state.renewal(timeout, clock(), leaving)
        self._watch()  # its end may be sooner from here on
        return plan

    def _renewed(self, lost: Lost | None) -> None:
        self._lose_if(lost)
        self._state.renewed(clock())
        self._watch()

    def _watch(self) -> None:
        self.keeper.moved(self, self.token)

    def _shared(self, done: bool) -> None:
        self._lose_if(self._state.shared(done))

    def _end(self) -> None:
        """Nothing renews it from here on. Raises when there is nothing to give back."""
        state = self._state
        state.end()
        self.keeper.forget(state.grant.token)

    def _released(self, released: bool) -> None:
        state = self._state
        if not released or state.over != "released":
            self._lose_if(state.released(released))
        counting.released(self.keeper.clerk, state.terms, state.grant)

    def _give_back_later(self) -> None:
        self.keeper.later(self._state.giving_back())

    def _check_handle(self) -> None:
        if isinstance(self._state.terms.alias, Quorum):
            raise NotImplementedError(
                "a lease of several servers can't be detached: each has a fence of its own for it"
            )

    def _handle(self) -> str:
        state = self._state
        self.keeper.forget(self.token)
        grant = state.grant._replace(permits=state.permits)
        return handles.write(state.terms, grant, state.detached(), clock() - grant.began)

    def _leaving(self) -> bool:
        """Whether leaving a `with` has to release: not in a forked child, not twice."""
        return self._state.at_home and not self._state.closed

    def _settle_exit(self, body: type[BaseException] | None, own: Exception) -> None:
        """The body's own exception is never masked by ours."""
        if body is None:
            raise own
        logger.error("leaving %r after an exception: %s", self.name, own)
