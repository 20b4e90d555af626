"""Plans: for each operation, the steps that it takes. A plan is a generator without I/O.

A plan yields `Run`, `Wait` or `Sleep`. A driver, sync or async, carries out the step and sends an
`Answer` into the plan, or throws `Failure` if there was no usable answer. Times are seconds of the
client's monotonic clock. A lease is in seconds; `math.inf` if it is permanent.

The plans are safe for these reasons:
- The local expiry of a lease counts from before the request was sent, or from the server time of
  the grant, converted with the latest "wait" answer. So it is never later than the server's.
- If a reply is lost, the request is repeated with the same token.
- If an acquire of a token was not answered, the script that ends the token writes a tombstone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .keys import Keys, share_terms
from .reasons import CLEARED, FULL, TIMEOUT, Rejection
from .scripts import ANY, CONSTANTS
from .steps import (
    BACKOFF,
    SHORTEST_WAIT,
    Answer,
    Failure,
    Plan,
    Run,
    SendState,
    Sleep,
    Wait,
    milliseconds,
    persist,
    seconds,
)

CLAIM = CONSTANTS["CLAIM"] / 1000

RIDE_OUT = 30.0  # seconds of outage during which a waiter keeps its place in the queue
UNDO_BUDGET = 1.0  # seconds that an undo may take while an exception is on its way out
TICK = 0.001  # seconds that a lease may be shorter, because scripts count whole ms


class AcquireRequest(NamedTuple):
    """The arguments of an acquire.

    `wait`: False to try once. `give_up_at`: when waiting ends; inf: never. `budget`: seconds until
    the first answer, including retries. `attempt`: timeout of each try in seconds. `kind`: p
    (plain) or w (read/write). `permits`: 0 for the whole name. `shadow`: grant in any case, and
    count what would be a rejection. `channel`: where the wake-up message is published; "-" if it is
    popped from a list. `tokens`: makes a token. `later`: queues an undo that failed. `learn`: makes
    a plan to carry out first. `waits(token, waiting)`: called with True when a token begins to
    wait, and with False when its wait ends; it returns False to forbid the wait. `words`: see
    `worded`. `share`: "" for the common share. `share_limit`: max permits of the share; 0: none.
    Without `share` and `share_limit`, the request does not use shares.
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
    waits: Callable[[str, bool], bool | None] | None = None
    words: tuple[Any, ...] | None = None
    share: str = ""
    share_limit: int = 0


class Grant(NamedTuple):
    """A granted lease. It began at `began` and is held at least until `until`.

    `ends`: when the requested lease would end. If it is later than `until`, a renewal has to
    follow. `unanswered`: True if an acquire of this token was not answered, so that its release
    writes a tombstone. `rejected`: the reason why the limit would have rejected it, if shadow mode
    granted it. `waited`: seconds from the first request to the grant if it was queued, else 0.
    `used`: permits in use after the grant, if known, else its own. `place`: the job that the
    release marks as done.
    """

    token: str
    fence: int
    permits: int
    began: float
    until: float
    ends: float
    unanswered: bool
    rejected: str = ""
    waited: float = 0.0
    used: int = 0
    place: str = ""


def undoing(keys: Keys, token: str) -> Run:
    """Return the step that removes whatever a token has, and writes its tombstone."""
    argv = (token, "0", keys.keep, *_ending("undo", 1, 0, keys.mark))
    return Run("release", keys.declared, argv, UNDO_BUDGET)


def _joining(ask: AcquireRequest) -> tuple[Any, ...]:
    """Return the last arguments of an acquire, without trailing ones that have their defaults."""
    if ask.share or ask.share_limit:  # a name with shares is never compact
        return ask.keys.mark, ask.max_waiters, 1, 0
    if not ask.fair:
        return ask.keys.mark, ask.max_waiters, 0
    if ask.max_waiters < ANY:
        return ask.keys.mark, ask.max_waiters
    return () if (mark := ask.keys.mark) == "-" else (mark,)


def _ending(how: str, tombstone: int, hold: int, mark: str) -> tuple[Any, ...]:
    """Return the last arguments of a release, without trailing ones that have their defaults."""
    if tombstone or hold or mark != "-":
        return how, tombstone, hold, mark
    return () if how == "release" else (how,)


def _undo(ask: AcquireRequest, token: str) -> Plan:
    """Undo the acquire of a token. If that fails, queue the undo for later."""
    undo = undoing(ask.keys, token)
    try:
        yield undo
    except Failure:
        ask.later(undo)
    except BaseException:
        ask.later(undo)
        raise


def acquire(
    ask: AcquireRequest,
    start: float,
    token: str = "",
    with_token: Callable[..., Plan] | None = None,
) -> Plan:
    """Return a Grant or a Rejection. Raise Failure if the server gave no answer within the budget.

    `token`: the first token, if the caller made one. `with_token`: the plan for one token;
    `_acquire_with` by default.
    """
    with_token = with_token or _acquire_with
    if ask.learn is not None:
        yield from ask.learn()
    while True:
        token, state = token or ask.tokens(), SendState()
        try:
            result = yield from with_token(ask, token, start, state)
        except Failure:
            if state.unanswered or state.there:
                ask.later(undoing(ask.keys, token))
            raise
        except GeneratorExit:
            ask.later(undoing(ask.keys, token))  # a closed plan can't yield more steps
            raise
        except BaseException:
            # A cancelled or interrupted acquire may still be on its way to the server.
            yield from _undo(ask, token)
            raise
        finally:
            if state.announced and ask.waits is not None:
                ask.waits(token, False)
        if isinstance(result, Grant):
            return result
        # A late copy of the acquire must not take permits.
        if state.unanswered:
            yield from _undo(ask, token)
        if result is not None:
            return result
        token = ""


def asking(ask: AcquireRequest, token: str, how: str = "") -> Run:
    """Return the first step of `acquire`, or the step in mode `how` of a waiter."""
    words = words_of(ask, how) if how or ask.words is None else ask.words
    return Run("acquire", ask.keys.declared, (token, *words), ask.attempt)


def worded(ask: AcquireRequest) -> AcquireRequest:
    """Return the request with the arguments of its first step, so that it can be sent many times.
    For a key of a policy, return it unchanged: the policy's override is part of the arguments."""
    return ask if ask.keys.policy is not None else ask._replace(words=words_of(ask))


def words_of(ask: AcquireRequest, how: str = "") -> tuple[Any, ...]:
    """Return the arguments after the token, for the first step or for mode `how`: lease, how,
    wants, terms, keep, …"""
    how = how or ("shadow" if ask.shadow else "wait" if ask.wait else "try")
    share = f"{share_terms(ask.share, ask.share_limit)} " if ask.share or ask.share_limit else ""
    keys, terms = ask.keys, f"{ask.permits} {ask.limit} {ask.channel} {share}{ask.label}"
    words = (milliseconds(ask.lease), how, f"{ask.kind} {ask.limit}", terms, keys.keep)
    return words + _joining(ask)


def granted(answer: Answer, ask: AcquireRequest, start: float, token: str) -> Grant | None:
    """Return the Grant if the first answer completes the acquire, else None."""
    reply = answer.reply
    if reply[0] == "ok" and ask.lease < math.inf:
        return _grant(ask, token, reply, answer.sent, False, 0.0)
    return None


def _acquire_with(ask: AcquireRequest, token: str, start: float, state: SendState) -> Plan:
    """Return a Grant, a Rejection, or None if the place in the queue was lost, so that the acquire
    has to start again with another token."""
    until, how = start + ask.budget, ""
    while True:
        step = asking(ask, token, how)
        answer: Answer = yield from persist(step, until, state, state.there)
        reply = answer.reply
        word = reply[0]
        if word == "more" and answer.received < until:
            continue
        if word != "wait":
            return (yield from settled(ask, token, reply, answer.sent, start, state))
        if how != "again" and ask.waits is not None:
            state.announced = state.there = True
            if ask.waits(token, True) is False:
                return (yield from _give_up(ask, token, start, state, answer.received))
        state.there, how = True, "again"
        asked, then, delay = answer.sent, int(reply[1]) / 1000, int(reply[2]) / 1000
        left, message = ask.give_up_at - answer.received, None
        if left > 0:
            try:
                answer = yield Wait(ask.keys, token, max(SHORTEST_WAIT, min(delay, left)))
                message = answer.reply
            except Failure as failure:
                # If the message was popped and lost, the reply to the next request has the lease.
                answer = Answer(None, failure.at, failure.at)
                yield Sleep(BACKOFF[1])
        if message is not None:
            fence, granted, lease = message.split(" ")[:3]
            # `asked` is earlier than the server's `then`. So `began` is at most the time of the
            # grant, and any error makes the local expiry earlier.
            began = min(answer.received, asked + int(granted) / 1000 - then)
            # A published message does not claim the lease: unless renewed, it expires at CLAIM.
            lease = lease if ask.channel == "-" else str(min(int(lease), CONSTANTS["CLAIM"]))
            # A message that is too old is ignored: the reply to the next request says what is true.
            if began + seconds(lease) > answer.received:
                reply = ["ok", fence, lease]
                return (yield from settled(ask, token, reply, began, start, state))
        elif answer.received >= ask.give_up_at:
            return (yield from _give_up(ask, token, start, state, answer.received))
        # With a place in the queue, the request survives an outage of up to RIDE_OUT.
        until = min(max(ask.give_up_at, answer.received + UNDO_BUDGET), answer.received + RIDE_OUT)


def settled(
    ask: AcquireRequest, token: str, reply: list[Any], began: float, start: float, state: SendState
) -> Plan:
    """Return the outcome of an answer other than "wait": a Grant from `began`, a Rejection, or None
    if the token has nothing left."""
    word, *rest = reply
    if word == "more":
        return Rejection(FULL)
    if word == "no":
        reason, waiting, mean, limit = (*rest, "", "")[:4]
        return Rejection(
            reason,
            waiting=int(waiting),
            mean_hold=int(mean) / 1000 if mean else None,
            limit=int(limit) if limit else None,
        )
    if word in ("large", "kind"):
        return Rejection(word, rest[0])
    if word == "dead":
        return Rejection(CLEARED)
    if word == "gone":
        return None
    waited = max(began - start, TICK) if state.there else 0.0
    state.there, lease = True, seconds(rest[1])
    if ask.lease == math.inf and lease != math.inf:
        # Only now is the lease made permanent: if the caller were dead, it would never expire.
        step = _renew(ask.keys, token, int(rest[0]), "set", "inf", 0, 0, ask.attempt)
        answer = yield from persist(step, began + lease, state)
        if answer.reply[0] == "lost":
            return None
        reply = ["ok", rest[0], "inf", *rest[2:]]
    return _grant(ask, token, reply, began, state.unanswered, waited)


def _grant(
    ask: AcquireRequest, token: str, reply: list[Any], began: float, unanswered: bool, waited: float
) -> Grant:
    """Return the Grant of an "ok" reply. The lease counts from `began`."""
    least = began - TICK
    until, ends = least + seconds(reply[2]), least + ask.lease
    fence, permits = int(reply[1]), ask.permits
    if len(reply) == 3:
        used, rejected = permits or 1, ""
    else:
        used, rejected = int(reply[3]), "".join(reply[4:5])
    return Grant(token, fence, permits, began, until, ends, unanswered, rejected, waited, used)


def _give_up(ask: AcquireRequest, token: str, start: float, state: SendState, now: float) -> Plan:
    """Leave the queue. Return a Rejection, or a Grant if the lease was granted meanwhile."""
    ending = _ending("giveup", int(state.unanswered), 0, ask.keys.mark)
    argv = (token, "0", ask.keys.keep, *ending)
    step = Run("release", ask.keys.declared, argv, min(ask.attempt, UNDO_BUDGET))
    answer = yield from persist(step, now + 2 * UNDO_BUDGET, state, True)
    if answer.reply[0] in ("ok", "no"):
        return (yield from settled(ask, token, answer.reply, answer.sent, start, state))
    return Rejection(TIMEOUT)


def releasing(keys: Keys, grant: Grant, hold: float, timeout: float) -> Run:
    """Return the step that releases a lease. `hold` and `timeout` are in seconds."""
    ending = _ending("release", int(grant.unanswered), int(hold * 1000), keys.mark)
    if grant.place:
        ending = "release", int(grant.unanswered), int(hold * 1000), keys.mark, grant.place
    argv = (grant.token, grant.fence, keys.keep, *ending)
    return Run("release", keys.declared, argv, timeout)


def counting_loss(keys: Keys, grant: Grant) -> Run:
    """Return the step that counts a lost lease, which the server can't detect."""
    argv = (grant.token, grant.fence, keys.keep, "lost")
    return Run("release", keys.declared, argv, UNDO_BUDGET)


def given_back(answer: Answer, *_: Any) -> bool | None:
    """Return True if the first answer completes the release, else None."""
    return True if answer.reply[0] == "ok" else None


def release(
    keys: Keys, grant: Grant, hold: float, budget: float, attempt: float, start: float
) -> Plan:
    """Return True if the lease was released, False if it was lost before. `hold`: seconds after the
    grant for which the permits stay taken."""
    state = SendState()
    answer = yield from persist(releasing(keys, grant, hold, attempt), start + budget, state)
    if given_back(answer):
        return True
    if grant.unanswered:
        # A late copy of the acquire may hold under another fence.
        yield from persist(undoing(keys, grant.token), start + budget, SendState())
    # An unanswered try may have released the lease.
    return state.unanswered and grant.until > start


def share(keys: Keys, grant: Grant, attempt: float, start: float) -> Plan:
    """Return True if a writer's lease became a reader's, False if it is lost."""
    argv = (grant.token, grant.fence, keys.keep, *_ending("share", 0, 0, keys.mark))
    step = Run("release", keys.declared, argv, attempt)
    answer = yield from persist(step, start + 2 * attempt, SendState())
    return answer.reply[0] == "ok"


def renewing(
    keys: Keys, grant: Grant, lease: float, nth: int, timeout: float, known: int | None = None
) -> Run:
    """Return the step of the `nth` renewal. The server ignores a renewal with a lower number than
    the last one. `known`: for an adopted lease, the highest number of its former owner."""
    how, known = ("set", 0) if known is None else ("adopt", known)
    ms = milliseconds(lease)
    return _renew(keys, grant.token, grant.fence, how, ms, nth, known, timeout)


def number_of(renewal: Run) -> int:
    """Return the number of a renewal of its lease."""
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
    """Return the local expiry of the renewed lease, or None if it is lost."""
    step = renewing(keys, grant, lease, nth, attempt, known)
    return renewed((yield from persist(step, start + budget, SendState())))


def renewed(answer: Answer) -> float | None:
    """Return the local expiry after a renewal, or None if the lease is lost."""
    return answer.sent + seconds(answer.reply[1]) - TICK if answer.reply[0] == "ok" else None


class LocalExpiry:
    """The earliest possible end of a lease, for any order in which its renewals are executed.

    Threads share it without a lock: each method reads or writes the table in one atomic step.
    """

    # The server ignores a renewal with a lower number than the last one. So only the answer with
    # the highest number counts. A renewal above it may be executed at any time. Then the lease
    # lasts at least for its duration since it was sent. The earliest end is the local expiry.
    __slots__ = ("_ends",)

    def __init__(self, until: float, nth: int = 0) -> None:
        #: By number: the end, and True if it is from an answer.
        self._ends = {nth: (until, True)}

    @property
    def until(self) -> float:
        ends = self._ends.copy()
        if len(ends) == 1:
            return next(iter(ends.values()))[0]
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        return min(end for nth, (end, _) in ends.items() if nth >= newest)

    def asked(self, nth: int, lease: float, now: float) -> None:
        """Record a renewal by `lease` seconds that is about to be sent."""
        self._ends[nth] = (now + lease - TICK, False)

    def answered(self, nth: int, until: float) -> None:
        """Record the answer to a renewal."""
        self._ends[nth] = (until, True)
        ends = self._ends.copy()
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        for nth in ends:
            if nth < newest:
                self._ends.pop(nth, None)


def confirm(keys: Keys, grant: Grant, attempt: float, start: float) -> Plan:
    """Return True if the server still has the lease. Its end does not change."""
    step = _renew(keys, grant.token, grant.fence, "confirm", "0", 0, 0, attempt)
    answer = yield from persist(step, start + 2 * attempt, SendState())
    return answer.reply[0] == "ok"
