"""Steps that a plan yields to a driver, and the answers and failures that the driver sends back.

`persist` repeats a step until the server answers. `LocalExpiry` computes the earliest possible end
of a lease from the renewals that were sent, and from their answers.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .keys import Keys

SHORTEST_WAIT = 0.01  # shortest timeout of BLPOP in seconds: 0 would block forever
BACKOFF = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between the tries of a step
TICK = 0.001  # seconds by which a lease may end early, because scripts count in whole ms


def backoff(tries: int) -> float:
    """Return the seconds to wait after the first try failed and `tries` further ones."""
    return BACKOFF[min(tries, len(BACKOFF) - 1)]


class Run(NamedTuple):
    """The step that runs the script `verb`. `timeout`: seconds to wait for the answer."""

    verb: str
    keys: tuple[str, ...]
    argv: tuple[Any, ...]
    timeout: float


class Wait(NamedTuple):
    """The step that waits up to `seconds` for the token's wake-up message. `exact`: True if the
    wait must not last longer, because the rate of the name then opens."""

    keys: Keys
    token: str
    seconds: float
    exact: bool = False


class Sleep(NamedTuple):
    seconds: float


class Answer(NamedTuple):
    """The answer to a step. `sent` and `received`: when the step began and ended, in seconds of the
    monotonic clock. `reply`:

    - for Run: the script's reply, a list of str and int
    - for Wait: the message, or None if it did not arrive
    - for Sleep: None
    """

    reply: Any
    sent: float
    received: float


Step = Run | Wait | Sleep
Why = Literal["unreachable", "unanswered", "busy", "final"]


class Failure(Exception):
    """Raised into a plan when a step gets no usable reply.

    `cause`: the exception. `at`: the time of the failure on the client's monotonic clock. `why`:

    - "unreachable": the command was not sent, or the server rejects all writes. Nothing changed.
    - "unanswered": the command was sent, and the server may have executed it.
    - "busy": a temporary error such as LOADING, READONLY, or too many connections.
    - "final": a retry can't succeed.
    """

    def __init__(self, cause: BaseException, at: float, why: Why) -> None:
        super().__init__(str(cause))
        self.cause, self.at, self.why = cause, at, why


Plan = Generator[Step, Answer, Any]


def milliseconds(seconds: float) -> str:
    """Return a time as scripts read it: whole milliseconds, at least 1, or "inf"."""
    return "inf" if seconds == math.inf else str(max(1, math.ceil(seconds * 1000)))


def seconds(reply: str) -> float:
    return math.inf if reply == "inf" else int(reply) / 1000


@dataclass(slots=True)
class SendState:
    """What this process knows about a token on the server.

    - `unanswered`: True if a request of the token was not answered, and may still reach the server.
    - `there`: True if the token may have a place in the queue, or a lease.
    - `announced`: True if `AcquireRequest.on_wait` was called with True. It must be called with
      False when the wait ends.
    - `late`: when the token's grant arrived, if that was after the end of its lease. Otherwise 0.
    """

    unanswered: bool = False
    there: bool = False
    announced: bool = False
    late: float = 0.0


def uncounted(step: Run) -> Run:
    """Return the step that repeats `step`, which was not answered. The server may already have
    executed and counted `step`. So in an acquire, or in a report of a lost lease, set `keep` to 0.
    The script then does not count the repeated step."""
    if step.verb == "acquire" and step.argv[2] != "again":
        keep = 5
    elif step.verb == "release" and step.argv[3:4] == ("lost",):
        keep = 2
    else:
        return step
    return step._replace(argv=(*step.argv[:keep], 0, *step.argv[keep + 1 :]))


def persist(step: Run, until: float, state: SendState, patient: bool = False) -> Plan:
    """Return the answer to `step`. Repeat the step as long as a retry can succeed, at most until
    the time `until` (in seconds of the monotonic clock). Then raise Failure.

    `patient`: True for the request of a waiter, which could lose its position in the queue. If the
    server is unreachable, a waiter's request is repeated until `until`, and others at most once.
    """
    tries, whole = 0, step.timeout
    while True:
        try:
            return (yield step)
        except Failure as failure:
            if failure.why == "unanswered":
                state.unanswered, step = True, uncounted(step)
            # If a try with a shortened timeout is not answered, keep the cause of an earlier try.
            if failure.why != "unanswered" or step.timeout == whole:
                cause = failure.cause
            # If the server is unreachable, only waiters continue to try.
            hopeless = failure.why == "final" or (
                failure.why == "unreachable" and tries > 0 and not patient
            )
            delay = backoff(tries)
            if hopeless or failure.at + delay >= until:
                if state.unanswered:  # the server may have executed one of the tries
                    raise Failure(cause, failure.at, "unanswered") from failure
                raise
            tries += 1
            if delay:
                yield Sleep(delay)
            left = until - failure.at - delay
            step = step._replace(timeout=max(min(step.timeout, left), SHORTEST_WAIT))


def once(step: Run, start: float) -> Plan:
    """Return the reply to a step. Without an answer, repeat the step, until twice its timeout
    has passed since `start`. It must be harmless if the server executes the step twice."""
    return (yield from persist(step, start + 2 * step.timeout, SendState())).reply


def run_once(verb: str, keys: Keys, argv: tuple[Any, ...], attempt: float, start: float) -> Plan:
    """Run a script by `once`, and return its reply. `attempt`: timeout of each try in seconds."""
    return once(Run(verb, keys.declared, argv, attempt), start)


class LocalExpiry:
    """The earliest time at which a lease can end on the server. The server may execute the
    renewals in any order.

    Threads share this object without a lock. Each access to the dict `_ends` is atomic.
    """

    # The server ignores a renewal with a lower number than the last. So of the answered renewals,
    # only that with the highest number counts. The server may execute, or not, each unanswered
    # renewal with a higher number. The lease would then end when its duration has passed since that
    # renewal was sent, or later. The local expiry is the earliest of all these ends.
    __slots__ = ("_ends",)

    def __init__(self, until: float, nth: int = 0) -> None:
        #: Maps the number of a renewal to (end of the lease, True if the renewal was answered).
        self._ends = {nth: (until, True)}

    @property
    def until(self) -> float:
        ends = self._ends.copy()
        if len(ends) == 1:
            return next(iter(ends.values()))[0]
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        return min(end for nth, (end, _) in ends.items() if nth >= newest)

    def asked(self, nth: int, lease: float, now: float) -> None:
        """Record a renewal that is about to be sent, for a lease of `lease` seconds from `now`."""
        self._ends[nth] = (now + lease - TICK, False)

    def answered(self, nth: int, until: float) -> None:
        """Record that the renewal `nth` was answered, and that the lease lasts until `until`."""
        self._ends[nth] = (until, True)
        ends = self._ends.copy()
        newest = max(nth for nth, (_, answered) in ends.items() if answered)
        for nth in ends:
            if nth < newest:
                self._ends.pop(nth, None)
