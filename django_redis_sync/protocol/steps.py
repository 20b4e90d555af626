"""What plans ask of a driver, and what they are sent: steps, answers and failures."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, Literal, NamedTuple

from .keys import Keys


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
