"""Commands that read Redis for lists, with a cache for pages that refresh themselves every two
seconds.

Such a page reads holders and waiters at each refresh. Counters, numbers of keys, and indexes are
cached for half a minute, because they change slowly or are already some seconds old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

from .. import conf
from ..engine.drivers import command, error_of, pipelined
from ..engine.wire import batches, clock
from ..exceptions import SyncError
from ..protocol.steps import Failure, Run

#: Max commands in a round trip.
_BATCH = 500
#: Seconds for which a reply is cached.
_LIFE = 30.0
#: Max cached replies. If there are more, the next `with remembered()` starts with an empty cache.
_MAX_REPLIES = 5000

Value = TypeVar("Value")
Replies = dict[tuple[Any, ...], tuple[float, Any]]
_replies: Replies = {}
_memory: ContextVar[Replies | None] = ContextVar("_memory", default=None)


@contextmanager
def remembered(*, live: bool = False) -> Iterator[None]:
    """Cache the replies of reading commands within the block. With `live`, also use replies that
    this process has cached within the last _LIFE seconds."""
    global _replies
    if len(_replies) > _MAX_REPLIES:
        _replies = {}
    token = _memory.set(_replies if live else {})
    try:
        yield
    finally:
        _memory.reset(token)


def read_each(alias: str, several: Sequence[tuple[Any, ...]], *, fresh: bool = False) -> list[Any]:
    """Return the replies of several reading commands, in one round trip per _BATCH of them. With
    `fresh`, don't use the cache. Raise Unavailable if Redis can't be reached."""
    memory, now = _memory.get(), clock()
    if memory is None or fresh:
        memory = {}
    places = {words: (alias, *words) for words in several}
    missing = [words for words, place in places.items() if not _is_cached(memory, place, now)]
    for batch in batches(missing, _BATCH):
        for words, reply in zip(batch, pipelined(alias, batch), strict=True):
            memory[places[words]] = now, reply
    return [memory[places[words]][1] for words in several]


def read(alias: str, *words: Any) -> Any:
    """Return the reply of a reading command. Raise Unavailable if Redis can't be reached."""
    return read_each(alias, [words])[0]


def cached(place: tuple[Any, ...], make: Callable[[], Value]) -> Value:
    """Return the result of `make()`. In a `remembered()` block, cache it under the key `place`."""
    memory = _memory.get()
    if memory is None:
        return make()
    if not _is_cached(memory, place, clock()):
        memory[place] = clock(), make()
    found: Value = memory[place][1]
    return found


def _is_cached(memory: Replies, place: tuple[Any, ...], now: float) -> bool:
    return place in memory and now - memory[place][0] < _LIFE


def where(using: str | None) -> tuple[str, str]:
    """Return two values: the cache alias, and the prefix of the library's keys in this cache. The
    alias is `using`, or by default that of REDIS_SYNC."""
    config = conf.current()
    alias = using or config.cache
    return alias, config.prefix(alias)


def server_time(alias: str) -> float:
    """Return the server's time in seconds. Raise Unavailable if Redis can't be reached."""

    def offset() -> float:
        seconds, micros = command(alias, "TIME")
        return int(seconds) + int(micros) / 1e6 - clock()

    return cached(("TIME", alias), offset) + clock()


def failed(failure: Failure, step: Run) -> SyncError:
    """Return the exception to raise for a failed step. Its `__cause__` is the original error. Raise
    ImproperlyConfigured if the server is an imitation of Redis."""
    error = error_of(failure, step)
    error.__cause__ = failure.cause
    if isinstance(error, ImproperlyConfigured):
        raise error
    return error
