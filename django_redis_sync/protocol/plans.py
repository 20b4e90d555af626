"""The steps of each act, in order: generators that neither send nor sleep.

A plan yields `Run`, `Wait` or `Sleep` and is sent an `Answer`; a driver carries them out, in sync
or async code, and throws `Failure` in where no answer came. Times are seconds of the client's
monotonic clock; a lease is in seconds, `math.inf` when permanent.

Why this is safe:
- belief in a lease counts from *before* the send, or from the grant's server time mapped to the
  latest "wait" answer, so that it ends no later than the server's lease; of renewals in flight the
  soonest end is believed;
- a lost reply is asked for again with the same token;
- if any acquire of a token went unanswered, every verb that ends the token buries it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .keys import Keys
from .reasons import CLEARED, FULL, TIMEOUT, Reason, reason_of
from .scripts import ANY, CONSTANTS

CLAIM = CONSTANTS["CLAIM"] / 1000

#: Seconds of outage that a waiter with a place in the queue rides out.
RIDE_OUT = 30.0
#: Seconds that undoing may take while an exception is on its way out.
UNDO_BUDGET = 1.0
#: The server reads its clock in whole milliseconds, so a lease may be so much shorter than it says.
TICK = 0.001
#: The shortest BLPOP, in seconds: 0 would block for ever.
SHORTEST_WAIT = 0.01

_BACKOFF = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


class Run(NamedTuple):
    """Run a verb. `timeout`: seconds that its answer may take."""

    verb: str
    keys: tuple[str, ...]
    argv: tuple[Any, ...]
    timeout: float


class Wait(NamedTuple):
    """Wait up to `seconds` for the element that a hand-over leaves for this token."""

    keys: Keys
    token: str
    seconds: float


class Sleep(NamedTuple):
    seconds: float


class Answer(NamedTuple):
    """`reply`: a verb's list of str and int, an element (None: it did not come), or None."""

    reply: Any
    sent: float
    received: float


Step = Run | Wait | Sleep
Why = Literal["unreachable", "unanswered", "busy", "final"]


class Failure(Exception):
    """No useful answer came at `at`, because of `cause`.

    `why`: unreachable (never sent), unanswered (sent: the server may have run it), busy (the server
    said not now), final (asking again is pointless).
    """

    def __init__(self, cause: BaseException, at: float, why: Why) -> None:
        super().__init__(str(cause))
        self.cause, self.at, self.why = cause, at, why


class Ask(NamedTuple):
    """The wishes of an acquisition.

    `wait`: False to try once; `give_up_at`: when waiting ends (inf: never); `budget`: seconds that
    a first answer may take, retries included; `attempt`: seconds for each try; `kind`: p plain,
    w read/write; `permits`: 0 for the whole name; `shadow`: granted in any case, and counted;
    `channel`: where the wake-up is published, "-" when it is popped; `tokens` makes them; `later`
    is given the undo that could not be done; `learn` is a plan to carry out first; `waits` is told
    of a token that it waits from here on, or does so no more; `words`: see `worded`.
    """

    keys: Keys
    lease: float
    permits: int
    limit: int
    wait: bool
    give_up_at: float
    budget: float
    attempt: float
    tokens: Callable[[], str]
    later: Callable[[Run], None]
    kind: str = "p"
    fair: bool = True
    max_waiters: int = ANY
    channel: str = "-"
    label: str = ""
    shadow: bool = False
    learn: Callable[[], Plan] | None = None
    waits: Callable[[str, bool], None] | None = None
    words: tuple[Any, ...] | None = None


class Grant(NamedTuple):
    """A lease that began at `began`: believe in it until `until` and no longer.

    `ends`: when the lease asked for would end; where that is later than `until`, a renewal has to
    follow. `unanswered`: an acquire of this token got no answer, so its release must bury it.
    `refused`: why a real ask would have been refused (`Ask.shadow`). `waited`: seconds from the
    first send to the grant after a place in the queue, else 0.
    """

    token: str
    fence: int
    permits: int
    began: float
    until: float
    ends: float
    unanswered: bool
    refused: str = ""
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Contention is an answer.

    `reason`: a word of REASONS; `detail`: the limit with "large", p or w with "kind". `waiting`:
    how many wait; `mean_hold`: seconds that permits were lately held; `limit`: in force, an
    operator's or the caller's; both None when unknown.
    """

    reason: str
    detail: str = ""
    waiting: int = 0
    mean_hold: float | None = None
    limit: int | None = None

    @property
    def why(self) -> Reason:
        """The reason's entry in the table."""
        return reason_of(self.reason)

    def __str__(self) -> str:
        return self.why.sentence.format(detail=self.detail)


Plan = Generator[Step, Answer, Any]


def milliseconds(seconds: float) -> str:
    """As the scripts read it: whole milliseconds, at least 1, or inf."""
    return "inf" if seconds == math.inf else str(max(1, math.ceil(seconds * 1000)))


def seconds(reply: str) -> float:
    return math.inf if reply == "inf" else int(reply) / 1000


def undoing(keys: Keys, token: str, bury: bool = True) -> Run:
    return Run(
        "release",
        keys.declared,
        (token, "0", keys.keep, *_ending("undo", int(bury), 0, keys.mark)),
        UNDO_BUDGET,
    )


def _joining(ask: Ask) -> tuple[Any, ...]:
    """The last arguments of an acquire, from the last on left out while they are as usual."""
    if not ask.keys.short:
        return ask.keys.mark, ask.max_waiters, int(ask.fair), 0
    if not ask.fair:
        return ask.keys.mark, ask.max_waiters, 0
    if ask.max_waiters < ANY:
        return ask.keys.mark, ask.max_waiters
    return () if (mark := ask.keys.mark) == "-" else (mark,)


def _ending(how: str, bury: int, hold: int, mark: str) -> tuple[Any, ...]:
    """The last arguments of a release, likewise."""
    if bury or hold or mark != "-":
        return how, bury, hold, mark
    return () if how == "release" else (how,)


@dataclass(slots=True)
class _Trail:
    """A token's possible traces: on the server a late copy of its acquire, and a place or a lease;
    with `Ask.waits`, that it waits."""

    unanswered: bool = False
    there: bool = False
    told: bool = False


def persist(step: Run, until: float, trail: _Trail, patient: bool = False) -> Plan:
    """The answer to `step`, asked for again while that may help; Failure at `until`.

    Only `patient` asks (with a place in the queue) wait for a server that can't be reached.
    """
    tries, whole = 0, step.timeout
    while True:
        try:
            return (yield step)
        except Failure as failure:
            trail.unanswered |= failure.why == "unanswered"
            if failure.why != "unanswered" or step.timeout == whole:
                cause = failure.cause  # a shorter try that is not answered says nothing new
            # Unreachable and without a place in the queue, there is nothing to lose: fail fast.
            hopeless = failure.why == "final" or (
                failure.why == "unreachable" and tries > 0 and not patient
            )
            delay = _BACKOFF[min(tries, len(_BACKOFF) - 1)]
            if hopeless or failure.at + delay >= until:
                if trail.unanswered:  # this try or an earlier one may have run
                    raise Failure(cause, failure.at, "unanswered") from failure
                raise
            tries += 1
            if delay:
                yield Sleep(delay)
            left = until - failure.at - delay
            step = step._replace(timeout=max(min(step.timeout, left), SHORTEST_WAIT))


def _undo(ask: Ask, token: str) -> Plan:
    """Tried once; a failed step is left for later."""
    undo = undoing(ask.keys, token)
    try:
        yield undo
    except Failure:
        ask.later(undo)
    except BaseException:
        ask.later(undo)
        raise


def acquire(ask: Ask, start: float, token: str = "") -> Plan:
    """A Grant or a Refusal. Failure when the server gave no answer within the budget.

    `token`: the first to ask with, where one was made.
    """
    if ask.learn is not None:
        yield from ask.learn()
    while True:
        token, trail = token or ask.tokens(), _Trail()
        try:
            result = yield from _acquire_with(ask, token, start, trail)
        except Failure:
            if trail.unanswered or trail.there:
                ask.later(undoing(ask.keys, token))
            raise
        except GeneratorExit:
            ask.later(undoing(ask.keys, token))  # no driver is there to carry out more
            raise
        except BaseException:
            # Cancelled or interrupted, maybe with an acquire on its way to the server.
            yield from _undo(ask, token)
            raise
        finally:
            if trail.told and ask.waits is not None:
                ask.waits(token, False)
        if isinstance(result, Grant):
            return result
        # A copy of the acquire may still be on its way: it must not take permits for no caller.
        if trail.unanswered:
            yield from _undo(ask, token)
        if result is not None:
            return result
        token = ""


def asking(ask: Ask, token: str, how: str = "") -> Run:
    """The first step of `acquire`; or `how` a waiter asks again."""
    words = ask.words if not how else None
    if words is None:
        words = _words(ask, how)
    return Run("acquire", ask.keys.declared, (token, *words), ask.attempt)


def worded(ask: Ask) -> Ask:
    """The same, to be asked many times: with the words of its first step, but for the token. A
    policy's marks change, so those of its keys are put into words each time."""
    return ask if ask.keys.policy is not None else ask._replace(words=_words(ask))


def _words(ask: Ask, how: str = "") -> tuple[Any, ...]:
    how = how or ("shadow" if ask.shadow else "wait" if ask.wait else "try")
    keys, terms = ask.keys, f"{ask.permits} {ask.limit} {ask.channel} {ask.label}"
    words = (milliseconds(ask.lease), how, f"{ask.kind} {ask.limit}", terms, keys.keep)
    return words + _joining(ask)


def granted(answer: Answer, ask: Ask, start: float, token: str) -> Grant | None:
    """What `acquire` comes to, where the first answer grants the permits and nothing is left to do;
    else None."""
    reply = answer.reply
    if reply[0] == "ok" and ask.lease < math.inf:
        return _grant(ask, token, reply, answer.sent, False, 0.0)
    return None


def _acquire_with(ask: Ask, token: str, start: float, trail: _Trail) -> Plan:
    """A Grant, a Refusal, or None when the place in the queue was lost: start over."""
    until, how = start + ask.budget, ""
    while True:
        step = asking(ask, token, how)
        answer: Answer = yield from persist(step, until, trail, trail.there)
        reply = answer.reply
        word = reply[0]
        if word == "more" and answer.received < until:
            continue
        if word != "wait":
            return (yield from _settled(ask, token, reply, answer.sent, start, trail))
        if how != "again" and ask.waits is not None:
            trail.told = True
            ask.waits(token, True)
        trail.there, how = True, "again"
        asked, then, told = answer.sent, int(reply[1]) / 1000, int(reply[2]) / 1000
        left, element = ask.give_up_at - answer.received, None
        if left > 0:
            try:
                answer = yield Wait(ask.keys, token, max(SHORTEST_WAIT, min(told, left)))
                element = answer.reply
            except Failure as failure:
                # A hand-over may have been popped and lost on its way: asking again finds it.
                answer = Answer(None, failure.at, failure.at)
                yield Sleep(_BACKOFF[1])
        if element is not None:
            fence, granted, lease = element.split(" ")
            # `asked` lies before the server's `then`, so this is no later than the grant was: any
            # error makes the belief end early.
            began = min(answer.received, asked + int(granted) / 1000 - then)
            # A message claims nothing: without a renewal the server takes the lease back.
            lease = lease if ask.channel == "-" else str(min(int(lease), CONSTANTS["CLAIM"]))
            # Else the element lay unread for too long, and asking again tells the truth.
            if began + seconds(lease) > answer.received:
                reply = ["ok", fence, lease]
                return (yield from _settled(ask, token, reply, began, start, trail))
        elif answer.received >= ask.give_up_at:
            return (yield from _give_up(ask, token, start, trail, answer.received))
        # With a place in the queue an outage is ridden out for as long as the caller would wait.
        until = min(max(ask.give_up_at, answer.received + UNDO_BUDGET), answer.received + RIDE_OUT)


def _settled(
    ask: Ask, token: str, reply: list[Any], began: float, start: float, trail: _Trail
) -> Plan:
    """The meaning of an answer other than "wait"; a grant counts from `began`."""
    word, *rest = reply
    if word == "more":
        return Refusal(FULL)
    if word == "no":
        reason, waiting, mean, limit = (*rest, "", "")[:4]
        return Refusal(
            reason,
            waiting=int(waiting),
            mean_hold=int(mean) / 1000 if mean else None,
            limit=int(limit) if limit else None,
        )
    if word in ("large", "kind"):
        return Refusal(word, rest[0])
    if word == "dead":
        return Refusal(CLEARED)
    if word == "gone":
        return None
    waited = max(began - start, TICK) if trail.there else 0.0
    trail.there, lease = True, seconds(rest[1])
    if ask.lease == math.inf and lease != math.inf:
        # Only a holder that is there may hold for ever: a ghost of this would never go.
        step = _renew(ask.keys, token, int(rest[0]), "set", "inf", 0, 0, ask.attempt)
        answer = yield from persist(step, began + lease, trail)
        if answer.reply[0] == "lost":
            return None
        reply = ["ok", rest[0], "inf", *rest[2:]]
    return _grant(ask, token, reply, began, trail.unanswered, waited)


def _grant(
    ask: Ask, token: str, reply: list[Any], began: float, unanswered: bool, waited: float
) -> Grant:
    """What an "ok" gives, to whoever counts it from `began`."""
    least = began - TICK
    until, ends = least + seconds(reply[2]), least + ask.lease
    refused = reply[3] if len(reply) > 3 else ""
    return Grant(token, int(reply[1]), ask.permits, began, until, ends, unanswered, refused, waited)


def _give_up(ask: Ask, token: str, start: float, trail: _Trail, now: float) -> Plan:
    """Leave the queue, unless the permits came at the last moment."""
    ending = _ending("giveup", int(trail.unanswered), 0, ask.keys.mark)
    argv = (token, "0", ask.keys.keep, *ending)
    step = Run("release", ask.keys.declared, argv, min(ask.attempt, UNDO_BUDGET))
    answer = yield from persist(step, now + 2 * UNDO_BUDGET, trail, True)
    if answer.reply[0] == "ok":
        return (yield from _settled(ask, token, answer.reply, answer.sent, start, trail))
    return Refusal(TIMEOUT)


def releasing(keys: Keys, grant: Grant, hold: float, timeout: float) -> Run:
    ending = _ending("release", int(grant.unanswered), int(hold * 1000), keys.mark)
    argv = (grant.token, grant.fence, keys.keep, *ending)
    return Run("release", keys.declared, argv, timeout)


def given_back(answer: Answer, *_: Any) -> bool | None:
    """What `release` comes to, where the first answer says so; else None."""
    return True if answer.reply[0] == "ok" else None


def release(
    keys: Keys, grant: Grant, hold: float, budget: float, attempt: float, start: float
) -> Plan:
    """True when given back, False when it was not ours any more. `hold`: seconds after the grant
    until which the permits stay taken."""
    trail = _Trail()
    answer = yield from persist(releasing(keys, grant, hold, attempt), start + budget, trail)
    if given_back(answer):
        return True
    if grant.unanswered:
        # A late copy of the acquire may hold under another fence.
        yield from persist(undoing(keys, grant.token), start + budget, _Trail())
    # An earlier copy of this release may have worked.
    return trail.unanswered and grant.until > start


def share(keys: Keys, grant: Grant, attempt: float, start: float) -> Plan:
    """True when a writer's lease became a reader's, False when it is lost."""
    argv = (grant.token, grant.fence, keys.keep, *_ending("share", 0, 0, keys.mark))
    step = Run("release", keys.declared, argv, attempt)
    answer = yield from persist(step, start + 2 * attempt, _Trail())
    return answer.reply[0] == "ok"


def renewing(
    keys: Keys, grant: Grant, lease: float, nth: int, timeout: float, known: int | None = None
) -> Run:
    """`nth`: which renewal of this lease it is; of two, the server heeds the later one. `known`:
    the lease is adopted, and this is the highest number of its former owner."""
    how, known = ("set", 0) if known is None else ("adopt", known)
    ms = milliseconds(lease)
    return _renew(keys, grant.token, grant.fence, how, ms, nth, known, timeout)


def number_of(renewal: Run) -> int:
    """Which renewal of its lease a step is."""
    return int(renewal.argv[4])


def _renew(
    keys: Keys, token: str, fence: int, how: str, ms: str, nth: int, known: int, timeout: float
) -> Run:
    return Run("renew", keys.declared, (token, fence, how, ms, nth, known, keys.keep), timeout)


def renew(
    keys: Keys,
    grant: Grant,
    lease: float,
    nth: int,
    budget: float,
    attempt: float,
    start: float,
    known: int | None = None,
) -> Plan:
    """When the renewed lease ends (believe no longer), or None when it is lost."""
    step = renewing(keys, grant, lease, nth, attempt, known)
    return renewed((yield from persist(step, start + budget, _Trail())))


def renewed(answer: Answer) -> float | None:
    return answer.sent + seconds(answer.reply[1]) - TICK if answer.reply[0] == "ok" else None


class Belief:
    """When a lease ends at the soonest, in every order of running and answering its renewals.

    Threads share it without a lock: each method reads or writes the table in one atomic step.
    """

    # Of two renewals the server heeds that with the higher number, whichever arrives last. So
    # the answer with the highest number rules, and those below it mean nothing. A renewal above it
    # may have been run, or may be run still; run whenever, it gives at least its own time counted
    # from before it was sent. Hence the soonest of these is believed.
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
        """A renewal is about to be sent, for so many seconds."""
        self._ends[nth] = (now + lease - TICK, False)

    def answered(self, nth: int, until: float) -> None:
        self._ends[nth] = (until, True)
        ends = self._ends.copy()
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        for nth in ends:
            if nth < newest:
                self._ends.pop(nth, None)


def confirm(keys: Keys, grant: Grant, attempt: float, start: float) -> Plan:
    """Whether the server still has the lease; its end stays."""
    step = _renew(keys, grant.token, grant.fence, "confirm", "0", 0, 0, attempt)
    answer = yield from persist(step, start + 2 * attempt, _Trail())
    return answer.reply[0] == "ok"


def run_once(verb: str, keys: Keys, argv: tuple[Any, ...], attempt: float, start: float) -> Plan:
    """The reply of a verb that can be asked again without harm; argv[0] is its token, or empty."""
    step = Run(verb, keys.declared, argv, attempt)
    answer = yield from persist(step, start + 2 * attempt, _Trail())
    return answer.reply
