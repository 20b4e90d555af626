"""Plain reads of Redis for lists, and a memory of them for pages that refresh themselves.

A live page asks every two seconds. Who holds and who waits is read each time; counters, key counts
and indexes, which move slowly or are seconds old anyway, are read again after half a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..engine.drivers import command, pipelined
from ..engine.wire import clock

#: Seconds for which a reply is remembered, and replies that are.
_LIFE, _MAX_REPLIES = 30.0, 5000

Replies = dict[tuple[Any, ...], tuple[float, Any]]

_replies: Replies = {}
_memory: ContextVar[Replies | None] = ContextVar("_memory", default=None)


@contextmanager
def remembered(*, live: bool = False) -> Iterator[None]:
    """Within the block, send no reading command twice. With `live`, also take replies of up to
    _LIFE seconds ago from this process's memory."""
    token = _memory.set(_replies if live else {})
    try:
        yield
    finally:
        _memory.reset(token)


def read_each(alias: str, several: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the replies of several reading commands, in one round trip. Raise Unavailable if Redis
    can't be reached."""
    memory = _memory.get()
    if memory is None:
        return _sent(alias, several)
    now = clock()
    known = {words: memory.get((alias, *words), (-_LIFE, None)) for words in several}
    missing = [words for words, (at, _) in known.items() if now - at >= _LIFE]
    if missing:
        if len(memory) + len(missing) > _MAX_REPLIES:
            memory.clear()
        for words, reply in zip(missing, _sent(alias, missing), strict=True):
            place = (alias, *words)
            known[words] = memory[place] = now, reply
    return [known[words][1] for words in several]


def _sent(alias: str, several: Sequence[tuple[Any, ...]]) -> list[Any]:
    if len(several) == 1 and several[0][0] == "TIME":  # a Cluster pipelines only what has a key
        return [command(alias, "TIME")]
    return pipelined(alias, several) if several else []


def order_of(place: tuple[Any, ...], make: Callable[[], list[str]]) -> list[str]:
    """Return the order that `make` finds, which is remembered as replies are."""
    memory = _memory.get()
    if memory is None:
        return make()
    at, found = memory.get(place, (-_LIFE, []))
    if clock() - at >= _LIFE:
        found = make()
        memory[place] = clock(), found
    return list(found)


def read(alias: str, *words: Any) -> Any:
    """Return the reply of a reading command. Raise Unavailable if Redis can't be reached."""
    return read_each(alias, [words])[0]
