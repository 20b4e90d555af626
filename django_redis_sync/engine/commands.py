"""Plain commands of Redis, for readers past the verbs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from django.core.cache import caches
from redis.exceptions import ResponseError

from ..protocol.plans import Failure
from .drivers import error_of
from .server import server_of
from .wire import clock, text, why


def command(alias: str, *args: Any) -> Any:
    """A plain command of Redis. Unavailable when it can't be reached."""
    try:
        return decoded(server_of(alias).command(*args))
    except Failure as failure:
        raise error_of(failure) from failure.cause


def pipelined(alias: str, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Several reading commands in a single round trip. Unavailable when Redis can't be reached."""
    try:
        replies = server_of(alias).commands(commands)
    except Failure as failure:
        raise error_of(failure) from failure.cause
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise error_of(Failure(reply, clock(), why(reply, True))) from reply
    return [_shaped(*pair) for pair in zip(commands, replies, strict=True)]


def _shaped(words: Sequence[Any], reply: Any) -> Any:
    """As RESP3 has it: the hash that RESP2 writes flat is a dict."""
    found = decoded(reply)
    if words[0] == "HGETALL" and isinstance(found, list):
        return dict(zip(found[::2], found[1::2], strict=True))
    return found


def forget(alias: str) -> None:
    """Let this thread's cache object go, after no client could be made for it.

    django-redis 6 would try to make it again, to close it, and the end of the request would fail.
    """
    with contextlib.suppress(AttributeError):  # it was never made
        del caches[alias]


def decoded(reply: Any) -> Any:
    """Str for bytes, in RESP3's maps too."""
    if isinstance(reply, dict):
        return {text(key): text(value) for key, value in reply.items()}
    return text(reply)


def whole(text: str, other: int = 0) -> int:
    """The integer that a script wrote; `other` for a value that can't be ours."""
    try:
        value = int(text)
    except ValueError:
        return other
    return value if abs(value) < 2**63 else other
