"""The results of single_flight functions, which a cache of the project stores.

A name has up to five keys in the cache. They begin with a digest of the name, because some caches
don't accept all names as keys:

- `generation`: the generation of the name. An entry is valid while its own generation equals it.
  `forget()` deletes it, so that the results of computations that began before are never valid. If
  the cache loses it, the next call runs the function again.
- `value`: the entry of the last value: its ID, its generation, and the value.
- `outcome`: the entry of the last computation without a value: its ID, its generation, and the type
  and the text of the exception. The type is "" if there was a value that the cache could not store.
- `fresh`, `former`: the ID of the value while the value is younger than `ttl`, or than `ttl` and
  `stale` together. Not used if the value itself expires at that time.
"""

from __future__ import annotations

import hashlib
import math
import random
import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..engine.server import cache_of
from ..engine.wire import clock, is_exhausted
from ..exceptions import CallFailed

#: Min seconds for which calls that waited can get a value or an outcome.
_KEPT = 60
#: Seconds after the last entry has expired until the generation expires. A computation may take as
#: long.
_GENERATION_LIVES = 86400
#: Max characters of the text of an exception.
_MAX_TEXT = 1000

#: Max seconds to wait for a connection of the cache's pool, and seconds between two tries.
_PATIENCE, _PAUSES = 5.0, (0.002, 0.02)

_PARTS = ("generation", "value", "outcome", "fresh", "former")


class NotStored(Exception):
    """The cache did not keep a value, and did not raise an exception. For example, the value may
    have been too large."""


class Value(NamedTuple):
    """The entry of a value."""

    id: str
    generation: str
    value: Any


class Outcome(NamedTuple):
    """The entry of a computation without a value. `kind`, `text`: those of the exception."""

    id: str
    generation: str
    kind: str
    text: str


class Found(NamedTuple):
    """What the cache has of a name. `value` and `outcome`: the entries, or None if they are missing
    or not valid. `fresh`: True if the value is younger than `ttl` seconds. `former`: True if it is
    younger than `ttl` and `stale` together."""

    generation: str | None
    value: Value | None
    outcome: Outcome | None
    fresh: bool
    former: bool

    def news(self, first: Found) -> Value | Outcome | None:
        """Return the result of a computation that has ended since the cache had `first`, or a value
        that is fresh. Return None if there is neither."""
        for entry, before in ((self.value, first.value), (self.outcome, first.outcome)):
            is_fresh = entry is self.value and self.fresh
            if entry and (is_fresh or before is None or entry.id != before.id):
                return entry
        return None


class Results:
    """The results of a name in the cache `alias`. All methods are sync, and raise the exceptions of
    the cache.

    `identity`: what identifies the name: the alias of its lock, and the lock's key. `ttl`: seconds
    for which a value is fresh. `stale`: seconds for which it is kept after that.
    """

    __slots__ = (
        *("_generation", "_kept", "_keys", "_marks", "_outcome", "_value", "alias", "identity"),
    )

    def __init__(self, alias: str, identity: tuple[str, str], ttl: float, stale: float) -> None:
        digest = hashlib.blake2b(identity[1].encode(), digest_size=16).hexdigest()
        # The braces put all keys into one slot of a Redis Cluster.
        keys = [f"single_flight:{{{digest}}}:{part}" for part in _PARTS]
        self._generation, self._value, self._outcome, *marks = keys
        self.alias, self.identity = alias, identity
        fresh, former = math.ceil(ttl), math.ceil(ttl + stale)
        self._kept = max(former, _KEPT)
        # The seconds of each mark. A mark that would expire with the value is not needed.
        self._marks = [
            (key if seconds < self._kept else None, seconds)
            for key, seconds in zip(marks, (fresh, former if stale else 0), strict=True)
        ]
        self._keys = keys[:3] + [key for key, seconds in self._marks if key and seconds]

    def look(self) -> Found:
        """Return what the cache has."""
        got = cache_of(self.alias).get_many(self._keys)
        generation = got.get(self._generation)
        value = _valid(Value, got.get(self._value), generation)
        outcome = _valid(Outcome, got.get(self._outcome), generation)
        fresh, former = (
            value is not None and (key is None or got.get(key) == value.id)
            for key, _ in self._marks
        )
        return Found(generation, value, outcome, fresh, former)

    @property
    def _lives(self) -> int:
        """Seconds until the generation expires."""
        return self._kept + _GENERATION_LIVES

    def begin(self) -> str | None:
        """Make a generation, and return it. Return None if the cache keeps nothing."""
        cache, own, lives = cache_of(self.alias), secrets.token_hex(8), self._lives
        cache.set(self._generation, own, lives)
        # `touch` asks the server that stores values. A read might ask a replica.
        return own if cache.touch(self._generation, lives) else None

    def store(self, generation: str, value: Any) -> None:
        """Store a value, unless `forget()` was called after the computation began. `generation`:
        the generation when it began. Raise NotStored if the cache does not keep the value."""
        cache, id = cache_of(self.alias), secrets.token_hex(8)
        # `touch` never makes a key, so it can't undo a `forget()`.
        if cache.touch(self._generation, self._lives):
            cache.set(self._value, [id, generation, value], self._kept)
            for key, seconds in self._marks:
                if key and seconds:
                    cache.set(key, id, seconds)
            if not cache.touch(self._value, self._kept):
                raise NotStored("the cache did not keep it")

    def store_outcome(self, generation: str, error: Exception | None) -> None:
        """Store that a computation has no value for those who wait. `error`: the exception that it
        raised. None: it returned a value that could not be stored."""
        words = ("", "") if error is None else (type_of(error), text_of(error))
        entry = [secrets.token_hex(8), generation, *words]
        cache_of(self.alias).set(self._outcome, entry, _KEPT)

    def forget(self) -> None:
        """Make all results invalid, also of computations that have begun."""
        cache_of(self.alias).delete_many(self._keys)


def patiently(ask: Callable[..., Any], *arguments: Any) -> Any:
    """Return `ask(*arguments)`. While the connection pool of a cache is exhausted, because many
    threads ask at the same time, repeat that for up to _PATIENCE seconds."""
    until = clock() + _PATIENCE
    while True:
        try:
            return ask(*arguments)
        except Exception as error:
            if not is_exhausted(error) or clock() > until:
                raise
        time.sleep(random.uniform(*_PAUSES))


def failed(name: str, outcome: Outcome) -> CallFailed:
    """Return the exception for a call that waited for a computation that raised an exception."""
    text = f"{name!r}: the call that ran raised {outcome.kind}: {outcome.text}"
    return CallFailed(text, outcome.kind, outcome.text)


def type_of(error: BaseException) -> str:
    """Return the name of the exception's class, with the module unless the class is built in."""
    kind = type(error)
    builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if builtin else f"{kind.__module__}.{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception, also if its own `__str__` raises an exception."""
    try:
        return str(error)[:_MAX_TEXT]
    except Exception:
        return ""


def _valid(kind: Any, entry: Any, generation: Any) -> Any:
    """Return an entry as a `kind` if it is of the generation, else None."""
    is_entry = isinstance(entry, (list, tuple)) and len(entry) == len(kind._fields)
    is_valid = is_entry and generation is not None and entry[1] == generation
    return kind(*entry) if is_valid else None
