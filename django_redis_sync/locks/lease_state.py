"""The state of a lease by the clock of this process, and when to renew it. This module does no
I/O."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import values
from ..engine.wire import ATTEMPT
from ..exceptions import LeaseLost, NotAcquired
from ..protocol import plans, renewals
from ..protocol.keys import Keys
from ..protocol.renewals import Grant
from ..protocol.steps import (
    TICK,
    Answer,
    Failure,
    LocalExpiry,
    Plan,
    Run,
    SendState,
    persist,
    run_once,
)
from .loss import EXPIRED, GONE, HELD_TOO_LONG, NOT_RENEWED, RENEWED_TOO_LATE

#: Number of renewals within a lease duration.
_RENEWALS = 3
#: Fraction of the lease duration that is the safety margin. If a lease could not be renewed, it
#: counts as lost when only the margin is left.
_MARGIN_PART = 0.05
#: The `min_hold` of a lease that was not used. The script `release` gets it in ms, as -1.
_NOT_USED = -0.001
#: Max seconds by which a detached lease may be shorter than requested.
_CLOSE = 0.005


class LeaseSettings(NamedTuple):
    """The settings of a lease. Times are in seconds. If `timeout` is math.inf, the lease is
    permanent. If `max_hold` is math.inf, there is no limit. `attempt`: max seconds to wait for an
    answer of Redis. `template`: the str.format template of the name, or ""."""

    keys: Keys
    alias: str
    timeout: float
    renew: bool
    max_hold: float
    min_hold: float
    attempt: float = ATTEMPT
    on_lost: Callable[[Any], Any] | None = None
    template: str = ""

    @property
    def budget(self) -> float:
        return 2 * self.attempt


def looking(keys: Keys, now: float) -> Plan:
    """Return a plan. Its result is the reply of the script `inspect` for a name."""
    return run_once("inspect", keys, ("", 1), ATTEMPT, now)


class Lost(NamedTuple):
    """A result that says that the lease is lost. `reason`: a text for the error."""

    reason: str


class LeaseState(LocalExpiry):
    """The local expiry of a lease, and when to renew it. Each argument `now` is the current time of
    this process's clock, in seconds.

    If a method finds that the lease is lost, it returns Lost. If an earlier call found the loss,
    the methods for the holder raise LeaseLost.
    """

    # The attributes that need an explanation:
    # - `over`: "" while the lease is held, else the reason why it is not held.
    # - `closed`: "released" or "detached" if this process released or detached the lease, else "".
    # - `due`: the time of the renewer's next check. It is never later than `deadline`. Until the
    #   lease ends, only the renewer and renewals change it.
    # - `_not_lost_yet`: a list with one item. The first thread that finds the lease lost removes
    #   the item, in one atomic step.
    # - `_nth`: counts the renewals.
    # - `_aims`: the ends that the holder's unanswered renewals have requested. The key is the
    #   number of the renewal.
    # - `_last_end`: the end of a lease that is not renewed in the background.
    # - `_leaving`: True while the lease is being detached.
    # - `_scheduled`: the time at which `due` was computed.
    __slots__ = (
        *("_aims", "_last_end", "_leaving", "_scheduled", "_not_lost_yet", "_nth", "_writes"),
        *("answer", "closed", "due", "grant", "over", "permits", "pid", "settings"),
    )

    def __init__(self, settings: LeaseSettings, grant: Grant, renewals: int, now: float) -> None:
        self.settings, self.grant, self.pid = settings, grant, os.getpid()
        self.permits, self._writes = grant.permits, grant.permits == 0
        self.over = self.closed = ""
        self.answer: bool | None = None
        self._not_lost_yet = [True]
        self._nth, self._ends = itertools.count(renewals + 1), {renewals: (grant.until, True)}
        self._aims: dict[int, float] = {}
        self._last_end, self._leaving, self._scheduled = grant.ends, False, now
        # This sets `due` to the same value as `_schedule`, but is faster.
        self.due = now + (grant.until - now) / _RENEWALS
        if not settings.renew and grant.ends <= grant.until:
            self.due = grant.until

    # Local expiry

    @property
    def at_home(self) -> bool:
        """True in the process that acquired the lease, False in a forked child."""
        return self.pid == os.getpid()

    @property
    def ours(self) -> bool:
        """True if this process may use the lease: the lease was not lost, released, or detached,
        and the process is not a forked child."""
        return not self.over and self.at_home

    @property
    def to_be_released(self) -> bool:
        """True if the end of a block must release the lease: this is not a forked child, and the
        lease was not released or detached before."""
        return self.at_home and not self.closed

    def remaining(self, now: float) -> float:
        """Return the seconds for which the lease is certainly still held."""
        return max(0.0, self.until - now) if self.ours else 0.0

    def held(self, now: float) -> bool:
        """Return True if the lease is certainly held."""
        return self.ours and now < self.until

    def check_ours(self) -> None:
        """Raise LeaseLost if this process may not use the lease."""
        if not self.ours:
            raise self.lost_error()

    def lost_error(self) -> LeaseLost:
        name = self.settings.keys.display
        if not self.at_home:
            return LeaseLost(f"{name!r} is held by process {self.pid}, not by this one", name)
        return LeaseLost(f"the lease of {name!r} is no longer held: {self.over or 'expired'}", name)

    # Schedule

    @property
    def deadline(self) -> float:
        """The local expiry minus the safety margin. If the lease is not renewed before this time,
        it counts as lost."""
        return self.until - self._margin if not self.over else math.inf

    def next_renewal(self, now: float) -> Run | Lost | None:
        """Return the renewal to send now, or None if no renewal is due. Return Lost if the lease is
        lost."""
        if not self.ours:
            self.due = math.inf
            return None
        until, wanted = self.until, self._wanted(now)
        if until - now <= self._margin:
            if self.settings.renew and until >= self._last():
                return Lost(HELD_TOO_LONG)
            late = RENEWED_TOO_LATE if wanted > 0 else EXPIRED
            return Lost(NOT_RENEWED if now < until else late)
        if now + wanted <= until:
            self._schedule(now)
            return None
        lease, nth, settings = wanted + TICK, next(self._nth), self.settings
        self.asked(nth, lease, now)
        return renewals.renewing(settings.keys, self.grant, lease, nth, settings.attempt)

    def renewal_done(self, step: Run, answer: Answer | Failure, now: float) -> Lost | None:
        """Record the outcome of a renewal by `next_renewal`. Return Lost if the lease is lost."""
        if not self.ours:
            return None
        if isinstance(answer, Failure):
            # Try again soon, but no later than at the deadline, when the lease counts as lost.
            pause = min(1.0, max(0.05, self.settings.timeout / 10))
            self.due = min(now + pause, max(now, self.until - self._margin))
            return None
        until = renewals.renewed(answer)
        if until is None:
            return Lost(GONE)
        self.answered(renewals.number_of(step), until)
        self._schedule(now)
        return None

    def _last(self) -> float:
        """Return the time beyond which background renewals can't extend the lease."""
        return self.grant.began + self.settings.max_hold if self.settings.renew else self._last_end

    def _aim(self) -> float:
        """Return the latest end that the holder's unanswered renewals have requested."""
        return max(list(self._aims.values()), default=-math.inf)

    def _wanted(self, now: float) -> float:
        """Return the seconds for which a background renewal extends the lease."""
        left, aim = self._last() - now, self._aim() - now
        if self._leaving:
            return aim
        # This renewal has a higher number than the holder's unanswered renewals, so it overrides
        # them. It must not make the lease end earlier than they do.
        return max(min(self.settings.timeout, left) if self.settings.renew else left, aim)

    def _schedule(self, now: float) -> None:
        """Set `due`, the time at which the renewer checks the lease next."""
        until, self._scheduled = self.until, now
        renewable = until < max(self._last(), self._aim())
        self.due = now + (until - now) / _RENEWALS if renewable else until - self._margin

    @property
    def _margin(self) -> float:
        """The safety margin in seconds: the lease counts as lost this long before its local
        expiry."""
        if not self.settings.renew:
            return 0.0
        left = self.until - self._scheduled
        return min(0.25, _MARGIN_PART * min(self.settings.timeout, left))

    # Actions of the holder

    def renewal(self, timeout: float | None, now: float, leaving: bool = False) -> Plan:
        """Return a plan that makes the lease end in `timeout` seconds (None: its own timeout).

        The result of the plan is Lost or None. `leaving`: True if the lease is being detached. In
        this case, no renewal in the background may extend the lease beyond this end.
        """
        wanted = self.settings.timeout if timeout is None else values.lease("timeout", timeout)
        self.check_ours()
        nth = next(self._nth)
        self._aims[nth] = end = now + wanted - TICK
        self._leaving |= leaving
        # Record the renewal before it is sent, because Redis may shorten the lease although the
        # answer of Redis arrives late or never.
        self.asked(nth, wanted, now)
        if not self.settings.renew:
            self._last_end = min(self._last_end, end)
        self._schedule(now)
        return self._renewing(nth, wanted, now, leaving)

    def _renewing(self, nth: int, lease: float, now: float, leaving: bool) -> Plan:
        settings, end, aim = self.settings, now + lease, nth
        try:
            while True:
                until = yield from renewals.renew(
                    settings.keys, self.grant, lease, nth, settings.budget, settings.attempt, now
                )
                if until is None:
                    return Lost(GONE)
                self.answered(nth, until)
                if not leaving or self.until >= end - _CLOSE:
                    break
                nth = next(self._nth)  # renew again: another thread's renewal shortened the lease
                self.asked(nth, lease, now)
        except BaseException:
            self._leaving &= not leaving
            raise
        finally:
            self._aims.pop(aim, None)
        if not settings.renew:
            self._last_end = self.until
        return None

    def renewed(self, now: float) -> None:
        """Update the schedule after a renewal by the holder. Raise LeaseLost if the lease is
        lost."""
        self.check_ours()
        self._schedule(now)

    def extended(self, additional_time: float, replace_ttl: bool, now: float) -> float:
        """Return the new duration in seconds. It is `additional_time` plus the time left, or only
        `additional_time` if `replace_ttl` is true."""
        extra = values.positive("additional_time", additional_time)
        values.flag("replace_ttl", replace_ttl)
        # From a handoff to the first renewal, the local expiry is earlier than the end in Redis. So
        # count from the later of the two.
        return extra if replace_ttl else max(self.remaining(now), self._last_end - now) + extra

    def downgrading(self, now: float) -> Plan:
        """Return a plan that turns a writer's lease into a reader's."""
        self.check_ours()
        if not self._writes:
            raise TypeError(
                f"{self.settings.keys.display!r}: only a writer's lease can be downgraded"
            )
        # From now on, Redis may let readers in, even if the answer of Redis is late or lost.
        self.permits = 1
        return plans.downgrade(self.settings.keys, self.grant, self.settings.attempt, now)

    def downgraded(self, done: bool) -> Lost | None:
        """Record the result of the plan `downgrading`. Return Lost if the lease is lost."""
        self._writes = False
        return None if done else Lost(GONE)

    def confirming(self, now: float) -> Plan:
        """Return a plan. Its result is True if Redis still has the lease."""
        return renewals.confirm(self.settings.keys, self.grant, self.settings.attempt, now)

    # End

    def lose(self, reason: str) -> bool:
        """Mark the lease as lost. Return False if the lease had ended before, or if another thread
        has marked it as lost."""
        if self.over:
            return False
        try:
            self._not_lost_yet.pop()
        except IndexError:
            return False
        self.over, self.due = reason, math.inf
        return True

    def check_not_ended(self) -> None:
        """Raise NotAcquired if the lease was released or detached before."""
        if self.closed:
            name = self.settings.keys.display
            raise NotAcquired(f"{name!r} was {self.closed} already", name=name)

    def end(self) -> None:
        """Mark the lease as released. Raise NotAcquired if it was released or detached before, and
        LeaseLost in a forked child."""
        if self.pid != os.getpid():
            raise self.lost_error()
        self.check_not_ended()
        self.closed = "released"
        if not self.over:
            self.over, self.due = "released", math.inf

    def detached(self) -> int:
        """Mark the lease as detached. Return a number that is higher than the number of any renewal
        so far."""
        self.over = self.closed = "detached"
        self.due = math.inf
        return next(self._nth)

    # Jobs of a task queue

    def beginning(self, job_id: str, lease: float, now: float) -> Plan:
        """Return a plan that notes that the lease runs the job `job_id`, and makes the lease end in
        `lease` seconds. Its result is a word of the script `renew`: "ok", "lost", or why the job
        must not begin."""
        settings, nth = self.settings, next(self._nth)
        self.grant = self.grant._replace(job_id=job_id)
        self.asked(nth, lease, now)
        step = renewals.renewing(
            settings.keys, self.grant, lease, nth, settings.attempt, how="begin"
        )
        answer: Answer = yield from persist(step, now + settings.budget, SendState())
        if (until := renewals.renewed(answer)) is not None:
            self.answered(nth, until)
        return answer.reply[0]

    def claiming(self, job_id: str, lease: float) -> Run:
        """Return the step that claims a lease for a job, and makes it end in `lease` seconds."""
        settings, self.grant = self.settings, self.grant._replace(job_id=job_id)
        return renewals.renewing(settings.keys, self.grant, lease, self.renewals, settings.attempt)

    def not_used(self) -> None:
        """Let the release give the permits back to the rate and ignore `min_hold`, because the
        caller has not used them."""
        self.settings = self.settings._replace(min_hold=_NOT_USED)

    def not_done(self) -> None:
        """Keep the release from noting that the job has run, because it will be delivered again."""
        self.grant = self.grant._replace(job_id="")

    @property
    def renewals(self) -> int:
        """A number that is higher than that of any renewal so far."""
        return next(self._nth)

    def giving_back(self) -> Run:
        """Return the step that releases the lease. It is the first step of `releasing()`."""
        settings = self.settings
        return plans.releasing(settings.keys, self.grant, settings.min_hold, settings.attempt)

    def releasing(self, now: float) -> Plan:
        """Return a plan that releases the lease. Its result is True if the lease was released, and
        False if it was lost before. The plan also stores the result in `answer`."""
        settings, grant = self.settings, self.grant._replace(until=self.until)
        self.answer = yield from plans.release(
            settings.keys, grant, settings.min_hold, settings.budget, settings.attempt, now
        )
        return self.answer

    def released(self, done: bool) -> Lost | None:
        """Record the result of the plan `releasing`. Return Lost if Redis no longer had the lease.
        Raise LeaseLost if the lease was known to be lost before the release."""
        if self.over != "released":
            raise self.lost_error()
        if done:
            return None
        self.over = ""
        return Lost(GONE)
