"""The part of a semaphore about its name as a whole: its status, and cool-downs, in which the name
grants nothing for some seconds, because a service asked for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import conf, values
from ..engine import drivers
from ..engine.names import write_label
from ..engine.overrides import operating
from ..engine.server import async_server_of, server_of
from ..engine.wire import clock
from ..protocol.steps import Plan, milliseconds, once
from .callers import Caller
from .lease import Lease
from .lease_state import looking
from .options import Acquirer

if TYPE_CHECKING:
    from ..operators.facts import Status


def opens_in(state: Status) -> float:
    """Return the seconds until the rate and the cool-down of a name allow a call."""
    cools = (state.cool_down.until - state.at).total_seconds() if state.cool_down else 0.0
    return max(cools, state.rate.opens_in if state.rate else 0.0)


class StateOfName(Acquirer):
    """A base of Semaphore: it reads the state of the name, and begins cool-downs."""

    def status(self) -> Status:
        """Return the name's holders, waiters, and limit. Raise Unavailable if Redis can't be
        reached."""
        from ..operators.status import status_of

        self._check_may_wait("status")
        return status_of(self.name, self.key, using=self.alias())

    async def astatus(self) -> Status:
        """Async version of `status()`."""
        from ..operators.status import astatus_of

        return await astatus_of(self.name, self.key, using=self.alias())

    def locked(self) -> bool:
        """Return True if any permit of the name is in use, by any holder. Raise Unavailable if
        Redis can't be reached."""
        self._check_may_wait("locked")
        plan = looking(self._keys(), clock())
        return bool(drivers.drive(plan, server_of(self.alias()))[7])

    async def alocked(self) -> bool:
        """Async version of `locked()`."""
        plan = looking(self._keys(), clock())
        return bool((await drivers.adrive(plan, async_server_of(self.alias())))[7])

    def cool_down(self, seconds: float) -> None:
        """Grant no permit of the name for `seconds`, for example because a service answered with
        "429 Too Many Requests" and Retry-After. Leases stay, and callers wait or are rejected with
        the reason "rate". Then waiters are served again, without further calls.

        If there are several cool-downs, the longest applies. A pause of an operator stays. Raise
        Unavailable if Redis can't be reached.
        """
        self._check_may_wait("cool_down")
        if plan := self._cooling(seconds):
            drivers.drive(plan, server_of(self.alias()))

    async def acool_down(self, seconds: float) -> None:
        """Async version of `cool_down()`."""
        if plan := self._cooling(seconds):
            await drivers.adrive(plan, async_server_of(self.alias()))

    def _cooling(self, seconds: float) -> Plan | None:
        """Return the plan that begins the cool-down. Return None for 0 s, which is what a service
        says that allows the next call at once."""
        if not values.finite("seconds", seconds):
            return None
        ms, label = milliseconds(values.positive("seconds", seconds)), write_label(self.label or "")
        return once(operating(self._keys(), "cool", f"{ms} {label}"), clock())

    def _has_room(self, state: Status, permits: int, caller: Caller | None = None) -> bool:
        """Return False if a caller would have to wait for `permits`, according to the status
        `state` of the name. `caller`: None for the current thread or task."""
        named = self._options(conf.current())
        limit, wanted = self._limit(named, permits)
        free = (state.override or limit) - state.in_use
        if share_limit := self._share_limit(named):
            used = {share.name: share.in_use for share in state.shares}
            free = min(free, share_limit - used.get(self.share or "", 0))
        is_closed = state.paused or state.cool_down or (state.rate and state.rate.opens_in > 0)
        if is_closed or state.waiting or state.exclusive:
            return False
        return wanted <= free if wanted else not state.in_use  # 0: a writer wants the whole name

    def _not_used(self, lease: Lease) -> None:
        """Let the release of a lease give its permits back to the rate, because its caller has not
        got it."""
        if self._rate(self._options(conf.current()), 1):
            lease._state.not_used()
