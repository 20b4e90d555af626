"""Plans. A plan is a generator of the steps of an operation, such as an acquire. It has no I/O.

A plan yields `Run`, `Wait` or `Sleep`. A driver, sync or async, carries out the step and sends an
`Answer` into the plan, or throws `Failure` if there was no usable answer. Times are seconds of the
client's monotonic clock. A lease duration is in seconds, or `math.inf` for a permanent lease.

The plans are safe for these reasons:
- The client counts the duration of a lease from the time when it sent the request. For a waiter,
  the client counts from the server's time of the grant. It converts this time to its own clock with
  the latest "wait" answer. So the local expiry is never later than the expiry on the server.
- If a reply is lost, the request is repeated with the same token.
- If a grant arrives after the end of its lease, it is undone, and the acquire starts again.
- If an acquire of a token was not answered, its release or undo writes a tombstone. The tombstone
  blocks late copies of the acquire.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .keys import Keys, share_terms
from .reasons import CLEARED, FULL, TIMEOUT, Rejection
from .renewals import Grant, register, renewal
from .scripts import ANY, CONSTANTS
from .steps import (
    SHORTEST_WAIT,
    TICK,
    Answer,
    Failure,
    Plan,
    Run,
    SendState,
    Sleep,
    Wait,
    backoff,
    milliseconds,
    once,
    persist,
    seconds,
)

RIDE_OUT = 30.0  # max seconds of an outage for which a waiter repeats its requests
UNDO_BUDGET = 1.0  # max seconds by which an undo delays the exception that caused it


class AcquireRequest(NamedTuple):
    """The arguments of an acquire.

    - `lease`: its duration in seconds, or inf. `permits`: number of permits; 0 for the whole name.
    - `wait`: False to try once. `once`: how to try; "try" or "skip". `give_up_at`: when to give up.
    - `budget`: max seconds until the first answer, with retries. `attempt`: max seconds per try.
    - `tokens`: returns a new token. `later`: repeats a failed undo in the background.
    - `kind`: p (plain) or w (read/write). `words`: see `worded`.
    - `channel`: the channel of the wake-up message, or "-" if the waiter pops it from a list.
    - `shadow`: True to grant in any case, and to count a request that the limit would reject.
    - `learn`: returns a plan that runs before the acquire.
    - `on_wait(token, waiting)`: called with True when a token begins to wait, and with False when
      its wait ends. The first call may return False to forbid the wait.
    - `share`: "" for the common share. `share_limit`: max permits of the share, or 0 for no limit.
      With "" and 0, the request does not use shares.
    - `rate`: "PERMITS/MS", or "" for no rate.
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
    on_wait: Callable[[str, bool], bool | None] | None = None
    words: tuple[Any, ...] | None = None
    share: str = ""
    share_limit: int = 0
    once: str = "try"
    rate: str = ""


#: The defaults of the last arguments of `acquire` (overrides, max_waiters, fair, compact) and
#: `release` (how, tombstone, hold, overrides, id). Arguments with these values need not be sent.
_JOINING, _ENDING = ("-", ANY, 1, 1), ("release", 0, 0, "-", "")


def _without_defaults(last: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `last`, without the arguments at its end that equal their defaults."""
    if last == defaults:  # in nearly all calls
        return ()
    count = len(last)
    while count and last[count - 1] == defaults[count - 1]:
        count -= 1
    return last[:count]


def _ending(
    keys: Keys, token: str, fence: Any, timeout: float, how: str, more: Any = (0, 0, "")
) -> Run:
    """Return a step that runs `release`. `more`: its arguments tombstone, hold, and id."""
    tombstone, hold, job_id = more
    last = _without_defaults((how, tombstone, hold, keys.overrides, job_id), _ENDING)
    return Run("release", keys.declared, (token, fence, keys.keep, *last), timeout)


def undoing(keys: Keys, token: str) -> Run:
    """Return the step that removes the lease or the waiter of a token, and writes a tombstone."""
    return _ending(keys, token, "0", UNDO_BUDGET, "undo", (1, 0, ""))


def _undo(ask: AcquireRequest, token: str) -> Plan:
    """Undo the acquire of a token. If the undo fails, let a background thread retry it."""
    undo = undoing(ask.keys, token)
    try:
        yield undo
    except BaseException as error:
        ask.later(undo)
        if not isinstance(error, Failure):
            raise


def acquire(ask: AcquireRequest, start: float, token: str = "") -> Plan:
    """Return a Grant or a Rejection. Raise Failure if the server gave no answer within the budget.
    `token`: the first token, or "" to make one."""
    if ask.learn is not None:
        yield from ask.learn()
    late, until = 0, math.inf
    while True:
        token, state = token or ask.tokens(), SendState()
        try:
            result = yield from _acquire_with(ask, token, start, state)
        except (Failure, GeneratorExit) as error:  # a closed plan can't yield more steps
            if state.unanswered or state.there or isinstance(error, GeneratorExit):
                ask.later(undoing(ask.keys, token))
            raise
        except BaseException:
            # The request of a cancelled or interrupted acquire may still reach the server.
            yield from _undo(ask, token)
            raise
        finally:
            if state.announced and ask.on_wait is not None:
                ask.on_wait(token, False)
        if isinstance(result, Grant):
            return result
        # Undo, because a request that was not answered may still reach the server and take permits.
        if state.unanswered:
            yield from _undo(ask, token)
        if result is not None:
            return result
        token, late = "", late + 1 if state.late else 0
        if late:
            until = state.late + ask.budget if late == 1 else until
            delay = backoff(late - 1)
            if state.late + delay >= until:
                text = f"{late} grants of a lease of {ask.lease:g} s arrived after its end"
                raise Failure(TimeoutError(text), state.late, "final")
            yield Sleep(delay)


def asking(ask: AcquireRequest, token: str, how: str = "") -> Run:
    """Return a step of the script `acquire`. `how`: as in the script; "" in the first step."""
    words = words_of(ask, how) if how or ask.words is None else ask.words
    return Run("acquire", ask.keys.declared, (token, *words), ask.attempt)


def worded(ask: AcquireRequest) -> AcquireRequest:
    """Return a copy of the request for many acquires. Its `words` are the arguments of the first
    step. If the name belongs to a key of a policy, return the request unchanged, because the
    overrides of the policy are among the arguments, and may change."""
    return ask if ask.keys.policy is not None else ask._replace(words=words_of(ask))


def words_of(ask: AcquireRequest, how: str = "") -> tuple[Any, ...]:
    """Return the arguments of `acquire` after the token: lease, how, wants, terms, keep, …"""
    how = how or ("shadow" if ask.shadow else "wait" if ask.wait else ask.once)
    shares = bool(ask.share or ask.share_limit)  # a name with shares is never compact
    share = f"{share_terms(ask.share, ask.share_limit)} " if shares else ""
    keys, terms = ask.keys, f"{ask.permits} {ask.limit} {ask.channel} {share}{ask.label}"
    wants = f"{ask.kind} {ask.limit} {ask.rate}" if ask.rate else f"{ask.kind} {ask.limit}"
    words = (milliseconds(ask.lease), how, wants, terms, str(keys.keep))
    compact = not (shares or ask.rate)  # a name with a rate is never compact, too
    last = keys.overrides, ask.max_waiters, int(ask.fair or shares), int(compact)
    return words + _without_defaults(last, _JOINING)


def granted(answer: Answer, ask: AcquireRequest, start: float, token: str) -> Grant | None:
    """Return a Grant if the first answer already grants the request. Otherwise return None."""
    reply = answer.reply
    if reply[0] == "ok" and ask.lease < math.inf:
        grant = _grant(ask, token, reply, answer.sent, False, 0.0)
        return grant if answer.received < grant.until else None
    return None


def _acquire_with(ask: AcquireRequest, token: str, start: float, state: SendState) -> Plan:
    """Acquire with one token. Return a Grant or a Rejection. Return None if the token has lost its
    place in the queue, so that the acquire must start again with another token."""
    until, how = start + ask.budget, ""
    while True:
        step = asking(ask, token, how)
        answer: Answer = yield from persist(step, until, state, state.there)
        reply = answer.reply
        word = reply[0]
        if word == "more" and answer.received < until:
            continue
        if word != "wait":
            return (yield from settled(ask, token, reply, answer, start, state))
        if how != "again" and ask.on_wait is not None:
            state.announced = state.there = True
            if ask.on_wait(token, True) is False:
                return (yield from _give_up(ask, token, start, state, answer.received))
        state.there, how = True, "again"
        asked, then, delay = answer.sent, int(reply[1]) / 1000, int(reply[2]) / 1000
        left, message = ask.give_up_at - answer.received, None
        if left > 0:
            try:
                exact = reply[4:] == ["rate"]
                delay = max(0.0 if exact else SHORTEST_WAIT, min(delay, left))
                answer = yield Wait(ask.keys, token, delay, exact)
                message = answer.reply
            except Failure as failure:
                # If the wait fails, only a message is lost. The next reply has the lease, if any.
                answer = Answer(None, failure.at, failure.at)
                yield Sleep(backoff(1))
        if message is not None:
            fence, granted, lease = message.split(" ")[:3]
            # The client sent its request (`asked`) before the server read its clock (`then`). So
            # `began`, the time of the grant on the client's clock, is not too late.
            began = min(answer.received, asked + int(granted) / 1000 - then)
            # A message on a channel claims no lease. Without a renewal, the lease ends after CLAIM.
            lease = lease if ask.channel == "-" else str(min(int(lease), CONSTANTS["CLAIM"]))
            # Ignore an old message: too little of its lease is left for a renewal, or nothing. The
            # reply to the next request has the new state, and claims the lease.
            if began + seconds(lease) / 2 > answer.received:
                reply, answer = ["ok", fence, lease], answer._replace(sent=began)
                return (yield from settled(ask, token, reply, answer, start, state))
        elif answer.received >= ask.give_up_at:
            return (yield from _give_up(ask, token, start, state, answer.received))
        # During an outage, repeat the request of a waiter for up to RIDE_OUT.
        until = min(max(ask.give_up_at, answer.received + UNDO_BUDGET), answer.received + RIDE_OUT)


def settled(
    ask: AcquireRequest,
    token: str,
    reply: list[Any],
    answer: Answer,
    start: float,
    state: SendState,
) -> Plan:
    """Return the outcome of a reply other than "wait": a Rejection, or a Grant. Return None if the
    token has neither a lease nor a place in the queue, or if its lease is over by now.

    `answer`: says when the reply arrived, and when a lease in it began (`sent`)."""
    began, (word, *rest) = answer.sent, reply
    if word == "more":
        return Rejection(FULL)
    if word == "no":
        reason, waiting, mean, limit, opens = (*rest, "", "", "")[:5]
        mean_hold = int(mean) / 1000 if mean else None
        bound = int(limit) if limit else None
        after = int(opens) / 1000 if opens.isdecimal() else None
        return Rejection(reason, "", int(waiting), mean_hold, bound, after)
    if word in ("large", "kind"):
        return Rejection(word, rest[0])
    if word == "dead":
        return Rejection(CLEARED)
    if word == "gone":
        return None
    waited = max(began - start, TICK) if state.there else 0.0
    state.there, lease = True, seconds(rest[1])
    if ask.lease == math.inf and lease != math.inf:
        # Even for a permanent lease, the server first grants a limited lease, because the caller
        # may be dead. This caller is alive, so make its lease permanent.
        yield from register(ask.keys, int(rest[0]), began + lease, ask.attempt)
        step = renewal(ask.keys, token, int(rest[0]), "set", "inf", 0, 0, ask.attempt)
        answer = yield from persist(step, began + lease, state)
        if answer.reply[0] == "lost":
            return None
        reply = ["ok", rest[0], "inf", *rest[2:]]
    grant = _grant(ask, token, reply, began, state.unanswered, waited)
    if answer.received < grant.until:
        return grant
    # On the server, the lease may end a little later.
    state.unanswered, state.late = True, answer.received
    return None


def _grant(
    ask: AcquireRequest, token: str, reply: list[Any], began: float, unanswered: bool, waited: float
) -> Grant:
    """Return the Grant of an "ok" reply. The lease began at `began`."""
    least = began - TICK
    until, ends = least + seconds(reply[2]), least + ask.lease
    fence, permits, rejected = int(reply[1]), ask.permits, "".join(reply[4:5])
    used = int(reply[3]) if len(reply) > 3 else permits or 1
    return Grant(token, fence, permits, began, until, ends, unanswered, rejected, waited, used)


def _give_up(ask: AcquireRequest, token: str, start: float, state: SendState, now: float) -> Plan:
    """Leave the queue. Return a Rejection, or a Grant if the waiter has got a lease meanwhile."""
    timeout = min(ask.attempt, UNDO_BUDGET)
    # Before the end of its wait, the caller leaves because it must not wait.
    how = "giveup" if now >= ask.give_up_at else "withdraw"
    step = _ending(ask.keys, token, "0", timeout, how, (int(state.unanswered), 0, ""))
    answer = yield from persist(step, now + 2 * UNDO_BUDGET, state, True)
    if answer.reply[0] in ("ok", "no"):
        return (yield from settled(ask, token, answer.reply, answer, start, state))
    return Rejection(TIMEOUT if how == "giveup" else FULL)


def releasing(keys: Keys, grant: Grant, hold: float, timeout: float) -> Run:
    """Return the step that releases a lease. `hold` and `timeout` are in seconds."""
    more = int(grant.unanswered), int(hold * 1000), grant.job_id
    return _ending(keys, grant.token, grant.fence, timeout, "release", more)


def counting_loss(keys: Keys, grant: Grant) -> Run:
    """Return the step that counts a lost lease in the statistics."""
    return _ending(keys, grant.token, grant.fence, UNDO_BUDGET, "lost")


def given_back(answer: Answer) -> bool:
    """Return True if the first answer already says that the lease was released."""
    return bool(answer.reply[0] == "ok")


def release(
    keys: Keys, grant: Grant, hold: float, budget: float, attempt: float, start: float
) -> Plan:
    """Release a lease. Return True if it was released, or False if it was lost before. `hold`: for
    how many seconds after the grant the permits stay taken."""
    state = SendState()
    answer = yield from persist(releasing(keys, grant, hold, attempt), start + budget, state)
    if given_back(answer):
        return True
    if grant.unanswered:
        # A late copy of the acquire may have got a second lease, with another fence. Undo it.
        yield from persist(undoing(keys, grant.token), start + budget, SendState())
    # The lease is gone. Return True if a try that was not answered may have released it.
    return state.unanswered and grant.until > start


def downgrade(keys: Keys, grant: Grant, attempt: float, start: float) -> Plan:
    """Turn a writer's lease into a reader's. Return False if the lease is lost, else True."""
    step = _ending(keys, grant.token, grant.fence, attempt, "downgrade")
    return (yield from once(step, start))[0] == "ok"
