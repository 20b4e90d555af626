"""The class Lease: the result of an acquire. Its state is in `lease_state`, without I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any

from ..engine import drivers
from ..engine.renewal import renewer
from ..engine.server import async_server_of, server_of
from ..engine.wire import clock
from ..exceptions import LeaseLost
from ..logs import logger
from ..protocol.keys import Keys
from ..protocol.plans import given_back
from ..protocol.renewals import Grant
from ..protocol.steps import Answer, Failure, Plan, Run
from . import handle as handles
from . import loss
from .callers import Caller, by_caller, check_may_wait, never_continues, this_caller
from .lease_state import LeaseSettings, LeaseState, Lost, looking


class Lease:
    """The right of a holder to its permits, until the lease ends.

    `bool(lease)` is True while the lease is held. A lease ends when it is released or detached, or
    when it is lost: it expired, an operator cleared it, or Redis lost its data. A lease is also a
    context manager::

        if lease := Lock("report").acquire(blocking=False):
            with lease:
                report()
                lease.check()  # before anything that must not happen twice

    `held`, `remaining` and `check()` need no round trip to Redis. They use the local expiry, which
    this process counts from the time before it sent the request. So the local expiry is never later
    than the expiry in Redis. All threads and tasks of the process may use a lease; forks may not.
    """

    # _renewer: the renewer of the process that acquired the lease. A forked child must not use it.
    __slots__ = ("__weakref__", "_caller", "_renewer", "_state")

    def __init__(
        self, settings: LeaseSettings, grant: Grant, renewals: int = 0, caller: Caller | None = None
    ) -> None:
        self._state = LeaseState(settings, grant, renewals, clock())
        self._caller, self._renewer = caller or this_caller(), renewer(settings.alias)
        self._renewer.watch(self, grant.token, settings.keys)

    @property
    def name(self) -> str:
        """The name, with its key if it has one."""
        return self._state.settings.keys.display

    @property
    def token(self) -> str:
        """The secret that identifies the lease in Redis. Don't log more than 8 characters of it."""
        return self._state.grant.token

    @property
    def fence(self) -> int:
        """The fencing token, a number that grows with every grant of the name. A storage can reject
        a write if its fence is smaller than the fence of an earlier write."""
        return self._state.grant.fence

    @property
    def permits(self) -> int:
        """The permits that the lease holds; 0 for a writer, which holds the whole name."""
        return self._state.permits

    @property
    def acquired_at(self) -> datetime:
        """The time of the grant by the clock of Redis, in UTC."""
        return datetime.fromtimestamp(self.fence / 1e6, tz=timezone.utc)

    @property
    def remaining(self) -> float:
        """Seconds for which the lease is certainly still held; 0 if it has ended, `math.inf` if it
        is permanent."""
        return self._state.remaining(clock())

    @property
    def held(self) -> bool:
        """True while the lease is certainly held, by its local expiry."""
        return self._state.held(clock())

    @property
    def ended(self) -> bool:
        """True after `release()` was called or `detach()` succeeded. A lost lease becomes ended
        only when it is released."""
        return bool(self._state.closed)

    def __bool__(self) -> bool:
        return self.held

    def __deepcopy__(self, memo: Any = None) -> Lease:
        """Return this object, because two objects can't both be the lease."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> Any:
        raise TypeError("leases can't be pickled: pass the handle that detach() returns")

    def __repr__(self) -> str:
        state = f"{self.remaining:.1f} s left" if self.held else self._state.over or "over"
        return f"<Lease {self.name!r} {self.token[:8]} {state}>"

    def check(self) -> None:
        """Raise LeaseLost if the lease is no longer held, by its local expiry."""
        renewer(self._state.settings.alias).ensure_thread()
        if not self.held:
            raise self._state.lost_error()

    def renew(self, timeout: float | None = None) -> None:
        """Make the lease end `timeout` seconds from now (default: its own timeout).

        Raise LeaseLost if the lease was lost or ended, and Unavailable if Redis can't be reached.
        """
        self._check_may_wait("renew")
        self._renewed(self._run(self._renewal(timeout)))

    async def arenew(self, timeout: float | None = None) -> None:
        """Async version of `renew()`."""
        self._renewed(await self._arun(self._renewal(timeout)))

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Add `additional_time` seconds to the time that the lease has left. If `replace_ttl` is
        true, make the lease end in `additional_time` seconds instead. Return True. Raise LeaseLost
        and Unavailable as `renew()` does."""
        self._check_may_wait("extend")
        self.renew(self._state.extended(additional_time, replace_ttl, clock()))
        return True

    async def aextend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Async version of `extend()`."""
        await self.arenew(self._state.extended(additional_time, replace_ttl, clock()))
        return True

    def reacquire(self) -> bool:
        """Make the lease last its whole timeout again. Return True. Raise LeaseLost and Unavailable
        as `renew()` does."""
        self._check_may_wait("reacquire")
        self.renew()
        return True

    async def areacquire(self) -> bool:
        """Async version of `reacquire()`."""
        await self.arenew()
        return True

    def release(self) -> None:
        """Release the lease.

        Raise NotAcquired if it was released or detached before, and LeaseLost if it was lost. If
        Redis can't be reached, raise Unavailable, and retry the release in the background.
        """
        self._end()
        try:
            released = self._give_back()
        except BaseException:
            self._release_in_background()
            raise
        self._released(released)

    async def arelease(self) -> None:
        """Async version of `release()`. A cancellation takes effect after the release."""
        self._end()
        state = self._state
        try:
            released = await self._arun(state.releasing(clock()), to_the_end=True)
        except BaseException:
            if state.answer is None:
                self._release_in_background()
            else:
                with contextlib.suppress(LeaseLost):  # the cancellation is raised instead
                    self._released(state.answer)
            raise
        self._released(released)

    def release_later(self) -> None:
        """Release the lease in the background. Raise NotAcquired if it was released or detached."""
        self._end()
        self._release_in_background()

    def owned(self) -> bool:
        """Return True if Redis confirms that the lease is held. Raise Unavailable if Redis can't be
        reached."""
        self._check_may_wait("owned")
        return self._state.ours and bool(self._run(self._state.confirming(clock())))

    async def aowned(self) -> bool:
        """Async version of `owned()`."""
        return self._state.ours and bool(await self._arun(self._state.confirming(clock())))

    def locked(self) -> bool:
        """Return True if any permit of the name is in use, by any holder. Raise Unavailable if
        Redis can't be reached."""
        self._check_may_wait("locked")
        return bool(self._run(looking(self._settings.keys, clock()))[7])

    async def alocked(self) -> bool:
        """Async version of `locked()`."""
        return bool((await self._arun(looking(self._settings.keys, clock())))[7])

    def downgrade(self) -> None:
        """Turn a writer's lease into a reader's lease, so that other readers get in.

        Raise LeaseLost if the lease was lost or ended, and TypeError if it is not a writer's lease.
        Raise Unavailable if Redis can't be reached. After Unavailable, the call may be repeated.
        """
        self._check_may_wait("downgrade")
        self._lose_if(self._state.downgraded(self._run(self._state.downgrading(clock()))))

    async def adowngrade(self) -> None:
        """Async version of `downgrade()`."""
        self._lose_if(self._state.downgraded(await self._arun(self._state.downgrading(clock()))))

    def detach(self, timeout: float | None = None) -> str:
        """Return a handle with which another process can adopt the lease.

        This process no longer renews or releases it. The lease expires after `timeout` seconds
        (default: its own timeout) unless it is adopted first. The time held so far counts toward
        `max_hold` of the adopter. Keep the handle as secret as a session key. Raise LeaseLost if
        the lease was lost or ended, Unavailable if Redis can't be reached, and NotImplementedError
        for a lease of several servers.
        """
        return self._detached(self._run(self._renewal(timeout, leaving=True)))

    async def adetach(self, timeout: float | None = None) -> str:
        """Async version of `detach()`."""
        return self._detached(await self._arun(self._renewal(timeout, leaving=True)))

    @classmethod
    def from_handle(cls, handle: str, *, on_lost: Callable[[Lease], Any] | None = None) -> Lease:
        """Adopt a detached lease and return it. It is renewed from now on.

        `on_lost`: a callable that gets the lease if it is lost. Raise LeaseLost if the lease ended
        or was adopted before, ValueError if `handle` is malformed, and Unavailable if Redis can't
        be reached.
        """
        check_may_wait("Lease", "from_handle")
        alias, plan = handles.adoption(handle, on_lost)
        return cls._adopted(drivers.drive(plan, server_of(alias)))

    @classmethod
    @by_caller
    async def afrom_handle(
        cls, caller: Caller, handle: str, *, on_lost: Callable[[Lease], Any] | None = None
    ) -> Lease:
        """Async version of `from_handle()`."""
        alias, plan = handles.adoption(handle, on_lost)
        return cls._adopted(await drivers.adrive(plan, async_server_of(alias)), caller)

    def __enter__(self) -> Lease:
        self._state.check_not_ended()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        self._leave(kind)

    async def __aenter__(self) -> Lease:
        self._state.check_not_ended()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        await self._aleave(kind)

    def _leave(self, kind: type[BaseException] | None, lenient: bool = False) -> None:
        """Release the lease at the end of a block. `kind`: the type of the block's exception, or
        None. `lenient`: if the lease was lost, log that instead of raising LeaseLost."""
        if self._state.to_be_released:
            try:
                self.release()
            except Exception as own:
                loss.raise_or_log(self, own, kind, lenient)

    async def _aleave(self, kind: type[BaseException] | None, lenient: bool = False) -> None:
        """Async version of `_leave()`."""
        if self._state.to_be_released:
            try:
                await self.arelease()
            except Exception as own:
                loss.raise_or_log(self, own, kind, lenient)

    # For the lease renewer: see engine.renewal.RenewableLease

    _settings = property(attrgetter("_state.settings"))
    _due = property(attrgetter("_state.due"))
    _deadline = property(attrgetter("_state.deadline"))

    def _next_renewal(self, now: float) -> Run | None:
        """Return the renewal to send now, or None. Report the lease as lost if it has expired, or
        if its task never continues."""
        step = self._state.next_renewal(now)
        if isinstance(step, Run) and never_continues(self._caller):
            step = Lost(loss.LOOP_CLOSED)
        if isinstance(step, Lost):
            self._lose(step)
            return None
        return step

    def _renewal_done(self, step: Run, answer: Answer | Failure) -> None:
        """Record the outcome of a renewal. If the lease is lost, report that."""
        lost = self._state.renewal_done(step, answer, clock())
        if lost is not None:
            self._lose(lost)

    def _transaction_ended(self) -> None:
        """Release the lease, because the transaction that it was held for has ended."""
        self.release()

    def _log_lost(self, reason: str) -> None:
        logger.error("lost a lease of %r (%s): %s", self.name, self.token[:8], reason)

    # Inside

    def _is_of_name(self, keys: Keys, alias: Any) -> bool:
        """Return True if the lease is of this name and alias, and of this process."""
        mine = self._state.settings
        return self._state.at_home and (mine.keys.leases, mine.alias) == (keys.leases, alias)

    @classmethod
    def _adopted(cls, of: tuple[LeaseSettings, Grant, int], caller: Caller | None = None) -> Lease:
        lease = cls(*of, caller)
        lease._renewer.housekeeper.changed(lease._settings.keys)
        return lease

    def _lose(self, lost: Lost) -> None:
        if self._state.lose(lost.reason):
            self._renewer.forget(self.token)
            loss.report(Lease, self, lost.reason)

    def _lose_if(self, lost: Lost | None) -> None:
        """If the lease is lost, report that and raise LeaseLost."""
        if lost is not None:
            self._lose(lost)
            raise self._state.lost_error()

    # `release` and `detach` don't call this check, because its error would leave the permit taken.
    _check_may_wait = check_may_wait

    def _run(self, plan: Plan) -> Any:
        return drivers.drive(plan, server_of(self._state.settings.alias))

    async def _arun(self, plan: Plan, to_the_end: bool = False) -> Any:
        server = async_server_of(self._state.settings.alias)
        return await drivers.adrive(plan, server, to_the_end=to_the_end)

    def _renewal(self, timeout: float | None, leaving: bool = False) -> Plan:
        if leaving:
            handles.check(self._state.settings)
        plan = self._state.renewal(timeout, clock(), leaving)
        self._renewer.moved(self, self.token)  # the local expiry may have become earlier
        return plan

    def _renewed(self, lost: Lost | None) -> None:
        self._lose_if(lost)
        self._state.renewed(clock())
        self._renewer.moved(self, self.token)

    def _end(self) -> None:
        """End the lease, and stop its renewal. Raise NotAcquired if it has ended before."""
        state = self._state
        state.end()
        self._renewer.forget(state.grant.token)

    def _give_back(self) -> bool:
        """Return False if the lease was lost. Make the plan only if its first step says so."""
        state, start = self._state, clock()
        server = server_of(state.settings.alias)
        try:
            answer = server.run(state.giving_back())
        except BaseException as error:
            return bool(drivers.drive(state.releasing(start), server, error))
        return given_back(answer) or bool(drivers.drive(state.releasing(start), server, answer))

    def _released(self, released: bool) -> None:
        state = self._state
        self._lose_if(state.released(released))
        held_ms = max(0, int((clock() - state.grant.began) * 1000))
        self._renewer.housekeeper.count(state.settings, "r", held_ms)

    def _release_in_background(self) -> None:
        self._renewer.later(self._state.giving_back())

    def _detached(self, lost: Lost | None) -> str:
        self._renewed(lost)
        self._renewer.forget(self.token)
        return handles.of(self._state)
