"""What plans ask of a driver, and what they are sent: steps, answers and failures.

`persist` repeats a step until an answer comes.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .keys import Keys

SHORTEST_WAIT = 0.01  # seconds of the shortest BLPOP: 0 would block for ever
BACKOFF = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between the tries of a step


class Run(NamedTuple):
    """Run a script. `timeout`: seconds that its answer may take."""

    verb: str
    keys: tuple[str, ...]
    argv: tuple[Any, ...]
    timeout: float


class Wait(NamedTuple):
    """Wait up to `seconds` for the message that a handoff leaves for this token."""

    keys: Keys
    token: str
    seconds: float


class Sleep(NamedTuple):
    seconds: float


class Answer(NamedTuple):
    """`reply`: a script's list of str and int, a message (None: it did not come), or None."""

    reply: Any
    sent: float
    received: float


Step = Run | Wait | Sleep
Why = Literal["unreachable", "unanswered", "busy", "final"]


class Failure(Exception):
    """Raised into a plan when a step gets no usable reply.

    `cause` is the exception; `at` is the time of the failure on the client's monotonic clock. `why`
    is "unreachable" (the command was not sent), "unanswered" (it was sent, and the server may have
    executed it), "busy" (a temporary error such as LOADING, READONLY, or too many connections), or
    "final" (a retry can't succeed).
    """

    def __init__(self, cause: BaseException, at: float, why: Why) -> None:
        super().__init__(str(cause))
        self.cause, self.at, self.why = cause, at, why


Plan = Generator[Step, Answer, Any]


def milliseconds(seconds: float) -> str:
    """Return it as the scripts read it: whole milliseconds, at least 1, or inf."""
    return "inf" if seconds == math.inf else str(max(1, math.ceil(seconds * 1000)))


def seconds(reply: str) -> float:
    return math.inf if reply == "inf" else int(reply) / 1000


@dataclass(slots=True)
class SendState:
    """What may be left of a token: a late copy of its acquire (`unanswered`), a place in the queue
    or a lease (`there`), an open call of `AcquireRequest.waits` (`told`)."""

    unanswered: bool = False
    there: bool = False
    told: bool = False


def uncounted(step: Run) -> Run:
    """Return the step for a repetition after an unanswered request. If it counts what an earlier
    copy may have counted, the repetition counts nothing: with `keep` 0, no script counts."""
    if step.verb == "acquire" and step.argv[2] != "again":
        keep = 5
    elif step.verb == "release" and step.argv[3:4] == ("lost",):
        keep = 2
    else:
        return step
    return step._replace(argv=(*step.argv[:keep], 0, *step.argv[keep + 1 :]))


def persist(step: Run, until: float, trail: SendState, patient: bool = False) -> Plan:
    """Return the answer to `step`; repeat it while that may help. Raise Failure at `until`.

    Only a `patient` request, with a place in the queue, waits for an unreachable server.
    """
    tries, whole = 0, step.timeout
    while True:
        try:
            return (yield step)
        except Failure as failure:
            if failure.why == "unanswered":
                trail.unanswered, step = True, uncounted(step)
            if failure.why != "unanswered" or step.timeout == whole:
                cause = failure.cause  # a shorter try that is not answered says nothing new
            # Unreachable and without a place in the queue, there is nothing to lose: fail fast.
            hopeless = failure.why == "final" or (
                failure.why == "unreachable" and tries > 0 and not patient
            )
            delay = BACKOFF[min(tries, len(BACKOFF) - 1)]
            if hopeless or failure.at + delay >= until:
                if trail.unanswered:  # this try or an earlier one may have run
                    raise Failure(cause, failure.at, "unanswered") from failure
                raise
            tries += 1
            if delay:
                yield Sleep(delay)
            left = until - failure.at - delay
            step = step._replace(timeout=max(min(step.timeout, left), SHORTEST_WAIT))


def run_once(verb: str, keys: Keys, argv: tuple[Any, ...], attempt: float, start: float) -> Plan:
    """Return the reply of a script that may be repeated; argv[0] is its token, or empty."""
    step = Run(verb, keys.declared, argv, attempt)
    answer = yield from persist(step, start + 2 * attempt, SendState())
    return answer.reply
