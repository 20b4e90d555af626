"""When a lease ends by the clock of this process, and what it needs next. No I/O in here."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import conf
from ..engine.wire import ATTEMPT
from ..exceptions import LeaseLost, NotAcquired
from ..protocol import plans
from ..protocol.keys import Keys
from ..protocol.plans import Grant
from ..protocol.steps import Answer, Failure, Plan, Run, run_once

#: Renewals in the time of a lease.
_RENEWALS = 3
#: Part of the lease duration that is left when a lease that could not be renewed is called lost.
_MARGIN_PART = 0.05
#: Seconds by which a detached lease may be shorter than was asked for.
_CLOSE = 0.005


class LeaseSettings(NamedTuple):
    """The settings of a lease, in seconds. `timeout` inf: permanent; `max_hold` inf: no cap.

    `template`: the str.format template of the name, if it is known.
    """

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


class Lost(NamedTuple):
    """A lease turned out to be over."""

    reason: str


class _RenewalState:
    """The renewals of a lease, and the local expiry that they give it.

    `aims`: ends that the holder's own renewals in flight ask for, by number. `ends`: end of a lease
    that is not renewed in the background. `margin`: seconds before the end at which a lease that
    could not be renewed is lost. `leaving`: True while it is being detached.
    """

    __slots__ = ("aims", "ends", "expiry", "leaving", "margin", "nth")

    def __init__(self, terms: LeaseSettings, grant: Grant, renewals: int) -> None:
        self.nth, self.expiry = itertools.count(renewals + 1), LocalExpiry(grant.until, renewals)
        self.aims: dict[int, float] = {}
        self.ends, self.leaving = grant.ends, False
        self.margin = _margin(terms, grant.until - grant.began)


def _margin(terms: LeaseSettings, left: float) -> float:
    return min(0.25, _MARGIN_PART * min(terms.timeout, left)) if terms.renew else 0.0


class LocalExpiry:
    """The soonest end of a lease, in whichever order its renewals are executed and answered.

    Threads share it without a lock: each method reads or writes the table in one atomic step.
    """

    # Of two renewals, the server applies the one with the higher number, whichever arrives last. So
    # the answer with the highest number counts, and lower ones mean nothing. A renewal above it may
    # have been executed, or may be later; then it gives at least its own duration, counted from
    # before it was sent. Hence the soonest of these ends is the local expiry.
    __slots__ = ("_ends",)

    def __init__(self, until: float, nth: int = 0) -> None:
        #: By number: the end, and whether an answer said so.
        self._ends = {nth: (until, True)}

    @property
    def until(self) -> float:
        ends = self._ends.copy()
        if len(ends) == 1:
            return next(iter(ends.values()))[0]
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        return min(end for nth, (end, _) in ends.items() if nth >= newest)

    def asked(self, nth: int, lease: float, now: float) -> None:
        """A renewal by `lease` seconds is about to be sent."""
        self._ends[nth] = (now + lease - plans.TICK, False)

    def answered(self, nth: int, until: float) -> None:
        self._ends[nth] = (until, True)
        ends = self._ends.copy()
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        for nth in ends:
            if nth < newest:
                self._ends.pop(nth, None)


class LeaseState:
    """The local expiry of a lease, and its schedule. `now`: this process's clock, in seconds.

    Methods that find out that the lease is over return Lost, or raise LeaseLost to the caller.
    """

    # Invariants: over is empty while the lease is held, else says why it is not. closed is what
    # this side did last, released or detached. due is when the renewer looks next, no later than
    # deadline; only the renewer or a renewal moves it. The first thread that finds the lease lost
    # empties _not_lost_yet, in one atomic step. _progress is made on first use: most leases are
    # released before.
    __slots__ = (
        "_made",
        "_not_lost_yet",
        "_renewals",
        "_writes",
        "answer",
        "closed",
        "due",
        "grant",
        "over",
        "permits",
        "pid",
        "terms",
    )

    def __init__(self, terms: LeaseSettings, grant: Grant, renewals: int, now: float) -> None:
        self.terms, self.grant, self.pid = terms, grant, os.getpid()
        self.permits, self._renewals = grant.permits, renewals
        self.over = self.closed = ""
        self.answer: bool | None = None
        self._writes = self.permits == 0
        until = grant.until
        # As _look has it, for a lease that nobody has renewed.
        ends_so = not terms.renew and grant.ends <= until
        self.due = until if ends_so else now + (until - now) / _RENEWALS
        self._not_lost_yet = [True]
        self._made: dict[None, _RenewalState] = {}

    @property
    def _progress(self) -> _RenewalState:
        found = self._made.get(None)
        if found is None:
            made = _RenewalState(self.terms, self.grant, self._renewals)
            found = self._made.setdefault(None, made)
        return found

    # Belief

    @property
    def at_home(self) -> bool:
        """True in the process that acquired it, False in a forked child."""
        return self.pid == os.getpid()

    @property
    def ours(self) -> bool:
        """True if this process may use it: it was not lost, released or detached."""
        return not self.over and self.at_home

    @property
    def until(self) -> float:
        """The local expiry: no later than the end in Redis, even with renewals in flight."""
        found = self._made.get(None)
        return self.grant.until if found is None else found.expiry.until

    def remaining(self, now: float) -> float:
        """Return the seconds that the lease certainly still has."""
        return max(0.0, self.until - now) if self.ours else 0.0

    def held(self, now: float) -> bool:
        return self.ours and now < self.until

    def check_ours(self) -> None:
        """Raise LeaseLost if this process may not use it."""
        if not self.ours:
            raise self.lost_error()

    def lost_error(self) -> LeaseLost:
        name = self.terms.keys.display
        if not self.at_home:
            return LeaseLost(f"{name!r} is held by process {self.pid}, not by this one", name)
        return LeaseLost(f"the lease of {name!r} is no longer held: {self.over or 'expired'}", name)

    # Its schedule

    @property
    def deadline(self) -> float:
        """The time at which it is lost unless a renewal was answered: some time before its end."""
        return self.until - self._progress.margin if not self.over else math.inf

    def next_renewal(self, now: float) -> Run | Lost | None:
        """Return the renewal to send now, Lost, or None."""
        if not self.ours:
            self.due = math.inf
            return None
        until, wanted = self.until, self._wanted(now)
        if now >= until:
            return Lost("it was not renewed in time" if wanted > 0 else "its time is over")
        if until - now <= self._progress.margin:
            return Lost("it could not be renewed")
        if now + wanted <= until:
            self._schedule(now)
            return None
        lease, nth, terms = wanted + plans.TICK, next(self._progress.nth), self.terms
        self._progress.expiry.asked(nth, lease, now)
        return plans.renewing(terms.keys, self.grant, lease, nth, terms.attempt)

    def renewal_done(self, step: Run, answer: Answer | Failure, now: float) -> Lost | None:
        """Take note of the outcome of that renewal."""
        if not self.ours:
            return None
        if isinstance(answer, Failure):
            # Try again soon, and look exactly at the deadline.
            pause = min(1.0, max(0.05, self.terms.timeout / 10))
            self.due = min(now + pause, max(now, self.until - self._progress.margin))
            return None
        until = plans.renewed(answer)
        if until is None:
            return Lost("the server has it no more")
        self._progress.expiry.answered(plans.number_of(step), until)
        self._schedule(now)
        return None

    def _last(self) -> float:
        """Return its latest possible end, however often it is renewed in the background."""
        if self.terms.renew:
            return self.grant.began + self.terms.max_hold
        return self._progress.ends

    def _aim(self) -> float:
        """Return the latest end that its holder is asking for."""
        return max(list(self._progress.aims.values()), default=-math.inf)

    def _wanted(self, now: float) -> float:
        """Return the seconds from now at which a background renewal would let it end."""
        left, aim = self._last() - now, self._aim() - now
        if self._progress.leaving:
            return aim
        # No shorter than its holder asks for at this moment: the later of two renewals rules.
        return max(min(self.terms.timeout, left) if self.terms.renew else left, aim)

    def _schedule(self, now: float) -> None:
        """Plan the renewer's next look."""
        self._look(self.until, max(self._last(), self._aim()), now)

    def _look(self, until: float, last: float, now: float) -> None:
        """Plan a look in time for an end at `until`. It may be renewed up to `last`."""
        left = until - now
        self._progress.margin = margin = _margin(self.terms, left)
        self.due = now + left / _RENEWALS if until < last else until - margin

    # Acts of its holder

    def renewal(self, timeout: float | None, now: float, leaving: bool = False) -> Plan:
        """Return a plan that makes it end `timeout` seconds from now (None: its own timeout).

        The plan returns Lost or None. `leaving`: it is being detached, so that the background
        renews it for no longer.
        """
        if timeout is not None:
            timeout = conf.positive("timeout", timeout, infinite=True)
        self.check_ours()
        wanted = self.terms.timeout if timeout is None else timeout
        nth = next(self._progress.nth)
        self._progress.aims[nth] = end = now + wanted - plans.TICK
        self._progress.leaving |= leaving
        # A shorter lease may begin at the server before its answer comes, or without one.
        self._progress.expiry.asked(nth, wanted, now)
        if not self.terms.renew:
            self._progress.ends = min(self._progress.ends, end)
        self._schedule(now)
        return self._renewing(nth, wanted, now, leaving)

    def _renewing(self, nth: int, lease: float, now: float, leaving: bool) -> Plan:
        terms, end, aim = self.terms, now + lease, nth
        try:
            while True:
                until = yield from plans.renew(
                    terms.keys, self.grant, lease, nth, terms.budget, terms.attempt, now
                )
                if until is None:
                    return Lost("the server has it no more")
                self._progress.expiry.answered(nth, until)
                if not leaving or self.until >= end - _CLOSE:
                    break
                nth = next(self._progress.nth)  # another thread renewed it meanwhile, for less
                self._progress.expiry.asked(nth, lease, now)
        except BaseException:
            self._progress.leaving &= not leaving
            raise
        finally:
            self._progress.aims.pop(aim, None)
        if not terms.renew:
            self._progress.ends = self.until
        return None

    def renewed(self, now: float) -> None:
        """Take note of an answered renewal of the holder. Raise LeaseLost if it is lost."""
        self.check_ours()
        self._schedule(now)

    def extended(self, additional_time: float, replace_ttl: bool, now: float) -> float:
        """Return the seconds to renew it for, so that `additional_time` is added."""
        extra = conf.positive("additional_time", additional_time)
        return extra if replace_ttl else self.remaining(now) + extra

    def sharing(self, now: float) -> Plan:
        """Return a plan that turns a writer's lease into a reader's."""
        self.check_ours()
        if not self._writes:
            raise TypeError(f"{self.terms.keys.display!r}: only a writer's lease can be downgraded")
        # Readers may get in before the answer comes, or without one.
        self.permits = 1
        return plans.share(self.terms.keys, self.grant, self.terms.attempt, now)

    def shared(self, done: bool) -> Lost | None:
        """Take note of the answer to that."""
        self._writes = False
        return None if done else Lost("the server has it no more")

    def confirming(self, now: float) -> Plan:
        """Return a plan that asks Redis whether it has the lease."""
        return plans.confirm(self.terms.keys, self.grant, self.terms.attempt, now)

    def looking(self, now: float) -> Plan:
        """Return a plan that asks Redis whether the name is held."""
        return run_once("inspect", self.terms.keys, ("", 1), self.terms.attempt, now)

    # Its end

    def lose(self, reason: str) -> bool:
        """Mark it as lost. Return False if it was over, or if another thread was first."""
        if self.over:
            return False
        try:
            self._not_lost_yet.pop()
        except IndexError:
            return False
        self.over, self.due = reason, math.inf
        return True

    def end(self) -> None:
        """Mark it as released. Raise if there is nothing to release."""
        if self.pid != os.getpid():
            raise self.lost_error()
        if self.closed:
            name = self.terms.keys.display
            raise NotAcquired(f"{name!r} was {self.closed} already", name=name)
        self.closed = "released"
        if not self.over:
            self.over, self.due = "released", math.inf

    def detached(self) -> int:
        """Mark it as detached. Return a number above those of its renewals."""
        self.over = self.closed = "detached"
        self.due = math.inf
        return next(self._progress.nth)

    def not_done(self) -> None:
        """Have its release leave the job as one that did not end."""
        self.grant = self.grant._replace(place="")

    def giving_back(self) -> Run:
        """Return the step that releases it: the first of `releasing()`."""
        terms = self.terms
        return plans.releasing(terms.keys, self.grant, terms.min_hold, terms.attempt)

    def releasing(self, now: float) -> Plan:
        """Return a plan that releases it. `answer` is the outcome from then on."""
        terms, grant = self.terms, self.grant._replace(until=self.until)
        self.answer = yield from plans.release(
            terms.keys, grant, terms.min_hold, terms.budget, terms.attempt, now
        )
        return self.answer

    def released(self, done: bool) -> Lost | None:
        """Take note of the outcome of the release. Return Lost if it was lost before."""
        if self.over != "released":
            raise self.lost_error()
        if done:
            return None
        self.over = ""
        return Lost("the server has it no more")
