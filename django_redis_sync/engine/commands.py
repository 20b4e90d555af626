"""Plain commands of Redis, for readers past the verbs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from django.core.cache import caches

from ..protocol.plans import Failure
from .clients import backend_of
from .drivers import error_of
from .server import server_of
from .wire import REDIS_ERRORS, clock, text, why


def command(alias: str, *args: Any) -> Any:
    """A plain command of Redis. Unavailable when it can't be reached."""
    try:
        return decoded(server_of(alias).command(*args))
    except Failure as failure:
        raise error_of(failure) from failure.cause


def pipelined(alias: str, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Several reading commands in a single round trip. Unavailable when Redis can't be reached."""
    try:
        pipeline = backend_of(alias).get_client(write=True).pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        replies = pipeline.execute()
    except REDIS_ERRORS as error:
        raise error_of(Failure(error, clock(), why(error, False))) from error
    return [decoded(reply) for reply in replies]


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
