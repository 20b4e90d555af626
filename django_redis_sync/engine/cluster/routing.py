"""Where a command goes, and where a node's answer redirects it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import exceptions as errors

from ...protocol.plans import Failure

#: Redirections that a request follows.
MOST_HOPS = 4

#: Commands that any node can answer: all others name a key first.
_KEYLESS = {"ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "INFO", "LATENCY", "MEMORY"}
_KEYLESS |= {"PING", "PUBLISH", "RANDOMKEY", "ROLE", "SCRIPT", "SELECT", "SLOWLOG", "TIME"}


def key_of(args: Sequence[Any]) -> str | None:
    """The key that routes a command; None when any node will do."""
    word = args[0].upper()
    if word in _KEYLESS or len(args) < 2:
        return None
    if word in ("EVAL", "EVALSHA"):
        return str(args[3]) if int(args[2]) else None
    return str(args[1])


def is_silence(answer: Any) -> bool:
    return isinstance(answer, Failure) and answer.why in ("unreachable", "unanswered")


def partly(answer: Any) -> Any:
    """A script that met another waiter's key, which its half moved slot has not: it broke off, and
    its writes until then stay. So it counts as unanswered, and is sent again."""
    if isinstance(answer, Failure) and "non local key" in str(answer.cause):
        return Failure(answer.cause, answer.at, "unanswered")
    return answer


def points_elsewhere(answer: Any) -> bool:
    return isinstance(answer, Failure) and isinstance(answer.cause, errors.AskError)
